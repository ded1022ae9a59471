"""Which ways has an implementation to do a call over some ranks, and what does each cost?

A way is an algorithm with a protocol. It takes

    latency + bytes on the bus / bus bandwidth,    latency = base + per step x steps of the algorithm,

where bytes on the bus are those of nccl-tests (all-reduce 2S(n-1)/n; all-gather, reduce-scatter and all-to-all
S(n-1)/n; broadcast and send/recv S), so that a way's bandwidth is its bus bandwidth: the tier that is slowest for the
bytes the algorithm really puts on it (NVLS S(1+1/n), a tree over nodes S or 2S per set of NICs, one-shot S(n-1))
decides.

All figures come from `Constants`. A latency given for a tier of this very cluster ("nccl.island", by a calibration or a
cluster file) is a measurement: it stands alone, with the effective bandwidth of the links. Otherwise the catalogue's
figures of the kind of link hold ("nccl.nvlink4", "nccl-ll128.nvlink4", "nccl.nic"), and where a kind of link has none
the catalogue's figure of the tier, which is labelled extrapolated.

Source of algorithms, steps and bytes: the facts on NCCL's tuning model and on engines' kernels (DESIGN §4).
"""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec

from linkwise.cluster import known
from linkwise.cluster.collective_facts import family, measured
from linkwise.cluster.types import Cluster, Constants, Tier
from linkwise.core.errors import InputError
from linkwise.core.identity import ById
from linkwise.core.quantity import value_of
from linkwise.plan.collectives import default_algorithm, hops, wire

RING = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
PEERS = ("all_to_all", "send_recv", "gather")


class Line(NamedTuple):
    """A way an implementation can do some kinds of call. key: its figures in Constants, before the kind of link."""

    key: str
    algorithm: str
    protocol: str
    kinds: tuple[str, ...]


_ALL_REDUCE = ("all_reduce",)
_GATHERS = ("all_gather", "reduce_scatter")
_PROTOCOLS = (("nccl", "LL"), ("nccl-ll128", "LL128"), ("nccl-simple", "Simple"))
# The first line of an implementation is the one whose figure of a tier a calibration replaces.
IMPLEMENTATIONS: dict[str, tuple[Line, ...]] = {
    "nccl": (
        *(Line(key, "ring", protocol, RING) for key, protocol in _PROTOCOLS),
        *(Line(key, "tree", protocol, _ALL_REDUCE) for key, protocol in _PROTOCOLS),
        Line("nccl-nvls", "nvls", "Simple", _ALL_REDUCE),
        Line("nccl-nvls", "nvls_tree", "Simple", _ALL_REDUCE),
        Line("nccl-p2p", "direct", "Simple", PEERS),
    ),
    "nccl-symmetric": (
        Line("nccl-symmetric", "nvls", "LD", _ALL_REDUCE),
        Line("nccl-symmetric-gather", "direct", "LD", _GATHERS),
    ),
    "custom": (Line("custom", "one_shot", "", _ALL_REDUCE),),
    "custom-two-shot": (Line("custom-two-shot", "two_shot", "", _ALL_REDUCE),),
    "symm-mem": (Line("symm-mem", "two_shot", "", _ALL_REDUCE),),
    "multimem": (Line("multimem", "nvls", "", _ALL_REDUCE),),
    "trtllm-one-shot": (Line("trtllm-one-shot", "one_shot", "", _ALL_REDUCE),),
    "trtllm-two-shot": (Line("trtllm-two-shot", "two_shot", "", _ALL_REDUCE),),
    "deepep": (Line("deepep", "direct", "", ("all_to_all",)),),
    "deepep-low-latency": (Line("deepep-low-latency", "direct", "", ("all_to_all",)),),
    "transfer": (Line("transfer", "direct", "", ("send_recv",)),),
    "copy": (Line("copy", "direct", "", ("send_recv",)),),
}


class Group(NamedTuple):
    """Where the ranks of a call lie: the slowest tier, ranks, (fewest) ranks of a node, nodes.

    share: what they get of a device's usual bandwidth at the tier (rails that pass by an oversubscribed core, links
    that are not the usual ones, a link between sockets). exchange: the same for pairwise exchanges where it differs,
    else 0. inner, inner_share: tier and share of the ranks of one node among themselves; None = what islands of the
    usual size allow.
    """

    tier: Tier
    ranks: int
    per_node: int
    nodes: int = 1
    share: float = 1.0
    exchange: float = 0.0
    inner: Tier | None = None
    inner_share: float = 1.0


