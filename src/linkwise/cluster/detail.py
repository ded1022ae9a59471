"""What a topology file says of one node beyond counts: sockets, NICs, path classes, and islands of any shape.

A Cluster without it is the usual machine. With it, an island may be bridged pairs that are no neighbours, a hybrid
mesh, or a switch with one device off it; tier and bandwidth of a group then follow from its own members.
"""

from collections.abc import Sequence
from functools import lru_cache

from linkwise.cluster.topology import PathClass
from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.core.schema import Frozen

_ORDER = {path.value: at for at, path in enumerate(PathClass)}
_NONE = "-"
MAX_NUMA = 1023  # Linux's CONFIG_NODES_SHIFT is 10 at most
MAX_NIC_NAME = 200
# Between two sockets of a CPU no file names: NCCL's figure for an Intel of 2017 (facts/nccl.yaml has those it knows).
UNKNOWN_SMP_BPS = 10e9
_ONE_SOCKET = frozenset({PathClass.PIX, PathClass.PXB, PathClass.PHB})


class Strand(Frozen, frozen=True, kw_only=True):
    """Direct scale-up links between two devices of a node: indices, bytes/s per direction of all of them together."""

    a: int
    b: int
    spec_Bps: float


class NodeDetail(Frozen, frozen=True, kw_only=True):
    """One node, by device index. Every field may be empty: then the Cluster's even spread holds.

    numa: NUMA node of each device, -1 where not stated. nic_names: by NIC index; nic_numa likewise.
    paths: a row per device, a word per device and then per NIC: a path class, or - where the file does not say.
    islands: number of each device's scale-up island in the node. strands: the direct links, where devices are linked
    to each other; ports_Bps: of each device into the island's switch, where there is one. Exactly one of these two
    comes with islands, and neither without. smp_Bps: between two sockets, per direction; 0 where not stated.
    """

    numa: tuple[int, ...] = ()
    nic_names: tuple[str, ...] = ()
    nic_numa: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    islands: tuple[int, ...] = ()
    strands: tuple[Strand, ...] = ()
    ports_Bps: tuple[float, ...] = ()
    smp_Bps: float = 0.0

    @property
    def sockets(self) -> tuple[int, ...]:
        """Number of each device's socket, as paths and NUMA nodes tell them apart; () where they tell of one alone.

        A socket is what NCCL calls a CPU: a NUMA node. Pairs that are PIX, PXB or PHB share one, pairs that are SYS or
        have different NUMA nodes do not.
        """
        return _sockets(self)

    @property
    def between_sockets_Bps(self) -> float:
        """Bytes/s per direction between two sockets."""
        return self.smp_Bps or UNKNOWN_SMP_BPS

    def path(self, device: int, other: int, *, nic: bool = False) -> PathClass | None:
        """Path class between two devices, or a device and a NIC; None when not stated."""
        if not self.paths:
            return None
        word = _rows(self.paths)[device][other + (len(self.paths) if nic else 0)]
        return None if word == _NONE else PathClass(word)

    def nics_of(self, device: int) -> tuple[int, ...]:
        """The NICs nearest to a device: all of the best path class it has to any; () when the file does not say.

        The first is the one it uses: devices with the same choice start at different ones.
        """
        return _nearest(self)[device] if self.paths else ()

    def joined_Bps(self, members: Sequence[int]) -> float:
        """Bytes/s per direction one device of a group gets over scale-up links of the group alone; 0 = not joined.

        Through a switch, its slowest port. Over direct links, the weakest cut of the group: every ring crosses every
        cut, so no set of rings is faster, and a group without a path of its own links has a cut of 0.
        """
        return _joined(self, tuple(sorted(set(members))))

    def usual_Bps(self, ranks: int | None) -> float:
        """`joined_Bps` of the slowest island, or of the slowest joined group of neighbours of that size; 0 if none."""
        homes: dict[int, list[int]] = {}
        for device, island in enumerate(self.islands):
            homes.setdefault(island, []).append(device)
        whole = [rate for home in homes.values() if len(home) > 1 and (rate := self.joined_Bps(home))]
        if ranks is None or ranks < 2:
            return min(whole, default=0.0)
        count = len(self.islands)
        groups = (range(first, first + ranks) for first in range(0, count - ranks + 1, ranks))
        near = [rate for group in groups if (rate := self.joined_Bps(group))]
        return min(near or whole, default=0.0)

    def check(self, devices: int, where: str) -> None:
        """Refuse lists of the wrong length, unknown words, and islands that their links do not hold together."""
        for name, want in (("numa", devices), ("islands", devices), ("ports_Bps", devices), ("paths", devices)):
            _length(where, name, len(getattr(self, name)), want)
        _length(where, "nic_numa", len(self.nic_numa), len(self.nic_names))
        for name in ("numa", "nic_numa"):
            _range(where, name, getattr(self, name), -1, MAX_NUMA, "a NUMA node, -1 for not stated")
        _range(where, "islands", self.islands, 0, devices - 1, "an island's number")
        _range(where, "ports_Bps", self.ports_Bps, 0, 1e15, "bytes/s per direction, 0 for no link")
        _range(where, "smp_Bps", (self.smp_Bps,), 0, 1e15, "bytes/s between two sockets, 0 where not stated")
        for at, name in enumerate(self.nic_names):
            if not 0 < len(name) <= MAX_NIC_NAME or printable(name) != name:
                raise InputError(
                    f"nic_names[{at}] is {clipped(printable(name), 40)!r}",
                    where=where,
                    expected=f"1..{MAX_NIC_NAME} printable characters",
                )
        for row in self.paths:
            words = row.split()
            if len(words) != devices + len(self.nic_names):
                raise InputError(
                    f"paths: {len(words)} words in {row[:60]!r}",
                    where=where,
                    expected=f"{devices} + {len(self.nic_names)}",
                )
            if unknown := next((word for word in words if word != _NONE and word not in _ORDER), None):
                raise InputError(f"paths: {unknown[:20]!r}", where=where, expected=f"- or one of {', '.join(_ORDER)}")
        self._check_islands(devices, where)

    def _check_islands(self, devices: int, where: str) -> None:
        if bool(self.islands) != (bool(self.strands) or bool(self.ports_Bps)) or (self.strands and self.ports_Bps):
            raise InputError("islands, strands and ports_Bps do not go together", where=where, expected=_TOGETHER)
        pairs: set[tuple[int, int]] = set()
        for at, strand in enumerate(self.strands):
            low, high = sorted((strand.a, strand.b))
            if not (0 <= low < high < devices and 0 < strand.spec_Bps <= 1e15):
                raise InputError(
                    f"strands[{at}]: strand {strand.a}-{strand.b} of {strand.spec_Bps:g} B/s",
                    where=where,
                    expected=f"two devices of 0..{devices - 1} and a bandwidth above 0, at most 1e+15",
                )
            if (low, high) in pairs:
                raise InputError(f"strands[{at}]: strand {low}-{high} again", where=where, expected="each pair once")
            pairs.add((low, high))
        for island in set(self.islands):
            home = [device for device, number in enumerate(self.islands) if number == island]
            if len(home) > 1 and not self.joined_Bps(home):
                raise InputError(f"island {island}: its devices are not joined by links", where=where)


