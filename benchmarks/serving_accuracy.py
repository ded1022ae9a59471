"""How near predicted TPOT and TTFT come to measured ones: in sample, whole models and GPUs left out, and a roofline.

    python benchmarks/serving_accuracy.py                 # the shipped constants, and the fits with parts left out
    python benchmarks/serving_accuracy.py --fit           # fit again, print the constants, leave the files alone
    python benchmarks/serving_accuracy.py --fit --write   # and write engine/facts/step_*.yaml

Rows are those of the serving collection beside the project (benchmarks/serving_rows.py says how each is read). Every
figure is the simulator's: the row's closed loop with its engine's policy. Errors are |predicted / measured - 1|, bias
the median of the logarithm of predicted / measured, `inside` the share of measurements in the printed 80 % interval.
"""

import argparse
import datetime
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import serving_rows
import serving_split
from linkwise.engine import step_calibrations
from linkwise.engine.step_constants import Spreads
from linkwise.simulate.calibrate.case import Case
from linkwise.simulate.calibrate.fit import (
    Fitted,
    Group,
    descend,
    finished,
    fit,
    grouped,
    measured,
    pooled,
    predicted,
    simulated,
)
from linkwise.simulate.calibrate.made import calibration_of, spread_of
from linkwise.simulate.calibrate.priors import NAMES
from linkwise.simulate.calibrate.split import DOUBT
from linkwise.simulate.calibrate.steps import run_of

Floats = npt.NDArray[np.float64]
# From which version on an engine's overheads are others: where rows of both sides differ most; and on devices of which
# compute capability on: TensorRT-LLM's newer versions were measured on Blackwell alone.
SINCE = {"trtllm": ("1.2", 100), "vllm": ("0.15", 0), "sglang": ("0.5.8", 0)}
GPUS = (("b200_sxm", "gb200", "gb300"), ("h100_sxm",), ("h200_sxm",))
FACTS = Path(__file__).resolve().parents[1] / "src" / "linkwise" / "engine" / "facts"


class Collection:
    """Mixed rows, their runs, and what each is left out with; and disaggregated ones, which are fitted beside them by
    what Little's law says of either pool (linkwise/simulate/calibrate/split.py). truth, engine, model, gpu: of mixed
    rows; everyone's stand in `all_truth`, `all_by`, those of mixed rows first."""

    def __init__(self) -> None:
        found, split = list(serving_rows.cases()), serving_rows.rows(serving_split.FILE)
        self.rows = [row for row, _ in found]
        self.cases = [case for _, case in found]
        self.split = [serving_split.case_of(row) for row in split]
        self.truth, self.all_truth = measured(self.cases), measured(self.all)
        self.engine = np.array([case.served.engine.name for case in self.cases])
        self.model = np.array([case.group for case in self.cases])
        self.gpu = np.array([row["gpu"] for row in self.rows])
        beside = np.array([case.group for case in self.split]), np.array([row["system"] for row in split])
        self.all_by = {"model": np.append(self.model, beside[0]), "gpu": np.append(self.gpu, beside[1])}
        self.doubt = np.where(np.arange(len(self.all)) < self.number, 1.0, DOUBT)

    @property
    def all(self) -> list[Case]:
        return self.cases + self.split

    @property
    def number(self) -> int:
        """Of mixed rows."""
        return len(self.cases)

    def mixed(self, values: Floats) -> Floats:
        """TPOT, then TTFT, of mixed rows, of those of all rows."""
        return np.concatenate((values[: self.number], values[len(self.all) : len(self.all) + self.number]))


def figures(wanted: Floats, truth: Floats, low: Floats | None = None, high: Floats | None = None) -> str:
    """Of logarithms: median error, 90th percentile, bias, and the share inside bounds of log(measured / predicted)."""
    off = wanted - truth
    off = off[np.isfinite(off)]
    if not len(off):
        return "-"
    error = np.abs(np.expm1(off)) * 100
    text = f"{np.median(error):5.1f} {np.quantile(error, 0.9):6.0f} {np.median(off) * 100:+6.1f}"
    if low is None or high is None:
        return text
    inside = (truth - wanted >= low) & (truth - wanted <= high)
    return f"{text} {100 * inside.mean():4.0f}"


