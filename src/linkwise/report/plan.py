"""The screens of `plan`: what was chosen and why, where each rank goes, what a step moves and takes, what was not."""

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from linkwise.cluster.types import Tier
from linkwise.core.layout import AXES
from linkwise.core.quantity import value_of
from linkwise.core.units import GB, show_bytes, show_count, show_time
from linkwise.plan.explain import subject
from linkwise.plan.operate import in_flight, prompt_chunks, step_requests
from linkwise.plan.time import port_bandwidth, spans
from linkwise.plan.traffic import traffic
from linkwise.plan.types import Candidate, NoPlan, Op, Plan, Rejection, Shortfall, StepTime
from linkwise.report import frontier as fronts
from linkwise.report.text import (
    Verbatim,
    capacity_words,
    engine_words,
    heading,
    memory_line,
    missing,
    rank_table,
    rank_words,
    remarks,
    table,
    times_adding_up,
    workload_line,
)
from linkwise.report.trust import trust_lines

if TYPE_CHECKING:
    from rich.table import Table


def screen(plan: Plan) -> list[str]:
    """The answer and its reasons; details are behind --why, --ranks, --links, --rejected."""
    return [
        heading(plan.model, plan.cluster, engine_words(plan.engine, plan.engine_version, plan.options)),
        f"for        {workload_line(plan.workload)}",
        f"plan       {_copies(plan)}",
        *_why(plan),
        *_placement(plan),
        f"memory     {memory_line(plan.ledger, plan.resolved)}:"
        f" {capacity_words(plan.ledger, plan.workload, plan.resolved)} a replica",
        *_step(plan),
        *_delivers(plan),
        *_runner_up(plan),
        *(fronts.choice(plan.frontier) if plan.frontier else []),
        *_reasons(plan.rejected, plan.considered),
        *_decisions(plan),
        *([Verbatim(f"run        {shlex.join(plan.command)}")] if plan.command else []),
        *remarks(plan.notes, plan.ledger.warnings),
        "more       --why  --ranks  --links  --rejected  --json  -o plan.json, then linkwise explain plan.json FIGURE",
    ]


def no_plan(found: NoPlan) -> list[str]:
    """What is short, by how much, in the layout that came nearest, and the nearest changes."""
    near = found.nearest
    instead = fronts.instead(found.frontier) if found.frontier else []
    lines = [
        heading(found.model, found.cluster, engine_words(found.engine, found.engine_version, found.options)),
        f"for        {workload_line(found.workload)}",
        f"no plan    {'of one kind of group: ' if instead else ''}{_short(near.shortfall)}",
        *instead,
        f"nearest    {_layout(near.layout, near.replicas)}",
    ]
    changes = found.changes or ((near.shortfall.change,) if near.shortfall.change else ())
    lines += [f"change     {'; or '.join(changes)}"] if changes else []
    lines += fronts.choice(found.frontier) if found.frontier else []
    return [*lines, *_reasons(found.rejected, found.considered), *remarks(found.notes), "more       --rejected  --json"]


def pareto(found: Plan | NoPlan) -> list[str]:
    """What the devices offer, side by side."""
    return fronts.lines(found.frontier) if found.frontier else []


def ranks(plan: Plan) -> "list[str | Table]":
    """Memory by rank class, and where every rank of every replica goes."""
    from linkwise.core.layout import coordinates

    known = ("pp", "cp", "dp_attn", "tp", "dcp", *(("ep", "moe_tp") if plan.model.moe else ()))
    axes = [a for a in known if _degree(plan, a) > 1]
    rows: list[list[Any]] = []
    for replica, devices in enumerate(plan.rank_grid):
        for rank, device in enumerate(devices):
            place = coordinates(plan.layout, rank)
            node = plan.cluster.node_of(device)
            inside = device % plan.cluster.devices_per_node
            rows.append([replica, rank, node, inside, *(place[a] for a in axes)])
    heads = [f">{name}" for name in ("replica", "rank", "node", "device", *axes)]
    return [*rank_table(plan.ledger), table(heads, rows, title="where each rank goes")]


