"""How often `linkwise simulate` calls a load saturated that is not, and misses one that is.

Llama-3.3-70B, two replicas of tp 4 on H100, vLLM, 4,000 in and 500 out. What they serve is measured first, under twice
as much; then loads around it are simulated over seeds, with rates as asked and as if from a trace. A trace has no other
rate than its own: of those drawn below what is served, runs whose own mean is above it are left out, and the other way
round. Needs numba.
"""

import sys

import numpy as np

from linkwise import api
from linkwise.plan.types import Plan
from linkwise.simulate.load import Asked, load_of
from linkwise.simulate.of_plan import pool_of
from linkwise.simulate.rules import Run
from linkwise.simulate.run import simulate
from linkwise.simulate.saturation import saturation
from linkwise.simulate.state import Array

SHARES = (0.6, 0.75, 0.9, 0.95, 1.04, 1.1, 1.2)
RUNS = ((500, 100), (2000, 100), (20_000, 10))  # requests, seeds
FIRST = 1000  # seed; the rule was chosen on others
# Gaps as scattered as their mean, twice as scattered; two states, so many seconds in each: 300 where nobody says.
KINDS = (("poisson", None), ("gamma", None), ("mmpp", 60.0), ("mmpp", 300.0))


def main() -> int:
    found = api.plan("llama-3.3-70b", "8xh100-sxm", tp=4, isl=4000, osl=500, rate="3/s", pareto=False)
    if not isinstance(found, Plan):
        raise SystemExit("no plan")
    every = requests(found, 9.0, 8000, "poisson", None, 0)
    last = float(every["arrival"].max())
    most = float(((every["end"] > last / 2) & (every["end"] < last)).sum()) / (last / 2)
    print(f"served at most {most:.3f}/s; share of runs called saturated, at so many times that load")
    print(f"{'requests':>9} {'arrivals':>10} {'rate':>6}  " + "".join(f"{share:>7}" for share in SHARES))
    for number, seeds in RUNS:
        for kind, stay_s in KINDS:
            runs = [
                [requests(found, most * s, number, kind, stay_s, seed) for seed in range(FIRST, FIRST + seeds)]
                for s in SHARES
            ]
            asked = [[bool(saturation(x, most * s)) for x in one] for s, one in zip(SHARES, runs, strict=True)]
            trace = [
                [bool(saturation(x)) for x in one if (mean_rate(x) > most) == (s > 1)]
                for s, one in zip(SHARES, runs, strict=True)
            ]
            for name, called in (("asked", asked), ("trace", trace)):
                shown = "".join(f"{100 * np.mean(one):>6.1f}%" if one else f"{'':>7}" for one in called)
                label = kind if stay_s is None else f"{kind} {stay_s:g} s"
                print(f"{number:>9} {label:>10} {name:>6}  {shown}", flush=True)
    return 0


def requests(plan: Plan, rate: float, number: int, kind: str, stay_s: float | None, seed: int) -> Array:
    """The requests of a run, as the loop leaves them."""
    load = load_of(plan, Asked(number=number, rate_per_s=rate, arrivals=kind, period_s=stay_s), seed).requests
    return simulate([pool_of(plan, load, replicas=2)[0]], load, Run(seed=seed)).requests


def mean_rate(every: Array) -> float:
    """Arrivals/s of a run."""
    return (len(every) - 1) / float(every["arrival"].max() - every["arrival"].min())


if __name__ == "__main__":
    sys.exit(main())
