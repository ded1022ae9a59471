"""How fast `linkwise diagnose` is, as a user meets it: whole process, and its largest memory.

Dumps are made here in the form of PyTorch's flight recorder (pickles without stack frames): ranks in tensor groups of
eight inside data-parallel groups; at the end one rank does not come, and the answer must name it. Asked: 16 real ranks
under 1 s (the shared labelled dumps, when they are beside the repository), 1,024 ranks x 2,000 entries under 25 s and
1 GB, 200 MB of Kineto under 20 s. Beside it, torch's own analyser on the same dumps, as a ratio, where it takes them.
Then logs: 200 MB each as vLLM (requests, figures), SGLang (figures of eight ranks on every line) and NCCL (a line a
call) write them, asked 20 MB/s, and 100 MB of metrics, one scrape after the other, asked 10 MB/s; of processor time.

    python benchmarks/diagnose_speed.py [ranks entries]
"""

import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TP = 8
LATE = 77
LABELLED = Path(__file__).resolve().parents[2] / "shared" / "data" / "diagnosis" / "flight_recorder" / "gpu_error_1st"
SIZES = ((8192, 1, 5120), (4096, 1, 5120), (1,))


def dumps(folder: Path, ranks: int, entries: int) -> None:
    """One dump a rank. Rank LATE stops two calls before the others, which wait for it."""
    late = LATE % ranks
    for rank in range(ranks):
        tensor = list(range(rank // TP * TP, rank // TP * TP + TP))
        data = list(range(rank % TP, ranks, TP))
        groups = {"1": ("TENSOR", tensor), "2": ("DATA", data), "0": ("default_pg", list(range(ranks)))}
        waits = rank in range(late // TP * TP, late // TP * TP + TP)
        rows = [_entry(rank, number, entries, late, waits) for number in range(entries - 2 * (rank == late))]
        counts = {"1": [0, 0], "2": [0, 0], "0": [0, 0]}
        for row in rows:
            mine = counts[row["process_group"][0]]
            mine[0] = row["collective_seq_id"]
            mine[1] = mine[0] if row["state"] == "completed" else mine[1]
        dump = {
            "version": "2.9",
            "nccl_version": "2.27.3",
            "pg_config": {k: {"name": k, "desc": d, "ranks": str(m)} for k, (d, m) in groups.items()},
            "pg_status": {
                k: {"last_enqueued_collective": e, "last_started_collective": -1, "last_completed_collective": c}
                for k, (e, c) in counts.items()
            },
            "entries": rows,
        }
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def _entry(rank: int, number: int, entries: int, late: int, waits: bool) -> dict[str, Any]:
    every = number % 10 == 4
    name, desc = ("2", "DATA") if every else ("1", "TENSOR")
    size = list(SIZES[number % 3])
    open_ = waits and number >= entries - 2
    created = 1_758_610_505_000_000_000 + number * 1_000_000 + (rank * 7919 + number * 104_729) % 100_000
    return {
        "record_id": number,
        "pg_id": int(name),
        "process_group": (name, desc),
        "collective_seq_id": number // 10 + 1 if every else number - (number + 5) // 10 + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created,
        "input_sizes": [size],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [size],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled" if open_ else "completed",
        "time_discovered_started_ns": None if open_ else created + 100_000,
        "time_discovered_completed_ns": None if open_ else created + 500_000,
        "retired": not open_,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def kineto(path: Path, megabytes: int) -> None:
    """A profiler trace of about that size: kernels between all-reduces."""
    with path.open("w") as file:
        file.write('{"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank":0,"world_size":2,"pg_config":[')
        file.write('{"pg_name":"0","pg_desc":"default_pg","pg_size":2,"ranks":[0,1]}]},"traceEvents":[\n')
        number = 0
        while file.tell() < megabytes * 10**6:
            rows = []
            for _ in range(2000):
                number += 1
                args: dict[str, Any] = {"External id": number, "device": 0, "stream": 7, "correlation": number}
                name = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
                if number % 20 == 0:
                    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                    args |= {"Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096}
                    args |= {"Group size": 2, "dtype": "BFloat16", "Process Group Name": "0"}
                    args |= {"Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"}
                event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": number * 10.0, "dur": 8.5}
                rows.append(json.dumps(event | {"args": args}))
            file.write(",\n".join(rows) + ",\n")
        file.write('{"ph":"i","name":"end","ts":0,"pid":0,"tid":0}\n]}')


def vllm_lines(number: int) -> str:
    """A second of an API server: 28 requests, their answers, a line of figures, and a heartbeat a minute."""
    at = f"02-{1 + number // 86400:02} {number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
    rows = [
        f"(APIServer pid=428) INFO {at} [loggers.py:127] Engine 000: Avg prompt throughput: 900.5 tokens/s, Avg"
        f" generation throughput: 610.5 tokens/s, Running: {number % 40} reqs, Waiting: 7 reqs, GPU KV cache"
        " usage: 12.5%"
    ]
    for one in range(28):
        rows.append(
            f"(APIServer pid=428) INFO {at} [logger.py:41] Received request chatcmpl-{number:08x}{one:04x}: prompt:"
            " 'Tell me about the history of transport in batches', params: SamplingParams(n=1, top_p=0.8)"
        )
        rows.append(
            f"(APIServer pid=428) INFO:     10.0.{one}.7:{30000 + number % 9999} -"
            ' "POST /v1/chat/completions HTTP/1.1" 200 OK'
        )
    if number % 60 == 0:
        rows.append(
            f"(EngineCore_DP0 pid=265) INFO {at} [shm_broadcast.py:466] No available shared memory broadcast block"
            " found in 60 second(s)."
        )
    return "\n".join(rows) + "\n"


def sglang_lines(number: int) -> str:
    """A decode batch of eight ranks."""
    at = f"2026-05-{1 + number // 86400:02} {number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
    return "".join(
        f"[{at} DP{rank // 4} TP{rank} EP{rank}] Decode batch [{number}], #running-req: {number % 30}, #token: 532160,"
        " token usage: 0.04, accept len: 4.40, pre-allocated usage: 0.18, #prealloc-req: 4, #transfer-req: 37,"
        " #retracted-req: 2, cuda graph: True, gen throughput (token/s): 11.87, #queue-req: 0\n"
        for rank in range(8)
    )


def nccl_lines(number: int) -> str:
    """The making of a communicator of eight ranks, then a call of each."""
    front = [f"node1:{100 + rank}:{100 + rank} [{rank}] NCCL INFO " for rank in range(8)]
    if number == 0:
        return "".join(
            f"{front[rank]}ncclCommInitRank comm 0x5{rank} rank {rank} nranks 8 cudaDev {rank} nvmlDev {rank} busId"
            f" {rank + 1}b000 commId 0x7 - Init COMPLETE\n"
            for rank in range(8)
        )
    return "".join(
        f"{front[rank]}AllReduce: opCount {number:x} sendbuff 0x7f8f4a000000 recvbuff 0x7f8f4a000000 acc (nil) count"
        f" 4194304 datatype 9 op 0 root 0 comm 0x5{rank} [nranks=8] stream 0x55d1c0\n"
        for rank in range(8)
    )


def metrics_lines(number: int) -> str:
    """A scrape of eight GPUs (all of it is asked for) and of an engine's histograms (nearly none of it is)."""
    rows = [f"# scrape {1_780_000_000 + number * 15}"]
    for gpu in range(8):
        labels = (
            f'gpu="{gpu}",UUID="GPU-{gpu}-aaaa",pci_bus_id="00000000:{gpu + 1}B:00.0",device="nvidia{gpu}",'
            'modelName="NVIDIA H100 80GB HBM3",Hostname="node7",DCGM_FI_DRIVER_VERSION="550.54"'
        )
        for name in ("GPU_TEMP", "POWER_USAGE", "GPU_UTIL", "SM_CLOCK", "PCIE_REPLAY_COUNTER", "XID_ERRORS"):
            rows.append(f"DCGM_FI_DEV_{name}{{{labels}}} {0 if name == 'XID_ERRORS' else number % 50}")
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds"):
        labels = 'engine="0",model_name="meta-llama/Llama-3.1-70B-Instruct"'
        rows += [f'vllm:{name}_bucket{{{labels},le="{2**step / 1000}"}} {number}' for step in range(22)]
        rows += [f"vllm:{name}_sum{{{labels}}} {number * 1.5}", f"vllm:{name}_count{{{labels}}} {number * 7}"]
    return "\n".join(rows) + "\n"


LOGS = {
    "vLLM log": (vllm_lines, 200, 20.0), "SGLang log": (sglang_lines, 200, 20.0), "NCCL log": (nccl_lines, 200, 20.0),
    "Prometheus metrics": (metrics_lines, 100, 10.0),
}  # fmt: skip


def logs(folder: Path, linkwise: str) -> bool:
    """The speed of each kind of log, whole process. Nothing in them is a fault."""
    met = True
    for name, (rows, megabytes, asked) in LOGS.items():
        path = folder / f"{name.split()[0].lower()}.log"
        with path.open("w") as file:
            number = 0
            while file.tell() < megabytes * 10**6:
                file.write("".join(rows(n) for n in range(number, number + 100)))
                number += 100
        before = _children_s()
        seconds, peak, code, _ = whole([linkwise, "diagnose", str(path)])
        cpu_s = _children_s() - before
        title = f"{megabytes} MB of {name}, CPU: {megabytes / cpu_s:.0f} MB/s (wall {seconds:.1f} s)"
        met &= line(title, cpu_s, peak, megabytes / asked, 2000, code == 0)
        path.unlink()
    return met


def _children_s() -> float:
    """Processor time of all that this process started and waited for, which others' work does not lengthen."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def whole(words: list[str]) -> tuple[float, float, int, str]:
    """Seconds, largest resident memory in MB (of the process and its children), exit code, standard output."""
    start = time.perf_counter()
    script = (
        "import resource,subprocess,sys;"
        "code=subprocess.run(sys.argv[1:]).returncode;"
        "print('\\npeak',resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,file=sys.stderr);sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    peak = float(done.stderr.rsplit("peak", 1)[1]) / 1024
    return time.perf_counter() - start, peak, done.returncode, done.stdout


def line(name: str, seconds: float, peak: float, asked_s: float, asked_mb: float, right: bool) -> bool:
    met = seconds <= asked_s and peak <= asked_mb and right
    verdict = "met" if met else "MISSED" if right else "WRONG ANSWER"
    print(f"{name:58} {seconds:6.2f} s {peak:7.0f} MB   asked {asked_s:g} s, {asked_mb:g} MB   {verdict}", flush=True)
    return met


def main() -> int:
    ranks, entries = (int(word) for word in (sys.argv[1:3] or ("1024", "2000")))
    linkwise = str(Path(sys.executable).with_name("linkwise"))
    met = True
    if LABELLED.is_dir():
        whole([linkwise, "diagnose", str(LABELLED)])
        seconds, peak, _, out = whole([linkwise, "diagnose", str(LABELLED), "--json"])
        named = sorted(r for one in json.loads(out)["findings"] for r in one["original_fault"]["ranks"])
        met &= line("16 real ranks", seconds, peak, 1.0, 1000, named == [12, 14])
    else:
        print("16 real ranks: the shared reference data is not beside the repository")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "dumps"
        folder.mkdir()
        dumps(folder, ranks, entries)
        seconds, peak, _, out = whole([linkwise, "diagnose", str(folder), "--json"])
        named = sorted(r for one in json.loads(out)["findings"] for r in one["original_fault"]["ranks"])
        met &= line(f"{ranks} ranks x {entries} entries", seconds, peak, 25.0, 1000, named == [LATE % ranks])
        _torch(folder, seconds)
        trace = Path(name) / "rank0.pt.trace.json"
        kineto(trace, 200)
        seconds, peak, code, _ = whole([linkwise, "diagnose", str(trace)])
        met &= line("200 MB of Kineto", seconds, peak, 20.0, 4000, code in {0, 1, 3})
        trace.unlink()
        met &= logs(Path(name), linkwise)
    return 0 if met else 1


def _torch(folder: Path, ours: float) -> None:
    """torch's analyser on the same dumps; it wants `<prefix><rank>` names and every rank of the default group."""
    program = "from torch.distributed.flight_recorder.fr_trace import main; import sys; main(sys.argv[1:])"
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), "-p", "_dump_"], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    words = (done.stdout + done.stderr).strip().splitlines()
    verdict = f"exit code {done.returncode}, last line: {words[-1][:100]}" if words else "nothing printed"
    print(f"{'torch flight recorder analyser':44} {seconds:6.2f} s   {seconds / ours:.1f} times ours   {verdict}")


if __name__ == "__main__":
    sys.exit(main())
