"""Rows of benchmark results as runs: what a row says, what the user adds, and why a row cannot be one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from linkwise.cluster import presets
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Engine, Options
from linkwise.engine.versions import version_key
from linkwise.model import catalogue, read
from linkwise.model.types import Model
from linkwise.plan.interval import quantisation_of
from linkwise.plan.ledger import ledger
from linkwise.simulate.calibrate.case import MOST_REQUESTS, PER_USER, Case, Split, serving
from linkwise.simulate.rules import Transfer
from linkwise.simulate.served import Served
from linkwise.workload.results import Groups, LeftOut, Row
from linkwise.workload.types import Workload

_DTYPES = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "int4": "int4",
           "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "bfloat16"}  # fmt: skip
# Lengths a file gives as means, where it does not say that all are alike: uniform in 0.8 to 1.0 of what has that mean.
_MEAN_SHARE = 0.9
_NEAR_WHOLE = 0.05  # tokens drafted a step, where a file counts them: the last step of a request may draft fewer
SLACK = 0.05  # by which the ledger may be short of what a run had, and it is taken for one that ran all the same


class Given(NamedTuple):
    """What the user says of all rows; None and "" = as each row says."""

    engine: str = ""
    model: str = ""
    cluster: Cluster | None = None
    tp: int | None = None


class Readings(NamedTuple):
    """Runs, and the rows that cannot be simulated, each with the reason."""

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]


def cases_of(rows: Sequence[Row], given: Given) -> Readings:
    """Every row as a run, or left out with its reason."""
    cases, left_out = [], []
    for row in rows:
        try:
            cases.append(case_of(row, given))
        except InputError as error:
            wanted = f"; expected {error.expected}" if error.expected else ""
            left_out.append(LeftOut(where=row.source, reason=f"{error.message}{wanted}"))
    return Readings(tuple(cases), tuple(left_out))


def case_of(row: Row, given: Given) -> Case:
    """A row as a run. Raises InputError that says what is missing or cannot be."""
    isl, osl = (_needed(getattr(row, name), name, row) for name in ("isl", "osl"))
    if row.ttft_s is None and row.tpot_s is None:
        raise InputError("neither TTFT nor TPOT", where=row.source, expected="one of them")
    engine, version_said = _engine(row, given)
    model = engine.holds(_model(_named(row, given), row.gemm_quant), Options())
    if isl + osl > model.max_len:
        raise InputError(
            f"{isl:,.0f} tokens in and {osl:,.0f} out", where=row.source,
            expected=f"at most {model.max_len:,}, what {model.name} takes",
        )  # fmt: skip
    users, rate = int(row.concurrency or 0), row.rate_per_s or 0.0
    if not users and row.rate_per_s is None:
        raise InputError("no load", where=row.source, expected="a concurrency or a rate")
    if row.fixed_lengths is None:
        isl, osl = isl / _MEAN_SHARE, osl / _MEAN_SHARE
    lengths, split, replicas = (round(isl), round(osl)), None, 1
    if row.prefill is not None and row.decode is not None:
        served, split = _pools(row, given, model, engine, lengths)
    else:
        layout = _layout(row, given)
        replicas = max(1, (row.gpus or layout.size) // layout.size)
        users, rate = -(-users // replicas), rate / replicas
        options = Options(kv_dtype=_kv(row.kv_dtype), max_seqs=max(256, users), **_drafts(row, model))
        served = _served(row, given, model, engine, layout, options, lengths)
    number = (row.requests or PER_USER * users or 1000) // replicas
    return Case(
        served, *lengths, "fixed" if row.fixed_lengths else "uniform", users, rate,
        max(1, min(number, MOST_REQUESTS)), row.ttft_s or float("nan"), row.tpot_s or float("nan"), model.name,
        row.source, split=split, version_said=version_said,
        prefix_hit=row.prefix_hit or 0.0,
    )  # fmt: skip


def _served(
    row: Row, given: Given, model: Model, engine: Engine, layout: Layout, options: Options, lengths: tuple[int, int]
) -> Served:  # fmt: skip
    """A group that ran. Raises InputError where its devices cannot have held it."""
    cluster = _placed(row, given, layout)
    if layout.size > cluster.size:
        raise InputError(f"{layout} on {cluster.size} devices", where=row.source, expected=f"{layout.size} devices")
    _held(model, cluster, engine, layout, options, row)
    return serving(model, cluster, engine, layout, options, *lengths)


def _pools(
    row: Row, given: Given, model: Model, engine: Engine, lengths: tuple[int, int]
) -> tuple[Served, Split]:  # fmt: skip
    """Groups that decode, and those that compute their prompts. Raises InputError for runs that do not tell of either's
    step: both means are needed, and drafted tokens are not described there."""
    if row.ttft_s is None or row.tpot_s is None:
        raise InputError("pools of their own", where=row.source, expected="both TTFT and TPOT")
    if row.speculative:
        raise InputError("pools of their own that draft tokens", where=row.source, expected="a run without drafting")
    if given.tp:
        raise InputError("pools of their own", where=row.source, expected="rows of one deployment, as --tp says")
    found = []
    for one in (row.prefill, row.decode):
        groups = one or Groups()
        layout = Layout(tp=groups.tp, dp_attn=groups.dp_attn, ep=groups.ep)
        options = Options(
            kv_dtype=_kv(row.kv_dtype), max_batched_tokens=groups.tokens,
            max_seqs=groups.seqs or max(256, int(row.concurrency or 0)),
        )  # fmt: skip
        found.append((_served(row, given, model, engine, layout, options, lengths), groups.workers))
    (prompts, computing), (drawn, decoding) = found
    return drawn, Split(prompts, {}, (computing, decoding), Transfer())


def _needed(value: float | None, name: str, row: Row) -> float:
    if value is None or value < 1:
        raise InputError(f"{name} is {value}", where=row.source, expected=f"{name}, at least 1 token")
    return value


def _named(row: Row, given: Given) -> str:
    """The model's name. Raises InputError for a row of another known model than the user's."""
    own, asked = catalogue.find(row.model or ""), catalogue.find(given.model)
    if own is not None and asked is not None and own.config != asked.config:
        raise InputError(f"field model: {row.model}"[:120], where=row.source, expected=f"{asked.name}, as --model says")
    return given.model or _needed_text(row.model, "model", row)


def _needed_text(value: str | None, name: str, row: Row) -> str:
    if not value:
        raise InputError(f"no {name}", where=row.source, expected=f"a column, or --{name} for all rows")
    return value


def _engine(row: Row, given: Given) -> tuple[Engine, bool]:
    """The engine, and whether anybody says its version: else it is the facts' own, which is no evidence of it.

    Raises InputError for a row of another engine or version than the user names.
    """
    name, _, version = (given.engine or _needed_text(row.engine, "engine", row)).partition("==")
    if given.engine and row.engine and not _same(row.engine, name):
        raise InputError(f"a row of {row.engine}"[:80], where=row.source, expected=f"{name}, as --engine says")
    own = _released(row.version)
    if own and version and not _of_release(own, version):
        raise InputError(f"field version: {own}"[:80], where=row.source, expected=f"{version}, as --engine says")
    said = own or version or None
    return registry.get(name, said), said is not None


def _released(word: str | None) -> str | None:
    """A version as its makers number it; None for a branch, a commit, or nothing."""
    try:
        version_key(word or "")
    except InputError:
        return None
    return word


def _of_release(own: str, asked: str) -> bool:
    """Whether a version is the one asked for, or a part of it: 0.11.2 is of 0.11, and not of 0.11.0."""
    digits = len(asked.split("."))
    return version_key(own)[:digits] == version_key(asked)[:digits]


def _same(word: str, name: str) -> bool:
    """Whether a row's word is this engine."""
    try:
        return registry.get(word).name == registry.get(name).name
    except InputError:
        return False


