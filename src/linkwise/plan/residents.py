"""What stays in a rank's memory: weights by role, adapters, and the state requests keep. Counted per rank class."""

from typing import NamedTuple

from linkwise.core.dtypes import BITS
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, minimum, named, plain, total
from linkwise.engine.base import Convention, Engine, Options
from linkwise.engine.sharding import shard, ways
from linkwise.model.types import Split
from linkwise.plan.inventory import Inventory, Stage, held, request_parts, shards_tokens, stages, token_bytes

_MOE = {"experts", "router", "shared"}


class RankClass(NamedTuple):
    """Ranks of a group whose memory is equal. ep_rank: a place on the expert axis that stands for all of them."""

    label: str
    stage: Stage
    ep_rank: int
    ranks: tuple[int, ...]

    @property
    def first(self) -> int:
        return self.ranks[0]


class Line(NamedTuple):
    """Weights of one role group that are divided alike. role: what the ledger calls the group."""

    role: str
    over: tuple[str, ...]
    bytes: Num


def rank_classes(stock: Inventory, layout: Layout, engine: Engine) -> list[RankClass]:
    """The rank classes of a group: pipeline stages of equal content, each split where experts leave a remainder."""
    alike: dict[tuple[object, ...], list[Stage]] = {}
    for stage in stages(stock.model, layout, engine):
        ends = (stage.is_first, stage.is_last)
        content = tuple(kind.within(stage.first, stage.end) for kind in stock.kinds) if layout.pp > 1 else ()
        kept = tuple(sum(stage.first <= x < stage.end for x in layers) for _, layers in stock.states)
        alike.setdefault((ends, content, kept), []).append(stage)
    result = []
    for same in alike.values():
        stage = same[0]
        numbers = ", ".join(str(s.number) for s in same)
        label = f"stage {numbers}" if layout.pp > 1 else "all ranks"
        rest = stock.model.moe.experts % layout.ep if stock.model.moe and stock.ffns(stage, "moe") else 0
        for ep_ranks in (range(rest), range(rest, layout.ep)) if rest else (range(layout.ep),):
            places = range(ep_ranks.start * layout.moe_tp, ep_ranks.stop * layout.moe_tp)
            ranks = tuple(s.number * layout.stage_size + p for s in same for p in places)
            more = f", {'one more expert' if ep_ranks.start == 0 else 'one expert less'}" if rest else ""
            result.append(RankClass(label + more, stage, ep_ranks.start, ranks))
    return result


def role_group(role: str) -> str:
    """The ledger's line for a tensor's role: embed, attn, linear, mamba, mlp, moe.experts, ..., mtp."""
    words = role.split(".")
    if words[0] == "moe" and len(words) > 1:
        return f"moe.{words[1]}" if words[1] in _MOE else "moe.other"
    return words[0]


def weights(
    stock: Inventory,
    who: RankClass,
    layout: Layout,
    engine: Engine,
    convention: Convention,
    options: Options,
    given: Given = plain,
) -> list[Line]:
    """Weights one rank of the class holds, by role group and the axes they are divided over."""
    sums: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
    for item in held(
        stock, who.stage, layout, engine, ep_rank=who.ep_rank, mtp=options.mtp_tokens > 0, convention=convention
    ):
        key = (role_group(item.role), item.over)
        mine, whole = sums.get(key, (0, 0))
        sums[key] = (mine + item.bytes, whole + item.whole)
    lines = [
        Line(role, over, _share(role, over, mine, whole, layout, given)) for (role, over), (mine, whole) in sums.items()
    ]
    padding = _padding(stock, layout, engine, lines, given)
    return [*lines, *padding]


