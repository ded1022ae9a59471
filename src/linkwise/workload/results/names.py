"""Other names of the fields of a Row, as results and tables of many projects have them."""

from typing import Any

from linkwise.workload.results.base import Entry, Unusable

MAX_DRAFTED = 64
BOTH_POOLS = "expected the degrees of both pools: a CSV with prefill_tp, decode_tp, prefill_workers, ..."
ENGINES = {
    "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "tensorrtllm": "trtllm", "trt-llm": "trtllm",
    "trt_llm": "trtllm",
}  # fmt: skip
# Our name first. A column or a field of either name means the same; case, spaces and hyphens do not count.
ALIASES: dict[str, tuple[str, ...]] = {
    "engine": ("engine", "framework", "inference_engine"),
    "version": ("version", "engine_version", "backend_version", "framework_version"),
    "model": ("model", "model_path", "model_id", "model_name"),
    "gpu": ("gpu", "system", "gpu_name", "gpu_type", "accelerator", "hardware"),
    "gpus": ("gpus", "n_gpus", "num_gpus", "gpu_count", "total_gpus"),
    "tp": ("tp", "tp_size", "tensor_parallel_size", "tensor_parallel"),
    "pp": ("pp", "pp_size", "pipeline_parallel_size", "pipeline_parallel"),
    "dp_attn": ("dp_attn", "attention_dp", "attention_dp_size", "dp_attention"),
    "ep": ("ep", "ep_size", "expert_parallel_size", "expert_parallel", "moe_ep_size"),
    "gemm_quant": ("gemm_quant", "gemm_quant_mode", "quantization", "precision"),
    "moe_quant": ("moe_quant", "moe_quant_mode"),
    "kv_dtype": ("kv_dtype", "kv_cache_dtype", "kv_cache_quant_mode"),
    "isl": ("isl", "input_tokens", "input_len", "input_length", "prompt_tokens"),
    "osl": ("osl", "output_tokens", "output_len", "output_length", "completion_tokens"),
    "fixed_lengths": ("fixed_lengths",),
    "prefix_hit": ("prefix_hit", "prefix_cache_hit_rate", "cache_hit_rate"),
    "speculative": ("speculative", "mtp", "mtp_suspected"),
    "accepted": ("accepted", "accept_length", "acceptance_length", "spec_decode_acceptance_length"),
    "drafted": ("drafted", "num_speculative_tokens", "speculative_num_steps"),
    "concurrency": ("concurrency", "max_concurrency", "users"),
    "rate_per_s": ("rate_per_s", "request_rate", "rate"),
    "requests": ("requests", "num_requests", "num_prompts", "completed"),
    "source": ("source", "id"),
}  # fmt: skip
# Of a pool, behind `prefill_` or `decode_`.
SIDES: dict[str, tuple[str, ...]] = {
    "workers": ("workers", "num_workers", "replicas"),
    "tp": ALIASES["tp"],
    "pp": ALIASES["pp"],
    "dp_attn": ALIASES["dp_attn"],
    "ep": ALIASES["ep"],
    "tokens": ("tokens", "max_num_tokens", "max_num_batched_tokens", "chunked_prefill_size"),
    "seqs": ("seqs", "max_batch_size", "max_num_seqs", "max_running_requests"),
}


def of_side(side: str, field: str) -> tuple[str, ...]:
    """The names of a pool's field: prefill_tp, prefill_tp_size, ..."""
    return tuple(f"{side}_{name}" for name in SIDES[field])


def engine(word: str | None) -> str | None:
    """Our word for an engine, or its own in lower case."""
    lower = (word or "").strip().lower()
    return ENGINES.get(lower, lower) or None


def word(text: str | None) -> str | None:
    """A quantisation or a type in lower case; "none" and "auto" say nothing."""
    lower = (text or "").strip().lower()
    return None if lower in {"", "none", "auto", "null"} else lower


def deployment(entry: Entry, *, tool: bool = False) -> dict[str, Any]:
    """Engine, hardware, degrees and types of an entry whose fields have one of the names above.

    tool: the entry's plain `version` is that of the tool or of its format, and says nothing of the engine.

    A degree of data parallelism that is not said to be of attention, or one of context parallelism, is refused above 1:
    what it does to a group is not known here. So is half of a pair of pools: figures of one server are of both then.
    """
    mode = entry.text("disaggregation_mode", "disagg_mode")
    if mode is not None and mode.lower() in {"prefill", "decode"}:
        raise Unusable(f"field disaggregation_mode: {mode!r}, {BOTH_POOLS}")
    if "kv_transfer_config" in entry.values or "kv_role" in entry.values:
        said = str(entry.values.get("kv_transfer_config")) + str(entry.values.get("kv_role"))
        role = next((one for one in ("kv_producer", "kv_consumer") if one in said), None)
        if role is not None:
            raise Unusable(f"field kv_role: {role!r}, {BOTH_POOLS}")
    for name in ("dp", "dp_size", "data_parallel_size", "cp", "cp_size", "context_parallel_size"):
        if (entry.degree(name) or 1) > 1:
            raise Unusable(f"field {name}: {entry.degree(name)}, expected 1, or dp_attn for attention replicas")
    found: dict[str, Any] = {name: entry.degree(*ALIASES[name]) for name in ("gpus", "tp", "pp", "dp_attn", "ep")}
    found |= {name: word(entry.text(*ALIASES[name])) for name in ("gemm_quant", "moe_quant", "kv_dtype")}
    versions = ALIASES["version"][1:] if tool else ALIASES["version"]
    found |= {"version": entry.text(*versions), "gpu": entry.text(*ALIASES["gpu"])}
    return found | {"engine": engine(entry.text(*ALIASES["engine"]))}


def drafting(entry: Entry) -> dict[str, Any]:
    """Whether an entry's run drafted tokens, what a step yielded and how many it drafted, as far as its fields say.

    accept_length is SGLang's, spec_decode_* vllm bench serve's (spec_decode_num_drafts counts steps that drafted).
    """
    accepted = entry.number(*ALIASES["accepted"], low=0.0, high=MAX_DRAFTED + 1)
    drafted = entry.number(*ALIASES["drafted"], low=0.0, high=MAX_DRAFTED)
    steps = entry.number("spec_decode_num_drafts")
    if steps:
        kept, tokens = entry.number("spec_decode_accepted_tokens"), entry.number("spec_decode_draft_tokens")
        accepted = 1 + kept / steps if accepted is None and kept is not None else accepted
        drafted = tokens / steps if drafted is None and tokens is not None else drafted
    said = entry.flag(*ALIASES["speculative"])
    if said is None and ((accepted or 0) > 1 or drafted or entry.number("spec_decode_acceptance_rate") is not None):
        said = True
    return {"speculative": said, "accepted": accepted or None, "drafted": drafted or None}
