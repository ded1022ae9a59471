"""A rank that others wait for and that is in no call: it stands still, left out a call, or has no work."""

import msgspec
from tests.diagnose.made import BASE, MS, evidence
from tests.diagnose.made_facts import fact
from tests.diagnose.test_hang import FOUR, calls, messages, named

from linkwise.diagnose.diagnose import diagnose
from linkwise.trace.events import Batch, Event
from linkwise.trace.gather import Evidence


def with_batches(found: Evidence, batches: dict[int, tuple[Batch, ...]]) -> Evidence:
    ranks = [msgspec.structs.replace(rank, batches=batches.get(rank.head.rank, ())) for rank in found.trace.ranks]
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, ranks=tuple(ranks)))


def step(number: int, *, over: bool = True) -> Batch:
    return Batch(number, BASE + number, ("ab",), (1,), BASE + number + 1 if over else 0)


def receivers():
    """Workers that wait for the fourth broadcast of rank 0, which is in no call."""
    return {rank: calls(4, open_last=True, op="broadcast") for rank in (1, 2, 3)} | {0: calls(3, op="broadcast")}


def test_a_driver_without_work_is_no_fault():
    # Every step that began is over: rank 0 has nothing to give out, the others wait for it by design.
    given = with_batches(evidence(receivers(), FOUR, world=4), {rank: (step(0), step(1)) for rank in range(4)})
    assert diagnose(given).findings == ()


def test_a_driver_that_may_have_work_is_not_named_either():
    found = diagnose(evidence(receivers(), FOUR, world=4))
    assert named(found) == [("hang", (), False)]
    assert "no work to give out" in found.findings[0].summary
    assert "num_requests_waiting" in found.findings[0].would_decide


def test_a_driver_with_work_is_named():
    base = evidence(receivers(), FOUR, world=4)
    # A step is under way on a worker; or requests wait; or a watchdog says that somebody waited too long.
    under_way = with_batches(base, {rank: (step(0), step(1, over=rank != 2)) for rank in range(4)})
    waiting = msgspec.structs.replace(base, facts=(fact("gauge", "serve.waiting", 7),))
    timed_out = msgspec.structs.replace(base, facts=(fact("watchdog", "timeout", 600, rank=1),))
    for given in (under_way, waiting, timed_out):
        assert ("stopped_rank", (0,), True) in named(diagnose(given))
    idle = msgspec.structs.replace(base, facts=(fact("gauge", "serve.waiting", 0), fact("gauge", "serve.running", 0)))
    assert all(not one.decided for one in diagnose(idle).findings)


def test_a_first_stage_without_work_is_not_stopped_but_one_that_holds_a_message_is():
    first = {0: messages(1, "send", 3, open_last=False), 1: messages(0, "recv", 4, open_last=True)}
    assert named(diagnose(evidence(first, {"pp": (0, 1)}, world=2))) == [("hang", (), False)]
    # Stage 1 has four messages of stage 0 and passed on three: stage 2 waits for the fourth.
    held = {
        0: messages(1, "send", 4, open_last=False),
        1: [*messages(0, "recv", 4, open_last=False), *messages(2, "send", 3, open_last=False)],
        2: messages(1, "recv", 4, open_last=True),
    }
    assert named(diagnose(evidence(held, {"pp": (0, 1, 2)}, world=3))) == [("stopped_rank", (1,), True)]


def test_an_idle_pause_is_charged_to_nobody():
    # Rank 0 broadcasts every 10 ms; once it has no work for a minute. The others wait in the broadcast meanwhile.
    rows, at = {rank: [] for rank in range(4)}, BASE
    for number in range(40):
        own = 60_000 if number == 20 else 10
        for rank in range(4):
            begin = at + (own * MS if rank == 0 else MS)
            end = at + (own + 1) * MS
            rows[rank].append(Event(0, "tp", "", "broadcast", number, 64, "int64", -1, begin, begin, end, "done"))
        at += (own + 1) * MS
    assert not [one for one in diagnose(evidence(rows, FOUR, world=4)).findings if one.class_ == "stopped_rank"]


