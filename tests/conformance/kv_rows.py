"""Rows of the shared KV-capacity logs against our ledger: what is checked of each row, or why nothing can be.

The logs are read in place; nothing of them is copied here but the key of a row (its source and place among the rows of
that source). A `Setup` says which model and settings of ours describe it.
"""

import csv
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.cluster.read import load as load_cluster
from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.units import GiB
from linkwise.engine.base import Options
from linkwise.engine.registry import get
from linkwise.model.read import load as load_model
from linkwise.plan.ledger import ledger, ledger_figures
from linkwise.plan.types import Ledger
from linkwise.workload.types import Workload

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "memory" / "kv_capacity.csv"
ABSENT = "the shared reference data is not beside the repository"


class Setup(NamedTuple):
    """What of ours a row is.

    model: catalogue name; None = the row cannot be computed, `why` says so. device: preset of one device; None = what
    the ledger needs about the device or the engine's settings is not stated, so only the arithmetic is checked.
    whole: the row's figure is of the whole model, not of one stage. options: what the row's text says beyond columns.
    """

    model: str | None
    device: str | None = None
    engine: str = "vllm"
    version: str | None = None
    options: Options = Options()
    whole: bool = False
    counted: bool = True
    why: str = ""


def _unknown(why: str) -> Setup:
    return Setup(None, why=why)


_HYBRID = _unknown("hybrid stack: its logged tokens are not a capacity and are never divided")
_NO_MODEL = _unknown("the row names no model")
_ENGINE = "not an engine of ours: arithmetic only"
_NO_DEVICE = "device or utilisation not stated: arithmetic only"
_V0, _V1 = "0.6.4", "0.11.0"
_LLM_D = "llm-d-incubation/llm-d-planner docs/empirical-vllm-memory-results.md"
_MARLIN = (
    "the ledger pads MXFP4 experts as the Marlin kernel does; this log's weights are 1.5 GiB smaller (Triton kernel)"
)

