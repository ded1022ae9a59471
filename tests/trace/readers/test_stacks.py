"""The place where a process stands is its innermost collective, and who called it is the engine's own function."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import mutated, never_raises, one, pick, read, recognises

from linkwise.trace.readers import stacks
from linkwise.trace.readers.stacks import Frame, standing

PYSPY = """Process 88692: sglang::scheduler_TP0
Python v3.12.3 (/usr/bin/python3.12)

Thread 88692 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    _all_reduce_attn_groups (hiradix_cache.py:196)
    can_terminate_prefetch (hiradix_cache.py:1350)
    check_prefetch_progress (hiradix_cache.py:1373)
    _get_new_batch_prefill_raw (scheduler.py:2679)
Thread 90522 (idle): "Thread-2 (_watchdog_thread)"
    poll (libc.so.6)
    select (selectors.py:415)
    communicate (subprocess.py:1209)

Process 88693: sglang::scheduler_TP1
Python v3.12.3 (/usr/bin/python3.12)

Thread 88693 (idle): "MainThread"
    0x7fa2d1487d71 (libc.so.6)
    pthread_cond_timedwait (libc.so.6)
    gloo::transport::tcp::UnboundBuffer::waitRecv (libtorch_cpu.so)
    c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so)
    pybind11::cpp_function::initialize<bool, c10d::Work, std::ratio<(long)1> (pybind11::name const)::{lambda()#1} (libtorch_python.so)
    broadcast (torch/distributed/distributed_c10d.py:2974)
    broadcast_pyobj (utils/common.py:1437)
    _broadcast_reqs_across_ranks (scheduler_components/request_receiver.py:187)
    recv_requests (scheduler_components/request_receiver.py:90)
"""  # noqa: E501
ENGINE = """Process 99: VLLM::EngineCore
Python v3.12.3 (/usr/bin/python3.12)

Thread 99 (idle): "MainThread"
    acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:500)
    dequeue (vllm/distributed/device_communicators/shm_broadcast.py:600)
    get_response (vllm/v1/executor/multiproc_executor.py:300)
Process 100: python -m serve --node-rank 1 --rank 3
Python v3.12.3 (/usr/bin/python3.12)

Thread 100 (active): "MainThread"
    wait (torch/utils/file_baton.py:55)
    build (aiter/jit/core.py:300)
    all_reduce (aiter/dist/custom_all_reduce.py:10)
Process 101: sglang::scheduler_DP1_TP5_EP5
Thread 101 (active): "MainThread"
    synchronize (torch/cuda/streams.py:234)
    process_batch_result_decode (scheduler.py:3933)
Thread 102 (active): "forward"
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:4000)
    prepare_mlp_sync_batch (scheduler_dp_attn_mixin.py:90)
Process 102: VLLM::Worker_TP2
Thread 103 (active): "MainThread"
    forward (vllm/model_executor/layers/linear.py:1200)
    execute_model (vllm/v1/worker/gpu_worker.py:500)
"""
GDB = """=========== rank 5 ===============
Thread 3 (Thread 0x7f535e7fb000 (LWP 500879) "python3"):
#0  futex_wait_cancelable (private=<optimized out>, expected=0) at ../sysdeps/nptl/futex-internal.h:183
#1  0x00007f539f454740 in ncclProxyGetPostedOps (added=<synthetic pointer>) at proxy.cc:713
Thread 1 (Thread 0x7f55b2b2f700 (LWP 3511)):
#0  ncclLocalOpAppend (comm=0x1, proxyConn=0x2, proxyOp=0x7) at proxy.cc:531
#1  0x00007f04fca2158e in SaveProxy (comm=0x1) at proxy.cc:600
#2  0x00007f04fca2158e in ?? () from /usr/lib/x86_64-linux-gnu/libnccl.so.2
#3  0x00007f04fc98d6e6 in ncclAllGather () from /usr/lib/x86_64-linux-gnu/libnccl.so.2
=========== rank 6 ===============
Thread 2 (Thread 0x7f535e7fb000 (LWP 600)):
#0  0x00007f55b2c07 in poll () from /usr/lib64/libc.so.6
Thread 1 (LWP 601):
#0  __lll_lock_wait () at ../nptl/sysdeps/unix/sysv/linux/x86_64/lowlevellock.S:136
#1  0x00007f0 in take_gil (tstate=0x1) at Python/ceval_gil.c:300
#2  0x00007f1 in c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor, std::allocator<at::Tensor> >&) () from libtorch_cuda.so
"""  # noqa: E501
FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f2e93fff640 (most recent call first):
  File "/x/sglang/srt/managers/scheduler.py", line 462 in watchdog_thread
  File "/usr/lib/python3.10/threading.py", line 953 in run

Current thread 0x00007f2ea0870640 (most recent call first):
  File "/y/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/y/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/x/sglang/srt/distributed/parallel_state.py", line 400 in all_reduce
  File "/x/sglang/srt/layers/linear.py", line 1200 in forward
"""


