"""What ranks do in one engine step, written down once (DESIGN §2.1).

A step is a list of ops per rank class (pipeline stage). Traffic, time, simulation, the runtime's check and the
diagnosis all read this list. What an engine's step communicates is data of its `Convention`; this file makes it ops.

Under attention data parallelism every attention replica runs the same step with its own tokens; `tokens` and `sampled`
of a batch are those of one attention replica.
"""

from msgspec.structs import replace

from linkwise.core.dtypes import BITS, canonical
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, named, plain, value_of
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.attention_ops import mixer_ops
from linkwise.plan.batch import Batch
from linkwise.plan.ffn_ops import dense_ops, draft_ops, expert_ops
from linkwise.plan.inventory import Inventory, Stage, inventory, stages
from linkwise.plan.types import Op
from linkwise.plan.writer import ANYWHERE, Place, Writer, axis_of


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
    write = Writer(model, layout, convention, stage, place, given)
    tokens = given(f"{batch.kind}.tokens", batch.rank_tokens(layout.cp), "tokens", "tokens of the step on one rank")
    hidden = given("hidden", model.hidden, "elements", f"{model.name}: hidden size")
    width = given("activation_bytes", BITS[model.dtype] // 8, "B/element", f"activations in {model.dtype}")
    row = named(f"{batch.kind}.row", tokens * hidden * width, "B")
    head_ways, head_axis = axis_of(layout, convention.head_over)
    if stage.is_first and convention.embed_split == "tp" and convention.embed_reduce:
        ways, axis = axis_of(layout, convention.embed_over or convention.head_over)
        write.add("all_reduce", "embed", axis, ways, row, tokens, 1)
    mixer_ops(write, stock, batch, kv_dtype_of(model, options), row, tokens, given)
    dense_ops(write, stock.ffns(stage, "dense"), row, tokens)
    expert_ops(write, model, stock.ffns(stage, "moe"), row, tokens, options, given)
    if stage.is_last and options.mtp_tokens and batch.kind != "prefill":
        draft_ops(write, model, row, tokens, options, given)
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


def _hand_over(write: Writer, row: Num, tokens: Num) -> None:
    """A stage's output to the next: hidden states (and residual), whole from each tensor rank or in 1/tp slices."""
    layout, convention = write.layout, write.convention
    message = row / layout.tp if convention.pp_sliced and layout.tp > 1 else row
    write.add("send_recv", "pp.hidden", "pp", layout.pp, message, tokens, convention.pp_tensors)


def kv_dtype_of(model: Model, options: Options) -> str:
    """The dtype KV is kept in: the user's choice, else what the checkpoint was calibrated for, else activations'."""
    chosen = options.kv_dtype or model.kv_dtype
    return model.dtype if chosen == "auto" else canonical(chosen, where="kv dtype")


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