def test_one_call_less_among_calls_that_are_all_alike_is_one_of_two():
    rows = {rank: calls(6, open_last=True) for rank in (0, 1, 3)} | {2: calls(5)}
    (one,) = diagnose(evidence(rows, FOUR, world=4)).findings
    assert (one.class_, one.original_fault.ranks) == ("stopped_rank", (2,))
    assert "it stands still, or it left out a call" in one.summary
    assert "stack of rank 2" in one.would_decide
    # Inside a step that is not over it stands still.
    inside = with_batches(evidence(rows, FOUR, world=4), {rank: (step(0), step(1, over=False)) for rank in range(4)})
    (one,) = diagnose(inside).findings
    assert (one.class_, one.would_decide) == ("stopped_rank", "")


def in_steps(counts: list[int], *, open_last: bool) -> list[Event]:
    """So many calls in each step, the last one open if asked."""
    steps = [number for number, count in enumerate(counts) for _ in range(count)]
    return [
        row._replace(step=number) for row, number in zip(calls(len(steps), open_last=open_last), steps, strict=True)
    ]


def test_a_step_with_a_call_less_was_left_out_there():
    # Four calls a step; rank 2 made three in step 3 and went on. The others wait in the last call of step 5.
    rows = {rank: in_steps([4] * 6, open_last=True) for rank in (0, 1, 3)}
    rows[2] = in_steps([4, 4, 4, 3, 4, 4], open_last=False)
    (one,) = diagnose(evidence(rows, FOUR, world=4)).findings
    assert (one.class_, one.original_fault.ranks, one.decided) == ("skipped_collective", (2,), True)
    assert "in step 3 rank 2 made 3 calls" in one.evidence[0]


def between(counts: list[int], *, open_last: bool) -> list[Event]:
    """So many calls of "tp" before each of "dp", in the order of the record."""
    rows: list[Event] = []
    tp, dp = calls(sum(counts), open_last=open_last), calls(len(counts), group="dp")
    taken = 0
    for number, count in enumerate(counts):
        rows += [*tp[taken : taken + count], dp[number]]
        taken += count
    return rows if not open_last else rows[:-1]


def test_without_steps_the_calls_of_another_group_tell_it():
    # Three calls of "tp" before each of "dp" on every rank; rank 1 made two before its seventh and went on.
    groups = {"tp": (0, 1), "dp": (0, 1)}
    rows = {0: between([3] * 9, open_last=True), 1: between([3] * 6 + [2] + [3] * 2, open_last=False)}
    rows[1] = rows[1][:-1]
    (one,) = diagnose(evidence(rows, groups, world=2)).findings
    assert (one.class_, one.original_fault.ranks) == ("skipped_collective", (1,))
    assert "made 2 of group tp, before and after always 3" in one.evidence[0]


def test_a_call_more_than_always_between_those_of_another_group_was_made_twice():
    # Three calls of "tp" before each of "dp" on four ranks; rank 1 made four before its seventh, and stands at the
    # end in a call of "tp" that the others do not make.
    groups = {"tp": (0, 1, 2, 3), "dp": (0, 1, 2, 3)}
    rows = {rank: between([3] * 9, open_last=False) for rank in (0, 2, 3)}
    rows[1] = between([3] * 6 + [4] + [3] * 2, open_last=False)[:-1]
    rows[1][-1] = rows[1][-1]._replace(ended_ns=0, state="started")
    (one,) = [one for one in diagnose(evidence(rows, groups, world=4)).findings if one.decided]
    assert (one.class_, one.original_fault.ranks) == ("repeated_collective", (1,))
    assert "made 4 of group tp, before and after always 3" in one.evidence[0]


