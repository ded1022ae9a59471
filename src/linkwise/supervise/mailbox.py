"""One thread that owns a state: others post what is to be done, and when."""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable

Work = Callable[[], None]


class Mailbox:
    """Runs posted work one after another on its own thread. broken: told of a bug in such work, after which it goes on.

    `post` and `after` may come from any thread, the mailbox's own included.
    """

    def __init__(self, name: str, broken: Callable[[Exception], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[float, Work | None]] = queue.SimpleQueue()
        self._broken = broken
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closed = False

    def start(self) -> None:
        self._thread.start()

    def post(self, work: Work) -> None:
        """Do it next."""
        self._queue.put((0.0, work))

    def after(self, seconds: float, work: Work) -> None:
        """Do it then; never when the mailbox is closed before."""
        self._queue.put((time.monotonic() + seconds, work))

    def close(self) -> None:
        """Finish what was posted, drop what was timed, and end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put((0.0, None))
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join()

    def _run(self) -> None:
        timed: list[tuple[float, int, Work]] = []
        order = itertools.count()
        while True:
            timeout = max(0.0, timed[0][0] - time.monotonic()) if timed else None
            try:
                when, work = self._queue.get(timeout=timeout)
            except queue.Empty:
                self._do(heapq.heappop(timed)[2])
                continue
            if work is None:
                return
            if when > 0.0:
                heapq.heappush(timed, (when, next(order), work))
            else:
                self._do(work)
            while timed and timed[0][0] <= time.monotonic():  # also under a steady stream of posts
                self._do(heapq.heappop(timed)[2])

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the thread must live on; the owner is told
            self._broken(error)
