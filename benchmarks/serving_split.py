"""Published points of disaggregated pools as runs the simulator makes: silicon_disagg.csv, read in place.

Groups and settings are those of benchmarks/serving_recipes.py; weights are stored as in benchmarks/serving_rows.py. KV
goes over the NICs of a prefill group at 0.9 of their rate, over NVLink on racks of trays.
"""

from collections.abc import Mapping

import serving_rows
from linkwise.cluster.types import Cluster
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.plan.inventory import bytes_per_token, inventory, stages
from linkwise.plan.step import kv_dtype_of
from linkwise.simulate.calibrate.case import PER_USER, Case, Split, serving
from linkwise.simulate.rules import Transfer
from linkwise.simulate.served import Served
from serving_recipes import Side, side, version
from serving_settings import FP8

FILE = "silicon_disagg.csv"
# SGLang's sides find each other and take room before a prompt starts, and look for that every few steps: what lightly
# loaded rows miss in the middle (0.08 to 0.12 s with one GPU's rows left out in turn). TensorRT-LLM's miss nothing.
HANDSHAKE_S = {"sglang": 0.1, "trtllm": 0.0}


def case_of(row: Mapping[str, str]) -> Case:
    """A row as a run of two pools."""
    prefill, decode = side(row, "prefill"), side(row, "decode")
    prompts, drawn = _served(row, prefill), _served(row, decode)
    replicas = prefill.workers, decode.workers
    split = Split(
        prompts, _rules(prefill), replicas, _transfer(prompts), "round-robin", HANDSHAKE_S[prompts.engine.name]
    )
    users = int(float(row["concurrency"]))
    return Case(
        drawn, int(row["isl"]), int(row["osl"]), "uniform", users, 0.0, PER_USER * users,
        float(row["silicon_ttft_ms"]) / 1e3, float(row["silicon_tpot_ms"]) / 1e3,
        serving_rows.family(row["model_path"]), row["id"], _rules(decode), split,
    )  # fmt: skip


def _served(row: Mapping[str, str], one: Side) -> Served:
    """One side's serving group."""
    quant = serving_rows.quant_of({"gemm_quant": row["gemm_quant_mode"], "moe_quant": row["moe_quant_mode"]})
    what, size = serving_rows.model(row["model_path"], quant), one.layout.size
    options = Options(
        max_batched_tokens=one.budget, max_seqs=one.seqs or max(1024, int(float(row["concurrency"]))),
        moe_exchange=one.exchange, kv_dtype=FP8,
    )  # fmt: skip
    devices = serving_rows.cluster(row["system"], size) if size <= 8 else _racks(row["system"], size)
    engine = registry.get(row["backend"], version(row))
    return serving(what, devices, engine, one.layout, options, int(row["isl"]), int(row["osl"]))


def _rules(one: Side) -> dict[str, bool]:
    return {} if one.overlap else {"ahead": False}


def _racks(gpu: str, size: int) -> Cluster:
    each = 4 if gpu.startswith("gb") else 8
    return serving_rows.presets.shorthand(f"{size // each}x{each}x{gpu.replace('_', '-')}")


def _transfer(what: Served) -> Transfer:
    stock = inventory(what.model)
    (stage,) = stages(what.model, what.layout, what.engine)
    each = bytes_per_token(stock, stage, what.layout, kv_dtype_of(what.model, what.options)) or 0
    device = what.cluster.accelerator
    rate = device.scaleup_Bps if device.name.startswith("gb") else what.cluster.nic_Bps or 50e9
    return Transfer(base_s=1e-3, token_s=each / (0.9 * rate))
