"""Lines of engines' logs that mean one thing each, in the words of the sources that write them."""

import re
from typing import NamedTuple

from linkwise.trace.facts import Kind

_N = r"(?P<n>-?\d{1,12}(?:\.\d{1,9})?)"


class Rule(NamedTuple):
    """A line that means one thing. mark: a word that every such line holds, as it stands. Named groups of the pattern
    become labels; n, rank and code their fields, n times factor."""

    mark: str
    pattern: re.Pattern[str]
    kind: Kind
    name: str
    labels: dict[str, str]
    factor: float = 1.0
    unit: str = ""


def _rule(mark: str, pattern: str, kind: Kind, name: str, factor: float = 1.0, unit: str = "", **labels: str) -> Rule:
    return Rule(mark, re.compile(pattern), kind, name, labels, factor, unit)


def _error(mark: str, pattern: str, name: str, **labels: str) -> Rule:
    return Rule(mark, re.compile(pattern), "error", name, labels)


def _handoff(mark: str, pattern: str, **labels: str) -> Rule:
    return Rule(mark, re.compile(pattern), "error", "handoff_timeout", labels, unit="s")


def _ended(mark: str, pattern: str, factor: float = 1.0) -> Rule:
    return Rule(mark, re.compile(pattern), "exit", "died", {}, factor)