_TOGETHER = "none of them, islands with strands (direct links), or islands with ports_Bps (a switch)"


def _length(where: str, name: str, have: int, want: int) -> None:
    if have not in (0, want):
        raise InputError(f"{name} has {have} entries", where=where, expected=f"{want}, or none")


def _range(where: str, name: str, values: Sequence[float], low: float, high: float, what: str) -> None:
    """Refuse the first number outside low..high; NaN is outside every range."""
    for at, value in enumerate(values):
        if not low <= value <= high:
            raise InputError(f"{name}[{at}] is {str(value)[:40]}", where=where, expected=f"{low:g}..{high:g}: {what}")


@lru_cache(maxsize=256)
def _rows(paths: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row.split()) for row in paths)


@lru_cache(maxsize=256)
def _nearest(detail: NodeDetail) -> tuple[tuple[int, ...], ...]:
    nearest: list[tuple[int, ...]] = []
    users: dict[tuple[int, ...], int] = {}
    for device in range(len(detail.paths)):
        ways = [detail.path(device, nic, nic=True) for nic in range(len(detail.nic_names))]
        best = min((_ORDER[way] for way in ways if way), default=None)
        same = tuple(nic for nic, way in enumerate(ways) if way and _ORDER[way] == best)
        turn = users.get(same, 0) % max(1, len(same))
        users[same] = users.get(same, 0) + 1
        nearest.append((*same[turn:], *same[:turn]))
    return tuple(nearest)


@lru_cache(maxsize=256)
def _sockets(detail: NodeDetail) -> tuple[int, ...]:
    count = len(detail.paths) or len(detail.numa)
    home = list(range(count))

    def numa(device: int) -> int:
        return detail.numa[device] if detail.numa else -1

    def apart(a: int, b: int) -> bool:
        way = detail.path(a, b)
        return way is PathClass.SYS or (way not in _ONE_SOCKET and -1 != numa(a) != numa(b) != -1)

    pairs = [(a, b) for b in range(count) for a in range(b)]
    # What a file says first; then what nothing tells apart.
    sure = [(a, b) for a, b in pairs if detail.path(a, b) in _ONE_SOCKET]
    for a, b in (*sure, *pairs):
        ones, others = ([d for d in range(count) if home[d] == home[x]] for x in (a, b))
        if home[a] != home[b] and ((a, b) in sure or not any(apart(x, y) for x in ones for y in others)):
            gone = home[b]
            home = [home[a] if at == gone else at for at in home]
    order = {at: number for number, at in enumerate(dict.fromkeys(home))}
    return tuple(order[at] for at in home) if len(order) > 1 else ()


@lru_cache(maxsize=4096)
def _joined(detail: NodeDetail, members: tuple[int, ...]) -> float:
    if len(members) < 2 or not detail.islands or len({detail.islands[m] for m in members}) > 1:
        return 0.0
    if detail.ports_Bps:
        return min(detail.ports_Bps[m] for m in members)
    inside = set(members)
    links: dict[int, dict[int, float]] = {m: {} for m in members}
    for strand in detail.strands:
        if {strand.a, strand.b} <= inside:
            for a, b in ((strand.a, strand.b), (strand.b, strand.a)):
                links[a][b] = links[a].get(b, 0.0) + strand.spec_Bps
    return _weakest_cut(links)


def _weakest_cut(links: dict[int, dict[int, float]]) -> float:
    """Weight of the minimum cut of a small undirected graph (Stoer and Wagner, 1997): merge, and keep the least cut."""
    weakest = float("inf")
    while len(links) > 1:
        taken, pull = [next(iter(links))], {}
        for node in links:
            if node != taken[0]:
                pull[node] = links[taken[0]].get(node, 0.0)
        cut = 0.0
        while pull:
            last = max(pull, key=lambda node: pull[node])
            cut = pull.pop(last)
            taken.append(last)
            for node, weight in links[last].items():
                if node in pull:
                    pull[node] += weight
        weakest = min(weakest, cut)
        kept, gone = taken[-2], taken[-1]
        for node, weight in links.pop(gone).items():
            del links[node][gone]
            if node != kept:
                links[kept][node] = links[node][kept] = links[kept].get(node, 0.0) + weight
    return weakest
