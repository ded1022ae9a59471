"""`linkwise.handoff`: prefill and decode on different ranks, and the chain behind a figure of that answer."""

import difflib
import os
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from linkwise import calibrations, doors
from linkwise import settings as _settings
from linkwise.answers import Handoff
from linkwise.api_task import cluster_of, model_of
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.engine_of import engine_of
from linkwise.plan.handoff_types import HandoffOptions
from linkwise.plan.types import Plan
from linkwise.settings import Settings
from linkwise.workload.types import Targets, Workload

if TYPE_CHECKING:
    from linkwise.plan.disaggregate import Disaggregation
    from linkwise.plan.explain import Explanation


def handoff(
    model: "FilePath | Model | Plan",
    on: FilePath | Cluster | None = None,
    *,
    prompt: int | None = None,
    prefill_tp: int | None = None,
    decode_tp: int | None = None,
    prefill_pp: int | None = None,
    decode_pp: int | None = None,
    engine: str | Engine | None = None,
    prefill: "FilePath | Plan | None" = None,
    factors: HandoffOptions | None = None,
    **settings: Unpack[Settings],
) -> Handoff:
    """What handing KV from prefill to decode ranks takes, and whether separate pools pay on these devices.

    prompt: tokens. factors: connector, headers, copies, retries. settings: rate ("20/s", or requests per second), and
    those of `fit` that change step times, KV or targets (kv_dtype, osl, ttft, tpot, ...); degrees are given by side.
    prefill: the plan of a prefill pool; `model` is then the plan of the decode pool, both with the groups they have,
    and only a rate, targets and factors are asked beside them.
    """
    doors.of_type(factors, (HandoffOptions, type(None)), "factors", "HandoffOptions, or None")
    factors = doors.again(factors or HandoffOptions(), "factors")
    degrees = {"prefill_tp": prefill_tp, "decode_tp": decode_tp, "prefill_pp": prefill_pp, "decode_pp": decode_pp}
    if prefill is not None:
        _alone({"on": on, "prompt": prompt, **degrees, "engine": engine}, settings, factors)
        return _of_plans(model, prefill, factors, settings)
    doors.of_type(model, (str, os.PathLike, Model, Plan), "model", "a model's name, its folder, or a Model")
    if isinstance(model, Plan):
        raise InputError("one plan", where="handoff", expected="prefill, the plan of the prefill pool, beside it")
    missing = [name for name, value in (("on", on), ("prompt", prompt), *list(degrees.items())[:2]) if value is None]
    if on is None or prompt is None or prefill_tp is None or decode_tp is None:
        raise InputError(
            f"{', '.join(missing)} not given", where="handoff", expected="a model, a cluster, a prompt and the degrees",
            hint="Or the plan of a decode pool, and with prefill that of the other",
        )  # fmt: skip
    return _of_layouts(
        model, on, prompt, (prefill_tp, decode_tp), (prefill_pp or 1, decode_pp or 1), engine or "vllm", factors,
        settings,
    )  # fmt: skip


def _alone(words: dict[str, object], settings: Settings, factors: HandoffOptions) -> None:
    """Raises InputError for what two plans say already."""
    asked = {"rate", "ttft", "tpot"}
    given = [name for name, value in (*words.items(), ("decode_device", factors.decode_device)) if value is not None]
    given += [name for name, value in settings.items() if value is not None and name not in asked]
    if given:
        raise InputError(
            f"{given[0]} beside two plans", where="handoff", expected="rate, ttft and tpot alone: plans say the rest"
        )


def _of_plans(
    decode: "FilePath | Model | Plan", prefill: "FilePath | Plan", factors: HandoffOptions, settings: Settings
) -> Handoff:
    from linkwise.api_simulate import plan_of, targets_of
    from linkwise.plan import handoff_plans as plans
    from linkwise.plan.pools import pool_of

    doors.of_type(decode, (str, os.PathLike, Plan), "model", "the plan of the decode pool, or its file")
    first, second = plan_of(prefill), plan_of(decode)  # type: ignore[arg-type]
    given = _settings.check(settings)
    rate = _settings.workload(given).rate_per_s or second.workload.rate_per_s
    if rate is None:
        raise InputError("no rate", where="handoff", expected="requests per second, such as 20/s")
    targets = targets_of(second, given.get("ttft"), given.get("tpot"))
    load = msgspec.structs.replace(second.workload, rate_per_s=rate, concurrency=None, targets=targets)
    it = plans.asked(first, second, load, factors)
    inputs: dict[str, Any] = {"served": second.model, "cluster": first.cluster, "engine_version": second.engine_version}
    inputs |= {"factors": factors, "settings": second.options, "output_tokens": load.osl_tokens, "pools": it.pools}
    answer = Handoff(**{f: getattr(it.found, f) for f in it.found.__struct_fields__}, **inputs)
    if it.pools.other is not None:
        said = plans.served(it)
        answer = _noted(answer, "no verdict: mixed groups are not weighed against pools on two clusters")
        return msgspec.structs.replace(answer, unjudged=said, unserved="" if said.serves else said.reason)
    by = engine_of(second)
    layouts = _mixed(second.model, second.cluster, by, second.options, load)
    if not layouts:
        said = plans.served(it)
        answer = _noted(answer, "no verdict: no mixed group fits")
        return msgspec.structs.replace(answer, unjudged=said, unserved="" if said.serves else said.reason)
    pools = [pool_of(second.model, second.cluster, by, x, load, second.options) for x in layouts.values()]
    return _judged(answer, plans.judged(it, tuple(pools)), layouts)


