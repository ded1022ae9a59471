"""How likely equal ranks would have looked unequal: what a rank is charged with, held against pure chance."""

import math

import numpy as np

LIKELY = 0.02  # at or above this, chance explains it
BURST_NS = 250_000_000  # of waiting in all, where steps run on cores: any program that runs for a moment costs as much


def charged(charges: np.ndarray, mine: float, ranks: int) -> float:
    """At most how likely one of `ranks` equal ranks would be charged with `mine` out of all charges, when each charge
    falls on any of them alike.

    Each counts by its size, so that a few large ones, which any rank may have had, prove little: Chernoff's bound for a
    sum of independent charges of different weight, times the number of ranks any of which might be named.
    """
    most = float(charges.max(initial=0.0))
    if most <= 0:
        return 1.0
    weight, total = charges / most, mine / most
    bounds = [
        float(np.log1p(np.expm1(tilt * weight) / ranks).sum()) - tilt * total for tilt in np.geomspace(0.01, 50, 60)
    ]
    return min(1.0, ranks * math.exp(min(0.0, *bounds)))
