"""Ranks that have no record: a whole host or stage is one question, and what is asked follows from who is there."""

import msgspec
import pytest
from tests.diagnose.made import BASE, MS, evidence
from tests.diagnose.made_facts import fact
from tests.diagnose.test_hang import calls, named

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Event
from linkwise.trace.gather import Evidence
from linkwise.trace.readers import flight_recorder, kineto, own


def two_hosts(*, waits: bool, hosts: bool = True, world: int = 16) -> Evidence:
    """Eight ranks a host, tensor groups of the host and pairs across; of host b there is no record."""
    half = world // 2
    groups = {"tp": tuple(range(half))} | {f"dp{rank}": (rank, rank + half) for rank in range(half)}
    rows = {rank: [*calls(4), *calls(6, open_last=waits, group=f"dp{rank}")] for rank in range(half)}
    return evidence(rows, groups, world=world, hosts=dict.fromkeys(range(half), "a" if hosts else ""))


@pytest.mark.parametrize("hosts", [True, False])
def test_a_host_without_records_that_others_wait_for_is_one_question(hosts):
    found = diagnose(two_hosts(waits=True, hosts=hosts))
    assert named(found) == [("undecided", (), False)]
    (one,) = found.findings
    assert "ranks 8 to 15" in one.summary
    assert "not collected" in one.summary
    assert one.would_decide
    assert any("ranks 0 in call 5" in line or "rank 0 in call 5" in line for line in one.evidence)
    assert found.exit_code == 3


def test_its_name_is_told_where_anything_names_it():
    places = tuple(fact("place", "rank", rank=rank, host="node-b") for rank in range(8, 16))
    (one,) = diagnose(msgspec.structs.replace(two_hosts(waits=True), facts=places)).findings
    assert one.original_fault.host == "node-b"
    assert one.summary.startswith("host node-b (ranks 8 to 15)")


def with_format(found: Evidence, name: str) -> Evidence:
    ranks = tuple(msgspec.structs.replace(rank, format=name) for rank in found.trace.ranks)
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=ranks))


@pytest.mark.parametrize(("name", "asked"), [(own.FORMAT, 1), (flight_recorder.FORMAT, 1), (kineto.FORMAT, 0)])
def test_nobody_waits_for_it_and_yet_it_should_have_written(name, asked):
    # A profiler is switched on for some ranks alone: there nothing is missing.
    found = diagnose(with_format(two_hosts(waits=False), name))
    assert [one.class_ for one in found.findings] == ["undecided"] * asked


def test_half_of_a_host_is_not_a_host():
    # Ranks 8 to 13 of host b have records, 14 and 15 have none and nobody waits for them.
    groups = {"tp": tuple(range(16))}
    rows = {rank: calls(4) for rank in range(14)}
    hosts = {rank: "ab"[rank // 8] for rank in range(16)}
    assert diagnose(with_format(evidence(rows, groups, world=16, hosts=hosts), kineto.FORMAT)).findings == ()


def test_a_pipeline_stage_without_records():
    # tp2 x pp2: ranks 2 and 3 are stage 1, on the host of the others; both ranks of stage 0 wait to send.
    groups = {"tp": (0, 1), "pp:0": (0, 2), "pp:1": (1, 3)}
    rows = {
        rank: [row._replace(peer=rank + 2) for row in calls(4, open_last=True, op="send", group=f"pp:{rank}")]
        for rank in (0, 1)
    }
    found = diagnose(evidence(rows, groups, world=4))
    assert named(found) == [("undecided", (), False)]
    assert found.findings[0].summary.startswith("pipeline stage 1 (ranks 2, 3)")


def test_one_rank_alone_is_still_named():
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 2)}
    assert named(diagnose(evidence(rows, {"tp": (0, 1, 2, 3)}, world=4))) == [("dead_rank", (3,), True)]


def test_ranks_that_a_driver_saw_end_are_told_by_that():
    ends = tuple(fact("exit", "died", -9, rank=rank) for rank in range(8, 16))
    found = diagnose(msgspec.structs.replace(two_hosts(waits=True), facts=ends))
    assert not [one for one in found.findings if "not collected" in one.summary]


