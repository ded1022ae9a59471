"""Who is waited for: small groups whose answer follows from what a collective is."""

import msgspec
from tests.diagnose.made import BASE, MS, evidence

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Event, Mark
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence
from linkwise.trace.readers import flight_recorder

FOUR = {"tp": (0, 1, 2, 3)}


def calls(count, *, open_last=False, op="all_reduce", size=4096, group="tp"):
    """Calls 0 .. count-1 of a rank, the last one open if asked."""
    rows = []
    for number in range(count):
        is_open = open_last and number == count - 1
        begin = BASE + number * 10 * MS
        rows.append(
            Event(
                0, group, "", op, number, size, "bfloat16", -1, begin, begin, 0 if is_open else begin + MS,
                "started" if is_open else "done",
            )
        )  # fmt: skip
    return rows


def named(found):
    return [(one.class_, one.original_fault.ranks, one.decided) for one in found.findings]


def test_a_rank_that_does_not_come_and_waits_for_nothing_is_stopped():
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 3)} | {2: calls(5)}
    found = diagnose(evidence(rows, FOUR, world=4))
    assert named(found) == [("stopped_rank", (2,), True)]
    assert "ranks 0, 1, 3 in call 5, rank 2 entered 4" in found.findings[0].evidence[0]


def test_with_its_exit_it_is_dead():
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 3)} | {2: calls(5)}
    left = Fact("exit", "dead", value=-9, rank=2, text="rank 2 was ended by SIGKILL")
    found = diagnose(msgspec.structs.replace(evidence(rows, FOUR, world=4), facts=(left,)))
    assert named(found) == [("dead_rank", (2,), True)]


def test_a_rank_without_a_record_is_named_only_when_all_others_came():
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 2)}
    assert named(diagnose(evidence(rows, FOUR, world=4))) == [("dead_rank", (3,), True)]
    # Rank 2 did not come either: that explains the wait, and nothing is known of rank 3.
    rows[2] = calls(5)
    assert named(diagnose(evidence(rows, FOUR, world=4))) == [("stopped_rank", (2,), True)]


def test_all_came_and_none_left_is_not_decided():
    rows = {rank: calls(6, open_last=True) for rank in range(4)}
    found = diagnose(evidence(rows, FOUR, world=4))
    assert named(found) == [("hang", (), False)]
    assert "enqueued everywhere, not completed" in found.findings[0].summary
    assert found.findings[0].would_decide
    assert found.exit_code == 3


def test_who_waits_elsewhere_is_passed_through():
    # 0 waits in "a" for 1, which waits in "b" for 2, which waits for nothing.
    groups = {"a": (0, 1), "b": (1, 2)}
    rows = {
        0: calls(3, open_last=True, group="a"),
        1: [*calls(2, group="a"), *calls(4, open_last=True, group="b")],
        2: calls(3, group="b"),
    }
    assert named(diagnose(evidence(rows, groups, world=3))) == [("stopped_rank", (2,), True)]


def test_ranks_that_wait_for_each_other_in_two_groups_took_different_decisions():
    # 0 entered the third call of "a", 1 the third of "b": each waits for the other.
    groups = {"a": (0, 1), "b": (0, 1)}
    rows = {
        0: [*calls(3, open_last=True, group="a"), *calls(2, group="b")],
        1: [*calls(2, group="a"), *calls(3, open_last=True, group="b")],
    }
    assert named(diagnose(evidence(rows, groups, world=2))) == [("control_divergence", (), True)]


def test_a_device_behind_what_its_peers_completed():
    # Rank 1 enqueued as much as the others; its device completed call 2 where theirs completed 5.
    base = evidence({rank: calls(7, open_last=True) for rank in range(4)}, FOUR, world=4, transport="nccl")
    ranks = [
        msgspec.structs.replace(one, marks=(Mark("tp", 6, -1, 2 if one.head.rank == 1 else 5),), only_open=True)
        for one in base.trace.ranks
    ]
    found = diagnose(Evidence(trace=msgspec.structs.replace(base.trace, ranks=tuple(ranks))))
    assert named(found) == [("device_error", (1,), True)]
    assert found.findings[0].cause == "device"


def test_nothing_open_is_no_hang():
    rows = {rank: calls(6 - (rank == 2)) for rank in range(4)}
    assert diagnose(evidence(rows, FOUR, world=4)).findings == ()


