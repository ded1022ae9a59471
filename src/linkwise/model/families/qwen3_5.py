"""Qwen3-Next, Qwen3.5 and Qwen3.6 (dense and MoE): gated delta-net layers with a gated full-attention layer every few.

Names and shapes as the checkpoints have them; `read` names them as the bare language model does.
"""

from msgspec.structs import replace

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Dense, Experts, Gqa, Part, block, decoder, mtp, mtp_inputs, norms
from linkwise.model.families.qwen_moe import feed_forwards, gated_experts
from linkwise.model.types import Layer, Split


def read(fields: Fields) -> Draft:
    """A draft from the text section. Full attention: q makes its output gate too; linear: see `_delta_net`."""
    draft, hidden, count = common.start(fields)
    kinds = _layer_kinds(fields, count)
    sizes = common.attention_heads(fields, hidden, derived_width=True)
    attention, ffn = Gqa(hidden, *sizes, qk_norm="head", gated=True), _feed_forward(fields, hidden)
    mixers: dict[str, Part] = {"full_attention": attention}
    if "linear_attention" in kinds:
        mixers["linear_attention"] = _Linear(fields, hidden, draft.dtype)
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "attn_output_gate", True, default=True)
    # swish or sigmoid: an activation, no weight.
    fields.ignore("output_gate_type")
    decoder(draft, [(mixers[kind], ffn, *norms(hidden)) for kind in kinds])
    depth = fields.integer("mtp_num_hidden_layers", default=0, most=common.MAX_LAYERS)
    states.exactly(fields, "mtp_use_dedicated_embeddings", False, default=False)
    _draft_head(draft, (attention, ffn, *norms(hidden)), depth)
    return draft


def read_next(fields: Fields) -> Draft:
    """Qwen3-Next: the delta net's inputs are two stored tensors instead of four, and experts stand where Qwen3-MoE has
    them."""
    draft, hidden, count = common.start(fields)
    kinds = _layer_kinds(fields, count)
    states.exactly(fields, "use_sliding_window", False, default=False)
    bias = fields.flag("attention_bias")
    sizes = common.attention_heads(fields, hidden, derived_width=True)
    attention = Gqa(hidden, *sizes, bias=bias, out_bias=bias, qk_norm="head", gated=True)
    mixers: dict[str, Part] = {"full_attention": attention}
    if "linear_attention" in kinds:
        mixers["linear_attention"] = _Linear(fields, hidden, draft.dtype, fused=True)
        states.note_recurrent(draft, fields)
    shared = common.width(fields, "shared_expert_intermediate_size", default=0, least=0)
    ffns = feed_forwards(fields, hidden, count, shared)
    decoder(draft, [(mixers[kind], ffn, *norms(hidden)) for kind, ffn in zip(kinds, ffns, strict=True)])
    # vLLM's qwen3_next_mtp.py: num_nextn_predict_layers, 1 where the config has none.
    depth = fields.integer("num_nextn_predict_layers", default=1, most=common.MAX_LAYERS)
    _draft_head(draft, (attention, gated_experts(fields, hidden, shared), *norms(hidden)), depth)
    if "num_nextn_predict_layers" not in fields:
        draft.notes.append("the config has no count of MTP layers: 1 is taken, as the released checkpoints have")
    return draft


def _draft_head(draft: Draft, parts: tuple[Part, ...], depth: int) -> None:
    """The MTP layers: `mtp.fc` joins embedding and hidden state, full-attention layers follow; no copies."""
    if depth:
        count, hidden = len(draft.layers), draft.hidden
        joined = mtp_inputs(hidden, "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        block(Site(draft, "mtp", count, "mtp."), joined)
        mtp(draft, [parts] * depth, at="mtp.layers")
        draft.add("mtp.norm", "mtp.norm.final", hidden, layer=count + depth - 1)


def _layer_kinds(fields: Fields, count: int) -> list[str]:
    interval = fields.integer("full_attention_interval", default=4, least=1, most=common.MAX_LAYERS)
    kinds = common.layer_kinds(fields, count, "linear_attention", "full_attention")
    return kinds or ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]


