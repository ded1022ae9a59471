"""Errors that logs state. The lines are worded as the named project writes them; who is at fault follows from the
scenario that each test tells, not from what the rules do."""

from pathlib import Path

import pytest

from linkwise.diagnose.diagnose import diagnose
from linkwise.diagnose.types import Finding, Findings
from linkwise.trace.gather import gather

ILLEGAL = "CUDA error: an illegal memory access was encountered"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
TRACE = "Traceback (most recent call last):"


def answer(folder: Path, **files: str) -> Findings:
    """Each file by its name, `__` for a dot."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    found = diagnose(gather([folder]))
    assert not found.unusable
    return found


def only(folder: Path, **files: str) -> Finding:
    (one,) = answer(folder, **files).findings
    return one


def vllm(who: str, at: str, text: str, level: str = "ERROR") -> str:
    """A line of vLLM's logger; at: minutes and seconds."""
    return f"({who} pid=10{who[-1]}) {level} 02-27 10:{at} [multiproc_executor.py:596] {text}\n"


def nccl(rank: int, text: str, level: str = "WARN") -> str:
    where = "misc/socket.cc:49 " if level == "WARN" else ""
    return f"node{rank}:{100 + rank}:{200 + rank} [0] {where}NCCL {level} {text}\n"


def joined(world: int) -> str:
    return "".join(
        nccl(rank, f"ncclCommInitRank comm 0x{rank}a rank {rank} nranks {world} cudaDev 0 nvmlDev 0 busId 1b000 commId"
        " 0x77 - Init COMPLETE", "INFO") for rank in range(world)
    )  # fmt: skip


