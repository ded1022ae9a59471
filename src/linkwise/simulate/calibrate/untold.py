"""Constants that no row of an engine tells of, and what is taken for them.

Which those are the fit itself says: what an engine's rows tell of its own constant is the curvature of their errors by
it, and that is none where no row holds such a layer. Another engine's rows may. Engines are taken as drawn at random
about a common value, which what is known before any result tells of as well (priors.py): the mean of all that, weighted
by how sure each is, with the spread between engines on top (the predictive distribution of a random-effects model).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.simulate.calibrate.priors import NAMES, apart
from linkwise.simulate.tables import Floats

NOTHING = 0.01  # told of a constant, as a share of what was known before: less is none


class Taken(NamedTuple):
    """Parameters with what is taken for untold constants in place, standard errors of the logarithms of each engine's
    constants (its version factor last), and of each engine what nobody told: by name, the engines that did elsewhere.
    """

    at: Floats
    errors: dict[str, Floats]
    untold: dict[str, dict[str, tuple[str, ...]]]


def told(engines: int, spread: Floats, curvature: Floats) -> npt.NDArray[np.bool_]:
    """Whether rows of each engine tell of each constant (engine, constant). spread: of parameters before any row."""
    k = len(NAMES)
    of_rows = (np.diag(curvature) - spread**-2.0)[k : k * (1 + engines)]
    found: npt.NDArray[np.bool_] = of_rows.reshape(engines, k) * spread[:k] ** 2 > NOTHING
    return found


def taken(engines: tuple[str, ...], centre: Floats, spread: Floats, at: Floats, curvature: Floats) -> Taken:
    """What rows tell, and for the rest what is likeliest of another engine. Arguments as of fit.Space and descend."""
    k, number = len(NAMES), len(engines)
    covariance = np.asarray(np.linalg.inv(curvature), dtype=float)
    known = told(number, spread, curvature)
    values = at[:k] + at[k : k * (1 + number)].reshape(number, k)
    errors = np.stack([engine_errors(covariance, place, number) for place in range(number)])
    found, untold = at.copy(), {name: dict[str, tuple[str, ...]]() for name in engines}
    for mine, one in zip(*np.nonzero(~known), strict=True):
        others = np.flatnonzero(known[:, one])
        tau, name = apart(NAMES[one]), NAMES[one]
        sure = np.append(1 / (errors[others, one] ** 2 + tau**2), spread[one] ** -2)
        mean = np.append(values[others, one], centre[one]) @ sure / sure.sum()
        found[k * (1 + mine) + one] = mean - at[one]
        errors[mine, one] = np.sqrt(1 / sure.sum() + tau**2)
        untold[engines[mine]][name] = tuple(engines[other] for other in others)
    return Taken(found, dict(zip(engines, errors, strict=True)), untold)


def engine_errors(covariance: Floats, place: int, engines: int) -> Floats:
    """Of the logarithms of an engine's constants, common value and difference together, and of its factor."""
    k = len(NAMES)
    pick = np.zeros((k + 1, len(covariance)))
    pick[np.arange(k), np.arange(k)] = 1
    pick[np.arange(k), k * (1 + place) + np.arange(k)] = 1
    pick[k, k * (1 + engines) + place] = 1
    found: Floats = np.sqrt(np.einsum("ij,jk,ik->i", pick, covariance, pick))
    return found
