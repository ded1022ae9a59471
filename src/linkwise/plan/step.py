"""What ranks do in one engine step, written down once (DESIGN §2.1).

A step is a list of ops per rank class (pipeline stage). Traffic, time, simulation, the runtime's check and the
diagnosis all read this list. What an engine's step communicates is data of its `Convention`; this file makes it ops.

Under attention data parallelism every attention replica runs the same step with its own tokens; `tokens` and `sampled`
of a batch are those of one attention replica.
"""

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.core.dtypes import BITS, canonical
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, maximum, named, plain, times, total, value_of, where
from linkwise.engine.base import Convention, Engine, Options
from linkwise.model.types import Model, Moe
from linkwise.plan.collectives import Wire, default_algorithm, distinct_nodes, wire
from linkwise.plan.inventory import Inventory, Stage, inventory, stages, token_bytes
from linkwise.plan.types import Op


class Part(NamedTuple):
    """Requests of a step that are alike: `requests` of them, each with `new` tokens after `context` cached ones."""

    requests: Num
    new: Num
    context: Num


class Batch(NamedTuple):
    """The batch of one step of one attention replica. kind: prefill, decode or mixed. sampled: rows with logits."""

    kind: str
    parts: tuple[Part, ...]
    sampled: Num

    @property
    def tokens(self) -> Num:
        return total(times(p.requests, p.new) for p in self.parts)


def decode_batch(requests: Num, context: Num, *, new: Num = 1) -> Batch:
    """Every request draws its next token (`new` of them with speculative decoding)."""
    return Batch("decode", (Part(requests, new, context),), times(requests, new))


def prefill_batch(tokens: Num, context: Num = 0, *, sampled: Num = 1) -> Batch:
    """One prompt chunk of `tokens` after `context` cached ones."""
    return Batch("prefill", (Part(1, tokens, context),), sampled)


def mixed_batch(chunk: Num, requests: Num, context: Num) -> Batch:
    """A prompt chunk next to decoding requests: tokens add up, calls do not."""
    return Batch("mixed", (Part(1, chunk, 0), Part(requests, 1, context)), requests + 1)


class Place(NamedTuple):
    """What a step must know of where its ranks lie: nodes under one stage, the axes whose groups share an island."""

    nodes: int = 1
    islands: frozenset[str] = frozenset()


ANYWHERE = Place()


class _Writer:
    """Collects the ops of one stage with what they share."""

    def __init__(
        self, model: Model, layout: Layout, convention: Convention, stage: Stage, place: Place, given: Given
    ) -> None:
        self.layout, self.convention, self.stage, self.place = layout, convention, stage, place
        self.given = given
        self.dtype = model.dtype
        self.ops: list[Op] = []

    def add(
        self,
        kind: str,
        role: str,
        group: str,
        size: int,
        S: Num,
        tokens: Num,
        repeat: int,
        *,
        dtype: str = "",
        after: str = "",
        useful_share: float | None = None,
        sizes: tuple[Num, ...] = (),
    ) -> None:
        """One op; nothing when its group is a single rank or no layer makes it."""
        if size <= 1 or repeat <= 0:
            return
        S = named(f"{role}.S", S, "B")
        kernel = kernel_limits(self.convention, size) if kind == "all_reduce" and group in self.place.islands else NONE
        algorithm, moved = _moved(kind, S, self.given(group, size, "ranks", f"{group} group"), kernel)
        if useful_share is not None:
            moved = Wire(moved.useful_recv * useful_share, moved.sent * useful_share, moved.recv * useful_share)
        self.ops.append(
            Op(
                kind=kind, role=role, group=group, size=size, S_bytes=S, repeat=repeat, stage=self.stage.number,
                dtype=dtype or self.dtype, tokens=tokens, algorithm=algorithm, useful_recv_bytes=moved.useful_recv,
                wire_sent_bytes=named(f"{role}.sent", moved.sent, "B"), wire_recv_bytes=moved.recv,
                waits_for=(after,) if after else (), sizes=sizes,
            )
        )  # fmt: skip


class Kernel(NamedTuple):
    """Payloads an engine's own all-reduce kernel takes: in one step below `one_shot`, at all up to `most`."""

    one_shot: int
    most: int


NONE = Kernel(0, 0)


def kernel_limits(convention: Convention, size: int) -> Kernel:
    """Limits of the engine's own all-reduce kernel for a group of this size; zeros where it has none."""
    if convention.all_reduce_small == convention.all_reduce:
        return NONE
    return Kernel(convention.one_shot_bytes.get(str(size), 0), convention.small_bytes.get(str(size), 0))


