"""What a router hands to a serving group and what comes back: jobs, their events, and the fault that ends a group."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

State = Literal["stopped", "starting", "ready", "failed"]
FaultKind = Literal["dead", "stopped", "slow", "error", "start", "map"]


class Sampling(NamedTuple):
    """How the next token is drawn. temperature 0: the most likely one. top_p: smallest set of that mass, 1 = all.

    seed: with the token's position it alone decides a draw, so that a retried request draws the same tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


class Job(NamedTuple):
    """One request as ranks see it. prompt: token ids. stop_ids: tokens that end it (they are not part of the text).

    trace: key of the request in traces (a keyed hash), never its text.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    trace: str = ""


class Fault(NamedTuple):
    """Why a group ended: the ranks at fault (numbers inside the unit; empty = none could be named) and what they did.

    kind: dead (process gone), stopped (alive, no heartbeat), slow (heartbeat, but behind all others), error (said so
    itself), start (did not come up), map (not where the plan puts it). jobs: whose prompts ranks were computing then.
    """

    ranks: tuple[int, ...]
    kind: FaultKind
    message: str
    after_s: float = 0.0
    jobs: tuple[str, ...] = ()


class Token(NamedTuple):
    """The `index`-th new token of a job, from 0."""

    id: str
    token: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks a token for


class Finished(NamedTuple):
    """A job's end. reason: stop (a stop id), length (max_tokens or the longest request), cancelled."""

    id: str
    reason: Literal["stop", "length", "cancelled"]


class Failed(NamedTuple):
    """A job's end by the group's fault. Tokens that were given out stay valid: a retry goes on behind them."""

    id: str
    fault: Fault


Event = Token | Finished | Failed


class Load(NamedTuple):
    """What a unit has at hand, for routing and metrics. KV in tokens. unwritten_events: that its ranks' traces lack."""

    running: int
    waiting: int
    kv_tokens: int
    kv_used_tokens: int
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    unwritten_events: int = 0


class Unit(Protocol):
    """One failure domain: a replica, or a prefill group with its decode group. It lives and dies as a whole.

    Calls do not block and may come from any thread; `start` and `stop` return at once too, and `watch` is told of every
    change: of a fault as soon as the ranks are killed, though the last process may be gone only when `stop` returns.
    `sink` gets a job's events in order, exactly one of Finished and Failed last, from the unit's own thread.
    """

    name: str
    max_tokens: int

    @property
    def state(self) -> State: ...

    @property
    def load(self) -> Load:
        """Its counters never go back, also when the unit is brought up again."""

    @property
    def progress_s(self) -> float:
        """time.monotonic() when a rank last got on with a step, 0.0 = never."""

    def start(self, watch: Callable[[State, Fault | None], None]) -> None:
        """Bring all ranks up (again, after a fault)."""

    def submit(self, job: Job, sink: Callable[[Event], None]) -> None:
        """Queue a job. Raises RuntimeError when the unit is not ready."""

    def cancel(self, id: str) -> None:
        """End a job and free its KV; nothing when it is unknown or over."""

    def probe(self, answer: Callable[[bool], None]) -> None:
        """Produce one throw-away token now, through every rank; answer(False) when the unit cannot."""

    def stop(self) -> None:
        """End all ranks; returns when none is left. Idempotent."""