class TestOneProcess:
    def test_a_cuda_error_alone_is_undecided(self, tmp_path: Path) -> None:
        found = answer(tmp_path, server__log=vllm("Worker_TP3", "30:00", ILLEGAL))
        (one,) = found.findings
        assert (found.exit_code, one.decided, one.original_fault.ranks) == (3, False, ())
        assert one.first_reporter == "rank 3"
        assert "illegal memory access" in one.summary
        assert "Xid" in one.would_decide

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            (OOM, "GPU memory ran out"),
            ("RuntimeError: CUDA error: device-side assert triggered", "device-side assert"),
            ("RuntimeError: CUDA error: unspecified launch failure", "unspecified launch failure"),
            ("torch.AcceleratorError: CUDA error: unknown error", "unknown error"),
            ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", "NCCL error"),
            ("RuntimeError: HIP error: invalid device ordinal", "invalid device ordinal"),
            ("Memory access fault by GPU node-4 (Agent handle: 0x5) on address 0x7f. Reason: Unknown.", "access fault"),
            ("RuntimeError: unable to write: No space left on device (28)", "no space left"),
        ],
    )
    def test_each_error_is_said_with_its_rank(self, tmp_path: Path, line: str, words: str) -> None:
        one = only(tmp_path, job__log=f"[rank5]: {line}\n")
        assert (one.decided, one.first_reporter) == (False, "rank 5")
        assert words in one.summary

    def test_an_unknown_rank_is_named_by_its_file(self, tmp_path: Path) -> None:
        one = only(tmp_path, server__log=f'{TRACE}\n  File "/x/y.py", line 3, in run\n{OOM}\n')
        assert (one.decided, one.first_reporter) == (False, "server.log")

    def test_a_log_that_ends_with_a_traceback(self, tmp_path: Path) -> None:
        text = f'step 1\nstep 2\n{TRACE}\n  File "/x/y.py", line 3, in run\n    run()\nAssertionError: 3 != 4\n'
        one = only(tmp_path, rank_2__log=text)
        assert (one.decided, one.first_reporter) == (False, "rank 2")
        assert "AssertionError" in one.summary

    @pytest.mark.parametrize("after", ["INFO 02-27 10:30:00 [x.py:1] ready\n" * 3, "step 3\n" * 30])
    def test_one_that_goes_on_afterwards_is_well(self, tmp_path: Path, after: str) -> None:
        text = f'{TRACE}\n  File "/x/y.py", line 3, in run\n    run()\nValueError: a bad request\n{after}'
        assert answer(tmp_path, rank_2__log=text).findings == ()

    @pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit: 0", "asyncio.exceptions.CancelledError"])
    def test_one_that_a_person_ended_is_well(self, tmp_path: Path, kind: str) -> None:
        text = f'{TRACE}\n  File "/x/y.py", line 3, in run\n    run()\n{kind}\n'
        found = diagnose(gather([_written(tmp_path / "rank_2.log", text)]))
        assert found.findings == ()

    def test_what_a_user_typed_is_no_error(self, tmp_path: Path) -> None:
        line = vllm(
            "APIServer1", "30:00", f"Received request cmpl-1: prompt: '{ILLEGAL}', params: SamplingParams(n=1)", "INFO"
        )
        assert answer(tmp_path, server__log=line).findings == ()
        assert answer(tmp_path, server__log=line.replace("Received", "Added")).findings == ()

    def test_what_a_user_typed_over_several_lines_is_no_error(self, tmp_path: Path) -> None:
        """vLLM's NewLineFormatter repeats a line's front before each of its lines; other loggers go on without one."""
        text = ("why?", "Traceback (most recent call last):", '  File "/x/y.py", line 3, in run', ILLEGAL, "thanks")
        first = "Received request cmpl-1: prompt: '" + text[0]
        lines = [first, *text[1:-1], text[-1] + "', params: SamplingParams(n=1)"]
        fronted = "".join(vllm("APIServer1", "30:00", line, "INFO") for line in lines)
        assert answer(tmp_path, server__log=fronted).findings == ()
        after = vllm("APIServer1", "31:00", "all is well", "INFO")
        raw = vllm("APIServer1", "30:00", "\n".join(lines), "INFO")
        assert answer(tmp_path, server__log=raw + after).findings == ()
        assert answer(tmp_path, server__log=raw).findings == ()
        # What is not of the text stays: below its end, or with a front of its own.
        crash = vllm("Worker_TP1", "30:00", ILLEGAL, "ERROR")
        assert answer(tmp_path, server__log=raw + crash).findings
        assert answer(tmp_path, server__log=vllm("APIServer1", "30:00", first, "INFO") + crash).findings
        assert answer(tmp_path, server__log=raw + ILLEGAL + "\n").findings
        next_ = vllm("APIServer1", "30:02", "Received request cmpl-2: prompt: 'x', params: SamplingParams(n=1)", "INFO")
        assert answer(tmp_path, server__log=vllm("APIServer1", "30:00", first, "INFO") + crash + next_).findings

    def test_a_log_that_a_user_pasted_is_no_error(self, tmp_path: Path) -> None:
        """Its lines begin as evidence does; the text ends where the request's parameters follow."""
        lines = [
            "Received request cmpl-1: prompt: 'explain this log:",
            "[rank3]:[E1001 16:06:04.5 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600009 milliseconds before timing out.",
            "node0:1:2 [0] misc/socket.cc:1 NCCL WARN Cuda failure 'unspecified launch failure'",
            "[  123.456789] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            vllm("Worker_TP1", "30:00", ILLEGAL, "ERROR").rstrip(),
            "', params: SamplingParams(n=1)",
        ]
        text = vllm("APIServer1", "30:00", "\n".join(lines), "INFO") + vllm("APIServer1", "31:00", "well", "INFO")
        assert answer(tmp_path, server__log=text).findings == ()
        assert answer(tmp_path, server__log=text + vllm("Worker_TP1", "32:00", ILLEGAL, "ERROR")).findings

    def test_heartbeats_and_an_end_are_well(self, tmp_path: Path) -> None:
        text = vllm(
            "EngineCore_DP0", "30:00", "No available shared memory broadcast block found in 60 second(s).", "INFO"
        )
        text += vllm("Worker_TP1", "31:00", "WorkerProc was terminated", "WARNING")
        text += "[rank0]:[W1130 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not"
        text += " called before program exit, which can leak resources.\n"
        text += "srun: error: node7: task 3: Terminated\n"
        assert answer(tmp_path, server__log=text).findings == ()

    def test_connections_closed_at_the_end_of_a_job_are_well(self, tmp_path: Path) -> None:
        # https://github.com/NVIDIA/nccl/issues: [Service thread] lines are INFO and stand at every orderly end.
        text = joined(2) + nccl(0, "[Service thread] Connection closed by localRank 0", "INFO")
        assert answer(tmp_path, job__log=text).findings == ()


