"""A trace against the plan: calls, bytes and seconds of every op, and bytes of NICs that were counted.

What was planned is computed anew for the batches that the trace says ran, from the plan's own list of ops. Ops whose
size depends on cached context, which a trace does not tell, have no planned bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from linkwise.core.layout import coordinates
from linkwise.core.quantity import value_of
from linkwise.core.units import counted
from linkwise.diagnose.case import Case
from linkwise.diagnose.counters import grown
from linkwise.measure.lab.run import LabResult
from linkwise.plan.batch import Batch, Part
from linkwise.plan.explain import subject
from linkwise.plan.figures import Subject
from linkwise.plan.inventory import Stage, inventory, stages
from linkwise.plan.step import stage_ops
from linkwise.plan.time import op_seconds, place_of
from linkwise.plan.traffic import is_device
from linkwise.plan.traffic_types import LinkLoad
from linkwise.plan.types import Plan
from linkwise.report.page.faults import device_of
from linkwise.report.page.sizes import NOT_COUNTED
from linkwise.report.page.sizes import rows as by_size
from linkwise.report.page.types import Comparison, Observed, ObservedLink
from linkwise.trace.events import RankTrace
from linkwise.trace.gather import Evidence

# As trace/readers/infiniband.py names them: of sysfs, perfquery and rdma, and of ethtool.
_SENT = ("ib.port_xmit_data_bytes", "net.tx_bytes_phy", "net.tx_bytes")
_RECEIVED = ("ib.port_rcv_data_bytes", "net.rx_bytes_phy", "net.rx_bytes")
_LONG = 4096  # a context, to tell ops that depend on it


class _Sum(NamedTuple):
    calls: int = 0
    bytes: float = 0.0
    seconds: float = 0.0
    known: bool = True  # whether bytes follow from what a trace tells

    def plus(self, calls: int, size: float, seconds: float, known: bool) -> "_Sum":
        return _Sum(self.calls + calls, self.bytes + size, self.seconds + seconds, self.known and known)


Key = tuple[str, str]  # role, kind


def compare(
    evidence: Evidence, plan: Plan, decode: Sequence[LinkLoad], lab: LabResult | None = None
) -> Comparison | None:
    """Planned against observed over all records; None without calls. decode: the plan's links in a decode step.

    lab: what the links of a lab counted while these records were written.
    """
    ranks = [rank for rank in evidence.trace.ranks if len(rank.calls)]
    if not ranks:
        return None
    planned = _planned(ranks, plan)
    if planned or any(any(rank.calls.roles) for rank in ranks):
        seen = _seen(ranks)
        rows = [_row(key, planned.get(key), seen.get(key)) for key in dict.fromkeys((*planned, *seen))]
    else:
        rows = by_size(ranks, plan)
    if not rows:
        return None
    notes = []
    if other := sum(not _meant(rank, plan) for rank in ranks):
        notes.append(
            f"{counted(other, 'record')} of groups that are none of {plan.layout}: nothing was planned for them"
        )
    elif not planned:
        notes.append(
            "these records do not say what each step computed: an op is told by the kind, group and size of its calls,"
            " and how many were planned is not known"
        )
    if any(row.planned_bytes is None and row.planned_calls is not None for row in rows):
        notes.append("an op whose size depends on cached context has no planned bytes: traces do not tell the context")
    if lost := sum(rank.lost for rank in ranks):
        notes.append(f"{counted(lost, 'call')} are known to be missing from the records")
    steps = max((len(rank.batches) for rank in ranks), default=0)
    scale = _scale(plan, planned)
    nics = list(_nics(evidence, plan, decode, scale))
    links = [one for one in nics if isinstance(one, ObservedLink)]
    links += _lab(lab, decode, scale) if lab and scale else ()
    notes += [one for one in nics if isinstance(one, str)]
    return Comparison(ranks=len(ranks), steps=steps, ops=tuple(rows), links=tuple(links), notes=tuple(notes))


def _seen(ranks: Iterable[RankTrace]) -> dict[Key, tuple[int, float, float | None]]:
    """Calls, bytes and median seconds of finished calls inside steps. A message counts where it is sent."""
    sums: dict[Key, list[float]] = {}
    times: dict[Key, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
    for rank in ranks:
        calls = rank.calls
        inside = calls.step >= 0 if (calls.step >= 0).any() else np.ones(len(calls), bool)
        began = np.where(calls.started_ns > 0, calls.started_ns, calls.created_ns)
        took = np.where((began > 0) & (calls.ended_ns >= began), calls.ended_ns - began, -1)
        for op, role in sorted(set(zip(calls.op[inside].tolist(), calls.role[inside].tolist(), strict=True))):
            kind = {"send": "send_recv"}.get(calls.ops[op], calls.ops[op])
            if kind in NOT_COUNTED:
                continue
            mine = inside & (calls.op == op) & (calls.role == role)
            key = calls.roles[role], kind
            total = sums.setdefault(key, [0, 0.0])
            total[0] += int(mine.sum())
            total[1] += float(calls.S_bytes[mine].sum())
            times.setdefault(key, []).append(took[mine & (took >= 0)])
    return {key: (int(n), size, _median(times[key])) for key, (n, size) in sums.items()}


def _median(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float | None:
    together = np.concatenate(parts)
    return float(np.median(together)) / 1e9 if len(together) else None


def _planned(ranks: Iterable[RankTrace], plan: Plan) -> dict[Key, _Sum]:
    """The same sums as the plan's ops give them for the batches that ran."""
    about = subject(plan)
    pieces = stages(about.model, about.layout, about.engine)
    known: dict[tuple[int, tuple[int, ...]], dict[Key, _Sum]] = {}
    found: dict[Key, _Sum] = {}
    for rank in ranks:
        if not _meant(rank, plan):
            continue
        stage = coordinates(plan.layout, rank.head.rank)["pp"]
        for batch in rank.batches:
            key = stage, tuple(sorted(batch.tokens))
            if not key[1]:
                continue
            if key not in known:
                known[key] = _step(about, pieces[stage], key[1])
            for role, one in known[key].items():
                found[role] = found.get(role, _Sum()).plus(*one)
    return found


