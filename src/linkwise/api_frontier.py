"""The frontier of `linkwise plan`: the closed form's front, and its finalists simulated where numba is installed."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.plan.fit import Case
from linkwise.plan.frontier import Seen, frontier, priced
from linkwise.plan.frontier_types import Frontier
from linkwise.plan.types import Candidate

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

USUAL_S = 3.0  # to load a loop that is compiled
NOT_SIMULATED = "finalists were not simulated: pip install 'linkwise[simulate]' brings the event loop"


class Beside:
    """Another process, on a second core: it takes half of a long search, then makes the event loop ready and simulates.

    It is split off when it is first given something to do.
    """

    def __init__(self) -> None:
        self._pool: Executor | None = None

    def submit(self, work: "Callable[..., Any]", /, *given: Any) -> "Future[Any]":
        """Work with what it is given, after what was submitted before."""
        if self._pool is None:
            from concurrent.futures import ProcessPoolExecutor
            from multiprocessing import get_context

            self._pool = ProcessPoolExecutor(1, mp_context=get_context("fork"))
        return self._pool.submit(work, *given)

    def simulated(
        self, ready: "Future[None]", found: Frontier, case: Case, prefill: Case | None, priced: bool
    ) -> Frontier:
        """The front with its finalists simulated. ready: done when the event loop is."""
        from concurrent.futures import wait

        if wait([ready], USUAL_S).not_done:
            logging.getLogger("linkwise").warning("linkwise: compiling the event loop, once: about half a minute")
        simulated: Frontier = self.submit(_simulated, found, case, prefill, priced).result()
        return simulated

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


@contextmanager
def beside() -> "Iterator[Beside | None]":
    """A process beside this one; None where none can be split off safely (threads would be cut off in it)."""
    if sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    other = Beside()
    try:
        yield other
    finally:
        other.close()


def frontier_of(
    case: Case, seen: list[Seen], *, price: str = "", prefill_on: Cluster | None = None,
    own: Candidate | None = None, other: Beside | None = None,
) -> Frontier:  # fmt: skip
    """What the devices offer this load. price: as --price has it; prefill_on: other devices for prefill groups; own:
    what the plan chose.

    other: where finalists are simulated; None = here.
    """
    prefill = case._replace(cluster=prefill_on) if prefill_on is not None else None
    simulates = find_spec("numba") is not None
    ready = other.submit(_ready) if other is not None and simulates else None
    found = frontier(case, seen, price=priced(price), prefill=prefill, own=own)
    if not simulates:
        return replace(found, notes=(*found.notes, NOT_SIMULATED))
    work = found, case, prefill, bool(price)
    return _simulated(*work) if other is None or ready is None else other.simulated(ready, *work)


def _ready() -> None:
    from linkwise.simulate.finalists import ready

    ready()


def _simulated(found: Frontier, case: Case, prefill: Case | None, priced: bool) -> Frontier:
    from linkwise.simulate.finalists import simulated

    return simulated(found, case, prefill, priced=priced)
