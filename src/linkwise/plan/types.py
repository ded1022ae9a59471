"""What a plan is made of. Everything here is a frozen value a person can read as JSON."""

from typing import Any

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.schema import FIT_SCHEMA, NOPLAN_SCHEMA, PLAN_SCHEMA, Frozen
from linkwise.engine.base import Options, Resolved
from linkwise.engine.step_constants import StepCalibration
from linkwise.model.types import Model
from linkwise.plan.frontier_types import Frontier
from linkwise.plan.trust import Trust
from linkwise.workload.types import Workload


class Op(Frozen, frozen=True, kw_only=True):
    """One communication of a step, as every rank of its group calls it (DESIGN §2.1, S as in §3).

    kind: all_reduce, all_gather, reduce_scatter, all_to_all, send_recv, broadcast, gather.
    role: embed, attn.out, mlp.out, moe.dispatch, moe.combine, moe.out, logits, pp.hidden, cp.kv, dcp.*, kv.handoff.
    group: the axis whose groups call it (core.layout.AXES). size: ranks of one group.
    S_bytes: size of one call. repeat: calls in a step (layers of the stage that make it).
    useful_recv_bytes, wire_sent_bytes, wire_recv_bytes: per rank and call, under `algorithm`.
    sizes: per-rank S where ranks differ (busiest expert, uneven batches); empty when equal.
    waits_for: roles of the ops or kernels it depends on. stream: "compute" when a step waits for it.
    """

    kind: str
    role: str
    group: str
    size: int
    S_bytes: Any
    repeat: int
    stage: int
    dtype: str
    tokens: Any
    algorithm: str
    useful_recv_bytes: Any
    wire_sent_bytes: Any
    wire_recv_bytes: Any
    microbatch: int = 0
    stream: str = "compute"
    waits_for: tuple[str, ...] = ()
    sizes: tuple[Any, ...] = ()


class Entry(Frozen, frozen=True, kw_only=True):
    """One line of the ledger: a state with a name, where it is sharded and where it is replicated.

    name: weights.<role>, activations, logits, kv, adapters, collective_buffers, cuda_graphs, runtime, staging, ...
    sharded_over, replicated_over: axis names with their degree ("tp 8"); empty = whole / one copy.
    place: device or host. in_budget: counted inside the engine's memory budget.
    """

    name: str
    bytes: int
    sharded_over: str = ""
    replicated_over: str = ""
    place: str = "device"
    in_budget: bool = True
    note: str = ""


class RankLedger(Frozen, frozen=True, kw_only=True):
    """Memory of one rank class (ranks of a group whose ledger is equal).

    budget_bytes: device memory x utilisation. kv_bytes: what is left for KV and other per-request state, before
    headroom. kv_tokens: tokens that fit, whole blocks; None for a hybrid stack. requests: requests of the workload's
    lengths that fit, after burst headroom and with every batch the pipeline keeps in flight.
    """

    rank_class: str
    ranks: tuple[int, ...]
    entries: tuple[Entry, ...]
    device_bytes: int
    budget_bytes: int
    kv_bytes: int
    bytes_per_token: int | None
    kv_tokens: int | None
    requests: int

    def bytes_of(self, prefix: str) -> int:
        """Device bytes of the entries whose name starts with a prefix."""
        return sum(e.bytes for e in self.entries if e.place == "device" and e.name.startswith(prefix))


class Shortfall(Frozen, frozen=True, kw_only=True):
    """The first resource that does not fit (DESIGN §2.4)."""

    resource: str
    rank: int
    need: int | float
    have: int | float
    unit: str
    reason: str
    change: str = ""


class Ledger(Frozen, frozen=True, kw_only=True):
    """Memory of a serving group. tightest: index into `ranks` of the class that limits KV."""

    layout: Layout
    ranks: tuple[RankLedger, ...]
    tightest: int
    host: tuple[Entry, ...]
    not_modelled: tuple[str, ...]
    shortfall: Shortfall | None
    kv_tokens: int | None
    requests: int
    warnings: tuple[str, ...] = ()


