"""The pre-flight's verdict on places, rates and groups made by hand."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.measure.test_points import pairs
from tests.plan.handmade import cluster

from linkwise.cluster import presets
from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.types import Cluster
from linkwise.measure.check import GroupTime, judge, misplaced
from linkwise.measure.here import Here, _cpu_numa, _cpus, _nics
from linkwise.measure.laid import Laid, on_cluster
from linkwise.measure.points import Rate
from linkwise.report.measure import check as screen
from linkwise.report.measure import check_ranks


def here(rank: int, machine: str = "m0", index: int | None = None, **rest: object) -> Here:
    """A healthy rank of a machine."""
    facts = {"flops": 600e12, "memory_Bps": 3e12, "device": "hand", "numa": -1, "nics": {}} | rest
    return Here(rank=rank, host=f"host-{machine}", machine=machine, index=rank if index is None else index, **facts)


def healthy(c: Cluster) -> list[Here]:
    return [here(r, f"m{r // c.devices_per_node}", r % c.devices_per_node) for r in range(c.size)]


def groups(laid: Laid, slow: tuple[int, ...] = ()) -> list[GroupTime]:
    """An all-reduce of each group: 20 us, 100 us in the slow one."""
    return [
        GroupTime(label=label, ranks=team, seconds=100e-6 if team == slow else 20e-6)
        for label, teams in laid.groups
        for team in teams
    ]


def test_a_healthy_cluster_is_healthy() -> None:
    c = cluster(2, 4)
    laid = on_cluster(c, 8)
    found = judge(laid, healthy(c), pairs(c, {}), groups(laid), library="nccl 2.27")
    assert found.findings == ()
    assert found.exit_code == 0
    assert screen(found)[1].startswith("healthy")
    assert "compute of 8" in found.compared
    assert check_ranks(found)


def test_a_slow_rank_a_slow_link_and_a_slow_group_are_named() -> None:
    c = cluster(2, 4)
    laid = on_cluster(c, 8)
    ranks = healthy(c)
    ranks[5] = replace(ranks[5], flops=300e12)
    found = judge(laid, ranks, pairs(c, {"d2>island0": 90e9}), groups(laid), library="nccl")
    assert [(one.who, one.sure) for one in found.findings] == [("rank 5", True), ("link d2>island0", True)]
    assert found.findings[0].ratio == pytest.approx(0.5)
    assert "compute: 300 TFLOP/s, its peers' median is 600" in found.findings[0].words
    assert found.findings[1].ratio == pytest.approx(0.2)
    assert found.exit_code == 1
    assert sum(line.startswith("FAULT") for line in screen(found)) == 2


def test_a_slow_group_among_its_like_is_named() -> None:
    c = cluster(4, 2)
    laid = on_cluster(c, 8)
    found = judge(laid, healthy(c), pairs(c, {}), groups(laid, slow=(2, 3)), library="nccl")
    assert [(one.who, one.sure) for one in found.findings] == [("island of ranks 2,3", True)]


def test_two_ranks_that_differ_do_not_decide() -> None:
    c = cluster(1, 2)
    ranks = healthy(c)
    ranks[1] = replace(ranks[1], memory_Bps=1e12)
    found = judge(on_cluster(c, 2), ranks, pairs(c, {}), (), library="nccl")
    assert [one.sure for one in found.findings] == [False]
    assert found.exit_code == 3
    assert any(line.startswith("undecided") for line in screen(found))


def test_links_that_differ_without_saying_who() -> None:
    c = cluster(1, 2)
    rates = {(0, 1): Rate(100e9, 5e-6), (1, 0): Rate(400e9, 5e-6)}
    found = judge(on_cluster(c, 2), healthy(c), rates, (), library="nccl")
    assert {one.who for one in found.findings} == {"links"}
    assert found.exit_code == 3


def test_different_devices_are_not_held_against_each_other() -> None:
    c = cluster(1, 4)
    ranks = [replace(one, device="other", flops=100e12) if one.rank == 3 else one for one in healthy(c)]
    found = judge(on_cluster(c, 4), ranks, pairs(c, {}), (), library="nccl")
    assert found.findings == ()
    assert "compute" in found.alone
    assert "different devices" in found.notes[0]


def detailed() -> Cluster:
    """A node of two devices on two sockets, a NIC each."""
    detail = NodeDetail(
        numa=(0, 1), nic_names=("mlx5_0", "mlx5_1"), nic_numa=(0, 1), paths=("LOC SYS PIX SYS", "SYS LOC SYS PIX")
    )
    return replace(cluster(2, 2, island=1), detail=detail)


NICS = {"mlx5_0": 0, "mlx5_1": 1}


def test_the_map_is_the_plans() -> None:
    c = detailed()
    ranks = [here(r, f"m{r // 2}", r % 2, numa=r % 2, nics=NICS) for r in range(4)]
    assert misplaced(c, (0, 1, 2, 3), ranks) == []
    # A rank that is shown one device of its machine does not know which it is.
    unsure = [here(r, f"m{r // 2}", -1, numa=r % 2, nics=NICS) for r in range(4)]
    assert misplaced(c, (0, 1, 2, 3), unsure) == []
    # The plan lays ranks 0 and 1 the other way round.
    words = [(one.who, one.words) for one in misplaced(c, (1, 0, 2, 3), ranks)]
    assert words == [
        ("rank 0", "device 0, meant to be 1; NUMA node 0, meant to be 1"),
        ("rank 1", "device 1, meant to be 0; NUMA node 1, meant to be 0"),
    ]


def test_another_gpu_than_the_clusters_is_named() -> None:
    c = replace(cluster(1, 2), accelerator=presets.accelerator("b200-sxm"))
    seen = {0: "NVIDIA B200", 1: "NVIDIA H100 80GB HBM3"}
    ranks = [replace(here(r, "m", r), device=name) for r, name in seen.items()]
    assert [(one.who, one.words, one.sure) for one in misplaced(c, (0, 1), ranks)] == [
        ("rank 1", "NVIDIA H100 80GB HBM3, meant to be NVIDIA B200 SXM 180GB", True)
    ]


def test_a_rank_on_the_wrong_machine_or_beside_the_wrong_nic() -> None:
    c = detailed()
    ranks = [here(r, f"m{r // 2}", r % 2, numa=r % 2, nics=NICS) for r in range(4)]
    ranks[3] = replace(ranks[3], nics={"eth0": 0})
    (one,) = misplaced(c, (0, 1, 2, 3), ranks)
    assert (one.who, one.words, one.sure) == ("rank 3", "no NIC mlx5_1 here; its machine has eth0", True)
    both = [here(r, "m0", r, numa=r % 2, nics=NICS) for r in range(4)]
    (one, *_) = misplaced(c, (0, 1, 2, 3), both)
    assert one.who == "nodes 0, 1"
    assert "one machine" in one.words
    wide = cluster(2, 4)
    lost = healthy(wide)
    lost[2] = replace(lost[2], machine="m1", host="host-m1")
    (one,) = misplaced(wide, tuple(range(8)), lost)
    assert (one.who, one.words) == ("rank 2", "runs on host-m1, the other ranks of node 0 do not")


def test_what_a_rank_does_not_know_is_not_held_against_it() -> None:
    ranks = [here(r, f"m{r // 2}", r % 2) for r in range(4)]  # no NUMA node, no NICs
    assert misplaced(detailed(), (0, 1, 2, 3), ranks) == []


def test_places_are_read_from_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cpus in (("node0", "0-3,8-11"), ("node1", "4-7")):
        (tmp_path / "devices/system/node" / name).mkdir(parents=True)
        (tmp_path / "devices/system/node" / name / "cpulist").write_text(cpus + "\n")
    nic = tmp_path / "class/infiniband/mlx5_0/device"
    nic.mkdir(parents=True)
    (nic / "numa_node").write_text("1\n")
    assert _cpus("0-3,8") == {0, 1, 2, 3, 8}
    assert _nics(tmp_path) == {"mlx5_0": 1}
    assert _nics(tmp_path / "nowhere") == {}
    for mine, node in (({9}, 0), ({4, 5}, 1), ({3, 4}, -1)):  # on both: not said
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cpus=mine: cpus)
        assert _cpu_numa(tmp_path) == node
