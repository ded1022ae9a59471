"""Serving points of other kinds: disaggregated pools, and results published elsewhere, with the shipped constants.

    python benchmarks/serving_other.py

Disaggregated rows: prompts and answers on groups of their own, as many as the row says, each with its own layout; a
closed loop of the row's users. KV goes over the NICs of a prefill group at 0.9 of their rate (over NVLink on racks of
trays). Cached tokens are FP8, as in the published recipes, and decode ranks of TensorRT-LLM have their seats. What the
rows do not say (drafted tokens, batching delays, the router) is not modelled. Published rows: those that state model,
GPU, layout, lengths and load are simulated; all others are counted by what they lack.
"""

import collections
import math
import re
from collections.abc import Mapping

import msgspec
import numpy as np

import serving_rows
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.plan.inventory import bytes_per_token, inventory, stages
from linkwise.plan.step import kv_dtype_of
from linkwise.simulate.calibrate.case import PER_USER, serving
from linkwise.simulate.calibrate.rows import Given, case_of
from linkwise.simulate.calibrate.steps import rules_of, run_of
from linkwise.simulate.of_plan import rules_for, tables_for
from linkwise.simulate.rules import Pool, Run, Transfer
from linkwise.simulate.run import simulate
from linkwise.simulate.served import Served
from linkwise.workload import results
from linkwise.workload.lengths import Lengths, tokens
from linkwise.workload.requests import requests
from serving_accuracy import figures
from serving_settings import FP8

_VERSIONS = {"sglang": "0.5.8", "trtllm": "1.2"}  # the rows count Dynamo's releases, not the engine's
# Words for engines in published tables. Splitwise's table names none; its paper measured vLLM of early 2024.
_ENGINES = {"nim (trt-llm)": "trtllm==1.0", "(not in csv)": "vllm==0.11", "(not in excerpt)": ""}
MOST = 20_000


def group(row: Mapping[str, str], side: str) -> tuple[Served, int]:
    """One side's serving group, and how many there are."""
    tp, dp, ep = (int(float(row[f"{side}_{x}_size"])) for x in ("tp", "attention_dp", "moe_ep"))
    # Beyond one machine experts are whole on their ranks, whatever the column says.
    layout = Layout(tp=tp, dp_attn=dp, ep=tp * dp if dp > 8 else min(ep, tp * dp))
    quant = serving_rows.quant_of({"gemm_quant": row["gemm_quant_mode"], "moe_quant": row["moe_quant_mode"]})
    what = serving_rows.model(row["model_path"], quant)
    size = layout.size
    devices = serving_rows.cluster(row["system"], size) if size <= 8 else _racks(row["system"], size)
    isl, osl = int(row["isl"]), int(row["osl"])
    users = int(float(row["concurrency"]))
    tokens_of = max(8192, isl + 64)
    engine = registry.get(row["backend"], _VERSIONS[row["backend"]])
    # Beyond one machine of eight, both engines exchange tokens directly (DeepEP, TensorRT-LLM's over NVLink racks).
    exchange = "all_to_all" if layout.ep > 8 else None
    options = Options(
        max_batched_tokens=tokens_of, max_seqs=_seats(row, side) or max(1024, users), moe_exchange=exchange,
        kv_dtype=FP8,
    )  # fmt: skip
    return serving(what, devices, engine, layout, options, isl, osl), int(float(row[f"{side}_num_workers"]))


def _seats(row: Mapping[str, str], side: str) -> int:
    """Most requests of a decode rank, where a recipe says so: TensorRT-LLM's are started for a power of two, which the
    name of a recipe states beside the users (batch8 and 36 users of 4 workers); the rest of the users wait for a seat.
    """
    if row["backend"] != "trtllm" or side != "decode":
        return 0
    workers, lanes = (int(float(row[f"decode_{x}"])) for x in ("num_workers", "attention_dp_size"))
    return 1 << max(0, int(float(row["concurrency"])) // (workers * lanes)).bit_length() - 1


def _racks(gpu: str, size: int) -> Cluster:
    each = 4 if gpu.startswith("gb") else 8
    return serving_rows.presets.shorthand(f"{size // each}x{each}x{gpu.replace('_', '-')}")


def disaggregated(row: Mapping[str, str]) -> tuple[float, float]:
    """log of simulated mean TPOT and TTFT."""
    isl, osl, users = int(row["isl"]), int(row["osl"]), int(float(row["concurrency"]))
    number = min(PER_USER * users, max(MOST, 2 * users))
    columns = (tokens(Lengths(mean=mean, kind="uniform"), number, 0, stream) for mean, stream in ((isl, 1), (osl, 2)))
    load = requests(np.zeros(number), *columns)
    pools = []
    for side in ("prefill", "decode"):
        what, workers = group(row, side)
        rules, _ = rules_for(what)
        hold = 50 if row["backend"] == "trtllm" and what.layout.dp_attn > 1 and side == "prefill" else 0
        rules = msgspec.structs.replace(rules, prefix_cache=False, hold=hold)
        if side == "decode":
            rules = msgspec.structs.replace(rules, front_s=0.0, front_each_s=0.0, front_prompt_s=0.0)
        pools.append(Pool(rules, tables_for(what, rules, load, coarse=True), workers, side))
    what, _ = group(row, "prefill")
    found = simulate(pools, load, Run(users=users, transfer=_transfer(what))).summary
    if found.tpot is None or found.ttft is None:
        return math.nan, math.nan
    return math.log(found.tpot.mean), math.log(found.ttft.mean)


def _transfer(what: Served) -> Transfer:
    stock = inventory(what.model)
    (stage,) = stages(what.model, what.layout, what.engine)
    each = bytes_per_token(stock, stage, what.layout, kv_dtype_of(what.model, what.options)) or 0
    device = what.cluster.accelerator
    rate = device.scaleup_Bps if device.name.startswith("gb") else what.cluster.nic_Bps or 50e9
    return Transfer(base_s=1e-3, token_s=each / (0.9 * rate))


def print_disaggregated() -> None:
    rows = serving_rows.rows("silicon_disagg.csv")
    truth, found, keys, left_out = [], [], [], collections.Counter[str]()
    for row in rows:
        try:
            tpot, ttft = disaggregated(row)
        except InputError as error:
            left_out[re.sub(r"[0-9,.]+", "N", error.message)[:80]] += 1
            continue
        found.append((tpot, ttft))
        truth.append((math.log(float(row["silicon_tpot_ms"]) / 1e3), math.log(float(row["silicon_ttft_ms"]) / 1e3)))
        keys.append((row["backend"], row["system"], row["gemm_quant_mode"]))
    said, seen = np.array(found), np.array(truth)
    print(f"disaggregated: {len(found)} of {len(rows)} rows{'' if not left_out else f'; left out {dict(left_out)}'}")
    for key in [("all",), *sorted(set(keys))]:
        mine = np.array([key in {("all",), one} for one in keys])
        print(f"  {' '.join(key):36} {mine.sum():4}   TPOT {figures(said[mine, 0], seen[mine, 0])}"
              f"    TTFT {figures(said[mine, 1], seen[mine, 1])}", flush=True)  # fmt: skip


def print_published() -> None:
    read = results.read(serving_rows.DATA / "serving" / "published.csv")
    left_out = collections.Counter(_short(one.reason) for one in read.left_out)
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in read.rows:
        source = re.sub(r".*\((.*)\)$", r"\1", row.source)
        engine = _ENGINES.get(row.engine or "", row.engine or "")
        changed = msgspec.structs.replace(row, engine=engine)
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
