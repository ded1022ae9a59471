"""Serving points of other kinds: disaggregated pools, and results published elsewhere, with the shipped constants.

    python benchmarks/serving_other.py

Disaggregated rows (benchmarks/serving_split.py): a closed loop of the row's users over two pools, as the public recipes
started them. Published rows: those that state model, GPU, layout, lengths and load are simulated; all others are
counted by what they lack.
"""

import collections
import math
import re

import msgspec
import numpy as np

import serving_rows
import serving_split
from linkwise.core.errors import InputError
from linkwise.simulate.calibrate import split
from linkwise.simulate.calibrate.rows import Given, case_of
from linkwise.simulate.calibrate.steps import rules_of, run_of
from linkwise.workload import results
from serving_accuracy import figures

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


if __name__ == "__main__":
    print("(median, p90, bias, %)")
    print_disaggregated()
    print_published()