SETUPS: dict[str, tuple[Setup, ...]] = {
    "vllm-project/vllm#10517": (
        Setup("llama-3.1-8b", "rtx-3090", version=_V0),
        Setup("llama-3.1-8b", "rtx-3090", version=_V0),
        Setup("llama-3.1-8b", "rtx-3090", version=_V0, why="its KV figure is cut off"),
    ),
    "vllm-project/vllm PR#10511": (
        Setup("llama-3-8b", "h100-sxm", version=_V0, why="logs 1.79 GiB beside torch, the facts say 0.35 for V0"),
        Setup("llama-3-8b", "h100-sxm", version=_V0, why="its KV figure is cut off"),
    ),
    "vllm-project/vllm#13061": (
        # V0 with chunked prefill: 0.19 GiB of activations on the rank quoted are 2,048 tokens.
        Setup(
            "deepseek-r1-distill-qwen-14b", "rtx-4090", version=_V0, options=Options(max_batched_tokens=2048),
            why="the memory quoted is of the rank that does not sample; blocks are the minimum over ranks",
        ),
    ),
    "vllm-project/vllm PR#2031": (
        Setup("llama-2-7b", "a100-80gb-sxm", version="0.2.4"),
        Setup("llama-2-7b", "a100-80gb-sxm", version="0.2.4"),
        Setup("llama-2-70b", "a100-80gb-sxm", version="0.2.4", why="before the fix, which counts memory outside torch"),
        Setup(
            "llama-2-70b", "a100-80gb-sxm", version="0.2.4",
            why="the PR then counted 13 GiB of memory outside torch at tp 4 that no later version logs",
        ),
    ),
    "vllm-project/vllm PR#14447": (_NO_MODEL,),
    "vllm-project/vllm#27508": (
        Setup(
            "gpt-oss-120b", "h100-sxm", version=_V1, options=Options(max_batched_tokens=1024),
            why="0.15 GiB of a 75.2 GiB budget: a small rest of large terms",
        ),
    ),
    "vllm-project/vllm#23278": (Setup("gpt-oss-120b", "h100-sxm", version=_V1),),
    "vllm-project/vllm#49878": (_unknown("which Gemma 4 is not stated"),),
    "vllm-project/vllm#28228": (_unknown("hybrid stack of an AWQ checkpoint whose bytes are not known"),),
    "vllm-project/vllm#5248": (Setup("deepseek-coder-6.7b", why=_NO_DEVICE),),
    "vllm-project/vllm#34076": (
        Setup("qwen3-coder-30b-a3b-fp8", whole=True, why="two different GPUs, stages of 16 and 32 layers: arithmetic"),
    ),
    "vllm-project/vllm#32105": (_NO_MODEL,),
    "vllm-project/vllm#16118": (_NO_MODEL,),
    "OpenRLHF/OpenRLHF#336": (_unknown("device, tp and utilisation not stated"),),
    "vllm-project/vllm#51454 (also recipes#762)": (_HYBRID, _HYBRID),
    "vllm-project/vllm#51041": (_HYBRID,),
    "vllm-project/vllm#44376": (_HYBRID,),
    "vllm-project/vllm#17327 / #17469": (Setup("qwen3-30b-a3b", why=_NO_DEVICE),),
    "vllm-project/vllm#49011": (_HYBRID,),
    "vllm-project/vllm#15815": (
        Setup(
            "qwen2.5-32b", "l40s", version="0.7.3",
            why="its 1.26 GiB of activations are the forward peak (we say 1.25); sampling 256 requests would take 1.5,"
            " so it allowed fewer, which is not stated",
        ),
    ),
    "vllm docs distributed_serving": (_NO_MODEL,),
    "vllm-project/vllm#33263": (Setup("qwen3-1.7b", why=_NO_DEVICE),),
    "vllm-project/vllm#16011": (_NO_MODEL, _NO_MODEL),
    "vllm-project/vllm#25350": (_NO_MODEL, _NO_MODEL),
    "vllm-project/vllm#6623": (_unknown("device not stated"), _unknown("device not stated")),
    "vllm-project/vllm#6746": (_unknown("no KV figure, and which layers that FP8 checkpoint quantises is not stated"),),
    "vllm-project/vllm PR#4650": (_unknown("device, tp and utilisation not stated; MLA was not yet used for KV"),),
    "vllm-project/vllm#53961": (_HYBRID,),
    "huggingface/transformers PR#48566": (_unknown("neither device nor memory stated"),) * 2,
    "deepseek-ai/DeepSeek-V3#205": (
        Setup("deepseek-v3", "rtx-4090", version=_V0, why="its quantisation is not stated: taken as the FP8 one"),
    ),
    "deepseek-ai/DeepSeek-V2#83": (_unknown("device, tp and utilisation not stated"),),
    "HabanaAI/vllm-fork#809": (_unknown("another engine on Gaudi, no KV figure"),),
    "vllm-project/vllm-ascend#14678": (_HYBRID,),
    "pegainfer#422": (Setup("qwen3-4b", why=_ENGINE),),
    "sgl-project/sglang PR#28620": (_HYBRID,) * 3,
    "vllm-project/recipes PR#273": (Setup("minimax-m2", why=_NO_DEVICE),),
    "vllm-project/recipes Kimi-K2-Think.md": (
        Setup("kimi-k2-thinking", why=_NO_DEVICE),
        Setup("kimi-k2-thinking", why=_NO_DEVICE),
    ),
    "vllm-project/recipes PR#810": (_HYBRID, _HYBRID),
    "noonghunna/club-3090#612": (_HYBRID,),
    "noonghunna/club-3090#46": (_HYBRID,),
    "noonghunna/club-3090#642": (_HYBRID,),
    "noonghunna/club-3090#294": (_HYBRID,),
    "noonghunna/club-3090 PR#96": (_HYBRID,),
    "noonghunna/club-3090#1047": (_HYBRID,),
    "noonghunna/club-3090 (repo, cliff1-attack)": (_HYBRID,),
    "eugr/spark-vllm-docker#396": (
        Setup("minimax-m2.7", why="AWQ weights on a unified-memory device: arithmetic only"),
        Setup("minimax-m2.7", why="its two figures differ by 0.26 GiB: arithmetic only"),
    ),
    "FreeToken PR#354": (_HYBRID,),
    "qwen38-27b-rtx3090 PR#96": (_HYBRID,) * 3,
    "qwen38-27b-rtx3090 PR#81": (_HYBRID,),
    "NVIDIA/TensorRT-LLM#224": (
        Setup(
            "llama-2-7b", "a10", engine="trtllm", version="0.5", counted=False,
            why="not counted: the built engine's batch and token limits, which set its workspace, are not stated",
        ),
    ),
    "NVIDIA/TensorRT-LLM#2268": (
        Setup(
            "qwen1.5-7b", "a100-40gb-sxm", engine="trtllm", version="0.12", counted=False,
            why="not counted: the built engine's batch and token limits, which set its workspace, are not stated",
        ),
    ),
    _LLM_D: (
        Setup("gpt-oss-20b", "h100-sxm", version=_V1, why=_MARLIN),
        Setup("gpt-oss-120b", "h100-sxm", version=_V1, why=_MARLIN),
        Setup("llama-3.3-70b-fp8", "h100-sxm", version=_V1),
        Setup("llama-3.1-8b", "h100-sxm", version=_V1),
        Setup("qwen3-0.6b", "h100-sxm", version=_V1),
        Setup("qwen3-32b", "h100-sxm", version=_V1),
        Setup("qwen3-32b", "h100-sxm", version=_V1),
        Setup("mistral-small-3.2-24b", "h100-sxm", version=_V1, why="logs 2.12 GiB where sampling 1,024 takes 4.9"),
        Setup("llama-3.3-70b-fp8", "h100-sxm", version=_V1),
        Setup("deepseek-r1", "h100-sxm", version=_V1),
        Setup("qwen3-32b", "h100-sxm", version=_V1),
    ),
    "find_string id 67213347492 (repository not shown)": (_HYBRID,),
    "find_string id 57609708121 (repository not shown)": (_HYBRID,),
    "find_string id 71610267027 (repository not shown)": (_NO_MODEL,),
    "sgl-project/sglang PR#36583": (_NO_MODEL, _NO_MODEL),
    "ggml-org/llama.cpp PR#11446": (Setup("deepseek-v3", why=_ENGINE),),
    "LMCache/LMCache#1241": (Setup("qwen2.5-32b", why=_NO_DEVICE), Setup("qwen3-30b-a3b-fp8", why=_NO_DEVICE)),
    "tonyd2wild/DeepSeek-v4-Flash-Vision-Exp...#57": (_HYBRID, _HYBRID),
    "vllm-project/vllm#51041 (comment 2026-08-11)": (_HYBRID,),
}  # fmt: skip