class TestSeveral:
    def test_the_one_with_an_error_of_its_own_is_where_it_began(self, tmp_path: Path) -> None:
        """Rank 2 runs out of memory; the others lose their connection to it, and one of them complains first in the
        file's order."""
        text = joined(4)
        text += "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network"
        text += " error\n"
        text += f"[rank2]: {OOM}\n"
        text += (
            "[rank1]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:36515.\n"
        )
        one = only(tmp_path, job__log=text)
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (2,))
        assert one.cause == "configuration"

    def test_workers_that_follow_an_exception_are_not_blamed(self, tmp_path: Path) -> None:
        """vLLM: the engine sees some worker's end first, which is not the one that hit the exception."""
        text = vllm("Worker_TP5", "30:00", "WorkerProc hit an exception.")
        text += vllm("Worker_TP5", "30:00", TRACE)
        text += vllm("Worker_TP5", "30:00", '  File "/x/worker.py", line 5, in execute_model')
        text += vllm("Worker_TP5", "30:00", "AssertionError: block table is too short")
        text += vllm("EngineCore_DP0", "30:01", "EngineCore encountered a fatal error.")
        text += vllm(
            "EngineCore_DP0", "30:01", "RuntimeError: Worker failed with error 'block table is too short', see above"
        )
        text += vllm("EngineCore_DP0", "30:05", "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.")
        one = only(tmp_path, server__log=text)
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (5,))
        assert one.first_reporter == "rank 5"
        assert one.cause == "software"

    def test_a_worker_whose_engine_fails_afterwards_is_named(self, tmp_path: Path) -> None:
        """vLLM: a worker runs out of memory, its engine's core repeats that and ends."""
        worker = vllm("Worker_TP2", "30:00", OOM)
        core = vllm("EngineCore_DP0", "30:01", "EngineCore encountered a fatal error.")
        core += vllm("EngineCore_DP0", "30:01", "RuntimeError: Worker failed with error 'CUDA out of memory. Tried to'")
        one = only(tmp_path, server__log=worker + core)
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (2,))
        assert one.cause == "configuration"
        before = core.replace("30:01", "29:58")  # the core failed first: the worker need not be why
        assert not only(tmp_path, server__log=before + worker).decided

    def test_a_worker_that_died_without_a_word_is_named(self, tmp_path: Path) -> None:
        text = vllm("EngineCore_DP0", "30:05", "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.")
        text += vllm("EngineCore_DP0", "30:06", "EngineCore encountered a fatal error.")
        one = only(tmp_path, server__log=text)
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (1,))

    def test_a_worker_that_the_kernel_killed_is_known_by_its_process_id(self, tmp_path: Path) -> None:
        text = "(Worker_TP1 pid=2211) INFO 11-30 09:59:00 [x.py:1] up\n(Worker_TP3 pid=2213) INFO 11-30 09:59:00 up\n"
        kill = "Memory cgroup out of memory: Killed process 2213 (VLLM::Worker_TP) total-vm:123456kB\n"
        one = only(tmp_path, server__log=text, dmesg__txt=f"[  123.456789] {kill}")
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (3,))
        assert "out of memory" in one.summary

    def test_workers_that_were_asked_to_end_are_not_blamed(self, tmp_path: Path) -> None:
        text = "".join(vllm(f"Worker_TP{rank}", "30:00", "WorkerProc was terminated", "WARNING") for rank in range(2))
        text += vllm("EngineCore_DP0", "30:02", "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.")
        assert answer(tmp_path, server__log=text).findings == ()

    def test_the_same_on_all_ranks_is_no_rank(self, tmp_path: Path) -> None:
        text = "".join(
            f"[2026-05-24 01:50:44 TP{rank}] Scheduler hit an exception: {TRACE}\n"
            f'  File "/x/scheduler.py", line 9, in run\n    run()\n[2026-05-24 01:50:44 TP{rank}] IndexError: list\n'
            for rank in range(4)
        )
        one = only(tmp_path, server__log=text)
        assert (one.decided, one.original_fault.ranks) == (False, ())
        assert "ranks 0 to 3" in one.summary
        assert "rather than one rank" in one.summary

    @pytest.mark.parametrize("front", ["", "2025-11-29T10:00:00Z "])
    def test_so_is_it_without_stacks(self, tmp_path: Path, front: str) -> None:
        text = "".join(f"{front}[rank{rank}]: RuntimeError: Expected all tensors on one device\n" for rank in range(4))
        one = only(tmp_path, server__log=text)
        assert (one.decided, one.original_fault.ranks) == (False, ())
        assert "ranks 0 to 3: RuntimeError ended it, on each of them" in one.summary

    def test_two_different_errors_are_undecided_and_the_first_is_named(self, tmp_path: Path) -> None:
        text = vllm("Worker_TP1", "30:09", OOM) + vllm("Worker_TP0", "30:04", ILLEGAL)
        one = only(tmp_path, server__log=text)
        assert (one.decided, one.first_reporter) == (False, "rank 0")
        assert "rank 1: GPU memory ran out" in one.summary

    def test_closed_connections_blame_the_peer_and_not_who_reports_them(self, tmp_path: Path) -> None:
        """Ranks 0 and 1 lose rank 2, which is killed and says nothing."""
        text = joined(3)
        for rank in (0, 1):
            text += nccl(rank, "socketProgress: Connection closed by remote peer node2<42830>")
            text += nccl(rank, "proxy.cc:1143 Socket recv failed while polling for opId=0x7f")
        one = only(tmp_path, job__log=text)
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (2,))

    def test_one_report_of_a_closed_connection_is_undecided(self, tmp_path: Path) -> None:
        text = joined(3) + nccl(0, "socketProgress: Connection closed by remote peer node9.cluster.example<42830>")
        one = only(tmp_path, job__log=text)
        assert (one.decided, one.original_fault.ranks, one.first_reporter) == (False, (), "rank 0")
        assert "ranks 1, 2 report nothing" in one.summary

    def test_a_watchdog_whose_thread_stands_is_a_hang(self, tmp_path: Path) -> None:
        text = "".join(
            f"[rank{rank}]:[E205 18:11:06.3 ProcessGroupNCCL.cpp:1870] [PG ID 3 PG GUID 9(tp:0) Rank {rank}]"
            " ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued\n"
            for rank in (1, 0)
        )
        one = only(tmp_path, job__log=vllm("Worker_TP1", "30:00", "all is well", "INFO") + text)
        assert (one.class_, one.decided, one.original_fault.ranks) == ("hang", False, ())
        assert (one.first_reporter, one.waited_s) == ("rank 1 (watchdog)", 480)

    def test_a_health_check_that_fails_is_a_hang_unless_the_engine_goes_on(self, tmp_path: Path) -> None:
        failed = "[2026-11-30 03:{}:18] Health check failed. Server couldn't get a response from detokenizer for last"
        failed += " 20 seconds. tic start time: 03:09:58. last_heartbeat time: 03:07:38\n"
        step = "[2026-11-30 03:1{}:30 TP0] Decode batch. #running-req: 4, #token: 8390, token usage: 0.02, gen"
        step += " throughput (token/s): 204.11, #queue-req: 0, \n"
        one = only(tmp_path, server__log=step.format(0) + failed.format(11) + failed.format(12))
        assert (one.class_, one.decided, one.original_fault.ranks, one.waited_s) == ("hang", False, (), 20)
        assert answer(tmp_path, server__log=failed.format(11) + step.format(2)).findings == ()
        # Another server that works is no comfort.
        assert answer(tmp_path, a__log=failed.format(11), b__log=step.format(2)).findings

    def test_an_engine_that_stands_at_the_end_of_a_long_log(self, tmp_path: Path) -> None:
        """Three hours of figures are thinned to one in three minutes; the last three minutes without a token count."""
        line = "(APIServer pid=1) INFO 11-30 {:02}:{:02}:{:02} [loggers.py:123] Engine 000: Avg prompt throughput: {}"
        line += " tokens/s, Avg generation throughput: {} tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache"
        line += " usage: 3.2%\n"
        times = [(n // 3600, n // 60 % 60, n % 60) for n in range(12_000)]
        works = "".join(line.format(*at, 10.0, 80.5) for at in times[:11_820])
        stands = "".join(line.format(*at, 0.0, 0.0) for at in times[11_820::10])
        one = only(tmp_path, server__log=works + stands)
        assert (one.class_, one.decided, one.waited_s) == ("hang", False, 170)

    def test_a_lease_that_ran_out_names_nobody(self, tmp_path: Path) -> None:
        """Dynamo's lines as JSON. A closed port and a second's wait at the start are no fault."""
        line = '{{"time":"2025-11-04T12:26:0{}.158212Z","level":"ERROR","target":"dynamo_runtime","message":"{}"}}\n'
        well = line.format(4, "failed to handle tcp connection: Connection closed without a ControlMessge")
        ping = (
            "2025-11-04T12:26:04.158212Z  INFO dynamo_llm::zmq: ZmqActiveMessageLeader: Ping timed out. Retrying...\n"
        )
        assert answer(tmp_path, w__log=well, v__log=ping).findings == ()
        lost = line.format(9, "Unable to refresh lease - expired. Check etcd server status")
        one = only(tmp_path, w__log=well + lost)
        assert (one.class_, one.decided) == ("undecided", False)
        assert "lease in etcd" in one.summary

    def test_a_watchdog_alone_is_a_victim(self, tmp_path: Path) -> None:
        """Older PyTorch says no more than that it waited; rank 3 is not at fault for it."""
        text = "[rank3]:[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: "
        text += (
            "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600123 milliseconds before timing out.\n"
        )
        one = only(tmp_path, job__log=text)
        assert (one.decided, one.original_fault.ranks) == (False, ())
        assert "rank 3" in one.first_reporter


TORCHRUN = """\
W0724 20:47:35.222000 1237 torch/distributed/elastic/.../api.py:1012] Sending process 1733 closing signal SIGTERM
E0724 20:47:36.140000 1237 torch/.../api.py:986] failed (exitcode: {code}) local_rank: 2 (pid: 1734) of binary: /x/py
Traceback (most recent call last):
  File "/x/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-07-24_20:47:35
  host      : node7
  rank      : 10 (local_rank: 2)
  exitcode  : {code} (pid: 1734)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 1734
============================================================
"""


class TestTorchrun:
    def test_a_killed_rank(self, tmp_path: Path) -> None:
        one = only(tmp_path, job__log=TORCHRUN.format(code=-9))
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (10,))
        assert one.original_fault.host == "node7"

    def test_the_kernel_says_why(self, tmp_path: Path) -> None:
        kernel = "[  901.123456] Out of memory: Killed process 1734 (python) total-vm:9kB, anon-rss:8kB\n"
        one = only(tmp_path, job__log=TORCHRUN.format(code=-9), dmesg__txt=kernel)
        assert (one.class_, one.original_fault.ranks) == ("dead_rank", (10,))
        assert "out of memory" in one.summary
        assert one.confidence >= 0.9

    @pytest.mark.parametrize("code", [1, -6])
    def test_a_code_of_its_own_is_undecided(self, tmp_path: Path, code: int) -> None:
        """An exception, or an abort after one, may be of a victim: only the rank's own log tells."""
        one = only(
            tmp_path, job__log=TORCHRUN.format(code=code).replace("Signal 9 (SIGKILL) received by PID 1734", "-")
        )
        assert (one.decided, one.original_fault.ranks, one.first_reporter) == (False, (), "rank 10")
        assert "log" in one.would_decide

    def test_its_own_log_decides(self, tmp_path: Path) -> None:
        found = answer(
            tmp_path, job__log=TORCHRUN.format(code=1), rank_10__log=f'{TRACE}\n  File "/x", line 3, in run\n{OOM}\n'
        )
        assert [(one.class_, one.original_fault.ranks) for one in found.findings if one.decided] == [
            ("dead_rank", (10,))
        ]


def test_an_xid_of_the_hardware_explains_the_cuda_errors(tmp_path: Path) -> None:
    kernel = "[  901.123456] NVRM: Xid (PCI:0000:1b:00): 79, pid=1734, GPU has fallen off the bus.\n"
    text = joined(2) + f"[rank0]: RuntimeError: {ILLEGAL}\n[rank1]: RuntimeError: NCCL error: unhandled cuda error\n"
    found = answer(tmp_path, job__log=text, dmesg__txt=kernel)
    assert [one.class_ for one in found.findings] == ["device_error"]


def test_tensorrt_llm(tmp_path: Path) -> None:
    text = "[05/24/2026-14:11:49] [TRT-LLM] [RANK 2] [E] Encountered an error in forward function: [TensorRT-LLM]"
    text += "[ERROR] CUDA runtime error in cudaMemcpyAsync(dst, src): an illegal memory access was encountered\n"
    one = only(tmp_path, server__log=text)
    assert (one.decided, one.first_reporter) == (False, "rank 2")
    assert "illegal memory access" in one.summary


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


class TestALogEach:
    """A file a rank; each of them ends with a traceback."""

    STACK = f'{TRACE}\n  File "/x/y.py", line 3, in run\n    run()\n'
    LOST = (
        "torch.distributed.DistBackendError: NCCL error in: x.hpp:1, remote process exited or there was a network error"
    )
    CLOSED = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:36515"

    def test_the_one_whose_exception_is_its_own(self, tmp_path: Path) -> None:
        logs = {
            f"rank_{rank}__log": self.STACK + (self.LOST if rank != 2 else "AssertionError: shapes")
            for rank in range(4)
        }
        one = only(tmp_path, **logs)
        assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (2,))

    def test_the_one_that_says_nothing_is_named_and_not_blamed(self, tmp_path: Path) -> None:
        logs = {f"rank_{rank}__log": self.STACK + self.CLOSED for rank in (0, 1, 3)}
        one = only(tmp_path, **logs, rank_2__log="INFO 02-27 10:29:01 [a.py:1] step 7\n")
        assert (one.decided, one.original_fault.ranks) == (False, ())
        assert "rank 2 report" in one.summary
        assert "rank 2" in one.would_decide


