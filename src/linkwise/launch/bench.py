"""The workload as benchmark tools take it: vLLM's own, aiperf and GuideLLM, each with the flags of one release."""

import json

from linkwise.launch.types import KEY, Deployment

SEED = 0
BENCH_S = 120  # how long a benchmark at a rate goes on
# Releases whose flags are written (read on 2026-11-30 in the packages themselves).
RELEASES = {"vllm": "vLLM 0.32.0", "aiperf": "aiperf 0.13.0", "guidellm": "GuideLLM 0.8.1"}


def commands(made: Deployment) -> dict[str, list[str]]:
    """The command of each tool, by the tool's name."""
    return {"vllm": _vllm(made), "aiperf": _aiperf(made), "guidellm": _guidellm(made)}


def _vllm(made: Deployment) -> list[str]:
    asks = made.served
    words = [
        "vllm", "bench", "serve", "--backend", "openai", "--base-url", made.front, "--endpoint", "/v1/completions",
        "--model", made.called, "--tokenizer", made.model, "--dataset-name", "random", "--random-input-len",
        str(asks.isl_tokens), "--random-output-len", str(asks.osl_tokens), "--ignore-eos",
        "--num-prompts", str(_prompts(made)), "--seed", str(SEED),
        "--save-result", "--result-filename", "bench-vllm.json",
    ]  # fmt: skip
    words += ["--request-rate", f"{asks.rate_per_s:g}"] if asks.rate_per_s is not None else []
    return words + (["--max-concurrency", str(asks.concurrency)] if asks.concurrency is not None else [])


def _aiperf(made: Deployment) -> list[str]:
    asks = made.served
    words = [
        "aiperf", "profile", "--model", made.called, "--tokenizer", made.model, "--url", made.front,
        "--endpoint-type", "completions", "--streaming", "--synthetic-input-tokens-mean", str(asks.isl_tokens),
        "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", str(asks.osl_tokens),
        "--output-tokens-stddev", "0", "--extra-inputs", "ignore_eos:true",
        "--request-count", str(_prompts(made)), "--random-seed", str(SEED),
    ]  # fmt: skip
    words += ["--api-key", KEY] if made.keyed else []
    words += ["--request-rate", f"{asks.rate_per_s:g}"] if asks.rate_per_s is not None else []
    return words + (["--concurrency", str(asks.concurrency)] if asks.concurrency is not None else [])


def _guidellm(made: Deployment) -> list[str]:
    """`guidellm run`; it asks for whole answers (ignore_eos) by itself where the data state their length."""
    asks = made.served
    if asks.rate_per_s is None:
        profile = f"kind=concurrent,streams={asks.concurrency or 1}"
    else:
        most = "" if asks.concurrency is None else f",max_concurrency={asks.concurrency}"
        profile = f"kind=poisson,rate={asks.rate_per_s:g}{most}"
    # JSON where a name is a value: names may hold what its short form reads as a sign.
    server = {"kind": "openai_http", "target": made.front, "model": made.called, "request_format": "/v1/completions"}
    server |= {"api_key": KEY} if made.keyed else {}
    return [
        "guidellm", "run", "--backend", json.dumps(server), "--profile", profile,
        "--constraint", f"kind=max_requests,count={_prompts(made)}",
        "--data", f"kind=synthetic_text,prompt_tokens={asks.isl_tokens},output_tokens={asks.osl_tokens}",
        "--tokenizer", json.dumps({"kind": "huggingface_auto", "model": made.model}),
        "--seed", f"kind=static,value={SEED}",
    ]  # fmt: skip


def _prompts(made: Deployment) -> int:
    """Requests of a benchmark: two minutes of arrivals, or ten for each at once."""
    if made.served.rate_per_s is not None:
        return max(20, min(20_000, round(made.served.rate_per_s * BENCH_S)))
    return max(20, min(20_000, 10 * (made.served.concurrency or 1)))
