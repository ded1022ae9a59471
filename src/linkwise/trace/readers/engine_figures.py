"""The lines in which engines report their state: queues, running requests, KV use, throughput, KV transfers."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from linkwise.trace.readers.shared import number

MIB_PER_MB = 2**20 / 1e6  # both engines divide by 2^20 (and 2^30) and write MB and GB


class Figure(NamedTuple):
    """One gauge of a line."""

    name: str
    value: float
    unit: str = ""
    labels: tuple[tuple[str, str], ...] = ()


def mark(line: str) -> str:
    """The word by which a line of figures is known, of which a log may hold millions; "" for other lines."""
    return next((word for word in MARKS if word in line), "")


def figures(line: str) -> list[Figure]:
    """All gauges a line holds; none for nearly every line."""
    for word, take in _LINES.items():
        if word in line:
            return list(take(line))
    return list(_transfer(line)) if TRANSFER in line else []


def _taken(
    line: str, wanted: tuple[tuple[re.Pattern[str], str, float, str], ...], *labels: tuple[str, str]
) -> Iterator[Figure]:
    for pattern, name, factor, unit in wanted:
        found = pattern.search(line)
        if found and (value := number(found[1])) is not None:
            yield Figure(name, value * factor, unit, labels)


def _table(*rows: tuple[str, str, float, str]) -> tuple[tuple[re.Pattern[str], str, float, str], ...]:
    return tuple((re.compile(pattern), name, factor, unit) for pattern, name, factor, unit in rows)


_N = r"(\d{1,12}(?:\.\d{1,9})?)"
# vLLM v1/metrics/loggers.py, LoggingStatLogger.log; v0 engine/metrics.py wrote Pending for Waiting.
_VLLM = _table(
    (rf"Avg prompt throughput: {_N} tokens/s", "serve.prompt_tok_s", 1, "tokens/s"),
    (rf"Avg generation throughput: {_N} tokens/s", "serve.gen_tok_s", 1, "tokens/s"),
    (rf"Running: {_N} reqs", "serve.running", 1, ""),
    (rf"(?:Waiting|Pending): {_N} reqs", "serve.waiting", 1, ""),
    (rf"GPU KV cache usage: {_N}%", "serve.kv_usage", 0.01, ""),
)


def _vllm(line: str) -> Iterator[Figure]:
    engine = re.search(r"Engine (\d{1,4}):", line)
    return _taken(line, _VLLM, ("engine", str(int(engine[1])) if engine else ""))


# SGLang srt/observability (was managers/scheduler_metrics_mixin.py), report_prefill_stats and report_decode_stats.
_SGLANG = _table(
    (rf"#running-req: {_N}", "serve.running", 1, ""),
    (rf"#queue-req: {_N}", "serve.waiting", 1, ""),
    (rf"(?:full )?token usage: {_N}", "serve.kv_usage", 1, ""),
    (rf"#retracted-req: {_N}", "serve.retracted", 1, ""),
    (rf"gen throughput \(token/s\): {_N}", "serve.gen_tok_s", 1, "tokens/s"),
    (rf"input throughput \(token/s\): {_N}", "serve.prompt_tok_s", 1, "tokens/s"),
    (rf"#transfer-req: {_N}", "serve.transfer_queue", 1, ""),
    (rf"#inflight-req: {_N}", "serve.inflight_queue", 1, ""),
    (rf"#bootstrap-req: {_N}", "serve.bootstrap_queue", 1, ""),
    (rf"pre-allocated usage: {_N}", "serve.prealloc_usage", 1, ""),
)
# On the prefill side older versions print the length of the bootstrap queue under the name of the other queue.
_PREALLOC = {
    "Decode": _table((rf"#prealloc-req: {_N}", "serve.prealloc_queue", 1, "")),
    "Prefill": _table((rf"#prealloc-req: {_N}", "serve.bootstrap_queue", 1, "")),
}


def _sglang(line: str) -> Iterator[Figure]:
    """A prefill or decode batch. Only a pool of one role prints the queues of the handoff, so that they tell it."""
    kind = "Decode" if "Decode batch" in line else "Prefill"
    pool = {"Decode": "#transfer-req", "Prefill": "#inflight-req"}[kind] in line
    labels = ("pool", kind.lower() if pool else "")
    yield from _taken(line, _SGLANG, labels)
    yield from _taken(line, _PREALLOC[kind], labels)


# vLLM distributed/kv_transfer/kv_connector/v1/nixl/stats.py and mooncake/stats.py: over all ranks since the last line.
_NIXL = _table(
    (rf"Avg xfer time \(ms\)={_N}", "serve.transfer_s", 1e-3, "s"),
    (rf"P90 xfer time \(ms\)={_N}", "serve.transfer_p90_s", 1e-3, "s"),
    (rf"Avg post time \(ms\)={_N}", "serve.transfer_post_s", 1e-3, "s"),
    (rf"Avg MB per transfer={_N}", "serve.transfer_MB", MIB_PER_MB, "MB"),
    (rf"Throughput \(MB/s\)={_N}", "serve.transfer_MBps", MIB_PER_MB, "MB/s"),
    (rf"Avg number of descriptors={_N}", "serve.transfer_entries", 1, ""),
)
_FAILED = _table((rf"Num failed (?:transfers|recvs)={_N}", "serve.transfer_failed", 1, ""))


def _nixl(line: str) -> Iterator[Figure]:
    count = re.search(r"Num successful transfers=(\d{1,12})", line)
    done = count is not None and int(count[1]) > 0  # without one all other figures are zeros that mean nothing
    yield from _taken(line, _NIXL, ("count", count[1] if count else "")) if done else ()
    yield from _taken(line, _FAILED)


# SGLang srt/observability/req_time_stats.py, convert_to_duration; transfer_speed in GiB/s, transfer_total in MiB.
_PREFILL_REQUEST = _table(
    (rf"transfer_speed={_N} ?GB/s", "serve.transfer_MBps", 1024 * MIB_PER_MB, "MB/s"),
    (rf"transfer_total={_N} ?MB", "serve.transfer_MB", MIB_PER_MB, "MB"),
)
_REQUEST = _table(
    (rf"transfer_duration={_N}ms", "serve.transfer_s", 1e-3, "s"),
    (rf"(?:(?<!queue_)bootstrap_duration=|bootstrap\(){_N}ms", "serve.bootstrap_s", 1e-3, "s"),
    (rf"alloc_wait(?:_duration=|\(){_N}ms", "serve.alloc_wait_s", 1e-3, "s"),
    (rf"(?:, |; |: )queue_duration={_N}ms", "serve.queue_s", 1e-3, "s"),
)


def _request(line: str) -> Iterator[Figure]:
    role = re.search(r"type=(prefill|decode)", line)
    pool = (
        role[1]
        if role
        else "prefill"
        if "transfer_speed=" in line
        else "decode"
        if "transfer_duration=" in line
        else ""
    )
    if not re.search(r"transfer_speed=0\.00 ?GB/s", line):  # not known when the line is written
        yield from _taken(line, _PREFILL_REQUEST, ("pool", pool))
    yield from _taken(line, _REQUEST, ("pool", pool))


# TensorRT-LLM _torch/pyexecutor/py_executor.py, print_iter_log.
_TRT = _table(
    (rf"num_scheduled_requests(?:: | = ){_N}", "serve.running", 1, ""),
    (rf"kv_cache_util = {_N}", "serve.kv_usage", 1, ""),
    (rf"host_step_time = {_N}ms", "rank.host_step_s", 1e-3, "s"),
    (rf"prev_device_step_time = {_N}ms", "rank.device_step_s", 1e-3, "s"),
    (rf"'num_ctx_tokens': {_N}", "serve.step_prompt_tokens", 1, ""),
    (rf"'num_generation_tokens': {_N}", "serve.step_gen_tokens", 1, ""),
)


def _trt(line: str) -> Iterator[Figure]:
    rank = re.search(r"global_rank = (\d{1,6})|RANK (\d{1,6})\]", line)
    return _taken(line, _TRT, ("rank", (rank[1] or rank[2]) if rank else ""))


# A transfer in any other words: entries, time, rate. Engines' debug lines and benchmarks of transfer engines.
_ENTRIES = re.compile(
    rf"{_N} (?:transfer )?(?:entries|entry|descriptors|descs)\b|(?:entries|descriptors|num_descs)[=: ]+{_N}"
)
_RATE = re.compile(rf"{_N} ?(M|G)(i?)B/s")
_TOOK = re.compile(rf"(?:took|in|elapsed[=: ]|time[=: ]|duration[=: ]|latency[=: ]) ?{_N} ?(us|ms|s|sec|seconds)\b")
_SECONDS = {"us": 1e-6, "ms": 1e-3}


def _transfer(line: str) -> Iterator[Figure]:
    entries, rate, took = _ENTRIES.search(line), _RATE.search(line), _TOOK.search(line)
    if not entries or not (rate or took):
        return
    yield Figure("serve.transfer_entries", float(entries[1] or entries[2]))
    if rate:
        unit = {"M": 1.0, "G": 1e3}[rate[2]] * ({"M": 1.048576, "G": 1.073741824}[rate[2]] if rate[3] else 1.0)
        yield Figure("serve.transfer_MBps", float(rate[1]) * unit, "MB/s")
    if took:
        yield Figure("serve.transfer_s", float(took[1]) * _SECONDS.get(took[2], 1.0), "s")


_LINES: dict[str, Callable[[str], Iterator[Figure]]] = {
    "throughput: ": _vllm,
    "ecode batch": _sglang,
    "refill batch": _sglang,
    "KV Transfer metrics:": _nixl,
    "ReqTimeStats": _request,
    "queue_duration": _request,
    "host_step_time": _trt,
}
MARKS = tuple(_LINES)
TRANSFER = "ransfer"  # a transfer in other words, or whatever else is said of one
