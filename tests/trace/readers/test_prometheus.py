"""Metrics of engines, exporters and monitors come out under one set of names, scrape by scrape."""

import contextlib
import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.trace.facts import Fact
from linkwise.trace.readers import prometheus
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.prometheus_lines import sample

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a/b \\"c\\""} 3.0
vllm:num_requests_running{engine="1",model_name="a/b \\"c\\""} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 10.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 8.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 8.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2.0
vllm:time_to_first_token_seconds_created{engine="0",model_name="m"} 1.78e+09
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 7231.0
"""


def written(folder: Path, text: str | bytes, name: str = "metrics.txt") -> Source:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, ns=(5 * 10**9, 5 * 10**9))
    return Source(path, where=name)


def read(folder: Path, text: str | bytes, name: str = "metrics.txt") -> Reading:
    source = written(folder, text, name)
    assert prometheus.recognises(source)
    return prometheus.read(source)


def about(fact: Fact, *names: str) -> tuple[Any, ...]:
    return fact.kind, fact.name, fact.value, *(fact.label(name) for name in names)


def test_vllm(tmp_path: Path) -> None:
    reading = read(tmp_path, VLLM)
    assert [about(fact, "engine", "model", "count") for fact in reading.facts] == [
        ("gauge", "serve.running", 3.0, "0", 'a/b "c"', ""),
        ("gauge", "serve.running", 0.0, "1", 'a/b "c"', ""),
        ("gauge", "serve.kv_usage", 0.25, "0", "m", ""),
        ("counter", "serve.requests_total", 14.0, "0", "m", ""),  # both ways to end
        ("gauge", "serve.ttft_s", 0.25, "0", "m", "8"),
    ]
    last = reading.facts[-1]
    assert (last.unit, last.unix_ns, last.label("time")) == ("s", 5 * 10**9, "mtime")
    assert last.source == "metrics.txt: line 13"
    assert last.text.startswith("vllm:time_to_first_token_seconds_count")
    assert reading.notes == ("the metrics have no time: that of the file is taken for the last scrape",)


def test_names_without_a_colon_and_files_without_types(tmp_path: Path) -> None:
    text = "\n".join(line for line in VLLM.splitlines() if not line.startswith("#"))
    assert len(read(tmp_path, text).facts) == 5
    assert len(read(tmp_path, VLLM.replace("vllm:", "vllm_")).facts) == 5


def test_linkwise_writes_what_is_read(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from linkwise.runtime.serve.metrics import Metrics

    metrics = Metrics("tiny", 512)
    metrics.first(12, 0.5)
    metrics.first(12, 1.5)
    metrics.gap(0.25)
    metrics.finished("stop", 3.0, 12, 5, 2.0)
    metrics.finished("error", 3.0, 12, 5, 2.0)
    found = {fact.name: fact.value for fact in read(tmp_path, metrics.text()).facts}
    assert found == {
        "serve.requests_total": 2.0, "serve.ttft_s": 1.0, "serve.itl_s": 0.25, "serve.decode_s": 2.0,
        "serve.gen_tokens": 0.0, "serve.prompt_tokens": 24.0,
    }  # fmt: skip


SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:num_queue_reqs{engine_type="decode",model_name="m",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_queue_reqs{engine_type="decode",model_name="m",pp_rank="0",priority="3",tp_rank="0"} 2.0
sglang:token_usage{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 0.04
sglang:gen_throughput{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 86.5
sglang:num_decode_transfer_queue_reqs{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 31.0
sglang:num_decode_prealloc_queue_reqs{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:num_prefill_inflight_queue_reqs{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 0.0
sglang:num_prefill_bootstrap_queue_reqs{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 0.0
# TYPE sglang:kv_transfer_speed_gb_s histogram
sglang:kv_transfer_speed_gb_s_sum{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 3.0
sglang:kv_transfer_speed_gb_s_count{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:kv_transfer_latency_ms{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 40.0
sglang:per_stage_req_latency_seconds_sum{engine_type="decode",model_name="m",pp_rank="0",stage="prefill_forward",tp_rank="0"} 6.0
sglang:per_stage_req_latency_seconds_count{engine_type="decode",model_name="m",pp_rank="0",stage="prefill_forward",tp_rank="0"} 4.0
sglang:per_stage_req_latency_seconds_sum{engine_type="decode",model_name="m",pp_rank="0",stage="tokenize",tp_rank="0"} 6.0
sglang:per_stage_req_latency_seconds_count{engine_type="decode",model_name="m",pp_rank="0",stage="tokenize",tp_rank="0"} 4.0
"""  # noqa: E501 - as it prints them


