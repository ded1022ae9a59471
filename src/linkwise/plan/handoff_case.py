"""One handoff, resolved: layouts, connector, pieces, devices and routes; what its figures follow from."""

from typing import NamedTuple

from linkwise.cluster.routes import Way, ways, ways_apart
from linkwise.cluster.types import Cluster, Link
from linkwise.core.dtypes import canonical
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options, Refusal
from linkwise.engine.connectors import Connector, connector, refuses
from linkwise.model.types import Model
from linkwise.plan.handoff_types import HandoffOptions
from linkwise.plan.inventory import inventory
from linkwise.plan.reshard import Piece, pieces
from linkwise.plan.step import kv_dtype_of

MAX_TOKENS = 100_000_000

Devices = dict[tuple[str, int], int]  # (side, rank of its group) -> device


class Case(NamedTuple):
    """Everything a handoff's figures follow from.

    cluster, other: of the prefill and of the decode group; the same value where they share one. prefill, decode: ranks
    that hand over, tp and pp alone. group: the whole prefill group, which computes. taking: the whole decode group.
    """

    model: Model
    cluster: Cluster
    other: Cluster
    engine: Engine
    name: str
    it: Connector
    options: HandoffOptions
    prompt: int
    rate: float
    prefill: Layout
    decode: Layout
    group: Layout
    taking: Layout
    kv_dtype: str
    block: int
    pieces: list[Piece]
    devices: Devices
    routes: dict[tuple[int, int], tuple[Way, ...]]
    refused: Refusal | None

    @property
    def textbook(self) -> bool:
        return self.engine.convention.name == "textbook"


def case_of(
    model: Model, cluster: Cluster, prompt: int, rate: float, prefill: Layout, decode: Layout, engine: Engine,
    kv_dtype: str, options: HandoffOptions, apart: "Apart | None" = None,
) -> Case:  # fmt: skip
    """apart: where the groups lie when they are of pools; without it prefill ranks come first on the cluster."""
    if not 1 <= prompt <= MAX_TOKENS:
        raise InputError(f"prompt is {prompt} tokens", where="handoff", expected=f"1..{MAX_TOKENS}")
    if not 0 < rate <= 1e7:
        raise InputError(f"rate is {rate}/s", where="handoff", expected="above 0, at most 1e7 per second")
    for side, layout in (("prefill", prefill), ("decode", decode)):
        if layout.pp > len(model.layers):
            raise InputError(f"{side} pp {layout.pp} for {len(model.layers)} layers", where="handoff")
    name, it = connector(engine.name, options.connector)
    dtype = kv_dtype_of(model, Options(kv_dtype=None if kv_dtype == "auto" else canonical(kv_dtype, where="kv dtype")))
    stock = inventory(model)
    found = pieces(
        stock, prefill, decode, engine,
        replicated=options.replicated or it.replicated,
        per_rank=it.per_rank if options.per_rank is None else options.per_rank,
    )  # fmt: skip
    block = it.block_tokens or engine.resolve(Options(), model).block_tokens
    block = 1 if engine.convention.name == "textbook" else block
    devices = devices_of(cluster, prefill, decode, options) if apart is None else apart.devices
    other = cluster if apart is None else apart.other

    def routes(piece: Piece) -> tuple[Way, ...]:
        ends = devices["prefill", piece.sender], devices["decode", piece.receiver]
        if apart is None or apart.shared:
            return ways(cluster, *ends, relay=it.relay)
        return ways_apart(cluster, ends[0], other, ends[1], ("prefill", "decode"))

    return Case(
        model, cluster, other, engine, name, it, options, prompt, rate, prefill, decode,
        prefill if apart is None else apart.group, decode if apart is None else apart.taking, dtype,
        options.block_tokens or block, found, devices,
        {(p.sender, p.receiver): routes(p) for p in found}, refuses(name, it, model, prefill.tp, decode.tp),
    )  # fmt: skip


class Apart(NamedTuple):
    """Where two groups of pools lie: the decode group's cluster, whether it is the prefill group's too, devices,
    and the layouts of the whole groups."""

    other: Cluster
    shared: bool
    devices: Devices
    group: Layout
    taking: Layout


def devices_of(cluster: Cluster, prefill: Layout, decode: Layout, options: HandoffOptions) -> Devices:
    """Prefill ranks from device 0 on; decode ranks from the next free node on, or right behind when none is free."""
    first = options.decode_device
    if first is None:
        node = -(-prefill.size // cluster.devices_per_node) * cluster.devices_per_node
        first = node if node + decode.size <= cluster.size else prefill.size
    if first < prefill.size or first + decode.size > cluster.size:
        raise InputError(
            f"prefill {prefill} on devices 0..{prefill.size - 1} and decode {decode} from device {first} on",
            where="handoff",
            expected=f"both groups on the {cluster.size} devices of {cluster.name}, none shared",
        )
    places = {("prefill", r): r for r in range(prefill.size)}
    return places | {("decode", r): first + r for r in range(decode.size)}


# Links that carry packets; inside a machine there are none of the network's headers.
NETWORK = frozenset({"nic", "fabric"})


def link_name(link: Link) -> str:
    return f"{link.src}->{link.dst}"


class Load(NamedTuple):
    """A link with the pieces that cross it, and the share of each that does: a device spreads it over its NICs."""

    link: Link
    pieces: list[tuple[Piece, float]]


def loads_of(case: Case) -> list[Load]:
    """Every link the handoff uses with the pieces that cross it."""
    found: dict[str, Load] = {}
    for piece in case.pieces:
        shares: dict[str, tuple[Link, float]] = {}
        for way in case.routes[piece.sender, piece.receiver]:
            for link in way.links:
                shares[link_name(link)] = link, shares.get(link_name(link), (link, 0.0))[1] + way.share
        for name, (link, share) in shares.items():
            found.setdefault(name, Load(link, [])).pieces.append((piece, share if share < 1 - 1e-9 else 1))
    return list(found.values())
