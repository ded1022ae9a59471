"""What the driver and its ranks say to each other: typed messages in frames of bounded size over a local socket.

A frame is four bytes of length (big-endian) and one message in MessagePack. The first message of a rank carries a
random token that only the driver and the processes it started know. Nothing here goes through torch.distributed.
"""

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from linkwise.core.layout import Layout
from linkwise.dist.observer import Seen
from linkwise.runtime.steps import Step

MAX_FRAME = 64 * 2**20
MAX_GREETING = 4096  # of a peer that has not shown its token yet
CALL_S = 3600.0  # a call waits for ranks that compute as long as they do; who does not is named long before
_CHUNK = 1 << 18


class UnitSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one unit runs.

    weights: folder. layout: of the serving group; with `prefill` the layout of the group that computes prompts, and
    `layout` that of the group that decodes. layers: of each stage, empty = even. dtype: empty = the weights' own.
    kv_tokens: of each group, all attention replicas together. max_len: longest request, 0 = the model's.
    in_flight: steps under way at once, 0 = one per stage. timeout_s: a rank that does not get on is named within it;
    start_s: of starting. threads: of each rank, 0 = cores / ranks. observe: report
    every call torch.distributed saw. trace: folder for the ranks' trace files, empty = none. name: of the unit.
    """

    weights: str
    layout: Layout
    prefill: Layout | None = None
    layers: tuple[int, ...] = ()
    dtype: str = ""
    kv_tokens: int = 16_384
    block_tokens: int = 16
    max_batched_tokens: int = 2048
    max_seqs: int = 256
    max_len: int = 0
    in_flight: int = 0
    timeout_s: float = 30.0
    start_s: float = 300.0
    backend: str = ""
    threads: int = 0
    observe: bool = False
    trace: str = ""
    name: str = ""

    @property
    def ranks(self) -> int:
        return self.layout.size + (self.prefill.size if self.prefill else 0)

    @property
    def call_s(self) -> float:
        """Bound of one call of a process group."""
        return max(self.timeout_s, CALL_S)


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank is and what it holds. numa: node of its device, cores_numa: of its cores, -1 = unknown.

    cores: those it may run on.
    """

    rank: int
    pid: int
    host: str
    machine: str
    device: str
    uuid: str = ""
    bus: str = ""
    numa: int = -1
    cores_numa: int = -1
    cores: tuple[int, ...] = ()
    backend: str = ""
    transport: str = ""
    weight_bytes: int = 0
    kv_bytes: int = 0


# Of a rank. Times are time.monotonic_ns(), which the processes of one machine share.


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message. port: where this rank serves the store in which ranks meet (rank 0), 0 = it does not."""

    rank: int
    token: str
    pid: int
    port: int = 0


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """Weights are loaded, groups made."""

    facts: RankFacts


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Alive. step: the last one begun, -1 = none. calls: finished, and pieces of steps computed, so far.
    waiting: role of the call under way. cpu_ns: processor time of the thread that runs steps, 0 = says nothing.
    unwritten: events that its trace lacks so far; trouble: why nothing is written to it now, empty = all is well.
    """

    step: int
    calls: int
    waiting: str
    at_ns: int
    cpu_ns: int = 0
    unwritten: int = 0
    trouble: str = ""


class Began(msgspec.Struct, frozen=True, array_like=True, tag="began"):
    """A step was begun."""

    step: int
    at_ns: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A step is done. waited_ns: the part of it spent in calls. drawn: (row of the batch, token) on sampling ranks."""

    step: int
    took_ns: int
    waited_ns: int
    drawn: tuple[tuple[int, int], ...] = ()
    seen: tuple[Seen, ...] = ()


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """This rank's part of a handover is done."""

    request: int
    took_ns: int
    seen: tuple[Seen, ...] = ()


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answer to Ping, from the loop that runs steps."""

    number: int
    at_ns: int


class Trouble(msgspec.Struct, frozen=True, array_like=True, tag="trouble"):
    """The rank ends. own: by its own fault; else a call failed, which may be another's. code: exit code (DESIGN §3)."""

    message: str
    where: str
    expected: str
    own: bool
    code: int


FromRank = Hello | Ready | Beat | Began | Ended | Moved | Pong | Trouble

# Of the driver.


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """What to be. host, port: of the store."""

    spec: UnitSpec
    host: str
    port: int


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """The next step of the rank's group. traces: keys of the batch's requests, by attention replica and row."""

    step: Step
    traces: tuple[tuple[str, ...], ...] = ()


