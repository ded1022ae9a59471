"""A finished prompt's KV from the ranks that computed it to the ranks that decode, layer by layer.

The plan says which piece goes where (plan/messages.py). A piece is a range of heads of one layer; between tensor groups
of unequal size the heads are cut anew on the way. Keys and values of a piece travel as one message of whole blocks.
Both groups are in one unit: prefill ranks first, and a rank's place on the axis "handoff" is its number in the unit.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine
from linkwise.model.types import Model
from linkwise.plan.messages import messages
from linkwise.plan.reshard import head_range
from linkwise.runtime.comm import Comm

AXIS, ROLE = "handoff", "kv.handoff"


class Order(NamedTuple):
    """One message. sender, receiver: places in the unit. layer: index in the model.

    sent, taken: heads (first, end) as the sender's and the receiver's cache number them; an MLA latent is one head.
    """

    layer: int
    sender: int
    receiver: int
    sent: tuple[int, int]
    taken: tuple[int, int]


def orders(model: Model, prefill: Layout, decode: Layout, engine: Engine) -> tuple[tuple[Order, ...], ...]:
    """What each rank of the unit sends or takes for one prompt, in order; by place in the unit.

    All ranks go through one common order, so that ranks that wait for each other never form a ring. Raises InputError
    for layouts with cp, dcp or attention replicas.
    """
    found: list[list[Order]] = [[] for _ in range(prefill.size + decode.size)]
    for layer, piece in messages(model, prefill, decode, engine):
        heads = piece.state.heads
        from_first = head_range(heads, prefill.tp, piece.sender % prefill.tp)[0]
        to_first = head_range(heads, decode.tp, piece.receiver % decode.tp)[0]
        one = Order(
            layer=layer,
            sender=piece.sender,
            receiver=prefill.size + piece.receiver,
            sent=(piece.first - from_first, piece.end - from_first),
            taken=(piece.first - to_first, piece.end - to_first),
        )
        found[one.sender].append(one)
        found[one.receiver].append(one)
    return tuple(tuple(each) for each in found)


class Sent(NamedTuple):
    """A message on its way: the tensor must live until the work is done."""

    work: Any
    message: torch.Tensor


def send_layer(
    comm: Comm, cache_layer: Sequence[torch.Tensor], given: Sequence[Order], blocks: Sequence[int]
) -> list[Sent]:
    """Send this rank's pieces of one layer. given: its orders of that layer. blocks: the prompt's KV blocks here.

    Returns at once; `finish` waits. A message is a copy: the blocks may be written again at once.
    """
    index = _index(blocks, cache_layer)
    return [_send(comm, cache_layer, one, index) for one in given]


def _send(comm: Comm, cache_layer: Sequence[torch.Tensor], one: Order, index: torch.Tensor) -> Sent:
    first, end = one.sent
    message = torch.stack([_heads(tensor, first, end).index_select(0, index) for tensor in cache_layer])
    return Sent(comm.send(AXIS, ROLE, message, one.receiver, wait=False), message)


def finish(sent: Sequence[Sent]) -> None:
    """Wait until messages are on their way for good; bounded by the group's time limit."""
    for one in sent:
        one.work.wait()


def receive_layer(
    comm: Comm, cache_layer: Sequence[torch.Tensor], given: Sequence[Order], blocks: Sequence[int]
) -> None:
    """Receive this rank's pieces of one layer into the prompt's blocks here, as many as the sender's."""
    index = _index(blocks, cache_layer)
    for one in given:
        first, end = one.taken
        places = [_heads(tensor, first, end) for tensor in cache_layer]
        message = torch.empty(
            (len(places), len(index), *places[0].shape[1:]), dtype=places[0].dtype, device=places[0].device
        )
        comm.recv(AXIS, ROLE, message, one.sender)
        for place, part in zip(places, message, strict=True):
            place.index_copy_(0, index, part)


def hand_over(
    comm: Comm, layers: Sequence[Sequence[torch.Tensor]], first: int, given: Sequence[Order], blocks: Sequence[int]
) -> list[Sent]:
    """Send all pieces of a prompt. layers: this rank's cache, from the model's layer `first` on; given: its orders."""
    by_layer = _by_layer(given)
    return [
        sent
        for number, cache_layer in enumerate(layers)
        for sent in send_layer(comm, cache_layer, by_layer.get(first + number, ()), blocks)
    ]


def take_over(
    comm: Comm, layers: Sequence[Sequence[torch.Tensor]], first: int, given: Sequence[Order], blocks: Sequence[int]
) -> None:
    """Receive all pieces of a prompt; arguments as of `hand_over`."""
    by_layer = _by_layer(given)
    for number, cache_layer in enumerate(layers):
        receive_layer(comm, cache_layer, by_layer.get(first + number, ()), blocks)


def _by_layer(given: Sequence[Order]) -> dict[int, list[Order]]:
    found: dict[int, list[Order]] = {}
    for one in given:
        found.setdefault(one.layer, []).append(one)
    return found


def _heads(tensor: torch.Tensor, first: int, end: int) -> torch.Tensor:
    """Heads of a cache tensor [blocks, block_tokens, heads, head_dim]; a latent has no heads and is whole."""
    return tensor if tensor.dim() == 3 else tensor[:, :, first:end]


def _index(blocks: Sequence[int], cache_layer: Sequence[torch.Tensor]) -> torch.Tensor:
    held = cache_layer[0].shape[0]
    if not blocks or not all(0 < block < held for block in blocks):
        raise InputError(f"KV blocks {list(blocks)[:8]}", where=ROLE, expected=f"at least one of 1..{held - 1}")
    return torch.tensor(blocks, dtype=torch.int64, device=cache_layer[0].device)
