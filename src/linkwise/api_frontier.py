"""The frontier of `linkwise plan`: the closed form's front, and its finalists simulated where numba is installed."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.plan.fit import Case
from linkwise.plan.frontier import Seen, frontier, priced
from linkwise.plan.frontier_types import Frontier
from linkwise.plan.types import Candidate

if TYPE_CHECKING:
    from concurrent.futures import Executor

NOT_SIMULATED = "finalists were not simulated: pip install 'linkwise[simulate]' brings the event loop"


@contextmanager
def beside(wanted: bool) -> "Iterator[Executor | None]":
    """Another process that makes the event loop ready on a second core while the search runs, and simulates then.

    None where it is not wanted, or a process cannot be split off safely (threads would be cut off in it).
    """
    if not wanted or find_spec("numba") is None or sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        pool.submit(_ready)
        yield pool


def frontier_of(
    case: Case, seen: list[Seen], *, price: str = "", prefill_on: Cluster | None = None,
    own: Candidate | None = None, pool: "Executor | None" = None,
) -> Frontier:  # fmt: skip
    """What the devices offer this load. price: as --price has it; prefill_on: other devices for prefill groups; own:
    what the plan chose.

    pool: where finalists are simulated; None = here.
    """
    prefill = case._replace(cluster=prefill_on) if prefill_on is not None else None
    found = frontier(case, seen, price=priced(price), prefill=prefill, own=own)
    if find_spec("numba") is None:
        return replace(found, notes=(*found.notes, NOT_SIMULATED))
    work = found, case, prefill, bool(price)
    return _simulated(*work) if pool is None else pool.submit(_simulated, *work).result()


def _ready() -> None:
    from linkwise.simulate.finalists import ready

    ready()


def _simulated(found: Frontier, case: Case, prefill: Case | None, priced: bool) -> Frontier:
    from linkwise.simulate.finalists import simulated

    return simulated(found, case, prefill, priced=priced)
