"""What an engine does with a layout: the contract. Facts are data (`engine/facts/<name>.yaml`), one file per engine
holds what needs code: which layouts it refuses, how it cuts a pipeline, its flags and their reverse."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Literal, Self

from msgspec.structs import replace

from linkwise.cluster.types import Accelerator, Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen
from linkwise.core.units import show_bytes
from linkwise.engine.step_calibrations import shipped
from linkwise.engine.step_constants import StepCalibration, StepConstants, step_constants
from linkwise.model.held import held
from linkwise.model.types import Model


class Options(Frozen, frozen=True, kw_only=True):
    """What a user may choose besides the layout. None = the engine's default.

    dtype: of activations and of weights that are not quantised; None = what the engine makes of the checkpoint's.
    weight_dtype: a what-if: store linear weights in this dtype (fp8, int4, nvfp4); None = as the checkpoint has them.
    max_batched_tokens: most tokens of one step. max_seqs: most requests of one step. max_model_len: longest request.
    mtp_tokens: speculative tokens per step drawn by MTP/draft heads (0 = heads not loaded).
    lora_*: adapters resident at once, their rank, and the role prefixes they target.
    prefix_cache_tokens: tokens of KV kept for shared prefixes beside the running requests.
    moe_skew: load of the busiest expert rank over the mean, >= 1 (1 = uniform routing).
    moe_exchange: how tokens reach experts when attention is data parallel (see Convention.moe_exchange).
    dense_whole: dense MLPs whole on each rank, which runs its own rows, whatever the convention splits them over.
    head_over_tp: the head split over the attention tensor group alone, where the convention has all ranks of a stage.
    mtp_acceptance: chance that a drawn token is kept, given those before it were.
    eager: no CUDA graphs.
    """

    dtype: str | None = None
    kv_dtype: str | None = None
    weight_dtype: str | None = None
    memory_utilization: float | None = None
    max_batched_tokens: int | None = None
    max_seqs: int | None = None
    max_model_len: int | None = None
    block_tokens: int | None = None
    mtp_tokens: int = 0
    mtp_acceptance: float = 0.85
    lora_count: int = 0
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = ("attn", "mlp")
    prefix_cache_tokens: int = 0
    moe_skew: float = 1.0
    moe_exchange: str | None = None
    dense_whole: bool = False
    head_over_tp: bool = False
    microbatches: int | None = None
    eager: bool = False

    def __post_init__(self) -> None:
        for field, (least, most) in _RANGES.items():
            value = getattr(self, field)
            # Written so that NaN is refused as well.
            if value is not None and not least <= value <= most:
                raise InputError(f"{field} is {value}", where="options", expected=f"{least}..{most}")


# What no engine accepts or no machine holds is a typing error.
_RANGES: dict[str, tuple[float, float]] = {
    "memory_utilization": (0.01, 1.0),
    "max_batched_tokens": (1, 10_000_000),
    "max_seqs": (1, 1_000_000),
    "max_model_len": (1, 100_000_000),
    "block_tokens": (1, 65_536),
    "mtp_tokens": (0, 64),
    "mtp_acceptance": (0.0, 1.0),
    "lora_count": (0, 100_000),
    "lora_rank": (1, 8_192),
    "prefix_cache_tokens": (0, 1_000_000_000),
    "moe_skew": (1.0, 1_000.0),
    "microbatches": (1, 4_096),
}

DEFAULT = Options()


class Defaults(Frozen, frozen=True, kw_only=True):
    """An engine version's defaults, as its documentation or source states them.

    memory_utilization: share of device memory the engine budgets. utilization_of says of what: "total" = device memory,
        and the budget holds weights, KV, activations and runtime; "free" = what is free after loading weights and a
        trial run, and it all goes to KV; "static" = device memory, and the budget holds weights and KV only
        (activations, graphs and runtime live in the rest).
    """

    memory_utilization: float
    utilization_of: Literal["total", "free", "static"]
    max_batched_tokens: int
    max_seqs: int
    block_tokens: int
    block_tokens_mla: int
    vocab_pad: int
    cuda_graphs: bool = True


class Memory(Frozen, frozen=True, kw_only=True):
    """Constants of an engine's memory beside weights and KV; each has its source in the facts file.

    runtime_bytes: CUDA context and libraries outside the allocator, one rank alone. collective_bytes: added per rank
    when it is in a tensor, expert or pipeline group. graph_bytes: CUDA graphs; graphs_in_budget: whether the engine
    counts them inside the utilisation budget. sampler_copies: float32 copies of max_seqs x vocab at the sampler's peak.
    sampler_hidden: hidden-sized 2-byte copies of every batched token still alive at that peak.
    activation_hidden, activation_intermediate: hidden and intermediate multiples alive at a gated layer's peak,
        elements per token. activation_reduce: hidden multiples more in a tensor group (its all-reduce is not in place).
    moe_chunk_tokens: tokens an expert layer's buffers hold at once; 0 = all of a step.
    expert_pad: by Model.quantization, the multiples (hidden, intermediate) an expert kernel pads its weights to.
    """

    runtime_bytes: int
    collective_bytes: int
    graph_bytes: int
    graphs_in_budget: bool
    sampler_copies: float
    activation_hidden: float
    activation_intermediate: float
    host_bytes: int = 0
    sampler_hidden: float = 0.0
    activation_reduce: float = 0.0
    moe_chunk_tokens: int = 0
    expert_pad: dict[str, tuple[int, int]] = {}


class Dtypes(Frozen, frozen=True, kw_only=True):
    """Which dtype an engine runs a model in.

    auto: what its own choice makes of a checkpoint's dtype; one that is not named stays. families: the same for
    model_types that match a pattern; wins. choices: what its flag may name; empty = it has no flag.
    bfloat16_capability: lowest CUDA compute capability (major * 10 + minor) with bfloat16; below it float16 is taken.
    """

    auto: dict[str, str] = {}
    families: dict[str, dict[str, str]] = {}
    choices: tuple[str, ...] = ()
    bfloat16_capability: int = 0


class Batching(Frozen, frozen=True, kw_only=True):
    """How an engine fills its steps; the closed form of a plan and the simulator both follow it.

    policy: "mixed" (prompts ride in steps of rows that decode) or "prefill-first" (prompts in steps of their own, which
        rows wait for). cuts_prompts: False = a prompt waits for a step with room for all of it.
    reserve: share of the answer a request's KV is taken for when it is admitted.
    ahead: a step is put together while the one before it runs, so who comes meanwhile is in the step after.
    part_blocks: a prompt that shares the beginning of a block takes these tokens over in a copy, so that all it shares
        is found cached, not its whole blocks alone.
    """

    policy: Literal["mixed", "prefill-first"] = "mixed"
    cuts_prompts: bool = True
    reserve: float = 0.0
    ahead: bool = False
    part_blocks: bool = False


class Convention(Frozen, frozen=True, kw_only=True):
    """What a step communicates, as data; plan/step.py turns it into ops.

    embed_split: "tp" (vocabulary-parallel, one all-reduce) or "none" (replicated).
    logits: collective that assembles sampled rows' logits: all_gather, gather or none; head_split likewise.
    pp_tensors: hidden-sized tensors a stage hands over (2 = hidden states and residual).
    pp_sliced: True = each tp rank sends 1/tp and the receiving tensor group all-gathers.
    moe_exchange: "all_to_all" (a copy of a token for each of its experts), "all_to_all_node" (a token crosses to a node
        once and fans out there), "all_gather" (all tokens to all ranks, then reduce-scatter); used when tokens differ
        over the ep group.
    moe_replicated: True = when tokens are already replicated over the ep group (tp only), experts are applied locally
        and one all-reduce combines; False = all-to-all even then.
    dispatch_dtype, combine_dtype: "activation" or a dtype name, what an expert exchange sends.
    dispatch_scale_block, dispatch_header_bytes: what a dispatched copy carries beside its values: one float32 scale for
        each so many values (0 = none), and a header.
    mlp_over, shared_over: over which axes dense MLPs and shared experts are sharded when dp_attn > 1 or ep > 1:
        "tp" (replicated over dp_attn), "stage" (over all ranks of the stage), "none" (replicated everywhere).
    head_over: axis of the head and embedding: "tp" or "stage". embed_over: the embedding's own axis where it differs
        ("" = as head_over). embed_reduce: False = the split embedding's all-reduce is left out (textbook).
    vision_over: axis of a vision tower's projections: "tp" or "none" (whole on every rank). A tower whose heads do not
        divide is whole as well.
    all_reduce, all_reduce_small: implementation of a tensor group's all-reduce ("nccl", "custom"); the small one serves
        payloads up to small_bytes["size"], or ["capability:size"] where a device differs, inside one island (two ranks
        also over PCIe with peer access); below one_shot_bytes[size] in one
        step (every rank reads all peers), above in two (reduce-scatter and all-gather).
    kv_heads_replicate: True = tp beyond the KV heads replicates them (False = refused).
    sequence_stays: True = sequence-sharded rows stay so from stage to stage and are gathered before the head.
    moe_counts: True = an all-to-all of each expert's row count (int64) goes ahead of a direct exchange.
    cp_kv: "split" (a token's KV is on one cp rank: a ring for prompts, rows put parts together) or "whole" (on each:
        prompts gather what is new, and every cp rank makes all rows by itself).
    supported: False while the convention has not been compared with the real engine or a published table.
    """

    name: str
    embed_split: str = "tp"
    head_split: str = "tp"
    logits: str = "all_gather"
    pp_tensors: int = 1
    pp_sliced: bool = False
    moe_exchange: str = "all_to_all"
    moe_replicated: bool = True
    dispatch_dtype: str = "activation"
    combine_dtype: str = "activation"
    dispatch_scale_block: int = 0
    dispatch_header_bytes: int = 0
    mlp_over: str = "tp"
    shared_over: str = "tp"
    head_over: str = "tp"
    all_reduce: str = "nccl"
    all_reduce_small: str = "nccl"
    small_bytes: dict[str, int] = {}
    one_shot_bytes: dict[str, int] = {}
    supported: bool = False
    embed_over: str = ""
    kv_heads_replicate: bool = True
    embed_reduce: bool = True
    vision_over: str = "tp"
    sequence_stays: bool = False
    moe_counts: bool = False
    cp_kv: str = "split"


class Refusal(Frozen, frozen=True, kw_only=True):
    """Why an engine will not run a layout, and the smallest change that helps.

    change: in words, for the first of the ways. ways: degrees that would help, each a set to change together. What
        `Engine.refuses` returns has one way at most, and the layout it leads to is not refused; without one `change`
        names no degree.
    """

    reason: str
    change: str = ""
    ways: tuple[dict[str, int], ...] = ()


class Parsed(Frozen, frozen=True, kw_only=True):
    """An engine's own command read back: what it would run.

    partial: of the layout only how many engines there are is known (replicas, or dp_attn), the degrees are to be
    given. kv_tokens: what the KV cache of each engine holds as a running server says; None = not said.
    """

    engine: str
    model: str
    layout: Layout
    replicas: int = 1
    options: Options = Options()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    partial: bool = False
    kv_tokens: int | None = None


class Engine(ABC):
    """One engine at one version. Instances are immutable and cheap."""

    name: str
    version: str
    sources: tuple[str, ...]
    defaults: Defaults
    memory: Memory
    convention: Convention
    batching: Batching = Batching()
    _calibration: tuple[StepCalibration | None] | None = None  # None: the one that is shipped
    _constants: StepConstants | None = None

    @property
    def calibration(self) -> StepCalibration | None:
        """The constants of its step, fitted to results of serving: the shipped ones unless others were given. None =
        those of the cluster (a roofline)."""
        return shipped(self.name) if self._calibration is None else self._calibration[0]

    def calibrated(self, calibration: StepCalibration | None) -> Self:
        """The engine with other constants of a step; None = the cluster's roofline."""
        other = copy(self)
        other._calibration, other._constants = (calibration,), None
        return other

    def with_constants(self, constants: StepConstants) -> Self:
        """The engine with these very constants of a step, on any cluster: for fits and what-ifs."""
        other = copy(self)
        other._constants = constants
        return other

    def step_constants(self, cluster: Cluster) -> StepConstants:
        """What a step takes beyond bytes and FLOPs, on a cluster."""
        if self._constants is not None:
            return self._constants
        return step_constants(self.calibration, self.version, cluster)

    def defaults_for(self, accelerator: Accelerator | None, layout: Layout | None = None) -> Defaults:
        """Defaults where they depend on the device (and layout); without a device, those of a large data-centre GPU."""
        return self.defaults

    def convention_for(self, model: Model, layout: Layout, options: Options) -> Convention:
        """The convention where it depends on the layout or on an option (what is replicated, how experts exchange)."""
        return self.convention

    def warnings(self, model: Model, layout: Layout) -> tuple[str, ...]:
        """What may go wrong although the engine accepts the layout; each names a workaround."""
        return ()

    def files(self, layout: Layout, options: Options) -> dict[str, str]:
        """Files `command` refers to, name to text; empty for engines whose flags say everything."""
        return {}

    def node_notes(self, layout: Layout, nodes: int) -> tuple[str, ...]:
        """What to write for the words in capitals of a `command` for several nodes, and how each node is started."""
        return ()

    def together(self, replicas: int, layout: Layout, per_node: int) -> tuple[int, tuple[str, ...]]:
        """How many of a plan's replicas one `command` starts, and what to say of the others."""
        return 1, ()

    @abstractmethod
    def refuses(
        self, model: Model, layout: Layout, *, devices_per_node: int, options: Options = DEFAULT
    ) -> Refusal | None:
        """The first reason this engine version would not start the layout for the model; None when it would.

        options: those that say what is split over what.
        """

    @abstractmethod
    def stage_layers(self, layers: int, pp: int) -> tuple[int, ...]:
        """Decoder layers of each pipeline stage, in order (a partition of `layers`)."""

    @abstractmethod
    def command(self, model: str, layout: Layout, options: Options, *, replicas: int = 1, nodes: int = 1) -> list[str]:
        """The launch command of one deployment as an argument list.

        nodes: nodes one group spans. The command is then started on every node (where one launcher does that, it is
        part of the command); words in capitals differ by node or site, `node_notes` says what to write for them.
        """

    @abstractmethod
    def parse(
        self, arguments: list[str], *, model: Model | None = None, files: Mapping[str, str] | None = None
    ) -> Parsed:
        """The reverse of `command`. Raises InputError on a flag that changes layout or memory and is not known.

        model: what is served, where a flag means different things for dense and MoE models.
        files: texts of files the command names (see `files`).
        """

    def dtype_of(self, model: Model, options: Options, accelerator: Accelerator | None = None) -> str:
        """What the model runs in: the user's choice, else what the engine makes of the checkpoint's own."""
        return options.dtype or model.config_dtype or model.dtype

    def holds(self, model: Model, options: Options, accelerator: Accelerator | None = None) -> Model:
        """The model as this engine holds it: what is not quantised is loaded into the dtype it runs in, with a note
        where that takes other bytes than the checkpoint.

        Raises InputError for a dtype that the engine does not run, or not with such weights.
        """
        dtype = self.dtype_of(model, options, accelerator)
        found = held(model, dtype)
        notes = list(found.notes)
        if found.weight_bytes != model.weight_bytes:
            notes.append(
                f"{self.name} loads weights that are not quantised into {dtype}: {show_bytes(found.weight_bytes)}, of"
                f" {show_bytes(model.weight_bytes)} as stored"
            )
        if dtype == "float32" and accelerator is not None and accelerator.capability:
            notes.append(
                "float32: its matrix products are priced at the bfloat16 rate, which is several times theirs on this"
                " device: times are lower bounds"
            )
        return found if len(notes) == len(found.notes) else replace(found, notes=tuple(notes))

    def resolve(
        self,
        options: Options,
        model: Model,
        accelerator: Accelerator | None = None,
        layout: Layout | None = None,
    ) -> "Resolved":
        """Options with the engine's defaults filled in, those of the accelerator when one is given."""
        defaults = self.defaults_for(accelerator, layout)
        block = defaults.block_tokens_mla if model.is_mla else defaults.block_tokens
        pick = options
        return Resolved(
            memory_utilization=pick.memory_utilization or defaults.memory_utilization,
            max_batched_tokens=pick.max_batched_tokens or defaults.max_batched_tokens,
            max_seqs=pick.max_seqs or defaults.max_seqs,
            max_model_len=pick.max_model_len or model.max_len,
            block_tokens=pick.block_tokens or block,
        )


class Resolved(Frozen, frozen=True, kw_only=True):
    """The settings an engine would run with."""

    memory_utilization: float
    max_batched_tokens: int
    max_seqs: int
    max_model_len: int
    block_tokens: int
