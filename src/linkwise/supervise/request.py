"""A request on its way over units: what it was asked for with, and what has become of it so far."""

from collections.abc import Callable
from typing import NamedTuple

from linkwise.core.errors import LinkwiseError
from linkwise.supervise.types import Event, Fault, Job


class Placed(NamedTuple):
    """A request went to a unit. retry: 0 the first time. cause: the fault that ended the try before."""

    id: str
    unit: str
    retry: int
    cause: Fault | None


Sink = Callable[[Event | Placed], None]


class Refused(LinkwiseError):
    """The request was not taken. full: too many wait; else no unit serves. retry_s: when to try again, 0 = never."""

    exit_code = 1

    def __init__(self, message: str, *, full: bool, retry_s: float) -> None:
        super().__init__(message)
        self.full, self.retry_s = full, retry_s


class Request:
    """What a supervisor knows of a request that is not over. hashes: of its prompt's blocks, for the router."""

    def __init__(self, job: Job, sink: Sink, hashes: tuple[bytes, ...]) -> None:
        self.job, self.sink, self.hashes = job, sink, hashes
        self.given: list[int] = []
        self.base = 0  # tokens given out before the attempt under way
        self.charge = 0  # what its unit's outstanding tokens hold of it
        self.retries = 0
        self.cause: Fault | None = None
        self.last_unit = ""
        self.refused = 0  # times a unit would not take it
        self.wait_s = 0.0  # time.monotonic() when its wait for a unit is over, 0 = it does not wait
        self.slow = 0  # units lost as slow while they computed its prompt
