"""What happened, per rank: the one schema that our runs and readers of other people's files give.

Times are nanoseconds of the rank's own monotonic clock; anchors tie them to the time of day. No event holds the text
of a prompt or an answer, nor a token: requests appear under a keyed hash of their id.
"""

import hashlib
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen

if TYPE_CHECKING:
    from linkwise.trace.calls import Calls

TRACE_SCHEMA = "linkwise.trace/1"

Name = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[int, Meta(ge=-1, le=2**62)]  # -1: none
Key = Annotated[str, Meta(max_length=64, pattern="^[0-9a-f]*$")]
Members = Annotated[tuple[Annotated[int, Meta(ge=0, le=2**20)], ...], Meta(max_length=65_536)]
State = Literal["done", "started", "scheduled", "failed"]


class Event(NamedTuple):
    """One call on a process group as one rank saw it.

    op: all_reduce, all_gather, reduce_scatter, all_to_all, send, recv, ... role: its place in the step (attn.out),
    empty = not known. group: key of `Head.groups`. sequence: number of the call in its group on this rank, from 0.
    S_bytes: DESIGN §3. peer: world rank of a send or recv, else -1. step: engine step, -1 = outside. Times: 0 = not
    known, or not yet. state: done; started (on its way when the record ends); scheduled (queued, not begun); failed.
    """

    step: int
    group: str
    role: str
    op: str
    sequence: int
    S_bytes: int
    dtype: str
    peer: int
    created_ns: int
    started_ns: int
    ended_ns: int
    state: State


class Batch(NamedTuple):
    """What a rank computed in one engine step: its rows' requests (keyed hashes) and their new tokens.

    began_ns, ended_ns: of the step on this rank; 0 = not over.
    """

    step: Number
    began_ns: Count
    requests: Annotated[tuple[Key, ...], Meta(max_length=65_536)]
    tokens: Annotated[tuple[Count, ...], Meta(max_length=65_536)]
    ended_ns: Count = 0


class Handoff(NamedTuple):
    """A prompt's KV on its way from prefill to decode, as one rank took part in it.

    side: send or take. queued_ns: from when it waited; began_ns, ended_ns: of its transfers. S_bytes: of this rank's
    pieces. serialise_ns: copying blocks into messages, or out of them. allocate_ns: getting the blocks they go to.
    attempt: from 0. owner: who answers for the request should this attempt fail.
    """

    request: Key
    side: Literal["send", "take"]
    peers: Members
    queued_ns: Count
    began_ns: Count
    ended_ns: Count
    S_bytes: Count
    serialise_ns: Count
    allocate_ns: Count
    attempt: Count
    owner: Literal["prefill", "decode", "router", ""]


class Anchor(NamedTuple):
    """The same moment on the rank's monotonic clock and in Unix time."""

    monotonic_ns: Count
    unix_ns: Count


class Head(Frozen, frozen=True, kw_only=True):
    """What stays the same about a rank. rank: in its unit (world of the run) of `world` ranks. unit: its replica.

    pool: prefill, decode, or both. shard: its place on every axis of the layout. layers: first and end of its stage's.
    groups: axis or name -> members as world ranks. transport: what carries its calls. clock: the machine whose clock
    its times are of, "" = not said; records with the same one share a clock, whatever their hosts are called.
    """

    schema: Literal["linkwise.trace/1"] = TRACE_SCHEMA  # type: ignore[assignment]
    rank: Annotated[int, Meta(ge=0, le=2**20)]
    world: Annotated[int, Meta(ge=1, le=2**20)]
    unit: Name = ""
    pool: Literal["prefill", "decode", "both"] = "both"
    host: Name = ""
    device: Name = ""
    uuid: Name = ""
    transport: Name = ""
    shard: Annotated[dict[Name, Count], Meta(max_length=64)] = {}
    layers: tuple[Count, Count] = (0, 0)
    groups: Annotated[dict[Name, Members], Meta(max_length=4096)] = {}
    anchor: Anchor = Anchor(0, 0)
    pid: Count = 0
    writer: Name = ""
    clock: Name = ""

    def __post_init__(self) -> None:
        if self.rank >= self.world or any(r >= self.world for members in self.groups.values() for r in members):
            raise InputError(f"rank {self.rank} or a member of its groups is none of {self.world}", where="trace")


class Mark(NamedTuple):
    """How far a rank got on a group by its own count, as recorders keep it beside the calls: numbers of its last call
    enqueued, started on the device and completed there; -1 = not known."""

    group: str
    enqueued: int
    started: int
    completed: int


class RankTrace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One rank's record. lost: calls that are known to be missing from it. cut: it ends inside a line.

    calls, batches and handoffs are in the order in which the rank finished or began them. only_open: the record holds
    calls that were not done alone, so that one without an entry is not one that was skipped. busy_ns: of the rows of
    own work in their order, how long of each something ran; () = all of it. format: of the file. polled: ends are when
    somebody looked, up to a tenth of a second late, and starts are true to ends alone. taken_ns: when the record was
    taken, on the rank's clock, 0 = not known. pace: whether calls went on until then, as far as that shows.
    """

    head: Head
    calls: "Calls"
    batches: tuple[Batch, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    marks: tuple[Mark, ...] = ()
    only_open: bool = False
    busy_ns: tuple[int, ...] = ()
    lost: int = 0
    cut: bool = False
    polled: bool = False
    taken_ns: int = 0
    pace: Literal["moving", "still", ""] = ""
    source: str = ""
    format: str = ""

    def unix_ns(self, at_ns: int) -> int:
        """Unix time of a moment on the rank's clock, by the last anchor before it."""
        anchors = self.anchors or (self.head.anchor,)
        place = max(0, bisect_right(anchors, at_ns, key=lambda anchor: anchor.monotonic_ns) - 1)
        return at_ns - anchors[place].monotonic_ns + anchors[place].unix_ns


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks' records of one run."""

    ranks: tuple[RankTrace, ...] = ()


def names_a_host(name: str) -> bool:
    """Whether a host's name tells it from others: "" and what every host may call itself do not."""
    return re.fullmatch(r"(?:localhost(?:\d?\.localdomain\d?)?|127\.0\.0\.1|::1)?", name, re.IGNORECASE) is None


def request_key(id: str, key: bytes) -> str:
    """A request's name in traces: 16 hex digits that say nothing about its id to those without the key.

    Raises InputError for a key that is empty or longer than 64 bytes.
    """
    if not 0 < len(key) <= 64:
        raise InputError(f"a trace key of {len(key)} bytes", expected="1 to 64 bytes")
    return hashlib.blake2b(id.encode(), key=key, digest_size=8).hexdigest()