class Way(NamedTuple):
    """One way of a call with its figures: seconds = latency + bytes on the bus / bandwidth. share: what its protocol
    reaches of its links' usable bandwidth; part of bandwidth."""

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_Bps: float
    extrapolated: bool
    source: str
    share: float = 1.0


def group_of(cluster: Cluster, ranks: int, nodes: int) -> Group:
    """`ranks` spread evenly over the first `nodes` nodes, neighbours first. Raises InputError when they do not fit."""
    per_node, rest = divmod(ranks, max(nodes, 1))
    if nodes < 1 or ranks < 1 or rest or per_node > cluster.devices_per_node or nodes > cluster.nodes:
        expected = f"a multiple of the nodes; {cluster.nodes} nodes of {cluster.devices_per_node} devices"
        raise InputError(f"{ranks} ranks on {nodes} nodes", where=f"cluster {cluster.name!r}", expected=expected)
    first = cluster.devices_per_node
    members = tuple(node * first + index for node in range(nodes) for index in range(per_node))
    return Group(cluster.tier(members), ranks, per_node, nodes)


def ways(kind: str, group: Group, cluster: Cluster, implementation: str) -> tuple[Way, ...]:
    """Every way an implementation has of doing a call over these ranks. Raises InputError when it has none."""
    return _ways(kind, group, ById(cluster), implementation)


# A search asks for the same few hundred groups again for every batch of every layout.
@lru_cache(maxsize=1024)
def _ways(kind: str, group: Group, same: ById[Cluster], implementation: str) -> tuple[Way, ...]:
    cluster = same.value
    lines = tuple(line for line in IMPLEMENTATIONS.get(implementation, ()) if kind in line.kinds)
    stated = is_stated(cluster.constants, f"{implementation}.{group.tier.value}")
    if not lines and not (stated and implementation not in IMPLEMENTATIONS):
        wire(kind, 0, 2)  # an unknown kind is refused with the kinds there are
        known_here = ", ".join(name for name, each in IMPLEMENTATIONS.items() if any(kind in x.kinds for x in each))
        raise InputError(f"{implementation!r} has no {kind}", where="collective", expected=f"one of {known_here}")
    algorithm = lines[0].algorithm if lines else default_algorithm(kind)
    if group.tier is Tier.DEVICE:
        return (Way(algorithm, "", 0.0, math.inf, False, "one rank: nothing moves"),)
    if stated:  # by a calibration or a cluster file, for this very tier: it stands alone
        return (_flat(kind, algorithm, group, cluster, implementation, extrapolated=False),)
    found = tuple(way for line in lines if (way := _way(line, kind, group, cluster, implementation)))
    return found or (_flat(kind, algorithm, group, cluster, implementation, extrapolated=True),)


def is_stated(mine: Constants, key: str) -> bool:
    """Whether a latency was given for this cluster: it is there, and it or its source is not the catalogue's."""
    usual, source = _catalogue(), f"latency_us.{key}"
    pair = mine.latency_us.get(key)
    same = pair == usual.latency_us.get(key) and mine.sources.get(source) == usual.sources.get(source)
    return pair is not None and not same


@cache
def _catalogue() -> Constants:
    return known.constants()


def _flat(
    kind: str, algorithm: str, group: Group, cluster: Cluster, implementation: str, *, extrapolated: bool
) -> Way:  # fmt: skip
    """Latency of the tier by the steps of an algorithm, and the bandwidth of the links.

    Where the kind of call was measured by itself (`<implementation>.<tier>.<kind>`), its own latency and share hold.
    """
    key, shares = f"{implementation}.{group.tier.value}", cluster.constants.link_efficiency
    own = cluster.constants.latency_us.get(f"{key}.{kind}")
    base, step = own or cluster.constants.latency(implementation, group.tier)
    steps = hops(kind, group.ranks, algorithm if algorithm != "direct" else "")
    label = cluster.constants.label + (", extrapolated" if extrapolated else "")
    words = f"{implementation} over {group.tier.value}, {label}"
    share = shares.get(f"{key}.{kind}", shares.get(key, 1.0))
    bandwidth = _bus_bandwidth(algorithm, kind, group, cluster, share)
    source = f"{words}: {base:g} us + {steps} steps x {step:g} us"
    return Way(algorithm, "", base + step * steps, bandwidth, extrapolated, source, share)


def link_of(cluster: Cluster, group: Group) -> str:
    """Kind of the slowest link of a group, as Constants name it; `-multi` where a scale-up domain spans machines."""
    kind = cluster.port(group.tier)[0]
    return f"{kind}-multi" if group.tier is Tier.ISLAND and group.ranks > cluster.devices_per_node else kind


