"""How an engine's KV connector moves a prompt's state to a decode group: facts by connector, each with its source."""

from functools import cache
from importlib import resources
from typing import Literal

from linkwise.core.errors import InputError
from linkwise.core.files import parse_yaml_object
from linkwise.core.schema import Frozen, convert
from linkwise.engine.base import Refusal
from linkwise.model.types import Model

Recut = Literal["heads", "mla_only", "refused"]
Replicated = Literal["copies", "one", "shares"]


class Connector(Frozen, frozen=True, kw_only=True):
    """One connector; the facts file explains every field. block_tokens: 0 = the engine's own KV block."""

    engines: tuple[str, ...]
    direction: Literal["push", "pull"]
    per_rank: bool
    unequal_tp: Recut
    hybrid_unequal_tp: Recut
    unequal_message: Literal["block", "token"]
    replicated: Replicated
    granularity: Literal["request", "chunk", "layer"]
    source: str
    block_tokens: int = 0
    sender_copies: int = 0
    receiver_copies: int = 0
    buffer_sender_bytes: int = 0
    buffer_receiver_bytes: int = 0
    serial_receive: bool = False
    relay: bool = False
    merges: bool = False


class _File(Frozen, frozen=True, kw_only=True):
    connectors: dict[str, Connector]


@cache
def connectors() -> dict[str, Connector]:
    """Every known connector by name; an engine's first one is its default."""
    where = "engine/facts/connectors.yaml"
    text = (resources.files("linkwise.engine") / "facts" / "connectors.yaml").read_text(encoding="utf-8")
    return convert(parse_yaml_object(text, where=where), _File, where=where).connectors


def connector(engine: str, name: str = "") -> tuple[str, Connector]:
    """The connector of an engine: the one asked for, else its default. Raises InputError for one it does not have."""
    usable = {n: c for n, c in connectors().items() if engine in c.engines}
    if not usable:
        raise InputError(f"no KV connector is known for engine {engine!r}", where="handoff")
    chosen = name or next(iter(usable))
    if chosen not in usable:
        raise InputError(
            f"{engine} has no connector {chosen!r}"[:120], where="handoff", expected="one of " + ", ".join(usable)
        )
    return chosen, usable[chosen]


def refuses(name: str, it: Connector, model: Model, prefill_tp: int, decode_tp: int) -> Refusal | None:
    """Why a connector will not join these two pools; None when it will."""
    if prefill_tp == decode_tp:
        return None
    hybrid = any(not s.per_token for layer in model.layers for s in layer.states)
    rule = it.hybrid_unequal_tp if hybrid else it.unequal_tp
    if rule == "heads" or (rule == "mla_only" and model.is_mla):
        return None
    what = "a stack with recurrent states" if hybrid else "this model"
    others = [
        n
        for n, c in connectors().items()
        if set(c.engines) & set(it.engines) and (c.hybrid_unequal_tp if hybrid else c.unequal_tp) == "heads"
    ]
    return Refusal(
        reason=f"{name} needs equal tp in both pools for {what}: prefill tp {prefill_tp}, decode tp {decode_tp}",
        change=f"tp {decode_tp} in both pools" + (f", or connector {others[0]}" if others else ""),
    )
