"""DeepSeek-V4: one shared key/value head, a sliding window plus compressed history, hyper-connections, hashed experts.

Per layer, by `compress_ratios`: 0 = the window alone; 4 = compressed sparse attention, whose indexer picks `index_topk`
entries; 128 = heavily compressed attention over every entry. Names, shapes and dtypes as the published headers have
them; the paper is the model's technical report. `deepseek_ref` is the same config under the reference code's name.
"""

from dataclasses import dataclass
from types import MappingProxyType

from msgspec.structs import replace

from linkwise.core.errors import NotUnderstood
from linkwise.model.draft import Draft, Fields
from linkwise.model.families import common, states
from linkwise.model.families.common import Site
from linkwise.model.families.parts import Experts, Linear, Part, Vector, mtp, norms, stack
from linkwise.model.types import Layer, Split, State

# Kinds of layers as transformers names them, and their compression unless `compress_rates` says otherwise.
_KINDS = MappingProxyType(
    {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
)
# A compressed entry takes its own window and, at ratio 4, the one before it.
_OVERLAPPING = 4


def read(fields: Fields) -> Draft:
    """A draft from the config."""
    draft = common.begin(fields)
    hidden = draft.hidden = common.width(fields, "hidden_size")
    draft.vocab = fields.integer("vocab_size", least=1, most=common.MAX_VOCAB)
    states.exactly(fields, "tie_word_embeddings", False, default=False)
    states.exactly(fields, "attention_bias", False, default=False)
    states.exactly(fields, "mlp_bias", False, default=False)
    draft.add("embed", "embed", draft.vocab, hidden, split=Split.VOCAB)
    draft.add("head", "head", draft.vocab, hidden, split=Split.VOCAB)
    count = common.layer_count(fields)
    depth = fields.integer("num_nextn_predict_layers", default=0, most=common.MAX_LAYERS)
    ratios = _ratios(fields, count, depth)
    attention = {ratio: _Attention(fields, hidden, ratio) for ratio in (0, _OVERLAPPING, 128)}
    draft.notes.append(
        "KV entries are counted as vLLM and SGLang keep them whatever the KV-cache dtype: FP8 with a bfloat16 "
        "rotary part and block scales"
    )
    scored = _experts(fields, hidden)
    by_table = _experts(fields, hidden, table=draft.vocab)
    hashed = _hashed(fields, count)
    streams = fields.integer("hc_mult", least=1, most=64)
    after = (*norms(hidden, "attn_norm", "ffn_norm"), _HyperConnections(hidden, streams))
    ffns = [by_table if index in hashed else scored for index in range(count + depth)]
    layers = [(attention[r], ffn, *after) for r, ffn in zip(ratios, ffns, strict=True)]
    stack(draft, layers[:count], at="layers")
    draft.add("norm", "norm.final", hidden)
    collapse = _HyperHead(hidden, streams)
    collapse.write(Site(draft, ""))
    before = (
        *(Vector(name, f"norm.{name}", hidden) for name in ("enorm", "hnorm")),
        *(Linear(name, name, hidden, hidden) for name in ("e_proj", "h_proj")),
    )
    final = (Vector("norm", "norm.final", hidden), collapse)
    mtp(draft, [(*before, *parts, *final) for parts in layers[count : count + depth]], at="mtp")
    _storage(draft, fields)
    return draft


def _ratios(fields: Fields, count: int, depth: int) -> list[int]:
    """Compression of each layer and, after them, of each MTP layer: listed, or by kind as transformers writes it."""
    kinds = common.layer_kinds(fields, count, *_KINDS)
    if kinds:
        rates = fields.section("compress_rates") or fields.part({}, "compress_rates")
        by_kind = {kind: rates.integer(kind, default=ratio, most=10**6) for kind, ratio in _KINDS.items()}
        ratios: list[int] = [by_kind[kind] for kind in kinds]
    else:
        ratios = fields.sequence("compress_ratios", count)
    # Configs list the MTP layers too; where they do not, MTP layers are window-only as in every release.
    ratios = [*ratios, *[0] * (count + depth - len(ratios))]
    if any(isinstance(r, bool) or r not in (0, 4, 128) for r in ratios):
        raise NotUnderstood(f"compress_ratios is {ratios!r}"[:200], where=fields.where, expected="0, 4 or 128 a layer")
    return ratios


def _hashed(fields: Fields, count: int) -> frozenset[int]:
    """Layers whose experts a table of tokens chooses: the first `num_hash_layers`, or those listed."""
    kinds = common.layer_kinds(fields, count, "hash_moe", "moe", name="mlp_layer_types")
    first = fields.integer("num_hash_layers", default=0, most=count)
    return frozenset(i for i in range(count) if (kinds[i] == "hash_moe" if kinds else i < first))


def _rotary(fields: Fields, dim: int) -> int:
    """The rotated part of a head: a width, or a share of it as transformers writes it."""
    share = fields.raw("partial_rotary_factor", None)
    if "qk_rope_head_dim" in fields or not isinstance(share, float) or not 0 < share <= 1:
        return common.width(fields, "qk_rope_head_dim")
    return int(dim * share)


def _storage(draft: Draft, fields: Fields) -> None:
    """What the release stores otherwise than its quantization_config says: experts in MXFP4 and e8m0 scales."""
    draft.fp8_scale_dtype = "float8_e8m0"
    states.stays(draft, "attn.compressor", "attn.index.compressor", "attn.index.weights")
    states.exactly(fields, "expert_dtype", "fp4", "fp8", default="fp8")
    if fields.raw("expert_dtype", "fp8") == "fp4":
        draft.role_schemes["moe.experts"] = "mxfp4"


@dataclass(frozen=True)
class _HyperConnections(Part):
    """mHC: from the flattened streams, weights to collapse, expand and mix them, in float32."""

    hidden: int
    streams: int

    def write(self, site: Site) -> None:
        mixes = (2 + self.streams) * self.streams
        for child in ("hc_attn", "hc_ffn"):
            site.linear(f"{child}_fn", f"norm.{child}", mixes, self.streams * self.hidden, dtype="float32")
            site.vector(f"{child}_base", f"norm.{child}.base", mixes, dtype="float32")
            site.vector(f"{child}_scale", f"norm.{child}.scale", 3, dtype="float32")


@dataclass(frozen=True)
class _HyperHead(Part):
    """The streams' collapse before the head, of the model (at the checkpoint's root) or of an MTP layer."""

    hidden: int
    streams: int

    def write(self, site: Site) -> None:
        prefix, streams = f"{site.name}." if site.name else "", self.streams
        for part, shape in (("fn", (streams, streams * self.hidden)), ("base", (streams,)), ("scale", (1,))):
            role = f"{site.under}norm.hc_head.{part}"
            site.draft.add(f"{prefix}hc_head_{part}", role, *shape, layer=site.layer, dtype="float32")


class _Attention(Part):
    """Multi-query attention whose one head is key and value; queries and outputs go through low ranks.

    The output projection is block-diagonal: `o_groups` groups of heads, each to `o_lora_rank` features, then one
    projection to the hidden size. A compressed layer makes one entry per `ratio` tokens from gated projections.
    """

    def __init__(self, fields: Fields, hidden: int, ratio: int) -> None:
        self.hidden, self.ratio = hidden, ratio
        self.heads = fields.integer("num_attention_heads", least=1, most=common.MAX_HEADS)
        states.exactly(fields, "num_key_value_heads", 1, default=1)
        self.dim = common.width(fields, "head_dim")
        self.rope = _rotary(fields, self.dim)
        self.q_rank, self.o_rank = common.width(fields, "q_lora_rank"), common.width(fields, "o_lora_rank")
        self.groups = fields.integer("o_groups", least=1, most=self.heads)
        self.window = fields.integer("sliding_window", least=1)
        self.index_heads = fields.integer("index_n_heads", least=1, most=common.MAX_HEADS)
        self.index_dim = common.width(fields, "index_head_dim")
        self.top_k = fields.integer("index_topk", least=1)
        if self.heads % self.groups or self.rope > self.dim:
            raise NotUnderstood(
                f"o_groups {self.groups} for {self.heads} heads, {self.rope} of {self.dim} rotated", where=fields.where
            )

    def write(self, site: Site) -> None:
        site.draft.mla_latent = self.dim
        common.set_heads(site.draft, self.heads, 1, self.dim)
        site, ratio = site.at("attn"), self.ratio
        column, heads, outputs = Split.COLUMN, self.heads, self.groups * self.o_rank
        site.linear("wq_a", "attn.q_a", self.q_rank, self.hidden)
        site.vector("q_norm", "attn.q_a_norm", self.q_rank)
        site.linear("wq_b", "attn.q_b", heads * self.dim, self.q_rank, column, units=heads)
        site.linear("wkv", "attn.kv", self.dim, self.hidden)
        site.vector("kv_norm", "attn.kv_norm", self.dim)
        site.linear("wo_a", "attn.o_a", outputs, heads * self.dim // self.groups, column, units=self.groups)
        site.linear("wo_b", "attn.o", self.hidden, outputs, Split.ROW, units=self.groups)
        site.vector("attn_sink", "attn.sinks", heads, split=column, units=heads, dtype="float32")
        if ratio:
            self._compressor(site.at("compressor"), "attn.compressor", self.dim, ratio)
        if ratio == _OVERLAPPING:
            index = site.at("indexer")
            index.linear("wq_b", "attn.index.q", self.index_heads * self.index_dim, self.q_rank)
            index.linear("weights_proj", "attn.index.weights", self.index_heads, self.hidden)
            self._compressor(index.at("compressor"), "attn.index.compressor", self.index_dim, ratio)

    def _compressor(self, site: Site, role: str, dim: int, ratio: int) -> None:
        width = dim * _series(ratio)
        site.linear("wkv", f"{role}.kv", width, self.hidden)
        site.linear("wgate", f"{role}.gate", width, self.hidden)
        site.linear("ape", f"{role}.position.bias", ratio, width, dtype="float32")
        site.vector("norm", f"{role}.norm", dim)

    def facts(self, layer: Layer) -> Layer:
        """What a layer keeps and computes.

        An entry: dim FP8 bytes would be elements alone; kept are dim - rope in FP8, rope in bfloat16, one scale byte a
        64 FP8 elements and one of padding: 448 + 2·64 + 8 = 584 bytes for dim 512, 72 beyond the elements.
        A compressor keeps, in float32, the projections and gates of the tokens the next entry will be made of.
        """
        ratio = self.ratio
        extra = self.rope + (self.dim - self.rope) // 64 + 1
        entry = State(
            name="kv",
            per_token=self.dim,
            window=self.window,
            dtype="float8_e4m3",
            extra_bytes_per_token=extra,
        )
        kept = [entry]
        if ratio:
            kept.append(
                State(
                    name="compressed",
                    per_token=self.dim,
                    stride=ratio,
                    dtype="float8_e4m3",
                    extra_bytes_per_token=extra,
                )
            )
            kept.append(_buffer(self.dim, ratio))
        sparse = ratio == _OVERLAPPING
        if sparse:
            kept += [states.index_state(self.index_dim, stride=ratio), _buffer(self.index_dim, ratio)]
        return replace(
            layer,
            mixer="sparse" if ratio else "sliding",
            states=tuple(kept),
            attn_flops_per_pair=4 * self.heads * self.dim,
            # Window-only: the window bounds all. Otherwise the window comes on top of one key per `ratio` tokens.
            attends=self.top_k if sparse else None if ratio else self.window,
            attends_stride=ratio or 1,
            attends_window=self.window if ratio else 0,
            index_flops_per_pair=states.index_flops(self.index_heads, self.index_dim) if sparse else 0,
        )


def _series(ratio: int) -> int:
    return 2 if ratio == _OVERLAPPING else 1


def _buffer(dim: int, ratio: int) -> State:
    """Projections and gates (2 x dim, twice with overlap) of the last tokens a compressor looks back on."""
    series = _series(ratio)
    return State(name="compressor", per_token=2 * series * dim, window=series * ratio, dtype="float32")


@dataclass(frozen=True)
class _Experts(Experts):
    """Experts beside a shared one. The first layers choose by a table from token id to experts instead of scores."""

    table: int = 0  # tokens in the table, 0 = scores

    def write_router(self, site: Site) -> None:
        super().write_router(site)
        if self.table:
            site.linear("gate.tid2eid", "moe.router.table", self.table, self.top_k, dtype="int64")


def _experts(fields: Fields, hidden: int, table: int = 0) -> _Experts:
    inner = common.width(fields, "moe_intermediate_size")
    shared = fields.integer("n_shared_experts", default=0, most=common.MAX_EXPERTS)
    return _Experts(
        hidden,
        inner,
        *common.expert_counts(fields, "n_routed_experts"),
        shared=shared,
        shared_inner=shared * inner,
        correction="" if table else "gate.bias",
        table=table,
        name="ffn",
        names=common.W1_W3_W2,
        shared_names=common.W1_W3_W2,
    )
