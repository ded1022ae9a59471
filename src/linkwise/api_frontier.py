"""The frontier of `linkwise plan`: the closed form's front, and its finalists simulated where numba is installed."""

from importlib.util import find_spec

from linkwise.cluster.types import Cluster
from linkwise.plan.fit import Case
from linkwise.plan.frontier import Seen, frontier, priced
from linkwise.plan.frontier_types import Frontier

NOT_SIMULATED = "finalists were not simulated: pip install 'linkwise[simulate]' brings the event loop"


def frontier_of(case: Case, seen: list[Seen], *, price: str = "", prefill_on: Cluster | None = None) -> Frontier:
    """What the devices offer this load. price: as --price has it; prefill_on: other devices for prefill groups."""
    prefill = case._replace(cluster=prefill_on) if prefill_on is not None else None
    found = frontier(case, seen, price=priced(price), prefill=prefill)
    if find_spec("numba") is None:
        from msgspec.structs import replace

        return replace(found, notes=(*found.notes, NOT_SIMULATED))
    from linkwise.simulate.finalists import simulated

    return simulated(found, case, prefill, priced=bool(price))