def _mixed(model: Model, cluster: Cluster, engine: Engine, options: Options, workload: Workload) -> dict[str, Layout]:
    """Layouts that mixed groups can have, by their names."""
    from linkwise.plan.search import search

    free = msgspec.structs.replace(workload, rate_per_s=None, targets=Targets())
    layouts = {str(c.layout): c.layout for c in search(model, cluster, engine, options, free).candidates}
    # A mixed group that splits context holds no more requests for it, only longer ones: tried where nothing else fits.
    return {name: x for name, x in layouts.items() if x.cp == x.dcp == 1} or layouts


def _judged(answer: Handoff, said: "Disaggregation", layouts: dict[str, Layout]) -> Handoff:
    from linkwise.plan.disaggregate import verdict_figures

    figures = answer.figures | {
        f"verdict.{name.replace(' ', '_')}": float(value) for name, value in verdict_figures(said.question).items()
    }
    short = said.supply.reason if said.supply and not said.supply.serves else ""
    return msgspec.structs.replace(
        answer, mixed=layouts[said.question.mixed.label], verdict=said, unserved=short, figures=figures
    )


def _of_layouts(
    model: FilePath | Model, on: FilePath | Cluster, prompt: int, tp: tuple[int, int], pp: tuple[int, int],
    engine: str | Engine, factors: HandoffOptions, settings: Settings,
) -> Handoff:  # fmt: skip
    from linkwise.plan.disaggregate import compare as against
    from linkwise.plan.handoff import handoff as decide

    doors.sides(prompt=prompt, prefill_tp=tp[0], decode_tp=tp[1], prefill_pp=pp[0], decode_pp=pp[1])
    given = _settings.check({**settings, "isl": prompt})
    if _settings.degrees(given):
        raise InputError("degrees are given by side", where="handoff", expected="prefill_tp, decode_tp and their pp")
    options, workload, by = _settings.options(given), _settings.workload(given), doors.engine(engine)
    by = calibrations.timed(by, _settings.file(given, "calibration"))
    if workload.rate_per_s is None:
        raise InputError("no rate", where="handoff", expected="requests per second, such as 20/s")
    where = cluster_of(on, given)
    what = by.holds(model_of(model, given), options, where.accelerator)
    found = decide(
        what,
        where,
        prompt_tokens=prompt,
        rate_per_s=workload.rate_per_s,
        prefill_tp=tp[0],
        decode_tp=tp[1],
        prefill_pp=pp[0],
        decode_pp=pp[1],
        engine=by,
        kv_dtype=options.kv_dtype or "auto",
        options=factors,
    )
    inputs: dict[str, Any] = {"served": what, "cluster": where, "engine_version": by.version}
    inputs |= {"factors": factors, "settings": options, "output_tokens": workload.osl_tokens}
    answer = Handoff(**{f: getattr(found, f) for f in found.__struct_fields__}, **inputs)
    layouts = _mixed(what, where, by, options, workload)
    if not layouts:
        return _noted(answer, "no verdict: no mixed group fits")
    try:
        said = against(
            what,
            where,
            by,
            workload,
            mixed=tuple(layouts.values()),
            prefill=found.prefill,
            decode=found.decode,
            options=options,
            handoff_options=factors,
        )
    except InputError as error:
        return _noted(msgspec.structs.replace(answer, unserved=error.message), f"no verdict: {error.message}")
    return _judged(answer, said, layouts)


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
    if value.pools is not None:
        from linkwise.plan.handoff_plans import explained

        return Explanation(path, chain_of(explained(value, value.pools, Quantity.given)[path]))
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
