"""Requests take turns to be read: templates and tokenizers take processor time before a request is in any queue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from linkwise.runtime.serve.errors import ApiError

SHORT_BYTES = 32 * 2**10  # of a body: tens of milliseconds at most

T = TypeVar("T")


class Turns:
    """Of completions and of chats, one long request and one short one is read at a time.

    So a short one waits for no long one, and a completion for no chat, which needs another process's answer.
    here: requests that wait or are read, which count as waiting like those behind (`waiting`), `most` in all.
    """

    def __init__(self, waiting: Callable[[], int], most: int) -> None:
        self._waiting, self._most = waiting, most
        self.here = 0
        self._lanes = {
            (chat, short): ThreadPoolExecutor(1, f"linkwise-read-{'chat' if chat else 'plain'}-{size}")
            for chat in (False, True)
            for short, size in ((True, "short"), (False, "long"))
        }

    async def take(self, size: int, work: Callable[[], T], deadline: float, timeout_s: float, *, chat: bool) -> T:
        """What the work gives. Raises ApiError: 429 when too many wait, 504 at the deadline (the loop's time)."""
        waiting = self.here + self._waiting()
        if waiting >= self._most:
            raise ApiError(429, f"{waiting} requests wait already", retry_s=1.0)
        self.here += 1
        turn = self._lanes[chat, size <= SHORT_BYTES].submit(work)
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.wrap_future(turn)
        except TimeoutError:
            raise ApiError(504, f"not finished within {timeout_s:g} s", code="timeout") from None
        finally:
            turn.cancel()  # has an effect only where its turn has not come
            self.here -= 1
