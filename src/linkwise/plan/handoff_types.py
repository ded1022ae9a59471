"""What a handoff is asked with and what it answers. Everything here is a frozen value a person can read as JSON."""

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen
from linkwise.engine.base import Refusal
from linkwise.engine.connectors import Replicated


class HandoffOptions(Frozen, frozen=True, kw_only=True):
    """Stated factors of a handoff. None = the connector's own.

    connector: name in engine/facts/connectors.yaml; "" = the engine's default. replicated, per_rank, block_tokens:
    what-ifs over the connector's facts (block_tokens 1 = exact tokens).
    packet_payload_bytes, packet_header_bytes: RoCEv2 at the largest RDMA MTU: 4096 payload, 82 around it (preamble and
        gap 20, Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4; IBTA RoCEv2 annex). InfiniBand: 26 (LRH 8, BTH 12,
        ICRC 4, VCRC 2). message_header_bytes: RETH 16, once a message.
    retry_share: share of the bytes sent again. 0: RDMA's reliable connections resend lost packets only, on a lossless
        fabric almost none.
    decode_device: first device of the decode group; None = the next free node, else next to the prefill group.
    prefill_s: measured prefill time of one prompt; None = the plan's time model.
    """

    connector: str = ""
    replicated: Replicated | None = None
    per_rank: bool | None = None
    block_tokens: int | None = None
    packet_payload_bytes: int = 4096
    packet_header_bytes: int = 82
    message_header_bytes: int = 16
    retry_share: float = 0.0
    decode_device: int | None = None
    prefill_s: float | None = None

    def __post_init__(self) -> None:
        for field, value, low, high in (
            ("block_tokens", self.block_tokens, 1, 65_536),
            ("packet_payload_bytes", self.packet_payload_bytes, 64, 2**20),
            ("packet_header_bytes", self.packet_header_bytes, 0, 4096),
            ("message_header_bytes", self.message_header_bytes, 0, 2**20),
            ("retry_share", self.retry_share, 0, 100),
            ("decode_device", self.decode_device, 0, 10**6),
            ("prefill_s", self.prefill_s, 1e-9, 1e6),
        ):
            if value is not None and not low <= value <= high:  # NaN is refused as well
                raise InputError(f"{field} is {value}", where="handoff", expected=f"{low}..{high}")


class Flow(Frozen, frozen=True, kw_only=True):
    """What one prefill rank sends one decode rank of one state, for one request.

    heads: first and last of the state's heads. share: part of the tokens. messages: contiguous parts of it.
    """

    sender: int
    receiver: int
    state: str
    layers: int
    heads: tuple[int, int]
    share: float
    bytes: int
    messages: int
    route: tuple[str, ...]


class RankShare(Frozen, frozen=True, kw_only=True):
    """One rank's part of a request: what it holds, what it sends or receives, its staging buffer."""

    side: str
    rank: int
    device: int
    held_bytes: int
    moved_bytes: int
    staging_bytes: int


class LinkLoad(Frozen, frozen=True, kw_only=True):
    """A directed link under the handoff. payload and wire: bytes of one request; seconds: the link's time for them.

    effective_Bps carries payload (link efficiency applied), spec_Bps carries wire bytes: whichever takes longer counts.
    """

    link: str
    kind: str
    spec_Bps: float
    effective_Bps: float
    payload_bytes: float
    wire_bytes: float
    seconds: float
    load_Bps: float
    utilization: float


class Handoff(Frozen, frozen=True, kw_only=True):
    """The handoff of one prefill group to one decode group. wait_s: None when it does not keep up.

    kv_bytes: of one request, each state once. crossing_bytes: all that is sent. exposed_s: what prefill cannot hide.
    keeps_up: every link and receiver stays below its capacity at the rate. refused: why the connector would not do it.
    """

    model: str
    engine: str
    connector: str
    source: str
    kv_dtype: str
    prompt_tokens: int
    rate_per_s: float
    prefill: Layout
    decode: Layout
    bytes_per_token: int | None
    kv_bytes: int
    crossing_bytes: int
    messages: int
    flows: tuple[Flow, ...]
    ranks: tuple[RankShare, ...]
    links: tuple[LinkLoad, ...]
    limiting: str
    transfer_s: float
    copy_s: float
    prefill_s: float
    share_of_prefill: float
    exposed_s: float
    utilization: float
    max_rate_per_s: float
    wait_s: float | None
    in_flight_bytes: float | None
    keeps_up: bool
    refused: Refusal | None
    notes: tuple[str, ...]
    not_modelled: tuple[str, ...]
    figures: dict[str, int | float]