def _meant(rank: RankTrace, plan: Plan) -> bool:
    """Whether a record is of a group as the plan has it: as many ranks, and no pool of its own."""
    return rank.head.world == plan.layout.size and rank.head.pool == "both"


def _step(about: Subject, stage: Stage, tokens: tuple[int, ...]) -> dict[Key, _Sum]:
    """Sums of one rank's step. tokens: new ones of each row; every row is taken to draw a token."""
    eager = about.options.eager or not about.engine.defaults.cuda_graphs
    convention = about.engine.convention_for(about.model, about.layout, about.options)
    places = about.places
    where = place_of(about.layout, places, about.cluster)
    found: dict[Key, _Sum] = {}
    stock = inventory(about.model)
    short, long = (
        stage_ops(stock, stage, about.layout, about.engine, _batch(tokens, context), about.options, place=where)
        for context in (0, _LONG)
    )
    for op, other in zip(short, long, strict=True):
        size, far = float(value_of(op.S_bytes)), float(value_of(other.S_bytes))
        one = float(value_of(op_seconds(op, places[op.group], about.cluster, convention, eager=eager)))
        key = op.role, op.kind
        found[key] = found.get(key, _Sum()).plus(op.repeat, op.repeat * size, op.repeat * one, size == far)
    return found


def _batch(tokens: tuple[int, ...], context: int) -> Batch:
    parts = tuple(Part(1, new, context, new > 1) for new in tokens)
    prompts = {part.prompt for part in parts}
    return Batch("mixed" if len(prompts) > 1 else "prefill" if True in prompts else "decode", parts, len(parts))


def _row(key: Key, plan: _Sum | None, seen: tuple[int, float, float | None] | None) -> Observed:
    calls, size, seconds = seen or (0, 0.0, None)
    return Observed(
        role=key[0],
        kind=key[1],
        planned_calls=plan.calls if plan else None,
        planned_bytes=plan.bytes if plan and plan.known else None,
        planned_s=plan.seconds / plan.calls if plan and plan.calls else None,
        observed_calls=calls,
        observed_bytes=size,
        observed_s=seconds,
    )


