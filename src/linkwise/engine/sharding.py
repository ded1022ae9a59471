"""How many bytes of a tensor one rank holds under an engine's convention.

One rule for every engine: a tensor's role picks the axes it is divided over (data of the convention), the tensor's own
`Split` says along which extent and in which indivisible pieces.
"""

from typing import NamedTuple

from linkwise.core.layout import Layout
from linkwise.engine.base import Convention
from linkwise.model.types import Split, Tensor


class Shard(NamedTuple):
    """What one rank holds of a tensor. `over`: axes it is divided over; `replicas`: equal copies in its stage."""

    elements: int
    bytes: int
    over: tuple[str, ...]
    replicas: int


def axes(tensor: Tensor, convention: Convention) -> tuple[str, ...]:
    """The axes an engine divides this tensor over, outer first; empty = a whole copy on every rank of its stage."""
    role = tensor.role.removeprefix("mtp.")
    if tensor.is_expert:
        return ("ep", "moe_tp")
    if tensor.split is Split.NONE:
        return ()
    if role.startswith("embed"):
        return () if convention.embed_split == "none" else _axis(convention.embed_over or convention.head_over)
    if role.startswith("head"):
        return () if convention.head_split == "none" else _axis(convention.head_over)
    if role.startswith("mlp"):
        return _axis(convention.mlp_over)
    if role.startswith("moe.shared"):
        return _axis(convention.shared_over)
    if role.startswith("vision"):
        return _axis(convention.vision_over)
    return ("tp",)


def split_rules(convention: Convention) -> tuple[str, ...]:
    """All that `axes` reads of a convention."""
    c = convention
    return (c.embed_split, c.head_split, c.head_over, c.embed_over, c.mlp_over, c.shared_over, c.vision_over)


def divided(tensor: Tensor, layout: Layout, convention: Convention) -> tuple[str, ...]:
    """`axes`, less those a layout cannot use: a vision tower whose heads do not divide stays whole on each rank.

    Source: vLLM's vision.py, is_vit_use_data_parallel(num_heads).
    """
    over = axes(tensor, convention)
    if over and tensor.role.startswith("vision") and tensor.units and tensor.units % ways(layout, over[0]):
        return ()
    return over


def _axis(over: str) -> tuple[str, ...]:
    return () if over == "none" else (over,)


def ways(layout: Layout, axis: str) -> int:
    """Ranks an axis divides a tensor over."""
    return layout.stage_size if axis == "stage" else int(getattr(layout, axis))


def shard(
    tensor: Tensor, layout: Layout, convention: Convention, *, vocab_pad: int = 1, ep_rank: int = 0, rank: int = 0
) -> Shard:
    """Elements and bytes of a tensor on one rank.

    ep_rank: the rank's place on the expert axis (low ranks hold one more expert when they do not divide).
    rank: its place on the axis that divides the features; only uneven divisions depend on it.
    """
    over = divided(tensor, layout, convention)
    copies = tensor.count
    feature_ways, place = 1, rank
    if over == ("ep", "moe_tp"):
        copies = tensor.count // layout.ep + (ep_rank < tensor.count % layout.ep)
        feature_ways = layout.moe_tp
    elif over:
        feature_ways = ways(layout, over[0])
    one = _features(tensor, feature_ways, place, vocab_pad)
    elements = copies * one
    whole = tensor.parameters
    # Scales follow their elements: block scales of a divisible tensor divide with it.
    held = tensor.total_bytes * elements // whole if whole else 0
    parts = feature_ways if tensor.split is not Split.KV else min(feature_ways, tensor.units or feature_ways)
    replicas = layout.stage_size // max(1, parts * (layout.ep if tensor.is_expert else 1))
    return Shard(elements, held, over if elements < whole else (), replicas)


def _features(tensor: Tensor, divide: int, place: int, vocab_pad: int) -> int:
    """Elements of one copy on the rank at `place` of `divide`."""
    elements = tensor.parameters // max(1, tensor.count)
    if divide == 1 and tensor.split is not Split.VOCAB:
        return elements
    if tensor.split is Split.VOCAB:
        rows = tensor.shape[0]
        padded = -(-rows // vocab_pad) * vocab_pad
        return _part(padded, divide, place) * (elements // rows)
    if tensor.split is Split.KV:
        heads = tensor.units or 1
        return elements // heads * max(1, _part(heads, divide, place))
    if tensor.split in {Split.COLUMN, Split.ROW}:
        pieces = tensor.units
        extent = tensor.shape[0] if tensor.split is Split.COLUMN else tensor.shape[-1]
        if not pieces:
            return elements // extent * _part(extent, divide, place)
        return elements // pieces * _part(pieces, divide, place)
    return elements


def _part(extent: int, divide: int, place: int) -> int:
    """Share of the rank at `place`: low ranks take the remainder."""
    return extent // divide + (place < extent % divide)
