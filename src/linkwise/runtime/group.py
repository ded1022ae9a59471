"""One life of a unit's ranks, from their start to their end, seen by the driver's thread.

It never waits for a rank: sockets are read when there is something to read, and whoever does not answer is found by the
clock. It ends in order, or with the one fault that explains what was seen.
"""

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from linkwise.core.errors import InputError, LinkwiseError
from linkwise.dist.observer import Seen
from linkwise.runtime.control import (
    MAX_FRAME,
    Beat,
    Began,
    Begin,
    Broken,
    Channel,
    Ended,
    FromRank,
    Hello,
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
    new_token,
    same_token,
)
from linkwise.runtime.health import Arrivals, View, judge
from linkwise.runtime.local import Launched
from linkwise.runtime.pools import Open, Pool
from linkwise.runtime.scheduler import Request
from linkwise.runtime.steps import Step
from linkwise.supervise.types import Event, Fault, Finished, Job

TICK_S = 0.05  # between two looks at the clock
PING_S = 1.0  # between two questions to idle ranks
HALTED_S = 0.4  # stopped by the system for longer is no debugger's glance
SETTLE_S = 0.05  # from the first sign of an end to its verdict, so that ranks that ended together are named together
BLAME_S = 1.0  # the same when so far only ranks have complained that others are gone
LATE_S = 1.0  # the driver itself was held up: silence proves nothing then
GRACE_S = 3.0  # for ranks that were asked to end
MAX_STRANGERS = 64
MAX_OBSERVED = 100_000
WARM_UP = "\0warm-up"


class Observed(NamedTuple):
    """What torch.distributed saw of a step, or of a handover (step None), by rank of the unit. first: of the group."""

    step: Step | None
    move: Move | None
    first: int
    seen: dict[int, tuple[Seen, ...]]


class Over(Exception):
    """The group's life ends with a fault. error: the same for a command line, when a rank said what is wrong."""

    def __init__(self, fault: Fault, error: LinkwiseError | None = None) -> None:
        super().__init__(fault.message)
        self.fault, self.error = fault, error


@dataclass
class _Moving:
    request: Request
    target: list[int]
    waiting: set[int]


