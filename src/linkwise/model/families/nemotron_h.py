"""Nemotron-H and Nemotron-3: one mixer a layer (Mamba-2, attention, MLP or MoE), with non-gated squared-ReLU MLPs.

A layer of the config's pattern is a layer here: M = mamba, * = attention, - = MLP, E = MoE.
"""

from collections.abc import Callable
from types import MappingProxyType

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.mamba import Mamba2
from linkwise.model.families.parts import Dense, Experts, Gqa, Part, Vector, mtp, mtp_inputs, stack

_SIGNS = MappingProxyType({"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"})
_WORDS = MappingProxyType({"linear_attention": "mamba", "full_attention": "attention"})


def read(fields: Fields) -> Draft:
    """A draft from a config whose pattern is `hybrid_override_pattern` or `layers_block_type`."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields, name="backbone.embeddings")
    kinds = _kinds(fields, "layers_block_type", "hybrid_override_pattern")
    # The pattern alone counts layers; newer configs drop the number.
    declared = fields.integer("num_hidden_layers", default=len(kinds), most=common.MAX_LAYERS)
    if declared != len(kinds):
        raise NotUnderstood(
            f"num_hidden_layers is {declared}", where=fields.where, expected=f"{len(kinds)}, as the pattern has"
        )
    depth = fields.integer("num_nextn_predict_layers", default=0, most=common.MAX_LAYERS)
    draft_kinds = _kinds(fields, "mtp_layers_block_type", "mtp_hybrid_override_pattern", default=["attention", "moe"])
    used = set(kinds) | (set(draft_kinds) if depth else set())
    blocks = _blocks(fields, hidden, draft.dtype, used)
    _considered(fields, used)
    norm = Vector("norm", "norm.input", hidden)
    stack(draft, [(blocks[kind], norm) for kind in kinds], at="backbone.layers")
    draft.add("backbone.norm_f", "norm.final", hidden)
    if depth:
        # MTP has a pattern of its own: inputs before its first mixer, a final norm after its last.
        drafted: list[tuple[Part, ...]] = [(blocks[kind], norm) for kind in draft_kinds]
        drafted[0] = (*mtp_inputs(hidden), *drafted[0])
        drafted[-1] = (*drafted[-1], Vector("final_layernorm", "norm.final", hidden))
        mtp(draft, drafted * depth, at="mtp.layers")
        draft.mtp_layers = depth
    return draft


def _kinds(fields: Fields, listed: str, pattern: str, default: list[str] | None = None) -> list[str]:
    values = fields.raw(listed, None)
    signs = fields.raw(pattern, None)
    if values is None and signs is None and default is not None:
        return default
    if values is None:
        if not isinstance(signs, str):
            raise NotUnderstood(f"neither {listed!r} nor {pattern!r} is there", where=fields.where)
        values = [_SIGNS.get(sign, sign) for sign in signs]
    if not isinstance(values, list) or not 0 < len(values) <= common.MAX_LAYERS:
        raise NotUnderstood(f"field {listed!r} is {values!r}"[:200], where=fields.where, expected="a list of layers")
    kinds = [_WORDS.get(str(v), str(v)) for v in values]
    unknown = set(kinds) - set(_SIGNS.values())
    if unknown:
        raise NotUnderstood(f"layers of kind {sorted(unknown)}"[:200], where=fields.where, expected=" ".join(_SIGNS))
    return kinds


def _considered(fields: Fields, used: set[str]) -> None:
    states.exactly(fields, "sliding_window", None)
    states.exactly(fields, "attention_bias", False, default=False)
    # expand: the inner width is heads x head size. chunk_size: a kernel's tile. time_step_*: how dt starts in training;
    # its rank is of the first Mamba. mamba_proj_bias: read by no implementation, use_bias decides. use_mamba_kernels:
    # which kernels run. head_dim of the config is the attention's.
    fields.ignore("expand", "chunk_size", "time_step_rank", "mamba_proj_bias", "use_mamba_kernels")
    if "mlp" not in used:
        fields.ignore("intermediate_size")
    if "moe" not in used:
        fields.ignore("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group")
        fields.ignore("moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size")


def _mamba(fields: Fields, hidden: int, dtype: str) -> Mamba2:
    heads, bias = fields.integer("mamba_num_heads", least=1, most=common.MAX_HEADS), fields.flag("use_bias")
    return Mamba2(
        hidden,
        heads,
        common.width(fields, "mamba_head_dim"),
        common.width(fields, "ssm_state_size", "mamba_d_state"),
        fields.integer("n_groups", "mamba_n_groups", least=1, most=heads),
        fields.integer("conv_kernel", "mamba_d_conv", least=1, most=1024),
        dtype=dtype,
        # The first Nemotron-H configs do not name it; transformers' default and the models' cards say float32.
        state_dtype=states.state_dtype(fields, *states.STATE_DTYPES, default="float32"),
        conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
        bias=bias,
        out_bias=bias,
        name="mixer",
    )


def _attention(fields: Fields, hidden: int) -> Gqa:
    """Grouped-query attention without positions."""
    heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", least=1, most=common.MAX_HEADS)
    head_dim = common.width(fields, "head_dim", "attention_head_dim", default=max(1, hidden // heads))
    states.exactly(fields, "attention_head_dim", head_dim, None)  # where both are written
    return Gqa(hidden, heads, kv_heads, head_dim, name="mixer")


def _mlp(fields: Fields, hidden: int) -> Dense:
    """down(relu(up(x))^2)."""
    inner, bias = common.width(fields, "intermediate_size"), fields.flag("mlp_bias")
    return Dense(hidden, inner, bias=bias, gated=False, name="mixer")


def _experts(fields: Fields, hidden: int) -> Experts:
    """Routed experts, in a latent space where `moe_latent_size` is set; shared expert and router see the full width."""
    routed, top_k = common.expert_counts(fields, "n_routed_experts")
    shared = fields.integer("n_shared_experts", default=0, most=common.MAX_EXPERTS)
    return Experts(
        hidden,
        common.width(fields, "moe_intermediate_size"),
        routed,
        top_k,
        groups=common.expert_groups(fields, routed),
        shared=shared,
        shared_inner=shared * common.width(fields, "moe_shared_expert_intermediate_size", default=0, least=0),
        shared_bias=fields.flag("mlp_bias"),
        correction="gate.e_score_correction_bias",
        latent=common.width(fields, "moe_latent_size", default=0, least=0),
        latent_names=("fc1_latent_proj", "fc2_latent_proj"),
        gated=False,
        name="mixer",
    )


def _blocks(fields: Fields, hidden: int, dtype: str, used: set[str]) -> dict[str, Part]:
    """The kinds of layer in use: the fields of the others may be absent."""
    writers: dict[str, Callable[[], Part]] = {
        "mamba": lambda: _mamba(fields, hidden, dtype),
        "attention": lambda: _attention(fields, hidden),
        "mlp": lambda: _mlp(fields, hidden),
        "moe": lambda: _experts(fields, hidden),
    }
    return {kind: write() for kind, write in writers.items() if kind in used}
