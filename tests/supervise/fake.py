"""A unit without ranks: its next token is a function of all tokens before it, so that a retry can be checked."""

import threading
import time
from collections.abc import Callable

from linkwise.supervise.types import Event, Failed, Fault, Finished, Job, Load, State, Token

VOCAB = 97


def following(tokens: tuple[int, ...]) -> int:
    """The token after these, 1..VOCAB-1: depends on each of them and on how many there are."""
    value = len(tokens)
    for token in tokens[-64:]:
        value = (value * 31 + token + 7) % 1_000_003
    return 1 + value % (VOCAB - 1)


def greedy(prompt: tuple[int, ...], count: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    """What a request gives without a fault."""
    tokens = prompt
    for _ in range(count):
        token = following(tokens)
        if token in stop_ids:
            break
        tokens = (*tokens, token)
    return list(tokens[len(prompt) :])


class _Work:
    def __init__(self, job: Job, sink: Callable[[Event], None]) -> None:
        self.job, self.sink, self.tokens, self.given = job, sink, job.prompt, 0


class FakeUnit:
    """One token per job and round, rounds `pace_s` apart, on a thread of its own. `fail` loses it as a fault would."""

    def __init__(self, name: str, *, pace_s: float = 0.001, up_s: float = 0.01, max_tokens: int = 4096) -> None:
        self.name, self.pace_s, self.up_s, self.max_tokens = name, pace_s, up_s, max_tokens
        self._lock = threading.Lock()
        self._state: State = "stopped"
        self._jobs: dict[str, _Work] = {}
        self._probes: list[Callable[[bool], None]] = []
        self._watch: Callable[[State, Fault | None], None] = lambda state, fault: None
        self._over: threading.Event | None = None
        self.refuse_starts = 0  # the next so many starts fail
        self.frozen = False  # alive, but nothing comes out
        self.progress_s = 0.0
        self.accepted: list[Job] = []
        self.cancelled: list[str] = []
        self.starts = self.stops = 0
        self.doomed = False  # `stop` was called

    @property
    def state(self) -> State:
        return self._state

    @property
    def load(self) -> Load:
        used = sum(len(work.tokens) for work in self._jobs.values())
        return Load(len(self._jobs), 0, 10_000, used, 0, 0, 0, 0)

    def start(self, watch: Callable[[State, Fault | None], None]) -> None:
        self.starts += 1
        over = threading.Event()
        with self._lock:
            self._state, self._watch, self._over, self.frozen = "starting", watch, over, False
        watch("starting", None)
        threading.Thread(target=self._run, args=(watch, over), daemon=True).start()

    def submit(self, job: Job, sink: Callable[[Event], None]) -> None:
        with self._lock:
            if self._state != "ready":
                raise RuntimeError(f"{self.name} is {self._state}")
            self._jobs[job.id] = _Work(job, sink)
            self.accepted.append(job)

    def cancel(self, id: str) -> None:
        with self._lock:
            work = self._jobs.pop(id, None)
            self.cancelled.append(id)
        if work is not None:
            work.sink(Finished(id, "cancelled"))

    def probe(self, answer: Callable[[bool], None]) -> None:
        with self._lock:
            if self._state == "ready":
                self._probes.append(answer)
                return
        answer(False)

    def stop(self) -> None:
        self.stops += 1
        self._end("stopped", None)

    def fail(self, fault: Fault, *, silent: bool = False) -> bool:
        """Lose the unit. silent: it ends without telling its jobs. False when it was not ready."""
        with self._lock:
            if self._state != "ready":
                return False
        self._end("failed", fault, silent=silent)
        return True

    def _end(self, state: State, fault: Fault | None, *, silent: bool = False) -> None:
        with self._lock:
            if self._state in {"stopped", state}:
                return
            self._state = state
            jobs, self._jobs = list(self._jobs.values()), {}
            probes, self._probes = self._probes, []
            if self._over is not None:
                self._over.set()
        for work in () if silent else jobs:
            work.sink(Failed(work.job.id, fault or Fault((), "dead", "stopped")))
        for answer in probes:
            answer(False)
        self._watch(state, fault)

    def _run(self, watch: Callable[[State, Fault | None], None], over: threading.Event) -> None:
        if over.wait(self.up_s):
            return
        if self.refuse_starts:
            self.refuse_starts -= 1
            self._end("failed", Fault((1,), "start", "rank 1 found no weights"))
            return
        with self._lock:
            if over.is_set():
                return
            self._state = "ready"
        watch("ready", None)
        while not over.wait(self.pace_s):
            if self.frozen:
                continue
            with self._lock:
                works, probes = list(self._jobs.values()), self._probes
                self._probes = []
            for answer in probes:
                answer(True)
            for work in works:
                self._advance(work)

    def _advance(self, work: _Work) -> None:
        token = following(work.tokens)
        reason = "stop" if token in work.job.stop_ids else ""
        events: list[Event] = []
        if not reason:
            work.tokens, work.given = (*work.tokens, token), work.given + 1
            events.append(Token(work.job.id, token, work.given - 1))
            if work.given >= work.job.max_tokens or len(work.tokens) >= self.max_tokens:
                reason = "length"
        if reason:
            events.append(Finished(work.job.id, reason))  # type: ignore[arg-type]
            with self._lock:
                if self._jobs.pop(work.job.id, None) is None:
                    return
        for event in events:
            work.sink(event)


def until(condition: Callable[[], bool], bound_s: float = 10.0) -> bool:
    """Wait for it."""
    deadline = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
