"""The frontier of `linkwise plan`: the closed form's front, and its finalists simulated where numba is installed."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.plan.fit import Case
from linkwise.plan.frontier import frontier, pairs_of, priced
from linkwise.plan.frontier_types import Frontier
from linkwise.plan.offers import Seen
from linkwise.plan.search import Promised
from linkwise.plan.types import Candidate

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

NOT_SIMULATED = "finalists were not simulated: pip install 'linkwise[simulate]' brings the event loop"


class Promise:
    """What another process was asked for. Where that process is gone, it is done here when it is wanted."""

    def __init__(self, work: "Callable[..., Any]", given: tuple[Any, ...], there: "Future[Any] | None") -> None:
        self._work, self._given, self._there = work, given, there

    def result(self) -> Any:
        """What the work gives, or the error it raises."""
        if self._there is not None:
            try:
                return self._there.result()
            except BrokenExecutor:
                logging.getLogger("linkwise").warning(
                    "linkwise: the second process of a search ended early (out of memory?): this one does its part"
                )
        return self._work(*self._given)


class Beside:
    """Another process, on a second core: it takes half of a long search, looks at pairs of pools and simulates.

    It is split off when it is first given something to do. simulates: whether it is to make the loop ready after that,
    while this process makes the plan of what was found.
    """

    def __init__(self, *, simulates: bool = False) -> None:
        self._pool: Executor | None = None
        self._simulates = simulates
        self.pairs: Promised | None = None

    def submit(self, work: "Callable[..., Any]", /, *given: Any) -> Promise:
        """Work with what it is given, after what was submitted before."""
        try:
            if self._pool is None:
                from concurrent.futures import ProcessPoolExecutor
                from multiprocessing import get_context

                self._pool = ProcessPoolExecutor(1, mp_context=get_context("fork"))
            there = self._pool.submit(work, *given)
            if self._simulates:
                self._pool.submit(_ready)
                self._simulates = False
            return Promise(work, given, there)
        except (BrokenExecutor, OSError):  # gone, or no room for it
            return Promise(work, given, None)

    def begin(self, case: Case, seen: list[Seen], price: str, prefill_on: Cluster | None) -> None:
        """Look at pairs of pools of what a search has seen. Arguments as in `frontier_of`."""
        prefill = _elsewhere(case, prefill_on)
        self.pairs = pairs_of(case, seen, price=priced(price), prefill=prefill, other=self)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


@contextmanager
def beside(*, simulates: bool) -> "Iterator[Beside | None]":
    """A process beside this one; None where none can be split off safely (threads would be cut off in it).

    simulates: whether finalists are to be simulated there.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    other = Beside(simulates=simulates and _simulates())
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

    other: where pairs of pools are looked at and finalists simulated; None = here.
    """
    prefill = _elsewhere(case, prefill_on)
    pairs = None if other is None else other.pairs
    found = frontier(case, seen, price=priced(price), prefill=prefill, own=own, pairs=pairs)
    if not _simulates():
        return replace(found, notes=(*found.notes, NOT_SIMULATED))
    work = found, case, prefill, bool(price)
    return _simulated(*work) if other is None else other.submit(_simulated, *work).result()


def _elsewhere(case: Case, prefill_on: Cluster | None) -> Case | None:
    return case._replace(cluster=prefill_on) if prefill_on is not None else None


def _simulates() -> bool:
    return find_spec("numba") is not None


def _ready() -> None:
    from linkwise.simulate.finalists import ready

    ready()


def _simulated(found: Frontier, case: Case, prefill: Case | None, priced: bool) -> Frontier:
    from linkwise.simulate.finalists import simulated

    return simulated(found, case, prefill, priced=priced)
