"""What a served model is: every weight tensor, every per-token and per-request state, the FLOPs of a token.

Engine-neutral: a tensor says how it *can* be split; what an engine really splits is the engine's own answer.
"""

from enum import StrEnum

import msgspec

from linkwise.core.quantity import Num, minimum
from linkwise.core.schema import Frozen


class Split(StrEnum):
    """How a tensor can be divided over tensor-parallel ranks."""

    COLUMN = "column"  # output features, in `units` indivisible pieces (heads, or single features when 0)
    ROW = "row"  # input features; the partial results need a reduction
    VOCAB = "vocab"  # vocabulary rows, after the engine's own padding
    KV = "kv"  # output features by key/value head: divided up to `units` heads, then replicated
    NONE = "none"  # whole on every rank


class Tensor(Frozen, frozen=True, kw_only=True):
    """One weight of the checkpoint, or `count` equal ones (the experts of a layer, fused).

    name: checkpoint name without the `.weight` suffix; experts are written `...experts.*.gate_proj`. Weights of one
        name are slices of one stored tensor, by outputs (qkv_proj, gate_up_proj).
    role: dotted, from general to special. First words: embed, head, norm, attn, linear, mamba, mlp, moe, mtp, vision.
        Under moe: moe.router, moe.experts.{gate,up,down}, moe.shared.{gate,up,down}, moe.latent. MTP layers repeat the
        roles below mtp (mtp.attn.q, mtp.moe.experts.up).
    layer: index in the decoder stack; -1 outside it (embedding, head, final norm, vision). MTP layers count on from the
        stack's end.
    shape: of one copy, output features first, unpacked.
    dtype: storage dtype of the elements (core.dtypes name).
    bytes: stored bytes of all copies, elements only.
    scale_bytes: quantisation scales and zero points of all copies, global scales included.
    kept: the dtype that programs keep it in whatever the model's own is (a router's correction, the constants of a
        recurrence); "" = the model's, see `model.held`.
    split, units: see Split. For COLUMN/ROW `units` is the number of indivisible pieces, 0 = any multiple works.
    """

    name: str
    role: str
    layer: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    scale_bytes: int = 0
    count: int = 1
    split: Split = Split.NONE
    units: int = 0
    kept: str = ""

    @property
    def parameters(self) -> int:
        """Elements of all copies (scales are not parameters)."""
        elements = self.count
        for extent in self.shape:
            elements *= extent
        return elements

    @property
    def total_bytes(self) -> int:
        return self.bytes + self.scale_bytes

    @property
    def is_expert(self) -> bool:
        """True for routed experts: the tensors that expert parallelism places."""
        return "moe.experts" in self.role


class State(Frozen, frozen=True, kw_only=True):
    """One kind of memory a layer keeps for a request.

    name: kv (keys and values), latent (MLA), index (sparse-attention index keys), conv, recurrent, compressed.
    per_token: elements per kept token over all heads; 0 for a fixed-size state.
    per_request: elements per request whatever its length; 0 for a per-token state.
    heads: pieces tensor parallelism can divide it into; beyond that it replicates. 1 = whole on every tp rank.
    window: tokens kept at most (sliding or chunked attention); None = all.
    stride: one entry is kept per `stride` tokens (compressed caches).
    dtype: fixed storage dtype, or "kv" when it follows the KV-cache dtype option.
    extra_bytes_per_token: bytes of scales or padding an entry carries beside its elements.
    entry_bytes: (KV-cache dtype, bytes of one whole entry) where a cache format is no plain array of elements; wins
        over the arithmetic of the fields above. A tuple, so that a State can be hashed.
    """

    name: str
    per_token: int = 0
    per_request: int = 0
    heads: int = 1
    window: int | None = None
    stride: int = 1
    dtype: str = "kv"
    extra_bytes_per_token: int = 0
    entry_bytes: tuple[tuple[str, int], ...] = ()


