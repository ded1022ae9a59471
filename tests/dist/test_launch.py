"""Who is this rank, and the processes started here."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from linkwise.core.errors import InputError
from linkwise.dist.launch import Start, _wait, from_environment, spawn

pytest.importorskip("torch")

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "nodea", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "node[04-05]",
    "SLURM_JOB_ID": "123456",
}  # fmt: skip


def test_torchrun_and_srun_say_which_rank() -> None:
    assert from_environment(TORCHRUN) == Start(3, 8, 1, "nodea", 29500, False, "torchrun", "torchrun of 8 ranks")
    agent = from_environment(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert agent is not None
    assert agent.hosted
    # Job and step give all ranks the same port: 97 x 123456 + 0 = 11,975,232, which is 11,232 beyond 997 x 12,000.
    run = "slurm job 123456 step 0 of 8 ranks"
    assert from_environment(SLURM) == Start(3, 8, 1, "node04", 31232, False, "slurm", run)
    assert from_environment(SLURM | {"MASTER_PORT": "29500", "MASTER_ADDR": "10.0.0.1"}) == Start(
        3, 8, 1, "10.0.0.1", 29500, False, "slurm", run
    )


def test_two_steps_of_a_job_meet_at_two_ports_and_are_two_runs() -> None:
    """Step 5: 31232 + 5. What salloc's own step is called: 4,294,967,290 = 2^32 - 6."""
    ports = {}
    for step in ("0", "5", "4294967290"):
        start = from_environment(SLURM | {"SLURM_STEP_ID": step})
        assert start is not None
        assert start.run == f"slurm job 123456 step {step} of 8 ranks"
        ports[step] = start.port
    assert (ports["0"], ports["5"]) == (31232, 31237)
    assert len(set(ports.values())) == 3


@pytest.mark.parametrize("job", ["1", "123", "11999", "67108863"])
def test_no_port_of_slurm_is_one_that_linux_gives_away(job: str) -> None:
    for step in ("0", "4294967290"):
        start = from_environment(SLURM | {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step})
        assert start is not None
        assert 20_000 <= start.port < 32_768


def test_torchruns_name_of_a_run_is_kept() -> None:
    start = from_environment(TORCHRUN | {"TORCHELASTIC_RUN_ID": "nightly\n7"})
    assert start is not None
    assert start.run == "torchrun run nightly 7 of 8 ranks"


def test_a_batch_script_alone_is_no_rank() -> None:
    """sbatch sets SLURM_PROCID in the script it runs, which is no task of a step."""
    assert from_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "node[04-05]"}) is None
    assert from_environment({}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "rank 8 of 8"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "0"}, "port 0"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
    ],
)
def test_an_environment_that_cannot_be(change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_environment(TORCHRUN | change)
    assert message in str(caught.value)


def test_as_many_processes_as_a_machine_can_bear() -> None:
    for ranks in (0, 257):
        with pytest.raises(InputError, match="--ranks"):
            spawn(["models"], ranks)


def test_the_store_listens_on_one_address_only() -> None:
    from linkwise.dist.launch import serve

    store = serve("127.0.0.1", 0)
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{store.port:04X}")
    ]
    assert listening == [f"0100007F:{store.port:04X}"], "127.0.0.1, little end first"


def test_an_address_of_another_machine_cannot_be_served() -> None:
    from linkwise.dist.launch import serve

    with pytest.raises(InputError, match="cannot serve 192.0.2.1:"):  # an address of documentation (RFC 5737)
        serve("192.0.2.1", 0)


def test_a_rank_of_another_run_is_refused_and_leaves_the_other_run_alone() -> None:
    """Rank 1 of step 1 finds the store of step 0: it says so, and step 0's two ranks meet as if nothing had been."""
    from linkwise.dist.groups import _same_run
    from linkwise.dist.launch import serve

    store = serve("127.0.0.1", 0)
    first = Start(0, 2, 0, "127.0.0.1", store.port, False, "slurm", "slurm job 7 step 0 of 2 ranks")
    _same_run(store, first)
    _same_run(store, first._replace(rank=1))
    keys = store.num_keys()
    with pytest.raises(InputError) as caught:
        _same_run(store, first._replace(rank=1, run="slurm job 7 step 1 of 2 ranks"))
    words = "ranks of slurm job 7 step 0 of 2 ranks meet there, this is rank 1 of slurm job 7 step 1"
    assert words in str(caught.value)
    assert store.num_keys() == keys


def test_of_a_store_that_a_launcher_serves_the_first_rank_says_whose_it_is() -> None:
    from linkwise.dist.groups import _same_run
    from linkwise.dist.launch import serve

    store = serve("127.0.0.1", 0)
    one = Start(1, 2, 1, "127.0.0.1", store.port, True, "torchrun", "torchrun run a of 2 ranks")
    _same_run(store, one)
    _same_run(store, one._replace(rank=0))
    with pytest.raises(InputError, match="ranks of torchrun run a of 2 ranks meet there"):
        _same_run(store, one._replace(run="torchrun run b of 2 ranks"))


def test_ranks_that_are_shown_one_gpu_each_must_be_shown_different_ones() -> None:
    """Two tasks, each with a device 0 of its own: told apart by PCI address and machine."""
    import torch.distributed as dist

    from linkwise.dist.groups import _gather

    start = Start(1, 2, 1, "127.0.0.1", 1, False, "slurm")
    for other, refused in (("a 0000:15:00.0", False), ("b 0000:0f:00.0", False), ("a 0000:0f:00.0", True), ("", False)):
        store = dist.HashStore()
        store.set("joined/0", json.dumps({"backend": "nccl", "gpu": other}))
        if not refused:
            _gather(store, start, "nccl", 5.0, "a 0000:0f:00.0")
            continue
        with pytest.raises(InputError, match=r"ranks 0, 1 are on one GPU, 0000:0f:00\.0"):
            _gather(store, start, "nccl", 5.0, "a 0000:0f:00.0")


def test_all_ranks_are_asked_how_they_are_before_one_is_judged() -> None:
    """Rank 0 stands still; rank 1 has failed with code 3: its code, within the second it has to say why."""
    stopped = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    failed = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    try:
        begun = time.monotonic()
        assert _wait([stopped, failed]) == 3
        assert time.monotonic() - begun < 30
    finally:
        for child in (stopped, failed):
            child.kill()
            child.wait()


def test_a_rank_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A parent that is killed: its rank, which is stopped, ends too."""
    told = tmp_path / "pid"
    child = "import os, time; from linkwise.dist.launch import leash; leash(os.environ);"
    child += f"open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    code = f"import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], "
    code += "env=os.environ | {'LINKWISE_PARENT': str(os.getpid())})"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: told.exists() and told.read_text() != "")
        pid = int(told.read_text())
        os.kill(pid, signal.SIGSTOP)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not alive(pid))


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """A process that runs; one that has ended and waits to be asked is none."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
