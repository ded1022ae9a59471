"""Who owns a request? At every moment exactly one: the queue, or one attempt on one unit; then it is over, once.

Not thread-safe: the supervisor's lock is around every call.
"""

from typing import Literal, NamedTuple

from linkwise.core.errors import InternalError

Ending = Literal["stop", "length", "cancelled", "failed"]


class Attempt(NamedTuple):
    """One try of a request on a unit. number: never used twice by one book. retry: 0 for the request's first try."""

    request: str
    unit: str
    number: int
    retry: int

    @property
    def job(self) -> str:
        """The id under which the unit knows it."""
        return f"{self.request}#{self.number}"


class Book:
    """The state machine of all requests: admitted -> queued <-> owned by an attempt -> over.

    Any other move is a bug of ours and raises InternalError. stale: events of attempts that own nothing any more.
    """

    def __init__(self) -> None:
        self.admitted = 0
        self.stale = 0
        self.over: dict[Ending, int] = {"stop": 0, "length": 0, "cancelled": 0, "failed": 0}
        self._owner: dict[str, Attempt | None] = {}
        self._tries: dict[str, int] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """Requests that are not over."""
        return len(self._owner)

    def __contains__(self, request: str) -> bool:
        return request in self._owner

    def owner(self, request: str) -> Attempt | None:
        """The attempt that owns a request; None while it is queued. InternalError when it is over or unknown."""
        self._live(request)
        return self._owner[request]

    def on(self, unit: str) -> list[Attempt]:
        """Attempts under way on a unit, oldest first."""
        return sorted((a for a in self._owner.values() if a is not None and a.unit == unit), key=lambda a: a.number)

    def queued(self) -> int:
        """Requests that no unit has."""
        return sum(a is None for a in self._owner.values())

    def admit(self, request: str) -> None:
        """A new request, queued."""
        if request in self._owner:
            raise InternalError(f"request {request} is admitted twice")
        self._owner[request] = None
        self._tries[request] = 0
        self.admitted += 1

    def give(self, request: str, unit: str) -> Attempt:
        """Queued -> owned by a new attempt on a unit."""
        self._live(request)
        if self._owner[request] is not None:
            raise InternalError(f"request {request} goes to {unit} while {self._owner[request]} owns it")
        self._numbers += 1
        attempt = Attempt(request, unit, self._numbers, self._tries[request])
        self._tries[request] += 1
        self._owner[request] = attempt
        return attempt

    def owns(self, attempt: Attempt) -> bool:
        """Does this attempt still own its request? Only then its events count."""
        return self._owner.get(attempt.request) == attempt

    def take_back(self, attempt: Attempt) -> None:
        """Owned by this attempt -> queued."""
        if not self.owns(attempt):
            raise InternalError(f"{attempt} is taken back but owns nothing")
        self._owner[attempt.request] = None

    def end(self, request: str, how: Ending) -> None:
        """Queued or owned -> over."""
        self._live(request)
        del self._owner[request], self._tries[request]
        self.over[how] += 1

    def check(self) -> None:
        """The invariant: every admitted request is live or over, never both, never neither."""
        ended = sum(self.over.values())
        if self.admitted != ended + len(self._owner):
            raise InternalError(f"{self.admitted} requests admitted, {ended} over, {len(self._owner)} live")
        numbers = [a.number for a in self._owner.values() if a is not None]
        if len(set(numbers)) != len(numbers):
            raise InternalError("one attempt owns two requests")

    def _live(self, request: str) -> None:
        if request not in self._owner:
            raise InternalError(f"request {request} is over or was never admitted")