_ADDRESS = r"\[(?P<peer>[\w.:%-]{1,100})\](?::(?P<port>\d{1,5}))?"
_TASK = r"srun: error: (?P<node>\S{1,100}): task (?P<rank>\d{1,6}): "
_CODE = r"(?: \(exit code: (?P<n>-?\d{1,4})\))?"
RULES = (
    # vLLM distributed/device_communicators/shm_broadcast.py: an INFO line of idle and of waiting engines alike.
    _rule(
        "memory broadcast", rf"No available shared memory broadcast block found in {_N} ?s", "notice",
        "shm_broadcast_wait", unit="s",
    ),
    # SGLang disaggregation/{mooncake,nixl,mori}/conn.py: Bootstrapping waits on the prefill side for the decode side's
    # blocks, WaitingForInput on the decode side for the prefill side's data.
    _handoff("KVPoll.", rf"timed out after {_N}s in KVPoll\.(?P<state>Bootstrapping)", pool="prefill"),
    _handoff("KVPoll.", rf"timed out after {_N}s in KVPoll\.(?P<state>WaitingForInput)", pool="decode"),
    _handoff("KVPoll.", rf"timed out after {_N}s in KVPoll\.(?P<state>\w{{1,40}})"),
    _handoff(
        "decode handshake", rf"timed out after {_N}s waiting for decode handshake", state="Handshake", pool="prefill"
    ),
    # vLLM distributed/kv_transfer/kv_connector/v1/nixl: the prefill side frees what nobody fetched.
    _handoff(
        "expired KV",
        r"Releasing expired KV blocks for request \S{1,200} which were retrieved by (?P<readers>\d{1,6}) "
        rf"(?:decode|remote) worker\(s\)(?: within {_N} seconds)?",
        state="Expired", pool="prefill",
    ),
    _error("transfer timeout", r"Sync batch data transfer timeout", "transfer_timeout"),  # Mooncake
    _error(" failed", r"(?P<pool>Prefill|Decode) (?:transfer|bootstrap) failed", "handoff_failed"),
    # torch utils/file_baton.py and aiter jit/utils/file_baton.py: a rank waits for another that builds a kernel.
    _error("baton release", r"waiting for baton release at (?P<lock>\S{1,300})", "lock_wait"),
    # SGLang srt/utils/watchdog.py and managers/scheduler.py.
    _rule(
        "atchdog timeout",
        r"(?:(?P<who>\w{1,40}) )?[Ww]atchdog timeout "
        rf"\(self\.watchdog_timeout={_N}(?:, self\.soft=(?P<soft>\w{{4,5}}))?",
        "error", "engine_watchdog", unit="s",
    ),
    # SGLang srt/entrypoints/http_server.py, health_generate: also where the engine is only busy.
    _rule(
        "Health check f", rf"Health check failed\. Server couldn't get a response from detokenizer for last {_N} sec",
        "notice", "health_failed", unit="s",
    ),
    # Dynamo lib/runtime/src/transports/etcd/lease.rs: discovery takes the process for gone, which ends it.
    _error("refresh lease", r"Unable to refresh lease - (?P<how>expired|deadline exceeded)", "lease_lost"),
    # Dynamo lib/runtime/.../tcp/server.rs (any probe of the port), lib/llm/.../zmq.rs (each second of a start).
    _rule("Connection closed without", r"Connection closed without a ControlMess", "notice", "peer_left"),
    _rule("Ping timed out", r"ZmqActiveMessageLeader: Ping timed out", "notice", "workers_awaited"),
    # TensorRT-LLM _torch/pyexecutor/py_executor.py.
    _error("Hang det", r"Hang detected on rank (?P<rank>\d{1,6}) in PyExecutor", "engine_watchdog", who="PyExecutor"),
    # vLLM v1/executor/multiproc_executor.py.
    _error("RPC call to", r"RPC call to (?P<call>\w{1,60}) timed out", "rpc_timeout"),
    # gloo transport/tcp/unbound_buffer.cc and pair.cc.
    _rule(
        "Timed out waiting", rf"Timed out waiting {_N}ms for (?P<operation>\w{{1,20}}) operation to complete",
        "error", "gloo_timeout", 1e-3, "s",
    ),
    _error("Connection closed", rf"Connection closed by peer {_ADDRESS}", "peer_closed", how="closed"),
    _error(
        " error [", rf"(?:Read|Write) error {_ADDRESS}: (?P<how>Connection reset by peer|Broken pipe)", "peer_closed"
    ),
    _error("Connection reset", r"(?:gloo|pair\.cc).{0,200}(?P<how>Connection reset by peer)", "peer_closed"),
    # torch csrc/distributed/c10d/TCPStore.cpp and socket.cpp.
    _error(
        "SocketImpl(",
        r"(?:sendBytes|recvValue\w*|recvVector) failed on SocketImpl\(.{0,300}remote=\[(?P<peer>[\w.:%-]{1,100})\]",
        "store_lost",
    ),
    _rule("ECC error", r"uncorrectable ECC error encountered", "device", "ecc.uncorrected", severity="hardware"),
    # torch c10/cuda/CUDACachingAllocator.cpp: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...
    _error("out of memory", r"(?:CUDA|HIP) (?:error: )?out of memory", "gpu_out_of_memory"),
    # TensorRT-LLM common/cudaUtils.h.
    _error("untime error in", r"CUDA runtime error in .{1,300}?: out of memory", "gpu_out_of_memory"),
    _error("untime error in", r"CUDA runtime error in .{1,300}?: (?P<reason>[\w ,'-]{1,120})", "cuda_error"),
    _error(" error: ", r"(?:CUDA|HIP) error: (?P<reason>[\w ,'-]{1,120})", "cuda_error"),
    _error("access fault", r"Memory access fault by GPU node-(?P<node_id>\d{1,5})", "gpu_fault"),
    _error("HSA_STATUS", r"(?P<reason>HSA_STATUS_ERROR_\w{1,60})", "gpu_fault"),
    _error("CL error", r"NCCL error: (?P<reason>[\w ]{1,80})", "nccl_error"),
    _error(
        "nccl", r"(?P<reason>nccl(?:System|Remote|Internal|UnhandledCuda)Error|ncclInvalid(?:Usage|Argument))",
        "nccl_error",
    ),
    _error("No CUDA GPUs", r"(?P<reason>No CUDA GPUs are available)", "cuda_error"),
    # A peer does not answer: UCX uct/ib/base/ib_log.c, NIXL's status codes, DeepEP csrc/kernels.
    _error(
        "retry count", r"UCX .{0,200}(?P<how>Transport retry count exceeded)(?: on (?P<nic>[\w:]{1,60}))?",
        "peer_silent",
    ),
    _error("NIXL_ERR", r"(?P<how>NIXL_ERR_REMOTE_DISCONNECT)", "peer_silent"),
    _error("DeepEP", r"DeepEP.{0,80}timeout.{0,80}?\brank[ :=]{0,3}(?P<rank>\d{1,6})", "peer_silent"),
    # Of the host: numpy, C++, /dev/shm, slurmstepd, raylet.
    _error("Detected ", r"Detected \d{1,6} oom[_-]kill events?", "host_out_of_memory"),
    _error("running low on memory", r"killed due to the node running low on memory", "host_out_of_memory"),
    _error("bad_alloc", r"std::bad_alloc", "host_out_of_memory"),
    _error("allocate memory", r"Cannot allocate memory", "host_out_of_memory"),
    _error("No space left", r"No space left on device", "host_disk_full"),
    # C++ std::terminate; torch ProcessGroupNCCL's own end says so on every rank.
    _error("terminate called", r"terminate called after throwing an instance of '(?P<type>[\w:]{1,120})'", "abort"),
    # vLLM v1/executor/{multiproc_executor,ray_executor_v2}.py and v1/engine/utils.py.
    _rule("was terminated", r"WorkerProc was terminated", "notice", "terminated"),  # by SIGTERM or SIGINT
    _ended("died unexpectedly", rf"Worker proc VllmWorker-(?P<rank>\d{{1,6}}) died unexpectedly{_CODE}"),
    _ended("died unexpectedly", r"RayWorkerProc rank=\[(?P<rank>\d{1,6})[\],].*died unexpectedly"),
    _error("died unexpectedly", r"Engine core proc (?P<proc>\w{1,60}) died unexpectedly", "engine_dead"),
    # SGLang srt/entrypoints/engine.py. What waitpid gives is a status: a signal's number is not negative there.
    _ended("scheduler ", r"Rank (?P<rank>\d{1,6}) scheduler (?:is dead|died)"),
    _ended(
        "unexpectedly failed",
        r"Child process unexpectedly failed with (?:exitcode=|an exit code )(?P<status>-?\d{1,6})\. "
        r"pid=(?P<pid>\d{1,10})",
    ),
    _error("one child failed", r"SIGQUIT received\. .{0,200}It usually means one child failed", "engine_dead"),
    # Slurm srun, Open MPI, torch elastic; UCX ucs/debug/debug.c.
    _ended("srun: ", rf"{_TASK}(?P<signal>Killed|Segmentation fault|Aborted|Terminated)"),
    _rule("srun: ", rf"{_TASK}(?P<signal>Out Of Memory)", "exit", "oom"),
    _ended("srun: ", rf"{_TASK}Exited with exit code {_N}"),
    _ended(
        "exited on signal",
        r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d{1,10}) on node (?P<node>\S{1,100}) "
        rf"exited on signal {_N}",
        -1,
    ),
    _error("Process name: [[", r"Process name: \[\[\d{1,9},\d{1,9}\],(?P<rank>\d{1,6})\]", "exited"),
    _error("MPI_ABORT", r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6})", "abort"),
    _ended("received by PID", rf"Signal {_N} \((?P<signal>SIG\w{{2,8}})\) received by PID (?P<pid>\d{{1,10}})", -1),
    _ended("aught signal", rf"[Cc]aught signal {_N} \((?P<signal>[\w ]{{3,40}})", -1),
    # A process says that an exception ends it, which stands below or behind. vLLM v1/engine/core.py and v1/executor/
    # multiproc_executor.py; SGLang managers/*.py; TensorRT-LLM pyexecutor/py_executor.py and executor/worker.py.
    _error("hit an exception", r"(?P<who>\w{1,60}) hit an exception", "fatal_exception"),
    _error("fatal error", r"(?P<who>EngineCore) encountered a fatal error", "fatal_exception"),
    _error("failed to start", r"(?P<who>EngineCore|WorkerProc) failed to start", "fatal_exception"),
    _error("forward", r"Encountered an error in (?P<who>forward\w*) function", "fatal_exception"),
    _error("event loop", r"\[TRT-LLM\].{0,120}Error in (?P<who>event loop)", "fatal_exception"),
    _error("initialize exec", r"Failed to initialize (?P<who>executor) on rank (?P<rank>\d{1,6})", "fatal_exception"),
    _error("EngineDeadError", r"EngineDeadError", "engine_dead"),
    _error("EngineCore enc", r"EngineCore encountered an issue", "engine_dead"),
    _error("ngine is already dead", r"\w*Engine is already dead", "engine_dead"),
    _error("initialization failed", r"Engine core initialization failed", "engine_dead"),
)  # fmt: skip
SIGNALS = {"Killed": -9, "Out Of Memory": -9, "Segmentation fault": -11, "Aborted": -6, "Terminated": -15}

# Types of exceptions that say nothing is wrong, or only that a person or another process ended this one.
ENDED = re.compile(
    r"(?:^|\.)(?:KeyboardInterrupt|SystemExit|CancelledError|GeneratorExit|ChildFailedError|SignalException)$"
)
# Those that tell of another process, and messages of others that do.
MESSAGE_OF_OTHERS = re.compile(
    r"by peer|by remote peer|Broken pipe|Timed out|timed out|[Tt]imeout|remote process exited|RemoteError|SocketImpl|"
    r"died unexpectedly|Worker failed with error|initialization failed. See root|Executor failed|cancelled$"
)
OF_OTHERS = re.compile(
    r"(?:^|\.)(?:Dist\w*Error|Connection\w*Error|BrokenPipeError|EOFError|Timeout\w*|\w*TimeoutError|EngineDeadError|"
    r"AsyncEngineDeadError|RayActorError|ActorDiedError|BrokenProcessPool|\w*ProcessRaisedException|ProcessExitedException)$"
)