def _nics(
    evidence: Evidence, plan: Plan, decode: Sequence[LinkLoad], scale: Mapping[str, float]
) -> Iterator[ObservedLink | str]:
    """Counters of NICs against what the planned calls put on the NICs' links, and what could not be compared.

    A NIC that a topology file names is held against its own link. Where none is named, RDMA counters of a node are
    summed, and held against all links of the node's NICs, if the node has as many.
    """
    cluster = plan.cluster
    if not scale or not cluster.nics_per_node:
        return
    names = cluster.detail.nic_names if cluster.detail else ()
    hosts = {
        rank.head.host: cluster.node_of(device)
        for rank in evidence.trace.ranks
        if (device := device_of(plan, rank.head.unit, rank.head.rank)) >= 0
    }
    unnamed: dict[tuple[int, str, str], dict[str, float]] = {}
    for fact, growth in grown(Case(evidence), *_SENT, *_RECEIVED):
        name = fact.device.partition(":")[0]
        # A file of a host's kernel does not say whose it is; the folder it was put into may.
        host = fact.host or next((part for part in PurePath(fact.source).parts if part in hosts), "")
        node = hosts.get(host, 0 if cluster.nodes == 1 else -1)
        if node < 0:
            continue
        if name in names:
            words = " ".join(word for word in (host, fact.device, fact.name.partition(".")[2]) if word)
            yield _on(decode, scale, node, [names.index(name)], fact.name, words, growth)
        elif not names and fact.name.startswith("ib."):
            unnamed.setdefault((node, host, fact.name), {})[fact.device] = growth
    for (node, host, counter), counts in unnamed.items():
        if len(counts) != cluster.nics_per_node:
            yield (
                f"{counted(len(counts), 'RDMA counter')} of {host or f'node {node}'}, which has {cluster.nics_per_node}"
                " NICs by the plan: not compared"
            )
            continue
        words = f"{host or f'node {node}'}: {counted(len(counts), 'RDMA device')}, {counter.partition('.')[2]}"
        yield _on(decode, scale, node, range(cluster.nics_per_node), counter, words, sum(counts.values()))


def _on(
    decode: Sequence[LinkLoad], scale: Mapping[str, float], node: int, nics: Sequence[int], counter: str, words: str,
    growth: float,
) -> ObservedLink:  # fmt: skip
    """What a counter saw, against the planned bytes of the links of these NICs of a node."""
    vertices = [f"n{node}.nic{number}" for number in nics]
    links = [link for link in decode for vertex in vertices if _beyond(link, vertex, sent=counter in _SENT)]
    return ObservedLink(
        counter=words,
        links=", ".join(link.name for link in links) or ", ".join(vertices),
        planned_bytes=sum(_ran(link, scale) for link in links),
        observed_bytes=growth,
    )


def _lab(lab: LabResult, decode: Sequence[LinkLoad], scale: Mapping[str, float]) -> tuple[ObservedLink, ...]:
    """Every link of a lab that was to carry something, or did."""
    planned = {link.name: _ran(link, scale) for link in decode}
    names = [f"{link.src}>{link.dst}" for link in lab.links]
    return tuple(
        ObservedLink(counter="lab", links=name, planned_bytes=planned.get(name, 0.0), observed_bytes=link.bytes)
        for name, link in zip(names, lab.links, strict=True)
        if link.bytes or planned.get(name)
    )


def _ran(link: LinkLoad, scale: Mapping[str, float]) -> float:
    """Bytes on a link for what ran: those of a decode step, op by op, times the S that ran over the S of the step."""
    return sum(part.bytes * scale.get(part.role, 0.0) for part in link.parts)


def _beyond(link: LinkLoad, nic: str, *, sent: bool) -> bool:
    """Whether a link is the NIC's own into the network, and not one to a device."""
    own, other = (link.src, link.dst) if sent else (link.dst, link.src)
    return own == nic and not is_device(other) and ".slot" not in other


def _scale(plan: Plan, planned: Mapping[Key, _Sum]) -> dict[str, float]:
    """By role: S that ran, over all ranks, for each byte of S in one decode step of the plan."""
    ran: dict[str, float] = {}
    for (role, _), one in planned.items():
        ran[role] = ran.get(role, 0.0) + one.bytes
    step: dict[str, float] = {}
    for op in plan.decode:
        # Every rank of the stage makes the call; a hand-over is counted where it is sent.
        step[op.role] = step.get(op.role, 0.0) + op.S_bytes * op.repeat * plan.layout.stage_size * plan.replicas
    return {role: ran[role] / size for role, size in step.items() if size and role in ran}