def test_ranks_in_different_collectives(tmp_path: Path) -> None:
    first, second = read(tmp_path, stacks, PYSPY).facts
    assert (first.kind, first.name, first.rank, first.label("pid")) == ("stack", "all_reduce", 0, "88692")
    assert first.label("caller") == "can_terminate_prefetch"
    assert first.label("at") == "hiradix_cache.py:1350"
    assert first.label("frames") == (
        "all_reduce < _all_reduce_attn_groups < can_terminate_prefetch < check_prefetch_progress"
        " < _get_new_batch_prefill_raw"
    )
    assert (second.name, second.rank, second.label("caller")) == ("broadcast", 1, "recv_requests")
    assert second.source == "evidence.txt: line 18"


def test_waits_locks_and_work(tmp_path: Path) -> None:
    facts = read(tmp_path, stacks, ENGINE).facts
    assert [(f.name, f.rank, f.label("thread")) for f in facts] == [
        ("idle", -1, "main"),  # a queue, no broadcast
        ("lock", 3, "main"),  # within a call, but held up by a file's lock; the node's rank is another
        ("device_wait", 5, "main"),
        ("all_gather", 5, "forward"),
        ("compute", 2, "main"),
    ]
    assert facts[3].label("caller") == "prepare_mlp_sync_batch"
    assert facts[4].label("caller") == "execute_model"


def test_gdb(tmp_path: Path) -> None:
    proxy, gil = read(tmp_path, stacks, GDB).facts
    assert (proxy.name, proxy.rank, proxy.label("pid"), proxy.label("within")) == (
        "nccl_proxy",
        5,
        "3511",
        "all_gather",
    )
    assert proxy.label("frames") == "ncclLocalOpAppend < SaveProxy < ncclAllGather"
    assert (gil.name, gil.rank) == ("lock", 6)


def test_faulthandler(tmp_path: Path) -> None:
    reading = read(tmp_path, stacks, FAULT, "crash_rank2.txt")
    fatal = one(reading, "error", "fatal_python_error")
    assert (fatal.rank, fatal.label("reason")) == (2, "Segmentation fault")
    (fact,) = pick(reading, "stack")
    assert (fact.name, fact.rank, fact.label("caller"), fact.label("thread")) == ("all_reduce", 2, "forward", "main")


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        (["recv_tensor_dict|parallel_state.py", "step|engine.py"], "recv"),
        (["recv|zmq/sugar/socket.py", "loop|router.py"], "idle"),
        (["c10d::ProcessGroupGloo::RecvWork::wait|libtorch_cpu.so", "point_to_point_pyobj|utils/common.py"], "recv"),
        (["broadcast_tensors|torch/functional.py", "forward|x.py"], "compute"),
        (["reduce|functools.py", "f|x.py"], "compute"),
        (["get|queue.py", "broadcast_pyobj|utils/common.py"], "idle"),
        (["cudaStreamSynchronize|libcudart.so", "barrier|torch/distributed/distributed_c10d.py"], "barrier"),
        (["pthread_cond_wait|libc.so", "clone|libc.so"], "idle"),
        # The loop that called it waits for work; the function of the engine within does not.
        (["get_2stage_cfgs|aiter/fused_moe.py", "collective_rpc|vllm/v1/serial_utils.py"], "compute"),
        (["PMPI_Allreduce|libmpi.so.40", "gather|x.py"], "all_reduce"),
    ],
)
def test_what_frames_say(frames: list[str], name: str) -> None:
    rows = [Frame(*frame.split("|"), "1") for frame in frames]
    assert standing(rows)[0] == name


def test_not_recognised(tmp_path: Path) -> None:
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n    f()\nValueError: x\n'
    assert not recognises(tmp_path, stacks, traceback)
    assert not recognises(tmp_path, stacks, 'Thread 1 (active): "MainThread"\n')


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated(PYSPY), mutated(ENGINE), mutated(GDB), mutated(FAULT)))
def test_only_refuses(data: bytes) -> None:
    never_raises(stacks, data, "evidence.txt")
