"""MiMo-V2-Flash: sliding layers with heads and sinks of their own between full ones; values narrower than keys."""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.types import Layer, Moe, Split

# The config has no field for it; the released checkpoint has model.mtp.layers.0 to 2 (one block of 0.33 B each).
_RELEASED_MTP_LAYERS = 3


def read(fields: Fields) -> Draft:
    """A draft from the config. `hybrid_layer_pattern`: 1 = sliding; `moe_layer_freq`: 1 = experts."""
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    count = common.layer_count(fields)
    sliding = _flags(fields, "hybrid_layer_pattern", count)
    sparse = _flags(fields, "moe_layer_freq", count)
    window = fields.integer("sliding_window_size", "sliding_window", least=1)
    full, local = _Attention(fields, hidden, ""), _Attention(fields, hidden, "swa_", window)
    inner = common.width(fields, "intermediate_size")
    experts = fields.integer("n_routed_experts", least=1, most=common.MAX_EXPERTS)
    expert_inner = common.width(fields, "moe_intermediate_size")
    groups = fields.integer("n_group", default=1, least=1, most=experts)
    states.exactly(fields, "n_shared_experts", 0, default=0)
    states.exactly(fields, "attention_bias", False, default=False)
    # Both repeat the window: no implementation chunks attention.
    fields.ignore("sliding_window", "attention_chunk_size")
    draft.moe = Moe(
        experts=experts,
        top_k=fields.integer("num_experts_per_tok", least=1, most=experts),
        hidden=hidden,
        intermediate=expert_inner,
        groups=groups,
        top_groups=fields.integer("topk_group", default=1, least=1, most=groups),
    )
    for index in range(count):
        site = Site(draft, f"model.layers.{index}", index)
        attention = local if sliding[index] else full
        attention.write(site.at("self_attn"))
        if sparse[index]:
            common.moe(
                site.at("mlp"),
                hidden=hidden,
                inner=expert_inner,
                experts=experts,
                correction="gate.e_score_correction_bias",
                router_dtype="float32",  # as the released checkpoint stores it
            )
        else:
            common.mlp(site.at("mlp"), hidden=hidden, inner=inner)
        common.layer_norms(site, hidden)
        draft.layers.append(attention.layer(index, "moe" if sparse[index] else "dense"))
    draft.add("model.norm", "norm.final", hidden)
    for attention in (full, local):
        common.set_heads(draft, attention.heads, attention.kv_heads, attention.head_dim)
    _mtp(draft, hidden, count, inner, local)
    return draft


def _flags(fields: Fields, name: str, count: int) -> list[bool]:
    values = fields.sequence(name, count)[:count]
    if any(v not in (0, 1) for v in values):
        raise NotUnderstood(f"field {name!r} is {values!r}"[:200], where=fields.where, expected=f"{count} of 0 or 1")
    return [bool(v) for v in values]


class _Attention:
    """Attention of one kind of layer: its own heads, head sizes and sinks."""

    def __init__(self, fields: Fields, hidden: int, prefix: str, window: int | None = None) -> None:
        self.hidden, self.window = hidden, window
        self.heads = fields.integer(f"{prefix}num_attention_heads", least=1, most=common.MAX_HEADS)
        self.kv_heads = fields.integer(f"{prefix}num_key_value_heads", least=1, most=common.MAX_HEADS)
        self.head_dim = common.width(fields, f"{prefix}head_dim")
        self.v_dim = common.width(fields, f"{prefix}v_head_dim", default=self.head_dim)
        self.sinks = fields.flag(f"add_{'swa' if prefix else 'full'}_attention_sink_bias")

    def write(self, site: Site) -> None:
        common.gqa(
            site,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_dim=self.v_dim,
        )
        if self.sinks:
            site.vector("attention_sink_bias", "attn.sinks", self.heads, split=Split.COLUMN, units=self.heads)

    def layer(self, index: int, ffn: str) -> Layer:
        return common.attention_layer(
            index,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_dim=self.v_dim,
            ffn=ffn,
            mixer="sliding" if self.window else "full",
            window=self.window,
        )


def _mtp(draft: Draft, hidden: int, count: int, inner: int, local: _Attention) -> None:
    """Sliding attention and a dense MLP a layer; embedding and head are the model's own."""
    draft.mtp_layers = _RELEASED_MTP_LAYERS
    draft.notes.append(
        f"the config has no count of MTP layers: {_RELEASED_MTP_LAYERS} are taken, as the released checkpoint has"
    )
    for index in range(_RELEASED_MTP_LAYERS):
        site = Site(draft, f"model.mtp.layers.{index}", count + index, "mtp.")
        states.mtp_inputs(site, hidden)
        local.write(site.at("self_attn"))
        common.mlp(site.at("mlp"), hidden=hidden, inner=inner)
        common.layer_norms(site, hidden, ("input_layernorm", "pre_mlp_layernorm"))
        site.vector("final_layernorm", "norm.final", hidden)
