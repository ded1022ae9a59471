"""Requests over units that come and go: each has one owner at every moment, moves on when its unit is lost, ends once.

A request that moves goes on behind the tokens it has given out: the next unit gets the prompt and those tokens. Greedy
and seeded draws depend on the position alone, so the text is the one that no fault would have changed.

Threads: one mailbox owns all decisions and makes every call into a unit. Tokens are passed on by the unit's own thread
under the lock. Sinks are called under the lock: they must return at once and never call back.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from linkwise.core.errors import LinkwiseError
from linkwise.supervise.checks import Checks
from linkwise.supervise.fleet import Fleet, Listener, Record
from linkwise.supervise.health import Health, described
from linkwise.supervise.mailbox import Mailbox
from linkwise.supervise.ownership import Attempt, Book, Ending
from linkwise.supervise.request import Placed, Refused, Request, Sink
from linkwise.supervise.router import Router
from linkwise.supervise.rules import Rules
from linkwise.supervise.types import Event, Failed, Fault, Finished, Job, Load, Token, Unit

__all__ = ["Placed", "Refused", "Supervisor"]

CHARGED = 512  # tokens still to come that count as a request's work: nobody knows how many it will really be
MOST_SLOW = 2  # units that one prompt may cost: what it does to two it does to all
REFUSED_S = 0.02  # before a unit that was ready but refused a job is asked again


class Supervisor:
    """The door of a service: `submit` and `cancel` from any thread, events to the sink given.

    A sink gets Placed whenever the request goes to a unit, Token in order (index from 0 over all tries), and exactly
    one of Finished and Failed last.
    """

    def __init__(
        self, units: Sequence[Unit], rules: Rules | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        self.rules = rules or Rules()
        self._lock = threading.Lock()
        self._book = Book()
        self._router = Router([unit.name for unit in units])
        self._requests: dict[str, Request] = {}
        self._waiting: dict[str, None] = {}  # in order of arrival
        self._outstanding = {unit.name: 0 for unit in units}
        self._first = 0  # live requests without a token
        self._idle = threading.Condition(self._lock)
        self._stopping = False
        self._say = say or (lambda line: None)
        self.faults: Counter[str] = Counter()
        self.retries = 0
        self.bugs: list[str] = []
        self._mailbox = Mailbox("linkwise-supervise", self._bug)
        self._fleet = Fleet(units, self.rules, self._mailbox, Listener(self._up, self._lost, self._say))
        self._checks = Checks(self._fleet, self.rules, self._mailbox, self._busy)

    # -- what a server reads

    @property
    def ready(self) -> bool:
        """Does at least one unit serve, and are requests taken?"""
        return not self._stopping and "ready" in self._fleet.phases().values()

    @property
    def stopping(self) -> bool:
        """Is no more taken, for good?"""
        return self._stopping

    @property
    def hopeful(self) -> bool:
        """Will a unit serve, now or after a restart?"""
        return self._fleet.hopeful

    def why_down(self) -> str:
        """Every unit's state and last fault, in words."""
        return self._fleet.why_down()

    @property
    def records(self) -> tuple[Record, ...]:
        """Losses of units, oldest first (the last 10 000)."""
        return tuple(self._fleet.records)

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest request that every unit takes, prompt included."""
        return min(life.unit.max_tokens for life in self._fleet.lives.values())

    @property
    def live(self) -> int:
        """Requests that are not over."""
        return len(self._book)

    @property
    def waiting(self) -> int:
        """Requests that have no token yet, those in a unit's queue and in prefill included."""
        return self._first

    @property
    def stale(self) -> int:
        """Events that came from attempts which owned nothing any more, and were ignored."""
        return self._book.stale

    @property
    def affine(self) -> int:
        """Requests that went to a unit which knew their beginning."""
        return self._router.hits

    def queued(self) -> int:
        """Requests that no unit has."""
        with self._lock:
            return self._book.queued()

    def endings(self) -> Mapping[Ending, int]:
        """Requests that are over, by how; checks the book on the way (InternalError)."""
        with self._lock:
            self._book.check()
            return dict(self._book.over)

    def loads(self) -> dict[str, Load]:
        """By unit, as the units say it."""
        return {name: life.unit.load for name, life in self._fleet.lives.items()}

    def phases(self) -> dict[str, str]:
        return dict(self._fleet.phases())

    def restarts(self) -> dict[str, int]:
        return {name: life.restarts for name, life in self._fleet.lives.items()}

    def retry_after_s(self) -> float:
        """When a refused request may be worth another try: as long as the last restart took, 1 to 60 s. 0: never."""
        if not self._fleet.hopeful:
            return 0.0
        took = [record.down_s for record in self.records[-8:] if record.down_s is not None]
        return min(60.0, max(1.0, took[-1] if took else 2.0))

    def probe(self, answer: Callable[[Health], None], bound_s: float = 0.0) -> None:
        """Can a token be produced now? Answers once, within the bound (0: the rules'), on a thread of ours."""
        bound = bound_s or self.rules.probe_s
        self._mailbox.post(lambda: self._checks.probe(answer, bound))

    # -- what a server does

    def start(self) -> None:
        """Bring all units up; returns at once."""
        self._mailbox.start()
        self._mailbox.post(self._fleet.start)
        self._mailbox.post(self._checks.watch)

    def submit(self, job: Job, sink: Sink) -> None:
        """Take a request. Raises Refused, after which the sink is never called."""
        with self._lock:
            if self._stopping:
                raise Refused("the service is stopping", full=False, retry_s=self.retry_after_s())
            if self._first >= self.rules.max_waiting:
                raise Refused(f"{self._first} requests wait already", full=True, retry_s=1.0)
            serving = "ready" in self._fleet.phases().values()
            if not serving and (self.rules.on_fault == "reject" or not self._fleet.hopeful):
                raise Refused(self._fleet.why_down(), full=False, retry_s=self.retry_after_s())
            self._book.admit(job.id)
            request = Request(job, sink, self._router.hashes(job.prompt))
            self._requests[job.id] = request
            self._first += 1
        self._mailbox.post(lambda: self._place(request))

    def cancel(self, id: str) -> None:
        """End a request now, as cancelled, and free what it holds; nothing when it is over."""
        with self._lock:
            request = self._requests.get(id)
            if request is None:
                return
            attempt = self._book.owner(id)
            self._end(request, "cancelled", Finished(id, "cancelled"))
        if attempt is not None:
            unit = self._fleet.lives[attempt.unit].unit
            self._mailbox.post(lambda: unit.cancel(attempt.job))

    def drain(self, bound_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Take no more, and give live requests so long to end, less when `hurry` says so; then cancel the rest."""
        deadline = time.monotonic() + bound_s
        with self._lock:
            self._stopping = True
            while self._requests and time.monotonic() < deadline and not hurry():
                self._idle.wait(0.05)
            rest = list(self._requests)
        for id in rest:
            self.cancel(id)

    def stop(self) -> None:
        """Cancel what is live and end all units; returns when none is left. Idempotent."""
        self.drain(0.0)
        self._fleet.stop()
        self._mailbox.close()

    # -- the mailbox's thread

    def _place(self, request: Request) -> None:
        # Units are asked outside the lock: they may hold one of their own while they call a sink.
        lives = self._fleet.lives.items()
        ready = {name for name, life in lives if life.phase == "ready" and life.unit.state == "ready"}
        with self._lock:
            id = request.job.id
            self._waiting.pop(id, None)
            if id not in self._book or self._book.owner(id) is not None:
                return
            if self._complete(request):
                return
            unit = self._choose(request, ready)
            if unit is None:
                self._wait(request)
                return
            attempt = self._book.give(id, unit)
            given = len(request.given)
            request.base, request.last_unit = given, unit
            request.charge = len(request.job.prompt) + given + min(CHARGED, request.job.max_tokens - given)
            self._outstanding[unit] += request.charge
            job = request.job._replace(
                id=attempt.job,
                prompt=(*request.job.prompt, *request.given),
                max_tokens=request.job.max_tokens - given,
            )
            request.sink(Placed(id, unit, attempt.retry, request.cause))
        try:
            self._fleet.lives[unit].unit.submit(job, partial(self._event, request, attempt))
            request.wait_s = 0.0
        except RuntimeError:  # it was lost a moment ago and the news is on its way
            self._return(request, attempt)
            request.refused += 1
            if request.refused * REFUSED_S > self.rules.wait_s:
                self._fail(request, Fault((), "error", f"{unit} says it is ready and takes nothing"))
            self._mailbox.after(REFUSED_S, lambda: self._place(request))
        except LinkwiseError as error:
            self._return(request, attempt)
            self._fail(request, Fault((), "error", str(error)))

    def _complete(self, request: Request) -> bool:
        """All its tokens were given out before the news of its end was lost."""
        given, job = len(request.given), request.job
        if given and (given >= job.max_tokens or len(job.prompt) + given >= self.max_tokens):
            self._end(request, "length", Finished(job.id, "length"))
            return True
        return False

    def _choose(self, request: Request, ready: set[str]) -> str | None:
        moved = request.cause is not None
        if moved and self.rules.on_fault == "restart":
            same = request.last_unit
            # A unit that stays down cannot be waited for; the request then moves on.
            if self._fleet.phases()[same] != "given up":
                ready = ready & {same}
        elif moved and len(ready) > 1:
            ready = ready - {request.last_unit}  # news of its end may still be on the way
        if not ready:
            return None
        return self._router.pick({name: self._outstanding[name] for name in ready}, request.hashes)

    def _wait(self, request: Request) -> None:
        if not self._fleet.hopeful:
            self._end(request, "failed", self._unserved(request, "no unit will serve any more"))
            return
        # Units come and go meanwhile: the wait ends with a unit that takes the request, or at the time set first.
        if not request.wait_s:
            request.wait_s = until = time.monotonic() + self.rules.wait_s
            self._mailbox.after(self.rules.wait_s, lambda: self._waited(request, until))
        elif request.wait_s <= time.monotonic():
            self._end(request, "failed", self._unserved(request, f"no unit came up within {self.rules.wait_s:g} s"))
            return
        self._waiting[request.job.id] = None

    def _waited(self, request: Request, until: float) -> None:
        with self._lock:
            if request.wait_s == until and request.job.id in self._waiting:
                del self._waiting[request.job.id]
                self._end(request, "failed", self._unserved(request, f"no unit came up within {self.rules.wait_s:g} s"))

    def _unserved(self, request: Request, words: str) -> Failed:
        """Its end where no unit takes it; what ended its last try is told as well."""
        after = f" after {request.last_unit} was lost ({described(request.cause)})" if request.cause else ""
        return Failed(request.job.id, Fault((), "start", f"{words}{after}: {self._fleet.why_down()}"))

    def _up(self, name: str) -> None:
        with self._lock:
            requests = [self._requests[id] for id in self._waiting]
        for request in requests:
            self._place(request)

    def _lost(self, name: str, fault: Fault) -> None:
        with self._lock:
            self.faults[fault.kind] += 1
            self._router.forget(name)
            attempts = self._book.on(name)
            requests = [self._requests[a.request] for a in attempts]
        for request, attempt in zip(requests, attempts, strict=True):
            self._over(request, attempt, fault)
        if not self._fleet.hopeful:
            self._up(name)  # those that wait are told that nothing will come

    def _over(self, request: Request, attempt: Attempt, fault: Fault) -> None:
        """The attempt has failed: on to the next one, or the end."""
        if not self._return(request, attempt):
            return
        request.slow += attempt.job in fault.jobs
        if request.slow >= MOST_SLOW:
            words = (
                f"{request.slow} units were lost while they computed this prompt of {len(request.job.prompt):,} tokens"
            )
            self._fail(request, fault._replace(message=f"{words}, and no other one is tried: {fault.message}"))
            return
        if self.rules.on_fault == "reject" or request.retries >= self.rules.retries:
            self._fail(request, fault)
            return
        with self._lock:
            request.retries += 1
            request.cause = fault
            self.retries += 1
        self._place(request)

    def _return(self, request: Request, attempt: Attempt) -> bool:
        with self._lock:
            if not self._book.owns(attempt):
                return False
            self._book.take_back(attempt)
            self._uncharge(request, attempt.unit)
            return True

    def _fail(self, request: Request, fault: Fault) -> None:
        with self._lock:
            if request.job.id in self._book:
                self._end(request, "failed", Failed(request.job.id, fault))

    def _busy(self, unit: str) -> bool:
        with self._lock:
            return bool(self._book.on(unit))

    # -- the units' threads

    def _event(self, request: Request, attempt: Attempt, event: Event) -> None:
        with self._lock:
            if not self._book.owns(attempt):
                self._book.stale += 1
                return
            if isinstance(event, Token):
                self._token(request, attempt, event)
                return
            if isinstance(event, Finished):
                self._uncharge(request, attempt.unit)
                self._end(request, event.reason, Finished(request.job.id, event.reason))
                return
        self._mailbox.post(lambda: self._over(request, attempt, event.fault))

    def _token(self, request: Request, attempt: Attempt, event: Token) -> None:
        index = len(request.given)
        if event.index != index - request.base:
            words = f"token {event.index} came where {index - request.base} was due"
            self._mailbox.post(lambda: self._over(request, attempt, Fault((), "error", words)))
            return
        if not index:
            self._first -= 1
        less = len(request.job.prompt) + request.base if index == request.base else 0
        less += request.charge - less > 0
        request.charge -= less
        self._outstanding[attempt.unit] -= less
        self._fleet.lives[attempt.unit].last_s = time.monotonic()
        request.given.append(event.token)
        request.sink(Token(request.job.id, event.token, index))

    # -- under the lock

    def _uncharge(self, request: Request, unit: str) -> None:
        self._outstanding[unit] -= request.charge
        request.charge = 0

    def _end(self, request: Request, how: Ending, event: Event) -> None:
        id = request.job.id
        attempt = self._book.owner(id)
        if attempt is not None:
            self._uncharge(request, attempt.unit)
        self._book.end(id, how)
        del self._requests[id]
        self._waiting.pop(id, None)
        if not request.given:
            self._first -= 1
        request.sink(event)
        if not self._requests:
            self._idle.notify_all()

    def _bug(self, error: Exception) -> None:
        self.bugs.append(f"{type(error).__name__}: {error}"[:500])
        self._say(f"internal error in the supervisor: {self.bugs[-1]}")