class Outcome(NamedTuple):
    """One row, checked. Errors are relative (ours / logged - 1); None = that check does not apply.

    bytes_ours, bytes_stated: bytes per token and GPU by our arithmetic and by the row's own. tokens_error: KV tokens
    from the logged memory. memory_error: KV memory predicted from device, utilisation, weights, workspace and runtime.
    refused: what we say is short, "" when it fits; None when the row gives no device. fails: what the row says.
    """

    label: str
    bytes_ours: int | None
    bytes_stated: int | None
    exact: bool
    tokens_error: float | None
    memory_ours: float | None
    memory_logged: float | None
    counted: bool
    refused: str | None
    fails: str
    note: str

    @property
    def memory_error(self) -> float | None:
        if self.memory_ours is None or not self.memory_logged or self.memory_logged < 0:
            return None
        return self.memory_ours / self.memory_logged - 1


def rows() -> list[tuple[dict[str, str], Setup]]:
    """Every row of the logs with its setup. Raises KeyError or IndexError for a row nobody looked at."""
    seen: Counter[str] = Counter()
    found = []
    with LOGS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            source = row["source"]
            found.append((row, SETUPS[source][seen[source]]))
            seen[source] += 1
    return found


def outcomes() -> list[Outcome]:
    """Every row, checked as far as it goes."""
    return [_outcome(row, setup) for row, setup in rows()]


def _number(row: dict[str, str], field: str) -> float | None:
    text = row[field].split(" ")[0]
    return float(text) if text else None