class Layer(Frozen, frozen=True, kw_only=True):
    """One decoder layer.

    mixer: full, sliding, chunked, mla, sparse (attention kinds), linear, mamba, or none. beside: a second mixer that
        works on the same input ("" = none); `mixers` has both.
    ffn: dense, moe or none.
    attn_flops_per_pair: FLOPs of one query token attending one key token, all heads (2·heads·(qk_dim + v_dim)).
    attends: keys a query attends at most (window, chunk or sparse top-k); None = all before it.
    attends_stride: compressed attention: one key stands for this many tokens. attends_window: latest tokens attended
        beside those keys. index_flops_per_pair: FLOPs of scoring one candidate key for a sparse top-k.
        `keys` and `context_flops` put these together.
    mixer_flops_per_token: FLOPs of a token beside matmuls with weights, whatever its context (recurrence, convolution).
    """

    index: int
    mixer: str
    ffn: str
    states: tuple[State, ...] = ()
    attn_flops_per_pair: int = 0
    attends: int | None = None
    attends_stride: int = 1
    attends_window: int = 0
    index_flops_per_pair: int = 0
    mixer_flops_per_token: int = 0
    beside: str = ""

    @property
    def mixers(self) -> tuple[str, ...]:
        """What mixes tokens here; each ends in a projection of its own."""
        return tuple(kind for kind in (self.mixer, self.beside) if kind not in {"none", ""})

    def keys(self, context: Num) -> Num:
        """Keys one query attends when `context` tokens (itself included) are there to see."""
        kept = context // self.attends_stride if self.attends_stride > 1 else context
        if self.attends is not None:
            kept = minimum(kept, self.attends)
        return kept + minimum(context, self.attends_window) if self.attends_window else kept

    def context_flops(self, context: Num) -> Num:
        """FLOPs of one query that grow with its context: attention, and the scores a sparse top-k is chosen by."""
        flops = self.attn_flops_per_pair * self.keys(context)
        if self.index_flops_per_pair:
            flops = flops + self.index_flops_per_pair * (context // self.attends_stride)
        return flops


class Moe(Frozen, frozen=True, kw_only=True):
    """Routing facts shared by the model's MoE layers.

    hidden: width of what is dispatched to an expert (the model's hidden size, or a latent size where it has one).
    groups, top_groups: group-limited routing: experts form `groups` groups, a token may use `top_groups` of them.
    """

    experts: int
    top_k: int
    hidden: int
    intermediate: int
    shared_experts: int = 0
    groups: int = 1
    top_groups: int = 1


class Model(Frozen, frozen=True, kw_only=True):
    """A served model, resolved from a config, safetensors headers or the catalogue.

    name: what the user called it. family: the config's model_type. source: where it was read (path, hub id, catalogue).
    served_as: what an engine is told to serve: a hub id or a folder; "" when there is neither.
    dtype: dtype of activations. config_dtype: the one its config says, where it is held in another; "" = dtype.
    kv_dtype: "auto" or the dtype the checkpoint was calibrated to keep KV in.
    heads, kv_heads: attention heads (the largest over layers where they differ); 0 without attention.
    mla_latent, mla_rope: width of an MLA cache entry, and the positional part of it; 0 without MLA.
    mtp_layers: multi-token-prediction layers the checkpoint carries (their tensors have roles mtp.*).
    exact_bytes: True when bytes come from safetensors headers rather than from shapes.
    notes: guesses that had to be made and facts the user should know; printed.
    """

    name: str
    family: str
    source: str
    hidden: int
    vocab: int
    max_len: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    config_dtype: str = ""
    kv_dtype: str = "auto"
    tied: bool = False
    moe: Moe | None = None
    mtp_layers: int = 0
    mla_latent: int = 0
    mla_rope: int = 0
    quantization: str = "none"
    exact_bytes: bool = False
    served_as: str = ""
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint, MTP and vision included. A tied head is not a second tensor."""
        return sum(t.parameters for t in self.tensors)

    @property
    def weight_bytes(self) -> int:
        """Bytes of every tensor as stored, scales included."""
        return sum(t.total_bytes for t in self.tensors)

    def parameters_by_role(self, depth: int = 2) -> dict[str, int]:
        """Parameters summed by the first `depth` words of the role."""
        result: dict[str, int] = {}
        for tensor in self.tensors:
            key = ".".join(tensor.role.split(".")[:depth])
            result[key] = result.get(key, 0) + tensor.parameters
        return result

    @property
    def is_mla(self) -> bool:
        return self.mla_latent > 0


def replace(model: Model, **changes: object) -> Model:
    """A copy with some fields changed."""
    return msgspec.structs.replace(model, **changes)


__all__ = ["Layer", "Model", "Moe", "Split", "State", "Tensor", "replace"]
