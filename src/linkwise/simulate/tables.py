"""A step's time in tables the event loop reads, one row a pipeline stage. Made by simulate/cost.py, or by hand."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Bits kept of a figure (12 digits): sums that differ in a machine's last bits give the same table.
BITS = 40


class Tables(NamedTuple):
    """Seconds. work, comm: by tokens of a step on one rank, rows only (index 0 unused); prompt_work, prompt_comm:
    prompts only. experts: by tokens of the mean attention replica, since experts serve those of all; zero where `work`
    has them. head, logits: by sampled rows. read, flop, context: by cached tokens, one value each `cell` tokens.
    floor: a step computes no faster; overhead: added to each; prompt: added to one that holds a prompt, and
    prompt_token for each token of it. All [stage, index] or [stage].

    cp: ranks a prompt's tokens are split over. blend: prompts communicate otherwise than rows do. kv_adds: a cache is
    read and attended to one after the other; else the longer of the two counts. prompt_flop: how much of `flop` a token
    of a prompt takes on one rank.
    """

    work: Floats
    comm: Floats
    prompt_work: Floats
    prompt_comm: Floats
    experts: Floats
    head: Floats
    logits: Floats
    read: Floats
    flop: Floats
    context: Floats
    floor: Floats
    overhead: Floats
    prompt: Floats
    prompt_token: Floats
    cell: float = 1.0
    cp: int = 1
    blend: bool = False
    kv_adds: bool = False
    prompt_flop: float = 1.0

    @property
    def stages(self) -> int:
        return len(self.floor)

    @property
    def tokens(self) -> int:
        """Most tokens of a step the tables know."""
        return int(self.work.shape[1]) - 1


def rounded(tables: Tables) -> Tables:
    """To BITS bits."""
    fields: dict[str, Any] = tables._asdict()
    arrays: dict[str, Any] = {name: _to_bits(value) for name, value in fields.items() if isinstance(value, np.ndarray)}
    return tables._replace(**arrays)


def _to_bits(values: Floats) -> Floats:
    part, power = np.frexp(values)
    found: Floats = np.ldexp(np.round(np.ldexp(part, BITS)), power - BITS)
    return found


def constant(seconds: float, *, stages: int = 1, tokens: int = 8192, per_token: float = 0.0) -> Tables:
    """A step that takes `seconds` on every stage, and per_token for each token of it, whatever else it holds."""
    work = np.broadcast_to(seconds + per_token * np.arange(tokens + 1), (stages, tokens + 1)).copy()
    none, flat, one = np.zeros((stages, tokens + 1)), np.zeros((stages, 2)), np.zeros(stages)
    return Tables(work, none, work, none, none, none, none, flat, flat, flat, one, one, one, one, cell=1e12)
