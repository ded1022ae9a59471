"""Nemotron-H and Nemotron-3: one mixer a layer (Mamba-2, attention, MLP or MoE), with non-gated squared-ReLU MLPs.

A layer of the config's pattern is a layer here: M = mamba, * = attention, - = MLP, E = MoE.
"""

from collections.abc import Mapping
from types import MappingProxyType

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.types import Layer, Moe, Split

_SIGNS = MappingProxyType({"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"})
_WORDS = MappingProxyType({"linear_attention": "mamba", "full_attention": "attention"})
# up, down: the gate's name is never used, the MLPs have none.
_NAMES = ("", "up_proj", "down_proj")


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
    blocks = {kind: _BLOCKS[kind](fields, hidden, draft) for kind in _BLOCKS if kind in used}
    _considered(fields, used)
    for index, kind in enumerate(kinds):
        site = Site(draft, f"backbone.layers.{index}", index)
        blocks[kind].write(site.at("mixer"))
        site.vector("norm", "norm.input", hidden)
        draft.layers.append(blocks[kind].layer(index))
    draft.add("backbone.norm_f", "norm.final", hidden)
    for index in range(depth * len(draft_kinds)):
        site = Site(draft, f"mtp.layers.{index}", len(kinds) + index, "mtp.")
        place = index % len(draft_kinds)
        if place == 0:
            states.mtp_inputs(site, hidden)
        blocks[draft_kinds[place]].write(site.at("mixer"))
        site.vector("norm", "norm.input", hidden)
        if place == len(draft_kinds) - 1:
            site.vector("final_layernorm", "norm.final", hidden)
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
    unknown = set(kinds) - set(_BLOCKS)
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


