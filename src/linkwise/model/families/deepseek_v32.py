"""DeepSeek-V3.2: latent attention over the keys a lightning indexer chooses (DSA), group-limited experts, MTP.

GLM-5 (glm_moe_dsa.py) is the same architecture with other sizes; `stack` writes both.
"""

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.types import Layer, Moe, Split


def read(fields: Fields) -> Draft:
    """A draft from the config. Every layer has an indexer; the MTP layer stores its own embedding and head."""
    count = common.layer_count(fields)
    return stack(fields, indexed=[True] * count, mtp_copies=True)


def stack(fields: Fields, *, indexed: list[bool], mtp_copies: bool) -> Draft:
    """The decoder and its MTP layers. `indexed`: layers with an indexer (others reuse the choice of the last one).

    mtp_copies: whether an MTP layer stores a copy of embedding and head.
    """
    draft = common.begin(fields)
    hidden = common.embedding(draft, fields)
    attention, experts = Attention(fields, hidden, draft), Experts(fields, hidden)
    inner = common.width(fields, "intermediate_size")
    count = len(indexed)
    sparse = _sparse(fields, count)
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "mlp_bias", False, default=False)
    for index in range(count):
        site = Site(draft, f"model.layers.{index}", index)
        attention.write(site.at("self_attn"), indexed[index])
        if sparse[index]:
            experts.write(site.at("mlp"))
        else:
            common.mlp(site.at("mlp"), hidden=hidden, inner=inner)
        common.layer_norms(site, hidden)
        draft.layers.append(attention.layer(index, "moe" if sparse[index] else "dense", indexed[index]))
    draft.add("model.norm", "norm.final", hidden)
    draft.mtp_layers = fields.integer("num_nextn_predict_layers", default=0, most=common.MAX_LAYERS)
    for index in range(count, count + draft.mtp_layers):
        site = Site(draft, f"model.layers.{index}", index, "mtp.")
        states.mtp_inputs(site, hidden)
        attention.write(site.at("self_attn"), True)
        experts.write(site.at("mlp"))
        common.layer_norms(site, hidden)
        site.vector("shared_head.norm", "norm.final", hidden)
        if mtp_copies:
            site.linear("embed_tokens", "embed", draft.vocab, hidden, Split.VOCAB)
            site.linear("shared_head.head", "head", draft.vocab, hidden, Split.VOCAB)
    # FP8 checkpoints keep the indexer's head weights in the model's dtype.
    states.stays(draft, "attn.index.weights")
    return draft


def _sparse(fields: Fields, count: int) -> list[bool]:
    kinds = fields.sequence("mlp_layer_types", count, default=None)
    dense = fields.integer("first_k_dense_replace", default=0, most=common.MAX_LAYERS)
    states.exactly(fields, "moe_layer_freq", 1, default=1)
    if not kinds:
        return [i >= dense for i in range(count)]
    unknown = set(map(str, kinds)) - {"dense", "sparse"}
    if unknown:
        raise NotUnderstood(f"mlp_layer_types has {sorted(unknown)}"[:200], where=fields.where)
    return [kind == "sparse" for kind in kinds[:count]]


class Attention:
    """Latent attention (MLA) with a lightning indexer.

    The indexer scores every earlier token with `index_n_heads` small queries made from the query latent against one
    key a token; a query then attends the `index_topk` best.
    """

    def __init__(self, fields: Fields, hidden: int, draft: Draft) -> None:
        self.hidden = hidden
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        self.q_rank, self.kv_rank = common.width(fields, "q_lora_rank"), common.width(fields, "kv_lora_rank")
        self.nope, self.rope = common.width(fields, "qk_nope_head_dim"), common.width(fields, "qk_rope_head_dim")
        self.v_dim = common.width(fields, "v_head_dim")
        self.index_heads = fields.integer("index_n_heads", least=1, most=common.MAX_HEADS)
        self.index_dim = common.width(fields, "index_head_dim")
        self.top_k = fields.integer("index_topk", least=1)
        states.exactly(fields, "num_key_value_heads", self.heads, default=self.heads)
        states.exactly(fields, "qk_head_dim", self.nope + self.rope, default=self.nope + self.rope)
        # What configs of this family call head_dim is one of the parts above, differently in different versions.
        fields.ignore("head_dim")
        draft.mla_latent, draft.mla_rope = self.kv_rank + self.rope, self.rope
        common.set_heads(draft, self.heads, self.heads, self.nope + self.rope)

    def write(self, site: Site, indexed: bool) -> None:
        common.mla(
            site,
            hidden=self.hidden,
            heads=self.heads,
            q_rank=self.q_rank,
            kv_rank=self.kv_rank,
            nope_dim=self.nope,
            rope_dim=self.rope,
            v_dim=self.v_dim,
        )
        if indexed:
            # Engines keep the indexer whole on every rank: each rank needs the same choice.
            index = site.at("indexer")
            index.linear("wq_b", "attn.index.q", self.index_heads * self.index_dim, self.q_rank)
            index.linear("wk", "attn.index.k", self.index_dim, self.hidden)
            index.vector("k_norm", "attn.index.k_norm", self.index_dim, bias=True)
            index.linear("weights_proj", "attn.index.weights", self.index_heads, self.hidden)

    def layer(self, index: int, ffn: str, indexed: bool) -> Layer:
        latent = common.sparse_latent_state(self.kv_rank, self.rope)
        return Layer(
            index=index,
            mixer="sparse",
            ffn=ffn,
            states=(latent, states.index_state(self.index_dim)) if indexed else (latent,),
            attn_flops_per_pair=2 * self.heads * (self.nope + self.rope + self.v_dim),
            attends=self.top_k,
            index_flops_per_pair=states.index_flops(self.index_heads, self.index_dim) if indexed else 0,
        )


class Experts:
    """Router with a selection bias, group-limited routing, shared experts as one MLP."""

    def __init__(self, fields: Fields, hidden: int) -> None:
        self.hidden = hidden
        self.experts = fields.integer("n_routed_experts", "num_experts", least=1, most=common.MAX_EXPERTS)
        # Some exports write the number of experts a second time.
        states.exactly(fields, "num_experts", self.experts, default=self.experts)
        self.top_k = fields.integer("num_experts_per_tok", least=1, most=self.experts)
        self.inner = common.width(fields, "moe_intermediate_size")
        self.shared = fields.integer("n_shared_experts", default=0, most=common.MAX_EXPERTS)
        self.groups = fields.integer("n_group", default=1, least=1, most=self.experts)
        self.top_groups = fields.integer("topk_group", default=1, least=1, most=self.groups)

    def write(self, site: Site) -> None:
        common.moe(
            site,
            hidden=self.hidden,
            inner=self.inner,
            experts=self.experts,
            shared_inner=self.shared * self.inner,
            correction="gate.e_score_correction_bias",
        )
        common.record_moe(
            site.draft,
            Moe(
                experts=self.experts,
                top_k=self.top_k,
                hidden=self.hidden,
                intermediate=self.inner,
                shared_experts=self.shared,
                groups=self.groups,
                top_groups=self.top_groups,
            ),
        )
