"""Rows of benchmark results as runs: what a row says, what the user adds, and why a row cannot be one."""

from collections.abc import Sequence
from typing import NamedTuple

from linkwise.cluster import presets
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Engine, Options
from linkwise.model import read
from linkwise.model.types import Model
from linkwise.plan.interval import quantisation_of
from linkwise.simulate.calibrate.case import MOST_REQUESTS, PER_USER, Case, serving
from linkwise.workload.results import LeftOut, Row

_DTYPES = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "int4": "int4",
           "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "bfloat16"}  # fmt: skip
# Lengths a file gives as means, where it does not say that all are alike: uniform in 0.8 to 1.0 of what has that mean.
_MEAN_SHARE = 0.9


class Given(NamedTuple):
    """What the user says of all rows; None and "" = as each row says."""

    engine: str = ""
    model: str = ""
    cluster: Cluster | None = None
    tp: int | None = None


class Readings(NamedTuple):
    """Runs of one engine, and the rows that cannot be simulated, each with the reason."""

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
    isl, osl = _needed(row.isl, "isl", row), _needed(row.osl, "osl", row)
    if row.ttft_s is None and row.tpot_s is None:
        raise InputError("neither TTFT nor TPOT", where=row.source, expected="one of them")
    engine = _engine(row, given)
    layout = _layout(row, given)
    cluster = given.cluster or _cluster(row, layout)
    if layout.size > cluster.size:
        raise InputError(f"{layout} on {cluster.size} devices", where=row.source, expected=f"{layout.size} devices")
    model = _model(given.model or _needed_text(row.model, "model", row), row.gemm_quant)
    users = int(row.concurrency or 0)
    if not users and row.rate_per_s is None:
        raise InputError("no load", where=row.source, expected="a concurrency or a rate")
    replicas = max(1, (row.gpus or layout.size) // layout.size)
    users, rate = -(-users // replicas) if users else 0, (row.rate_per_s or 0.0) / replicas
    if row.fixed_lengths is None:
        isl, osl = isl / _MEAN_SHARE, osl / _MEAN_SHARE
    number = (row.requests or PER_USER * users or 1000) // replicas
    options = Options(kv_dtype=_kv(row.kv_dtype), max_seqs=max(256, users))
    what = serving(model, cluster, engine, layout, options, round(isl), round(osl))
    return Case(
        what, round(isl), round(osl), "fixed" if row.fixed_lengths else "uniform", users, rate,
        max(1, min(number, MOST_REQUESTS)), row.ttft_s or float("nan"), row.tpot_s or float("nan"), model.name,
        row.source,
    )  # fmt: skip


def _needed(value: float | None, name: str, row: Row) -> float:
    if value is None or value < 1:
        raise InputError(f"{name} is {value}", where=row.source, expected=f"{name}, at least 1 token")
    return value


def _needed_text(value: str | None, name: str, row: Row) -> str:
    if not value:
        raise InputError(f"no {name}", where=row.source, expected=f"a column, or --{name} for all rows")
    return value


def _engine(row: Row, given: Given) -> Engine:
    name, _, version = (given.engine or _needed_text(row.engine, "engine", row)).partition("==")
    if not version and row.version and row.version[:1].isdigit():
        version = row.version
    try:
        return registry.get(name, version or None)
    except InputError:
        return registry.get(name)  # a version that is no number: the facts' own


def _layout(row: Row, given: Given) -> Layout:
    if (row.pp or 1) > 1:
        raise InputError(f"pp is {row.pp}", where=row.source, expected="pp 1: steps of one batch follow each other")
    dp, ep = row.dp_attn or 1, row.ep or 1
    tp = given.tp or row.tp
    if tp is None:
        if row.gpus is None:
            raise InputError("no tp", where=row.source, expected="tp or the number of GPUs, or --tp")
        tp = max(1, row.gpus // dp)
    return Layout(tp=tp, dp_attn=dp, ep=ep)


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