def links(plan: Plan) -> "list[str | Table]":
    """Bytes per step by tier, as `linkwise traffic` counts them, then every op of each step."""
    tiers = _tiers(plan)
    steps = {"prefill": plan.prefill, "decode": plan.decode, "mixed": plan.mixed}
    moved = {step: traffic(plan, step) for step in steps}
    rows = []
    for tier in Tier:
        totals = {step: next((t for t in found.tiers if t.tier == tier), None) for step, found in moved.items()}
        if any(totals.values()):
            step, total = next((step, total) for step, total in totals.items() if total)
            link = moved[step].load(total.busiest)
            sent = (show_bytes(total.sent_bytes if total else 0) for total in totals.values())
            rows.append([tier.value, link.kind, f"{link.effective_Bps / GB:.0f} GB/s", *sent])
    heads = ["tier", "busiest link", ">usable", *(f">{step}" for step in steps)]
    title = "sent by one rank in a step, the one that sends most"
    blocks: list[str | Table] = [table(heads, rows, title=title)]
    if not rows:
        blocks = ["nothing crosses a link inside a replica"]
    for step, ops in steps.items():
        if ops:
            blocks.append(_op_table(plan, ops, tiers, step))
    if plan.replicas > 1:
        blocks.append("between replicas only requests are routed")
    return blocks


def rejected(found: Plan | NoPlan) -> "list[str | Table]":
    """Every rejected layout with its first reason and what would change it."""
    rows = [
        [str(r.layout), r.replicas, r.shortfall.resource, r.shortfall.reason, r.shortfall.change]
        for r in found.rejected
    ]
    return [table(["layout", ">replicas", "first reason", "", "change"], rows, title="rejected layouts")]


def _degree(plan: Plan, axis: str) -> int:
    return int(getattr(plan.layout, axis))


# Fast first.
_CROSSED = {
    Tier.ISLAND: "a scale-up island",
    Tier.NODE: "PCIe",
    Tier.CLUSTER: "the network between nodes",
}


def _layout(layout: Any, replicas: int) -> str:
    return f"{replicas} replicas of {layout}" if replicas > 1 else str(layout)


def _copies(plan: Plan) -> str:
    words = _layout(plan.layout, plan.replicas)
    if plan.layout.size > 1:
        per_node = plan.cluster.devices_per_node
        inside = plan.layout.size <= per_node
        words += ", each inside one node" if inside and plan.replicas > 1 else ", inside one node" if inside else ""
        words += f"; tp over {_crossed(plan)}" if plan.layout.tp > 1 else ""
    used = plan.layout.size * plan.replicas
    idle = plan.cluster.size - used
    return words + (f"; {used} of {plan.cluster.size} devices, {idle} free" if idle else "")


def _crossed(plan: Plan) -> str:
    """What tensor groups cross in the replica that lies worst, and how many lie so where not all do."""
    tp, tiers = plan.layout.tp, list(_CROSSED)
    rows = [
        max(tiers.index(plan.cluster.tier(row[at : at + tp])) for at in range(0, len(row), tp))
        for row in plan.rank_grid
    ]
    worst = max(rows)
    word, count = _CROSSED[tiers[worst]], rows.count(worst)
    if count == len(rows):
        return word
    return f"{word} in {count} of {len(rows)} replicas, {_CROSSED[tiers[min(rows)]]} at best"


def _why(plan: Plan) -> list[str]:
    """The rule, and the named constraint that pays for more than one device."""
    for made in plan.decisions:
        if made.question.startswith("why not"):
            return [f"why        {plan.rule}; {made.answer} ({'; '.join(made.because)})"]
    return [f"why        {plan.rule}"]


def _placement(plan: Plan) -> list[str]:
    nodes: dict[int, list[str]] = {}
    for replica, devices in enumerate(plan.rank_grid):
        for node in dict.fromkeys(plan.cluster.node_of(d) for d in devices):
            ranks_here = [r for r, d in enumerate(devices) if plan.cluster.node_of(d) == node]
            span = rank_words(tuple(ranks_here))
            held = [devices[r] for r in ranks_here]
            if held != list(range(held[0], held[0] + len(held))):  # an order that was chosen is an order to be seen
                span += f" on devices {', '.join(map(str, held[:8]))}{', ...' * (len(held) > 8)}"
            nodes.setdefault(node, []).append(f"replica {replica} {span}" if plan.replicas > 1 else span)
    shown = [f"node {node}: {_joined(where)}" for node, where in list(nodes.items())[:4]]
    more = f" | ... {len(nodes) - 4} more nodes (--ranks)" if len(nodes) > 4 else ""
    apart = "; between replicas only requests are routed" if plan.replicas > 1 else ""
    return [f"where      {' | '.join(shown)}{more}{apart}"]