def inner_tier(cluster: Cluster, group: Group) -> Tier:
    """The tier the ranks of one node talk over."""
    return group.inner or usual_inner_tier(cluster, group.per_node)


def usual_inner_tier(cluster: Cluster, ranks: int) -> Tier:
    """The tier of so many neighbours of one node."""
    return Tier.ISLAND if cluster.island_size >= ranks > 1 else Tier.NODE


def _inside(cluster: Cluster, group: Group) -> float:
    """Bytes/s per direction one rank gets among those of its node."""
    if group.per_node < 2 and group.inner is None:
        return math.inf
    return cluster.bandwidth(inner_tier(cluster, group), group.per_node) * group.inner_share


def _way(line: Line, kind: str, group: Group, cluster: Cluster, implementation: str) -> Way | None:
    """A line with its figures; None where it does not apply or no kind of link like this was measured."""
    constants, link = cluster.constants, link_of(cluster, group)
    latency = _latency(line, kind, group, cluster, link)
    if latency is None:
        return None
    share = _share(constants, line.key, link)
    bandwidth = _bus_bandwidth(line.algorithm, kind, group, cluster, share)
    if line.key == "copy":  # a copy engine does not pay for peer access: its share is of the datasheet's rate
        bandwidth = cluster.port(group.tier)[1] * share
    words = " ".join(word for word in (implementation, line.algorithm, line.protocol, "over", link) if word)
    known_here = measured(implementation, _class_of(constants, link), group.ranks)
    source = f"{words}, {constants.label}{'' if known_here else ', extrapolated'}: {latency.words}"
    return Way(line.algorithm, line.protocol, latency.us, bandwidth, not known_here, source, share)


class _Latency(NamedTuple):
    us: float
    words: str


def _latency(line: Line, kind: str, group: Group, cluster: Cluster, link: str) -> _Latency | None:
    table, across = cluster.constants.latency_us, group.tier is Tier.CLUSTER
    inner = cluster.port(inner_tier(cluster, group))[0] if across and group.per_node > 1 else ""
    inside, net = _steps(line.algorithm, kind, group, cluster)
    # A switch that reduces is there or it is not: no figure of a relative stands for it.
    if line.algorithm == "nvls_tree":
        nvls, simple = table.get(f"{line.key}.{inner}"), _pair(table, "nccl-simple", link)
        if not across or nvls is None or simple is None:
            return None
        words = f"{nvls[0]:g} us inside + {simple[0]:g} us + {net:g} steps x {simple[1]:g} us"
        return _Latency(nvls[0] + simple[0] + simple[1] * net, words)
    if line.algorithm == "nvls" and (across or f"{line.key}.{link}" not in table):
        return None
    if line.algorithm == "tree" and net == 0:
        return None  # inside one machine a tree is the ring's chain
    pair = _pair(table, line.key, link)
    hop = _pair(table, line.key, inner) if inner else pair
    if pair is None or hop is None:
        return None
    terms = [f"{pair[0]:g} us"]
    terms += [f"{n:g} steps x {step:g} us" for n, step in ((inside, hop[1]), (net, pair[1])) if n * step]
    return _Latency(pair[0] + hop[1] * inside + pair[1] * net, " + ".join(terms))


Pairs = dict[str, tuple[float, float]]


def _pair(table: Pairs, key: str, link: str) -> tuple[float, float] | None:
    """Figures of a kind of link, or of its nearest relative that has some."""
    return next((table[name] for each in family(link) if (name := f"{key}.{each}") in table), None)


def _share(constants: Constants, key: str, link: str) -> float:
    """Share of the links' effective bandwidth a line reaches: of the kind of link, else of the line, else all."""
    table = constants.link_efficiency
    return next((table[name] for each in family(link) if (name := f"{key}.{each}") in table), table.get(key, 1.0))


