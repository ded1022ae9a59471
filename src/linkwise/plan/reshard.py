"""Which prefill rank sends which part of a prompt's state to which decode rank.

A state has `heads` pieces. A tensor group of t ranks divides them while they last and replicates beyond; a pipeline
divides layers. Between two groups of unequal degrees the cuts are laid over each other: every overlap is one piece.
"""

from fractions import Fraction
from typing import NamedTuple

from linkwise.core.dtypes import BITS
from linkwise.core.layout import Layout
from linkwise.core.quantity import Num, ceil_div, minimum
from linkwise.engine.base import Engine
from linkwise.engine.connectors import Replicated
from linkwise.model.types import State
from linkwise.plan.inventory import Inventory, Stage, stages


class Piece(NamedTuple):
    """Heads first..end-1 of a state in `layers` layers, from a prefill rank to a decode rank (ranks of their groups).

    share: part of the prompt's tokens. whole: both ranks hold exactly these heads, so a block is one message.
    """

    sender: int
    receiver: int
    state: State
    layers: int
    first: int
    end: int
    share: Fraction
    whole: bool

    @property
    def heads(self) -> int:
        return self.end - self.first


def head_range(heads: int, tp: int, rank: int) -> tuple[int, int]:
    """Heads first..end-1 that one of `tp` ranks holds: divided evenly (low ranks take the rest), then replicated."""
    if tp >= heads:
        return rank * heads // tp, rank * heads // tp + 1
    each, rest = divmod(heads, tp)
    first = rank * each + min(rank, rest)
    return first, first + each + (rank < rest)


def pieces(
    stock: Inventory, prefill: Layout, decode: Layout, engine: Engine, *, replicated: Replicated, per_rank: bool
) -> list[Piece]:
    """Every transfer between two groups. per_rank False: one rank of each stage sends and receives for its group."""
    result: list[Piece] = []
    for source in stages(stock.model, prefill, engine):
        for target in stages(stock.model, decode, engine):
            for state, positions in stock.states:
                layers = sum(max(source.first, target.first) <= x < min(source.end, target.end) for x in positions)
                if not layers:
                    continue
                if per_rank:
                    cut = _between(state.heads, prefill.tp, decode.tp, replicated)
                else:
                    cut = [(0, 0, 0, state.heads, Fraction(1), prefill.tp == decode.tp)]
                result.extend(_place(cut, state, layers, source, target, prefill.tp, decode.tp))
    return result


_Cut = tuple[int, int, int, int, Fraction, bool]


def _place(cut: list[_Cut], state: State, layers: int, source: Stage, target: Stage, ptp: int, dtp: int) -> list[Piece]:
    return [
        Piece(source.number * ptp + s, target.number * dtp + r, state, layers, first, end, share, whole)
        for s, r, first, end, share, whole in cut
    ]


def _between(heads: int, ptp: int, dtp: int, replicated: Replicated) -> list[_Cut]:
    """(sender, receiver, first head, end head, share of tokens, whole) between two tensor groups."""
    sends = [head_range(heads, ptp, s) for s in range(ptp)]
    takes = [head_range(heads, dtp, r) for r in range(dtp)]
    if replicated == "shares" and (ptp > heads or dtp > heads):
        return _shares(heads, sends, takes)
    result: list[_Cut] = []
    for r, (first, end) in enumerate(takes):
        head = first
        while head < end:
            holders = [s for s, (a, b) in enumerate(sends) if a <= head < b]
            matching = r * ptp // dtp
            sender = holders[0] if replicated == "one" or matching not in holders else matching
            stop = min(end, sends[sender][1])
            result.append((sender, r, head, stop, Fraction(1), (head, stop) == sends[sender] == (first, end)))
            head = stop
    return result


def _shares(heads: int, sends: list[tuple[int, int]], takes: list[tuple[int, int]]) -> list[_Cut]:
    """One copy of every head crosses, cut over the tokens so that all its holders send and all receivers receive."""
    result: list[_Cut] = []
    for head in range(heads):
        holders = [s for s, (a, b) in enumerate(sends) if a <= head < b]
        receivers = [r for r, (a, b) in enumerate(takes) if a <= head < b]
        parts = max(len(holders), len(receivers))
        for i in range(parts):
            sender, receiver = holders[i * len(holders) // parts], receivers[i * len(receivers) // parts]
            whole = sends[sender] == takes[receiver] == (head, head + 1)
            result.append((sender, receiver, head, head + 1, Fraction(1, parts), whole))
    return result


def entry_bytes(piece: Piece, kv_dtype: str) -> int:
    """Bytes of one kept token of a piece over its layers (of the whole state when its size is fixed)."""
    state = piece.state
    elements = (state.per_token + state.per_request) // state.heads * piece.heads
    dtype = kv_dtype if state.dtype == "kv" else state.dtype
    for stored, each in state.entry_bytes:
        if stored == dtype:
            return piece.layers * -(-each * piece.heads // state.heads)
    return piece.layers * (-(-elements * BITS[dtype] // 8) + state.extra_bytes_per_token)


def entries(state: State, prompt: Num, block_tokens: int) -> Num:
    """Kept entries of a prompt, whole blocks; 1 for a state of fixed size."""
    if not state.per_token:
        return 1
    tokens = prompt if state.window is None else minimum(prompt, state.window)
    kept = tokens if state.stride == 1 else ceil_div(tokens, state.stride)
    return kept if block_tokens == 1 else ceil_div(kept, block_tokens) * block_tokens


def regions(state: State) -> int:
    """Separate buffers a layer keeps a state in: keys and values apart, everything else in one."""
    return 2 if state.name == "kv" else 1