def _joined(parts: list[str]) -> str:
    return ", ".join(parts) if len(parts) <= 4 else f"{', '.join(parts[:3])}, ... {parts[-1]}"


class Row(NamedTuple):
    """One op as a line: calls and bytes of a rank of the busiest stage that makes it."""

    role: str
    kind: str
    group: str
    size: int
    calls: int
    S_bytes: float
    sent_bytes: float
    algorithm: str


def rows_of(ops: tuple[Op, ...]) -> list[Row]:
    """Ops by role, kind and size of call; stages that make the same call share a line (the busiest counts)."""
    found: dict[tuple[Any, ...], Row] = {}
    for op in ops:
        key = (op.role, op.kind, op.group, op.size, op.S_bytes)
        row = Row(
            op.role, op.kind, op.group, op.size, op.repeat, op.S_bytes, op.repeat * op.wire_sent_bytes, op.algorithm
        )
        if key not in found or row.sent_bytes > found[key].sent_bytes:
            found[key] = row
    return list(found.values())


def _step(plan: Plan) -> list[str]:
    lines = [f"decode     {_time_words(plan, plan.decode_time, _decoding(plan))}; {plan.calibration}"]
    for row in rows_of(plan.decode):
        lines.append(
            f"           {row.role:<14} {row.kind:<14} {row.group} {row.size:<4} {row.calls:>4} calls of"
            f" {show_bytes(row.S_bytes):>8}   {show_bytes(row.sent_bytes):>8} sent a rank"
        )
    own, taught = plan.figures.get("decode.sent_bytes"), plan.textbook.get("decode.sent_bytes")
    if own is not None and taught is not None and plan.decode:
        beside = "the same" if own == taught else show_bytes(taught)
        lines.append(f"           all: {show_bytes(own)} sent a rank and step; the textbook step: {beside}")
    return [*lines, f"prefill    {_time_words(plan, plan.prefill_time, _prompt(plan))}"]


def _decoding(plan: Plan) -> str:
    """What one decode step carries: of a replica's requests, one batch in flight on one attention replica."""
    many = int(value_of(step_requests(plan.decode_time.batch, plan.layout, plan.options)))
    words = f"{show_count(many)} request{'s' if many != 1 else ''}{_each(plan)}"
    batches = in_flight(plan.layout, plan.options)
    return words + (f", one of {batches} batches in flight" if batches > 1 else "")


def _prompt(plan: Plan) -> str:
    chunks = prompt_chunks(plan.workload, plan.resolved.max_batched_tokens)[1]
    return f"1 request{_each(plan)}" + (f", one of its {chunks} chunks" if chunks > 1 else "")


def _each(plan: Plan) -> str:
    return f" on each of {plan.layout.dp_attn} attention replicas" if plan.layout.dp_attn > 1 else ""


def _time_words(plan: Plan, at: StepTime, carries: str) -> str:
    """Every sum shown adds up: the step over all stages, and what the busiest stage computes."""
    whole, terms = times_adding_up(at.step_s, {"compute": at.compute_s, "links": at.comm_s, "host": at.host_s})
    words = f"{whole} a step of {carries} = " + " + ".join(f"{name} {value}" for name, value in terms.items())
    parts = {n: v for n, v in sorted(at.parts.items(), key=lambda p: -p[1]) if v > 0}
    if parts:
        busiest, inner = times_adding_up(sum(parts.values()), parts)
        shown = " + ".join(f"{name} {value}" for name, value in inner.items())
        where = "busiest stage computes" if plan.layout.pp > 1 else "compute"
        words += f"; {where} {busiest} = {shown}"
    if at.bubble:
        words += f"; {at.bubble:.0%} pipeline bubble where batches run dry (no part of TPOT: others keep coming)"
    return words


def _delivers(plan: Plan) -> list[str]:
    point, targets = plan.chosen.point, plan.workload.targets
    ttft = f"TTFT {show_time(point.ttft_s)}" + (f" of {show_time(targets.ttft_s)}" if targets.ttft_s else "")
    tpot = f"TPOT {show_time(point.tpot_s)}" + (f" of {show_time(targets.tpot_s)}" if targets.tpot_s else "")
    rate = f"{point.rate_per_s:.3g} requests/s a replica of {plan.chosen.max_rate_per_s:.3g} at most"
    whole = f", {point.rate_per_s * plan.replicas:.3g}/s in all" if plan.replicas > 1 else ""
    lines = [f"delivers   {ttft}, {tpot}, {rate}{whole}, {show_count(point.tokens_per_s)} tokens/s a replica"]
    return lines + trust_lines(plan.trust)


