"""`python -m sglang.bench_serving --output-file`, JSON lines: sglang/bench_serving.py.

Newer ones hold the server's own arguments under server_info, and with them the layout.
"""

from collections.abc import Iterator
from typing import Any

from linkwise.workload.results import names
from linkwise.workload.results.base import Entry, Unusable, shown
from linkwise.workload.results.types import Row
from linkwise.workload.results.vllm_serve import layout, served

FORMAT = "sglang bench_serving"


def recognises(entry: Entry) -> bool:
    """Its own names of fields."""
    return {"completed", "total_output_tokens_retokenized", "mean_e2e_latency_ms"} <= entry.values.keys()


def rows(entry: Entry) -> Iterator[Row]:
    """One run."""
    server = entry.part("server_info")
    _one_pool(entry, server)
    said: dict[str, Any] = layout(entry, entry.text("backend"))
    said |= {name: value for name, value in _of_server(server).items() if said.get(name) is None}
    said |= _drafting(entry, server)
    model = server.text("model_path") or entry.text("model", "model_path", "model_id")
    yield served(entry, fixed=_fixed(entry), model=model, **said)


def _one_pool(entry: Entry, server: Entry) -> None:
    """Raises Unusable for servers of separate pools: one of them says its mode (ServerArgs.disaggregation_mode), a
    router in front of both lists what either says under "prefill" and "decode", and --pd-separated was asked for."""
    pools = [name for name in ("prefill", "decode") if name in server.values]
    if pools:
        raise Unusable(f"field server_info: servers under {' and '.join(pools)}, {names.BOTH_POOLS}")
    mode = (server.text("disaggregation_mode") or "null").lower()
    if mode not in {"null", "none"}:
        raise Unusable(f"field server_info.disaggregation_mode: {shown(mode)}, {names.BOTH_POOLS}")
    if entry.flag("pd_separated"):
        raise Unusable(f"field pd_separated: true, {names.BOTH_POOLS}")


def _of_server(server: Entry) -> dict[str, str | int | None]:
    """Degrees as our words mean them: SGLang's tp_size counts the attention replicas inside it (DESIGN §3)."""
    tp, dp, pp = server.degree("tp_size"), server.degree("dp_size"), server.degree("pp_size")
    attention = bool(server.flag("enable_dp_attention"))
    inside = dp if attention and dp else 1
    quantization = server.text("quantization")
    known = tp is not None and tp % inside == 0
    return {
        "tp": tp // inside if known and tp else None,
        "dp_attn": inside if known else None,
        "pp": pp,
        "ep": server.degree("ep_size"),
        "gpus": tp * (pp or 1) * (1 if attention else dp or 1) if tp else None,
        "version": server.text("version"),
        "gemm_quant": names.word(quantization),
        "kv_dtype": names.word(server.text("kv_cache_dtype")),
    }


def _drafting(entry: Entry, server: Entry) -> dict[str, Any]:
    """accept_length of the run; the server's algorithm and steps. In a tree of drafts (topk above 1) the steps are not
    the tokens drafted."""
    found = names.drafting(entry)
    if server.text("speculative_algorithm") is None:
        return found
    chain = (server.whole("speculative_eagle_topk") or 1) == 1
    steps = server.number("speculative_num_steps", low=0.0, high=names.MAX_DRAFTED) if chain else None
    return found | {"speculative": True, "drafted": found["drafted"] or steps or None}


def _fixed(entry: Entry) -> bool | None:
    """--random-range-ratio r draws lengths from r times the nominal one up to it."""
    dataset = entry.text("dataset_name") or ""
    ratio = entry.number("random_range_ratio", low=0.0, high=1.0) if dataset.startswith("random") else None
    return None if ratio is None else ratio == 1.0
