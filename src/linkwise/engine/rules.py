"""Which layouts an engine refuses: rules shared by engines, each giving the first reason and the smallest change."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from linkwise.core.layout import Layout
from linkwise.engine.base import Convention, Refusal
from linkwise.engine.sharding import axes, ways
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


class _ById:
    """Hash a model by identity: hashing its thousands of tensors would cost more than the rules."""

    __slots__ = ("model",)

    def __init__(self, model: Model) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.model is self.model


def pieces(model: Model) -> tuple[Piece, ...]:
    """The model's dividable weights, each kind once."""
    return _pieces(_ById(model))


@lru_cache(maxsize=16)
def _pieces(key: _ById) -> tuple[Piece, ...]:
    found: dict[tuple[object, ...], Piece] = {}
    for tensor in key.model.tensors:
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


def lower(degree: int, works: Callable[[int], bool]) -> int:
    """The nearest lower degree that works: one that divides today's if there is one above 1, else any; 1 at last."""
    found = [d for d in range(degree - 1, 1, -1) if works(d)]
    return next((d for d in found if degree % d == 0), found[0] if found else 1)


def stages(model: Model, layout: Layout) -> Refusal | None:
    """A stage needs a layer."""
    if layout.pp <= len(model.layers):
        return None
    return Refusal(
        reason=f"pp {layout.pp} is more than the model's {len(model.layers)} layers", change=f"pp {len(model.layers)}"
    )


def only_moe(model: Model, layout: Layout, *, dense_dp: str) -> Refusal | None:
    """Expert parallelism and attention data parallelism are for models with experts."""
    if model.moe is not None:
        return None
    if layout.ep > 1:
        return Refusal(reason=f"ep {layout.ep}, but the model has no experts", change="ep 1")
    if layout.dp_attn > 1:
        return Refusal(reason=f"dp_attn {layout.dp_attn} on a dense model: {dense_dp}", change="dp_attn 1 and replicas")
    return None


def heads(model: Model, layout: Layout) -> Refusal | None:
    """Query heads divide over tp; KV heads divide, or tp is a multiple of them."""
    tp = layout.tp
    if model.heads and model.heads % tp:
        return Refusal(
            reason=f"{model.heads} attention heads are not divisible by tp {tp}",
            change=f"tp {_dividing(model.heads, tp)}",
        )
    kv = model.kv_heads
    if kv and not model.is_mla and kv % tp and tp % kv:
        return Refusal(
            reason=f"{kv} KV heads: tp {tp} neither divides them nor is a multiple of them",
            change=f"tp {_dividing(kv, tp)}",
        )
    return None


def _parts(piece: Piece, layout: Layout, convention: Convention) -> tuple[int, str]:
    """Ranks that divide a weight, and what a user calls that degree."""
    over = axes(piece.tensor, convention)
    # Beyond their number KV heads replicate: their shards are whole heads, with a rule of their own.
    if not over or piece.tensor.split is Split.KV:
        return 1, ""
    if piece.tensor.is_expert:
        return layout.moe_tp, "tp" if layout.moe_tp == layout.tp else "moe_tp"
    parts = ways(layout, over[0])
    return parts, "tp" if parts == layout.tp else {"stage": "ranks per stage"}.get(over[0], over[0])


def divides(model: Model, layout: Layout, convention: Convention, *, vocab_pad: int) -> Refusal | None:
    """Every weight divides evenly over the ranks the convention splits it over, the vocabulary after its padding."""
    for piece in pieces(model):
        parts, name = _parts(piece, layout, convention)
        if piece.tensor.split is Split.VOCAB:
            extent = -(-piece.extent // vocab_pad) * vocab_pad
            padded = f" (padded from {piece.extent:,})" if extent > piece.extent else ""
            what = f"the vocabulary of {extent:,}{padded} is"
        else:
            extent = piece.units or piece.extent
            what = f"{piece.role}: {extent} {'heads' if piece.units else 'features'} are"
        if extent % parts:
            nearest = _dividing(extent, parts)
            return Refusal(reason=f"{what} not divisible by {name} {parts}", change=f"{name} {nearest}")
    return None


def _dividing(extent: int, degree: int) -> int:
    return lower(degree, lambda d: extent % d == 0)


def fp8_blocks(model: Model, layout: Layout, convention: Convention) -> Refusal | None:
    """A rank's shard of a block-quantised FP8 weight is a whole number of scale blocks."""
    for piece in pieces(model):
        parts, name = _parts(piece, layout, convention)
        if parts > 1 and piece.block and piece.extent // parts % piece.block:
            whole = f"ep {layout.stage_size}, which keeps experts whole, or " if piece.tensor.is_expert else ""
            nearest = _dividing(max(1, piece.extent // piece.block), parts)
            return Refusal(
                reason=f"{piece.role}: {piece.extent} / {parts} = {piece.extent // parts} features per rank are not a"
                f" multiple of the FP8 scale block {piece.block}",
                change=f"{whole}{name} {nearest}",
            )
    return None


def experts(model: Model, layout: Layout, *, even: bool) -> Refusal | None:
    """No rank without an expert; where the engine asks for it, the same number on each."""
    if model.moe is None or layout.ep == 1:
        return None
    count = model.moe.experts
    if layout.ep > count:
        return Refusal(reason=f"ep {layout.ep} is more than the {count} experts", change=f"ep {count}")
    if even and count % layout.ep:
        nearest = _dividing(count, layout.ep)
        return Refusal(reason=f"{count} experts are not divisible by ep {layout.ep}", change=f"ep {nearest}")
    return None


def context_shards(model: Model, layout: Layout) -> Refusal | None:
    """dcp splits the tokens of replicated heads: any degree for MLA, up to tp // kv_heads for grouped heads."""
    dcp = layout.dcp
    if dcp == 1:
        return None
    mixers = sorted({la.mixer for la in model.layers} - {"full", "mla", "sparse", "none"})
    if mixers:
        return Refusal(
            reason=f"dcp {dcp} with {', '.join(mixers)} layers: only full and MLA attention is known to work",
            change="dcp 1",
        )
    if model.is_mla:
        return None
    most = layout.tp // max(1, model.kv_heads)
    if layout.tp <= model.kv_heads or dcp > most:
        reason = f"dcp {dcp} needs tp of at least {dcp} x {model.kv_heads} KV heads, tp is {layout.tp}"
        return Refusal(reason=reason, change=f"dcp {max(1, most)}")
    per_kv = model.heads // max(1, model.kv_heads)
    if per_kv % dcp:
        return Refusal(
            reason=f"{per_kv} query heads per KV head are not divisible by dcp {dcp}",
            change=f"dcp {_dividing(per_kv, dcp)}",
        )
    return None


def even_partition(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage, the remainder to the first stages."""
    return tuple(layers // pp + (stage < layers % pp) for stage in range(pp))
