"""What constants from kernels measured one by one do to predictions of serving, beside the shipped constants.

Needs aiconfigurator-core for its tables, or a folder of the same shape:

    pip install aiconfigurator-core
    python benchmarks/kernel_constants.py [FOLDER]
"""

import argparse
import sys
from collections import defaultdict

import numpy as np

from linkwise.core.errors import InputError
from linkwise.simulate.calibrate.kernel_tables import WORD, find
from linkwise.simulate.calibrate.kernels import from_kernels
from linkwise.simulate.calibrate.steps import run_of
from serving_rows import DATA, cases

EVERY = 12  # rows, one of them is simulated


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("tables", nargs="?", default=WORD)
    where = asked.parse_args().tables
    if not DATA.is_dir():
        print("kernel constants: not run, the serving points are not here")
        return 0
    off: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    made = {}
    for number, (row, case) in enumerate(cases()):
        if number % EVERY:
            continue
        served = case.served
        key = row["engine"], served.cluster.accelerator.name
        if key not in made:
            try:
                found = find(where, key[1], served.engine.name, served.engine.version)
                made[key] = from_kernels(found, served.cluster.accelerator, served.engine.calibration).calibration
            except InputError as error:
                print(f"kernel constants: {' on '.join(key)} not run, {error}")
                made[key] = None
        if made[key] is None:
            continue
        engines = served.engine, served.engine.calibrated(made[key])
        runs = [run_of(case._replace(served=served._replace(engine=engine))) for engine in engines]
        off[key].append(tuple(abs(np.log(r.tpot_s / case.tpot_s)) for r in runs)
                        + tuple(abs(np.log(r.ttft_s / case.ttft_s)) for r in runs))  # fmt: skip
    print(f"{'engine on GPU':24} rows   TPOT: shipped, kernels %    TTFT: shipped, kernels %   (median)")
    for key, part in [*sorted(off.items()), (("all", ""), [one for rows in off.values() for one in rows])]:
        if part:
            medians = 100 * np.expm1(np.median(np.array(part), axis=0))
            print(f"{' '.join(key):24} {len(part):4}   {medians[0]:8.1f} {medians[1]:8.1f}"
                  f"           {medians[2]:8.1f} {medians[3]:8.1f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