class Group:
    """The ranks while they live. deliver: takes events of jobs. told: is called when all ranks are ready."""

    def __init__(
        self,
        spec: UnitSpec,
        pools: list[Pool],
        launched: Launched,
        deliver: Callable[[Event], None],
        told: Callable[[], None],
        host: str,
    ) -> None:
        self.spec, self.pools, self.launched, self._deliver, self._told = spec, pools, launched, deliver, told
        self.facts: dict[int, RankFacts] = {}
        self.observed: list[Observed] = []
        self.arrivals = Arrivals([stage for pool in pools for stage in pool.stages])
        now = time.monotonic()
        self.views = [View(rank, now, now) for rank in range(spec.ranks)]
        self._channels: dict[int, Channel] = {}
        self._strangers: list[Channel] = []
        self._selector = selectors.DefaultSelector()
        self._host, self._token, self._store_port = host, new_token(), 0
        self._listener = socket.create_server((host, 0), backlog=max(64, spec.ranks))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._troubles: dict[int, Trouble] = {}
        self._gone: dict[int, str] = {}
        self._sign = 0.0  # when the first sign of an end was seen
        self._halted: dict[int, float] = {}
        self._moving: dict[int, _Moving] = {}
        self._queued: dict[int, int] = {}  # for a handover since, by request
        self.ready = False  # a first token has come through all ranks
        self._began = self._looked = self._pinged = now
        self._pings = 0

    @property
    def loaded(self) -> bool:
        """All ranks have their part of the model."""
        return len(self.facts) == self.spec.ranks

    @property
    def address(self) -> tuple[str, int, str]:
        """Host, port and token for ranks that somebody else starts."""
        return self._host, self._listener.getsockname()[1], self._token

    def wake_by(self, source: socket.socket) -> None:
        """Another socket that ends a turn when it can be read."""
        self._selector.register(source, selectors.EVENT_READ, "wake")

    def start(self) -> None:
        self.launched.start(*self.address)

    def turn(self) -> None:
        """Look at everything once; waits a moment when there is nothing. Raises Over."""
        self._feed()
        for key, ready in self._selector.select(TICK_S):
            if key.data == "listener":
                self._accept()
            elif isinstance(key.data, Channel):
                self._serve(key.data, ready)
        now = time.monotonic()
        if now - self._looked >= TICK_S or self._sign:
            self._look(now)

    def close(self, *, kindly: bool) -> None:
        """Let the ranks end. kindly: in order, if they do not take long; else at once."""
        if kindly:
            with contextlib.suppress(Broken, Over):
                for rank in self._channels:
                    self._send(rank, frame(Quit()))
        else:
            self.launched.kill()

    def bury(self, *, kindly: bool) -> None:
        """Returns when no rank is left."""
        self.launched.reap(GRACE_S if kindly else 0.0)
        for channel in (*self._channels.values(), *self._strangers):
            channel.close()
        self._listener.close()
        self._selector.close()

    # Sockets

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            channel = Channel(connection)
            self._strangers.append(channel)
            self._selector.register(connection, selectors.EVENT_READ, channel)
            if len(self._strangers) > MAX_STRANGERS:
                self._forget(self._strangers[0])

    def _forget(self, channel: Channel) -> None:
        self._selector.unregister(channel.socket)
        if channel in self._strangers:
            self._strangers.remove(channel)
        channel.close()

    def _serve(self, channel: Channel, ready: int) -> None:
        rank = next((r for r, c in self._channels.items() if c is channel), None)
        try:
            if ready & selectors.EVENT_WRITE:
                channel.flush()
                self._interest(channel)
            if ready & selectors.EVENT_READ:
                for message in channel.receive():
                    if rank is None:
                        rank = self._greet(channel, message)
                    else:
                        self._hear(rank, message)
        except Broken as error:
            self._forget(channel)
            if rank is not None:
                self._channels.pop(rank, None)
                self._lost(rank, str(error))

    def _interest(self, channel: Channel) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.want else 0)
        self._selector.modify(channel.socket, wanted, channel)

    def _send(self, rank: int, data: bytes) -> None:
        channel = self._channels.get(rank)
        if channel is None:
            return  # it is gone, which is being looked into
        try:
            channel.send(data)
            if channel.want:
                self._interest(channel)
        except Broken as error:
            self._lost(rank, str(error))

    def _greet(self, channel: Channel, message: FromRank) -> int:
        """A peer's first message: a rank of ours, or Broken."""
        if not isinstance(message, Hello) or not same_token(message.token, self._token):
            raise Broken("it does not know the token")
        if not 0 <= message.rank < self.spec.ranks or message.rank in self._channels:
            raise Broken(f"there is no rank {message.rank} to be")
        self._strangers.remove(channel)
        channel.frames.limit = MAX_FRAME
        self._channels[message.rank] = channel
        self._store_port = message.port or self._store_port
        self._hear(message.rank, message)
        if len(self._channels) == self.spec.ranks:
            for rank in self._channels:
                self._send(rank, frame(Begin(self.spec, self._host, self._store_port)))
        return message.rank

    # Messages

    def _hear(self, rank: int, message: FromRank) -> None:
        now = time.monotonic()
        view = self.views[rank]
        view.heard = now
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
            self._troubles.setdefault(rank, message)
            self._sign = self._sign or now

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
        self._gone.setdefault(rank, why)
        self._sign = self._sign or time.monotonic()

    # Work

    def give(self, ranks: Iterable[int], message: ToRank) -> None:
        """A piece of work that each of these ranks will answer."""
        data, now = frame(message), time.monotonic()
        for rank in ranks:
            self.views[rank].give(now)
            self._send(rank, data)

    def _feed(self) -> None:
        if not self.loaded or self._sign:
            return
        for pool in self.pools:
            while (step := pool.scheduler.schedule()) is not None:
                pool.open[step.number] = Open(set(pool.samplers))
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
            self._halted.clear()
        self._judge_ends(now)
        self._judge_halted(now)
        if not self.ready:
            if now - self._began > self.spec.start_s:
                raise Over(self._overdue(now))
            return
        if self._sign:
            return
        fault = judge(self.views, now, self.spec.timeout_s)
        if fault:
            raise Over(fault)
        if now - self._pinged > PING_S and all(view.given == view.done for view in self.views):
            self._pinged = now
            self._pings += 1
            self.give(range(self.spec.ranks), Ping(self._pings))

    def _overdue(self, now: float) -> Fault:
        """Not ready in time: who has not loaded its part, or holds up the first token."""
        missing = tuple(rank for rank in range(self.spec.ranks) if rank not in self.facts)
        held = None if missing else judge(self.views, now, self.spec.timeout_s)
        ranks = missing or (held.ranks if held else ())
        who = f": rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:16]))}" if ranks else ""
        return Fault(ranks, "start", f"not ready within {self.spec.start_s:g} s{who}", now - self._began)

    def _judge_halted(self, now: float) -> None:
        halted = self.launched.halted()
        self._halted = {rank: self._halted.get(rank, now) for rank in halted}
        longest = max((now - since for since in self._halted.values()), default=0.0)
        if longest > HALTED_S:
            after = now - min(self.views[rank].heard for rank in halted)
            raise Over(Fault(tuple(halted), "stopped", f"{_ranks(halted)} stopped by a signal", after))

    def _judge_ends(self, now: float) -> None:
        for rank, _ in self.launched.ended().items():
            if rank not in self._gone:
                self._lost(rank, "its process has ended")
        if not self._sign or now - self._sign < SETTLE_S:
            return
        own = {rank: said for rank, said in self._troubles.items() if said.own}
        if own:
            raise self._said(*next(iter(own.items())))
        dead = tuple(sorted(rank for rank in self._gone if rank not in self._troubles))
        if dead:
            after = now - max(self.views[rank].heard for rank in dead)
            raise Over(Fault(dead, "dead" if self.ready else "start", self._obituary(dead), after))
        if now - self._sign < min(BLAME_S, self.spec.timeout_s / 4):
            return
        fault = judge(self.views, now, self.spec.timeout_s)
        rank, said = next(iter(self._troubles.items()))
        words = f"calls of rank {rank} failed, and nothing says whose fault it is: {said.message}"
        raise Over(fault or Fault((), "error", words, now - self._sign))

    def _said(self, rank: int, said: Trouble) -> Over:
        """A rank's own account of its error."""
        kind: type[LinkwiseError] = InputError if said.code == InputError.exit_code else LinkwiseError
        where = f"rank {rank}" + (f": {said.where}" if said.where else "")
        error = kind(said.message, where=where, expected=said.expected)
        error.exit_code = said.code
        return Over(Fault((rank,), "error" if self.ready else "start", str(error)), error)

    def _obituary(self, ranks: tuple[int, ...]) -> str:
        codes = self.launched.ended()
        parts = []
        for rank in ranks:
            code = codes.get(rank)
            how = "closed its socket" if code is None else f"ended with code {code}"
            if code is not None and code < 0:
                how = f"was ended by {_signal(-code)}"
            last = self.launched.last_words(rank) if code is not None and code >= 0 else ""
            parts.append(f"rank {rank} {how}" + (f" ({last})" if last else ""))
        return "; ".join(parts)

    @property
    def idle(self) -> bool:
        """No work is under way."""
        return all(view.given == view.done for view in self.views)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