class _Mamba:
    """Mamba-2: in_proj makes gate, convolved x/B/C and dt; B and C are shared by the heads of a group."""

    def __init__(self, fields: Fields, hidden: int, draft: Draft) -> None:
        self.hidden, self.dtype = hidden, draft.dtype
        self.heads = fields.integer("mamba_num_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(fields, "mamba_head_dim")
        self.state = common.width(fields, "ssm_state_size", "mamba_d_state")
        self.groups = fields.integer("n_groups", "mamba_n_groups", least=1, most=self.heads)
        self.kernel = fields.integer("conv_kernel", "mamba_d_conv", least=1, most=1024)
        self.conv_bias = fields.flag("use_conv_bias", "mamba_conv_bias", default=True)
        self.bias = fields.flag("use_bias")
        # The first Nemotron-H configs do not name it; transformers' default and the models' cards say float32.
        self.ssm_dtype = states.state_dtype(fields, "mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32")
        self.inner = self.heads * self.head_dim
        self.channels = self.inner + 2 * self.groups * self.state

    def write(self, site: Site) -> None:
        column, heads = Split.COLUMN, self.heads
        outputs = self.inner + self.channels + heads
        site.linear("in_proj", "mamba.in", outputs, self.hidden, column, units=heads, bias=self.bias)
        site.draft.add(
            f"{site.name}.conv1d",
            f"{site.under}mamba.conv",
            self.channels,
            1,
            self.kernel,
            layer=site.layer,
            split=column,
            units=heads,
        )
        if self.conv_bias:
            site.vector("conv1d.bias", "mamba.conv.bias", self.channels, split=column, units=heads)
        site.vector("dt_bias", "mamba.dt_bias", heads, split=column, units=heads)
        site.vector("A_log", "mamba.decay", heads, split=column, units=heads)
        site.vector("D", "mamba.skip", heads, split=column, units=heads)
        site.vector("norm", "mamba.norm", self.inner, split=column, units=heads)
        site.linear("out_proj", "mamba.out", self.hidden, self.inner, Split.ROW, units=heads, bias=self.bias)

    def layer(self, index: int) -> Layer:
        # The convolution's B and C parts split by group; engines replicate groups beyond their number.
        return Layer(
            index=index,
            mixer="mamba",
            ffn="none",
            states=(
                states.conv_state(self.channels, self.kernel, heads=self.groups, dtype=self.dtype),
                states.recurrent_state(self.heads, self.head_dim, self.state, dtype=self.ssm_dtype),
            ),
            mixer_flops_per_token=states.conv_flops(self.channels, self.kernel)
            + states.ssd_flops(self.heads, self.head_dim, self.state),
        )


class _Attention:
    """Grouped-query attention without positions."""

    def __init__(self, fields: Fields, hidden: int, draft: Draft) -> None:
        self.hidden = hidden
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        self.kv_heads = fields.integer("num_key_value_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(fields, "head_dim", "attention_head_dim", default=max(1, hidden // self.heads))
        common.set_heads(draft, self.heads, self.kv_heads, self.head_dim)

    def write(self, site: Site) -> None:
        common.gqa(site, hidden=self.hidden, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim)

    def layer(self, index: int) -> Layer:
        return common.attention_layer(
            index, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, ffn="none"
        )


class _Mlp:
    """down(relu(up(x))^2)."""

    def __init__(self, fields: Fields, hidden: int, draft: Draft) -> None:
        self.hidden, self.inner = hidden, common.width(fields, "intermediate_size")
        self.bias = fields.flag("mlp_bias")

    def write(self, site: Site) -> None:
        common.mlp(site, hidden=self.hidden, inner=self.inner, gated=False, bias=self.bias, names=_NAMES)

    def layer(self, index: int) -> Layer:
        return Layer(index=index, mixer="none", ffn="dense")


class _Experts:
    """Routed experts, in a latent space where `moe_latent_size` is set; shared expert and router see the full width."""

    def __init__(self, fields: Fields, hidden: int, draft: Draft) -> None:
        self.hidden = hidden
        self.experts = fields.integer("n_routed_experts", least=1, most=common.MAX_EXPERTS)
        self.inner = common.width(fields, "moe_intermediate_size")
        self.latent = common.width(fields, "moe_latent_size", default=0, least=0)
        shared = fields.integer("n_shared_experts", default=0, most=common.MAX_EXPERTS)
        self.shared = shared * common.width(fields, "moe_shared_expert_intermediate_size", default=0, least=0)
        self.bias = fields.flag("mlp_bias")
        groups = fields.integer("n_group", default=1, least=1, most=self.experts)
        common.record_moe(
            draft,
            Moe(
                experts=self.experts,
                top_k=fields.integer("num_experts_per_tok", least=1, most=self.experts),
                hidden=self.latent or hidden,
                intermediate=self.inner,
                shared_experts=shared,
                groups=groups,
                top_groups=fields.integer("topk_group", default=1, least=1, most=groups),
            ),
        )

    def write(self, site: Site) -> None:
        width = self.latent or self.hidden
        site.linear("gate", "moe.router", self.experts, self.hidden)
        site.vector("gate.e_score_correction_bias", "moe.router.correction", self.experts, dtype="float32")
        if self.latent:
            site.linear("fc1_latent_proj", "moe.latent.down", self.latent, self.hidden, bias=self.bias)
            site.linear("fc2_latent_proj", "moe.latent.up", self.hidden, self.latent, bias=self.bias)
        common.mlp(
            site.at("experts.*"),
            hidden=width,
            inner=self.inner,
            role="moe.experts",
            gated=False,
            count=self.experts,
            names=_NAMES,
        )
        if self.shared:
            common.mlp(
                site.at("shared_experts"),
                hidden=self.hidden,
                inner=self.shared,
                role="moe.shared",
                gated=False,
                bias=self.bias,
                names=_NAMES,
            )

    def layer(self, index: int) -> Layer:
        return Layer(index=index, mixer="none", ffn="moe")


_BLOCKS: Mapping[str, type[_Mamba] | type[_Attention] | type[_Mlp] | type[_Experts]] = MappingProxyType(
    {"mamba": _Mamba, "attention": _Attention, "mlp": _Mlp, "moe": _Experts}
)
