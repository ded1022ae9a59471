"""Lines of engines' logs that mean one thing each, in the words of the sources that write them."""

import re
from typing import NamedTuple

from linkwise.trace.facts import Kind

_N = r"(?P<n>\d{1,12}(?:\.\d{1,9})?)"


class Rule(NamedTuple):
    """A line that means one thing. Named groups become labels; n, rank and code their fields, n times factor."""

    pattern: re.Pattern[str]
    kind: Kind
    name: str
    labels: dict[str, str]
    factor: float = 1.0
    unit: str = ""


def _rule(pattern: str, kind: Kind, name: str, factor: float = 1.0, unit: str = "", **labels: str) -> Rule:
    return Rule(re.compile(pattern), kind, name, labels, factor, unit)


def _handoff(pattern: str, **labels: str) -> Rule:
    return _rule(pattern, "error", "handoff_timeout", 1.0, "s", **labels)


_ADDRESS = r"\[(?P<peer>[\w.:%-]{1,100})\](?::(?P<port>\d{1,5}))?"
_TASK = r"srun: error: (?P<node>\S{1,100}): task (?P<rank>\d{1,6}): "
RULES = (
    # vLLM distributed/device_communicators/shm_broadcast.py: an INFO line of idle and of waiting engines alike.
    _rule(rf"No available shared memory broadcast block found in {_N} ?s", "notice", "shm_broadcast_wait", unit="s"),
    # SGLang disaggregation/{mooncake,nixl,mori}/conn.py: Bootstrapping waits on the prefill side for the decode side's
    # blocks, WaitingForInput on the decode side for the prefill side's data.
    _handoff(rf"timed out after {_N}s in KVPoll\.(?P<state>Bootstrapping)", pool="prefill"),
    _handoff(rf"timed out after {_N}s in KVPoll\.(?P<state>WaitingForInput)", pool="decode"),
    _handoff(rf"timed out after {_N}s in KVPoll\.(?P<state>\w{{1,40}})"),
    _handoff(rf"timed out after {_N}s waiting for decode handshake", state="Handshake", pool="prefill"),
    # vLLM distributed/kv_transfer/kv_connector/v1/nixl: the prefill side frees what nobody fetched.
    _handoff(
        r"Releasing expired KV blocks for request \S{1,200} which were retrieved by (?P<readers>\d{1,6}) "
        rf"(?:decode|remote) worker\(s\)(?: within {_N} seconds)?",
        state="Expired",
        pool="prefill",
    ),
    _rule(r"Sync batch data transfer timeout", "error", "transfer_timeout"),  # Mooncake transfer_engine_py.cpp
    _rule(r"(?P<pool>Prefill|Decode) (?:transfer|bootstrap) failed", "error", "handoff_failed"),
    # torch utils/file_baton.py and aiter jit/utils/file_baton.py: a rank waits for another that builds a kernel.
    _rule(r"waiting for baton release at (?P<lock>\S{1,300})", "error", "lock_wait"),
    # SGLang srt/utils/watchdog.py and managers/scheduler.py.
    _rule(
        r"(?:(?P<who>\w{1,40}) )?[Ww]atchdog timeout "
        rf"\(self\.watchdog_timeout={_N}(?:, self\.soft=(?P<soft>\w{{4,5}}))?",
        "error",
        "engine_watchdog",
        unit="s",
    ),
    # TensorRT-LLM _torch/pyexecutor/py_executor.py.
    _rule(r"Hang detected on rank (?P<rank>\d{1,6}) in PyExecutor", "error", "engine_watchdog", who="PyExecutor"),
    # vLLM v1/executor/multiproc_executor.py.
    _rule(r"RPC call to (?P<call>\w{1,60}) timed out", "error", "rpc_timeout"),
    # gloo transport/tcp/unbound_buffer.cc and pair.cc.
    _rule(
        rf"Timed out waiting {_N}ms for (?P<operation>\w{{1,20}}) operation to complete",
        "error",
        "gloo_timeout",
        1e-3,
        "s",
    ),
    _rule(rf"Connection closed by peer {_ADDRESS}", "error", "peer_closed", how="closed"),
    _rule(rf"(?:Read|Write) error {_ADDRESS}: (?P<how>Connection reset by peer|Broken pipe)", "error", "peer_closed"),
    _rule(r"(?:gloo|pair\.cc).{0,200}(?P<how>Connection reset by peer)", "error", "peer_closed"),
    # torch csrc/distributed/c10d/TCPStore.cpp and socket.cpp.
    _rule(
        r"(?:sendBytes|recvValue\w*|recvVector) failed on SocketImpl\(.{0,300}remote=\[(?P<peer>[\w.:%-]{1,100})\]",
        "error",
        "store_lost",
    ),
    _rule(r"uncorrectable ECC error encountered", "device", "ecc.uncorrected", severity="hardware"),
    _rule(r"(?:CUDA|HIP) (?:error: )?out of memory", "error", "gpu_out_of_memory"),
    _rule(r"(?:CUDA|HIP) error: (?P<reason>[\w ,'-]{1,120})", "error", "cuda_error"),
    _rule(r"Memory access fault by GPU node-(?P<node_id>\d{1,5})", "error", "gpu_fault"),
    _rule(r"(?P<reason>HSA_STATUS_ERROR_\w{1,60})", "error", "gpu_fault"),
    _rule(r"NCCL error: (?P<reason>[\w ]{1,80})", "error", "nccl_error"),
    _rule(r"(?P<reason>nccl(?:System|Remote|Internal|UnhandledCuda)Error)", "error", "nccl_error"),
    # vLLM v1/executor/{multiproc_executor,ray_executor_v2}.py and v1/engine/utils.py.
    _rule(r"Worker proc VllmWorker-(?P<rank>\d{1,6}) died unexpectedly", "exit", "died", code="unknown"),
    _rule(r"RayWorkerProc rank=\[(?P<rank>\d{1,6})[\],].*died unexpectedly", "exit", "died", code="unknown"),
    _rule(r"Engine core proc (?P<process>\w{1,60}) died unexpectedly", "exit", "died", code="unknown"),
    # SGLang srt/entrypoints/engine.py. What waitpid gives is a status: a signal's number is not negative there.
    _rule(r"Rank (?P<rank>\d{1,6}) scheduler (?:is dead|died)", "exit", "died", code="unknown"),
    _rule(
        r"Child process unexpectedly failed with exitcode=(?P<status>-?\d{1,6})\. pid=(?P<pid>\d{1,10})",
        "exit",
        "died",
    ),
    # Slurm srun, Open MPI, torch elastic; UCX ucs/debug/debug.c.
    _rule(rf"{_TASK}(?P<signal>Killed|Segmentation fault|Aborted|Terminated)", "exit", "died"),
    _rule(rf"{_TASK}Exited with exit code {_N}", "exit", "died"),
    _rule(
        r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d{1,10}) on node (?P<node>\S{1,100}) "
        rf"exited on signal {_N}",
        "exit",
        "died",
        -1,
    ),
    _rule(rf"Signal {_N} \((?P<signal>SIG\w{{2,8}})\) received by PID (?P<pid>\d{{1,10}})", "exit", "died", -1),
    _rule(rf"[Cc]aught signal {_N} \((?P<signal>[\w ]{{3,40}})", "exit", "died", -1),
    _rule(r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)", "error", "engine_dead"),
)
SIGNALS = {"Killed": -9, "Segmentation fault": -11, "Aborted": -6, "Terminated": -15}