def _drafts(row: Row, model: Model) -> dict[str, Any]:
    """Options of a run that drafts tokens. Raises InputError where its steps cannot be described."""
    if not row.speculative:
        return {}
    if not model.mtp_layers:
        raise InputError(
            f"it drafts tokens, and {model.name} has no layers of its own for that", where=row.source,
            expected="a run without drafting: the steps of a draft model are not described",
        )  # fmt: skip
    accepted, drafted = row.accepted, row.drafted
    if accepted is None or drafted is None:
        missing = "drafted (tokens a step)" if accepted is not None else "accepted (tokens a step yields)"
        raise InputError("it drafts tokens", where=row.source, expected=f"{missing}, or a run without drafting")
    number = round(drafted)
    if abs(number - drafted) > _NEAR_WHOLE or not 1 <= accepted <= number + 1:
        raise InputError(
            f"{drafted:g} tokens drafted and {accepted:g} yielded a step", where=row.source,
            expected="a whole number of drafted tokens, and 1 to one more than that yielded",
        )  # fmt: skip
    return {"mtp_tokens": number, "mtp_acceptance": _chance(accepted, number)}


def _chance(accepted: float, drafted: int) -> float:
    """The chance that a drafted token is kept, given those before it were: 1 + p + ... + p^drafted = accepted."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(drafted + 1)) < accepted else (low, middle)
    return high


def _held(model: Model, cluster: Cluster, engine: Engine, layout: Layout, options: Options, row: Row) -> None:
    """Raises InputError for a run that its devices' memory cannot have held: our ledger may be off by SLACK."""
    isl, osl = round(row.isl or 1), round(row.osl or 1)
    short = ledger(model, cluster, engine, layout, options, Workload(isl_tokens=isl, osl_tokens=osl)).shortfall
    if short is not None and short.need > short.have * (1 + SLACK):
        raise InputError(
            f"{model.name} as {layout} on {cluster.accelerator.name}: {short.reason}", where=row.source,
            expected="a layout that its memory holds",
        )  # fmt: skip


