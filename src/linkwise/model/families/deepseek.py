"""DeepSeek-V2, DeepSeek-V3/R1 and Kimi-K2: latent attention, shared and routed experts, MTP layers.

The published DeepSeek-V3 checkpoint is 671B parameters of the model and 14B of one MTP module, 685B together (the
model's README_WEIGHTS); the MTP layer stores its own copies of the embedding and of the head.
"""

from dataclasses import dataclass

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common
from linkwise.model.families.common import Site
from linkwise.model.types import Moe, Split


def read(fields: Fields) -> Draft:
    """DeepSeek-V3 and its descendants: sigmoid routing with a float32 correction bias (`topk_method: noaux_tc`)."""
    return _read(fields, correction=fields.text("topk_method", "noaux_tc") == "noaux_tc")


def read_v2(fields: Fields) -> Draft:
    """DeepSeek-V2 and V2-Lite: softmax routing without a correction bias."""
    return _read(fields, correction=fields.text("topk_method", "greedy") == "noaux_tc")


@dataclass(frozen=True)
class Latent:
    """The sizes of a latent attention."""

    hidden: int
    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool

    @classmethod
    def of(cls, fields: Fields, hidden: int) -> "Latent":
        """From the config. `num_key_value_heads` is read but means nothing for a latent cache."""
        heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        fields.ignore("num_key_value_heads", "qk_head_dim", "head_dim")
        if not fields.states("q_lora_rank"):
            raise NotUnderstood(
                "field 'q_lora_rank' is missing", where=fields.where, expected="a rank, or null for a plain projection"
            )
        return cls(
            hidden=hidden,
            heads=heads,
            q_rank=common.width(fields, "q_lora_rank", default=0, least=0),
            kv_rank=common.width(fields, "kv_lora_rank"),
            nope_dim=common.width(fields, "qk_nope_head_dim"),
            rope_dim=common.width(fields, "qk_rope_head_dim"),
            v_dim=common.width(fields, "v_head_dim"),
            bias=fields.flag("attention_bias"),
        )

    def weights(self, site: Site) -> None:
        """The attention module's weights."""
        common.mla(
            site,
            hidden=self.hidden,
            heads=self.heads,
            q_rank=self.q_rank,
            kv_rank=self.kv_rank,
            nope_dim=self.nope_dim,
            rope_dim=self.rope_dim,
            v_dim=self.v_dim,
            bias=self.bias,
        )


@dataclass(frozen=True)
class Experts:
    """Routed and shared experts, and which layers have them."""

    count: int
    inner: int
    shared_inner: int
    dense_inner: int
    first: int
    step: int
    correction: bool

    @classmethod
    def of(cls, draft: Draft, fields: Fields, hidden: int, *, correction: bool) -> "Experts":
        """From the config; records the routing facts in the draft."""
        count = fields.integer("n_routed_experts", least=1, most=common.MAX_EXPERTS)
        inner = common.width(fields, "moe_intermediate_size")
        shared = fields.integer("n_shared_experts", most=1024)
        groups = fields.integer("n_group", default=1, least=1, most=count)
        draft.moe = Moe(
            experts=count,
            top_k=fields.integer("num_experts_per_tok", least=1, most=count),
            hidden=hidden,
            intermediate=inner,
            shared_experts=shared,
            groups=groups,
            top_groups=fields.integer("topk_group", default=groups, least=1, most=groups),
        )
        return cls(
            count=count,
            inner=inner,
            shared_inner=shared * inner,
            dense_inner=common.width(fields, "intermediate_size"),
            first=fields.integer("first_k_dense_replace", most=common.MAX_LAYERS),
            step=fields.integer("moe_layer_freq", default=1, least=1, most=common.MAX_LAYERS),
            correction=correction,
        )

    def at(self, index: int) -> bool:
        """Whether a layer has experts."""
        return index >= self.first and index % self.step == 0

    def weights(self, site: Site, index: int, hidden: int) -> None:
        """The feed-forward module's weights of a layer."""
        if not self.at(index):
            common.mlp(site, hidden=hidden, inner=self.dense_inner)
            return
        common.moe(
            site,
            hidden=hidden,
            inner=self.inner,
            experts=self.count,
            shared_inner=self.shared_inner,
            correction="gate.e_score_correction_bias" if self.correction else "",
        )


def mtp_wrapping(site: Site, hidden: int, vocab: int) -> None:
    """What a DeepSeek-V3 MTP layer stores around its decoder layer: norms of embedding and hidden state, their joint
    projection, and copies of embedding and head with a norm."""
    site.draft.add(f"{site.name}.embed_tokens", "mtp.embed", vocab, hidden, layer=site.layer, split=Split.VOCAB)
    site.vector("enorm", "norm.enorm", hidden)
    site.vector("hnorm", "norm.hnorm", hidden)
    site.linear("eh_proj", "eh_proj", hidden, 2 * hidden)
    site.vector("shared_head.norm", "norm.head", hidden)
    site.draft.add(f"{site.name}.shared_head.head", "mtp.head", vocab, hidden, layer=site.layer, split=Split.VOCAB)


def _read(fields: Fields, *, correction: bool) -> Draft:
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    layers = common.layer_count(fields)
    latent = Latent.of(fields, hidden)
    experts = Experts.of(draft, fields, hidden, correction=correction)
    mtp = fields.integer("num_nextn_predict_layers", default=0, most=64)
    common.set_heads(draft, latent.heads, latent.heads, latent.nope_dim + latent.rope_dim)
    draft.mla_latent, draft.mla_rope = latent.kv_rank + latent.rope_dim, latent.rope_dim
    draft.mtp_layers = mtp
    for index in range(layers + mtp):
        site = Site(draft, f"model.layers.{index}", index, "mtp." if index >= layers else "")
        common.layer_norms(site, hidden)
        latent.weights(site.at("self_attn"))
        experts.weights(site.at("mlp"), index, hidden)
        if index >= layers:
            mtp_wrapping(site, hidden, draft.vocab)
            continue
        draft.layers.append(
            common.mla_layer(
                index,
                heads=latent.heads,
                nope_dim=latent.nope_dim,
                rope_dim=latent.rope_dim,
                v_dim=latent.v_dim,
                kv_rank=latent.kv_rank,
                ffn="moe" if experts.at(index) else "dense",
            )
        )
    draft.add("model.norm", "norm.final", hidden)
    if mtp:
        draft.notes.append(
            f"{mtp} MTP layer(s) as DeepSeek-V3 stores them, with their own copies of embedding and head; "
            "engines load them only for speculative decoding"
        )
    return draft
