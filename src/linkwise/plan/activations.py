"""Peak memory of a step's working tensors, as an engine's profile run at start-up sees it.

Two moments compete for the peak and never coexist, so the larger counts:

- the forward pass over `max_batched_tokens` tokens: at a feed-forward's widest moment a token keeps its residual, the
  layer's input and its output (3 hidden) beside gate, up and their product (3 intermediate, divided by tp).
  Llama-3.1-8B under vLLM: 2 B x (3 x 4,096 + 3 x 14,336) = 110,592 B a token, the slope of vllm#10517's peaks. In a
  tensor group the all-reduce is not in place and adds its output and one more copy (vllm#13061 and #15815, tp 2).
- sampling over `max_seqs` rows: float32 copies of rows x vocabulary for sort, softmax and top-p, while the hidden
  states of every batched token are still alive. It is not divided by tp: every rank samples on gathered logits.

The expert layer of a mixture keeps, for each pair of token and chosen expert on the rank, the gate-and-up output or the
down output (they share a buffer) and the activated product: max(2 x intermediate, hidden) + intermediate.
"""

from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

from linkwise.core.dtypes import BITS
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, floor, maximum, minimum, named, plain, total
from linkwise.engine.base import Convention, Memory, Options, Resolved
from linkwise.engine.sharding import axes, ways
from linkwise.model.types import Moe, Split, Tensor
from linkwise.plan.inventory import Inventory, Stage

# A gated layer's three intermediate-sized tensors: what `Memory.activation_intermediate` counts in.
GATED = 3


class Block(NamedTuple):
    """A mixer or dense feed-forward whose working tensors live together, and the layers that have it."""

    name: str
    matrices: tuple[Tensor, ...]
    layers: tuple[int, ...]

    def in_stage(self, stage: Stage) -> bool:
        return bisect_left(self.layers, stage.end) > bisect_left(self.layers, stage.first)


class Peak(NamedTuple):
    """Bytes on one rank. forward: the widest layer over all batched tokens. sampler: 0 off the last stage.

    extra: what the sampler's peak adds to the forward's; forward + extra is the peak that counts.
    """

    forward: Num
    sampler: Num
    extra: Num


@lru_cache(maxsize=16)
def blocks(stock: Inventory) -> tuple[Block, ...]:
    """The model's distinct mixers and dense feed-forwards."""
    by_layer: dict[tuple[int, str], list[Tensor]] = {}
    for kind in stock.kinds:
        tensor = kind.tensor
        word = tensor.role.split(".")[0]
        name = {"attn": "mixer", "linear": "mixer", "mamba": "mixer", "mlp": "mlp"}.get(word)
        if name is None or len(tensor.shape) != 2:
            continue
        for layer in kind.layers:
            by_layer.setdefault((layer, name), []).append(tensor)
    same: dict[tuple[str, tuple[int, ...]], tuple[tuple[Tensor, ...], list[int]]] = {}
    for (layer, name), tensors in sorted(by_layer.items()):
        key = (name, tuple(id(t) for t in tensors))
        same.setdefault(key, (tuple(tensors), []))[1].append(layer)
    return tuple(Block(name, tensors, tuple(layers)) for (name, _), (tensors, layers) in same.items())


def width(block: Block, layout: Layout, convention: Convention) -> int:
    """Elements a token keeps on one rank: every projection's output, and the last projection's input."""
    result = 0
    for tensor in block.matrices:
        extent = tensor.shape[1] if tensor.split is Split.ROW else tensor.shape[0]
        over = axes(tensor, convention)
        divide = ways(layout, over[0]) if over else 1
        pieces = tensor.units or extent
        # The widest rank: low ranks take the remainder, and heads beyond the last replicate.
        result += extent // pieces * max(1, -(-pieces // divide))
    return result


def peak(
    stock: Inventory,
    stage: Stage,
    layout: Layout,
    memory: Memory,
    convention: Convention,
    options: Options,
    settings: Resolved,
    given: Given = plain,
) -> Peak:
    """The profile run's peak on one rank of a stage."""
    if not (memory.activation_hidden or memory.activation_intermediate or memory.sampler_copies):
        return Peak(0, 0, 0)
    model = stock.model
    size = BITS[model.dtype] // 8
    batched = given("max_batched_tokens", settings.max_batched_tokens, "tokens", "most tokens of one step")
    tokens = ceil_div(batched, given("cp", layout.cp, "", "layout")) if layout.cp > 1 else batched
    copies = memory.activation_hidden + (memory.activation_reduce if layout.tp > 1 else 0)
    hidden = given("hidden", model.hidden, "elements", "model")
    base = named("hidden_per_token", hidden * given("hidden_copies", copies, "", "engine facts: memory"), "elements")
    scale = memory.activation_intermediate / GATED
    wide = max(
        (width(b, layout, convention) * (scale if b.name == "mlp" else 1) for b in blocks(stock) if b.in_stage(stage)),
        default=0,
    )
    per_token = base + given("wide_per_token", wide, "elements", "outputs of a layer's projections on this rank")
    elements = named("dense_elements", tokens * per_token, "elements", "the widest mixer or dense feed-forward")
    if model.moe is not None and stock.ffns(stage, "moe"):
        experts = _expert_elements(model.moe, layout, memory, convention, options, batched, given)
        elements = maximum(elements, named("moe_elements", tokens * base + experts, "elements", "the expert layer"))
    forward = named("activations", floor(elements * given("dtype", size, "B", model.dtype)), "B")
    sampler: Num = 0
    if stage.is_last and memory.sampler_copies:
        rows = minimum(given("max_seqs", settings.max_seqs, "requests", "most requests of one step"), batched)
        logits = rows * given("vocab", model.vocab, "elements", "model") * 4
        kept = [logits * given("sampler_copies", memory.sampler_copies, "", "engine facts: memory")]
        if memory.sampler_hidden:
            alive = given("sampler_hidden", memory.sampler_hidden, "", "engine facts: memory")
            kept.append(tokens * hidden * 2 * alive)
        sampler = named("sampler", floor(total(kept)), "B", "float32 copies of rows x vocabulary, not divided by tp")
    extra = named(
        "logits", maximum(0, sampler - forward), "B", "the sampler runs after the forward pass: only the excess counts"
    )
    return Peak(forward, sampler, extra)


def _expert_elements(
    moe: Moe,
    layout: Layout,
    memory: Memory,
    convention: Convention,
    options: Options,
    batched: Num,
    given: Given,
) -> Num:
    """Elements of the expert layer's buffers on one rank."""
    everyone = batched * given("dp_attn", layout.dp_attn, "", "attention replicas whose tokens meet at the experts")
    pairs = everyone * given("top_k", moe.top_k, "", "experts of a token")
    exchange = options.moe_exchange or convention.moe_exchange
    differ = layout.cp * layout.dp_attn > 1
    if exchange == "all_to_all" and (differ or not convention.moe_replicated) and layout.ep > 1:
        # Each rank receives the pairs of its own experts only; routing may be skewed.
        pairs = ceil_div(pairs, given("ep", layout.ep, "", "layout")) * options.moe_skew
    elif memory.moe_chunk_tokens:
        chunk = given("moe_chunk", memory.moe_chunk_tokens, "tokens", "engine facts: memory")
        pairs = minimum(pairs, chunk * moe.top_k)
    inner = -(-moe.intermediate // layout.moe_tp)
    return named("pairs", pairs, "token-expert pairs") * given(
        "per_pair", max(2 * inner, moe.hidden) + inner, "elements", "max(2 x intermediate, hidden) + intermediate"
    )