def test_sglang_with_its_pool(tmp_path: Path) -> None:
    facts = read(tmp_path, SGLANG).facts
    assert {(fact.name, round(fact.value, 6)) for fact in facts} == {
        ("serve.running", 1.0), ("serve.waiting", 5.0), ("serve.kv_usage", 0.04), ("serve.gen_tok_s", 86.5),
        ("serve.transfer_queue", 31.0), ("serve.prealloc_queue", 2.0), ("serve.inflight_queue", 0.0),
        ("serve.bootstrap_queue", 0.0),
        ("serve.transfer_MBps", 1610.612736),  # 1.5 GiB/s
        ("serve.transfer_s", 0.04), ("serve.prefill_s", 1.5),
    }  # fmt: skip
    assert {fact.label("pool") for fact in facts} == {"decode"}
    # All gauges of an engine have the same labels, so that a rule can lay them side by side.
    gauges = {tuple(pair for pair in fact.labels if pair[0] != "count") for fact in facts}
    assert gauges == {(("pool", "decode"), ("model", "m"), ("pp_rank", "0"), ("tp_rank", "0"), ("time", "mtime"))}


def test_the_pool_by_its_queues_or_the_files_name(tmp_path: Path) -> None:
    text = SGLANG.replace('engine_type="decode",', "")
    assert {fact.label("pool") for fact in read(tmp_path, text).facts} == {"decode"}
    quiet = VLLM.replace("# TYPE", "# HELP vllm_x y\n# TYPE")
    assert {fact.label("pool") for fact in read(tmp_path, quiet, "prefill-0.prom").facts} == {"prefill"}
    assert {fact.label("pool") for fact in read(tmp_path, quiet).facts} == {""}


def test_nixl(tmp_path: Path) -> None:
    text = """\
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_count{engine="0"} 4.0
vllm:nixl_xfer_time_seconds_sum{engine="0"} 2.0
vllm:nixl_bytes_transferred_count{engine="0"} 4.0
vllm:nixl_bytes_transferred_sum{engine="0"} 8e+08
vllm:nixl_num_descriptors_count{engine="0"} 4.0
vllm:nixl_num_descriptors_sum{engine="0"} 4096.0
vllm:nixl_num_failed_transfers_total{engine="0"} 1.0
"""
    facts = read(tmp_path, text).facts
    assert {fact.name: (fact.kind, fact.value) for fact in facts} == {
        "serve.transfer_failed": ("counter", 1.0),
        "serve.transfer_s": ("gauge", 0.5),
        "serve.transfer_MB": ("gauge", 200.0),
        "serve.transfer_MBps": ("gauge", 400.0),
        "serve.transfer_entries": ("gauge", 1024.0),
    }
    assert len({(fact.source, fact.unix_ns, fact.rank) for fact in facts if fact.kind == "gauge"}) == 1


def test_dcgm(tmp_path: Path) -> None:
    who = 'gpu="{0}",UUID="GPU-{0}",pci_bus_id="00000000:1{0}:00.0",device="nvidia{0}",modelName="H100",Hostname="n7"'
    rows = [
        ("XID_ERRORS", (79, 0)), ("CLOCK_THROTTLE_REASONS", (0x41, 0x4)), ("ECC_DBE_VOL_TOTAL", (0, 2)),
        ("GPU_UTIL", (0, 97)), ("GPU_TEMP", (61, 92)), ("ROW_REMAP_FAILURE", (0, 0)), ("PCIE_REPLAY_COUNTER", (0, 3)),
    ]  # fmt: skip
    text = "# TYPE DCGM_FI_DEV_XID_ERRORS gauge\n" + "".join(
        f"DCGM_FI_DEV_{name}{{{who.format(gpu)}}} {values[gpu]}\n" for name, values in rows for gpu in (0, 1)
    )
    facts = read(tmp_path, text).facts
    faults = [fact for fact in facts if fact.kind == "device"]
    assert [(f.name, f.value, f.device, f.host, f.label("severity"), f.label("utilization")) for f in faults] == [
        ("xid.79", 1.0, "0000:10:00", "n7", "hardware", ""),
        ("throttle.hw_thermal", 1.0, "0000:10:00", "n7", "", "0"),
        ("throttle.sw_power_cap", 1.0, "0000:11:00", "n7", "", "97"),
        ("ecc.uncorrected", 2.0, "0000:11:00", "n7", "", ""),
    ]
    assert faults[0].label("uuid") == "GPU-0"
    figures = {(f.kind, f.name, f.device): f.value for f in facts if f.kind != "device"}
    assert figures["gauge", "gpu.temperature_c", "0000:11:00"] == 92
    assert figures["counter", "gpu.pcie_replay", "0000:11:00"] == 3


