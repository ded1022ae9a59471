"""How far constants of engines lie apart: what a constant is taken with where no row of an engine tells of it.

    python benchmarks/serving_apart.py

The rows of benchmarks/serving_accuracy.py, fitted with the differences of engines left open (a factor of two either
way). Of every constant that rows of two engines or more tell of, the variance between engines beyond the rows' own
errors (DerSimonian and Laird, 1986), and the root of its mean by unit: `_APART` in simulate/calibrate/priors.py.
"""

import numpy as np

import serving_accuracy
from linkwise.simulate.calibrate.fit import descend
from linkwise.simulate.calibrate.priors import NAMES
from linkwise.simulate.calibrate.untold import engine_errors, told

OPEN = 0.7  # standard deviation of the logarithm


def between(values: serving_accuracy.Floats, errors: serving_accuracy.Floats) -> float:
    """Variance between groups of such values and standard errors, beyond the errors."""
    weight = errors**-2.0
    mean = values @ weight / weight.sum()
    surplus = ((values - mean) ** 2) @ weight - (len(values) - 1)
    return max(0.0, float(surplus / (weight.sum() - (weight**2).sum() / weight.sum())))


def main() -> None:
    what = serving_accuracy.Collection()
    whole, groups = serving_accuracy.whole_fit(what)
    k, number = len(NAMES), len(whole.space.engines)
    spread = whole.space.spread.copy()
    spread[k : k * (1 + number)] = OPEN
    at, curvature = descend(groups, what.all_truth, whole.space._replace(spread=spread), whole.at, doubt=what.doubt)
    covariance, known = np.linalg.inv(curvature), told(number, spread, curvature)
    values = at[:k] + at[k : k * (1 + number)].reshape(number, k)
    errors = np.stack([engine_errors(covariance, place, number) for place in range(number)])
    kinds: dict[str, list[float]] = {}
    for place, name in enumerate(NAMES):
        if (some := known[:, place]).sum() > 1:
            unit = name.rsplit("_", maxsplit=1)[-1]
            kind = "layer_us" if name.endswith("layer_us") else unit if unit == "efficiency" else "else"
            kinds.setdefault(kind, []).append(one := between(values[some, place], errors[:, :k][some, place]))
            print(f"{name:28} {np.sqrt(one):.2f}")
    for kind, found in kinds.items():
        print(f"{kind:28} {np.sqrt(np.mean(found)):.2f} of {len(found)} constants")


if __name__ == "__main__":
    main()
