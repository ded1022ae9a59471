"""Tokens become text: one request's answers, from its units' threads into the server's loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from linkwise.runtime.serve.asks import Ask, Stream, Text
from linkwise.runtime.serve.errors import ApiError
from linkwise.runtime.serve.metrics import Metrics
from linkwise.runtime.serve.spans import Trail
from linkwise.supervise.health import described
from linkwise.supervise.supervisor import Placed, Refused, Supervisor
from linkwise.supervise.types import Event, Failed, Job, Token


class Piece(NamedTuple):
    """New text of answer `number`, and why it is over: stop or length; empty while it goes on."""

    number: int
    text: str
    reason: str


class Stops:
    """Ends a text at the first of some strings, also when it comes in pieces."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops, self._held = stops, ""
        self.hit = False

    def push(self, text: str) -> str:
        """What may be shown: everything but a beginning of a stop string."""
        if not self._stops or self.hit:
            return "" if self.hit else text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)]
        keep = max(self._begun(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and is text after all."""
        held, self._held = self._held, ""
        return "" if self.hit else held

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """Characters at the end of the text that begin the stop string."""
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


class _One:
    """One prompt's answer while it is made."""

    def __init__(self, id: str, prompt: int, stream: Stream, stops: tuple[str, ...], trail: Trail) -> None:
        self.id, self.prompt, self.stream, self.stops, self.trail = id, prompt, stream, Stops(stops), trail
        self.tokens = 0
        self.reason = ""
        self.first_s = self.last_s = 0.0


class Answer:
    """A request's answers. `next` until `over`; `close` in any case, which cancels what still runs.

    began: when the request came (time.monotonic()), which its times and its timeout_s count from.
    tokens: new ones so far, of all answers. Lives in the loop that made it; only `_take` is called by other threads.
    """

    def __init__(
        self, id: str, ask: Ask, text: Text, supervisor: Supervisor, metrics: Metrics, trails: list[Trail],
        timeout_s: float, trace: str, began: float,
    ) -> None:  # fmt: skip
        self._supervisor, self._metrics, self._ask = supervisor, metrics, ask
        self._loop = asyncio.get_running_loop()
        self._began = began
        self._deadline = self._loop.time() + timeout_s - (time.monotonic() - began)
        self._timeout_s = timeout_s
        self._inbox: deque[tuple[int, Event | Placed, float]] = deque()
        self._news = asyncio.Event()
        self._told = False  # the loop was told and has not looked yet
        self._ones = [_One(f"{id}-{n}", len(p), text.stream(), ask.stops, trails[n]) for n, p in enumerate(ask.prompts)]
        wanted, self._ones = self._ones, []
        try:
            for number, one in enumerate(wanted):
                job = Job(
                    one.id, ask.prompts[number], ask.max_tokens[number], ask.sampling[number], ask.stop_ids, trace=trace
                )
                supervisor.submit(job, self._sink(number))
                self._ones.append(one)
        except Refused as error:
            self.close()  # those that were admitted; the others never were requests of ours
            metrics.refused("full" if error.full else "down")
            raise ApiError(429 if error.full else 503, error.message, retry_s=error.retry_s) from None

    @property
    def over(self) -> bool:
        return all(one.reason for one in self._ones)

    @property
    def prompt_tokens(self) -> int:
        return sum(one.prompt for one in self._ones)

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self._ones)

    async def next(self) -> list[Piece]:
        """New pieces, at least one event's worth. Raises ApiError: 503 a lost group, 504 the request's time is over."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._news.wait()
        except TimeoutError:
            self._metrics.refused("timeout")
            words = f"not finished within {self._timeout_s:g} s"
            raise ApiError(504, words, code="timeout") from None
        self._news.clear()
        self._told = False
        texts: dict[int, list[str]] = {}
        while self._inbox:
            number, event, at = self._inbox.popleft()
            one = self._ones[number]
            if not one.reason:
                texts.setdefault(number, []).append(self._one(one, event, at))
        return [Piece(n, "".join(t), self._ones[n].reason) for n, t in texts.items()]

    def close(self) -> None:
        """Cancel what still runs."""
        for one in self._ones:
            if not one.reason:
                self._supervisor.cancel(one.id)
                self._ended(one, "abort", time.monotonic())

    def _one(self, one: _One, event: Event | Placed, at: float) -> str:
        if isinstance(event, Placed):
            one.trail.placed(event, at)
            return ""
        if isinstance(event, Token):
            self._count(one, at)
            text = one.stops.push(one.stream.push(event.token))
            if one.stops.hit:
                self._supervisor.cancel(one.id)
                self._ended(one, "stop", at)
            return text
        if isinstance(event, Failed):
            self._ended(one, "error", at)
            fault = event.fault
            # Of kind `start`: no group took the request, which says itself what became of the one before.
            lost = f"the group that served this request was lost: {described(fault)}"
            words = fault.message if fault.kind == "start" else lost
            raise ApiError(503, words, code="group_lost", retry_s=self._supervisor.retry_after_s())
        if event.reason == "cancelled":
            self._ended(one, "abort", at)
            raise ApiError(503, "the service is stopping", code="stopping", retry_s=self._supervisor.retry_after_s())
        text = one.stops.push(one.stream.finish()) + one.stops.finish()
        self._ended(one, "stop" if one.stops.hit else event.reason, at)
        return text

    def _count(self, one: _One, at: float) -> None:
        if one.tokens:
            self._metrics.gap(at - one.last_s)
        else:
            one.first_s = at
            one.trail.first(at)
            self._metrics.first(one.prompt, at - self._began)
        one.tokens += 1
        one.last_s = at
        self._metrics.token()

    def _ended(self, one: _One, reason: str, at: float) -> None:
        one.reason = reason
        decode_s = one.last_s - one.first_s if one.tokens else 0.0
        self._metrics.finished(reason, at - self._began, one.prompt, one.tokens, decode_s)
        one.trail.ended(reason, one.prompt, one.tokens, at)

    def _sink(self, number: int) -> Callable[[Event | Placed], None]:
        def take(event: Event | Placed) -> None:
            self._take(number, event)

        return take

    def _take(self, number: int, event: Event | Placed) -> None:
        self._inbox.append((number, event, time.monotonic()))
        if not self._told:  # one wake-up of the loop for all that came since it looked
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:  # the loop has ended, and with it whoever asked
                self._told = False
