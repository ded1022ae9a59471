"""How the engines of disaggregated rows were started, as far as the harness's published recipes say it.

The rows are of InferenceX (before: InferenceMAX) by SemiAnalysis. Its nvidia-master.yaml names a recipe for each row;
the recipes are public (recipes/** of srt-slurm, by NVIDIA and ishandhanani; before 2026 scripts of dynamo), read
2026-11-30 in versions near the rows' dates. A setting is chosen by what a row states beside its times: engine, version,
GPU, precision, groups, lengths and users.

- Load: requests of all users at once, ten for each, after two for each as a warm-up; lengths uniform in 0.8 to 1.0 of
  nominal (sa-bench). Some of SGLang's recipes send 300 or 700 requests/s at first, which is not modelled.
- Router: Dynamo's frontend was started without a mode, so requests go round the workers in turn.
- Cached tokens are FP8, and nothing is shared between prompts.
- TensorRT-LLM. Prefill: steps are not put together ahead (disable_overlap_scheduler), prompts are not balanced over
  attention ranks, and a step takes two prompts of 8k or sixteen of 1k, but for what `_prefill_budget` says. Decode:
  max_batch_size is the power of two (or 192, 768) below users over attention ranks, of the most users a recipe is
  run for; on Hopper, before 2026 and on B200 in FP8 it holds all users.
- SGLang. Prefill: 16,384 tokens a step and rank, 8,192 where the script cuts prompts shorter; no limit on what decodes.
- Columns that say otherwise than the recipe did: before 2026 those of SGLang's attention are of no effect (the harness
  says so): groups of four decode in tensor parallel, and so do prompts of 8k in FP4. On H200 TensorRT-LLM's prompts
  of 8k ran in tensor parallel.
"""

from collections.abc import Mapping
from typing import NamedTuple

from linkwise.core.layout import Layout

# What Dynamo's releases hold of TensorRT-LLM (its support matrix; of the release candidate of 0.5.1 taken from 0.6).
_TRTLLM = {
    "0.5.1-rc0.pre3": "1.1.0rc5", "0.8.1.post1": "1.2.0rc6.post1", "0.8.1.post2": "1.2.0rc6.post2",
    "0.8.1.post3": "1.2.0rc6.post3",
}  # fmt: skip


class Side(NamedTuple):
    """One side's group and how it batches. seqs: most requests of an attention rank; None = no limit of its own.
    overlap: a step is put together while the one before it runs. exchange: of tokens between experts' ranks."""

    layout: Layout
    workers: int
    budget: int
    seqs: int | None
    overlap: bool
    exchange: str | None


# Most users of TensorRT-LLM recipes in FP4 that are run for several: by GPU, prompt, and ranks that decode one request.
_MOST_USERS = {
    ("b200_sxm", 1024, 5, 8): 180, ("b200_sxm", 8192, 5, 8): 100, ("gb200", 1024, 4, 8): 192, ("gb200", 8192, 4, 8): 76,
    ("gb300", 1024, 4, 8): 192, ("gb300", 8192, 5, 4): 30,
}  # fmt: skip


def side(row: Mapping[str, str], name: str) -> Side:
    """The prefill or decode side of a row of silicon_disagg.csv."""
    tp, dp, ep, workers = (
        int(float(row[f"{name}_{x}"])) for x in ("tp_size", "attention_dp_size", "moe_ep_size", "num_workers")
    )
    size, isl = tp * dp, int(row["isl"])
    if _in_tensor_parallel(row, name, size):
        tp, dp = size, 1
    # Beyond one machine experts are whole on their ranks, whatever the column says.
    layout = Layout(tp=tp, dp_attn=dp, ep=size if dp > 8 else min(ep, size))
    if name == "decode":
        seqs = _seats(row, workers, dp, size)
        return Side(layout, workers, max(8192, isl + 64), seqs, overlap=True, exchange=_exchange(row, layout))
    budget, overlap = _prefill_budget(row, dp), row["backend"] == "sglang"
    return Side(layout, workers, budget, None, overlap, _exchange(row, layout))


def version(row: Mapping[str, str]) -> str:
    """Of the engine: rows of TensorRT-LLM state that of Dynamo."""
    stated = row["backend_version"]
    return _TRTLLM.get(stated, stated) if row["backend"] == "trtllm" else stated


def old(row: Mapping[str, str]) -> bool:
    """Whether a row is of 2025, when scripts of Dynamo started the engines."""
    return row["measured"] < "2026"


def _in_tensor_parallel(row: Mapping[str, str], name: str, size: int) -> bool:
    isl = int(row["isl"])
    if row["backend"] == "trtllm":
        return name == "prefill" and row["system"] == "h200_sxm" and isl > 1024
    few = int(float(row["decode_tp_size"])) * int(float(row["decode_attention_dp_size"])) == 4
    return old(row) and size == 4 and (few or (isl > 1024 and row["precision"] == "fp4"))


def _prefill_budget(row: Mapping[str, str], dp: int) -> int:
    isl, gpu, fp8 = int(row["isl"]), row["system"], row["gemm_quant_mode"] == "fp8"
    if row["backend"] == "trtllm":
        one = old(row) or gpu == "h100_sxm" or (gpu == "b200_sxm" and fp8)
        if isl > 1024:
            return isl + 256 if one else 2 * isl + 256
        return 8448 if old(row) or gpu.startswith("h") else 10_240 if gpu == "b200_sxm" and not fp8 else 16_384
    if dp > 1:
        return 8192 if gpu == "b200_sxm" and not fp8 and row["prefill_num_workers"] == "1.0" else 16_384
    return 8192 if isl <= 1024 else 16_384


def _exchange(row: Mapping[str, str], layout: Layout) -> str | None:
    """Directly beyond eight ranks: TensorRT-LLM does from more ranks than a token has experts on, over NVLink of racks
    (select_alltoall_method_type), SGLang's recipes set DeepEP; theirs in FP8 on racks of trays also for fewer."""
    if layout.dp_attn == 1:
        return None
    few = row["backend"] == "sglang" and row["system"].startswith("gb") and row["gemm_quant_mode"] == "fp8"
    return "all_to_all" if few or layout.ep > 8 else None


def _seats(row: Mapping[str, str], workers: int, dp: int, size: int) -> int | None:
    gpu, fp8, users = row["system"], row["gemm_quant_mode"] == "fp8", int(float(row["concurrency"]))
    if row["backend"] != "trtllm" or old(row) or gpu == "h200_sxm":
        return None
    if gpu == "b200_sxm" and fp8:
        return -(-users // (workers * dp))
    if not fp8 and dp == 1:
        most = _MOST_USERS.get((gpu, int(row["isl"]), workers, size), 0) if int(row["osl"]) == 1024 else 0
        # One request a worker has a recipe of its own.
        users = max(most, users) if users >= 2 * workers else users
    here = max(1, users // (workers * dp))
    return max(x for x in (*(1 << k for k in range(13)), 192, 768) if x <= here)