def test_dumps_taken_a_moment_apart_blame_nobody():
    # Rank 1's dump is 20 ms older: it has two calls less behind it, and ends before its peers completed them.
    rows = {rank: calls(9, open_last=True) for rank in (0, 2, 3)} | {1: calls(7, open_last=True)}
    base = evidence(rows, FOUR, world=4, transport="nccl")
    ranks = [
        msgspec.structs.replace(one, marks=(Mark("tp", *((6, -1, 5) if one.head.rank == 1 else (8, -1, 7))),))
        for one in base.trace.ranks
    ]
    found = diagnose(Evidence(trace=msgspec.structs.replace(base.trace, ranks=tuple(ranks))))
    assert [one.original_fault.ranks for one in found.findings if one.decided] == []


def test_one_ahead_of_everybody_is_not_everybody_stopped():
    # Rank 2 made a call that nobody else made: seven ranks do not all stand still.
    groups = {"tp": tuple(range(8))}
    rows = {rank: calls(5) for rank in range(8)} | {2: calls(6, open_last=True)}
    found = diagnose(evidence(rows, groups, world=8))
    assert named(found) == [("hang", (), False)]
    assert "rank 2 entered call 5" in found.findings[0].summary


def messages(peer, op, count, *, open_last):
    """Messages of a pipeline's stage, the last one open if asked."""
    return [row._replace(peer=peer) for row in calls(count, open_last=open_last, op=op, group="pp")]


def test_a_hang_in_messages_alone_is_followed_to_who_waits_for_nothing():
    # Stage 1 sent four of five messages and stopped: stage 2 waits for the fifth, stage 0 for room to send.
    groups = {"pp": (0, 1, 2)}
    rows = {
        0: messages(1, "send", 6, open_last=True),
        1: [*messages(0, "recv", 5, open_last=False), *messages(2, "send", 4, open_last=False)],
        2: messages(1, "recv", 5, open_last=True),
    }
    assert named(diagnose(evidence(rows, groups, world=3))) == [("stopped_rank", (1,), True)]
    del rows[1]
    assert named(diagnose(evidence(rows, groups, world=3))) == [("dead_rank", (1,), True)]


def enqueued(count, first_open, states, *, group="tp", at_ms=0):
    """Calls 0 .. count-1 of a rank, those from `first_open` on in the states given, all of them enqueued at once."""
    rows = []
    for row in calls(count, group=group):
        state = states[row.sequence - first_open] if row.sequence >= first_open else "done"
        begin = row.created_ns + at_ms * MS
        rows.append(
            row._replace(
                created_ns=begin, started_ns=0 if state == "scheduled" else begin,
                ended_ns=begin + MS if state == "done" else 0, state=state,
            )
        )  # fmt: skip
    return rows


def test_a_device_that_does_not_start_what_its_peers_started():
    # All four enqueued calls 5 and 6. Three devices are in call 5; that of rank 2 has not begun it.
    rows = {rank: enqueued(7, 5, ("started", "scheduled")) for rank in (0, 1, 3)}
    rows[2] = enqueued(7, 5, ("scheduled", "scheduled"))
    found = diagnose(evidence(rows, FOUR, world=4, transport="nccl"))
    assert named(found) == [("device_error", (2,), True)]
    assert "its device does not start" in found.findings[0].summary
    assert "ranks 0, 1, 3 started call 5" in found.findings[0].evidence[0]


def test_a_device_that_waits_in_another_group_is_passed_through():
    # Rank 2 has not begun call 5 of "tp" because it is in call 3 of "dp", where rank 4's device has not come.
    groups = {"tp": (0, 1, 2, 3), "dp": (2, 4, 5)}
    rows = {rank: enqueued(6, 5, ("started",)) for rank in (0, 1, 3)}
    rows[2] = [*enqueued(6, 5, ("scheduled",)), *enqueued(4, 3, ("started",), group="dp")]
    rows[4] = enqueued(4, 3, ("scheduled",), group="dp")
    rows[5] = enqueued(4, 3, ("started",), group="dp")
    found = diagnose(evidence(rows, groups, world=6, transport="nccl"))
    assert named(found) == [("device_error", (4,), True)]


def test_starts_that_nobody_records_name_nobody():
    # Without timing NCCL's recorder has no starts: scheduled until completed. Nobody is behind.
    without = [row._replace(started_ns=0) for row in enqueued(6, 5, ("scheduled",))]
    rows = dict.fromkeys(range(4), without)
    found = diagnose(evidence(rows, FOUR, world=4, transport="nccl"))
    assert named(found) == [("hang", (), False)]


