"""Engines' lines become figures, errors, notices and settings, each under the rank that its line or file tells."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import mutated, never_raises, one, pick, read, recognises, values

from linkwise.trace.readers import engine_log
from linkwise.trace.readers.engine_figures import figures

HEARTBEAT = (
    "(EngineCore_DP0 pid=265) INFO 02-27 10:30:00 [shm_broadcast.py:466] No available shared memory broadcast block"
    " found in 60 second(s). This typically happens when some processes are hanging\n"
)
STATS = (
    "INFO 02-27 10:30:10 [loggers.py:127] Engine 001: Avg prompt throughput: 900.0 tokens/s, Avg generation throughput:"
    " 610.5 tokens/s, Running: 3 reqs, Waiting: 7 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%\n"
)
DECODE = (
    "[2026-05-24 01:50:43.001 DP1 TP5 EP5] Decode batch [40], #running-req: 1, #token: 532160, token usage: 0.04,"
    " accept len: 4.40, pre-allocated usage: 0.18, #prealloc-req: 4, #transfer-req: 37, #retracted-req: 2, cuda graph:"
    " True, gen throughput (token/s): 11.87, #queue-req: 0\n"
)
PREFILL = (
    "[2026-05-24 01:50:44 TP3] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.25,"
    " #running-req: 0, #queue-req: 6, #prealloc-req: 18, #inflight-req: 2, input throughput (token/s): 0.04, \n"
)
NIXL = (
    "(APIServer pid=428) INFO 02-27 10:30:20 [metrics.py:103] KV Transfer metrics: Num successful transfers=2, Avg xfer"
    " time (ms)=4.0, P90 xfer time (ms)=5.0, Avg post time (ms)=1.5, P90 post time (ms)=1.5, Avg MB per transfer=100.0,"
    " Throughput (MB/s)=1000.0, Avg number of descriptors=56.0, Num failed transfers=1\n"
)
REQUEST = (
    "[2026-05-24 01:47:50.616 TP2] Req Time Stats(rid=a, bootstrap_room=3, type=decode): "
    "prealloc_queue_duration(5.00ms) = bootstrap(2.00ms) + alloc_wait(3.00ms); transfer_duration=30000.00ms; "
    "queue_duration=1.00ms, forward_duration=8348.19ms, start=1.000\n"
)
TRT = (
    "[05/24/2026-14:11:49] [TRT-LLM] [I] [_torch][RANK 2] iter = 7, global_rank = 2, rank = 2, num_scheduled_requests ="
    " 8, kv_cache_util = 0.5, host_step_time = 14.5ms, prev_device_step_time = N/A, timestamp = 2026-05-24 14:11:49,"
    " states = {'num_ctx_requests': 1, 'num_ctx_tokens': 4, 'num_generation_tokens': 3}\n"
)
ALL = HEARTBEAT + STATS + DECODE + PREFILL + NIXL + REQUEST + TRT
DUMP = """[2026-05-24 13:12:37 TP2] Pyspy dump for PID 88693:
Process 88693: python worker.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 88693 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    writing_check (hiradix_cache.py:196)

