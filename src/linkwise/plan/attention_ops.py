"""What attention communicates: rings of a split prompt, shards of a split cache, and the reduction after it."""

import numpy as np

from linkwise.core.dtypes import BITS
from linkwise.core.quantity import Given, Num, ceil_div, times, total, value_of
from linkwise.model.types import Model
from linkwise.plan.batch import Batch
from linkwise.plan.inventory import Inventory, Stage, layers_within, token_bytes
from linkwise.plan.writer import Writer, filled_up, reduce


def mixer_ops(
    write: Writer, stock: Inventory, part: Stage, batch: Batch, kv_dtype: str, row: Num, tokens: Num, given: Given
) -> None:
    """Communication inside attention (dcp, cp) and the reduction after it, of the layers of `part`."""
    layout = write.layout
    attention = stock.attention_layers(part)
    if attention:
        drawn = total(p.tokens for p in batch.parts if not p.prompt)
        if np.any(value_of(drawn)):
            _combine(write, stock.model, attention, drawn, given)
        _cached_prompt(write, stock, part, batch, kv_dtype, given)
        _ring(write, stock, part, batch, kv_dtype, tokens, given)
    reduce(write, "attn.out", "tp", layout.tp, row, tokens, stock.mixers(part))


def _ring(write: Writer, stock: Inventory, part: Stage, batch: Batch, kv_dtype: str, tokens: Num, given: Given) -> None:
    """Ring attention of prompts: every rank sees every other rank's keys and values once, in cp-1 passes. Where each
    keeps all that came before, what is new of the prompts is gathered."""
    cp = write.layout.cp
    prompt = [p for p in batch.parts if p.prompt]
    if cp == 1 or not prompt:
        return
    whole = write.convention.cp_kv == "whole"
    tokens_here = total(times(p.requests, ceil_div(p.new if whole else p.context + p.new, cp)) for p in prompt)
    for state, layers in stock.states:
        number = layers_within(layers, part)
        if number and state.per_token:
            each = given(f"{state.name}_bytes_per_token", token_bytes(state, write.layout, kv_dtype), "B", "ledger")
            if whole:
                write.add("all_gather", f"cp.{state.name}", "cp", cp, tokens_here * cp * each, tokens, number)
            else:
                write.add("send_recv", f"cp.{state.name}", "cp", cp, tokens_here * each, tokens, number * (cp - 1))


def _combine(write: Writer, model: Model, repeat: int, tokens: Num, given: Given) -> None:
    """Decode attention over KV shards: every shard's partial output of a head, combined by log-sum-exp.

    dcp ranks hold different heads, so queries are gathered first and the outputs reduce-scattered back to their heads;
    cp ranks hold the same heads of other tokens, so their outputs are all-reduced. Under MLA a query has the width of a
    cache entry (latent and positional part), an output that of the latent alone.
    """
    layout = write.layout
    if layout.cp * layout.dcp == 1:
        return
    heads = given("heads_per_rank", -(-model.heads // layout.tp), "heads", f"{model.heads} heads over tp")
    asked = given("query_width", model.mla_latent or model.head_dim, "elements", "cache entry under MLA, else head")
    got = given("output_width", (model.mla_latent - model.mla_rope) or model.head_dim, "elements", "latent, else head")
    width = BITS[model.dtype] // 8
    if layout.dcp > 1:
        rows = tokens * heads * layout.dcp
        write.add("all_gather", "dcp.query", "dcp", layout.dcp, rows * asked * width, tokens, repeat)
        write.add("all_gather", "dcp.lse", "dcp", layout.dcp, rows * layout.dcp * 4, tokens, repeat, dtype="float32")
        write.add("reduce_scatter", "dcp.out", "dcp", layout.dcp, rows * got * width, tokens, repeat)
    if write.convention.cp_kv == "whole":
        return
    rows = tokens * heads
    write.add("all_gather", "cp.lse", "cp", layout.cp, rows * layout.cp * 4, tokens, repeat, dtype="float32")
    write.add("all_reduce", "cp.out", "cp", layout.cp, rows * got * width, tokens, repeat)


def _cached_prompt(write: Writer, stock: Inventory, part: Stage, batch: Batch, kv_dtype: str, given: Given) -> None:
    """A prompt chunk attends its new tokens locally; under dcp the cached part of its context is gathered first.

    Every rank gives the same number of entries of a prompt: shards are filled up.
    """
    layout = write.layout
    cached = [p for p in batch.parts if p.prompt and np.any(value_of(p.context))]
    if layout.dcp == 1 or not cached:
        return
    kept = ((p, ceil_div(p.context, layout.cp) if layout.cp > 1 else p.context) for p in cached)
    tokens = total(times(p.requests, filled_up(entries, layout.dcp)) for p, entries in kept)
    for state, layers in stock.states:
        number = layers_within(layers, part)
        if number and state.per_token:
            each = given(f"{state.name}_bytes_per_token", token_bytes(state, layout, kv_dtype), "B", "ledger")
            write.add("all_gather", f"dcp.{state.name}", "dcp", layout.dcp, tokens * each, tokens, number)
