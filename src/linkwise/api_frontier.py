"""The frontier of `linkwise plan`: the closed form's front, and its finalists simulated where numba is installed."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

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


class Beside(NamedTuple):
    """The other process: half of a search, then the event loop."""

    pool: "Executor"

    def ready(self) -> "Future[None]":
        """Load its event loop; done when it is."""
        return self.pool.submit(_ready)

    def simulated(
        self, ready: "Future[None]", found: Frontier, case: Case, prefill: Case | None, priced: bool
    ) -> Frontier:
        from concurrent.futures import wait

        if wait([ready], USUAL_S).not_done:
            logging.getLogger("linkwise").warning("linkwise: compiling the event loop, once: about half a minute")
        return self.pool.submit(_simulated, found, case, prefill, priced).result()


@contextmanager
def beside(wanted: bool) -> "Iterator[Beside | None]":
    """Another process, on a second core: it takes half of the search, makes the event loop ready, and simulates.

    None where it is not wanted, or a process cannot be split off safely (threads would be cut off in it).
    """
    if not wanted or find_spec("numba") is None or sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        yield Beside(pool)


def frontier_of(
    case: Case, seen: list[Seen], *, price: str = "", prefill_on: Cluster | None = None,
    own: Candidate | None = None, other: Beside | None = None,
) -> Frontier:  # fmt: skip
    """What the devices offer this load. price: as --price has it; prefill_on: other devices for prefill groups; own:
    what the plan chose.

    other: where finalists are simulated; None = here.
    """
    prefill = case._replace(cluster=prefill_on) if prefill_on is not None else None
    ready = None if other is None else other.ready()
    found = frontier(case, seen, price=priced(price), prefill=prefill, own=own)
    if find_spec("numba") is None:
        return replace(found, notes=(*found.notes, NOT_SIMULATED))
    work = found, case, prefill, bool(price)
    return _simulated(*work) if other is None or ready is None else other.simulated(ready, *work)


def _ready() -> None:
    from linkwise.simulate.finalists import ready

    ready()


def _simulated(found: Frontier, case: Case, prefill: Case | None, priced: bool) -> Frontier:
    from linkwise.simulate.finalists import simulated

    return simulated(found, case, prefill, priced=priced)
