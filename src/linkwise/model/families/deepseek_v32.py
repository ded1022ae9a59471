"""DeepSeek-V3.2: latent attention over the keys a lightning indexer chooses (DSA), group-limited experts, MTP.

GLM-5 (glm_moe_dsa.py) is the same architecture with other sizes; `stack` writes both.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Dense, Experts, Linear, Mla, Part, Vector, decoder, mtp, mtp_inputs, norms
from linkwise.model.types import Layer, Split


def read(fields: Fields) -> Draft:
    """A draft from the config. Every layer has an indexer; the MTP layer stores its own embedding and head."""
    count = common.layer_count(fields)
    common.layer_kinds(fields, count, "indexed_attention")  # newer configs say so of every layer
    return stack(fields, indexed=[True] * count, mtp_copies=True)


def stack(fields: Fields, *, indexed: list[bool], mtp_copies: bool) -> Draft:
    """The decoder and its MTP layers. `indexed`: layers with an indexer (others reuse the choice of the last one).

    mtp_copies: whether an MTP layer stores a copy of embedding and head.
    """
    draft, hidden, count = common.start(fields)
    latent = Mla.of(fields, hidden, attends=fields.integer("index_topk", least=1))
    indexer = Indexer(
        hidden,
        latent.q_rank,
        fields.integer("index_n_heads", least=1, most=common.MAX_HEADS),
        common.width(fields, "index_head_dim"),
    )
    experts, dense = _experts(fields, hidden), Dense(hidden, common.width(fields, "intermediate_size"))
    _considered(fields, latent)
    ffns = [experts if sparse else dense for sparse in _sparse(fields, count)]
    mixers = [(latent, indexer) if own else (latent,) for own in indexed]
    decoder(draft, [(*mixer, ffn, *norms(hidden)) for mixer, ffn in zip(mixers, ffns, strict=True)])
    copies: tuple[Part, ...] = (
        Linear("embed_tokens", "embed", draft.vocab, hidden, Split.VOCAB),
        Linear("shared_head.head", "head", draft.vocab, hidden, Split.VOCAB),
    )
    final = (Vector("shared_head.norm", "norm.final", hidden), *(copies if mtp_copies else ()))
    depth = fields.integer("num_nextn_predict_layers", default=0, most=common.MAX_LAYERS)
    mtp(draft, [(*mtp_inputs(hidden), latent, indexer, experts, *norms(hidden), *final)] * depth)
    # FP8 checkpoints keep the indexer's head weights in the model's dtype.
    states.stays(draft, "attn.index.weights")
    return draft


def _considered(fields: Fields, latent: Mla) -> None:
    common.width(fields, "q_lora_rank")  # required: the indexer's queries are made from the query latent
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "mlp_bias", False, default=False)
    states.exactly(fields, "num_key_value_heads", latent.heads, default=latent.heads)
    head_dim = latent.nope_dim + latent.rope_dim
    states.exactly(fields, "qk_head_dim", head_dim, default=head_dim)
    # What configs of this family call head_dim is one of the parts above, differently in different versions.
    fields.ignore("head_dim")


def _sparse(fields: Fields, count: int) -> list[bool]:
    kinds = common.layer_kinds(fields, count, "dense", "sparse", name="mlp_layer_types")
    dense = fields.integer("first_k_dense_replace", default=0, most=common.MAX_LAYERS)
    states.exactly(fields, "moe_layer_freq", 1, default=1)
    return [kind == "sparse" for kind in kinds] if kinds else [i >= dense for i in range(count)]


@dataclass(frozen=True)
class Indexer(Part):
    """The lightning indexer of a layer: it scores every earlier token with `heads` small queries made from the query
    latent against one key a token; a query then attends the best."""

    hidden: int
    q_rank: int
    heads: int
    dim: int

    def write(self, site: Site) -> None:
        # Engines keep the indexer whole on every rank: each rank needs the same choice.
        index = site.at("self_attn.indexer")
        index.linear("wq_b", "attn.index.q", self.heads * self.dim, self.q_rank)
        index.linear("wk", "attn.index.k", self.dim, self.hidden)
        index.vector("k_norm", "attn.index.k_norm", self.dim, bias=True)
        index.linear("weights_proj", "attn.index.weights", self.heads, self.hidden)

    def facts(self, layer: Layer) -> Layer:
        return replace(
            layer,
            states=(*layer.states, states.index_state(self.dim)),
            index_flops_per_pair=states.index_flops(self.heads, self.dim),
        )


def _experts(fields: Fields, hidden: int) -> Experts:
    """Router with a selection bias, group-limited routing, shared experts as one MLP."""
    routed, top_k = common.expert_counts(fields, "n_routed_experts", "num_experts")
    # Some exports write the number of experts a second time.
    states.exactly(fields, "num_experts", routed, default=routed)
    inner = common.width(fields, "moe_intermediate_size")
    shared = fields.integer("n_shared_experts", default=0, most=common.MAX_EXPERTS)
    return Experts(
        hidden,
        inner,
        routed,
        top_k,
        groups=common.expert_groups(fields, routed),
        shared=shared,
        shared_inner=shared * inner,
        correction="gate.e_score_correction_bias",
    )
