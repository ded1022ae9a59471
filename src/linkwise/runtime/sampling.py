"""How the next token is drawn from logits. The same seed and position always draw the same token from equal logits."""

import hashlib
import struct
from collections.abc import Sequence

import torch

from linkwise.core.errors import InputError
from linkwise.supervise.types import Sampling

_LIKELY = 1024  # of these the smallest set is sought first; sorting a whole vocabulary takes milliseconds

_COLD = 1e-5  # of a temperature: below it logits this close differ by nothing they were computed to; taken as greedy


def draw(logits: torch.Tensor, draws: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """One token per row of logits [rows, vocab]. positions: of the token drawn, in its request.

    Raises InputError when a row's logits hold a NaN, or its most likely token's is infinite.
    """
    if not draws:
        return []
    highest = logits.argmax(dim=-1, keepdim=True)
    # A NaN is the maximum of its row, so that a look at the maxima finds every one of them.
    if not logits.gather(-1, highest).isfinite().all():
        raise InputError("logits are not finite", where="weights", expected="finite numbers in a dtype that holds them")
    best = highest[:, 0].tolist()
    return [
        int(best[row]) if how.temperature < _COLD else _drawn(logits[row], how, position)
        for row, (how, position) in enumerate(zip(draws, positions, strict=True))
    ]


def _drawn(logits: torch.Tensor, how: Sampling, position: int) -> int:
    # On the host: generators of other devices draw other numbers.
    exact = logits.cpu().double()
    mass = torch.softmax((exact - exact.max()) / how.temperature, dim=-1)
    if how.top_p >= 1.0:
        return _pick(mass, how.seed, position)
    kept, tokens = _smallest(mass, how.top_p)
    return int(tokens[_pick(kept, how.seed, position)])


def _smallest(mass: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest tokens, most likely first, whose mass reaches top_p, and their numbers."""
    for count in (min(_LIKELY, mass.numel()), mass.numel()):
        likely, tokens = torch.topk(mass, count)
        reached = torch.cumsum(likely, dim=-1)
        enough = int(torch.searchsorted(reached, top_p)) + 1
        if enough <= count:
            break
    enough = min(enough, mass.numel())
    return likely[:enough], tokens[:enough]


def _pick(mass: torch.Tensor, seed: int, position: int) -> int:
    """A place, with a chance in proportion to its mass; never one without mass."""
    reached = torch.cumsum(mass, dim=-1)
    aim = reached[-1] * chance(seed, position)
    place = int(torch.searchsorted(reached, aim, right=True))
    return place if place < mass.numel() else int(mass.nonzero()[-1])


def chance(seed: int, position: int) -> float:
    """A number from 0, below 1, that all 64 bits of the seed and the position decide.

    A hash, not a generator: those of torch take 32 bits of a seed, and seeds that differ above them draw alike.
    """
    words = struct.pack("<QQ", seed % (1 << 64), position)
    return (int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 11) * 2.0**-53
