"""What a lab's keeper is told, and what it answers: the two messages between run.py and inside.py."""

from linkwise.core.schema import Frozen
from linkwise.measure.lab.topology import Wiring

BEGUN = b"\n"  # what the keeper answers first, once it has been told: JSON may begin with it


class Job(Frozen, frozen=True, kw_only=True):
    """What the keeper is told, in one line of JSON.

    answer: the file descriptor its Outcome goes to, after BEGUN. errors: the one that is its standard error from then
    on; -1 = as it is.
    """

    wiring: Wiring
    command: tuple[str, ...]
    timeout_s: float
    answer: int
    errors: int = -1


class RankEnd(Frozen, frozen=True, kw_only=True):
    """How a rank ended. code: its exit code, -N for signal N, None when it had to be stopped; reason: why, or empty."""

    rank: int
    device: int
    node: int
    code: int | None
    reason: str = ""


class Outcome(Frozen, frozen=True, kw_only=True):
    """error: the lab could not be built; then nothing ran. counts: by `src>dst`, (bytes, packets) while ranks ran."""

    error: str = ""
    ranks: tuple[RankEnd, ...] = ()
    counts: dict[str, tuple[int, int]] = {}
    seconds: float = 0.0