class StepTime(Frozen, frozen=True, kw_only=True):
    """Time of one step of the busiest stage and of a token's way through all stages, seconds.

    compute_s: roofline of weights, KV and FLOPs. comm_s: exposed communication. host_s: launch and scheduler.
    """

    batch: int
    step_s: float
    compute_s: float
    comm_s: float
    host_s: float
    bubble: float
    parts: dict[str, float] = {}


class Point(Frozen, frozen=True, kw_only=True):
    """A layout at one batch size: what a replica then delivers.

    at_hand: requests served at once on average, which `batch` is rounded up from; 0 in files that do not say it: as
    many as batch.
    """

    batch: int
    tpot_s: float
    ttft_s: float
    rate_per_s: float
    tokens_per_s: float
    at_hand: float = 0.0


class Rejection(Frozen, frozen=True, kw_only=True):
    """A layout that was not chosen, and the first reason."""

    layout: Layout
    replicas: int
    shortfall: Shortfall


class Decision(Frozen, frozen=True, kw_only=True):
    """A choice with its break-even and the measurement that would settle it."""

    question: str
    answer: str
    because: tuple[str, ...]
    break_even: str
    measure: str


class Candidate(Frozen, frozen=True, kw_only=True):
    """A feasible layout: its point of operation and what it costs.

    tier, stage_tier: the slowest tier a tensor group, and all traffic of a pipeline stage, crosses.
    """

    layout: Layout
    replicas: int
    group_size: int
    point: Point
    max_rate_per_s: float
    requests: int
    kv_tokens: int | None
    weights_bytes_per_rank: int
    tier: str
    stage_tier: str = "device"


class Plan(Frozen, frozen=True, kw_only=True):
    """A chosen serving deployment with its inputs, so that it explains itself later.

    calibration: label of the constants the times rest on; step_calibration: those of the engine's step, None where the
    cluster's roofline stands for them; trust: how far chosen's TPOT and TTFT can be trusted.
    figures: every explainable figure by path; textbook: the same
    traffic figures under the textbook convention. command: how the engine starts one replica.
    """

    schema: str = PLAN_SCHEMA
    version: str
    facts: dict[str, str]
    calibration: str
    model: Model
    cluster: Cluster
    workload: Workload
    engine: str
    engine_version: str
    convention: str
    options: Options
    resolved: Resolved
    layout: Layout
    replicas: int
    rank_grid: tuple[tuple[int, ...], ...]
    ledger: Ledger
    prefill: tuple[Op, ...]
    decode: tuple[Op, ...]
    mixed: tuple[Op, ...]
    decode_time: StepTime
    prefill_time: StepTime
    chosen: Candidate
    runner_up: Candidate | None
    rejected: tuple[Rejection, ...]
    considered: int
    decisions: tuple[Decision, ...]
    rule: str
    figures: dict[str, int | float]
    textbook: dict[str, int | float] = {}
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    step_calibration: StepCalibration | None = None
    trust: Trust | None = None
    frontier: Frontier | None = None


class NoPlan(Frozen, frozen=True, kw_only=True):
    """No layout is feasible: the resource that is short in the layout that came nearest, and the nearest changes."""

    schema: str = NOPLAN_SCHEMA
    model: Model
    cluster: Cluster
    workload: Workload
    engine: str
    engine_version: str
    options: Options
    considered: int
    nearest: Rejection
    rejected: tuple[Rejection, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    frontier: Frontier | None = None


class Fit(Frozen, frozen=True, kw_only=True):
    """The answer of `linkwise fit`: the ledger of the best layout tried, or the first thing that does not fit.

    nearest: the smallest changes that would make it fit, in order.
    """

    schema: str = FIT_SCHEMA
    model: Model
    cluster: Cluster
    workload: Workload
    engine: str
    engine_version: str
    options: Options
    resolved: Resolved
    layout: Layout
    replicas: int
    ledger: Ledger
    fits: bool
    nearest: tuple[str, ...]
    tried: int
    figures: dict[str, int | float]
    notes: tuple[str, ...] = ()
