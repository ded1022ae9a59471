"""Who does not answer? Every rank's heartbeat and place in the program, kept in the ranks' store.

A thread of each rank writes a count that grows, and what the rank is doing. When a call runs out of time, counts are
read twice: a rank whose count stands still is stopped, dead or cut off; one that lives but has not reached the step the
others wait in is late. If neither decides, nobody is named.
"""

import contextlib
import threading
import time
from typing import Any, NamedTuple

from linkwise.core.errors import LinkwiseError, Undecidable

MAX_WORDS = 200


class Lost(LinkwiseError):
    """Ranks that do not answer, by number: a fault found (exit code 1)."""

    exit_code = 1

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class Place(NamedTuple):
    """Where a rank was when it last reported: heartbeats so far, the number of its step, the step in words.

    at: when, in seconds since 1970 by its machine's clock; ages are as good as the machines' clocks agree.
    """

    beats: int
    step: int
    words: str
    at: float = 0.0


class Watch:
    """One rank's heartbeat, and the verdict when the ranks part.

    store: any torch.distributed store with a connection of its own, since a thread uses it all the time.
    """

    def __init__(self, store: Any, rank: int, world: int, interval_s: float) -> None:
        self._store, self.rank, self.world, self.interval_s = store, rank, world, interval_s
        self._beats, self._step, self._words = 0, 0, "starting"
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="linkwise-watch", daemon=True)

    def __enter__(self) -> "Watch":
        self._publish()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=self.interval_s * 2)

    def at(self, words: str) -> None:
        """The rank begins its next step. Every rank must pass the same number of steps, also those it only waits in."""
        with self._lock:
            self._step, self._words = self._step + 1, words[:MAX_WORDS]

    def settle(self, error: BaseException, *, parted: bool) -> LinkwiseError | None:
        """The one verdict on what failed; None when another rank has given it and says so.

        parted: a call failed because of another rank, which is then looked for.
        """
        try:
            if self._store.check(["verdict"]):
                return None
            verdict = self._judge(error) if parted else self._own(error)
            mine = self._store.compare_set("verdict", "", f"{self.rank}")
        except RuntimeError as gone:
            return Lost(f"the store where ranks meet does not answer: {_short(gone)}; while: {_short(error)}")
        return verdict if mine == str(self.rank).encode() else None

    def _own(self, error: BaseException) -> LinkwiseError:
        if isinstance(error, LinkwiseError):
            return error
        return Lost(f"rank {self.rank} failed in: {self._words}: {_short(error)}", (self.rank,))

    def _judge(self, error: BaseException) -> LinkwiseError:
        before = self._places()
        time.sleep(self.interval_s * 2.5)
        after, now = self._places(), time.time()
        here = after.get(self.rank) or Place(0, self._step, self._words)
        silent = tuple(r for r in range(self.world) if r not in after or after[r] == before.get(r))
        if silent:
            verb = _verb(silent, "does", "do")
            return Lost(
                f"{_named(silent, after, now)} {verb} not answer; rank {self.rank} waited in: {here.words}", silent
            )
        furthest = max(place.step for place in after.values())
        late = tuple(r for r, place in after.items() if place.step < furthest)
        if late:
            waiting = next(p.words for p in after.values() if p.step == furthest)
            return Lost(f"{_named(late, after, now)} {_verb(late, 'has', 'have')} not come as far as: {waiting}", late)
        return Undecidable(
            f"no answer in time in: {here.words}; every rank lives and is in the same step", hint=_short(error)
        )

    def _places(self) -> dict[int, Place]:
        found = {}
        for rank in range(self.world):
            key = f"beat/{rank}"
            if self._store.check([key]):
                beats, step, at, words = self._store.get(key).decode().split(" ", 3)
                found[rank] = Place(int(beats), int(step), words, float(at))
        return found

    def _publish(self) -> None:
        with self._lock:
            self._beats += 1
            text = f"{self._beats} {self._step} {time.time():.3f} {self._words}"
        self._store.set(f"beat/{self.rank}", text)

    def _run(self) -> None:
        # A store that is gone is found out by the main thread's own calls, which have time limits.
        with contextlib.suppress(RuntimeError):
            while not self._over.wait(self.interval_s):
                self._publish()


def _named(ranks: tuple[int, ...], places: dict[int, Place], now: float) -> str:
    """rank 3 (last report, 7.6 s ago, in: all_reduce 1 MiB) / ranks 3, 5 (last reports 7.6 to 8 s ago)"""
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    last = [places[r] for r in ranks if r in places]
    if not last:
        return f"rank{'s' * (len(ranks) > 1)} {shown}"
    each = [f"{max(0.0, now - place.at):.1f}" for place in sorted(last, key=_at, reverse=True)]
    ages = list(dict.fromkeys((each[0], each[-1])))
    words = {place.words for place in last}
    what = f", in: {words.pop()}" if len(words) == 1 else ""
    if len(ranks) == 1:
        return f"rank {shown} (last report, {ages[0]} s ago{what})"
    return f"ranks {shown} (last reports, {' to '.join(ages)} s ago{what})"


def _at(place: Place) -> float:
    return place.at


def _verb(ranks: tuple[int, ...], one: str, many: str) -> str:
    return many if len(ranks) > 1 else one


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]
