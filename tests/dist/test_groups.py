"""Process groups from the rank grid, and the rank that does not come back."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.dist.ranks import last_json, outputs, started

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.dist.groups import Named, axis_groups, check_timeout

pytest.importorskip("torch")


def test_groups_of_a_layout_by_hand() -> None:
    """pp 2 x tp 2, two replicas: rank = replica * 4 + stage * 2 + tp."""
    found = axis_groups(Layout(pp=2, tp=2), replicas=2, axes=("pp", "tp", "cp"))
    assert found == [
        Named("pp", (0, 2)), Named("pp", (1, 3)), Named("pp", (4, 6)), Named("pp", (5, 7)),
        Named("tp", (0, 1)), Named("tp", (2, 3)), Named("tp", (4, 5)), Named("tp", (6, 7)),
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", [0, 1.9, float("nan"), float("inf"), 1e9])
def test_a_time_limit_that_cannot_be(seconds: float) -> None:
    with pytest.raises(InputError, match="--timeout"):
        check_timeout(seconds)


def test_every_axis_becomes_a_process_group_that_reaches_its_members(tmp_path: Path) -> None:
    """Four ranks, pp 2 x tp 2: a sum of ranks over each group is the sum of its members."""
    code = """
import torch, torch.distributed as dist
from linkwise.core.layout import Layout
def body(session):
    teams = create(session, axis_groups(Layout(pp=2, tp=2)))
    sums = {}
    for named, team in teams.items():
        data = torch.tensor([float(start.rank)])
        dist.all_reduce(data, group=team.handle)
        sums[f"{named.axis}{list(named.members)}"] = [data.item(), team.place]
    print(json.dumps(share(session, "sums", sums)))
run(body)
"""
    by_rank = last_json(outputs(tmp_path, code, 4)[0])
    # ep = 1, so the two ranks of a stage share its experts: moe_tp and stage have the members of tp.
    assert by_rank[3] == {
        "pp[1, 3]": [4.0, 1], "tp[2, 3]": [5.0, 1], "moe_tp[2, 3]": [5.0, 1], "stage[2, 3]": [5.0, 1],
    }  # fmt: skip
    assert by_rank[0]["pp[0, 2]"] == [2.0, 0]


def test_groups_whose_members_have_made_different_numbers_of_them(tmp_path: Path) -> None:
    """Rank 0 makes its tensor group before its pipeline group, rank 2 after it."""
    code = """
import torch, torch.distributed as dist
def body(session):
    teams = create(session, [Named("tp", (0, 1)), Named("pp", (0, 2)), Named("tp", (2, 3))])
    for team in teams.values():
        dist.all_reduce(torch.zeros(1), group=team.handle)
    print(json.dumps(sorted(named.axis for named in teams)))
run(body)
"""
    assert [last_json(text) for text in outputs(tmp_path, code, 4)] == [["pp", "tp"], ["tp"], ["pp", "tp"], ["tp"]]


WAITING = """
import torch, torch.distributed as dist
def body(session):
    barrier(session)
    print("ready", flush=True)
    for step in range(10**9):
        session.watch.at(f"step {step % 7}")
        dist.all_reduce(torch.zeros(4))
run(body, timeout_s=4.0)
"""


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_does_not_come_back_is_named_within_the_timeout(tmp_path: Path, how: int, gone: int) -> None:
    with started(tmp_path, WAITING, 3) as processes:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        os.kill(processes[gone].pid, how)
        at = time.monotonic()
        others = [p for r, p in enumerate(processes) if r != gone]
        said = [process.communicate(timeout=60)[0] for process in others]
        took = time.monotonic() - at
    errors = [line for text in said for line in text.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1, "one rank speaks for all"
    assert errors[0].startswith(f"ERROR rank {gone} ")
    # Silent since it was stopped, by less than a tenth of the limit more; a killed one is found out at once.
    told = re.search(r"\(last report, (\d+\.\d) s ago, in: [a-z0-9 ]+\) does not answer", errors[0])
    assert told
    assert (2 if how == signal.SIGSTOP else 0) < float(told[1]) < took + 0.5
    assert all(process.returncode == 1 for process in others)
    assert took < 4.0 + 2.0, "the time limit, and two seconds for processes to end on a busy machine"


def test_a_late_rank_is_told_from_a_dead_one(tmp_path: Path) -> None:
    """Rank 1 lives, but sleeps where the others go on."""
    code = """
import time, torch, torch.distributed as dist
def body(session):
    barrier(session)
    session.watch.at("step one")
    if start.rank == 1:
        time.sleep(60)
    session.watch.at("step two")
    dist.all_reduce(torch.zeros(4))
run(body, timeout_s=4.0)
"""
    with started(tmp_path, code, 3) as processes:
        said = [processes[r].communicate(timeout=60)[0] for r in (0, 2)]
    errors = [line for text in said for line in text.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1
    # A rank that lives reports every tenth of the time limit: 0.4 s, and some for a busy machine.
    told = re.fullmatch(
        r"ERROR rank 1 \(last report, (\d\.\d) s ago, in: step one\) has not come as far as: step two", errors[0]
    )
    assert told
    assert float(told[1]) < 2


def test_a_rank_that_never_starts_is_named(tmp_path: Path) -> None:
    code = """
if start.rank == 1:
    sys.exit(0)
run(lambda session: None, timeout_s=3.0)
"""
    with started(tmp_path, code, 3) as processes:
        said = [process.communicate(timeout=60)[0] for process in processes]
    errors = [line for text in said for line in text.splitlines() if line.startswith("ERROR")]
    assert errors == ["ERROR of 3 ranks these did not start: 1"]


def test_a_rank_that_fails_by_itself_says_so_and_nobody_else_is_blamed(tmp_path: Path) -> None:
    code = """
import torch, torch.distributed as dist
def body(session):
    barrier(session)
    session.watch.at("making tensors")
    if start.rank == 2:
        torch.zeros(3) @ torch.zeros(4)
    dist.all_reduce(torch.zeros(4))
run(body, timeout_s=4.0)
"""
    with started(tmp_path, code, 3) as processes:
        said = [process.communicate(timeout=60)[0] for process in processes]
    errors = [line for text in said for line in text.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1
    assert errors[0].startswith("ERROR rank 2 failed in: making tensors:")