class Move(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """A request's KV goes from the prefill group's blocks to the decode group's. tokens: positions computed.

    queued_ns: when its prompt was done. allocate_ns: what getting its blocks took, without the wait for free ones.
    """

    request: int
    tokens: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    trace: str = ""
    queued_ns: int = 0
    allocate_ns: int = 0


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Answer when it is your turn."""

    number: int


class Here(msgspec.Struct, frozen=True, array_like=True, tag="here"):
    """The driver lives. Sent all the time, so that ranks elsewhere know when it does not."""


class Quit(msgspec.Struct, frozen=True, array_like=True, tag="quit"):
    """End well."""


ToRank = Begin | Run | Move | Ping | Here | Quit

_ENCODER = msgspec.msgpack.Encoder()
FROM_RANK: "msgspec.msgpack.Decoder[FromRank]" = msgspec.msgpack.Decoder(FromRank)
TO_RANK: "msgspec.msgpack.Decoder[ToRank]" = msgspec.msgpack.Decoder(ToRank)
T = TypeVar("T")


class Broken(Exception):
    """The other end is gone, or does not speak as agreed."""


def new_token() -> str:
    return secrets.token_hex(16)


def same_token(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def frame(message: Any) -> bytes:
    """A message as it goes over the socket. ValueError when it is larger than a frame may be."""
    body = _ENCODER.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes; at most {MAX_FRAME}")
    return len(body).to_bytes(4, "big") + body


class Frames(Generic[T]):
    """Bytes in, messages out. limit: bytes of one message; raise it once the peer is known."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]", limit: int = MAX_GREETING) -> None:
        self._decoder, self.limit = decoder, limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """Messages that are complete. Broken when one is too large or not as agreed."""
        self._bytes += data
        while len(self._bytes) >= 4:
            size = int.from_bytes(self._bytes[:4], "big")
            if size > self.limit:
                raise Broken(f"a message of {size} bytes; at most {self.limit}")
            if len(self._bytes) < 4 + size:
                return
            body = bytes(self._bytes[4 : 4 + size])
            del self._bytes[: 4 + size]
            try:
                yield self._decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise Broken(f"a message that is none: {error}"[:200]) from None


class Line:
    """A rank's end of the socket. Any thread may send; one reads."""

    def __init__(self, host: str, port: int, timeout_s: float = 20.0) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise Broken(f"the driver does not answer at {host}:{port}: {error}") from None
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        data = frame(message)
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError as error:
            raise Broken(f"the driver is gone: {error}") from None

    def messages(self) -> Iterator[ToRank]:
        """What the driver says, until it is gone."""
        frames: Frames[ToRank] = Frames(TO_RANK, MAX_FRAME)
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except OSError as error:
                raise Broken(f"the driver is gone: {error}") from None
            if not data:
                return
            yield from frames.feed(data)

    def close(self) -> None:
        self._socket.close()


class Channel:
    """The driver's end of a rank's socket: never waits. `want` bytes that could not be sent yet go with `flush`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.frames: Frames[FromRank] = Frames(FROM_RANK)
        self._left = bytearray()

    @property
    def want(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return bool(self._left)

    def send(self, data: bytes) -> None:
        """A frame. Broken when the peer is gone, or takes nothing for so long that its backlog is a frame's bound."""
        self._left += data
        if len(self._left) > 2 * MAX_FRAME:
            raise Broken("it takes no messages")
        self.flush()

    def flush(self) -> None:
        try:
            while self._left:
                del self._left[: self.socket.send(self._left[:_CHUNK])]
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken(f"its socket is closed: {error}") from None

    def receive(self) -> list[FromRank]:
        """Messages that have come. Broken when the peer is gone; those before are not lost: ask `receive` first."""
        found: list[FromRank] = []
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return found
        except OSError as error:
            raise Broken(f"its socket is closed: {error}") from None
        if not data:
            raise Broken("its socket is closed")
        found.extend(self.frames.feed(data))
        return found

    def part(self, deadline: float) -> list[FromRank]:
        """Say the last words and wait, until time.monotonic() is `deadline`, for the peer to leave; returns its own.

        A socket that is closed with something unread takes what it has sent back from a peer that has not read it yet.
        """
        found: list[FromRank] = []
        with contextlib.suppress(OSError, Broken):
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            self.socket.sendall(self._left)
            self.socket.shutdown(socket.SHUT_WR)
            while (data := self.socket.recv(_CHUNK)) and time.monotonic() < deadline:
                found.extend(self.frames.feed(data))
                self.socket.settimeout(max(0.001, deadline - time.monotonic()))
        return found

    def close(self) -> None:
        self.socket.close()