def test_the_recorders_own_count_of_starts_says_the_same():
    # Dumps of open calls alone; counts: all enqueued 9 and completed 7, three started 8, rank 1 started 7.
    one = calls(9)[-1]._replace(sequence=8, started_ns=0, ended_ns=0, state="scheduled")
    base = evidence({rank: [one] for rank in range(4)}, FOUR, world=4, transport="nccl")
    ranks = [
        msgspec.structs.replace(rank, marks=(Mark("tp", 9, 7 if rank.head.rank == 1 else 8, 7),), only_open=True)
        for rank in base.trace.ranks
    ]
    found = diagnose(Evidence(trace=msgspec.structs.replace(base.trace, ranks=tuple(ranks))))
    assert named(found) == [("device_error", (1,), True)]


def test_an_undecided_hang_names_the_oldest_open_call_and_its_group():
    # Every rank is in call 5 of "all"; behind it calls 6 of "all" and 2 and 3 of the pairs are enqueued. Nobody lags.
    groups = {"p01": (0, 1), "p23": (2, 3), "all": (0, 1, 2, 3)}
    rows = {
        rank: [
            *enqueued(4, 2, ("scheduled", "scheduled"), group="p01" if rank < 2 else "p23", at_ms=500),
            *enqueued(7, 5, ("scheduled", "scheduled"), group="all"),
        ]
        for rank in range(4)
    }
    (one,) = diagnose(evidence(rows, groups, world=4, transport="nccl")).findings
    assert (one.class_, one.decided) == ("hang", False)
    assert "ranks 0 to 3 entered call 5 of group all" in one.summary


def test_a_stopped_rank_is_told_by_the_call_the_others_stand_in():
    # Three ranks enqueued calls 5 to 7; rank 3 made none of them.
    rows = {rank: enqueued(8, 5, ("scheduled",) * 3) for rank in range(3)} | {3: calls(5)}
    found = diagnose(evidence(rows, FOUR, world=4, transport="nccl"))
    assert named(found) == [("stopped_rank", (3,), True)]
    assert "ranks 0 to 2 in call 5, rank 3 entered 4" in found.findings[0].evidence[0]


def test_two_that_receive_from_each_other_took_different_decisions():
    rows = {0: messages(1, "recv", 3, open_last=True), 1: messages(0, "recv", 3, open_last=True)}
    assert named(diagnose(evidence(rows, {"pp": (0, 1)}, world=2))) == [("control_divergence", (), True)]


def test_a_message_with_both_ends_there_is_not_decided():
    rows = {0: messages(1, "send", 3, open_last=True), 1: messages(0, "recv", 3, open_last=True)}
    assert named(diagnose(evidence(rows, {"pp": (0, 1)}, world=2))) == [("hang", (), False)]


def test_a_rank_that_is_known_to_be_stopped_is_no_witness():
    # Rank 1 was stopped inside its third receive, or third call; rank 0, which went on meanwhile, is in none.
    stopped = Fact("missing", "stopped", rank=1, text="rank 1 is stopped", labels=(("unit", "u"),))
    units = {0: "u", 1: "u"}
    by_message = {0: messages(1, "send", 2, open_last=False), 1: messages(0, "recv", 3, open_last=True)}
    by_call = {0: calls(2, group="pp"), 1: calls(3, open_last=True, group="pp")}
    for rows in (by_message, by_call):
        given = evidence(rows, {"pp": (0, 1)}, world=2, units=units)
        assert named(diagnose(msgspec.structs.replace(given, facts=(stopped,)))) == [("stopped_rank", (1,), True)]


def test_of_two_the_device_that_has_not_begun_is_the_one_the_other_waits_for():
    rows = {0: enqueued(6, 5, ("started",), group="pp"), 1: enqueued(6, 5, ("scheduled",), group="pp")}
    found = diagnose(evidence(rows, {"pp": (0, 1)}, world=2, transport="nccl"))
    assert named(found) == [("device_error", (1,), True)]


def test_one_device_in_a_call_of_four_does_not_say_who_is_the_odd_one():
    rows = {rank: enqueued(6, 5, ("scheduled",)) for rank in range(3)} | {3: enqueued(6, 5, ("started",))}
    found = diagnose(evidence(rows, FOUR, world=4, transport="nccl"))
    assert named(found) == [("hang", (), False)]


