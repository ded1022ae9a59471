"""Ranks that are not where the plan puts them: told, or not served from."""

import pytest
from tests.supervise.fake import FakeUnit, until

from linkwise.supervise.rank_map import Found, Mapped, Put, differences, shown
from linkwise.supervise.types import Fault, Job, State

TWO_NODES = (Put(0, 0), Put(0, 1), Put(1, 0), Put(1, 1))


def _found(*places: tuple[str, str]) -> list[Found]:
    """host and bus address of each rank; no bus: the CPU."""
    return [
        Found(rank, host, f"id-{host}", "NVIDIA H100 80GB HBM3" if bus else "cpu", bus)
        for rank, (host, bus) in enumerate(places)
    ]


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ((("a", "00:01"), ("a", "00:02"), ("b", "00:01"), ("b", "00:02")), []),
        ((("a", "00:02"), ("a", "00:01"), ("b", "00:01"), ("b", "00:02")),
         ["rank 1 is on the device at 00:01, before rank 0's at 00:02; the plan has them the other way round"]),
        ((("a", "00:01"), ("a", "00:01"), ("b", "00:01"), ("b", "00:02")),
         ["ranks 0 and 1 share the device at 00:01"]),
        ((("a", "00:01"), ("b", "00:09"), ("b", "00:01"), ("b", "00:02")),
         ["rank 1 is on b, apart from rank 0 of its node 0", "rank 2 of node 1 shares b with rank 1 of node 0",
          "rank 3 of node 1 shares b with rank 1 of node 0"]),
        ((("a", ""),) * 2 + (("b", ""),) * 2, ["ranks 0, 1, 2, 3 on cpu; the plan says h100-sxm"]),
        ((("a", "00:01"),), ["1 ranks where the plan has 4"]),
    ],
)  # fmt: skip
def test_differences_in_words(places, said: list[str]) -> None:
    assert list(differences(TWO_NODES, _found(*places), "h100-sxm")) == said


@pytest.mark.parametrize("strict", [False, True])
def test_a_difference_is_told_or_refused(strict: bool) -> None:
    lines: list[str] = []
    states: list[tuple[State, Fault | None]] = []
    unit = Mapped(FakeUnit("a"), [Put(0, 0)], lambda: _found(("x", "")), lines.append, strict=strict)
    unit.start(lambda state, fault: states.append((state, fault)))
    assert until(lambda: len(states) == 2)
    assert lines == ["a: rank 0 on x: cpu", "a: rank 0 on cpu; the plan says accelerators"]
    if strict:
        fault = Fault((), "map", "rank 0 on cpu; the plan says accelerators")
        assert states[1] == ("failed", fault)
        with pytest.raises(RuntimeError, match="not where the plan"):
            unit.submit(Job("r", (1,), 1), lambda event: None)
        assert unit.state == "failed"
    else:
        assert states[1] == ("ready", None)
        assert unit.state == "ready"
    unit.stop()
    assert len(states) == (2 if strict else 3)


def test_where_ranks_are_is_told_in_a_line_for_those_that_are_alike() -> None:
    here = [Found(rank, "a", "id-a", "cpu", numa=0, cores=(0, 1, 2, 5), transport="tcp lo") for rank in range(3)]
    there = Found(3, "b", "id-b", "H100", "00:01", numa=1, transport="nccl")
    assert shown([*here, there]) == [
        "ranks 0-2 on a: cpu, NUMA node 0, cores 0-2, 5, tcp lo",
        "rank 3 on b: H100 at 00:01, NUMA node 1, nccl",
    ]
    many = [Found(rank, f"h{rank}", f"id-{rank}", "cpu") for rank in range(20)]
    assert len(shown(many)) == 17 and shown(many)[-1] == "and 4 more such lines"


def test_numa_nodes_are_compared_where_both_are_known() -> None:
    planned = [Put(0, 0, 0), Put(0, 1, 0), Put(0, 2, -1), Put(0, 3, 1)]
    found = [
        Found(0, "a", "m", "H100", "00:01", numa=0, cores_numa=0),
        Found(1, "a", "m", "H100", "00:02", numa=1, cores_numa=1),
        Found(2, "a", "m", "H100", "00:03", numa=1, cores_numa=0),
        Found(3, "a", "m", "H100", "00:04", numa=-1, cores_numa=0),
    ]
    assert list(differences(planned, found, "h100-sxm")) == [
        "rank 1's device is at NUMA node 1; the plan has it at 0",
        "rank 2 runs on cores of NUMA node 0, its device is at node 1",
    ]


def test_without_a_plan_places_are_told_and_nothing_is_compared() -> None:
    lines: list[str] = []
    states: list[State] = []
    unit = Mapped(FakeUnit("a"), None, lambda: _found(("x", "")), lines.append)
    for _ in range(2):  # the second life is where the first one was
        unit.start(lambda state, fault: states.append(state))
        assert until(lambda: states[-1:] == ["ready"])
        unit.stop()
    assert lines == ["a: rank 0 on x: cpu"]