def test_hosts(tmp_path: Path) -> None:
    text = """\
# TYPE node_netstat_Tcp_RetransSegs untyped
node_netstat_Tcp_RetransSegs{instance="10.0.0.7:9100"} 120
node_netstat_Tcp_OutSegs{instance="10.0.0.7:9100"} 1e6
node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1",instance="10.0.0.7:9100"} 400
node_infiniband_link_downed_total{device="mlx5_0",port="1",instance="10.0.0.7:9100"} 2
node_infiniband_state_id{device="mlx5_0",port="1",instance="10.0.0.7:9100"} 4
node_infiniband_state_id{device="mlx5_1",port="1",instance="10.0.0.7:9100"} 1
container_cpu_cfs_throttled_periods_total{container="vllm",pod="p"} 40
container_cpu_cfs_periods_total{container="vllm",pod="p"} 100
container_cpu_cfs_throttled_seconds_total{container="vllm",pod="p"} 1.5
"""
    facts = read(tmp_path, text).facts
    assert [(f.kind, f.name, f.value, f.device, f.host) for f in facts] == [
        ("counter", "tcp.retrans_segs", 120.0, "", "10.0.0.7"),
        ("counter", "tcp.out_segs", 1e6, "", "10.0.0.7"),
        ("counter", "ib.port_rcv_data_bytes", 400.0, "mlx5_0:1", "10.0.0.7"),
        ("counter", "ib.link_downed", 2.0, "mlx5_0:1", "10.0.0.7"),
        ("counter", "cpu.nr_throttled", 40.0, "", ""),
        ("counter", "cpu.nr_periods", 100.0, "", ""),
        ("counter", "cpu.throttled_us", 1.5e6, "", ""),
        ("network", "ib.port_down", 1.0, "mlx5_1:1", "10.0.0.7"),
    ]
    assert facts[4].label("pod") == "p"


def test_xputimer(tmp_path: Path) -> None:
    where = 'ip="{0}",job_name="j",local_rank="3",pod_name="w-1",rank="11"'
    text = f"""\
# TYPE XPU_TIMER_COMMON_HANG gauge
XPU_TIMER_COMMON_HANG{{{where.format("10.1.2.3")}}} 1
XPU_TIMER_COLL_KERNEL_AVG_LATENCY{{dtype="fp16",level="3",operation="AllReduce",{where.format("NOT_SET")}}} 370
"""
    hang, latency = read(tmp_path, text).facts
    assert (hang.name, hang.value, hang.rank, hang.host, hang.device) == ("rank.hang", 1.0, 11, "10.1.2.3", "gpu3")
    assert (latency.name, latency.value, latency.host, latency.unit) == ("rank.coll_latency_us", 370.0, "", "us")
    assert (latency.label("level"), latency.label("operation")) == ("3", "AllReduce")


def test_other_engines_and_experts(tmp_path: Path) -> None:
    text = """\
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{model_name="m"} 0.62
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 9
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="m",version="1"} 100
dynamo_frontend_queued_requests{model="m"} 2
moe_expert_tokens{layer_id="3",expert_id="17"} 512
moe_expert_tokens_bucket{layer_id="3",expert_id="17",le="1"} 1
moe_expert_layers{name="x"} 3
"""
    facts = read(tmp_path, text).facts
    assert [(f.name, f.value) for f in facts] == [
        ("serve.kv_usage", 0.62), ("serve.waiting", 9.0), ("serve.kv_free_blocks", 100.0), ("serve.waiting", 2.0),
        ("expert.load", 512.0),
    ]  # fmt: skip
    assert (facts[4].label("layer"), facts[4].label("expert")) == ("3", "17")


def test_scrapes_one_after_the_other(tmp_path: Path) -> None:
    again = VLLM.replace("} 3.0", "} 5.0").replace("} 2.0\n", "} 4.0\n")
    facts = read(tmp_path, VLLM + "# EOF\n" + again).facts
    running = [f for f in facts if f.name == "serve.running" and f.label("engine") == "0"]
    assert [(f.value, f.label("snapshot"), f.unix_ns) for f in running] == [(3.0, "", 0), (5.0, "1", 5 * 10**9)]
    assert [f.value for f in facts if f.name == "serve.ttft_s"] == [0.25, 0.5]
    assert [f.value for f in facts if f.name == "serve.requests_total"] == [14.0, 14.0]


def test_marked_scrapes_and_times_of_samples(tmp_path: Path) -> None:
    text = f"# scrape 1780000000.5\n{VLLM}# scrape 1780000010\n{VLLM}"
    facts = read(tmp_path, text).facts
    assert sorted({f.unix_ns for f in facts}) == [1780000000500000000, 1780000010000000000]
    assert {f.label("time") for f in facts} == {""}
    own = "# TYPE a gauge\nvllm:num_requests_running 3 1780000000123\nvllm:num_requests_waiting 1 1780000001.5\n"
    reading = read(tmp_path, own)
    assert [f.unix_ns for f in reading.facts] == [1780000000123000000, 1780000001500000000]
    assert reading.notes == ()