def test_stages_that_are_missing_together_are_one_question():
    # pp4 of one rank a stage, on four hosts nobody names: of stages 2 and 3 there is nothing.
    rows = {
        0: [row._replace(peer=1) for row in calls(4, op="send", group="pp")],
        1: [row._replace(peer=2) for row in calls(4, open_last=True, op="send", group="pp")],
    }
    (one,) = diagnose(evidence(rows, {"pp": (0, 1, 2, 3)}, world=4, hosts={0: "a", 1: "b"})).findings
    assert one.summary.startswith("pipeline stages 2, 3 (ranks 2, 3)")
    assert not one.decided


def grid(*, between: bool, lost: tuple[int, ...] = (2,)) -> Evidence:
    """Four ranks, tensor groups (0, 1) and (2, 3), data groups (0, 2) and (1, 3). Rank 3 does not come to its next
    tensor call, rank 1 waits for it in a data call. Of ranks `lost` there is no record. between: whether ranks make
    tensor calls between two data calls, in which rank 2 may wait for rank 3."""
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}

    def rows(tensor: str, data: str, last: int) -> list[Event]:
        """A data call, two tensor calls, a data call, ...; or data calls alone."""
        made = [calls(number + 1, group=data)[-1:] for number in range(last)]
        inner = [calls(2 * number + 2, group=tensor)[-2:] if between else [] for number in range(last)]
        return [row for pair in zip(made, inner, strict=True) for row in (*pair[0], *pair[1])]

    found = {
        0: [*rows("tp0", "dp0", 4), *calls(5, open_last=True, group="dp0")[-1:]],
        1: [*rows("tp0", "dp1", 4), *calls(5, open_last=True, group="dp1")[-1:]],
        2: [*rows("tp1", "dp0", 4), *calls(9, open_last=True, group="tp1")[-1:]],
        3: rows("tp1", "dp1", 4),
    }
    return evidence({rank: made for rank, made in found.items() if rank not in lost}, groups, world=4)


def test_a_lost_record_is_not_blamed_where_its_rank_may_wait_for_one_that_stands():
    assert named(diagnose(grid(between=True))) == [("stopped_rank", (3,), True)]
    # Between two data calls its peers do nothing else: it cannot be waiting elsewhere.
    found = named(diagnose(grid(between=False)))
    assert ("dead_rank", (2,), True) in found


def test_of_two_lost_records_that_are_waited_for_none_is_named():
    rows = {rank: calls(6, open_last=True) for rank in (0, 2, 4, 5)}
    found = diagnose(evidence(rows, {"tp": tuple(range(6))}, world=6))
    assert named(found) == [("undecided", (), False)]
    assert found.findings[0].summary.startswith("ranks 1, 3 have no record")


def test_who_is_only_waited_for_behind_another_call_is_not_blamed():
    # 0 and 1 stand in a message to 3, which waits for nothing; a tensor call of theirs and rank 2's is queued behind.
    groups = {"tp": (0, 1, 2), "pp": (0, 3), "pq": (1, 3)}
    queued = [row._replace(state="scheduled", created_ns=BASE + 500 * MS) for row in calls(5, open_last=True)[-1:]]
    rows = {
        rank: [*calls(4), calls(1, open_last=True, op="send", group=group)[0]._replace(peer=3), *queued]
        for rank, group in ((0, "pp"), (1, "pq"))
    }
    found = named(diagnose(evidence(rows | {3: calls(2, group="pp")}, groups, world=4)))
    assert {ranks for _, ranks, _ in found} == {(3,)}


def test_a_lost_record_is_not_blamed_beside_one_that_its_rank_may_wait_for():
    # A ring of stages 0 -> 1 -> 2 -> 0: 0 waits for 2, which has no record; 1 is in no call, and 2 may wait for it.
    groups = {"pp": (0, 1, 2)}
    rows = {
        0: [row._replace(peer=2) for row in calls(4, open_last=True, op="recv", group="pp")],
        1: [row._replace(peer=2) for row in calls(3, op="send", group="pp")],
    }
    assert named(diagnose(evidence(rows, groups, world=3))) == [("undecided", (), False)]
    # Were 2 gone, 1 would wait as well.
    rows[1] = [row._replace(peer=2) for row in calls(4, open_last=True, op="send", group="pp")]
    assert named(diagnose(evidence(rows, groups, world=3))) == [("dead_rank", (2,), True)]