@pytest.mark.parametrize(
    ("line", "reporter"),
    [
        # Slurm, UCX, Open MPI, raylet, in their own words.
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
         "job.log"),
        ("[1700000000.1] [node1:123:0] ib_mlx5_log.c:171 UCX  ERROR Transport retry count exceeded on mlx5_0:1/RoCE",
         "job.log"),
        ("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD", "rank 2"),
        ("(raylet) Task was killed due to the node running low on memory.", "job.log"),
        ("(APIServer pid=1) ERROR 02-27 10:30:00 [x.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore"
         " encountered an issue.", "APIServer"),
        ("[rank1]:[W1130 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=7, addr=[n2]:4, remote=[n1]:2):"
         " failed to recv, got 0 bytes", "rank 1"),
    ],
)  # fmt: skip
def test_other_tools_errors_are_never_silent(tmp_path: Path, line: str, reporter: str) -> None:
    found = answer(tmp_path, job__log=f"[rank0]: started\n{line}\n")
    assert found.exit_code == 3
    assert found.findings[0].first_reporter == reporter


def test_out_of_memory_as_slurm_says_it(tmp_path: Path) -> None:
    one = only(tmp_path, job__log="srun: error: node7: task 3: Out Of Memory\nsrun: error: node7: task 2: Terminated\n")
    assert (one.class_, one.decided, one.original_fault.ranks) == ("dead_rank", True, (3,))
    assert "out of memory" in one.summary
