"""What is to be built for a cluster: the graph of cluster/links.py, one cable a wire, one namespace a device.

Each device that takes part is a station: a network namespace with an interface for every link it has, and one address.
Every other vertex (`island0`, `n0.host`, `n0.nic1`, `rail1`, `leaf0`, `core`) is a bridge. A station's routes send what
is for a destination over the first link of `cluster.routes.connection`, so bytes travel where the planner says they do:
a directed link of the planner and one direction of a cable are the same thing, by name. A device that relays forwards;
it is its own PCIe slot, and uses its first NIC.

Only what lies on a route between the chosen devices is built.
"""

from linkwise.cluster.links import device
from linkwise.cluster.routes import connection
from linkwise.cluster.types import Cluster, Link
from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen

MAX_STATIONS = 64  # namespaces with a process each: more is no experiment on one machine
SLOWEST_BPS = 25e6  # where no scale is given the slowest link becomes 200 Mbit/s
LEAST_BPS, MOST_BPS = 12_500.0, 125e9  # 100 kbit/s to 1 Tbit/s


class Cable(Frozen, frozen=True, kw_only=True):
    """One wire: its ends as cluster/links.py names them, the interface at each, bytes/s of each direction."""

    a: str
    b: str
    a_interface: str
    b_interface: str
    ab_Bps: float
    ba_Bps: float


class Hop(Frozen, frozen=True, kw_only=True):
    """A route: an address is reached over an interface, by way of another station (empty when it is on the link)."""

    to: str
    interface: str
    via: str = ""


class Station(Frozen, frozen=True, kw_only=True):
    """A device's namespace. rank: -1 for one that only relays. interface: the one that has the address."""

    device: int
    node: int
    rank: int
    address: str
    interface: str
    hops: tuple[Hop, ...]

    @property
    def name(self) -> str:
        return f"d{self.device}"


class Wiring(Frozen, frozen=True, kw_only=True):
    """A lab before it is built. scale: bandwidth of a cable over the effective bandwidth of its link."""

    scale: float
    stations: tuple[Station, ...]
    bridges: tuple[str, ...]
    cables: tuple[Cable, ...]

    @property
    def ranks(self) -> tuple[Station, ...]:
        """Stations with a rank, in rank order."""
        return tuple(sorted((s for s in self.stations if s.rank >= 0), key=lambda s: s.rank))

    @property
    def rates(self) -> dict[tuple[str, str], float]:
        """Bytes/s of every directed link."""
        return {e: r for c in self.cables for e, r in (((c.a, c.b), c.ab_Bps), ((c.b, c.a), c.ba_Bps))}


def wiring(cluster: Cluster, placement: tuple[int, ...] | None = None, scale: float | None = None) -> Wiring:
    """What to build so that rank i runs on device `placement[i]` (None = every device in order).

    scale: lab bandwidth over the cluster's effective bandwidth; None = the slowest link becomes 200 Mbit/s. Raises
    InputError for unknown or repeated devices, more than 64 of them, and links the kernel could not shape.
    """
    chosen = tuple(range(cluster.size)) if placement is None else placement
    if len(chosen) < 2 or len(set(chosen)) != len(chosen):
        raise InputError(
            f"devices {', '.join(map(str, chosen[:20]))}", where="lab", expected="two or more, each at most once"
        )
    if len(chosen) > MAX_STATIONS:
        raise InputError(
            f"{len(chosen)} ranks", where="lab", expected=f"at most {MAX_STATIONS}", hint="Choose some with --placement"
        )
    ways = {(a, b): connection(cluster, a, b) for a in chosen for b in chosen if a != b}
    wires = _wires(ways)
    slowest = min(link.effective_Bps for pair in wires.values() for link in pair)
    scale = SLOWEST_BPS / slowest if scale is None else scale
    cables = tuple(_cable(index, there, back, scale) for index, (there, back) in enumerate(wires.values()))
    vertices = dict.fromkeys(vertex for cable in cables for vertex in (cable.a, cable.b))
    present = sorted(int(v[1:]) for v in vertices if _is_device(v))
    return Wiring(
        scale=scale,
        stations=tuple(_station(cluster, number, chosen, ways, cables) for number in present),
        bridges=tuple(v for v in vertices if not _is_device(v)),
        cables=cables,
    )


def address(number: int) -> str:
    """A device's address in the lab."""
    return f"10.0.{(number + 1) >> 8}.{(number + 1) & 255}"


def _wires(ways: dict[tuple[int, int], tuple[Link, ...]]) -> dict[tuple[str, str], tuple[Link, Link]]:
    """Every wire on a route, as its link from the lesser to the greater end and the one back."""
    found: dict[tuple[str, str], Link] = {(link.src, link.dst): link for way in ways.values() for link in way}
    wires = {}
    for (src, dst), link in found.items():
        key = min(src, dst), max(src, dst)
        if key not in wires:
            # A direction on no route has the bandwidth of the other: links of a cluster are alike both ways.
            wires[key] = found.get(key, link), found.get(key[::-1], link)
    return wires


def _cable(index: int, there: Link, back: Link, scale: float) -> Cable:
    a, b = min(there.src, there.dst), max(there.src, there.dst)
    rates = there.effective_Bps * scale, back.effective_Bps * scale
    if not all(LEAST_BPS <= rate <= MOST_BPS for rate in rates):
        raise InputError(
            f"link {a}>{b} of {there.effective_Bps / 1e9:g} GB/s times {scale:g} is {rates[0] * 8 / 1e6:g} Mbit/s",
            where="lab --scale",
            expected=f"{LEAST_BPS * 8 / 1e6:g} to {MOST_BPS * 8 / 1e6:g} Mbit/s on every link",
        )
    return Cable(
        a=a, b=b, a_interface=_interface(a, b, f"c{index}a"), b_interface=_interface(b, a, f"c{index}b"),
        ab_Bps=rates[0], ba_Bps=rates[1],
    )  # fmt: skip


def _interface(own: str, other: str, port: str) -> str:
    """In a station, what it leads to (nic0, host, island3, d5); at a bridge, a port's number."""
    return other.rpartition(".")[2] if _is_device(own) else port


def _station(
    cluster: Cluster, number: int, chosen: tuple[int, ...], ways: dict[tuple[int, int], tuple[Link, ...]],
    cables: tuple[Cable, ...],
) -> Station:  # fmt: skip
    own = f"d{number}"
    interfaces = [c.a_interface for c in cables if c.a == own] + [c.b_interface for c in cables if c.b == own]
    hops = []
    for target in chosen:
        if target == number:
            continue
        way = ways.get((number, target)) or connection(cluster, number, target)
        stops = [int(link.dst[1:]) for link in way if _is_device(link.dst)]
        interface = _interface(own, way[0].dst, "")
        if interface in interfaces:  # a relay serves only targets on its own rail
            via = address(stops[0]) if stops[0] != target else ""
            hops.append(Hop(to=address(target), interface=interface, via=via))
    return Station(
        device=number,
        node=device(cluster, number).node,
        rank=chosen.index(number) if number in chosen else -1,
        address=address(number),
        # NICs first: what frameworks are told to use.
        interface=min(interfaces, key=lambda name: (not name.startswith("nic"), name)),
        hops=tuple(hops),
    )


def _is_device(vertex: str) -> bool:
    return vertex[0] == "d" and vertex[1:].isdigit()