def test_calls_under_way_in_records_of_a_moving_group_are_no_hang():
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 3)} | {2: calls(5)}
    found = evidence(rows, FOUR, world=4)
    ranks = tuple(
        msgspec.structs.replace(rank, pace="moving" if rank.head.rank == 1 else "") for rank in found.trace.ranks
    )
    moving = msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=ranks))
    assert named(diagnose(moving)) == []
    assert "count as no hang" in diagnose(moving).notes[0]
    # A watchdog that fired says that it stands.
    fired = Fact("watchdog", "timeout", rank=0, text="Watchdog caught collective operation timeout")
    assert ("stopped_rank", (2,), True) in named(diagnose(msgspec.structs.replace(moving, facts=(fired,))))


def test_a_dump_that_ends_before_what_its_peers_completed_is_of_an_earlier_moment():
    # All-reduce 5 is over on rank 0, so rank 2 entered it after its dump, by whose count it had entered 4.
    rows = {0: calls(7, open_last=True), 1: calls(7, open_last=True), 2: calls(5), 3: calls(6)}
    counts = {0: (6, 5), 1: (6, 5), 2: (4, 4), 3: (5, 5)}
    found = evidence(rows, FOUR, world=4)
    ranks = tuple(
        msgspec.structs.replace(rank, marks=(Mark("tp", counts[rank.head.rank][0], -1, counts[rank.head.rank][1]),))
        for rank in found.trace.ranks
    )
    told = diagnose(msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=ranks)))
    assert named(told) == []
    assert "call 5 of group tp is over, which rank 2 had not entered" in told.notes[0]


def messages_of(sender_state: str, receiver_state: str, *, pace: str = "") -> Evidence:
    """Rank 0 sends three times to rank 1 over NCCL; the states are those of the third message."""
    rows = {}
    for rank, op, state in ((0, "send", sender_state), (1, "recv", receiver_state)):
        made = calls(3, op=op, group="pp")
        last = made[-1]._replace(state=state, ended_ns=made[-1].ended_ns if state == "done" else 0)
        rows[rank] = [row._replace(peer=1 - rank) for row in (*made[:-1], last)]
    found = evidence(rows, {"pp": (0, 1)}, world=2, transport="nccl")
    mark = Mark("pp", 2, 2, 1)
    ranks = tuple(msgspec.structs.replace(rank, marks=(mark,), pace=pace) for rank in found.trace.ranks)
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=ranks))


def test_a_device_that_does_not_begin_or_end_a_message_the_other_end_is_in():
    assert named(diagnose(messages_of("started", "scheduled"))) == [("device_error", (1,), True)]
    assert named(diagnose(messages_of("scheduled", "started"))) == [("device_error", (0,), True)]
    assert named(diagnose(messages_of("started", "done", pace="still"))) == [("device_error", (0,), True)]
    # A group's own count is of its collectives: where its last calls are messages, what was begun shows in the calls.
    given = messages_of("scheduled", "started")
    uncounted = tuple(msgspec.structs.replace(rank, marks=(Mark("pp", -1, -1, -1),)) for rank in given.trace.ranks)
    given = msgspec.structs.replace(given, trace=msgspec.structs.replace(given.trace, ranks=uncounted))
    assert named(diagnose(given)) == [("device_error", (0,), True)]
    # Where it does not show that the record goes on beyond that end, it may have been taken before.
    assert named(diagnose(messages_of("started", "done"))) == [("hang", (), False)]
    assert named(diagnose(messages_of("started", "started"))) == [("hang", (), False)]


def test_dumps_that_say_neither_whether_they_move_nor_stand_decide_nothing():
    # Rank 2 is waited for; ranks 4 and 5 are in no call and nobody waits for them: in a hang they would wait, too.
    groups = {"a": (0, 1, 2), "b": (3, 4, 5), "c": (2, 5)}
    rows = {
        **{rank: calls(4, open_last=True, group="a") for rank in (0, 1)},
        2: [*calls(3, group="a"), *calls(2, group="c")],
        **{rank: calls(4, group="b") for rank in (3, 4)},
        5: [*calls(4, group="b"), *calls(2, group="c")],
    }
    rows = {rank: [row._replace(ended_ns=0) for row in mine] for rank, mine in rows.items()}
    found = evidence(rows, groups, world=6, transport="gloo")
    ranks = tuple(msgspec.structs.replace(rank, format=flight_recorder.FORMAT) for rank in found.trace.ranks)
    dumps = msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=ranks))
    assert named(diagnose(dumps)) == [("hang", (), False)]
    fired = Fact("watchdog", "timeout", rank=0, text="Watchdog caught collective operation timeout")
    assert ("stopped_rank", (2,), True) in named(diagnose(msgspec.structs.replace(dumps, facts=(fired,))))