def print_slices(what: Collection, found: Floats, low: Floats, high: Floats) -> None:
    n = what.number
    print(f"{'':50} rows   TPOT: median p90 bias inside     TTFT: median p90 bias inside   (%)")
    keys = [(what.engine[i], what.gpu[i], what.model[i]) for i in range(n)]
    whole = [("all", "", "")] + [(e, "", "") for e in sorted(set(what.engine))]
    for key in whole + sorted(set(keys)):
        mine = np.array(
            [key[0] == "all" or all(not k or k == o for k, o in zip(key, other, strict=True)) for other in keys]
        )
        line = [
            figures(found[part][mine], what.truth[part][mine], low[part][mine], high[part][mine])
            for part in (slice(0, n), slice(n, 2 * n))
        ]
        print(f"{' '.join(x for x in key if x):50} {mine.sum():4}   {line[0]}       {line[1]}")


def shipped_predictions(what: Collection) -> tuple[Floats, Floats, Floats]:
    """What the shipped constants say of every row, simulated exactly, with their intervals."""
    n = what.number
    found, low, high = np.zeros(2 * n), np.zeros(2 * n), np.zeros(2 * n)
    for i, case in enumerate(what.cases):
        steps = run_of(case, coarse=False)
        found[i], found[n + i] = np.log(steps.tpot_s), np.log(steps.ttft_s)
        calibration = case.served.engine.calibration
        if calibration is not None:
            s = calibration.spreads
            low[i], high[i], low[n + i], high[n + i] = s.tpot.low, s.tpot.high, s.ttft.low, s.ttft.high
    return found, low, high


def roofline_predictions(what: Collection) -> Floats:
    """The same without any calibration: the cluster's roofline."""
    n = what.number
    found = np.zeros(2 * n)
    for i, case in enumerate(what.cases):
        plain = case._replace(served=case.served._replace(engine=case.served.engine.calibrated(None)))
        steps = run_of(plain)
        found[i], found[n + i] = np.log(steps.tpot_s), np.log(steps.ttft_s)
    return found


def whole_fit(what: Collection) -> tuple[Fitted, list[Group]]:
    """The constants of all rows, and the rows' steps in the order of events they give."""
    space = pooled(sorted({case.served.engine.name for case in what.cases}), SINCE)
    whole = fit(what.all, space, doubt=what.doubt)
    return whole, grouped(simulated(what.all, space, whole.at), space)


def without(what: Collection, whole: Fitted, groups: Sequence[Group], out: npt.NDArray[np.bool_]) -> Floats:
    """The parameters that all rows but those give, the order of events as all have it. out: of everyone."""
    rest = np.where(np.concatenate((out, out)), np.nan, what.all_truth)
    at, curvature = descend(groups, rest, whole.space, whole.at, doubt=what.doubt)
    return finished(whole.space, at, curvature).at


def left_out(
    what: Collection, whole: Fitted, groups: Sequence[Group], by: str, parts: Sequence[Sequence[str]]
) -> Floats:  # fmt: skip
    """Predictions of mixed rows of each part by constants fitted to all other rows. by: "model" or "gpu"."""
    n, total = what.number, len(what.all)
    found = np.full(2 * n, np.nan)
    for part in parts:
        out = np.isin(what.all_by[by], part)
        at = without(what, whole, groups, out)
        mine = np.concatenate((out[:n], out[:n]))
        found[mine] = what.mixed(predicted(groups, whole.space, at, total))[mine]
        tpot, ttft = (figures(found[k : k + n][out[:n]], what.truth[k : k + n][out[:n]]) for k in (0, n))
        print(f"  left out {' '.join(part):30} {out[:n].sum():4}   {tpot}     {ttft}", flush=True)
    return found