def _layout(row: dict[str, str]) -> Layout:
    tp, pp, dcp = (int(row[name] or 1) for name in ("tp", "pp", "dcp"))
    return Layout(tp=tp, pp=pp, dcp=dcp)


def _options(row: dict[str, str], setup: Setup) -> Options:
    length = int(row["max_model_len"]) if row["max_model_len"].isdigit() else None
    kv = {"fp16": "float16", "bf16": "bfloat16", "f16": "float16"}.get(row["kv_dtype"], row["kv_dtype"] or None)
    block = int(row["block_size"]) if row["block_size"].isdigit() else None
    share = _number(row, "gpu_mem_util")
    return replace(setup.options, max_model_len=length, kv_dtype=kv, block_tokens=block, memory_utilization=share)


def _cluster(row: dict[str, str], setup: Setup, layout: Layout) -> Cluster:
    per_node = min(8, layout.size)
    nodes = layout.size // per_node
    shape = f"{nodes}x{per_node}x{setup.device}" if nodes > 1 else f"{per_node}x{setup.device}"
    cluster = load_cluster(shape)
    stated = _number(row, "gpu_mem_gib")
    if stated is None:
        return cluster
    return replace(cluster, accelerator=replace(cluster.accelerator, memory_bytes=round(stated * GiB)))


def figures(row: dict[str, str], setup: Setup) -> tuple[dict[str, float], Ledger]:
    """Our figures and ledger for a row; without a stated device, on any large one, for the bytes per token alone."""
    assert setup.model is not None
    layout = Layout() if setup.whole else _layout(row)
    known = setup if setup.device else setup._replace(device="h200-sxm")
    cluster = _cluster(row if setup.device else {**row, "gpu_mem_gib": ""}, known, layout)
    question = (
        load_model(setup.model), cluster, get(setup.engine, setup.version), layout, _options(row, setup),
        # An engine decides about its longest request alone: the workload must not add a demand of its own.
        Workload(isl_tokens=64, osl_tokens=64),
    )  # fmt: skip
    return ledger_figures(*question), ledger(*question)


def _outcome(row: dict[str, str], setup: Setup) -> Outcome:
    label = f"{row['source']} · {row['model'] or 'no model'}"
    stated = row["arch_bytes_per_token_per_gpu"]
    exact, fails = row["arith_check"] == "exact", row["outcome"] if row["outcome"].startswith("fail") else ""
    bytes_stated = int(stated) if stated.isdigit() else None
    logged, tokens = _number(row, "kv_avail_gib_per_gpu"), _number(row, "kv_tokens")
    if setup.model is None:
        return Outcome(label, None, bytes_stated, exact, None, None, logged, False, None, fails, setup.why)
    found, memory = figures(row, setup)
    layout = Layout() if setup.whole else _layout(row)
    each = found.get("bytes_per_token.rank0")
    ours = None if each is None else int(each) // layout.dcp
    error = None
    if ours and logged and tokens and logged > 0 and "hybrid" not in row["kind"]:
        block = _options(row, setup).block_tokens or memory_block(setup)
        error = int(logged * GiB) // (ours * block) * block / tokens - 1
    predicted = None
    # What the engine had for KV: as logged, else the tokens it made of it.
    had = tokens * ours / GiB if tokens and ours and (logged is None or "x1.164" in row["arith_check"]) else logged
    if setup.device and had is not None:
        predicted = min(float(v) for k, v in found.items() if k.startswith("kv.rank")) / GiB
    refused = None if setup.device is None else memory.shortfall.resource if memory.shortfall else ""
    return Outcome(label, ours, bytes_stated, exact, error, predicted, had, setup.counted, refused, fails, setup.why)


def memory_block(setup: Setup) -> int:
    """The engine's own block size, where a row states none."""
    return get(setup.engine, setup.version).defaults.block_tokens


def medians(found: list[Outcome]) -> tuple[float, float]:
    """Median absolute errors: KV tokens from logged memory, and KV memory end to end over the counted rows."""
    tokens = [abs(o.tokens_error) for o in found if o.tokens_error is not None]
    memory = [abs(o.memory_error) for o in found if o.memory_error is not None and o.counted]
    return median(tokens), median(memory)
