"""Two plans side by side: memory, bytes, time, and how much one failure stops."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from linkwise.core.schema import Frozen
from linkwise.core.units import show_bytes, show_count, show_time
from linkwise.plan.types import Plan
from linkwise.report.text import engine_words, table, workload_line

if TYPE_CHECKING:
    from rich.table import Table

_SHOW: dict[str, Callable[[float], str]] = {"B": show_bytes, "s": show_time, "": show_count}


class Row(Frozen, frozen=True, kw_only=True):
    """One figure of both plans. None: the plan has no such figure (an op it does not make, a hybrid's KV tokens)."""

    group: str
    name: str
    unit: str
    a: float | None
    b: float | None


class Comparison(Frozen, frozen=True, kw_only=True):
    """Two plans figure by figure. same: what both answer for; differs: inputs that are not the same."""

    names: tuple[str, str]
    plans: tuple[str, str]
    differs: tuple[str, ...]
    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        from linkwise.report.text import render

        return render(screen(self), _NoTerminal())  # type: ignore[arg-type]


class _NoTerminal:
    def isatty(self) -> bool:
        return False


def compare(a: Plan, b: Plan, *, names: tuple[str, str] = ("a", "b")) -> Comparison:
    """Rows in the order memory, bytes, time, failure boundary; bytes row by row for every op either plan makes."""
    return Comparison(
        names=names,
        plans=(_words(a), _words(b)),
        differs=tuple(_differs(a, b)),
        rows=tuple(_memory(a, b) + _bytes(a, b) + _time(a, b) + _failure(a, b)),
    )


def screen(found: Comparison) -> "list[str | Table]":
    """The table, with what is not comparable said first."""
    lines: list[str | Table] = [f"{name}: {words}" for name, words in zip(found.names, found.plans, strict=True)]
    lines += [f"not the same question: {text}" for text in found.differs]
    rows = []
    last = ""
    for row in found.rows:
        rows.append(
            [row.group if row.group != last else "", row.name, _shown(row.a, row), _shown(row.b, row), _ratio(row)]
        )
        last = row.group
    lines.append(table(["", "", f">{found.names[0]}", f">{found.names[1]}", ">b / a"], rows))
    return lines


def _words(plan: Plan) -> str:
    engine = engine_words(plan.engine, plan.engine_version, plan.options)
    copies = f"{plan.replicas} x ({plan.layout})" if plan.replicas > 1 else str(plan.layout)
    return f"{plan.model.name} on {plan.cluster.name}: {copies}, {engine}"


def _differs(a: Plan, b: Plan) -> list[str]:
    pairs = (
        (a.model.name, b.model.name),
        (a.cluster.name, b.cluster.name),
        (workload_line(a.workload), workload_line(b.workload)),
        (a.calibration, b.calibration),
    )
    return [f"{x} against {y}" for x, y in pairs if x != y]


def _memory(a: Plan, b: Plan) -> list[Row]:
    def entries(plan: Plan) -> dict[str, float]:
        rank = plan.ledger.ranks[plan.ledger.tightest]
        found: dict[str, float] = {}
        for entry in rank.entries:
            if entry.place == "device" and not entry.name.startswith("kv"):
                name = entry.name.split(".")[0].replace("_", " ")
                found[name] = found.get(name, 0) + entry.bytes
        return found | {"left for KV": rank.kv_bytes}

    left, right = entries(a), entries(b)
    rows = [
        Row(group="memory of the tightest rank", name=n, unit="B", a=left.get(n), b=right.get(n)) for n in left | right
    ]
    for name, x, y in (
        ("KV tokens of a replica", a.ledger.kv_tokens, b.ledger.kv_tokens),
        ("requests of a replica", a.ledger.requests, b.ledger.requests),
        ("requests of the deployment", a.ledger.requests * a.replicas, b.ledger.requests * b.replicas),
    ):
        rows.append(Row(group="capacity", name=name, unit="", a=x, b=y))
    return rows


def _bytes(a: Plan, b: Plan) -> list[Row]:
    wanted = [p for p in dict.fromkeys((*a.figures, *b.figures)) if p.endswith(".sent_bytes") and p.count(".") >= 1]
    rows = []
    for step in ("prefill", "decode"):
        for path in wanted:
            if path.startswith(f"{step}."):
                name = path.removeprefix(f"{step}.").removesuffix(".sent_bytes").removesuffix("sent_bytes") or "all"
                rows.append(
                    Row(
                        group=f"sent by a rank, {step} step",
                        name=name,
                        unit="B",
                        a=a.figures.get(path),
                        b=b.figures.get(path),
                    )
                )
    return rows


def _time(a: Plan, b: Plan) -> list[Row]:
    rows = []
    picks: tuple[tuple[str, Callable[[Plan], float]], ...] = (
        ("decode step", lambda p: p.decode_time.step_s),
        ("of it compute", lambda p: p.decode_time.compute_s),
        ("of it links", lambda p: p.decode_time.comm_s),
        ("of it host", lambda p: p.decode_time.host_s),
        ("TPOT", lambda p: p.chosen.point.tpot_s),
        ("TTFT", lambda p: p.chosen.point.ttft_s),
    )
    for name, pick in picks:
        rows.append(Row(group=f"time, {a.calibration}", name=name, unit="s", a=pick(a), b=pick(b)))
    most = [p.chosen.max_rate_per_s * p.replicas for p in (a, b)]
    rows.append(Row(group="rate inside the targets", name="requests/s", unit="/s", a=most[0], b=most[1]))
    batches = [p.chosen.point.batch for p in (a, b)]
    rows.append(Row(group="rate inside the targets", name="batch of a replica", unit="", a=batches[0], b=batches[1]))
    return rows


def _failure(a: Plan, b: Plan) -> list[Row]:
    def lost(plan: Plan) -> float:
        return 1 / plan.replicas

    group = "when one device fails"
    return [
        Row(group=group, name="devices that stop", unit="", a=a.layout.size, b=b.layout.size),
        Row(group=group, name="share of the capacity lost", unit="%", a=lost(a), b=lost(b)),
        Row(group=group, name="nodes a replica spans", unit="", a=_nodes(a), b=_nodes(b)),
        Row(group=group, name="devices in use", unit="", a=a.layout.size * a.replicas, b=b.layout.size * b.replicas),
    ]


def _nodes(plan: Plan) -> int:
    return max(len({plan.cluster.node_of(d) for d in devices}) for devices in plan.rank_grid)


def _shown(value: float | None, row: Row) -> str:
    if value is None:
        return "-"
    if row.unit == "%":
        return f"{value:.0%}"
    return _SHOW[row.unit](value) if row.unit in _SHOW else f"{value:.3g} {row.unit}"


def _ratio(row: Row) -> str:
    return f"{row.b / row.a:.2f}" if row.a and row.b is not None else ""
