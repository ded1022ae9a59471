"""The commands as Python calls, with the same names and settings.

    import linkwise
    plan = linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", isl=4000, osl=500, rate="6/s", ttft="1s", tpot="40ms")
    plan.layout, plan.replicas, plan.figures["decode.all_reduce.sent_bytes"]

Every call takes text (`on="8xh100-sxm"`) or values (a `Model`, a `Cluster`), and returns a frozen value: data a program
reads, with a repr a person reads, written to a file by `save` and read by `load`. Bad input raises `InputError`.
"""

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import msgspec

from linkwise import calibrations, doors
from linkwise import settings as _settings
from linkwise.answers import Fit, Handoff, NoPlan, Plan, Traffic, as_kind, load, save
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan import types
from linkwise.plan.handoff_types import HandoffOptions
from linkwise.settings import Settings
from linkwise.workload.types import Targets, Workload

if TYPE_CHECKING:
    from linkwise.api_existing import Read
    from linkwise.cluster.types import Accelerator
    from linkwise.engine.registry import Known
    from linkwise.model import catalogue
    from linkwise.plan.explain import Explanation
    from linkwise.plan.textbook import Worked
    from linkwise.report.compare import Comparison

__all__ = ["Fit", "Handoff", "NoPlan", "Plan", "Traffic", "load", "save"]
__all__ += ["compare", "engines", "explain", "fit", "handoff", "hardware", "models", "plan", "traffic"]


def fit(
    model: str | Path | Model | None = None,
    on: str | Path | Cluster = "",
    *,
    engine: str | Engine | None = None,
    from_command: str = "",
    from_manifest: str | Path = "",
    from_running: str = "",
    **settings: Unpack[Settings],
) -> Fit:
    """Does it fit, and what is the first thing that does not?

    model: catalogue name, folder, Hugging Face id or `Model`. on: shorthand ("2x8xh100-sxm"), YAML file or `Cluster`.
    engine: "vllm" (when nothing else says one), "vllm@0.11", ... from_command, from_manifest, from_running: as in
    `plan`. Raises InputError for anything malformed; "does not fit" is an answer, no error.
    """
    task = _task(model, on, engine, _reader(from_command, from_manifest, from_running, settings), settings)
    from linkwise.plan.fit import fit as decide

    found = decide(task.model, task.cluster, task.engine, task.options, task.workload, fixed=task.fixed)
    room = _room(task, found.ledger)
    return as_kind(Fit, msgspec.structs.replace(found, notes=(*found.notes, *task.notes, *room)))


def plan(
    model: str | Path | Model | None = None,
    on: str | Path | Cluster = "",
    *,
    engine: str | Engine | None = None,
    from_command: str = "",
    from_manifest: str | Path = "",
    from_running: str = "",
    price: str = "",
    prefill_on: str | Path | Cluster | None = None,
    pareto: bool | None = None,
    **settings: Unpack[Settings],
) -> Plan | NoPlan:
    """How is it split, what does each link carry, how long does it take, and why this way?

    from_command: an engine's own launch command; from_manifest: a file that has one (Kubernetes, compose, or what
    `launch` wrote; FILE:NAME where it has several); from_running: a server's address. Its engine, model, degrees,
    replicas and options are planned as they run; a setting given beside it wins. engine: "vllm" when neither it nor a
    command says one; beside a command it may add the version. pareto: set what the devices offer side by side, with a
    choice for the targets; None = where there are targets, a price or other devices for prefill groups (prefill_on).
    price: USD per device hour, such as "2.5" or "h100-sxm=2.5,h200-sxm=3.4". Other arguments as in `fit`. NoPlan says
    what is short when none is feasible.
    """
    from linkwise.api_frontier import beside, frontier_of
    from linkwise.plan.build import plan as build
    from linkwise.plan.fit import Case
    from linkwise.plan.frontier import Seen, collect
    from linkwise.plan.types import NoPlan as Short

    task = _task(model, on, engine, _reader(from_command, from_manifest, from_running, settings), settings)
    asked = Case(task.model, task.cluster, task.engine, task.options, task.workload)
    wanted = bool(price or prefill_on or asked.workload.targets != Targets()) if pareto is None else pareto
    seen: list[Seen] = []
    with beside() as aside:
        found = build(
            *asked, fixed=task.fixed, replicas=task.replicas, seen=collect(seen, asked) if wanted else None,
            other=aside,
        )  # fmt: skip
        if wanted:
            other = None if prefill_on is None else _cluster(prefill_on)
            own = None if isinstance(found, Short) else found.chosen
            front = frontier_of(asked, seen, price=price, prefill_on=other, own=own, other=aside)
            found = msgspec.structs.replace(found, frontier=front)
    if task.replicas is None:
        return _answer(msgspec.structs.replace(found, notes=(*found.notes, *task.notes)))
    freely = _freely(found, build(task.model, task.cluster, task.engine, found.options, task.workload))
    room = () if isinstance(found, Short) else _room(task, found.ledger)
    return _answer(msgspec.structs.replace(found, notes=(*found.notes, *task.notes, *room, *freely)))


