"""One life of a unit's ranks, from their start to their end, seen by the driver's thread.

It never waits for a rank: sockets are read when there is something to read, and whoever does not answer is found by the
clock. It ends in order, or with the one fault that explains what was seen.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from linkwise.dist.observer import Seen
from linkwise.runtime.arrivals import Arrivals, Laggards
from linkwise.runtime.control import (
    Beat,
    Began,
    Begin,
    Ended,
    FromRank,
    Here,
    Move,
    Moved,
    Ping,
    Pong,
    Quit,
    RankFacts,
    Ready,
    Run,
    ToRank,
    Trouble,
    UnitSpec,
    frame,
)
from linkwise.runtime.ends import Ends, Over, overdue
from linkwise.runtime.health import View, judge, unheard
from linkwise.runtime.local import Launched
from linkwise.runtime.peers import Peers
from linkwise.runtime.pools import Open, Pool
from linkwise.runtime.scheduler import Request
from linkwise.runtime.steps import Step
from linkwise.supervise.types import Event, Finished, Job

TICK_S = 0.05  # between two looks at the clock
PING_S = 1.0  # between two questions to idle ranks
HERE_S = 0.25  # between two signs of life of the driver
LATE_S = 1.0  # the driver itself was held up: silence proves nothing then
GRACE_S = 3.0  # for ranks that were asked to end
WRITTEN_S = 10.0  # without trouble, before traces are said to be written again
MAX_OBSERVED = 100_000
WARM_UP = "\0warm-up"


class Observed(NamedTuple):
    """What torch.distributed saw of a step, or of a handover (step None), by rank of the unit. first: of the group."""

    step: Step | None
    move: Move | None
    first: int
    seen: dict[int, tuple[Seen, ...]]


@dataclass
class _Moving:
    request: Request
    target: list[int]
    waiting: set[int]


class Group:
    """The ranks while they live. deliver: takes events of jobs. told: is called when all ranks are ready. say: takes a
    line about a rank that holds the others up, or no longer does.
    """

    def __init__(
        self,
        spec: UnitSpec,
        pools: list[Pool],
        launched: Launched,
        deliver: Callable[[Event], None],
        told: Callable[[], None],
        say: Callable[[str], None],
        host: str,
    ) -> None:
        self.spec, self.pools, self.launched, self._deliver, self._told = spec, pools, launched, deliver, told
        self._say = say
        self._untraced = 0.0  # when traces were last seen not to be written, which was said; 0 = they are
        self.facts: dict[int, RankFacts] = {}
        self.observed: list[Observed] = []
        stages = [stage for pool in pools for stage in pool.stages]
        self.arrivals, self._laggards = Arrivals(stages), Laggards(stages)
        now = time.monotonic()
        self.views = [View(rank, now, now) for rank in range(spec.ranks)]
        self._peers = Peers(host, spec.ranks, self._hear, self._lost, self._begin)
        self._ends = Ends(self.views, launched, spec.timeout_s)
        self._moving: dict[int, _Moving] = {}
        self._queued: dict[int, int] = {}  # for a handover since, by request
        self.ready = False  # a first token has come through all ranks
        self._met: set[int] = set()  # ranks that have called
        self._began = self._looked = self._pinged = self._compared = self._shown = now
        self._pings = 0

    @property
    def loaded(self) -> bool:
        """All ranks have their part of the model."""
        return len(self.facts) == self.spec.ranks

    def wake_by(self, source: socket.socket) -> None:
        """Another socket that ends a turn when it can be read."""
        self._peers.wake_by(source)

    def start(self) -> None:
        self.launched.start(*self._peers.address)

    def turn(self) -> None:
        """Look at everything once; waits a moment when there is nothing. Raises Over."""
        self._feed()
        self._peers.poll(TICK_S)
        now = time.monotonic()
        if now - self._looked >= TICK_S or self._ends.sign:
            self._look(now)

    def settle(self) -> None:
        """Let ranks finish what they are at, if that is soon: a text is done before the last of them is."""
        deadline = time.monotonic() + GRACE_S
        while self.ready and not self.idle and not self._ends.sign and time.monotonic() < deadline:
            self._peers.poll(TICK_S)

    def close(self, *, kindly: bool) -> None:
        """Let the ranks end. kindly: in order, if they do not take long; else at once."""
        if kindly:
            with contextlib.suppress(Over):
                self._all(Quit())
        else:
            self.launched.kill()

    def bury(self, *, kindly: bool) -> None:
        """Returns when no rank is left."""
        deadline = time.monotonic() + (GRACE_S if kindly else 0.0)
        if kindly:
            self._peers.part(deadline)
        self.launched.reap(max(0.0, deadline - time.monotonic()))
        self._peers.close()

    def _begin(self) -> None:
        self._all(Begin(self.spec, self._peers.host, self._peers.store_port))

    def _all(self, message: ToRank) -> None:
        data = frame(message)
        for rank in range(self.spec.ranks):
            self._peers.send(rank, data)

    # Messages

    def _hear(self, rank: int, message: FromRank) -> None:
        now = time.monotonic()
        view = self.views[rank]
        view.heard = now
        self._met.add(rank)
        if isinstance(message, Beat):
            view.beat(message, now)
        elif isinstance(message, Began):
            if self.ready:
                self.arrivals.began(rank, message.step, message.at_ns)
        elif isinstance(message, Ended):
            view.finish(now)
            if self.ready:
                self.arrivals.ended(rank, message.step, message.took_ns - message.waited_ns)
            self._ended(rank, message)
        elif isinstance(message, Moved):
            view.finish(now)
            self._moved(rank, message)
        elif isinstance(message, Pong):
            view.finish(now)
            self.arrivals.began(rank, -message.number, message.at_ns)
        elif isinstance(message, Ready):
            self.facts[rank] = message.facts
            if self.loaded:
                self._warm_up()
        elif isinstance(message, Trouble):
            self._ends.trouble(rank, message, now)

    def _warm_up(self) -> None:
        """A first token through every rank: what a library does at its first call is no rank's fault later."""
        tokens = len(self.pools)  # a second one is drawn behind a handover
        self.pools[0].scheduler.add(Job(WARM_UP, (0,), tokens), urgent=True)

    def _tell(self, event: Event) -> None:
        if event.id != WARM_UP:
            self._deliver(event)
        elif isinstance(event, Finished):
            now = time.monotonic()
            for view in self.views:
                view.heard = view.changed = now
            self.ready = True
            self._told()

    def _pool(self, rank: int) -> Pool:
        return next(pool for pool in self.pools if rank in pool.ranks)

    def _ended(self, rank: int, message: Ended) -> None:
        pool = self._pool(rank)
        if self.spec.observe:
            self._note(rank, message.step, None, pool.first, message.seen)
        step = pool.open.get(message.step)
        if step is None or rank not in step.waiting:
            return
        step.waiting.discard(rank)
        step.drawn.update({(pool.replica[rank], row): token for row, token in message.drawn})
        if not step.waiting:
            del pool.open[message.step]
            for event in pool.scheduler.complete(message.step, step.drawn):
                self._tell(event)

    def _note(self, rank: int, number: int, move: int | None, first: int, seen: tuple[Seen, ...]) -> None:
        for one in reversed(self.observed):
            same = one.move.request == move if one.move else one.step is not None and one.step.number == number
            if one.first == first and same and (one.move is None) == (move is None):
                one.seen[rank] = seen
                return

    def _lost(self, rank: int, why: str) -> None:
        self._ends.lost(rank, why, time.monotonic())

    # Work

    def give(self, ranks: Iterable[int], message: ToRank) -> None:
        """A piece of work that each of these ranks will answer."""
        data, now = frame(message), time.monotonic()
        for rank in ranks:
            self.views[rank].give(now)
            self._peers.send(rank, data)

    def _feed(self) -> None:
        if not self.loaded or self._ends.sign:
            return
        for pool in self.pools:
            while (step := pool.scheduler.schedule()) is not None:
                # What is observed is compared whole: a step is then over when every rank has told of it.
                pool.open[step.number] = Open(set(pool.ranks if self.spec.observe else pool.samplers))
                if self.spec.observe and self.ready and len(self.observed) < MAX_OBSERVED:
                    self.observed.append(Observed(step, None, pool.first, {}))
                traces = pool.scheduler.traces(step.number) if self.spec.trace else ()
                self.give(pool.ranks, Run(step, traces))
        if len(self.pools) == 2:
            self._hand_over(*self.pools)

    def _hand_over(self, source: Pool, target: Pool) -> None:
        for request in source.scheduler.leaving:
            if request.busy:
                continue
            began = time.monotonic_ns()
            self._queued.setdefault(request.number, began)
            blocks = target.scheduler.reserve(request)
            if blocks is None:
                return
            request.busy = True
            took = time.monotonic_ns() - began
            given, taken = tuple(request.blocks[: len(blocks)]), tuple(blocks)
            queued = self._queued.pop(request.number)
            move = Move(request.number, request.computed, given, taken, request.job.trace, queued, took)
            self._moving[request.number] = _Moving(request, blocks, set(range(self.spec.ranks)))
            if self.spec.observe and self.ready and len(self.observed) < MAX_OBSERVED:
                self.observed.append(Observed(None, move, 0, {}))
            self.give(range(self.spec.ranks), move)

    def _moved(self, rank: int, message: Moved) -> None:
        moving = self._moving[message.request]
        moving.waiting.discard(rank)
        if self.spec.observe:
            self._note(rank, -1, message.request, 0, message.seen)
        if moving.waiting:
            return
        del self._moving[message.request]
        source, target = (pool.scheduler for pool in self.pools)
        over = moving.request.job.id not in source.open
        source.leave(moving.request)
        if over:
            target.release(moving.target)
        else:
            target.adopt(moving.request, moving.target)

    # Health

    def _look(self, now: float) -> None:
        late, self._looked = now - self._looked, now
        if late > LATE_S:
            for view in self.views:
                view.heard, view.changed = view.heard + late, view.changed + late
            self._ends.forget_halts()
        if now - self._shown > HERE_S:
            self._shown = now
            self._all(Here())
        self._ends.look(now, ready=self.ready)
        self._look_at_traces(now)
        if not self.ready:
            self._rises(now)
            return
        if self._ends.sign:
            return
        fault = judge(self.views, now, self.spec.timeout_s)
        if fault:
            raise Over(fault)
        if now - self._compared > PING_S:
            self._compared = now
            for line in self._laggards.compare(self.arrivals.table(), now):
                self._say(line)
        if now - self._pinged > PING_S and self.idle:
            self._pinged = now
            self._pings += 1
            self.give(range(self.spec.ranks), Ping(self._pings))

    def _rises(self, now: float) -> None:
        """Raises Over for ranks that will not come up: silent since they have called, or overdue."""
        spec = self.spec
        silence = unheard([view for view in self.views if view.rank in self._met], now, 0.75 * spec.timeout_s)
        if silence is not None and not self._ends.sign:
            raise Over(silence._replace(kind="start"))
        if now - self._began > spec.start_s:
            # Those that have called cannot begin before the others have.
            here = self._met if len(self._met) < spec.ranks else self.facts
            missing = tuple(rank for rank in range(spec.ranks) if rank not in here)
            raise Over(overdue(self.views, missing, now, start_s=spec.start_s, timeout_s=spec.timeout_s))

    def _look_at_traces(self, now: float) -> None:
        """Say it when ranks' traces are no longer written, and when they are again, for a while: a disk that is nearly
        full takes a little now and then."""
        view = next((view for view in self.views if view.trouble), None)
        if view is not None:
            if not self._untraced:
                self._say(f"traces are not written: rank {view.rank}: {view.trouble}; the ranks go on without")
            self._untraced = now
        elif self._untraced and now - self._untraced > WRITTEN_S:
            self._say(f"traces are written again; {self.unwritten:,} events are missing")
            self._untraced = 0.0

    @property
    def unwritten(self) -> int:
        """Events that the ranks' traces lack."""
        return sum(view.unwritten for view in self.views)

    @property
    def idle(self) -> bool:
        """No work is under way."""
        return all(view.given == view.done for view in self.views)
