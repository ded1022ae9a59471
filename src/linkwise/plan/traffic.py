"""What does each link carry in a step, and which one is busy longest?

The plan's ops (plan/step.py) become flows of every group of every replica, and flows become bytes on directed links.
Groups that make the same call make it at the same time: replicas, the tensor groups of a stage, and stages that work on
different microbatches. So a call takes its latency plus the longest of bytes / effective bandwidth over its links, with
everything concurrent counted on them (DESIGN §4). Bytes of one call are computed once and multiplied by its calls.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple

from linkwise.cluster.types import Link, Tier
from linkwise.core.errors import InputError
from linkwise.core.layout import groups
from linkwise.core.quantity import value_of
from linkwise.engine import registry
from linkwise.engine.base import Convention
from linkwise.plan.algorithms import Call, algorithm_of, site
from linkwise.plan.collective_time import floor_us
from linkwise.plan.collectives import wire
from linkwise.plan.explain import subject
from linkwise.plan.ffn_ops import dedup_share, rank_share
from linkwise.plan.figures import batches
from linkwise.plan.flows import Ends, Flow, Roads, flows, link_bytes
from linkwise.plan.op_way import Taken, library_of, taken
from linkwise.plan.step import freeze, step_ops
from linkwise.plan.time import US, Span, group_of, group_span, place_of, spans, worse
from linkwise.plan.traffic_types import LinkLoad, OpTraffic, Part, TierTotal, Traffic
from linkwise.plan.types import Op, Plan
from linkwise.plan.writer import Place

STEPS = ("prefill", "decode", "mixed")
_TIERS = (Tier.ISLAND, Tier.NODE, Tier.CLUSTER)


class Placed(NamedTuple):
    """An op where it runs: members as devices in group order, one tuple a group; the call every group makes.

    algorithm: the one its price is for, unless another was asked for.
    """

    op: Op
    groups: tuple[tuple[int, ...], ...]
    algorithm: str
    call: Call
    price: Taken


def traffic(
    plan: Plan,
    step: str = "decode",
    placement: tuple[int, ...] | None = None,
    *,
    replica: int | None = None,
    algorithms: Mapping[str, str] | None = None,
) -> Traffic:
    """Bytes on every link in one step of all replicas, or of one.

    step: prefill, decode or mixed. placement: devices in rank order, replica after replica (None = the plan's own).
    algorithms: by kind of collective, in place of what the plan assumes. Raises InputError for anything malformed.
    """
    placed = place_ops(plan, step, placement, replica=replica, algorithms=algorithms)
    devices, first = _placement(plan, placement, replica)
    roads = Roads(plan.cluster)
    loads = [_Load(roads, one) for one in placed]
    links = _links(roads, loads)
    return Traffic(
        step=step,
        model=plan.model.name,
        cluster=plan.cluster,
        layout=plan.layout,
        replicas=len(devices) // plan.layout.size,
        first_replica=first,
        placement=devices,
        links=links,
        ops=_times(plan, roads, loads),
        tiers=_tiers(links),
        busiest_by_time=_most(links, "busy_s"),
        busiest_by_bytes=_most(links, "bytes", before=_most(links, "busy_s")),
        calibration=plan.cluster.constants.label,
        notes=_notes(algorithms or {}, loads),
    )


def _notes(wanted: Mapping[str, str], loads: list["_Load"]) -> tuple[str, ...]:
    unused = [kind for kind in wanted if not any(load.op.kind == kind for load in loads)]
    notes = [f"no {kind} in this step: its algorithm changes nothing" for kind in unused]
    if any(load.op.kind in wanted for load in loads):
        notes.append("algorithms as asked for: bytes and latencies are theirs, the plan's times are not")
    bare = dict.fromkeys(load.placed.algorithm for load in loads if not load.placed.price.own)
    notes += [f"{name} has no latency of its own here: that of the plan's algorithm stands" for name in bare]
    return tuple(notes)


def place_ops(
    plan: Plan,
    step: str,
    placement: tuple[int, ...] | None = None,
    *,
    replica: int | None = None,
    algorithms: Mapping[str, str] | None = None,
    ops: Iterable[Op] | None = None,
) -> list[Placed]:
    """The ops of a step with their groups as devices. ops: the step's ops, when they are not the plan's own numbers.

    At another placement an engine may choose another kernel, and a token other nodes: ops are then written anew.
    """
    if step not in STEPS:
        raise InputError(f"step {step!r}", where="traffic", expected=", ".join(STEPS))
    for kind, name in (algorithms or {}).items():
        algorithm_of(kind, name)
    devices, _ = _placement(plan, placement, replica)
    size = plan.layout.size
    copies = [devices[first : first + size] for first in range(0, len(devices), size)]
    engine = registry.get(plan.engine, plan.engine_version)
    convention = engine.convention_for(plan.model, plan.layout, plan.options)
    if placement is None or ops is not None:
        steps = [(getattr(plan, step) if ops is None else ops, copies)]
    else:
        steps = [(_ops_at(plan, step, place), same) for place, same in _by_place(plan, copies).items()]
    return [_place(plan, op, same, convention, algorithms or {}) for written, same in steps for op in written]


def _by_place(plan: Plan, copies: list[tuple[int, ...]]) -> dict[Place, list[tuple[int, ...]]]:
    """Replicas by what their ops depend on of where they lie."""
    found: dict[Place, list[tuple[int, ...]]] = {}
    for devices in copies:
        found.setdefault(place_of(plan.layout, spans(plan.layout, plan.cluster, devices), plan.cluster), []).append(
            devices
        )
    return found


def _ops_at(plan: Plan, step: str, place: Place) -> tuple[Op, ...]:
    about = subject(plan)
    return freeze(step_ops(about.model, about.layout, about.engine, batches(about)[step], about.options, place=place))


def _placement(plan: Plan, placement: tuple[int, ...] | None, replica: int | None) -> tuple[tuple[int, ...], int]:
    """Devices in rank order of the replicas asked for, and the number of the first."""
    size = plan.layout.size
    if replica is not None and not 0 <= replica < plan.replicas:
        raise InputError(f"replica {replica}", where="traffic", expected=f"0..{plan.replicas - 1}")
    first, count = (0, plan.replicas) if replica is None else (replica, 1)
    if placement is None:
        return tuple(d for ranks in plan.rank_grid[first : first + count] for d in ranks), first
    if len(placement) == plan.replicas * size:
        placement = placement[first * size : (first + count) * size]
    if len(placement) != count * size or len(set(placement)) != len(placement):
        raise InputError(
            f"{len(placement)} devices, {len(set(placement))} different",
            where="placement",
            expected=f"{count * size} different devices, one a rank",
        )
    for number in placement:
        if not 0 <= number < plan.cluster.size:
            raise InputError(f"device {number}", where="placement", expected=f"0..{plan.cluster.size - 1}")
    return placement, first


def _place(
    plan: Plan, op: Op, copies: list[tuple[int, ...]], convention: Convention, wanted: Mapping[str, str]
) -> Placed:
    layout = plan.layout
    callers = groups(layout, op.group)
    if op.group == "pp":
        callers = [ranks[op.stage : op.stage + 2] for ranks in callers]  # a stage hands over to the next one only
    else:
        callers = [ranks for ranks in callers if ranks[0] // layout.stage_size == op.stage]
    found = tuple(tuple(devices[r] for r in ranks) for devices in copies for ranks in callers)
    nodes = max((len(site(plan.cluster, members).domains) for members in found), default=1)
    span = reduce(worse, (group_span(members, plan.cluster) for members in found), Span(Tier.DEVICE, 1))
    asked = wanted.get(op.kind, "") if op.kind != "send_recv" else ""
    price = taken(op, span, plan.cluster, convention, found, asked if asked != "node_limited" else "")
    algorithm = price.way.algorithm
    if op.kind == "send_recv":
        algorithm = "direct" if op.group == "pp" else "ring"  # what is no hand-over is passed around
    elif op.kind == "all_to_all" and convention.moe_exchange == "all_to_all_node" and nodes > 1:
        algorithm = "node_limited"
    if op.kind in wanted and op.kind != "send_recv":
        algorithm = wanted[op.kind]
    elif op.kind in wanted and wanted[op.kind] != algorithm:
        raise InputError(
            f"send_recv by {wanted[op.kind]}", where=op.role, expected=f"{algorithm}: what this op does is no choice"
        )
    crossing, fan_out = 1.0, 1.0
    if algorithm == "node_limited" and plan.model.moe is not None:
        crossing, fan_out = dedup_share(plan.model.moe, nodes), rank_share(plan.model.moe, nodes, op.size)
    # An uneven exchange is uneven by destination; the way back comes from there.
    call = Call(op.S_bytes, sizes=op.sizes, back=op.role.endswith(".combine"), crossing=crossing, fan_out=fan_out)
    return Placed(op, found, algorithm, call, price)


class _Load:
    """Bytes of one call of an op on every link: of all its groups, and of each alone."""

    def __init__(self, roads: Roads, placed: Placed) -> None:
        self.op, self.placed = placed.op, placed
        self.by_group = [link_bytes(self.flows(roads, members)) for members in placed.groups]
        together: Counter[Ends] = Counter()
        for carried in self.by_group:
            together.update(carried)
        self.together = dict(together)

    def flows(self, roads: Roads, members: tuple[int, ...]) -> list[Flow]:
        return flows(self.op.kind, roads, members, self.placed.call, self.placed.algorithm)


def _links(roads: Roads, loads: list[_Load]) -> tuple[LinkLoad, ...]:
    parts: dict[Ends, dict[tuple[str, str], float]] = {}
    for load in loads:
        for ends, count in load.together.items():
            here = parts.setdefault(ends, {})
            key = load.op.role, load.op.group
            here[key] = here.get(key, 0.0) + float(count) * load.op.repeat
    busy = [ends for ends in roads.link if any(parts.get(ends, {}).values())]
    # A PCIe slot that nothing leaves but for NICs is a part of the way to them.
    hosts = {end for ends in busy if any(".host" in end for end in ends) for end in ends}
    return tuple(
        _link(roads.link[ends], parts[ends], Tier.CLUSTER if _slots(ends) - hosts else tier_of(roads.link[ends]))
        for ends in busy
    )


def _slots(ends: Ends) -> set[str]:
    return {end for end in ends if ".slot" in end}


def _link(link: Link, parts: dict[tuple[str, str], float], tier: Tier) -> LinkLoad:
    count = sum(parts.values())
    return LinkLoad(
        src=link.src,
        dst=link.dst,
        kind=link.kind,
        tier=tier.value,
        spec_Bps=link.spec_Bps,
        effective_Bps=link.effective_Bps,
        bytes=count,
        busy_s=count / link.effective_Bps,
        parts=tuple(
            Part(role=role, group=group, bytes=size)
            for (role, group), size in sorted(parts.items(), key=lambda p: (-p[1], p[0]))
            if size
        ),
    )


def tier_of(link: Link) -> Tier:
    """What a link belongs to: the scale-up fabric, the host, or the network (a device's way to its NIC included)."""
    kinds = {end.rpartition(".")[2].rstrip("0123456789") for end in (link.src, link.dst)}
    if kinds & {"nic", "rail", "leaf", "core"}:
        return Tier.CLUSTER
    return Tier.ISLAND if kinds <= {"d", "island"} else Tier.NODE


def _tiers(links: tuple[LinkLoad, ...]) -> tuple[TierTotal, ...]:
    result = []
    for tier in _TIERS:
        mine = tuple(link for link in links if link.tier == tier.value)
        if not mine:
            continue
        sent: dict[str, float] = {}
        for link in mine:
            # What leaves a device over its slot counts where it goes on to.
            slot = ".slot" in link.src
            if (slot and not is_device(link.dst)) or (is_device(link.src) and ".slot" not in link.dst):
                sent[link.src] = sent.get(link.src, 0.0) + link.bytes
        result.append(
            TierTotal(
                tier=tier.value,
                links=len(mine),
                bytes=sum(link.bytes for link in mine),
                sent_bytes=max(sent.values(), default=0.0),
                busiest=_most(mine, "busy_s"),
                busy_s=max(link.busy_s for link in mine),
            )
        )
    return tuple(result)


def is_device(vertex: str) -> bool:
    """d7, and not a switch, a host or a NIC."""
    return vertex[:1] == "d" and vertex[1:].isdigit()


def _most(links: tuple[LinkLoad, ...], field: str, before: str = "") -> str:
    """The link with most; of links that differ by rounding only, the one named `before`, else the first."""
    best = max(links, key=lambda link: (_rounded(getattr(link, field)), link.name == before), default=None)
    return best.name if best else ""


def _rounded(number: float) -> float:
    """Sums in another order differ in their last digits, which must not decide what is busiest."""
    return float(f"{number:.9g}")


def _times(plan: Plan, roads: Roads, loads: list[_Load]) -> tuple[OpTraffic, ...]:
    engine = registry.get(plan.engine, plan.engine_version)
    convention = engine.convention_for(plan.model, plan.layout, plan.options)
    eager = plan.options.eager or not engine.defaults.cuda_graphs
    # Stages make the same call at the same time, on different microbatches.
    concurrent: dict[tuple[str, str, str], Counter[Ends]] = {}
    for load in loads:
        op = load.op
        concurrent.setdefault((op.role, op.kind, op.group), Counter()).update(load.together)
    result = []
    for load in loads:
        op, algorithm = load.op, load.placed.algorithm
        shared = concurrent[op.role, op.kind, op.group]
        ends, transfer = _longest(roads, {e: shared[e] for e in load.together})
        alone = max((_longest(roads, one)[1] for one in load.by_group), default=0.0)
        slow = _slow(load, alone)
        latency = load.placed.price.latency_s * plan.cluster.constants.collective_factor
        if eager:
            span = reduce(worse, (group_span(members, plan.cluster) for members in load.placed.groups))
            group, library = group_of(span, op.size), library_of(op, convention)
            latency = max(latency, floor_us(plan.cluster, library, op.kind, group) * US)
        result.append(
            OpTraffic(
                role=op.role, kind=op.kind, group=op.group, stage=op.stage, algorithm=algorithm,
                groups=len(load.placed.groups), size=op.size, calls=op.repeat, S_bytes=float(op.S_bytes),
                latency_s=latency, transfer_s=transfer * slow,
                alone_s=alone * slow, step_s=op.repeat * (latency + transfer * slow), link=">".join(ends),
            )
        )  # fmt: skip
    return tuple(result)


def _slow(load: _Load, alone: float) -> float:
    """How many times as long as its links are busy a call's bytes take: by the share its protocol reaches. The price of
    a tree has a whole chain in every node, also where its trees take turns at which member ends the chain."""
    price = load.placed.price
    if price.own and price.way.algorithm in {"tree", "nvls_tree"} and alone:
        moved = float(value_of(wire(load.op.kind, load.op.S_bytes, load.op.size).sent))
        return max(1 / price.share, moved / price.way.bandwidth_Bps / alone)
    return 1 / price.share


def _longest(roads: Roads, carried: Mapping[Ends, float]) -> tuple[Ends | tuple[()], float]:
    """The link that is busy longest with these bytes (the first in the cluster's order), and for how long."""
    busy = {ends: count / roads.link[ends].effective_Bps for ends, count in carried.items()}
    most = max(map(_rounded, busy.values()), default=0.0)
    if not most:
        return (), 0.0
    ends = next(ends for ends in roads.link if ends in busy and _rounded(busy[ends]) == most)
    return ends, busy[ends]
