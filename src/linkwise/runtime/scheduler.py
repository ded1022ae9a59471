"""Which requests take part in the next step of one serving group, with how many tokens, in which KV blocks.

Decode rows come first, then chunks of prompts until the step is full. When blocks run out, the request admitted last
gives its blocks up and is computed again later. A request in a step that is under way takes part in no other one.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Literal

from linkwise.core.layout import Layout
from linkwise.runtime.blocks import Blocks, chained
from linkwise.runtime.steps import FILLER, Row, Step, batch_rows
from linkwise.supervise.types import Event, Finished, Job, Load, Token


class Phase(Enum):
    """Who has a request: nobody yet, ranks that compute its prompt or pass its KV on, ranks that decode, nobody."""

    QUEUED = "queued"
    PREFILL = "prefilling"
    HANDOVER = "handing over"
    DECODE = "decoding"
    DONE = "done"


class Limits:
    """Sizes a scheduler works within. kv_tokens: of all attention replicas together, rounded up to whole blocks each.

    span: positions of a request in one block. max_len: longest request (prompt and text), within one replica's blocks.
    in_flight: steps under way at once.
    """

    def __init__(
        self, layout: Layout, *, kv_tokens: int, block_tokens: int, max_batched_tokens: int, max_seqs: int,
        max_len: int, in_flight: int = 0,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.span = block_tokens * layout.cp * layout.dcp
        self.kv_blocks = 1 + max(1, -(-kv_tokens // (layout.dp_attn * self.span)))
        self.max_len = min(max_len, (self.kv_blocks - 1) * self.span)
        self.max_batched_tokens, self.max_seqs = max_batched_tokens, max_seqs
        self.in_flight = in_flight or layout.pp


@dataclass(eq=False)
class Request:
    """A job on its way. tokens: the prompt and what was drawn. computed: leading tokens whose KV is in `blocks`.

    number: of the rows in steps. keys: of full blocks, the first `named` of which others may share. busy: in a step or
    a handover under way. urgent: goes before all others. again: gave its blocks up before.
    """

    number: int
    job: Job
    tokens: list[int]
    urgent: bool = False
    phase: Phase = Phase.QUEUED
    replica: int = 0
    computed: int = 0
    named: int = 0
    busy: bool = False
    again: bool = False
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)


class Scheduler:
    """The requests of one serving group. prefill_only: a request is handed over after its first token."""

    def __init__(self, limits: Limits, *, prefill_only: bool = False) -> None:
        self.limits, self.prefill_only = limits, prefill_only
        replicas = limits.layout.dp_attn
        self.pools = [Blocks(limits.kv_blocks) for _ in range(replicas)]
        self.waiting: deque[Request] = deque()
        self.running: list[list[Request]] = [[] for _ in range(replicas)]  # in order of admission
        self.leaving: list[Request] = []  # computed here, to be handed over; their blocks are still here
        self.steps: dict[int, tuple[Step, tuple[tuple[Request | None, ...], ...]]] = {}
        self._requests: dict[str, Request] = {}
        self._numbers, self._steps = count(), count()
        self._hits = self._prompts = self._drawn = self._preempted = 0

    def add(self, job: Job, *, urgent: bool = False) -> None:
        """Queue a job; its prompt is at least one token and leaves room for one more."""
        request = Request(next(self._numbers), job, list(job.prompt), urgent)
        self._requests[job.id] = request
        self._prompts += 0 if urgent else len(job.prompt)
        self.waiting.appendleft(request) if urgent else self.waiting.append(request)

    def cancel(self, id: str) -> list[Event]:
        """End a job. Its blocks are free at once: ranks run steps in order, so one under way hurts no new owner."""
        request = self._requests.get(id)
        return [self._end(request, "cancelled")] if request else []

    def traces(self, number: int) -> tuple[tuple[str, ...], ...]:
        """Keys of a step's requests in traces, by attention replica and row."""
        return tuple(tuple(owner.job.trace if owner else "" for owner in owners) for owners in self.steps[number][1])

    @property
    def open(self) -> list[str]:
        """Jobs that are not over, in order of arrival."""
        return list(self._requests)

    @property
    def prompting(self) -> list[str]:
        """Jobs whose prompts the steps under way compute."""
        rows = (
            (row, request)
            for step, owners in self.steps.values()
            for batch, requests in zip(step.batches, owners, strict=True)
            for row, request in zip(batch, requests, strict=True)
        )
        return list(dict.fromkeys(request.job.id for row, request in rows if request is not None and row.prompt))

    @property
    def load(self) -> Load:
        running = sum(map(len, self.running)) + len(self.leaving)
        used = sum(pool.used for pool in self.pools) * self.limits.span
        total = (self.limits.kv_blocks - 1) * self.limits.span * len(self.pools)
        return Load(
            running, len(self.waiting), total, used, self._hits, self._prompts, self._drawn, self._preempted
        )  # fmt: skip

    def schedule(self) -> Step | None:
        """The next step; None when there is nothing to do, or as many steps as may be are under way."""
        if len(self.steps) >= self.limits.in_flight:
            return None
        self._admit()
        planned = [self._batch(replica) for replica in range(len(self.pools))]
        if not any(rows for rows in planned):
            return None
        cp = self.limits.layout.cp
        longest = max(batch_rows(tuple(row for row, _ in rows), cp) for rows in planned)
        batches, owners = [], []
        for rows in planned:
            filled = _filled(rows, longest, cp)
            batches.append(tuple(row for row, _ in filled))
            owners.append(tuple(owner for _, owner in filled))
        step = Step(next(self._steps), tuple(batches))
        self.steps[step.number] = step, tuple(owners)
        return step

    def complete(self, number: int, drawn: Mapping[tuple[int, int], int]) -> list[Event]:
        """A step is done. drawn: token by (attention replica, row of its batch). Returns what jobs are told."""
        step, owners = self.steps.pop(number)
        events: list[Event] = []
        for replica, (batch, requests) in enumerate(zip(step.batches, owners, strict=True)):
            for place, (row, request) in enumerate(zip(batch, requests, strict=True)):
                if request is None or request.phase is Phase.DONE:
                    continue
                request.busy = False
                request.computed = row.end
                self._name_blocks(request)
                if row.draw is not None:
                    events += self._draw(request, drawn[replica, place])
        return events

    # Handing over, between a group that computes prompts and one that decodes.

    def leave(self, request: Request) -> None:
        """A request's KV has arrived elsewhere: neither it nor its blocks are this group's any more."""
        self.leaving.remove(request)
        self._requests.pop(request.job.id, None)
        self.pools[request.replica].leave(request.blocks)

    def reserve(self, request: Request) -> list[int] | None:
        """Blocks for a request that comes from another group; None as long as there are too few."""
        need = -(-request.computed // self.limits.span)
        running = self.running[0]
        full = len(running) >= self.limits.max_seqs and not request.urgent
        if full or self.pools[0].free < need + bool(running):
            return None
        return self.pools[0].take(need)

    def adopt(self, request: Request, blocks: list[int]) -> Request:
        """The request goes on here: its KV is in `blocks`, from `reserve`."""
        own = Request(request.number, request.job, request.tokens, request.urgent, Phase.DECODE, blocks=blocks)
        own.computed, own.keys = request.computed, request.keys
        self._requests[request.job.id] = own
        self.running[0].append(own)
        self._name_blocks(own)
        return own

    def release(self, blocks: list[int]) -> None:
        """Reserved blocks that nobody came for."""
        self.pools[0].leave(blocks)

    # Admission: requests get an attention replica and the blocks others have computed for them.

    def _admit(self) -> None:
        while self.waiting:
            request = self.waiting[0]
            replica = min(range(len(self.pools)), key=lambda r: (len(self.running[r]), self.pools[r].used))
            running, pool = self.running[replica], self.pools[replica]
            if len(running) >= self.limits.max_seqs and not request.urgent:
                return
            span = self.limits.span
            request.keys = chained(request.tokens, span, request.keys)
            # The last token is computed in any case: its logits are wanted.
            shared = pool.find(request.keys[: (len(request.tokens) - 1) // span])
            need = len(request.tokens) // span + 1 - len(shared)
            if running and need > pool.free - pool.free_among(shared) and not request.urgent:
                return
            self.waiting.popleft()
            pool.share(shared)
            request.blocks, request.named, request.computed = shared, len(shared), len(shared) * span
            request.replica, request.phase = replica, Phase.PREFILL
            self._hits += 0 if request.again else request.computed
            running.insert(0, request) if request.urgent else running.append(request)

    # One attention replica's batch.

    def _batch(self, replica: int) -> list[tuple[Row, Request]]:
        running = self.running[replica]
        decoding = sum(r.phase is Phase.DECODE for r in running)
        share = -(-decoding // self.limits.in_flight)  # so that every step under way has its part of them
        budget = self.limits.max_batched_tokens
        rows: list[tuple[Row, Request]] = []
        for request in list(running):
            if len(rows) >= min(share, budget):
                break
            if request.phase is Phase.DECODE and not request.busy and self._room(request, len(request.tokens)):
                rows.append(self._row(request, len(request.tokens), prompt=False))
        budget -= len(rows)
        for request in list(running):
            if budget <= 0:
                break
            if request.phase is not Phase.PREFILL or request.busy:
                continue
            end = min(len(request.tokens), request.computed + budget)
            if self._room(request, end):
                rows.append(self._row(request, end, prompt=True))
                budget -= end - request.computed
        return rows

    def _row(self, request: Request, end: int, *, prompt: bool) -> tuple[Row, Request]:
        request.busy = True
        draw = request.job.sampling if end == len(request.tokens) else None
        new = tuple(request.tokens[request.computed : end])
        return Row(request.number, request.computed, new, prompt, draw, tuple(request.blocks)), request

    def _room(self, request: Request, end: int) -> bool:
        """Blocks for the first `end` tokens; whoever was admitted later makes room."""
        pool, running = self.pools[request.replica], self.running[request.replica]
        if request.phase is Phase.QUEUED:  # made room for another one just now
            return False
        need = -(-end // self.limits.span) - len(request.blocks)
        while need > pool.free:
            later = running[running.index(request) + 1 :]
            victim = next((r for r in reversed(later) if not r.busy and r.blocks), None)
            if victim is None:
                return False
            self._preempt(victim)
        if need > 0:
            request.blocks += pool.take(need)
        return True

    def _preempt(self, request: Request) -> None:
        self.running[request.replica].remove(request)
        self.pools[request.replica].leave(request.blocks)
        request.blocks, request.named, request.computed = [], 0, 0
        request.phase, request.again = Phase.QUEUED, True
        self._preempted += 1
        self.waiting.appendleft(request)

    def _name_blocks(self, request: Request) -> None:
        """Full blocks whose KV is computed may be shared from now on."""
        span = self.limits.span
        full = request.computed // span
        if full > request.named:
            request.keys = chained(request.tokens[: full * span], span, request.keys)
            for place in range(request.named, full):
                self.pools[request.replica].name(request.blocks[place], request.keys[place])
            request.named = full

    def _draw(self, request: Request, token: int) -> list[Event]:
        job = request.job
        if token in job.stop_ids:
            return [self._end(request, "stop")]
        index = len(request.tokens) - len(job.prompt)
        request.tokens.append(token)
        self._drawn += not request.urgent
        events: list[Event] = [Token(job.id, token, index)]
        if index + 1 >= job.max_tokens or len(request.tokens) >= self.limits.max_len:
            events.append(self._end(request, "length"))
        elif self.prefill_only:
            self.running[request.replica].remove(request)
            self.leaving.insert(0, request) if request.urgent else self.leaving.append(request)
            request.phase = Phase.HANDOVER
        else:
            request.phase = Phase.DECODE
        return events

    def _end(self, request: Request, reason: Literal["stop", "length", "cancelled"]) -> Finished:
        self._requests.pop(request.job.id, None)
        before, request.phase = request.phase, Phase.DONE
        if before is Phase.HANDOVER and request.busy:
            return Finished(request.job.id, reason)  # the transfer still reads its blocks; `leave` follows
        if before is Phase.QUEUED:
            self.waiting.remove(request)
        elif before is Phase.HANDOVER:
            self.leaving.remove(request)
        else:
            self.running[request.replica].remove(request)
        self.pools[request.replica].leave(request.blocks)
        request.blocks = []
        return Finished(request.job.id, reason)


def _filled(rows: list[tuple[Row, Request]], wanted: int, cp: int) -> list[tuple[Row, Request | None]]:
    """A batch made `wanted` hidden rows long by rows of nobody, after its decode rows."""
    short = wanted - batch_rows(tuple(row for row, _ in rows), cp)
    nobody: list[tuple[Row, Request | None]] = [(Row(FILLER, 0, (0,), False, None, ()), None)] * short
    decode = sum(not row.prompt for row, _ in rows)
    return [*rows[:decode], *nobody, *rows[decode:]]