def _room(task: "_Task", ledger: "types.Ledger | None") -> tuple[str, ...]:
    """Whether a running server has the KV room that the ledger expects of it."""
    from linkwise.api_existing import contradiction

    return contradiction(task.model, ledger, task.kv_tokens)


class _Task(NamedTuple):
    """What is to be decided, as it was given or as it runs today. replicas: today's; None where the choice is free.

    kv_tokens: what each engine of a running server has room for; None = not said.
    """

    model: Model
    cluster: Cluster
    engine: Engine
    options: Options
    workload: Workload
    fixed: dict[str, int]
    replicas: int | None
    notes: tuple[str, ...]
    kv_tokens: int | None = None


def _reader(command: str, manifest: str | Path, running: str, settings: Settings) -> "Read | None":
    from linkwise.api_existing import reader

    return reader(command, manifest, running, degrees=bool(_settings.degrees(_settings.check(settings))))


def _task(
    model: str | Path | Model | None,
    on: str | Path | Cluster,
    engine: str | Engine | None,
    read: "Read | None",
    settings: Settings,
) -> _Task:
    from linkwise.engine.registry import get

    given = _settings.check(settings)
    options, workload = _settings.options(given), _settings.workload(given)
    by = calibrations.timed(doors.engine("vllm" if engine is None else engine), given.get("calibration"))
    where = _cluster(on, given)
    own = _settings.degrees(given)
    if read is None:
        if model is None:
            raise InputError("no model", expected="a model, or a command that names one (--from-command)")
        what = _model(model, given)
        return _Task(what, where, by, options, workload, _fixed(own, what, where), None, ())
    version = None if engine is None else doors.version_of(engine)
    today = read(version=version)
    if engine is not None and by.name != today.engine:
        raise InputError(
            f"{by.name}, but the command starts {today.engine}",
            where="engine",
            expected=f"{today.engine}, a version of it, or none",
        )
    given = _settings.check({"weights": today.options.weight_dtype, **given})
    what = _model(today.model if model is None else model, given)
    # Once more with the model: what a data-parallel flag means depends on whether it has experts.
    today = read(version=version, model=what)
    ignored = (f"flags that change neither layout nor memory: {' '.join(today.ignored)}",) if today.ignored else ()
    # Degrees of one's own make another layout: the command's then count no more. Beside a server that says how many
    # engines it has and no more, they are what it does not say.
    says = _degrees_of(today.layout)
    fixed = _fixed({**says, **own} if today.partial else own or says, what, where)
    options = _settings.options(given, today.options)
    notes = (*today.notes, *ignored)
    by = calibrations.timed(get(today.engine, version), given.get("calibration"))
    replicas: int | None = today.replicas
    if own:  # a server's engines are attention replicas of a group, or groups
        engines = today.replicas * today.layout.dp_attn
        replicas = max(1, engines // fixed.get("dp_attn", 1)) if today.partial else None
    return _Task(what, where, by, options, workload, fixed, replicas, notes, today.kv_tokens)


def _freely(today: "types.Plan | types.NoPlan", free: "types.Plan | types.NoPlan") -> tuple[str, ...]:
    """What the planner would choose in place of a command's layout, beside what that delivers."""
    if isinstance(free, types.NoPlan):
        return ()
    best = f"{free.replicas} x ({free.layout}): {free.chosen.max_rate_per_s * free.replicas:.2f} requests/s at most"
    if isinstance(today, types.NoPlan):
        return (f"a free choice for the same devices: {best}",)
    if (free.layout, free.replicas) == (today.layout, today.replicas):
        return ("a free choice for the same devices is this same layout",)
    now = f"{today.replicas} x ({today.layout}): {today.chosen.max_rate_per_s * today.replicas:.2f}"
    return (f"a free choice for the same devices would be {best}, against {now} as the command has it",)


def explain(source: "str | Path | types.Plan | types.Fit | Handoff", path: str = "") -> "Explanation | Worked":
    """The chain behind one figure of a plan, a fit or a handoff (value or file).

    "seed:<id>" as source gives a worked calculation of the textbook instead: all of it, or the one figure `path`.
    """
    kinds = (str, Path, types.Plan, types.NoPlan, types.Fit, Handoff)
    doors.of_type(source, kinds, "source", "a plan, a fit or a handoff, its file, or seed:ID")
    doors.of_type(path, str, "path", "the path of a figure")
    if isinstance(source, str) and source.startswith("seed:"):
        from linkwise.plan.explain import Explanation
        from linkwise.plan.textbook import chain

        worked = chain(source.removeprefix("seed:"))
        return Explanation(path, worked.chain(path)) if path else worked
    value = load(source) if isinstance(source, str | Path) else source
    if isinstance(value, types.NoPlan):
        raise InputError(
            f"no figure {path!r}: there is no plan to explain. {value.nearest.layout} came nearest: "
            f"{value.nearest.shortfall.reason}",
            where="explain",
            expected="a plan, a fit or a handoff",
        )
    if isinstance(value, Handoff):
        return _explain_handoff(value, path)
    if isinstance(value, types.Plan) and path.startswith("link:"):
        from linkwise.plan.link_chain import explain_link

        return explain_link(value, path)
    from linkwise.plan.explain import explain as chain_behind

    return chain_behind(value, path)


def _explain_handoff(value: Handoff, path: str) -> "Explanation":
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


def compare(a: "str | Path | types.Plan", b: "str | Path | types.Plan") -> "Comparison":
    """Two plans (values or files) side by side: memory, bytes, time, failure boundary."""
    from linkwise.report.compare import compare as beside

    return beside(_plan_of(a), _plan_of(b), names=(_called(a, "a"), _called(b, "b")))


def handoff(
    model: str | Path | Model,
    on: str | Path | Cluster,
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
    by = calibrations.timed(by, given.get("calibration"))
    if workload.rate_per_s is None:
        raise InputError("no rate", where="handoff", expected="requests per second, such as 20/s")
    where = _cluster(on, given)
    what = _model(model, given)
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


def traffic(
    source: "str | Path | types.Plan",
    *,
    step: str = "decode",
    placement: tuple[int, ...] | None = None,
    replica: int | None = None,
    algorithms: Mapping[str, str] | None = None,
) -> Traffic:
    """Bytes on every link in one step of a plan (value or file), and which link is busy longest.

    step: prefill, decode or mixed. placement: devices in rank order, replica after replica (None = the plan's own).
    replica: count this one alone. algorithms: by kind, in place of the plan's, such as {"all_reduce": "tree"}.
    """
    from linkwise.plan.traffic import traffic as count

    return as_kind(Traffic, count(_plan_of(source), step, placement, replica=replica, algorithms=algorithms))


def models() -> "tuple[catalogue.Entry, ...]":
    """Models known by name, with the sources of their facts."""
    from linkwise.model.catalogue import entries

    return entries()


def hardware() -> "tuple[Accelerator, ...]":
    """Accelerators known by name, with source and confidence."""
    from linkwise.cluster.presets import hardware as known

    return tuple(known())


def engines() -> "tuple[Known, ...]":
    """Engines known, at their newest known version: what is supported, where each figure comes from."""
    from linkwise.engine.registry import known

    return tuple(known())


def _model(model: str | Path | Model, given: Settings) -> Model:
    from linkwise.model.read import load as read

    doors.of_type(model, (str, Path, Model), "model", "a model's name, its folder, or a Model")
    dtype = given.get("weights")
    if isinstance(model, Model):
        doors.experts(model, given)
        if dtype is not None:
            raise InputError("a Model is already resolved", where="weights", expected="a model's name or folder")
        return model
    found = read(str(model), weight_dtype=dtype)
    doors.experts(found, given)
    return found


def _cluster(on: str | Path | Cluster, given: Settings | None = None) -> Cluster:
    """The cluster, with the constants of the calibration that the settings name."""
    from linkwise.cluster.read import load as read

    doors.of_type(on, (str, Path, Cluster), "on", "a cluster such as 2x8xh100-sxm, a YAML file, or a Cluster")
    if on == "":
        raise InputError("no cluster", where="--on", expected="a cluster such as 2x8xh100-sxm, or a YAML file")
    found: Cluster = doors.again(on, "on") if isinstance(on, Cluster) else read(str(on))
    path = (given or {}).get("calibration")
    if path is None or calibrations.is_of_steps(path):
        return found
    from linkwise.measure import calibration

    return calibration.apply(calibration.load(path), found, path)


def _degrees_of(layout: Layout) -> dict[str, int]:
    return {**layout.degrees(), "sequence_sharded": int(layout.sequence_sharded)}


def _fixed(degrees: dict[str, int], model: Model, cluster: Cluster) -> dict[str, int]:
    """Degrees some layout on the cluster can have. Raises InputError that says which of them cannot be."""
    from linkwise.plan.search import layouts

    if not degrees or next(layouts(model, cluster, degrees), None) is not None:
        return degrees
    given, expected = _impossible(degrees, model, cluster)
    raise InputError(given, where="layout", expected=expected)


def _impossible(degrees: dict[str, int], model: Model, cluster: Cluster) -> tuple[str, str]:
    """What is wrong with degrees that no layout has, and what would be right."""
    from linkwise.plan.search import group_sizes

    outer = {n: degrees[n] for n in ("pp", "cp", "dp_attn", "tp") if n in degrees}
    product, layers, sizes = math.prod(outer.values()), len(model.layers), group_sizes(cluster)
    if outer.get("pp", 1) > layers:
        return f"pp {outer['pp']} is more than the model's {layers} layers", f"pp 1..{layers}"
    if not any(size % product == 0 for size in sizes):
        words = " x ".join(f"{n} {d}" for n, d in outer.items() if d > 1)
        what = words if words.count(" ") == 1 else f"{words} = {product} ranks"
        inside = ", ".join(str(s) for s in sizes if s <= cluster.devices_per_node)
        many = f"{cluster.nodes} nodes" if cluster.nodes > 1 else "a node"
        verb = "does" if what == words else "do"
        whole = " or whole nodes" if cluster.nodes > 1 else ""
        return f"{what} {verb} not pack into {many} of {cluster.devices_per_node} devices", inside + whole
    if degrees.get("ep", 1) > 1 and model.moe is None:
        return f"ep {degrees['ep']}, but the model has no experts", "ep 1"
    inner = {"dcp": "tp", "ep": "cp x dp_attn x tp, the ranks of a stage"}
    named = [n for n in inner if degrees.get(n, 1) > 1]
    given = ", ".join(f"{n} {d}" for n, d in degrees.items() if n in outer or n in named)
    return f"no layout has {given}", " and ".join(f"{n} that divides {inner[n]}" for n in named)


def _answer(found: types.Plan | types.NoPlan) -> "Plan | NoPlan":
    return as_kind(Plan, found) if isinstance(found, types.Plan) else as_kind(NoPlan, found)


def _plan_of(value: "str | Path | types.Plan") -> types.Plan:
    found = load(value) if isinstance(value, str | Path) else value
    if not isinstance(found, types.Plan):
        raise InputError(
            "is no plan", where=_called(value, "value"), expected="a plan, as linkwise plan -o FILE writes it"
        )
    return found


def _called(value: object, otherwise: str) -> str:
    return Path(value).name if isinstance(value, str | Path) else otherwise