def _layout(row: Row, given: Given) -> Layout:
    pp, dp, ep = row.pp or 1, row.dp_attn or 1, row.ep or 1
    if given.tp and row.tp and given.tp != row.tp:
        raise InputError(f"field tp: {row.tp}", where=row.source, expected=f"{given.tp}, as --tp says")
    tp = given.tp or row.tp
    if tp is None:
        gpus = row.gpus or (1 if given.cluster is not None and given.cluster.size == 1 else None)
        if gpus is None:
            raise InputError("no tp", where=row.source, expected="tp or the number of GPUs, or --tp")
        tp = max(1, gpus // (pp * dp))
    return Layout(pp=pp, tp=tp, dp_attn=dp, ep=ep)


def _placed(row: Row, given: Given, layout: Layout) -> Cluster:
    """The devices of a run. Raises InputError for a row whose GPU is of another kind than the user's."""
    if given.cluster is None:
        return _cluster(row, layout)
    here = given.cluster.accelerator.name
    try:
        own = _cluster(row, layout).accelerator.name if row.gpu else here
    except InputError:
        own = here  # a word of the file's own: the user says what it is
    if own.split("-")[0] != here.split("-")[0]:
        raise InputError(f"field gpu: {row.gpu}"[:80], where=row.source, expected=f"{here}, as --on says")
    return given.cluster


def _cluster(row: Row, layout: Layout) -> Cluster:
    name = _needed_text(row.gpu, "on", row).lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    for word in dict.fromkeys((name, f"{name}-sxm", name.split("-", maxsplit=1)[0] + "-sxm")):
        for count in (f"{layout.size}", f"{layout.size // 8}x8"):  # one machine, else whole ones of eight
            try:
                return presets.shorthand(f"{count}x{word}")
            except InputError:
                continue
    raise InputError(f"unknown GPU {row.gpu!r}"[:80], where=row.source, expected="a GPU of linkwise hardware, or --on")


def _model(name: str, quant: str | None) -> Model:
    """The model as it was stored: its own checkpoint where that has such weights, else a what-if."""
    own = read.load(name)
    wanted = _DTYPES.get((quant or "").lower())
    same = quantisation_of(own).split(" ")[0]
    if wanted is None or wanted == same or (wanted == "bfloat16" and same == "none") or same == "mxfp4":
        return own
    return read.load(name, weight_dtype=wanted)


def _kv(dtype: str | None) -> str | None:
    return None if dtype in {None, "auto", "bf16", "fp16", "bfloat16"} else dtype
