"""What a simulation answers. Everything here is a frozen value a person can read as JSON."""

from typing import NamedTuple

from linkwise.core.schema import Frozen
from linkwise.plan.trust import Trust
from linkwise.simulate.rules import Fault
from linkwise.simulate.state import Array
from linkwise.simulate.stretch import Stretch

SIMULATION_SCHEMA = "linkwise.simulation/1"


class Spread(Frozen, frozen=True, kw_only=True):
    """Mean and percentiles of a figure over requests (or tokens), seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


class PoolUse(Frozen, frozen=True, kw_only=True):
    """What a pool's replicas did over the run.

    busy: mean share of time in which a pipeline stage computes. bubble: share of stage time idle while a step is under
    way somewhere in the group. kv_mean, kv_peak: share of KV blocks in use by requests, over time and at the fullest.
    waiting: requests in front of the pool, mean over time: for their first step, or for a decode pool's blocks and
    rows. rows: share of the requests its engine takes at once that it has, mean over time.
    """

    role: str
    label: str
    replicas: int
    steps: int
    busy: float
    bubble: float
    kv_mean: float
    kv_peak: float
    waiting: float
    rows: float


class Split(Frozen, frozen=True, kw_only=True):
    """Mean TTFT of requests that decoded, in its parts, seconds; they add up to it.

    blocks_s, link_s: waiting for blocks on the decode side, and for the links and the transfer itself.
    """

    queue_s: float
    prefill_s: float
    blocks_s: float
    link_s: float
    first_decode_s: float


class Summary(Frozen, frozen=True, kw_only=True):
    """A simulation in figures. Times in seconds, rates per second over span_s (first arrival to last end).

    in_target: share of all requests served inside the targets; goodput_per_s: those per second. refused: by a full
    queue. lost: with a replica, or in transfer (unmoved). itl: gaps between tokens, in bins of 1.6 %.
    prefill_tokens: computed, with those computed again (recomputed_tokens); cached_tokens: found in prefix caches.
    in_system_s: requests in the system, integrated over time. saturated: load beyond what the pools serve; saturation
    says what was seen. stretch: in which more came than was served, of a load that is served as a whole. starving: the
    pool that has room while requests wait, "" for none; short: what they wait for, "prefill", "decode" or "links".
    trust: how far the means of TTFT and TPOT can be trusted. faults, recovery: as they were asked for; faults_never:
    which of them, from 0, begin after the last request has ended.
    """

    schema: str = SIMULATION_SCHEMA
    seed: int
    requests: int
    served: int
    refused: int
    lost: int
    unmoved: int
    span_s: float
    rate_per_s: float
    output_tokens_per_s: float
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    queue: Spread | None
    ttft_target_s: float | None
    tpot_target_s: float | None
    in_target: float
    goodput_per_s: float
    split: Split | None
    pools: tuple[PoolUse, ...]
    steps: int
    events: int
    prefill_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    decode_tokens: int
    preemptions: int
    retries: int
    in_system_s: float
    saturated: bool
    saturation: str
    starving: str
    short: str = ""
    starving_why: str = ""
    stretch: Stretch | None = None
    trust: Trust | None = None
    faults: tuple[Fault, ...] = ()
    faults_never: tuple[int, ...] = ()
    recovery: str = ""
    notes: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the load is served: it is not beyond the pools, over the whole run or over a stretch whose requests
        wait longer than their target, and no request was refused or lost."""
        late = self.stretch is not None and self.stretch.late
        return not self.saturated and not late and self.served == self.requests


class Simulated(NamedTuple):
    """The figures, one record a request (state.REQUEST), and the steps kept for a timeline (state.LOG)."""

    summary: Summary
    requests: Array
    steps: Array
    replicas_of_slots: Array
    world: object