[2026-05-24 13:12:38 TP2] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)
"""


def test_a_heartbeat_is_a_notice(tmp_path: Path) -> None:
    reading = read(tmp_path, engine_log, HEARTBEAT)
    (fact,) = reading.facts
    assert (fact.kind, fact.name, fact.value, fact.label("dp")) == ("notice", "shm_broadcast_wait", 60, "0")
    # 27 February of the year of the file, 2026.
    assert fact.unix_ns == 1_772_188_200 * 10**9
    assert any("no year" in note for note in reading.notes)


def test_vllm_figures(tmp_path: Path) -> None:
    reading = read(tmp_path, engine_log, STATS, "decode-0.log")
    assert values(reading, "gauge") == {
        "serve.prompt_tok_s": 900, "serve.gen_tok_s": 610.5, "serve.running": 3, "serve.waiting": 7,
        "serve.kv_usage": 0.125,
    }  # fmt: skip
    assert {(f.label("engine"), f.label("pool")) for f in reading.facts} == {("1", "decode")}


def test_sglang_figures(tmp_path: Path) -> None:
    reading = read(tmp_path, engine_log, DECODE)
    assert values(reading, "gauge") == {
        "serve.running": 1, "serve.waiting": 0, "serve.kv_usage": 0.04, "serve.retracted": 2, "serve.gen_tok_s": 11.87,
        "serve.transfer_queue": 37, "serve.prealloc_queue": 4, "serve.prealloc_usage": 0.18,
    }  # fmt: skip
    assert {(f.rank, f.label("dp"), f.label("pool")) for f in reading.facts} == {(5, "1", "decode")}
    assert reading.facts[0].unix_ns == 1_779_587_443_001_000_000
    reading = read(tmp_path, engine_log, PREFILL)
    gauges = values(reading, "gauge")
    # This version prints the bootstrap queue under the decode side's name.
    assert (gauges["serve.bootstrap_queue"], gauges["serve.inflight_queue"], gauges["serve.waiting"]) == (18, 2, 6)
    assert "serve.prealloc_queue" not in gauges
    assert {(f.rank, f.label("pool")) for f in reading.facts} == {(3, "prefill")}


def test_transfers(tmp_path: Path) -> None:
    reading = read(tmp_path, engine_log, NIXL)
    gauges = values(reading, "gauge")
    # vLLM writes MB for 2^20 bytes: 1000 MiB/s = 1048.576 MB/s.
    assert gauges["serve.transfer_MBps"] == pytest.approx(1048.576)
    assert (gauges["serve.transfer_s"], gauges["serve.transfer_entries"]) == (0.004, 56)
    assert gauges["serve.transfer_failed"] == 1
    assert one(reading, "gauge", "serve.transfer_s").label("count") == "2"
    gauges = values(read(tmp_path, engine_log, REQUEST), "gauge")
    assert gauges == {
        "serve.transfer_s": 30, "serve.bootstrap_s": 0.002, "serve.alloc_wait_s": 0.003, "serve.queue_s": 0.001,
    }  # fmt: skip
    other = {f.name: f.value for f in figures("transfer of 4096 entries took 250 ms, 15.5 MB/s")}
    assert other == {"serve.transfer_entries": 4096, "serve.transfer_MBps": 15.5, "serve.transfer_s": 0.25}


def test_zeros_without_a_transfer_mean_nothing() -> None:
    none = NIXL.replace("transfers=2", "transfers=0")
    assert [f.name for f in figures(none)] == ["serve.transfer_failed"]
    unknown = "queue_duration=0.41ms, forward_duration=8.1ms, transfer_speed=0.00 GB/s, transfer_total=0.00 MB"
    assert not [f.name for f in figures(unknown) if f.name.startswith("serve.transfer")]


def test_tensorrt_steps(tmp_path: Path) -> None:
    reading = read(tmp_path, engine_log, TRT)
    assert values(reading, "gauge")["rank.host_step_s"] == pytest.approx(0.0145)
    assert "rank.device_step_s" not in values(reading, "gauge")  # N/A
    assert {f.rank for f in reading.facts} == {2}


@pytest.mark.parametrize(
    ("line", "kind", "name", "value", "rank", "labels"),
    [
        (
            "[2026-05-24 02:00:00 TP2] Request 8053 timed out after 300.0s in KVPoll.Bootstrapping",
            "error", "handoff_timeout", 300, 2, {"state": "Bootstrapping", "pool": "prefill"},
        ),
        (
            "[2026-05-24 02:00:00 TP2] Request 8053 timed out after 1800.0s in KVPoll.WaitingForInput",
            "error", "handoff_timeout", 1800, 2, {"state": "WaitingForInput", "pool": "decode"},
        ),
        (
            "(EngineCore_DP0 pid=7) WARNING 02-24 16:35:21 [nixl_connector.py:1048] Releasing expired KV blocks for"
            " request cmpl-3da2-0 which were retrieved by 0 decode worker(s) within 120 seconds.",
            "error", "handoff_timeout", 120, -1, {"state": "Expired", "readers": "0", "pool": "prefill"},
        ),
        (
            "(Worker_TP2 pid=11) INFO 02-24 16:35:21 [core.py:1] waiting for baton release at /x/tuned_fmoe.csv.lock",
            "error", "lock_wait", 0, 2, {"lock": "/x/tuned_fmoe.csv.lock", "pid": "11"},
        ),
        (
            "[2026-05-24 13:12:37 PP1 TP1] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
            "error", "engine_watchdog", 300, -1, {"who": "Scheduler", "pp": "1", "tp": "1", "soft": "False"},
        ),
        ("[2026-05-24 13:12:37] Watchdog timeout (self.watchdog_timeout=300)", "error", "engine_watchdog", 300, -1, {}),
        (
            "RuntimeError('[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to"
            " complete')",
            "error", "gloo_timeout", 6, -1, {"operation": "recv"},
        ),
        (
            "[rank3]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:36515. ",
            "error", "peer_closed", 0, 3, {"peer": "127.0.0.1", "port": "36515", "how": "closed"},
        ),
        (
            "[rank1]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [fe80::1]:26513: Connection reset"
            " by peer.",
            "error", "peer_closed", 0, 1, {"peer": "fe80::1", "how": "Connection reset by peer"},
        ),
        (
            "(Worker_TP1 pid=9) ERROR 02-24 16:35:21 [x.py:1] CUDA error: an illegal memory access was encountered",
            "error", "cuda_error", 0, 1, {"reason": "an illegal memory access was encountered"},
        ),
        (
            "(Worker_TP1 pid=9) RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "device", "ecc.uncorrected", 0, 1, {},
        ),
        (
            "(EngineCore_DP0 pid=265) ERROR 02-27 10:31:24 [multiproc_executor.py:231] Worker proc VllmWorker-1 died"
            " unexpectedly, shutting down executor.",
            "exit", "died", 0, 1, {"code": "unknown"},
        ),
        (
            "[2026-05-24 22:08:42] Child process unexpectedly failed with exitcode=9. pid=2969",
            "exit", "died", -9, -1, {"pid": "2969"},
        ),
        (
            "[2026-05-24 22:08:42] Child process unexpectedly failed with exitcode=256. pid=2969",
            "exit", "died", 1, -1, {},
        ),
        (
            "[2025-01-29 08:53:02] Child process unexpectedly failed with an exit code 9. pid=3301",
            "exit", "died", -9, -1, {"pid": "3301"},
        ),
        (
            "[2026-05-24 04:51:41] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
            "error", "engine_dead", 0, -1, {},
        ),
        ("srun: error: node7: task 3: Segmentation fault (core dumped)", "exit", "died", -11, 3, {"node": "node7"}),
        ("srun: error: node7: task 3: Exited with exit code 137", "exit", "died", 137, 3, {}),
        (
            "mpirun noticed that process rank 3 with PID 123 on node n1 exited on signal 9 (Killed).",
            "exit", "died", -9, 3, {"node": "n1"},
        ),
        (
            "(Worker_TP1 pid=9) ERROR 02-24 16:35:21 [x.py:1] ValueError: bad",
            "error", "exception", 0, 1, {"type": "ValueError"},
        ),
    ],
)  # fmt: skip
def test_events(
    tmp_path: Path, line: str, kind: str, name: str, value: float, rank: int, labels: dict[str, str]
) -> None:
    (fact,) = (one for one in read(tmp_path, engine_log, line + "\n").facts if one.kind != "place")
    assert (fact.kind, fact.name, fact.value, fact.rank) == (kind, name, value, rank)
    assert {key: fact.label(key) for key in labels} == labels
    assert fact.text


def test_the_file_names_the_rank(tmp_path: Path) -> None:
    line = "RuntimeError('[/x/gloo/unbound_buffer.cc:129] Timed out waiting 6000ms for send operation to complete')"
    assert one(read(tmp_path, engine_log, line, "exc_rank3.txt"), "error", "gloo_timeout").rank == 3
    assert one(read(tmp_path, engine_log, line, "rank_2/stderr"), "error", "gloo_timeout").rank == 2


def test_settings(tmp_path: Path) -> None:
    text = (
        "srun --cpu-bind=verbose,none --mpi=pmix python x.py\n"
        "cpu-bind=MASK - conv2, task  5  1 [433646]: mask 0xaaaaaaa set\n"
        "export OMP_NUM_THREADS=64\nNCCL_NET_GDR_LEVEL=0\n"
        "RuntimeError: NCCL trouble (run with NCCL_DEBUG=INFO for details)\n"
        "If a greater mean TTFT is acceptable, you can 'export NCCL_IB_TIMEOUT=22' to relax the timeout\n"
    )
    reading = read(tmp_path, engine_log, text)
    assert {f.name: f.label("value") for f in pick(reading, "setting")} == {
        "cpu_bind": "verbose,none", "omp_threads": "64", "NCCL_NET_GDR_LEVEL": "0",
    }  # fmt: skip
    place = one(reading, "place", "process")
    # 0xaaaaaaa: every second of 28 bits.
    assert (place.rank, place.host, place.label("cpus")) == (5, "conv2", "1,3,5,7,9,11,13,15,17,19,21,23,25,27")


def test_stacks_that_a_watchdog_dumped(tmp_path: Path) -> None:
    reading = read(tmp_path, engine_log, DUMP)
    (stack,) = pick(reading, "stack")
    assert (stack.name, stack.rank, stack.label("caller")) == ("all_reduce", 2, "writing_check")
    assert stack.unix_ns == 1_779_628_357 * 10**9
    assert one(reading, "error", "engine_watchdog").rank == 2


def test_a_long_log_is_thinned(tmp_path: Path) -> None:
    lines = [DECODE.replace("#transfer-req: 37", f"#transfer-req: {i}") for i in range(5000)]
    reading = read(tmp_path, engine_log, "".join(lines))
    queue = [f.value for f in pick(reading, "gauge", "serve.transfer_queue")]
    assert 256 <= len(queue) <= 514
    assert (queue[0], queue[-1]) == (0, 4999)
    assert queue == sorted(queue)
    assert any("one in 16 is kept" in note for note in reading.notes)


def test_not_recognised(tmp_path: Path) -> None:
    assert not recognises(tmp_path, engine_log, "a diary\nof someone\n")
    assert not recognises(tmp_path, engine_log, "key: value\nother: 3\n")
    quoting = '{"note": "Request 1 timed out after 300.0s in KVPoll.Bootstrapping"}\n'
    assert not recognises(tmp_path, engine_log, quoting)
    assert recognises(tmp_path, engine_log, '{"log":"Request 1 timed out after 300.0s in KVPoll.Bootstrapping\\n"}\n')


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated(ALL), mutated(DUMP)))
def test_only_refuses(data: bytes) -> None:
    never_raises(engine_log, data, "exc_rank1.txt")


CRASH = (
    "[2026-05-24 04:51:38 TP0] Decode batch. #running-req: 12, #token: 33000, token usage: 0.20, #queue-req: 0\n"
    "[2026-05-24 04:51:40 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/x/scheduler.py", line 1787, in run_scheduler_process\n'
    "    scheduler.event_loop_overlap()\n"
    "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n\n"
)


def test_lines_below_an_announced_exception_are_of_who_announced_it(tmp_path: Path) -> None:
    # SGLang's logger writes the announcement, the stack and the message at once; only the first line has a front.
    after = "[2026-05-24 04:51:41] no rank says this\nRuntimeError: CUDA error: out of memory\n"
    reading = read(tmp_path, engine_log, CRASH + after)
    fault = one(reading, "error", "cuda_error")
    assert (fault.rank, fault.source) == (2, f"{fault.source.partition(':')[0]}: line 5")
    assert fault.unix_ns == 1_779_598_300 * 10**9  # that of the announcement: 24 May 2026 04:51:40
    assert one(reading, "error", "gpu_out_of_memory").rank == -1
    device = CRASH.replace("an illegal memory access was", "uncorrectable ECC error")
    assert one(read(tmp_path, engine_log, device), "device", "ecc.uncorrected").rank == 2


def test_an_exception_at_the_end_has_the_number_of_its_line(tmp_path: Path) -> None:
    text = (
        "[rank2]: Traceback (most recent call last):\n[rank2]:   in forward\n[rank2]: RuntimeError: CUDA error: bad\n"
    )
    reading = read(tmp_path, engine_log, text + "\n\n")
    assert {fact.source.partition(": ")[2] for fact in reading.facts} == {"line 3"}
    assert {fact.name for fact in reading.facts} == {"cuda_error", "exception"}