def _runner_up(plan: Plan) -> list[str]:
    other = plan.runner_up
    if other is None:
        return [] if plan.considered == 1 else ["runner-up  none: no other layout is feasible"]
    mine = plan.chosen
    return [f"runner-up  {_layout(other.layout, other.replicas)}: {_against(other, mine)}"]


def _against(other: Candidate, mine: Candidate) -> str:
    devices = other.group_size * other.replicas
    most = (other.max_rate_per_s * other.replicas, mine.max_rate_per_s * mine.replicas)
    words = [
        f"{devices} devices against {mine.group_size * mine.replicas}",
        f"TPOT {show_time(other.point.tpot_s)} against {show_time(mine.point.tpot_s)}",
        f"{most[0]:.3g} against {most[1]:.3g} requests/s at most",
        f"weights {other.weights_bytes_per_rank / GB:.1f} GB a rank against {mine.weights_bytes_per_rank / GB:.1f}",
        f"a lost device stops {other.group_size} against {mine.group_size}",
    ]
    if other.tier != mine.tier:
        words.append(f"tp over the {other.tier} tier against the {mine.tier} tier")
    return ", ".join(words)


def _reasons(found: tuple[Rejection, ...], considered: int) -> list[str]:
    if considered == 1:
        return ["rejected   nothing: every degree was given"] if not found else []
    if not found:
        return [f"rejected   none of {considered} layouts"]
    by_reason = Counter(r.shortfall.resource for r in found)
    words = ", ".join(f"{count} {resource}" for resource, count in by_reason.most_common())
    return [f"rejected   {len(found)} of {considered} layouts by first reason: {words}"]


def _decisions(plan: Plan) -> list[str]:
    """Each decision with its first reason, what it costs, its break-even and what to measure: a few lines each."""
    lines = []
    for made in plan.decisions:
        said = [*made.because[:1], *(reason for reason in made.because[1:] if reason.startswith("cost:"))]
        lines.append(f"decision   {made.question} {made.answer}" + (f": {'; '.join(said)}" if said else ""))
        settle = [f"break-even: {made.break_even}"] if made.break_even else []
        settle += [f"measure {made.measure}"] if made.measure else []
        lines += [f"           {'; '.join(settle)}"] if settle else []
    return lines


def why(plan: Plan) -> list[str]:
    """Every reason of every decision."""
    lines = []
    for made in plan.decisions:
        lines.append(f"decision   {made.question} {made.answer}")
        lines += [f"           because {reason}" for reason in made.because]
        if made.break_even:
            lines.append(f"           break-even: {made.break_even}")
        if made.measure:
            lines.append(f"           settle it by measuring {made.measure}")
    return lines or ["decision   none: no other layout was feasible"]


def _short(short: Shortfall) -> str:
    return f"{short.resource}: {short.reason}" + (missing(short) if "short by" not in short.reason else "")


def _tiers(plan: Plan) -> dict[str, Tier]:
    places = subject(plan).places
    return {axis: places[axis].tier for axis in AXES if axis in places}


def _op_table(plan: Plan, ops: tuple[Op, ...], tiers: dict[str, Tier], step: str) -> "Table":
    places = spans(plan.layout, plan.cluster)
    rows = [
        [
            row.role,
            row.kind,
            f"{row.group} {row.size}",
            tiers[row.group].value if row.group in tiers else "",
            # A ring over nodes pools the ports of a node's ranks; a pairwise exchange has each rank's own.
            f"{port_bandwidth(plan.cluster, places[row.group], row.kind, row.size) / GB:.0f}",
            row.algorithm,
            show_count(row.calls),
            show_bytes(row.S_bytes),
            show_bytes(row.sent_bytes),
            show_bytes(plan.textbook.get(f"{step}.{row.role}.sent_bytes", 0)),
        ]
        for row in rows_of(ops)
    ]
    heads = ["role", "kind", "group", "tier", ">usable GB/s", "algorithm", ">calls", ">S", ">sent a rank", ">textbook"]
    return table(heads, rows, title=f"{step} step")


__all__ = ["links", "no_plan", "pareto", "ranks", "rejected", "rows_of", "screen", "why"]
