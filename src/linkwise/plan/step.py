"""What ranks do in one engine step, written down once (DESIGN §2.1).

A step is a list of ops per rank class (pipeline stage). Traffic, time, simulation, the runtime's check and the
diagnosis all read this list. What an engine's step communicates is data of its `Convention`; this file makes it ops.

Under attention data parallelism every attention replica runs the same step with its own tokens; `tokens` and `sampled`
of a batch are those of one attention replica.
"""

import numpy as np
from msgspec.structs import replace

from linkwise.core.dtypes import BITS, canonical
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, named, plain, times, value_of
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.attention_ops import mixer_ops
from linkwise.plan.batch import Batch
from linkwise.plan.ffn_ops import dense_ops, draft_ops, expert_ops
from linkwise.plan.inventory import Inventory, Stage, inventory, stages
from linkwise.plan.types import Op
from linkwise.plan.writer import ANYWHERE, Place, Writer, axis_of, filled_up, unlike_loads


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
    step = _Step(stock, stage, layout, engine, batch, options, place, given)
    step.before()
    step.layers(stage)
    step.after()
    return step.write.ops


def rank_ops(
    stock: Inventory, stage: Stage, layout: Layout, engine: Engine, batch: Batch, options: Options
) -> list[Op]:
    """The ops of `stage_ops` in the order a rank makes them: layer after layer, each op of one layer only."""
    step = _Step(stock, stage, layout, engine, batch, options, ANYWHERE, plain)
    step.before()
    for layer in range(stage.first, stage.end):
        step.layers(stage._replace(first=layer, end=layer + 1))
    step.after()
    return step.write.ops


class _Step:
    """One stage's step while it is written down, and what its parts share."""

    def __init__(
        self, stock: Inventory, stage: Stage, layout: Layout, engine: Engine, batch: Batch, options: Options,
        place: Place, given: Given,
    ) -> None:  # fmt: skip
        self.stock, self.stage, self.layout, self.batch, self.options = stock, stage, layout, batch, options
        self.given, self.pad = given, engine.defaults.vocab_pad
        model = stock.model
        self.convention = engine.convention_for(model, layout, options)
        unlike = unlike_loads(batch, layout, self.convention)
        self.write = Writer(model, layout, self.convention, stage, place, given, unlike)
        self.tokens = given(f"{batch.kind}.tokens", batch.rank_tokens(layout.cp), "tokens", "of the step on one rank")
        self.hidden = given("hidden", model.hidden, "elements", f"{model.name}: hidden size")
        self.width = given("activation_bytes", BITS[model.dtype] // 8, "B/element", f"activations in {model.dtype}")
        self.row = self.row_of("row", self.tokens)
        # Rows that are cut over the tensor ranks are filled up to the same number on each.
        filled = layout.sequence_sharded and layout.tp > 1
        self.filled = self.row_of("filled_row", filled_up(self.tokens, layout.tp)) if filled else self.row

    def row_of(self, name: str, tokens: Num) -> Num:
        """Hidden states of so many tokens, bytes."""
        return named(f"{self.batch.kind}.{name}", tokens * self.hidden * self.width, "B")

    def before(self) -> None:
        """What a stage does ahead of its layers: the embedding, or putting together what was handed over."""
        layout, convention, write = self.layout, self.convention, self.write
        if self.stage.is_first and convention.embed_split == "tp" and convention.embed_reduce:
            ways, axis = axis_of(layout, convention.embed_over or convention.head_over)
            write.add("all_reduce", "embed", axis, ways, self.row, self.tokens, 1)
        if not self.stage.is_first and convention.pp_sliced and layout.tp > 1:
            # The receiving tensor group puts the slices of every handed-over tensor together again.
            write.add(
                "all_gather", "pp.gather", "tp", layout.tp, self.row, self.tokens, convention.pp_tensors,
                after="pp.hidden",
            )  # fmt: skip

    def layers(self, part: Stage) -> None:
        """Mixers and feed-forwards of the stage, or of a part of its layers."""
        stock, write, tokens = self.stock, self.write, self.tokens
        kv_dtype = kv_dtype_of(stock.model, self.options)
        mixer_ops(write, stock, part, self.batch, kv_dtype, self.filled, tokens, self.given)
        dense_ops(write, stock.ffns(part, "dense"), self.filled, tokens)
        expert_ops(write, stock.model, stock.ffns(part, "moe"), self.filled, tokens, self.options, self.given)

    def after(self) -> None:
        """What a stage does behind its layers: drafts, the hand-over, the head."""
        stage, write, convention, batch = self.stage, self.write, self.convention, self.batch
        if not stage.is_last:
            self._hand_over()
            return
        model, layout = self.stock.model, self.layout
        if self.options.mtp_tokens and batch.kind != "prefill":
            draft_ops(write, model, self.filled, self.tokens, self.options, self.given)
        if layout.sequence_sharded and convention.sequence_stays:
            write.add("all_gather", "head.in", "tp", layout.tp, self.filled, self.tokens, 1, after="norm")
        if convention.logits != "none" and convention.head_split == "tp" and np.any(value_of(batch.sampled)):
            ways, axis = axis_of(layout, convention.head_over)
            padded = ceil_div(model.vocab, self.pad) * self.pad
            vocab = self.given("vocab_padded", padded, "rows", f"{model.vocab:,} rows padded to {self.pad}")
            sampled = self.given("sampled", batch.sampled, "rows", "requests sampled in the step")
            if axis == "stage" and layout.dp_attn > 1:  # every rank has a part of the head for all replicas' rows
                sampled = times(sampled, self.given("dp_attn", layout.dp_attn, "replicas", "whose rows are gathered"))
                rows = self.row_of("head_row", sampled)
                write.add("all_gather", "head.in", "dp_attn", layout.dp_attn, rows, sampled, 1, after="norm")
            S = sampled * vocab * self.width
            write.add(convention.logits, "logits", axis, ways, S, sampled, 1, after="head")

    def _hand_over(self) -> None:
        """The output to the next stage: hidden states (and residual), whole from each tensor rank or a slice each."""
        layout, convention, message = self.layout, self.convention, self.row
        if layout.tp > 1 and layout.sequence_sharded and convention.sequence_stays:
            message = self.row_of("own_row", ceil_div(self.tokens, layout.tp))
        elif layout.tp > 1 and convention.pp_sliced:
            message = self.row / layout.tp
        self.write.add("send_recv", "pp.hidden", "pp", layout.pp, message, self.tokens, convention.pp_tensors)


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
