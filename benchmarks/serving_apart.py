"""How far constants of engines lie apart: what a constant is taken with where no row of an engine tells of it.

    python benchmarks/serving_apart.py

The rows of benchmarks/serving_accuracy.py, fitted with the differences of engines left open (a factor of two either
way). Of every constant that rows of two engines or more tell of, the variance between engines beyond the rows' own
errors (DerSimonian and Laird, 1986), and the root of its mean by kind: `_APART` in simulate/calibrate/priors.py. Then
each engine's rows of one model left out, where no other row of the engine tells of some constants: with those of other
engines, with what was known before any result, and with what simulate/calibrate/untold.py makes of both.
"""

from collections.abc import Sequence

import numpy as np

from linkwise.simulate.calibrate.fit import Fitted, Group, descend, finished, predicted
from linkwise.simulate.calibrate.priors import NAMES
from linkwise.simulate.calibrate.untold import engine_errors, told
from serving_accuracy import Collection, Floats, figures, whole_fit

OPEN = 0.7  # standard deviation of the logarithm


def between(values: Floats, errors: Floats) -> float:
    """Variance between groups of such values and standard errors, beyond the errors."""
    weight = errors**-2.0
    mean = values @ weight / weight.sum()
    surplus = ((values - mean) ** 2) @ weight - (len(values) - 1)
    return max(0.0, float(surplus / (weight.sum() - (weight**2).sum() / weight.sum())))


def apart(what: Collection, whole: Fitted, groups: Sequence[Group]) -> None:
    k, number = len(NAMES), len(whole.space.engines)
    spread = whole.space.spread.copy()
    spread[k : k * (1 + number)] = OPEN
    at, curvature = descend(groups, what.all_truth, whole.space._replace(spread=spread), whole.at, doubt=what.doubt)
    covariance, known = np.asarray(np.linalg.inv(curvature), dtype=float), told(number, spread, curvature)
    values = at[:k] + at[k : k * (1 + number)].reshape(number, k)
    errors = np.stack([engine_errors(covariance, place, number) for place in range(number)])
    kinds: dict[str, list[float]] = {}
    for place, name in enumerate(NAMES):
        if (some := known[:, place]).sum() > 1:
            kind = next((kind for kind in ("layer_us", "efficiency") if name.endswith(kind)), "else")
            kinds.setdefault(kind, []).append(one := between(values[some, place], errors[:, :k][some, place]))
            print(f"{name:28} {np.sqrt(one):.2f}")
    for kind, found in kinds.items():
        print(f"{kind:28} {np.sqrt(np.mean(found)):.2f} of {len(found)} constants")


def left_out(what: Collection, whole: Fitted, groups: Sequence[Group]) -> None:
    """Each engine's rows of a model by constants fitted without them, where that leaves some untold."""
    n, total, k, space = what.number, len(what.all), len(NAMES), whole.space
    engine = np.array([case.served.engine.name for case in what.all])
    print(f"\n{'left out':34} rows   (TPOT: median p90 bias, TTFT: median p90 bias, %)")
    for name, model in sorted(set(zip(what.engine, what.model, strict=True))):
        out = (engine == name) & (what.all_by["model"] == model)
        rest = np.where(np.concatenate((out, out)), np.nan, what.all_truth)
        at, curvature = descend(groups, rest, space, whole.at, doubt=what.doubt)
        found = finished(space, at, curvature)
        place = space.engines.index(name)
        lost = [NAMES.index(one) for one in found.untold[name] if one not in whole.untold[name]]
        if not lost:
            continue
        count, mine = at.copy(), k * (1 + place) + np.array(lost)
        count[mine] = space.centre[lost] - at[lost]
        print(f"{name} {model:27} {out[:n].sum():4}   untold: {', '.join(NAMES[one] for one in lost)}")
        for label, values in (("others' value taken over", at), ("what was known before", count), ("both", found.at)):
            off = what.mixed(predicted(groups, space, values, total))
            tpot, ttft = (figures(off[i : i + n][out[:n]], what.truth[i : i + n][out[:n]]) for i in (0, n))
            print(f"  {label:37}   {tpot}     {ttft}", flush=True)


def main() -> None:
    what = Collection()
    whole, groups = whole_fit(what)
    apart(what, whole, groups)
    left_out(what, whole, groups)


if __name__ == "__main__":
    main()
