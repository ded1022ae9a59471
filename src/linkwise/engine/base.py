"""What an engine does with a layout: the contract. Facts are data (`engine/facts/<name>.yaml`), one file per engine
holds what needs code: which layouts it refuses, how it cuts a pipeline, its flags and their reverse."""

from abc import ABC, abstractmethod
from typing import Literal

from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen
from linkwise.model.types import Model


class Options(Frozen, frozen=True, kw_only=True):
    """What a user may choose besides the layout. None = the engine's default.

    weight_dtype: a what-if: store linear weights in this dtype (fp8, int4, nvfp4); None = as the checkpoint stores them.
    max_batched_tokens: most tokens of one step. max_seqs: most requests of one step. max_model_len: longest request.
    mtp_tokens: speculative tokens per step drawn by MTP/draft heads (0 = heads not loaded).
    lora_*: adapters resident at once, their rank, and the role prefixes they target.
    prefix_cache_tokens: tokens of KV kept for shared prefixes beside the running requests.
    moe_skew: load of the busiest expert rank over the mean, >= 1 (1 = uniform routing).
    moe_exchange: how tokens reach experts when attention is data parallel (see Convention.moe_exchange).
    eager: no CUDA graphs.
    """

    kv_dtype: str | None = None
    weight_dtype: str | None = None
    memory_utilization: float | None = None
    max_batched_tokens: int | None = None
    max_seqs: int | None = None
    max_model_len: int | None = None
    block_tokens: int | None = None
    mtp_tokens: int = 0
    lora_count: int = 0
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = ("attn", "mlp")
    prefix_cache_tokens: int = 0
    moe_skew: float = 1.0
    moe_exchange: str | None = None
    microbatches: int | None = None
    eager: bool = False


class Defaults(Frozen, frozen=True, kw_only=True):
    """An engine version's defaults, as its documentation or source states them.

    memory_utilization: share of device memory the engine budgets (of the total, or of what is free after loading
    weights when `utilization_of` is "free").
    """

    memory_utilization: float
    utilization_of: Literal["total", "free"]
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
    counts them inside the utilisation budget. sampler_copies: float32 copies of max_seqs x vocab the sampler peak holds.
    activation_factors: (hidden multiples, intermediate multiples) of the dense layer's peak, elements per token.
    """

    runtime_bytes: int
    collective_bytes: int
    graph_bytes: int
    graphs_in_budget: bool
    sampler_copies: float
    activation_hidden: float
    activation_intermediate: float
    host_bytes: int = 0


class Convention(Frozen, frozen=True, kw_only=True):
    """What a step communicates, as data; plan/step.py turns it into ops.

    embed_split: "tp" (vocabulary-parallel, one all-reduce) or "none" (replicated).
    logits: collective that assembles sampled rows' logits: all_gather, gather or none; head_split likewise.
    pp_tensors: hidden-sized tensors a stage hands over (2 = hidden states and residual).
    pp_sliced: True = each tp rank sends 1/tp and the receiving tensor group all-gathers.
    moe_exchange: "all_to_all" (each token to its experts' ranks), "all_gather" (all tokens to all ranks, then
        reduce-scatter), used when tokens differ over the ep group.
    moe_replicated: True = when tokens are already replicated over the ep group (tp only), experts are applied locally
        and one all-reduce combines; False = all-to-all even then.
    dispatch_dtype, combine_dtype: "activation" or a dtype name, what an expert exchange sends.
    dispatch_dedup_node: True = a token crosses to a node once, then fans out inside it.
    mlp_over, shared_over: over which axes dense MLPs and shared experts are sharded when dp_attn > 1 or ep > 1:
        "tp" (replicated over dp_attn), "stage" (over all ranks of the stage), "none" (replicated everywhere).
    head_over: axis of the head and embedding: "tp" or "stage".
    kv_heads_replicate: True = tp beyond the KV heads replicates them (False = refused).
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
    dispatch_dedup_node: bool = False
    mlp_over: str = "tp"
    shared_over: str = "tp"
    head_over: str = "tp"
    all_reduce: str = "nccl"
    all_reduce_small: str = "nccl"
    small_bytes: dict[str, int] = {}
    supported: bool = False


class Refusal(Frozen, frozen=True, kw_only=True):
    """Why an engine will not run a layout, and the smallest change that helps."""

    reason: str
    change: str = ""


class Parsed(Frozen, frozen=True, kw_only=True):
    """An engine's own command read back: what it would run."""

    engine: str
    model: str
    layout: Layout
    replicas: int = 1
    options: Options = Options()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Engine(ABC):
    """One engine at one version. Instances are immutable and cheap."""

    name: str
    version: str
    sources: tuple[str, ...]
    defaults: Defaults
    memory: Memory
    convention: Convention

    @abstractmethod
    def refuses(self, model: Model, layout: Layout, *, devices_per_node: int) -> Refusal | None:
        """The first reason this engine version would not start the layout for the model; None when it would."""

    @abstractmethod
    def stage_layers(self, layers: int, pp: int) -> tuple[int, ...]:
        """Decoder layers of each pipeline stage, in order (a partition of `layers`)."""

    @abstractmethod
    def command(self, model: str, layout: Layout, options: Options, *, replicas: int = 1) -> list[str]:
        """The launch command of one deployment as an argument list."""

    @abstractmethod
    def parse(self, arguments: list[str]) -> Parsed:
        """The reverse of `command`. Raises InputError on a flag that changes layout or memory and is not known."""

    def resolve(self, options: Options, model: Model) -> "Resolved":
        """Options with the engine's defaults filled in."""
        block = self.defaults.block_tokens_mla if model.is_mla else self.defaults.block_tokens
        pick = options
        return Resolved(
            memory_utilization=pick.memory_utilization or self.defaults.memory_utilization,
            max_batched_tokens=pick.max_batched_tokens or self.defaults.max_batched_tokens,
            max_seqs=pick.max_seqs or self.defaults.max_seqs,
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
