"""The handoff of one prompt's state as linkwise's runtime makes it: message by message, in the order of layers.

A message is one layer's piece of `reshard.pieces` in whole blocks, keys and values together. Both groups are split over
tp and pp only: an entry is on the rank that has its layer and its head, whatever its position.
"""

from typing import NamedTuple

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine
from linkwise.engine.connectors import connector
from linkwise.model.types import Model
from linkwise.plan.inventory import Stage, inventory, stages
from linkwise.plan.reshard import Piece, entries, entry_bytes, pieces


class Message(NamedTuple):
    """Heads of one layer from a prefill rank to a decode rank (ranks of their groups). layer: index in the model."""

    layer: int
    piece: Piece


def messages(model: Model, prefill: Layout, decode: Layout, engine: Engine) -> list[Message]:
    """Every message of a handoff, layer by layer. Raises InputError for a layout whose KV is not cut by heads alone."""
    for side, layout in (("prefill", prefill), ("decode", decode)):
        other = [name for name in ("cp", "dp_attn", "dcp") if getattr(layout, name) > 1]
        if other:
            given = ", ".join(f"{name} {getattr(layout, name)}" for name in other)
            raise InputError(f"{side} layout has {given}", where="handoff", expected="tp and pp only")
    facts = connector(engine.name)[1]
    stock = inventory(model)
    found = pieces(stock, prefill, decode, engine, replicated=facts.replicated, per_rank=True)
    sources, targets = stages(model, prefill, engine), stages(model, decode, engine)

    def concerns(piece: Piece, layer: int) -> bool:
        ends = sources[piece.sender // prefill.tp], targets[piece.receiver // decode.tp]
        return piece.state in model.layers[layer].states and all(_has(stage, layer) for stage in ends)

    return [Message(i, one) for i in range(len(model.layers)) for one in found if concerns(one, i)]


def _has(stage: Stage, layer: int) -> bool:
    return stage.first <= layer < stage.end


def message_bytes(message: Message, prompt_tokens: int, block_tokens: int, kv_dtype: str) -> int:
    """Size of a message: whole blocks. The runtime keeps and sends all of a prompt, of windowed layers too."""
    one = message.piece._replace(layers=1)
    kept = entries(replace(one.state, window=None), prompt_tokens, block_tokens)
    return entry_bytes(one, kv_dtype) * int(kept)
