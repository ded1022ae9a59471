"""What is done when a group is lost: the rule for its requests, and how often it is brought up again."""

from typing import Literal

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen

OnFault = Literal["retry", "restart", "reject"]


class Rules(Frozen, frozen=True, kw_only=True):
    """The rule for requests of a lost unit, and the bounds of every wait.

    on_fault: retry = on another ready unit at once, on a restarted one when there is no other; restart = on the same
    unit once it is up again; reject = the request ends with the fault (the server answers 503 with Retry-After).
    retries: of one request, all faults together. wait_s: how long a request waits for a unit to come up.
    max_waiting: requests without a first token; one more is refused. start_s: a unit that is not up by then has failed.
    backoff_s, backoff_most_s: pause before a restart, doubled with each failure in a row. failures, window_s: a unit
    that fails so often in so long stays down. silent_s: a unit with work and no event for so long is probed, and given
    up for lost when the probe fails too.
    """

    on_fault: OnFault = "retry"
    retries: int = 3
    wait_s: float = 60.0
    max_waiting: int = 256
    start_s: float = 300.0
    backoff_s: float = 0.25
    backoff_most_s: float = 30.0
    failures: int = 5
    window_s: float = 300.0
    silent_s: float = 60.0
    probe_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("wait_s", "start_s", "backoff_s", "backoff_most_s", "window_s", "silent_s", "probe_s"):
            if not 0 < getattr(self, name) <= 86_400:
                raise InputError(f"{name} is {getattr(self, name)!r}", where="rules", expected="0 to 86400 seconds")
        for name, least in (("retries", 0), ("max_waiting", 1), ("failures", 1)):
            if not least <= getattr(self, name) <= 1 << 20:
                raise InputError(f"{name} is {getattr(self, name)!r}", where="rules", expected=f"{least} or more")

    def backoff(self, in_a_row: int) -> float:
        """Seconds before the restart after the `in_a_row`-th failure in a row, from 1."""
        return min(self.backoff_most_s, self.backoff_s * 2.0 ** min(in_a_row - 1, 30))
