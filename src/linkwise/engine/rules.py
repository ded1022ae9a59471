"""Which layouts an engine refuses: rules shared by engines, each giving the first reason and the smallest change."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.identity import ById
from linkwise.core.layout import Layout
from linkwise.engine.base import Convention, Refusal
from linkwise.engine.sharding import divided, split_rules, ways
from linkwise.model.types import Model, Split, Tensor


class Piece(NamedTuple):
    """One kind of weight that a layout may divide. extent: the divided features; units: indivisible pieces of them.

    block: features of one FP8 scale block along the divided extent, 0 without blocks.
    """

    role: str
    tensor: Tensor
    extent: int
    units: int
    block: int


def pieces(model: Model) -> tuple[Piece, ...]:
    """The model's dividable weights, each kind once."""
    return _pieces(ById(model))


@lru_cache(maxsize=16)
def _pieces(key: ById[Model]) -> tuple[Piece, ...]:
    found: dict[tuple[object, ...], Piece] = {}
    for tensor in key.value.tensors:
        if tensor.split is Split.NONE or not tensor.shape:
            continue
        side = -1 if tensor.split is Split.ROW else 0
        extent = tensor.shape[side]
        piece = Piece(tensor.role, tensor, extent, tensor.units, scale_block(tensor, side))
        found.setdefault((tensor.role, tensor.split, extent, tensor.units, piece.block), piece)
    return tuple(found.values())