def _moved(kind: str, S: Num, size: Num, kernel: Kernel) -> tuple[str, Wire]:
    """Algorithm and bytes of a call: the engine's kernel where it takes the payload, else the kind's default."""
    default = wire(kind, S, size)
    if not kernel.most:
        return default_algorithm(kind), default
    # A two-shot kernel moves a ring's bytes in two steps, so only the one-shot kernel changes what is on the wire.
    one = wire(kind, S, size, "one_shot")
    below = kernel.one_shot > S
    pick = Wire(*(where(below, a, b) for a, b in zip(one, default, strict=True)))
    if isinstance(value_of(S), np.ndarray):
        return "by size", pick
    if value_of(below):
        return "one_shot", pick
    return "two_shot" if value_of(S) <= kernel.most else default_algorithm(kind), pick


def step_ops(
    model: Model,
    layout: Layout,
    engine: Engine,
    batch: Batch,
    options: Options,
    *,
    place: Place = ANYWHERE,
    given: Given = plain,
) -> list[Op]:
    """Every op of one step, stage by stage in program order."""
    stock = inventory(model)
    return [
        op
        for stage in stages(model, layout, engine)
        for op in stage_ops(stock, stage, layout, engine, batch, options, place=place, given=given)
    ]


def stage_ops(
    stock: Inventory, stage: Stage, layout: Layout, engine: Engine, batch: Batch, options: Options, *,
    place: Place = ANYWHERE, given: Given = plain,
) -> list[Op]:  # fmt: skip
    """The ops of one stage in program order: embedding, mixers, feed-forwards, hand-over, logits."""
    model = stock.model
    convention = engine.convention_for(model, layout, options)
    write = _Writer(model, layout, convention, stage, place, given)
    # Prompt tokens are split over cp; a decode token is on every cp rank, whose KV shards each hold a part of it.
    spread = layout.cp if batch.kind != "decode" else 1
    tokens = given(f"{batch.kind}.tokens", batch.tokens, "tokens", "tokens of the step on one attention replica")
    if spread > 1:
        tokens = named("tokens_per_cp_rank", ceil_div(tokens, given("cp", spread, "ranks", "layout")), "tokens")
    hidden = given("hidden", model.hidden, "elements", f"{model.name}: hidden size")
    width = given("activation_bytes", BITS[model.dtype] // 8, "B/element", f"activations in {model.dtype}")
    row = named(f"{batch.kind}.row", tokens * hidden * width, "B")
    head_ways, head_axis = _axis(layout, convention.head_over)
    if stage.is_first and convention.embed_split == "tp" and convention.embed_reduce:
        ways, axis = _axis(layout, convention.embed_over or convention.head_over)
        write.add("all_reduce", "embed", axis, ways, row, tokens, 1)
    _mixers(write, stock, batch, options, row, tokens, given)
    _dense(write, stock, row, tokens)
    if model.moe is not None and stock.ffns(stage, "moe"):
        _moe(write, stock, model.moe, row, tokens, options, given)
    if not stage.is_last:
        _hand_over(write, row, tokens)
    if stage.is_first is False and convention.pp_sliced and layout.tp > 1:
        # The receiving tensor group puts the slices of every handed-over tensor together again.
        write.add("all_gather", "pp.gather", "tp", layout.tp, row, tokens, convention.pp_tensors, after="pp.hidden")
    if stage.is_last and convention.logits != "none" and convention.head_split == "tp":
        pad = engine.defaults.vocab_pad
        vocab = given("vocab_padded", -(-model.vocab // pad) * pad, "rows", f"{model.vocab:,} rows padded to {pad}")
        sampled = given("sampled", batch.sampled, "rows", "requests sampled in the step")
        write.add(convention.logits, "logits", head_axis, head_ways, sampled * vocab * width, sampled, 1, after="head")
    return write.ops


def _axis(layout: Layout, over: str) -> tuple[int, str]:
    if over == "stage":
        return layout.stage_size, "stage"
    return (layout.tp, "tp") if over == "tp" else (1, "tp")


def _reduce(write: _Writer, role: str, axis: str, size: int, row: Num, tokens: Num, repeat: int) -> None:
    """The reduction after a row-split matmul; sequence-sharded tp splits it around the token-wise part."""
    if write.layout.sequence_sharded and axis == "tp":
        write.add("all_gather", role.split(".", maxsplit=1)[0] + ".in", axis, size, row, tokens, repeat)
        write.add("reduce_scatter", role, axis, size, row, tokens, repeat, after=role)
    else:
        write.add("all_reduce", role, axis, size, row, tokens, repeat, after=role)


def _mixers(
    write: _Writer, stock: Inventory, batch: Batch, options: Options, row: Num, tokens: Num, given: Given
) -> None:
    """Communication inside attention (cp, dcp) and the reduction after it."""
    layout, stage, model = write.layout, write.stage, stock.model
    attention = stock.attention_layers(stage)
    kv_dtype = kv_dtype_of(model, options)
    if layout.cp > 1 and batch.kind != "decode":
        # Ring attention: every rank sees every other rank's keys and values once, in cp-1 passes.
        for state, layers in stock.states:
            number = sum(stage.first <= x < stage.end for x in layers)
            if number and state.per_token:
                each = given(f"{state.name}_bytes_per_token", token_bytes(state, layout, kv_dtype), "B", "ledger")
                write.add(
                    "send_recv", f"cp.{state.name}", "cp", layout.cp, tokens * each, tokens, number * (layout.cp - 1)
                )
    for axis, ways in (("cp", layout.cp), ("dcp", layout.dcp)):
        if ways > 1 and attention and (batch.kind == "decode" or axis == "dcp"):
            _combine(write, model, axis, ways, attention, tokens, given)
    _reduce(write, "attn.out", "tp", layout.tp, row, tokens, stock.mixers(stage))


def _combine(write: _Writer, model: Model, axis: str, ways: int, repeat: int, tokens: Num, given: Given) -> None:
    """Attention over KV shards: every shard's partial output of a head, combined by log-sum-exp.

    dcp ranks hold different heads, so queries are gathered first and the outputs reduce-scattered back to their heads;
    cp ranks hold the same heads, so their outputs are all-reduced.
    """
    heads = given("heads_per_rank", -(-model.heads // write.layout.tp), "heads", f"{model.heads} heads over tp")
    dim = given("head_dim", model.mla_latent or model.head_dim, "elements", "latent width under MLA, else head size")
    width = BITS[model.dtype] // 8
    if axis == "dcp":
        gathered = heads * ways
        write.add("all_gather", "dcp.query", axis, ways, tokens * gathered * dim * width, tokens, repeat)
        write.add("all_gather", "dcp.lse", axis, ways, tokens * gathered * ways * 4, tokens, repeat, dtype="float32")
        write.add("reduce_scatter", "dcp.out", axis, ways, tokens * gathered * dim * width, tokens, repeat)
    else:
        write.add("all_gather", "cp.lse", axis, ways, tokens * heads * ways * 4, tokens, repeat, dtype="float32")
        write.add("all_reduce", "cp.out", axis, ways, tokens * heads * dim * width, tokens, repeat)


def _dense(write: _Writer, stock: Inventory, row: Num, tokens: Num) -> None:
    layout, over = write.layout, write.convention.mlp_over
    repeat = stock.ffns(write.stage, "dense")
    if over == "stage" and layout.stage_size > layout.tp:
        # Tokens of all attention replicas are gathered, the MLP is split over the whole stage, the sums scattered back.
        others = layout.stage_size // layout.tp
        write.add("all_gather", "mlp.in", "stage", layout.stage_size, row * others, tokens, repeat)
        write.add("reduce_scatter", "mlp.out", "stage", layout.stage_size, row * others, tokens, repeat)
        return
    size, axis = _axis(layout, over)
    _reduce(write, "mlp.out", axis, size, row, tokens, repeat)


def _moe(write: _Writer, stock: Inventory, moe: Moe, row: Num, tokens: Num, options: Options, given: Given) -> None:
    """Tokens to their experts and back. Tokens already replicated over the stage need one all-reduce only."""
    layout, convention, model = write.layout, write.convention, stock.model
    repeat = stock.ffns(write.stage, "moe")
    differ = layout.cp * layout.dp_attn > 1
    if convention.moe_replicated and not differ:
        _reduce(write, "moe.out", "tp", layout.tp, row, tokens, repeat)
        return
    if layout.stage_size == 1:
        return
    exchange = options.moe_exchange or convention.moe_exchange
    if exchange == "all_gather" or (differ and layout.moe_tp > 1):
        # Every rank sees every token of the stage and keeps what its experts (or its slice of them) contribute.
        gathered = named("gathered_rows", row * (layout.stage_size // layout.tp), "B")
        size = layout.stage_size
        write.add("all_gather", "moe.dispatch", "stage", size, gathered, tokens, repeat, after="router")
        write.add("reduce_scatter", "moe.combine", "stage", size, gathered, tokens, repeat, after="experts")
        if layout.tp > 1:
            write.add("all_gather", "moe.restore", "tp", layout.tp, row, tokens, repeat, after="moe.combine")
        return
    # Direct exchange. Tensor ranks of one attention replica hold the same tokens and each sends its share of them.
    own = ceil_div(tokens, layout.tp) if layout.tp > 1 and convention.moe_replicated else tokens
    own = named("tokens_to_send", own, "tokens")
    k = given("top_k", moe.top_k, "experts/token", f"{model.name}: experts per token")
    width = given("expert_hidden", moe.hidden, "elements", f"{model.name}: width an expert takes")
    send = given("dispatch_bytes", _bits(convention.dispatch_dtype, model) / 8, "B/element", convention.dispatch_dtype)
    back = given("combine_bytes", _bits(convention.combine_dtype, model) / 8, "B/element", convention.combine_dtype)
    share = dedup_share(moe, write.place.nodes) if convention.dispatch_dedup_node else None
    for role, each, after in (("moe.dispatch", send, "router"), ("moe.combine", back, "experts")):
        S = named(f"{role}.S", own * k * width * each, "B")
        sizes = _skewed(S, layout.ep, options.moe_skew)
        write.add(
            "all_to_all", role, "ep", layout.ep, S, own, repeat, after=after, useful_share=share, sizes=sizes,
            dtype=convention.dispatch_dtype if role == "moe.dispatch" else convention.combine_dtype,
        )  # fmt: skip
    if layout.moe_tp > 1:
        write.add("all_reduce", "moe.out", "moe_tp", layout.moe_tp, row, tokens, repeat, after="experts")
    if layout.tp > 1 and convention.moe_replicated:
        write.add("all_gather", "moe.restore", "tp", layout.tp, row, tokens, repeat, after="moe.combine")


def _skewed(S: Num, ep: int, skew: float) -> tuple[Num, ...]:
    """Bytes bound for each expert rank when the busiest takes `skew` times the mean; empty when uniform."""
    if skew == 1.0 or ep == 1:
        return ()
    mean = S / ep
    rest = (S - mean * skew) / (ep - 1)
    return (mean * skew, *(rest for _ in range(ep - 1)))


def dedup_share(moe: Moe, nodes: int) -> float:
    """Share of an exchange left when a token crosses to each node once: expected nodes over top_k."""
    if nodes <= 1:
        return 1.0
    limited = moe.top_groups if moe.groups % nodes == 0 and moe.groups > 1 else None
    return min(1.0, distinct_nodes(nodes, moe.experts, moe.top_k, limited) / moe.top_k)


def _hand_over(write: _Writer, row: Num, tokens: Num) -> None:
    """A stage's output to the next: hidden states (and residual), whole from each tensor rank or in 1/tp slices."""
    layout, convention = write.layout, write.convention
    message = row / layout.tp if convention.pp_sliced and layout.tp > 1 else row
    write.add("send_recv", "pp.hidden", "pp", layout.pp, message, tokens, convention.pp_tensors)


def _bits(name: str, model: Model) -> int:
    return BITS[model.dtype if name == "activation" else name]


def kv_dtype_of(model: Model, options: Options) -> str:
    """The dtype KV is kept in: the user's choice, else what the checkpoint was calibrated for, else activations'."""
    chosen = options.kv_dtype or model.kv_dtype
    return model.dtype if chosen == "auto" else canonical(chosen, where="kv dtype")


def sent_per_rank(ops: list[Op]) -> Num:
    """Wire bytes one rank of the busiest stage sends in a step."""
    by_stage: dict[int, list[Num]] = {}
    for op in ops:
        by_stage.setdefault(op.stage, []).append(op.wire_sent_bytes * op.repeat)
    result: Num = 0
    for terms in by_stage.values():
        result = maximum(result, total(terms))
    return result


def freeze(ops: list[Op]) -> tuple[Op, ...]:
    """Ops with plain numbers, as a plan file keeps them."""
    return tuple(
        replace(
            op,
            S_bytes=_plain(op.S_bytes),
            tokens=_plain(op.tokens),
            useful_recv_bytes=_plain(op.useful_recv_bytes),
            wire_sent_bytes=_plain(op.wire_sent_bytes),
            wire_recv_bytes=_plain(op.wire_recv_bytes),
            sizes=tuple(_plain(s) for s in op.sizes),
        )
        for op in ops
    )


def _plain(number: Num) -> int | float:
    value = value_of(number)
    return int(value) if float(value).is_integer() else float(value)
