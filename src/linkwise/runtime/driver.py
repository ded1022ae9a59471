"""A unit of ranks on this machine, as the supervisor sees it: jobs in, tokens out, one fault at its end."""

import contextlib
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.files import read_json_object
from linkwise.core.layout import Layout
from linkwise.dist.groups import check_timeout
from linkwise.dist.launch import LOCALHOST
from linkwise.runtime.arch import read_arch
from linkwise.runtime.arrivals import Arrival
from linkwise.runtime.control import RankFacts, UnitSpec
from linkwise.runtime.ends import Over
from linkwise.runtime.group import Group, Observed
from linkwise.runtime.local import COMMAND, Launched, Processes
from linkwise.runtime.pools import pools_of
from linkwise.runtime.scheduler import Limits, Scheduler
from linkwise.supervise.types import Event, Failed, Fault, Finished, Job, Load, State, Token
from linkwise.trace.writer import note_fault

__all__ = ["LocalUnit", "UnitSpec"]

Sink = Callable[[Event], None]
Watch = Callable[[State, Fault | None], None]
MAX_SEED = (1 << 64) - 1
_STOPPED = Fault((), "error", "the unit was stopped")


class LocalUnit:
    """See supervise.types.Unit. Raises InputError for a spec that no rank could run.

    launched: other processes than those `command` starts, made anew for each start. host: where the driver listens.
    say: takes a line about a rank that holds the others up.
    """

    def __init__(
        self,
        name: str,
        spec: UnitSpec,
        *,
        command: Sequence[str] = COMMAND,
        launched: Callable[[], Launched] | None = None,
        host: str = LOCALHOST,
        say: Callable[[str], None] | None = None,
    ) -> None:
        check_timeout(spec.timeout_s)
        config = Path(spec.weights) / "config.json"
        self.arch = read_arch(read_json_object(config), where=str(config), dtype=spec.dtype)
        self.name, self.spec = name, replace(spec, name=name)
        self._launched = launched or (lambda: Processes(spec.ranks, spec.threads, command))
        self._host = host
        self._say = say or (lambda line: None)
        self.max_tokens = min(pool.scheduler.limits.max_len for pool in pools_of(spec, self._scheduler))
        self.error: LinkwiseError | None = None
        self._lock = threading.Lock()
        self._state: State = "stopped"
        self._load = Load(0, 0, 0, 0)  # while it has no ranks
        self._thread: threading.Thread | None = None
        self._group: Group | None = None
        self._commands: deque[tuple[Any, ...]] = deque()
        self._sinks: dict[str, Sink] = {}
        self._probes = count()
        self._writer: socket.socket | None = None  # wakes the thread

    def _scheduler(self, layout: Layout, prefill_only: bool) -> Scheduler:
        spec = self.spec
        limits = Limits(
            layout,
            kv_tokens=spec.kv_tokens,
            block_tokens=spec.block_tokens,
            max_batched_tokens=spec.max_batched_tokens,
            max_seqs=spec.max_seqs,
            max_len=min(self.arch.max_len, spec.max_len or self.arch.max_len),
            in_flight=spec.in_flight,
        )
        return Scheduler(limits, prefill_only=prefill_only)

    # Any thread

    @property
    def state(self) -> State:
        return self._state

    @property
    def load(self) -> Load:
        with self._lock:
            return self._loaded()

    def _loaded(self) -> Load:
        group, before = self._group, self._load
        if group is None:
            return before
        loads = [pool.scheduler.load for pool in group.pools]
        now = Load(*(sum(values) for values in zip(*loads, strict=True)))
        now = now._replace(unwritten_events=group.unwritten)
        # Schedulers and ranks count from zero in each life.
        return Load(*now[:4], *(was + value for was, value in zip(before[4:], now[4:], strict=True)))

    @property
    def progress_s(self) -> float:
        """time.monotonic() when a rank last got on with a step, 0.0 = not since they were started."""
        group = self._group
        return max(max(view.got_on, view.busy) for view in group.views) if group else 0.0

    @property
    def facts(self) -> tuple[RankFacts, ...]:
        """Where the ranks are and what they hold, in rank order; those that are ready."""
        group = self._group
        return tuple(group.facts[rank] for rank in sorted(group.facts)) if group else ()

    @property
    def arrivals(self) -> dict[int, Arrival]:
        """Each rank against the others of its stage; `lagging` ones hold the others up in every step."""
        group = self._group
        return group.arrivals.table() if group else {}

    @property
    def observed(self) -> list[Observed]:
        """Calls that torch.distributed saw, step by step, when the spec says `observe`."""
        group = self._group
        return list(group.observed) if group else []

    def start(self, watch: Watch) -> None:
        """Bring all ranks up. RuntimeError when they are up already."""
        with self._lock:
            if self._state in {"starting", "ready"}:
                raise RuntimeError(f"{self.name} is {self._state}")
            self._state, self.error = "starting", None
            self._commands.clear()
            before = self._thread
            self._thread = threading.Thread(
                target=self._live, args=(watch, before), name=f"linkwise-{self.name}", daemon=True
            )
            self._thread.start()

    def submit(self, job: Job, sink: Sink) -> None:
        """Queue a job. RuntimeError when the unit is not ready, InputError for a job it could never run."""
        self._check(job)
        with self._lock:
            if self._state != "ready":
                raise RuntimeError(f"{self.name} is {self._state}")
            if job.id in self._sinks:
                raise InputError(f"{job.id!r} is running already", where="job", expected="an id of its own")
            self._sinks[job.id] = sink
            self._commands.append(("submit", job, False))
        self._wake()

    def _check(self, job: Job) -> None:
        if not 0 < len(job.prompt) < self.max_tokens:
            raise InputError(
                f"a prompt of {len(job.prompt)} tokens", where="job", expected=f"1..{self.max_tokens - 1} tokens"
            )
        if not (min(job.prompt) >= 0 and max(job.prompt) < self.arch.vocab):
            raise InputError("a token that the model does not know", where="job", expected=f"0..{self.arch.vocab - 1}")
        how = job.sampling
        sound = 0 <= how.temperature < 1e6 and 0 < how.top_p <= 1 and 0 <= how.seed <= MAX_SEED
        if job.max_tokens < 1 or not sound:
            raise InputError(
                f"max_tokens {job.max_tokens}, temperature {how.temperature}, top_p {how.top_p}, seed {how.seed}",
                where="job",
                expected="max_tokens from 1, temperature from 0, top_p above 0 to 1, a seed of 64 bits",
            )

    def cancel(self, id: str) -> None:
        self._commands.append(("cancel", id))
        self._wake()

    def probe(self, answer: Callable[[bool], None]) -> None:
        """Produce a throw-away token now, through every rank: of a pair one on each side. False when the unit cannot,
        at the latest when a fault is found."""

        def sink(event: Event) -> None:
            if not isinstance(event, Token):
                answer(isinstance(event, Finished))

        with self._lock:
            ready = self._state == "ready"
            if ready:
                tokens = 1 if self.spec.prefill is None else 2  # the second one is drawn behind a handover
                job = Job(f"\0probe-{next(self._probes)}", (0,), tokens)
                self._sinks[job.id] = sink
                self._commands.append(("submit", job, True))
        if ready:
            self._wake()
        else:
            answer(False)

    def stop(self) -> None:
        """End all ranks; returns when none is left (at once when called by the unit's own thread)."""
        self._commands.append(("stop",))
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it is awake
            if self._writer is not None:
                self._writer.send(b"\0")

    # The unit's own thread

    def _live(self, watch: Watch, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        watch("starting", None)
        reader, writer = socket.socketpair()
        with reader, writer:
            reader.setblocking(False)
            writer.setblocking(False)
            with self._lock:
                self._writer = writer
            fault = self._run(watch, reader)
            with self._lock:
                self._writer = None
        # The ranks are killed, or idle; now, and not before, jobs may be tried elsewhere.
        with self._lock:
            self._state = "failed" if fault else "stopped"
            sinks, self._sinks = self._sinks, {}
            self._commands.clear()
        for id, sink in sinks.items():
            self._tell(sink, Failed(id, fault or _STOPPED))
        with self._lock:
            load, before_it = self._loaded(), self._load.unwritten_events
            group, self._group = self._group, None
            self._load = Load(0, 0, load.kv_tokens, 0, *load[4:])
        if fault is not None and self.spec.trace:
            why = note_fault(Path(self.spec.trace), self.name, fault.ranks, fault.kind, fault.message)
            if why:
                self._aloud(f"the fault is not noted beside the traces: {why}")
        if fault is not None:
            watch("failed", fault)  # before the wait: the system takes its time to free what killed ranks held
        if group is not None:
            group.bury(kindly=fault is None)
            with self._lock:  # its last words came just now
                self._load = self._load._replace(unwritten_events=before_it + group.unwritten)
        if fault is None:
            watch("stopped", None)

    def _run(self, watch: Watch, reader: socket.socket) -> Fault | None:
        """From start to end; ranks are ended, or have been asked to, when it returns."""

        def told() -> None:
            with self._lock:
                self._state = "ready"
            watch("ready", None)

        pools = pools_of(self.spec, self._scheduler)
        group = Group(self.spec, pools, self._launched(), self._deliver, told, self._aloud, self._host)
        self._group = group
        try:
            group.wake_by(reader)
            group.start()
            while self._obey(group, reader):
                group.turn()
            group.settle()
            group.close(kindly=group.idle and group.ready)
            return None
        except Over as over:
            self.error, fault = over.error, over.fault
            if fault.kind == "slow":
                fault = fault._replace(jobs=tuple(id for pool in pools for id in pool.scheduler.prompting))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave ranks or jobs behind
            sys.excepthook(type(error), error, error.__traceback__)
            fault = Fault((), "error", f"the driver failed: {type(error).__name__}: {error}"[:500])
        group.close(kindly=False)
        return fault

    def _aloud(self, line: str) -> None:
        self._say(f"{self.name}: {line}")

    def _obey(self, group: Group, reader: socket.socket) -> bool:
        """Carry out what other threads asked for; False to end."""
        with contextlib.suppress(BlockingIOError):
            reader.recv(4096)  # several wakes are one
        scheduler = group.pools[0].scheduler
        while self._commands:
            command, *words = self._commands.popleft()
            if command == "stop":
                return False
            if command == "submit":
                scheduler.add(words[0], urgent=words[1])
            elif command == "cancel":
                for pool in group.pools:
                    for event in pool.scheduler.cancel(words[0]):
                        self._deliver(event)
        return True

    def _deliver(self, event: Event) -> None:
        sink = self._sinks.get(event.id)
        if sink is not None:
            if not isinstance(event, Token):
                with self._lock:
                    del self._sinks[event.id]
            self._tell(sink, event)

    def _tell(self, sink: Sink, event: Event) -> None:
        try:
            sink(event)
        except Exception as error:  # noqa: BLE001 - another part's error: told, and no reason to end a group of ranks
            sys.excepthook(type(error), error, error.__traceback__)