def _feed_forward(fields: Fields, hidden: int) -> Dense | Experts:
    """Dense, or experts with one gated shared expert, the same in every layer."""
    states.exactly(fields, "mlp_only_layers", [], default=[])
    states.exactly(fields, "decoder_sparse_step", 1, default=1)
    if not fields.integer("num_experts", default=0, most=common.MAX_EXPERTS):
        return Dense(hidden, common.width(fields, "intermediate_size"))
    # Written by configs that share a template with the dense models; experts have their own width.
    fields.ignore("intermediate_size")
    shared = common.width(fields, "shared_expert_intermediate_size", default=0, least=0)
    return gated_experts(fields, hidden, shared)


class _Linear(Part):
    """The gated delta net (arXiv 2412.06464): key heads are fewer than value heads and shared by them.

    fused: the inputs are stored as two tensors, q/k/v beside z and b beside a.
    """

    def __init__(self, fields: Fields, hidden: int, dtype: str, *, fused: bool = False) -> None:
        self.hidden, self.dtype = hidden, dtype
        # Equal names: slices of one stored tensor.
        self.names = ("qkvz", "qkvz", "ba", "ba") if fused else ("qkv", "z", "b", "a")
        self.k_heads = fields.integer("linear_num_key_heads", least=1, most=common.MAX_HEADS)
        self.v_heads = fields.integer("linear_num_value_heads", least=1, most=common.MAX_HEADS)
        self.k_dim = common.width(fields, "linear_key_head_dim")
        self.v_dim = common.width(fields, "linear_value_head_dim")
        self.kernel = fields.integer("linear_conv_kernel_dim", least=1, most=1024)
        # The recurrence runs in float32 and vLLM keeps it so where the config says so.
        self.ssm_dtype = states.state_dtype(fields, "mamba_ssm_dtype", default=dtype if fused else "float32")
        self.values = self.v_heads * self.v_dim
        self.channels = 2 * self.k_heads * self.k_dim + self.values

    def write(self, site: Site) -> None:
        site = site.at("linear_attn")
        qkv, z, b, a = (f"in_proj_{name}" for name in self.names)
        site.linear(qkv, "linear.qkv", self.channels, self.hidden, Split.COLUMN, units=self.k_heads)
        site.linear(z, "linear.z", self.values, self.hidden, Split.COLUMN, units=self.v_heads)
        site.linear(b, "linear.b", self.v_heads, self.hidden, Split.COLUMN, units=self.v_heads)
        site.linear(a, "linear.a", self.v_heads, self.hidden, Split.COLUMN, units=self.v_heads)
        name, split = f"{site.name}.conv1d", Split.COLUMN
        site.draft.add(
            name, "linear.conv", self.channels, 1, self.kernel, layer=site.layer, split=split, units=self.k_heads
        )
        site.vector("dt_bias", "linear.dt_bias", self.v_heads, split=split, units=self.v_heads)
        site.vector("A_log", "linear.decay", self.v_heads, split=split, units=self.v_heads)
        site.vector("norm", "linear.norm", self.v_dim)
        site.linear("out_proj", "linear.out", self.hidden, self.values, Split.ROW, units=self.v_heads)

    def facts(self, layer: Layer) -> Layer:
        return replace(
            layer,
            mixer="linear",
            states=(
                states.conv_state(self.channels, self.kernel, heads=self.k_heads, dtype=self.dtype),
                states.recurrent_state(self.v_heads, self.k_dim, self.v_dim, dtype=self.ssm_dtype),
            ),
            mixer_flops_per_token=states.conv_flops(self.channels, self.kernel)
            + states.delta_flops(self.v_heads, self.k_dim, self.v_dim),
        )
