"""Qwen3.5 and Qwen3.6 (dense and MoE): gated delta-net layers with a gated full-attention layer every few.

Names and shapes as the checkpoints have them; `read` names them as the bare language model does.
"""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.types import Layer, Moe, Split


def read(fields: Fields) -> Draft:
    """A draft from the text section. Full attention: q makes its output gate too; linear: see `_delta_net`."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    count = common.layer_count(fields)
    kinds = _layer_kinds(fields, count)
    attention = _Attention(fields, hidden)
    ffn = _Ffn(fields, hidden)
    linear = _Linear(fields, hidden, draft.dtype) if "linear_attention" in kinds else None
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "attn_output_gate", True, default=True)
    # swish or sigmoid: an activation, no weight.
    fields.ignore("output_gate_type")
    for index, kind in enumerate(kinds):
        site = Site(draft, f"model.layers.{index}", index)
        if kind == "linear_attention" and linear is not None:
            linear.write(site)
            draft.layers.append(linear.layer(index, ffn.kind))
        else:
            attention.write(site)
            draft.layers.append(attention.layer(index, ffn.kind))
        ffn.write(site)
        common.layer_norms(site, hidden)
    draft.add("model.norm", "norm.final", hidden)
    common.set_heads(draft, attention.heads, attention.kv_heads, attention.head_dim)
    _mtp(draft, fields, hidden, count, attention, ffn)
    return draft


def _layer_kinds(fields: Fields, count: int) -> list[str]:
    interval = fields.integer("full_attention_interval", default=4, least=1, most=common.MAX_LAYERS)
    kinds = fields.sequence("layer_types", count, default=None)
    if not kinds:
        kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]
    unknown = set(map(str, kinds[:count])) - {"linear_attention", "full_attention"}
    if unknown:
        raise NotUnderstood(f"layer_types has {sorted(unknown)}"[:200], where=fields.where)
    return list(kinds[:count])


class _Attention:
    """Grouped-query attention with per-head norms; the query projection also makes an output gate."""

    def __init__(self, fields: Fields, hidden: int) -> None:
        self.hidden = hidden
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        self.kv_heads = fields.integer("num_key_value_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(fields, "head_dim", default=max(1, hidden // self.heads))

    def write(self, site: Site) -> None:
        common.gqa(
            site.at("self_attn"),
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            qk_norm="head",
            gated=True,
        )

    def layer(self, index: int, ffn: str) -> Layer:
        return common.attention_layer(index, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, ffn=ffn)


class _Linear:
    """The gated delta net (arXiv 2412.06464): key heads are fewer than value heads and shared by them."""

    def __init__(self, fields: Fields, hidden: int, dtype: str) -> None:
        self.hidden, self.dtype = hidden, dtype
        self.k_heads = fields.integer("linear_num_key_heads", least=1, most=common.MAX_HEADS)
        self.v_heads = fields.integer("linear_num_value_heads", least=1, most=common.MAX_HEADS)
        self.k_dim = common.width(fields, "linear_key_head_dim")
        self.v_dim = common.width(fields, "linear_value_head_dim")
        self.kernel = fields.integer("linear_conv_kernel_dim", least=1, most=1024)
        # The recurrence runs in float32 and vLLM keeps it so where the config says so.
        self.ssm_dtype = states.state_dtype(fields, "mamba_ssm_dtype", default="float32")
        self.values = self.v_heads * self.v_dim
        self.channels = 2 * self.k_heads * self.k_dim + self.values

    def write(self, site: Site) -> None:
        site = site.at("linear_attn")
        site.linear("in_proj_qkv", "linear.qkv", self.channels, self.hidden, Split.COLUMN, units=self.k_heads)
        site.linear("in_proj_z", "linear.z", self.values, self.hidden, Split.COLUMN, units=self.v_heads)
        site.linear("in_proj_b", "linear.b", self.v_heads, self.hidden, Split.COLUMN, units=self.v_heads)
        site.linear("in_proj_a", "linear.a", self.v_heads, self.hidden, Split.COLUMN, units=self.v_heads)
        name, split = f"{site.name}.conv1d", Split.COLUMN
        site.draft.add(
            name, "linear.conv", self.channels, 1, self.kernel, layer=site.layer, split=split, units=self.k_heads
        )
        site.vector("dt_bias", "linear.dt_bias", self.v_heads, split=split, units=self.v_heads)
        site.vector("A_log", "linear.decay", self.v_heads, split=split, units=self.v_heads)
        site.vector("norm", "linear.norm", self.v_dim)
        site.linear("out_proj", "linear.out", self.hidden, self.values, Split.ROW, units=self.v_heads)

    def layer(self, index: int, ffn: str) -> Layer:
        return Layer(
            index=index,
            mixer="linear",
            ffn=ffn,
            states=(
                states.conv_state(self.channels, self.kernel, heads=self.k_heads, dtype=self.dtype),
                states.recurrent_state(self.v_heads, self.k_dim, self.v_dim, dtype=self.ssm_dtype),
            ),
            mixer_flops_per_token=states.conv_flops(self.channels, self.kernel)
            + states.delta_flops(self.v_heads, self.k_dim, self.v_dim),
        )


class _Ffn:
    """Dense, or experts with one gated shared expert, the same in every layer."""

    def __init__(self, fields: Fields, hidden: int) -> None:
        self.hidden = hidden
        self.experts = fields.integer("num_experts", default=0, most=common.MAX_EXPERTS)
        self.kind = "moe" if self.experts else "dense"
        states.exactly(fields, "mlp_only_layers", [], default=[])
        states.exactly(fields, "decoder_sparse_step", 1, default=1)
        if self.experts:
            self.top_k = fields.integer("num_experts_per_tok", least=1, most=self.experts)
            self.inner = common.width(fields, "moe_intermediate_size")
            self.shared = common.width(fields, "shared_expert_intermediate_size", default=0, least=0)
            # Written by configs that share a template with the dense models; experts have their own width.
            fields.ignore("intermediate_size")
        else:
            self.inner = common.width(fields, "intermediate_size")

    def write(self, site: Site) -> None:
        mlp = site.at("mlp")
        if not self.experts:
            common.mlp(mlp, hidden=self.hidden, inner=self.inner)
            return
        common.moe(
            mlp,
            hidden=self.hidden,
            inner=self.inner,
            experts=self.experts,
            shared_inner=self.shared,
            shared_name="shared_expert",
            shared_gate="shared_expert_gate" if self.shared else "",
        )
        common.record_moe(
            site.draft,
            Moe(
                experts=self.experts,
                top_k=self.top_k,
                hidden=self.hidden,
                intermediate=self.inner,
                shared_experts=1 if self.shared else 0,
            ),
        )


def _mtp(draft: Draft, fields: Fields, hidden: int, count: int, attention: _Attention, ffn: _Ffn) -> None:
    """The draft head: `mtp.fc` joins embedding and hidden state, full-attention layers follow; no copies."""
    depth = fields.integer("mtp_num_hidden_layers", default=0, most=common.MAX_LAYERS)
    states.exactly(fields, "mtp_use_dedicated_embeddings", False, default=False)
    if not depth:
        return
    draft.mtp_layers = depth
    states.mtp_inputs(
        Site(draft, "mtp", count, "mtp."),
        hidden,
        projection="fc",
        norms=("pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    )
    for index in range(depth):
        site = Site(draft, f"mtp.layers.{index}", count + index, "mtp.")
        attention.write(site)
        ffn.write(site)
        common.layer_norms(site, hidden)
    draft.add("mtp.norm", "mtp.norm.final", hidden, layer=count + depth - 1)