def _share(role: str, over: tuple[str, ...], mine: int, whole: int, layout: Layout, given: Given) -> Num:
    """A rank's bytes as whole / ways where that is exact, else as the widest shard the rule gives."""
    parts = 1
    for axis in over:
        parts *= ways(layout, axis)
    if mine * parts == whole:
        size = given(f"weights.{role}.stage", whole, "B", "model: stored bytes of the stage's tensors, scales included")
        if parts == 1:
            return size
        divide = given(" x ".join(over), parts, "", "layout: ranks the weights are divided over")
        return named(f"weights.{role}", size // divide, "B")
    return given(
        f"weights.{role}",
        mine,
        "B",
        f"{whole:,} B of the stage over {shards(over, layout) or 'one rank'}: uneven, padded or partly replicated"
        " (KV heads, vocabulary, experts), the widest rank's share",
    )


def _padding(stock: Inventory, layout: Layout, engine: Engine, lines: list[Line], given: Given) -> list[Line]:
    """What an expert kernel's padded extents add to the experts' bytes."""
    # A quantisation's name starts with its format: "mxfp4 experts".
    moe, pad = stock.model.moe, engine.memory.expert_pad.get(stock.model.quantization.split(" ")[0])
    experts = [line for line in lines if line.role == "moe.experts"]
    if moe is None or pad is None or not experts:
        return []
    inner = -(-moe.intermediate // layout.moe_tp)
    padded = -(-moe.hidden // pad[0]) * pad[0] * (-(-inner // pad[1]) * pad[1])
    size = total(line.bytes for line in experts)
    factor = given("padded/stored", padded, "elements", f"kernel pads hidden to x{pad[0]}, intermediate to x{pad[1]}")
    added = named("weights.moe.padding", size * factor // (moe.hidden * inner) - size, "B")
    return [Line("moe.padding", experts[0].over, added)]


def adapters(
    stock: Inventory, who: RankClass, layout: Layout, convention: Convention, options: Options, given: Given = plain
) -> Num:
    """Bytes of the resident LoRA adapters on one rank.

    Each targeted weight [out, in] gets A [rank, in] and B [out, rank] in the activation dtype; the side that the weight
    divides is divided alike, the other is whole on every rank. Raises InputError when no weight is targeted.
    """
    if not options.lora_count:
        return 0
    elements, targets = 0, options.lora_targets
    found = False
    for kind in stock.kinds:
        tensor = kind.tensor
        if len(tensor.shape) != 2 or tensor.layer < 0 or tensor.is_expert:
            continue
        if not tensor.role.startswith(targets):
            continue
        found = True
        number = kind.within(who.stage.first, who.stage.end) * tensor.count
        out, inside = tensor.shape
        if number:
            local = shard(tensor, layout, convention, ep_rank=who.ep_rank).elements // tensor.count
            out, inside = (out, local // out) if tensor.split is Split.ROW else (local // inside, inside)
        elements += number * (out + inside)
    if not found:
        raise InputError(
            f"lora_targets {', '.join(targets) or 'none'} match no weight",
            where="options",
            expected="role prefixes such as attn, mlp",
        )
    size = BITS[stock.model.dtype] // 8
    each = given("adapter_features", elements, "elements", "in + out of every targeted weight on this rank")
    rank = given("lora_rank", options.lora_rank, "", "option")
    return named("adapters", given("lora_count", options.lora_count, "adapters", "option") * rank * each * size, "B")


def request_states(
    stock: Inventory,
    stage: Stage,
    layout: Layout,
    options: Options,
    kv_dtype: str,
    length: Num,
    block_tokens: int,
) -> dict[str, Num]:
    """Bytes one request of `length` tokens keeps on one rank of a stage, by state name; draft layers as `draft`."""
    sums: dict[str, Num] = {}
    for state, size in request_parts(stock, stage, layout, kv_dtype, length, block_tokens=block_tokens):
        sums[state.name] = sums[state.name] + size if state.name in sums else size
    if options.mtp_tokens and stage.is_last:
        sums["draft"] = total(
            each * ceil_div(ceil_div(minimum(length, window or length), stride * parts), block_tokens) * block_tokens
            for each, window, stride, parts in _draft_states(stock, layout, kv_dtype)
        )
    return sums


def _draft_states(stock: Inventory, layout: Layout, kv_dtype: str) -> list[tuple[int, int | None, int, int]]:
    """(bytes a kept token, window, stride, ranks its tokens are split over) of the draft layers' caches.

    A multi-token-prediction layer repeats the stack's last decoder layer.
    """
    number = stock.model.mtp_layers
    return [
        (number * token_bytes(s, layout, kv_dtype), s.window, s.stride, shards_tokens(s, layout))
        for s in stock.model.layers[-1].states
        if s.per_token
    ]


def draft_bytes_per_token(stock: Inventory, stage: Stage, layout: Layout, options: Options, kv_dtype: str) -> int:
    """What the draft layers add to a stage's bytes per token."""
    if not options.mtp_tokens or not stage.is_last:
        return 0
    return sum(each for each, _, _, _ in _draft_states(stock, layout, kv_dtype))


def shards(over: tuple[str, ...], layout: Layout) -> str:
    """Axes with their degrees, "ep 8 x moe_tp 1"; empty when nothing is divided."""
    return " x ".join(f"{axis} {ways(layout, axis)}" for axis in over)


def copies(over: tuple[str, ...], layout: Layout) -> str:
    """The axes of a stage over which equal copies are held; empty for one copy."""
    if "stage" in over or "ep" in over:
        return ""
    left = [axis for axis in ("cp", "dp_attn", "tp") if axis not in over and ways(layout, axis) > 1]
    return shards(tuple(left), layout)
