"""Who is this rank, and the processes started here."""

from pathlib import Path

import pytest

from linkwise.core.errors import InputError
from linkwise.dist.launch import Start, from_environment, spawn

pytest.importorskip("torch")

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "nodea", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "node[04-05]",
    "SLURM_JOB_ID": "123456",
}  # fmt: skip


def test_torchrun_and_srun_say_which_rank() -> None:
    assert from_environment(TORCHRUN) == Start(3, 8, 1, "nodea", 29500, False, "torchrun")
    agent = from_environment(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert agent is not None
    assert agent.hosted
    # The job's number gives all ranks the same port: 20000 + 123456 mod 20000.
    assert from_environment(SLURM) == Start(3, 8, 1, "node04", 23456, False, "slurm")
    assert from_environment(SLURM | {"MASTER_PORT": "29500", "MASTER_ADDR": "10.0.0.1"}) == Start(
        3, 8, 1, "10.0.0.1", 29500, False, "slurm"
    )


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