def in_pipe(rank: int, rounds: list[list[str]]) -> list[Event]:
    """Rounds of calls by name: "recv" from the rank two before, "send" to the one two behind, else of group "tp1"."""
    rows: list[Event] = []
    for number, name in enumerate(name for one in rounds for name in one):
        message = name in ("recv", "send")
        group, op = (f"pp{rank % 2}", name) if message else ("tp1", "all_reduce")
        sequence = sum(row.group == group for row in rows)
        begin = BASE + number * 10 * MS
        peer = rank + (2 if name == "send" else -2) if message else -1
        rows.append(Event(0, group, "", op, sequence, 4096, "bfloat16", peer, begin, begin, begin + MS, "done"))
    return rows


PIPE = {"pp0": (0, 2, 4), "pp1": (1, 3, 5), "tp1": (2, 3)}
ROUND = ["recv", "tp", "tp", "tp", "send"]


def test_a_call_left_out_between_two_messages_is_told_by_their_kinds():
    # Rank 2 made two calls of its stage between its last messages and waits for the next; rank 3 waits in the third.
    stuck = in_pipe(3, [ROUND] * 7 + [ROUND[:4]])
    stuck[-1] = stuck[-1]._replace(ended_ns=0, state="started")
    gone_on = in_pipe(2, [ROUND] * 7 + [["recv", "tp", "tp", "send"], ["recv"]])
    gone_on[-1] = gone_on[-1]._replace(ended_ns=0, state="started")
    found = [one for one in diagnose(evidence({2: gone_on, 3: stuck}, PIPE, world=6)).findings if one.decided]
    assert ("skipped_collective", (2,)) in [(one.class_, one.original_fault.ranks) for one in found]


def test_a_message_left_out_shows_where_two_of_the_other_kind_are_in_a_row():
    # Rank 2 did not receive in its seventh round of ten; rank 0 waits for good to be rid of its last message.
    rounds = [ROUND] * 6 + [ROUND[1:]] + [ROUND] * 3
    sender = messages(2, "send", 10, open_last=True)
    rows = {0: [row._replace(group="pp0") for row in sender], 2: in_pipe(2, rounds)}
    (one,) = diagnose(evidence(rows, {"pp0": (0, 2), "tp1": (2, 3)}, world=4)).findings
    assert (one.class_, one.original_fault.ranks) == ("skipped_collective", (2,))
    assert "rank 2 made 0 recv, before and after always 1" in one.evidence[0]


def test_of_a_rank_that_is_as_far_as_its_peers_and_did_not_take_a_message_both_are_said():
    # Rank 0 waits to be rid of an eleventh message. Rank 2 received ten and made as many calls as rank 3, which waits
    # for nothing: if rank 2 stood still, rank 3 would wait for it.
    rows = {0: [row._replace(group="pp0") for row in messages(2, "send", 11, open_last=True)]}
    rows |= {rank: in_pipe(rank, [ROUND] * 10) for rank in (2, 3)}
    found = diagnose(evidence(rows, {"pp0": (0, 2), "tp1": (2, 3)}, world=4)).findings
    assert [(one.class_, one.original_fault.ranks) for one in found] == [("stopped_rank", (2,))]
    assert "it stands still, or it left out a call" in found[0].summary
    assert "stack of rank 2" in found[0].would_decide


def test_a_message_left_out_is_told_of_a_rank_that_waits_as_well():
    # Rank 2 left out a receive in its seventh round, so that rank 0 waits for good to be rid of its last one; rank 2
    # waits for rank 4 to take a message, and rank 4 for a message of rank 2.
    rows = {0: [row._replace(group="pp0") for row in messages(2, "send", 10, open_last=True)]}
    rows[2] = in_pipe(2, [ROUND] * 6 + [ROUND[1:]] + [ROUND] * 3)
    rows[2][-1] = rows[2][-1]._replace(ended_ns=0, state="started")
    rows[4] = [row._replace(group="pp0") for row in messages(2, "recv", 11, open_last=True)]
    found = named(diagnose(evidence(rows, PIPE, world=6)))
    assert [one for one in found if one[2]] == [("skipped_collective", (2,), True)]
