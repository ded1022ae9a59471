"""How long prompts and answers are: all alike, uniform, or lognormal around a mean."""

import math

import numpy as np

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.workload.arrivals import generator
from linkwise.workload.requests import Ints
from linkwise.workload.types import MAX_TOKENS

KINDS = ("fixed", "uniform", "lognormal")


class Lengths(Frozen, frozen=True, kw_only=True):
    """A distribution of lengths, tokens.

    kind: fixed; uniform in [low x mean, high x mean] (0.8 and 1.0 are what common load generators call a range ratio of
    0.8, so `mean` is then the nominal length); lognormal with coefficient of variation `cv`, whose mean is `mean`.
    most: longer ones are cut to it; 0 = no limit.
    """

    mean: int
    kind: str = "fixed"
    low: float = 0.8
    high: float = 1.0
    cv: float = 1.0
    most: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind is {self.kind[:40]!r}", where="lengths", expected="one of " + ", ".join(KINDS))
        if not 1 <= self.mean <= MAX_TOKENS or not 0 <= self.most <= MAX_TOKENS:
            raise InputError(f"mean is {self.mean}, most {self.most}", where="lengths", expected=f"1..{MAX_TOKENS}")
        if not 0 < self.low <= self.high <= 100:
            raise InputError(f"low is {self.low}, high {self.high}", where="lengths", expected="0 < low <= high <= 100")
        if not 0 <= self.cv <= 100:
            raise InputError(f"cv is {self.cv}", where="lengths", expected="0..100")


def tokens(spec: Lengths, number: int, seed: int, stream: int) -> Ints:
    """Lengths of `number` requests, at least one token each. stream: as of `generator`."""
    draw = generator(seed, stream)
    if spec.kind == "fixed":
        values = np.full(number, float(spec.mean))
    elif spec.kind == "uniform":
        first, last = round(spec.low * spec.mean), round(spec.high * spec.mean)
        values = draw.integers(first, last, number, endpoint=True).astype(float)
    else:
        sigma = math.sqrt(math.log1p(spec.cv**2))
        values = np.round(spec.mean * np.exp(sigma * draw.standard_normal(number) - sigma**2 / 2))
    found: Ints = np.clip(values, 1, spec.most or MAX_TOKENS).astype(np.int64)
    return found