def scale_block(tensor: Tensor, side: int, block: int = 128) -> int:
    """`block` when an FP8 weight has one scale per block x block square, else 0.

    A tensor says how many bytes its scales take, not their shape: a square of scales is recognised by its count, in
    any scale width.
    """
    if tensor.dtype != "float8_e4m3" or len(tensor.shape) != 2 or not tensor.scale_bytes:
        return 0
    squares = -(-tensor.shape[0] // block) * -(-tensor.shape[1] // block)
    each = tensor.scale_bytes / max(1, tensor.count) / squares
    return block if squares > 1 and each in {1, 2, 4} else 0


def first(candidates: Iterable[Refusal | None]) -> Refusal | None:
    """The first refusal of a lazy sequence of rules."""
    return next((c for c in candidates if c is not None), None)


Refuse = Callable[[Layout], Refusal | None]
_NO_WAY = "no one degree helps: leave the degrees free"


def settle(found: Refusal, layout: Layout, refuse: Refuse) -> Refusal:
    """The refusal with a change that is true: the first of its ways that leads to a layout `refuse` lets pass.

    A way may run into another rule; that rule's ways are then followed, and all degrees that changed are named.
    """
    for way in found.ways:
        changed = _reach(layout, way, refuse)
        if changed:
            kept = found.change if changed == found.ways[0] and found.change else _words(changed)
            return replace(found, change=kept, ways=(changed,))
    if not found.ways and found.change:  # no degree is to blame
        return found
    return replace(found, change=_NO_WAY, ways=())


def _reach(layout: Layout, way: dict[str, int], refuse: Refuse) -> dict[str, int]:
    """Degrees that differ from `layout` in the first legal layout found from `way` on; empty when there is none."""
    seen, queue = {layout}, [moved(layout, way)]
    while queue and len(seen) < 16:
        at = queue.pop(0)
        if at is None or at in seen:
            continue
        seen.add(at)
        refusal = refuse(at)
        if refusal is None:
            before, after = _degrees(layout), _degrees(at)
            return {name: after[name] for name in before if after[name] != before[name]}
        queue += [moved(at, further) for further in refusal.ways]
    return {}


def moved(layout: Layout, way: dict[str, int]) -> Layout | None:
    """The layout with some degrees changed; ep and dcp follow where they no longer divide. None when there is none."""
    degrees = _degrees(layout) | way
    stage = degrees["cp"] * degrees["dp_attn"] * degrees["tp"]
    if "ep" not in way:
        degrees["ep"] = stage if 1 < layout.ep == layout.stage_size else gcd(layout.ep, stage)
    if "dcp" not in way:
        degrees["dcp"] = gcd(layout.dcp, degrees["tp"])
    try:
        sharded = bool(degrees.pop("sequence_sharded"))
        return Layout(sequence_sharded=sharded, **degrees)
    except InputError:
        return None


def _degrees(layout: Layout) -> dict[str, int]:
    return {**layout.degrees(), "sequence_sharded": int(layout.sequence_sharded)}


def _words(way: dict[str, int]) -> str:
    return ", ".join(f"{n} {d}" if n != "sequence_sharded" else f"{n} {'on' if d else 'off'}" for n, d in way.items())


def lower(degree: int, works: Callable[[int], bool]) -> int:
    """The nearest lower degree that works: one that divides today's if there is one above 1, else any; 1 at last."""
    found = [d for d in range(degree - 1, 1, -1) if works(d)]
    return next((d for d in found if degree % d == 0), found[0] if found else 1)


def stages(model: Model, layout: Layout) -> Refusal | None:
    """A stage needs a layer."""
    if layout.pp <= len(model.layers):
        return None
    count = len(model.layers)
    return Refusal(reason=f"pp {layout.pp} is more than the model's {count} layers", ways=({"pp": count},))


def only_moe(model: Model, layout: Layout, *, dense_dp: str) -> Refusal | None:
    """Expert parallelism and attention data parallelism are for models with experts."""
    if model.moe is not None:
        return None
    if layout.ep > 1:
        return Refusal(reason=f"ep {layout.ep}, but the model has no experts", ways=({"ep": 1},))
    if layout.dp_attn > 1:
        reason = f"dp_attn {layout.dp_attn} on a dense model: {dense_dp}"
        return Refusal(reason=reason, change="dp_attn 1 and replicas", ways=({"dp_attn": 1},))
    return None


def heads(model: Model, layout: Layout) -> Refusal | None:
    """Query heads divide over tp; KV heads divide, or tp is a multiple of them."""
    tp, kv = layout.tp, 0 if model.is_mla else model.kv_heads

    def fits(degree: int) -> bool:
        return model.heads % degree == 0 and (not kv or kv % degree == 0 or degree % kv == 0)

    if not model.heads or fits(tp):
        return None
    if model.heads % tp:
        reason = f"{model.heads} attention heads are not divisible by tp {tp}"
    else:
        reason = f"{kv} KV heads: tp {tp} neither divides them nor is a multiple of them"
    return Refusal(reason=reason, ways=({"tp": lower(tp, fits)},))


def recurrent_heads(model: Model, layout: Layout) -> Refusal | None:
    """Heads of recurrent layers divide over tp, and so do Mamba's groups and a delta net's key heads; a single group is
    on every rank.

    Source: vLLM's mamba_mixer2.py ("must divide num heads", "then num_groups must equal 1") and mamba_utils.py, whose
    state shapes are whole quotients.
    """
    if layout.tp == 1:
        return None
    kept = {s for layer in model.layers for s in layer.states if s.name in {"conv", "recurrent"}}

    def refused(degree: int) -> list[int]:
        return [s.heads for s in kept if s.heads % degree and (s.heads > 1 or s.name == "recurrent")]

    found = refused(layout.tp)
    if not found:
        return None
    reason = f"{min(found)} heads or groups of recurrent layers are not divisible by tp {layout.tp}"
    return Refusal(reason=reason, ways=({"tp": lower(layout.tp, lambda d: not refused(d))},))


def _divisor_of(extent: int) -> Callable[[int], bool]:
    return lambda d: extent % d == 0


def _scaled(others: int, stage: int, works: Callable[[int], bool]) -> Callable[[int], bool]:
    """Whether others x degree / stage ranks is a whole number that works."""
    return lambda d: others * d % stage == 0 and works(others * d // stage)


class _Cut(NamedTuple):
    """How a layout divides a weight: over `parts` ranks of an axis (tp, stage or moe_tp)."""

    axis: str
    parts: int

    def name(self, layout: Layout) -> str:
        """What a user calls that degree."""
        return "tp" if self.parts == layout.tp else {"stage": "ranks per stage"}.get(self.axis, self.axis)

    def fewer(self, layout: Layout, works: Callable[[int], bool]) -> tuple[dict[str, int], ...]:
        """Degrees that divide the weight over fewer ranks, a number of them that works."""
        if self.axis == "tp":
            return ({"tp": lower(layout.tp, works)},)
        stage = layout.stage_size
        found = []
        if self.axis == "moe_tp":
            found.append({"ep": stage // lower(self.parts, lambda d: works(d) and stage % d == 0)})
        for name in ("tp", "dp_attn", "cp"):
            degree = getattr(layout, name)
            if degree > 1:
                found.append({name: lower(degree, _scaled(self.parts * stage // degree, stage, works))})
        return tuple(found)


def _cut(piece: Piece, layout: Layout, convention: Convention) -> _Cut:
    over = divided(piece.tensor, layout, convention)
    # Beyond their number KV heads replicate: their shards are whole heads, with a rule of their own.
    if not over or piece.tensor.split is Split.KV:
        return _Cut("", 1)
    return _Cut("moe_tp", layout.moe_tp) if piece.tensor.is_expert else _Cut(over[0], ways(layout, over[0]))


class _Split:
    """A convention as far as it says what is split over what: equal ones share a cache entry."""

    __slots__ = ("convention", "rules")

    def __init__(self, convention: Convention) -> None:
        self.convention, self.rules = convention, split_rules(convention)

    def __hash__(self) -> int:
        return hash(self.rules)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Split) and other.rules == self.rules


def divides(model: Model, layout: Layout, convention: Convention, *, vocab_pad: int) -> Refusal | None:
    """Every weight divides evenly over the ranks the convention splits it over, the vocabulary after its padding."""
    return _divides(ById(model), _stage_of(layout), _Split(convention), vocab_pad)


def fp8_blocks(model: Model, layout: Layout, convention: Convention) -> Refusal | None:
    """A rank's shard of a block-quantised FP8 weight is a whole number of scale blocks."""
    return _fp8_blocks(ById(model), _stage_of(layout), _Split(convention))


def _stage_of(layout: Layout) -> Layout:
    """The degrees that divide weights inside a stage; the search asks about the same ones under many others."""
    return Layout(tp=layout.tp, cp=layout.cp, dp_attn=layout.dp_attn, ep=layout.ep)


@lru_cache(maxsize=4096)
def _divides(key: ById[Model], layout: Layout, split: _Split, vocab_pad: int) -> Refusal | None:
    for piece in pieces(key.value):
        cut = _cut(piece, layout, split.convention)
        if piece.tensor.split is Split.VOCAB:
            extent = -(-piece.extent // vocab_pad) * vocab_pad
            padded = f" (padded from {piece.extent:,})" if extent > piece.extent else ""
            what = f"the vocabulary of {extent:,}{padded} is"
        else:
            extent = piece.units or piece.extent
            what = f"{piece.role}: {extent} {'heads' if piece.units else 'features'} are"
        if extent % cut.parts:
            reason = f"{what} not divisible by {cut.name(layout)} {cut.parts}"
            return Refusal(reason=reason, ways=cut.fewer(layout, _divisor_of(extent)))
    return None


@lru_cache(maxsize=4096)
def _fp8_blocks(key: ById[Model], layout: Layout, split: _Split) -> Refusal | None:
    for piece in pieces(key.value):
        cut = _cut(piece, layout, split.convention)
        if cut.parts > 1 and piece.block and piece.extent // cut.parts % piece.block:
            blocks = max(1, piece.extent // piece.block)
            whole: tuple[dict[str, int], ...] = ({"ep": layout.stage_size},) if piece.tensor.is_expert else ()
            return Refusal(
                reason=f"{piece.role}: {piece.extent} / {cut.parts} = {piece.extent // cut.parts} features per rank are"
                f" not a multiple of the FP8 scale block {piece.block}",
                change=f"ep {layout.stage_size}, which keeps experts whole" if whole else "",
                # Experts on as many ranks as there are stay whole.
                ways=(*whole, *cut.fewer(layout, _divisor_of(blocks))),
            )
    return None


def experts(model: Model, layout: Layout, *, even: bool) -> Refusal | None:
    """No rank without an expert; where the engine asks for it, the same number on each."""
    if model.moe is None or layout.ep == 1:
        return None
    count, stage = model.moe.experts, layout.stage_size
    if layout.ep <= count and not (even and count % layout.ep):
        return None
    nearest = lower(layout.ep, lambda d: stage % d == 0 and d <= count and not (even and count % d))
    if layout.ep > count:
        return Refusal(reason=f"ep {layout.ep} is more than the {count} experts", ways=({"ep": nearest},))
    return Refusal(reason=f"{count} experts are not divisible by ep {layout.ep}", ways=({"ep": nearest},))


def context_shards(model: Model, layout: Layout) -> Refusal | None:
    """dcp splits the tokens of replicated heads: any degree for MLA, up to tp // kv_heads for grouped heads."""
    dcp = layout.dcp
    if dcp == 1:
        return None
    # Asked of every layout of a search, hence no tuple for each layer.
    kinds = {la.mixer for la in model.layers} | {la.beside for la in model.layers}
    mixers = sorted(kinds - {"full", "mla", "sparse", "none", ""})
    if mixers:
        reason = f"dcp {dcp} with {', '.join(mixers)} layers: only full and MLA attention is known to work"
        return Refusal(reason=reason, ways=({"dcp": 1},))
    if model.is_mla:
        return None
    most = layout.tp // max(1, model.kv_heads)
    per_kv = model.heads // max(1, model.kv_heads)
    nearest = {"dcp": lower(dcp, lambda d: layout.tp % d == 0 and d <= most and per_kv % d == 0)}
    if layout.tp <= model.kv_heads or dcp > most:
        reason = f"dcp {dcp} needs tp of at least {dcp} x {model.kv_heads} KV heads, tp is {layout.tp}"
        return Refusal(reason=reason, ways=(nearest,))
    if per_kv % dcp:
        reason = f"{per_kv} query heads per KV head are not divisible by dcp {dcp}"
        return Refusal(reason=reason, ways=(nearest,))
    return None


def even_partition(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage, the remainder to the first stages."""
    return tuple(layers // pp + (stage < layers % pp) for stage in range(pp))
