"""What the driver tells every rank of a group to do in one step, and what a rank answers.

One step is the same message for all ranks; each picks the batch of its attention replica. Batches of several attention
replicas are made equally long by the driver with filler rows, so that every rank runs the same collectives.
"""

from typing import NamedTuple

from linkwise.supervise.types import Sampling

FILLER = -1  # Row.request of a row that only makes attention replicas equally long; its KV goes to block 0
SCRATCH = 0  # this block belongs to no request


class Row(NamedTuple):
    """One request's part of a step.

    request: the driver's number of the request. start: position of the first new token. tokens: new token ids.
    prompt: a chunk of a prompt, which cp splits (position p is on cp rank p % cp); a decode token is on every cp rank.
    draw: draw the token after the last new one; None = no logits are wanted (a chunk that is not the last).
    blocks: KV block ids of the request on its attention replica, enough for start + len(tokens) tokens. Under cp and
    dcp a block holds `block_tokens` entries of each rank: entry e of a rank is the request's position
    (e * dcp + dcp_place) * cp + cp_place.
    """

    request: int
    start: int
    tokens: tuple[int, ...]
    prompt: bool
    draw: Sampling | None
    blocks: tuple[int, ...]

    @property
    def end(self) -> int:
        """Tokens of the request that are known once the step is done."""
        return self.start + len(self.tokens)


class Step(NamedTuple):
    """number counts the group's steps from 0. batches: by attention replica. Rows: decode first, then prompts."""

    number: int
    batches: tuple[tuple[Row, ...], ...]


class Drawn(NamedTuple):
    """Tokens drawn by one rank of the last stage (place 0 of its tensor group): (row of the batch, token)."""

    number: int
    tokens: tuple[tuple[int, int], ...]


def rank_rows(row: Row, cp: int) -> int:
    """Hidden rows a batch row takes on one rank: a prompt's chunk is split over cp, padded to the same number."""
    return -(-len(row.tokens) // cp) if row.prompt else len(row.tokens)


def batch_rows(batch: tuple[Row, ...], cp: int) -> int:
    """Hidden rows of a batch on one rank."""
    return sum(rank_rows(row, cp) for row in batch)


def sampling_cp(row: Row, cp: int) -> int:
    """The cp rank that holds a row's last token: it draws."""
    return (row.end - 1) % cp if row.prompt else 0
