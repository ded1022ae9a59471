"""A model's tensors and states gathered by kind, so that a layout's stages are sums over a few dozen kinds rather than
over thousands of tensors: the layout search asks this thousands of times."""

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.core.dtypes import BITS
from linkwise.core.identity import ById
from linkwise.core.layout import Layout
from linkwise.core.quantity import Num, ceil_div, minimum, total
from linkwise.engine.base import Convention, Engine
from linkwise.engine.sharding import Shard, shard, split_rules
from linkwise.model.types import Layer, Model, State, Tensor


class Kind(NamedTuple):
    """Equal tensors of several layers."""

    tensor: Tensor
    layers: tuple[int, ...]

    def within(self, first: int, end: int) -> int:
        """How many of them lie in layers first..end-1."""
        return bisect_left(self.layers, end) - bisect_left(self.layers, first)


class Held(NamedTuple):
    """What one rank of a stage holds of one role. `whole`: bytes of the same tensors before any division."""

    role: str
    bytes: int
    elements: int
    over: tuple[str, ...]
    dtype: str
    whole: int


class Stage(NamedTuple):
    """One pipeline stage: decoder layers first..end-1, and whether it is the first or the last."""

    number: int
    first: int
    end: int
    is_first: bool
    is_last: bool

    @property
    def layers(self) -> int:
        return self.end - self.first


class Inventory:
    """Kinds of tensors and states of one model. Built once per model; everything else is arithmetic."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.depth = len(model.layers)
        kinds: dict[tuple[object, ...], tuple[Tensor, list[int]]] = {}
        for t in model.tensors:
            key = (t.role, t.shape, t.count, t.dtype, t.split, t.units, t.total_bytes, t.layer < 0)
            kinds.setdefault(key, (t, []))[1].append(t.layer)
        self.kinds = tuple(Kind(t, tuple(sorted(layers))) for t, layers in kinds.values())
        self.weight_bytes = sum(k.tensor.total_bytes * len(k.layers) for k in self.kinds)
        states: dict[State, list[int]] = {}
        for layer in model.layers:
            for state in layer.states:
                states.setdefault(state, []).append(layer.index)
        self.states = tuple((state, tuple(layers)) for state, layers in states.items())
        self.shards: dict[tuple[object, ...], dict[int, Shard]] = {}
        self.parts: dict[tuple[object, ...], tuple[Held, ...]] = {}
        self._mixers = _positions((kind, layer.index) for layer in model.layers for kind in layer.mixers)
        self._ffns = _positions((layer.ffn, layer.index) for layer in model.layers)
        alike: dict[Layer, list[int]] = {}
        for layer in model.layers:
            alike.setdefault(replace(layer, index=0), []).append(layer.index)
        self.layer_kinds = tuple((layer, tuple(found)) for layer, found in alike.items())

    def mixers(self, stage: Stage) -> int:
        """What mixes tokens in a stage's layers (attention, linear attention, Mamba); a layer may have two."""
        return sum(_count(found, stage) for found in self._mixers.values())

    def whole_layers(self, stage: Stage) -> int | float:
        """Layers of a stage, each a mixer and a feed-forward: one that is only either counts half (Nemotron-H), one
        with a second mixer half more."""
        halves = self.mixers(stage) + self.ffns(stage, "dense") + self.ffns(stage, "moe")
        return halves // 2 if halves % 2 == 0 else halves / 2

    def attention_layers(self, stage: Stage) -> int:
        """Layers of a stage whose mixer keeps per-token keys and values."""
        return sum(_count(v, stage) for k, v in self._mixers.items() if k not in {"linear", "mamba"})

    def of_mixer(self, stage: Stage, *kinds: str) -> int:
        """Layers of a stage with one of these mixers."""
        return sum(_count(self._mixers.get(kind, ()), stage) for kind in kinds)

    def with_role(self, stage: Stage, role: str) -> int:
        """Layers of a stage that hold a tensor of this role."""
        return sum(kind.within(stage.first, stage.end) for kind in self.kinds if kind.tensor.role == role)

    def ffns(self, stage: Stage, kind: str) -> int:
        """Layers of a stage with a dense or MoE feed-forward."""
        return _count(self._ffns.get(kind, ()), stage)


