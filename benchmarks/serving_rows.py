"""Published serving points as runs the simulator makes: what their columns say, and what of their settings is known.

The collection is read in place and says little of how the engines were set. What is taken, and why:

- lengths: uniform in 0.8 to 1.0 of nominal. Exact ones only in undated rows that say so: dated rows that say so behave
  as the others do (their TTFT is that of users who do not run in lockstep).
- how the engines were started: benchmarks/serving_settings.py.
- drafted tokens are kept with a chance of 0.6 after those before them.
- weights: as the published checkpoint of that precision stores them.
"""

import csv
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from linkwise.cluster import presets
from linkwise.cluster.types import Cluster
from linkwise.core.files import read_json_object
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model import read
from linkwise.model.types import Model
from linkwise.simulate.calibrate.case import PER_USER, Case, serving
from serving_settings import started

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
# Files of models whose row names another one, or whose NVFP4 checkpoint is a file of its own.
_CONFIGS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama--Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen--Qwen3-32B",
}
_NVFP4 = {
    "deepseek-ai/DeepSeek-R1": "nvidia--DeepSeek-V3.1-NVFP4", "deepseek-ai/DeepSeek-V3": "nvidia--DeepSeek-V3.1-NVFP4",
    "MiniMaxAI/MiniMax-M2.5": "nvidia--MiniMax-M2.5-NVFP4",
    "Qwen/Qwen3.5-397B-A17B": "nvidia--Qwen3.5-397B-A17B-NVFP4",
}  # fmt: skip
_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
# Versions of rows that state none (all of 2025) or a word: the first the collection has of that engine.
_OLDEST = {"vllm": "0.11", "sglang": "0.5.1", "trtllm": "1.0"}
_WORDS = {"gpt-oss-dev": "1.1", "nightly": "0.5.9"}
MTP_ACCEPTANCE = 0.6


def rows(name: str = "silicon.csv") -> list[dict[str, str]]:
    """Rows of a file of the collection."""
    with (DATA / "serving" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def model(name: str, quant: str) -> Model:
    """A model stored in a precision: its own checkpoint, a published one of that precision, or a what-if."""
    stem = _CONFIGS.get(name, name.replace("/", "--"))
    config = read_json_object(DATA / "models" / f"{stem}_config.json")
    own = read.from_config(config, name=name, source=stem)
    if quant == "none" or "mxfp4" in own.quantization or (quant == "fp8" and own.quantization.startswith("fp8")):
        return own
    if quant == "fp8_block":
        return read.from_config({**config, "quantization_config": _BLOCKS}, name=name, source=stem)
    if quant == "nvfp4" and name in _NVFP4:
        scheme = read_json_object(DATA / "models" / f"{_NVFP4[name]}_hf_quant_config.json")
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        return read.from_config(plain, scheme, name=name, source=stem)
    return read.from_config(config, name=name, source=stem, weight_dtype=quant)


@functools.cache
def cluster(gpu: str, number: int) -> Cluster:
    """So many devices in one island."""
    return presets.shorthand(f"{number}x{gpu.replace('_', '-')}")


def quant_of(row: Mapping[str, str]) -> str:
    gemm, moe = row["gemm_quant"], row["moe_quant"]
    return "fp8_block" if "fp8_block" in (gemm, moe) else gemm or "none"


def version_of(row: Mapping[str, str]) -> str:
    stated = row["engine_version"]
    found = next((version for word, version in _WORDS.items() if stated.startswith(word)), stated)
    return found or _OLDEST[row["engine"]]


def case_of(row: Mapping[str, str]) -> Case:
    """A row of silicon.csv."""
    name, users = row["engine"], int(float(row["concurrency"]))
    isl, osl = int(row["isl"]), int(row["osl"])
    what, devices = model(row["model"], quant_of(row)), cluster(row["gpu"], int(row["gpus"]))
    layout = Layout(tp=int(row["tp"]), dp_attn=int(row["dp_attn"]), ep=int(row["ep"]))
    told = started(row)
    options = Options(
        max_batched_tokens=told.budget, max_seqs=told.seqs or max(1024, users), kv_dtype=told.kv,
        memory_utilization=told.memory, mtp_tokens=told.drafts if what.mtp_layers else 0,
        mtp_acceptance=MTP_ACCEPTANCE,
    )  # fmt: skip
    engine = registry.get(name, version_of(row))
    exact = row["fixed_lengths"] == "1" and not row["measured"]
    return Case(
        serving(what, devices, engine, layout, options, isl, osl), isl, osl, "fixed" if exact else "uniform", users,
        0.0, PER_USER * users, float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3, family(row["model"]),
        row["id"], told.rules,
    )  # fmt: skip


def family(name: str) -> str:
    """What a model is left out with: those of one architecture."""
    short = name.rsplit("/", maxsplit=1)[-1]
    return {"DeepSeek-V3": "DeepSeek-R1", "Qwen3-32B-NVFP4": "Qwen3-32B"}.get(short, short)


def cases(only: str = "") -> Iterator[tuple[dict[str, str], Case]]:
    """Every row with its run. only: of one engine."""
    for row in rows():
        if not only or row["engine"] == only:
            yield row, case_of(row)