def _steps(algorithm: str, kind: str, group: Group, cluster: Cluster) -> tuple[float, float]:
    """Sequential steps of a call inside a node (or a scale-up domain), and those between nodes."""
    n, nodes = group.ranks, group.nodes
    across = group.tier is Tier.CLUSTER
    if group.tier is Tier.ISLAND:
        nodes = max(1, -(-n // cluster.devices_per_node))
    if algorithm == "ring":
        both = 2 if kind == "all_reduce" else 1
        net = both * (nodes - 1) if across else 0
        return both * (n - 1) - net, net
    if algorithm in {"tree", "nvls_tree"}:
        return 2 * (-(-n // nodes) - 1), 2 * math.log2(nodes)
    if algorithm == "direct" and kind in {"all_to_all", "gather"}:
        return (group.per_node - 1, n - group.per_node) if across else (n - 1, 0)
    return (0, 1) if across else (1, 0)


def _bus_bandwidth(algorithm: str, kind: str, group: Group, cluster: Cluster, share: float) -> float:
    """Bytes on the bus per second: those bytes divided by the time of the slowest tier.

    A tree's node sends and receives S between two nodes and 2S among more, over all its NICs, and its inner chain
    passes S up and S down; NVLS moves S(1 + 1/n) inside.
    """
    n, m = group.ranks, group.per_node
    if group.tier is Tier.CLUSTER and not cluster.nic_Bps:
        raise InputError("nodes are joined by no NICs", where="cluster", expected="nics: {count: 1, Gbps: 100}")
    port = port_bandwidth(cluster, group, kind, crossing=True)
    if group.tier is not Tier.CLUSTER:
        if algorithm == "nvls":
            return port * share * _bus_factor(kind, n) / (1 + 1 / n)
        if algorithm == "one_shot":
            return port * share * _bus_factor(kind, n) / (n - 1)
        return port * share
    if algorithm in {"tree", "nvls_tree"}:
        inner, inside = inner_tier(cluster, group), _inside(cluster, group)
        chain = 2.0 / inside
        if algorithm == "nvls_tree":
            chain = (1 + 1 / m) / (inside * _share(cluster.constants, "nccl-nvls", cluster.port(inner)[0]))
        nics = (1.0 if group.nodes == 2 else 2.0) / (cluster.bandwidth(group.tier, n) * group.share * m)
        return share * _bus_factor(kind, n) / max(nics, chain)
    return port * share


def _bus_factor(kind: str, n: int) -> float:
    """Bytes on the bus per byte of S, as nccl-tests counts them."""
    return float(value_of(wire(kind, 1.0, n).sent))


def port_bandwidth(cluster: Cluster, group: Group, kind: str, *, crossing: bool = False) -> float:
    """Bytes/s per direction the busiest port gives one rank, protocol aside.

    A ring over nodes crosses each node's NICs once in each direction for the whole group's data, and NCCL runs one ring
    per NIC, so the ranks of a node pool their NICs. A pairwise exchange uses each rank's own NIC. crossing: count that
    only the part of an exchange that is bound for other nodes crosses it, the rest goes over the links inside.
    """
    pairwise = kind == "all_to_all" and group.exchange
    own = cluster.bandwidth(group.tier, group.ranks) * (group.exchange if pairwise else group.share)
    if group.tier is not Tier.CLUSTER:
        return own
    n, m = group.ranks, group.per_node
    inside = _inside(cluster, group)
    if kind in RING or kind == "gather":
        return min(own * m, inside)
    if kind == "all_to_all" and crossing:
        near = (m - 1) / (n - 1)
        # Over PCIe what stays and what leaves go through the same slot.
        slot = _slot_Bps(cluster) if m > 1 and inner_tier(cluster, group) is Tier.NODE else math.inf
        return 1 / max((1 - near) / own, near / inside, 1 / slot)
    return own


def _slot_Bps(cluster: Cluster) -> float:
    device = cluster.accelerator
    return device.pcie_Bps * cluster.constants.link_efficiency.get(device.host_link, 1.0)


def on_nic(cluster: Cluster, kind: str) -> Cluster:
    """The same cluster with NICs of a class that the facts know by name (efa1..efa4, slingshot, tcpxo).

    Latencies and efficiency of the class, or of its relatives, take the place of those of `nic`. Raises InputError for
    a class that is not known.
    """
    c = cluster.constants
    classes = list(family(kind))
    if classes[-1] != "nic":
        raise InputError(f"unknown kind of NIC {kind!r}", where="cluster", expected="efa1..efa4, slingshot or tcpxo")
    latency, share = dict(c.latency_us), dict(c.link_efficiency)
    for each in reversed(classes):  # the nearest last, so that it stands
        latency |= {key.removesuffix(each) + "nic": x for key, x in c.latency_us.items() if key.endswith(f".{each}")}
        share |= {key.removesuffix(each) + "nic": x for key, x in c.link_efficiency.items() if key.endswith(f".{each}")}
        share["nic"] = c.link_efficiency.get(each, share["nic"])
    label = c.label if kind == "nic" else f"{c.label}, {kind} NICs"
    changed = msgspec.structs.replace(
        c, label=label, latency_us=latency, link_efficiency=share, sources=c.sources | {_NIC_CLASS: kind}
    )
    return msgspec.structs.replace(cluster, constants=changed)


_NIC_CLASS = "nic class"  # among the sources of Constants: which class its NIC figures are of


def _class_of(constants: Constants, link: str) -> str:
    return constants.sources.get(_NIC_CLASS, link) if link == "nic" else link