def test_lines_that_are_none(tmp_path: Path) -> None:
    text = VLLM + "vllm:num_requests_running{engine=0} 1\n{oops\nvllm:num_requests_waiting{} x\n"
    text += "vllm:num_requests_waiting NaN\nvllm:num_requests_swapped 4\n"
    reading = read(tmp_path, text)
    assert len(reading.facts) == 5
    assert reading.notes[0] == "3 lines were not understood, the first is line 18"


@pytest.mark.parametrize(
    ("line", "value", "labels", "at_ns"),
    [
        ("a 1", 1.0, {}, 0),
        ("a{} -2.5e3", -2500.0, {}, 0),
        ('a{b="c"} 1', 1.0, {"b": "c"}, 0),
        ('a{b="c",} 1', 1.0, {"b": "c"}, 0),
        ('a { b = "c" , d="}" } 1', 1.0, {"b": "c", "d": "}"}, 0),
        (r'a{b="x\\y\"z\n"} 1 1780000000000', 1.0, {"b": 'x\\y"z\n'}, 1780000000000000000),
        ('a{b="c"} 1 # {trace_id="t"} 0.5', 1.0, {"b": "c"}, 0),
        ('a 1 1780000000.25 # {trace_id="t"} 0.5', 1.0, {}, 1780000000250000000),
        ("a +Inf", float("inf"), {}, 0),
        ("a 1 -5", 1.0, {}, 0),
    ],
)
def test_the_grammar(line: str, value: float, labels: dict[str, str], at_ns: int) -> None:
    found = sample("a", line, 1, 7)
    assert found is not None
    assert (found.value, found.labels, found.unix_ns, found.line) == (value, labels, at_ns, 7)


@pytest.mark.parametrize(
    "line",
    [
        "a", "a{", 'a{b="c" 1', 'a{b="c",b="d"} 1', "a{b=c} 1", 'a{"b"="c"} 1', "a 1_0", "a 0x10", "a 1 2 3", "a one",
        'a{b="c\\"} 1', f"a {'1' * 70}", "a{" + ",".join(f'l{n}="x"' for n in range(65)) + "} 1",
    ],
)  # fmt: skip
def test_what_is_no_sample(line: str) -> None:
    assert sample("a", line, 1, 1) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# TYPE up gauge\nup 1\n", "no metric that a diagnosis asks for"),
        ("# TYPE up gauge\n", "no metric that a diagnosis asks for"),
        ("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{ 1\n", "line 2: no metric"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    source = written(tmp_path, text)
    assert prometheus.recognises(source)
    with pytest.raises(InputError, match=reason):
        prometheus.read(source)


@pytest.mark.parametrize("text", [b"", b"{}", b"a 1\n", b"# TYPE\n", b"hello world\n", b"\xff\x00\x01"])
def test_what_is_something_else(tmp_path: Path, text: bytes) -> None:
    assert not prometheus.recognises(written(tmp_path, text))


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_FACTS", 3)
    reading = read(tmp_path, VLLM)
    assert len(reading.facts) == 3
    assert any("beyond 3" in note for note in reading.notes)
    monkeypatch.setattr(prometheus, "MAX_SERIES", 2)
    assert len(read(tmp_path, VLLM).facts) == 2


def test_packed(tmp_path: Path) -> None:
    assert len(read(tmp_path, gzip.compress(VLLM.encode()), "m.gz").facts) == 5
    many = gzip.compress("".join(f"{VLLM}# scrape {1780000000 + n * 7919}\n" for n in range(4000)).encode())
    reading = read(tmp_path, many[: len(many) // 2], "cut.gz")
    assert 100 < len(reading.facts) < 20_000
    assert reading.notes[0].startswith("not readable to its end: cannot be unpacked")


TEXT = (VLLM + SGLANG + 'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 79\nXPU_TIMER_COMMON_HANG{rank="3"} 1\n').encode()
PIECES = [b'"', b"{", b"}", b"\\", b"\n", b" ", b"1e999", b"NaN", b"-1", b"9" * 40, b"\x00", b"\xff", b"# scrape 1e9\n"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(TEXT)), st.integers(0, 20), st.binary(max_size=8) | st.sampled_from(PIECES)),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_changed_bytes(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, bytes]]) -> None:
    text = TEXT
    for at, length, new in changes:
        text = text[:at] + new + text[at + length :]
    source = written(tmp_path_factory.mktemp("fuzz"), text)
    with contextlib.suppress(InputError):
        for fact in prometheus.read(source).facts:
            assert fact.text.isprintable()
            assert all(isinstance(word, str) for pair in fact.labels for word in pair)
