"""What a diagnosis says (DESIGN §2.7): findings that cite their evidence, or that the evidence does not decide."""

from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import force_setattr

from linkwise.core.schema import Frozen

FINDINGS_SCHEMA = "linkwise.findings/1"
DRIVER = "the driver"  # the first reporter of what the process that starts the ranks saw of them

Class = Literal[
    "dead_rank",             # its process ended while others waited
    "stopped_rank",          # it lives and does nothing (SIGSTOP, a lock, a wedged driver)
    "late_rank",             # consistently late by its own doing; `cause` says host, device, contention, placement
    "rotating_straggler",    # a different rank is late each time: the host they share
    "skipped_collective",
    "repeated_collective",
    "reordered_collective",
    "size_mismatch",
    "dtype_mismatch",
    "op_mismatch",
    "control_divergence",    # ranks took different decisions and so entered different collectives
    "slow_link",             # every member arrives in time, the bytes take long; link or NIC if it can be named
    "network_error",
    "device_error",
    "transport_unexpected",  # not what the plan, or the hardware, lets expect
    "handoff_stalled",       # transfers queue or hang while decode is idle
    "handoff_allocation",    # destination blocks: none free, or fragmented
    "handoff_slow_sender",
    "handoff_ownership",     # a retry nobody answers for
    "prefill_starved",       # the pool of the name has too little capacity for the other
    "decode_starved",
    "expert_imbalance",
    "stage_imbalance",
    "host_contention",       # CPU quota, too many threads, cores shared
    "hang",                  # all arrived, none left: which rank is not decided
    "monitor_disagrees",     # a monitor says healthy, or names others, while ranks say otherwise
    "undecided",             # something is wrong; the evidence does not say whose
]  # fmt: skip

Cause = Literal["", "host", "device", "contention", "placement", "network", "software", "configuration"]
Recovery = Literal["restart group", "retry elsewhere", "reject", "none", ""]


class Fault(Frozen, frozen=True, kw_only=True):
    """Where it began. ranks: world ranks, empty = no rank (a link, a host, or not known). unit: their replica."""

    ranks: tuple[int, ...] = ()
    unit: str = ""
    device: str = ""
    host: str = ""
    link: str = ""


class Finding(Frozen, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One thing that is wrong. confidence: 0 to 1. first_reporter: who complained first, which need not be the fault.

    decided: False = an abstention, where `would_decide` says what evidence is missing. waited_s: seconds of others'
    waiting that begin here, where times are known. evidence: lines a person can check, most telling first.
    """

    class_: Class
    summary: str
    original_fault: Fault = Fault()
    cause: Cause = ""
    first_reporter: str = ""
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.5
    decided: bool = True
    waited_s: float = 0.0
    evidence: tuple[str, ...] = ()
    would_decide: str = ""
    next: str = ""
    recovery: Recovery = ""

    def __post_init__(self) -> None:
        """Rules compute with numpy's numbers; what a finding holds is plain, as JSON takes nothing else."""
        force_setattr(self, "confidence", float(self.confidence))
        force_setattr(self, "waited_s", float(self.waited_s))


class Row(Frozen, frozen=True, kw_only=True):
    """One rank in the table. Times in s over the whole record; what is not known is None.

    late_s: sum of its own lateness; waited_s: of its waiting for others; own_s: between its calls.
    """

    unit: str = ""
    rank: int
    host: str = ""
    device: str = ""
    calls: int = 0
    bytes: int = 0
    late_s: float | None = None
    waited_s: float | None = None
    own_s: float | None = None
    moved_s: float | None = None
    transport: str = ""
    errors: tuple[str, ...] = ()
    last: str = ""


class Bad(Frozen, frozen=True, kw_only=True):
    """Evidence that could not be used."""

    path: str
    reason: str


class Findings(Frozen, frozen=True, kw_only=True):
    """The answer of `diagnose`. clocks: how well hosts' clocks were brought together, in words. unread: which parts of
    the evidence could not be read, so that nothing is said of them."""

    schema: Literal["linkwise.findings/1"] = FINDINGS_SCHEMA  # type: ignore[assignment]
    findings: tuple[Finding, ...] = ()
    ranks: tuple[Row, ...] = ()
    used: tuple[str, ...] = ()
    unusable: tuple[Bad, ...] = ()
    clocks: str = ""
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 a fault found, 3 something is wrong and not decided."""
        if any(one.decided for one in self.findings):
            return 1
        return 3 if self.findings else 0
