"""Serving points of other kinds: disaggregated pools, and results published elsewhere, with the shipped constants.

    python benchmarks/serving_other.py              # with the shipped constants
    python benchmarks/serving_other.py --left-out   # disaggregated rows again, by constants fitted without them

Disaggregated rows (benchmarks/serving_split.py): a closed loop of the row's users over two pools, as the public recipes
started them. With parts left out: all rows are fitted, mixed ones too, then those without the part, in the order of
events of the whole fit (benchmarks/serving_accuracy.py), and the part is simulated. Published rows: those that state
model, GPU, layout, lengths and load are simulated; all others are counted by what they lack.
"""

import argparse
import collections
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

import serving_accuracy
import serving_rows
import serving_split
from linkwise.core.errors import InputError
from linkwise.simulate.calibrate import split
from linkwise.simulate.calibrate.case import Case
from linkwise.simulate.calibrate.fit import Space, constants, is_newer
from linkwise.simulate.calibrate.rows import Given, case_of
from linkwise.simulate.calibrate.steps import rules_of, run_of
from linkwise.simulate.served import Served
from linkwise.workload import results
from serving_accuracy import Floats, figures

# Words for engines in published tables. Splitwise's table names none; its paper measured vLLM of early 2024.
_ENGINES = {"nim (trt-llm)": "trtllm==1.0", "(not in csv)": "vllm==0.11", "(not in excerpt)": ""}


def print_disaggregated() -> None:
    rows = serving_rows.rows(serving_split.FILE)
    truth, found, keys, left_out = [], [], [], collections.Counter[str]()
    for row in rows:
        try:
            said = split.run(serving_split.case_of(row)).summary
        except InputError as error:
            left_out[re.sub(r"[0-9,.]+", "N", error.message)[:80]] += 1
            continue
        tpot, ttft = (math.nan if one is None else one.mean for one in (said.tpot, said.ttft))
        found.append((math.log(tpot), math.log(ttft)))
        truth.append((math.log(float(row["silicon_tpot_ms"]) / 1e3), math.log(float(row["silicon_ttft_ms"]) / 1e3)))
        keys.append((row["backend"], row["system"], row["gemm_quant_mode"]))
    wanted, seen = np.array(found), np.array(truth)
    print(f"disaggregated: {len(found)} of {len(rows)} rows{'' if not left_out else f'; left out {dict(left_out)}'}")
    for key in [("all",), *sorted(set(keys))]:
        mine = np.array([key in {("all",), one} for one in keys])
        print(f"  {' '.join(key):36} {mine.sum():4}   TPOT {figures(wanted[mine, 0], seen[mine, 0])}"
              f"    TTFT {figures(wanted[mine, 1], seen[mine, 1])}", flush=True)  # fmt: skip


def print_left_out() -> None:
    """The disaggregated rows by constants that were fitted without them, and without mixed rows of their GPU."""
    what, rows = serving_accuracy.Collection(), serving_rows.rows(serving_split.FILE)
    n, number = what.number, len(rows)
    whole, groups = serving_accuracy.whole_fit(what)
    families = sorted({_family(row) for row in rows})
    alike = {gpu: " ".join(part) for part in serving_accuracy.GPUS for gpu in part}
    ways: dict[str, Callable[[Mapping[str, str]], str]] = {
        "a GPU's": lambda row: row["system"],
        "an engine's of one precision": lambda row: f"{row['backend']} {row['gemm_quant_mode']}",
        "half of the families of recipes": lambda row: f"half {1 + families.index(_family(row)) % 2}",
        "all": lambda row: "",
        "a GPU's, mixed ones too": lambda row: row["system"],
        "GPUs' that are alike, mixed ones too": lambda row: alike[row["system"]],
    }  # fmt: skip

    def found(mine: Sequence[int], at: Floats) -> Floats:
        return np.array([_simulated(what.split[i], whole.space, at) for i in mine])

    def show(name: str, off: Floats) -> None:
        tpot, ttft = (figures(part, np.zeros(len(off))) for part in off.T)
        print(f"  {name:60} {len(off):4}   TPOT {tpot}    TTFT {ttft}", flush=True)

    print("disaggregated, by constants fitted to all rows, mixed and disaggregated, without")
    show("none left out", found(range(number), whole.at))
    for name, key in ways.items():
        keys, off = [key(row) for row in rows], np.full((number, 2), np.nan)
        for one in sorted(set(keys)):
            mine = [i for i, other in enumerate(keys) if other == one]
            out = np.zeros(n + number, bool)
            out[[n + i for i in mine]] = True
            if "mixed" in name:
                out[:n] = np.isin(what.gpu, one.split())
            off[mine] = found(mine, serving_accuracy.without(what, whole, groups, out))
            if one:
                show(f"{name}: {one}", off[mine])
        show(f"{name}, together", off)


