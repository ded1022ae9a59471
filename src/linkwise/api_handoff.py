"""`linkwise.handoff`: prefill and decode on different ranks, and the chain behind a figure of that answer."""

import difflib
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from linkwise import calibrations, doors
from linkwise import settings as _settings
from linkwise.answers import Handoff
from linkwise.api_task import cluster_of, model_of
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.engine.base import Engine
from linkwise.model.types import Model
from linkwise.plan.handoff_types import HandoffOptions
from linkwise.settings import Settings
from linkwise.workload.types import Targets

if TYPE_CHECKING:
    from linkwise.plan.explain import Explanation


def handoff(
    model: FilePath | Model,
    on: FilePath | Cluster,
    *,
    prompt: int,
    prefill_tp: int,
    decode_tp: int,
    prefill_pp: int = 1,
    decode_pp: int = 1,
    engine: str | Engine = "vllm",
    factors: HandoffOptions | None = None,
    **settings: Unpack[Settings],
) -> Handoff:
    """What handing KV from prefill to decode ranks takes, and whether separate pools pay on these devices.

    prompt: tokens. factors: connector, headers, copies, retries. settings: rate ("20/s", or requests per second), and
    those of `fit` that change step times, KV or targets (kv_dtype, osl, ttft, tpot, ...); degrees are given by side.
    """
    from linkwise.plan.disaggregate import compare as against
    from linkwise.plan.disaggregate import verdict_figures
    from linkwise.plan.handoff import handoff as decide
    from linkwise.plan.search import search

    doors.sides(prompt=prompt, prefill_tp=prefill_tp, decode_tp=decode_tp, prefill_pp=prefill_pp, decode_pp=decode_pp)
    doors.of_type(factors, (HandoffOptions, type(None)), "factors", "HandoffOptions, or None")
    factors = doors.again(factors or HandoffOptions(), "factors")
    given = _settings.check({**settings, "isl": prompt})
    if _settings.degrees(given):
        raise InputError("degrees are given by side", where="handoff", expected="prefill_tp, decode_tp and their pp")
    options, workload, by = _settings.options(given), _settings.workload(given), doors.engine(engine)
    by = calibrations.timed(by, _settings.file(given, "calibration"))
    if workload.rate_per_s is None:
        raise InputError("no rate", where="handoff", expected="requests per second, such as 20/s")
    where = cluster_of(on, given)
    what = model_of(model, given)
    found = decide(
        what,
        where,
        prompt_tokens=prompt,
        rate_per_s=workload.rate_per_s,
        prefill_tp=prefill_tp,
        decode_tp=decode_tp,
        prefill_pp=prefill_pp,
        decode_pp=decode_pp,
        engine=by,
        kv_dtype=options.kv_dtype or "auto",
        options=factors,
    )
    inputs: dict[str, Any] = {"served": what, "cluster": where, "engine_version": by.version}
    inputs |= {"factors": factors, "settings": options, "output_tokens": workload.osl_tokens}
    answer = Handoff(**{f: getattr(found, f) for f in found.__struct_fields__}, **inputs)
    free = msgspec.structs.replace(workload, rate_per_s=None, targets=Targets())
    seen = search(what, where, by, options, free)
    layouts = {str(c.layout): c.layout for c in seen.candidates}
    # A mixed group that splits context holds no more requests for it, only longer ones: tried where nothing else fits.
    mixed = tuple(x for x in layouts.values() if x.cp == x.dcp == 1) or tuple(layouts.values())
    if not mixed:
        return _noted(answer, "no verdict: no mixed group fits")
    try:
        said = against(
            what,
            where,
            by,
            workload,
            mixed=mixed,
            prefill=found.prefill,
            decode=found.decode,
            options=options,
            handoff_options=factors,
        )
    except InputError as error:
        return _noted(msgspec.structs.replace(answer, unserved=error.message), f"no verdict: {error.message}")
    figures = answer.figures | {
        f"verdict.{name.replace(' ', '_')}": float(value) for name, value in verdict_figures(said.question).items()
    }
    short = said.supply.reason if said.supply and not said.supply.serves else ""
    return msgspec.structs.replace(
        answer, mixed=layouts[said.question.mixed.label], verdict=said, unserved=short, figures=figures
    )


def _noted(answer: Handoff, note: str) -> Handoff:
    return msgspec.structs.replace(answer, notes=(*answer.notes, note))


def explain_handoff(value: Handoff, path: str) -> "Explanation":
    """The chain of a handoff's figure, from the inputs it embeds."""
    from linkwise.core.chain import chain_of
    from linkwise.core.quantity import Quantity
    from linkwise.engine.registry import get
    from linkwise.plan.explain import Explanation
    from linkwise.plan.handoff import handoff_figures

    if path not in value.figures:
        near = ", ".join(difflib.get_close_matches(path, value.figures, n=4, cutoff=0.4) or value.figures)
        raise InputError(
            f"no figure {path!r}", where="explain", expected="a figure of this handoff", hint=f"Near: {near}"
        )
    if path.startswith("verdict.") and value.verdict is not None:
        from linkwise.plan.disaggregate import verdict_figures

        name = path.removeprefix("verdict.").replace("_", " ")
        return Explanation(path, chain_of(verdict_figures(value.verdict.question, given=Quantity.given)[name]))
    found = handoff_figures(
        value.served,
        value.cluster,
        prompt_tokens=value.prompt_tokens,
        rate_per_s=value.rate_per_s,
        prefill_tp=value.prefill.tp,
        decode_tp=value.decode.tp,
        prefill_pp=value.prefill.pp,
        decode_pp=value.decode.pp,
        engine=get(value.engine, value.engine_version),
        kv_dtype=value.kv_dtype,
        options=value.factors,
        given=Quantity.given,
    )
    return Explanation(path, chain_of(found[path]))