def coverage(what: Collection, found: Floats, by: npt.NDArray[np.str_], parts: Sequence[Sequence[str]]) -> str:
    """Share of each part inside the intervals that the other parts' residuals make."""
    n = what.number
    inside = np.zeros(2 * n)
    for part in parts:
        out = np.isin(by, part)
        for first in (0, n):
            rest = np.concatenate((~out, ~out))
            rest[n - first : 2 * n - first] = False
            s = spread_of((what.truth - found)[rest])
            off = (what.truth - found)[first : first + n][out]
            inside[first : first + n][out] = (off >= s.low) & (off <= s.high)
    return (
        f"inside the others' 80 % interval: TPOT {100 * inside[:n].mean():.0f} %, TTFT {100 * inside[n:].mean():.0f} %"
    )


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--fit", action="store_true")
    asked.add_argument("--write", action="store_true")
    asked.add_argument("--quick", action="store_true", help="the shipped constants in sample only")
    options = asked.parse_args()
    began = time.monotonic()
    what = Collection()
    n = what.number
    print(f"{n} rows, {len(set(what.model))} models, {len(set(what.gpu))} GPUs")
    if not options.fit:
        found, low, high = shipped_predictions(what)
        print("\nshipped constants, in sample")
        print_slices(what, found, low, high)
        plain = roofline_predictions(what)
        print(f"\n{'roofline of the datasheets, uncalibrated':50} {n:4}   {figures(plain[:n], what.truth[:n])}"
              f"            {figures(plain[n:], what.truth[n:])}")  # fmt: skip
        if options.quick:
            return
    whole, groups = whole_fit(what)
    of_all = predicted(groups, whole.space, whole.at, len(what.all))
    inside, beside = what.mixed(of_all), of_all[n : len(what.all)]
    print(f"\nfitted: {figures(inside[:n], what.truth[:n])}     {figures(inside[n:], what.truth[n:])}")
    print(f"steps of as many rows as disaggregated ones had: {figures(beside, what.all_truth[n : len(what.all)])}")
    models = [[name] for name in sorted(set(what.model))]
    print("\nwhole models left out")
    by_model = left_out(what, whole, groups, "model", models)
    print(f"all: {figures(by_model[:n], what.truth[:n])}     {figures(by_model[n:], what.truth[n:])}")
    print(coverage(what, by_model, what.model, models))
    print("\nwhole GPUs left out")
    by_gpu = left_out(what, whole, groups, "gpu", GPUS)
    print(f"all: {figures(by_gpu[:n], what.truth[:n])}     {figures(by_gpu[n:], what.truth[n:])}")
    print(coverage(what, by_gpu, what.gpu, GPUS))
    if options.fit:
        show(whole)
    if options.write:
        write(what, whole, inside, by_model)
    print(f"{time.monotonic() - began:.0f} s")


def show(whole: Fitted) -> None:
    print(f"\n{'':28}" + "".join(f"{engine:>20}" for engine in whole.space.engines))
    for place, name in enumerate(NAMES):
        values = [(getattr(whole.constants(e, newer=False), name), whole.errors[e][place]) for e in whole.space.engines]
        print(f"{name:28}" + "".join(f"{value:12.4g} ({error:.2f})" for value, error in values))
    for engine in whole.space.engines:
        print(f"{engine} from {SINCE[engine][0]} on: overheads x {whole.space.factor(whole.at, engine):.3g}")


def write(what: Collection, whole: Fitted, inside: Floats, by_model: Floats) -> None:
    """The files that are shipped. Spreads: of the engine's own rows, and of all rows whose model was left out."""
    n = what.number
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    near, far = what.truth - inside, what.truth - by_model
    tpot_far, ttft_far = spread_of(far[:n]), spread_of(far[n:])
    for engine in whole.space.engines:
        mine = what.engine == engine
        spreads = Spreads(
            tpot=spread_of(near[:n][mine]), ttft=spread_of(near[n:][mine]), tpot_outside=tpot_far,
            ttft_outside=ttft_far,
        )  # fmt: skip
        cases: list[Case] = [case for case, m in zip(what.cases, mine, strict=True) if m]
        made = calibration_of(
            whole, engine, cases, spreads, label=f"{engine} on published points, {today}", made=today,
            source="published serving points (closed loops, mean TTFT and TPOT); all engines fitted together, see"
            " docs/calibrate.md", notes=(),
        )  # fmt: skip
        (FACTS / f"step_{engine}.yaml").write_text(step_calibrations.dump(made), encoding="utf-8")
        print(f"written step_{engine}.yaml")


if __name__ == "__main__":
    main()