def _family(row: Mapping[str, str]) -> str:
    """A recipe of one engine on one GPU, whatever its users."""
    return row["id"].rsplit("_", maxsplit=1)[-1] + row["system"] + row["backend"]


def _simulated(case: Case, space: Space, at: Floats) -> tuple[float, float]:
    """log(simulated / measured) of mean TPOT and TTFT, by the constants at some parameters."""

    def told(what: Served) -> Served:
        newer = is_newer(space, case._replace(served=what))
        return what._replace(engine=what.engine.with_constants(constants(space, at, what.engine.name, newer=newer)))

    sides = split.split_of(case)
    said = split.run(case._replace(served=told(case.served), split=sides._replace(served=told(sides.served)))).summary
    tpot, ttft = (math.nan if one is None else one.mean for one in (said.tpot, said.ttft))
    return math.log(tpot / case.tpot_s), math.log(ttft / case.ttft_s)


def print_published() -> None:
    read = results.read(serving_rows.DATA / "serving" / "published.csv")
    left_out = collections.Counter(_short(one.reason) for one in read.left_out)
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in read.rows:
        source = re.sub(r".*\((.*)\)$", r"\1", row.source)
        engine = _ENGINES.get(row.engine or "", row.engine or "")
        changed = msgspec.structs.replace(row, engine=engine, version=None if "==" in engine else row.version)
        if "pcap" in (row.gpu or ""):
            left_out["a GPU whose power was capped"] += 1
            continue
        if row.engine == "(not in csv)":  # a static batch, once
            changed = msgspec.structs.replace(changed, fixed_lengths=True, requests=int(row.concurrency or 1))
        try:
            case = case_of(changed, Given())
            rules_of(case)
            steps = run_of(case)
        except InputError as error:
            left_out[_short(error.message)] += 1
            continue
        found.setdefault(source, []).append(
            (math.log(steps.tpot_s or math.nan), math.log(steps.ttft_s), math.log(case.tpot_s), math.log(case.ttft_s))
        )
    print(f"published: {sum(map(len, found.values()))} of {len(read.rows) + len(read.left_out)} rows")
    for source, values in sorted(found.items(), key=lambda item: -len(item[1])):
        at = np.array(values)
        print(
            f"  {source[:60]:60} {len(at):4}   TPOT {figures(at[:, 0], at[:, 2])}    TTFT {figures(at[:, 1], at[:, 3])}"
        )
    print("  left out, by reason")
    for reason, count in left_out.most_common():
        print(f"    {count:4}  {reason}")


def _short(reason: str) -> str:
    return re.sub(r"[0-9][0-9,.]*", "N", reason)[:110]


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--left-out", action="store_true", help="disaggregated rows by constants fitted without them")
    began, options = time.monotonic(), asked.parse_args()
    print("(median, p90, bias, %)")
    if options.left_out:
        print_left_out()
    else:
        print_disaggregated()
        print_published()
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
