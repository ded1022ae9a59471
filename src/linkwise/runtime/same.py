"""Whether a plan was made for these weights: everything of a model that decides what ranks hold, compute and send."""

from collections.abc import Sequence

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.model.types import Layer, Model, Tensor

# Not compared: where a model was read and what was said about it. dtype: both run in the same one.
_WHOLE = (
    "family", "hidden", "vocab", "heads", "kv_heads", "head_dim", "mla_latent", "mla_rope", "moe", "tied",
    "mtp_layers", "kv_dtype",
)  # fmt: skip


def check_same(planned: Model, weights: Model, where: str) -> None:
    """Refuse a plan whose model differs from the weights' in anything that matters, by the first difference.

    Both in the dtype they run in (`model.held`).
    """
    found = _difference(planned, weights)
    if found is not None:
        ours, theirs = (value[:200] for value in found)
        raise InputError(
            f"the plan is for another model: {planned.name[:80]} with {ours}",
            where=where,
            expected=f"{theirs}, as the weights have it",
        )


def _difference(one: Model, other: Model) -> tuple[str, str] | None:
    return (
        _fields(one, other, _WHOLE, "")
        or _lengths(one.layers, other.layers, "layers")
        or _layers(one.layers, other.layers)
        or _tensors(one.tensors, other.tensors)
    )


def _lengths(one: Sequence[object], other: Sequence[object], what: str) -> tuple[str, str] | None:
    return None if len(one) == len(other) else (f"{len(one)} {what}", f"{len(other)} {what}")


def _layers(one: Sequence[Layer], other: Sequence[Layer]) -> tuple[str, str] | None:
    for mine, yours in zip(one, other, strict=True):
        found = _fields(mine, yours, Layer.__struct_fields__, f"layer {mine.index}: ")
        if found is not None:
            return found
    return None


def _tensors(one: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[str, str] | None:
    theirs = {(tensor.layer, tensor.name): tensor for tensor in other}
    for mine in one:
        yours = theirs.pop((mine.layer, mine.name), None)
        if yours is None:
            return f"tensor {mine.name}", "none of that name"
        found = _fields(mine, yours, Tensor.__struct_fields__, f"tensor {mine.name}: ")
        if found is not None:
            return found
    missing = next(iter(theirs.values()), None)
    return None if missing is None else (f"no tensor {missing.name}", "one")


def _fields(one: Frozen, other: Frozen, names: Sequence[str], what: str) -> tuple[str, str] | None:
    for name in names:
        mine, yours = getattr(one, name), getattr(other, name)
        if mine != yours:
            return f"{what}{name} {_shown(mine)}", f"{name} {_shown(yours)}"
    return None


def _shown(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
