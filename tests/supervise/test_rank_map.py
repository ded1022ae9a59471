"""Ranks that are not where the plan puts them: told, or not served from."""

import pytest
from tests.supervise.fake import FakeUnit, until

from linkwise.supervise.rank_map import Found, Mapped, Put, differences
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
    assert lines == ["a: rank 0 on cpu; the plan says accelerators"]
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