def _positions(kinds: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """The layers of each kind."""
    found: dict[str, list[int]] = {}
    for kind, layer in kinds:
        found.setdefault(kind, []).append(layer)
    return {k: tuple(v) for k, v in found.items()}


def _count(positions: tuple[int, ...], stage: Stage) -> int:
    return bisect_left(positions, stage.end) - bisect_left(positions, stage.first)


@lru_cache(maxsize=16)
def _cached(key: ById[Model]) -> Inventory:
    return Inventory(key.value)


def inventory(model: Model) -> Inventory:
    """The model's inventory, built once."""
    return _cached(ById(model))


def stages(model: Model, layout: Layout, engine: Engine) -> tuple[Stage, ...]:
    """The pipeline stages an engine cuts the model into."""
    found, first = [], 0
    for index, count in enumerate(engine.stage_layers(len(model.layers), layout.pp)):
        found.append(Stage(index, first, first + count, index == 0, index == layout.pp - 1))
        first += count
    return tuple(found)


def held(
    stock: Inventory,
    stage: Stage,
    layout: Layout,
    engine: Engine,
    *,
    ep_rank: int = 0,
    rank: int = 0,
    mtp: bool = False,
    convention: Convention | None = None,
) -> tuple[Held, ...]:
    """Weights one rank of a stage holds, by kind. mtp: whether the multi-token-prediction layers are loaded.

    convention: the engine's for this layout where it depends on it (`Engine.convention_for`).
    """
    rules, pad = convention or engine.convention, engine.defaults.vocab_pad
    # What a rank holds of a tensor depends on a few degrees only, and many layouts share them.
    divided = (layout.tp, layout.cp, layout.dp_attn, layout.ep, split_rules(rules), pad, ep_rank, rank)
    part = (divided, stage.first, stage.end, stage.is_first, stage.is_last, mtp)
    if part not in stock.parts:
        stock.parts[part] = _held(stock, stage, layout, rules, pad, ep_rank, rank, mtp, divided)
    return stock.parts[part]


def _held(
    stock: Inventory, stage: Stage, layout: Layout, rules: Convention, pad: int, ep_rank: int, rank: int, mtp: bool,
    divided: tuple[object, ...],
) -> tuple[Held, ...]:  # fmt: skip
    shards = stock.shards.setdefault(divided, {})
    result = []
    for index, kind in enumerate(stock.kinds):
        tensor = kind.tensor
        number = _copies(tensor, kind, stage, stock, mtp)
        if not number:
            continue
        if index not in shards:
            shards[index] = shard(tensor, layout, rules, vocab_pad=pad, ep_rank=ep_rank, rank=rank)
        one = shards[index]
        whole = number * tensor.total_bytes
        result.append(Held(tensor.role, number * one.bytes, number * one.elements, one.over, tensor.dtype, whole))
    return tuple(result)


def _copies(tensor: Tensor, kind: Kind, stage: Stage, stock: Inventory, mtp: bool) -> int:
    if tensor.role.startswith("mtp"):
        return len(kind.layers) if mtp and stage.is_last else 0
    if tensor.layer >= 0:
        return kind.within(stage.first, stage.end)
    if tensor.role.startswith(("embed", "vision")):
        # A tied head needs the embedding's rows on the last stage too.
        tied_copy = tensor.role.startswith("embed") and stock.model.tied and stage.is_last
        return len(kind.layers) if stage.is_first or tied_copy else 0
    return len(kind.layers) if stage.is_last else 0


def state_heads(state: State, tp: int) -> int:
    """Heads of a state on one tensor rank: divided while they last, then replicated."""
    return max(1, -(-state.heads // tp))


def token_bytes(state: State, layout: Layout, kv_dtype: str) -> int:
    """Bytes one kept token (or one request, for a fixed-size state) of one layer takes on one rank, exact."""
    elements = state.per_token + state.per_request
    # dcp splits tokens over ranks that would hold copies of a head, so heads divide over the other tp / dcp ranks.
    heads = state_heads(state, layout.tp // layout.dcp if state.per_token else layout.tp)
    local = elements // state.heads * heads
    dtype = kv_dtype if state.dtype == "kv" else state.dtype
    for stored, each in state.entry_bytes:
        if stored == dtype:
            return -(-each * heads // state.heads)
    return -(-local * BITS[dtype] // 8) + state.extra_bytes_per_token


def shards_tokens(state: State, layout: Layout) -> int:
    """Ranks the tokens of a per-token state are split over (cp and dcp); fixed-size states are not split."""
    return layout.cp * layout.dcp if state.per_token else 1


def kv_layout(layout: Layout, convention: Convention) -> Layout:
    """The layout as far as it divides KV: without cp where each of its ranks keeps all tokens."""
    if layout.cp == 1 or convention.cp_kv == "split":
        return layout
    return Layout(tp=layout.tp, dcp=layout.dcp)


def _up(count: Num, parts: int) -> Num:
    """Rounded-up share; a chain shows no division by one."""
    return ceil_div(count, parts) if parts > 1 else count


def request_parts(
    stock: Inventory, stage: Stage, layout: Layout, kv_dtype: str, length: Num, *, block_tokens: int = 1
) -> list[tuple[State, Num]]:
    """Bytes one request of `length` tokens keeps on one rank of a stage, state by state, whole blocks."""
    parts: list[tuple[State, Num]] = []
    for state, layers in stock.states:
        number = _count(layers, stage)
        if not number:
            continue
        each = token_bytes(state, layout, kv_dtype)
        if not state.per_token:
            parts.append((state, number * each))
            continue
        tokens = length if state.window is None else minimum(length, state.window)
        entries = _up(_up(tokens, state.stride), shards_tokens(state, layout))
        parts.append((state, number * each * (_up(entries, block_tokens) * block_tokens)))
    return parts


def request_bytes(
    stock: Inventory, stage: Stage, layout: Layout, kv_dtype: str, length: Num, *, block_tokens: int = 1
) -> Num:
    """Bytes one request of `length` tokens keeps on one rank of a stage, whole blocks."""
    parts = request_parts(stock, stage, layout, kv_dtype, length, block_tokens=block_tokens)
    return total(size for _, size in parts)


def read_bytes(stock: Inventory, stage: Stage, layout: Layout, kv_dtype: str, length: Num) -> Num:
    """Bytes one decoding request of `length` tokens reads on one rank: all it keeps; of a sparse layer, its top-k."""
    terms = []
    for layer, layers in stock.layer_kinds:
        number = _count(layers, stage)
        if not number:
            continue
        for state in layer.states:
            each = number * token_bytes(state, layout, kv_dtype)
            if not state.per_token:
                terms.append(each)
                continue
            tokens = length if state.window is None else minimum(length, state.window)
            entries = _up(tokens, state.stride)
            if layer.attends is not None and state.name != "index":
                entries = minimum(entries, layer.attends)
            terms.append(each * _up(entries, shards_tokens(state, layout)))
    return total(terms)


def layers_within(layers: tuple[int, ...], stage: Stage) -> int:
    """How many of these layer indexes a stage holds."""
    return _count(layers, stage)


def bytes_per_token(stock: Inventory, stage: Stage, layout: Layout, kv_dtype: str) -> int | None:
    """KV bytes a token adds on one rank of a stage, before cp/dcp split its tokens; None for a hybrid stack.

    A stack with windows, strides or fixed-size states has no bytes per token: it is never divided.
    """
    result = 0
    for state, layers in stock.states:
        number = _count(layers, stage)
        if not number:
            continue
        if state.window is not None or state.stride != 1 or not state.per_token:
            return None
        result += number * token_bytes(state, layout, kv_dtype)
    return result


__all__ = [
    "Held",
    "Inventory",
    "Stage",
    "bytes_per_token",
    "held",
    "inventory",
    "kv_layout",
    "layers_within",
    "read_bytes",
    "request_bytes",
    "request_parts",
    "shards_tokens",
    "stages",
    "state_heads",
    "token_bytes",
]
