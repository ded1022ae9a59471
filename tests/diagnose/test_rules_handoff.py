"""Handoff rules on gauges made by hand: the same queue is one side's fault, the other's, or nobody's."""

from collections.abc import Sequence

import msgspec
import pytest

from linkwise.diagnose.case import Case
from linkwise.diagnose.rules import handoff
from linkwise.diagnose.types import Finding
from linkwise.trace.calls import of_events
from linkwise.trace.events import Event, Handoff, Head, RankTrace, Trace
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence

MINUTE, MS = 60 * 10**9, 10**6


def series(pool: str, rank: int = -1, **gauges: Sequence[float]) -> list[Fact]:
    """A point a minute."""
    return [
        Fact(
            "gauge", f"serve.{name}", value, rank=rank, unix_ns=(minute + 1) * MINUTE, labels=(("pool", pool),),
            source=f"{pool}.log: line {minute}",
        )
        for name, values in gauges.items()
        for minute, value in enumerate(values)
    ]  # fmt: skip


def found(*facts: Fact, ranks: Sequence[RankTrace] = ()) -> list[Finding]:
    return list(handoff.find(Case(Evidence(facts=facts, trace=Trace(ranks=tuple(ranks))))))


IDLE = series("decode", running=[1] * 8, kv_usage=[0.04] * 8, transfer_queue=[0] * 8)
BUSY_PREFILL = series("prefill", waiting=[0] * 8, kv_usage=[0.2] * 8, inflight_queue=[0, 1, 0, 2, 0, 0, 1, 0])


class TestStalled:
    def test_decode_that_never_finishes_taking(self) -> None:
        decode = series("decode", running=[60, 40, 20, 5, 1, 1, 1, 1], kv_usage=[0.5] + [0.04] * 7)
        queue = series("decode", transfer_queue=[20, 48, 64, 64, 64, 64, 64, 64])
        for more, sure in ([], 0.7), (BUSY_PREFILL, 0.85):
            (finding,) = found(*decode, *queue, *more)
            assert (finding.class_, finding.decided, finding.confidence) == ("handoff_stalled", True, sure)
            assert "decode side" in finding.summary

    def test_a_queue_that_shrinks_is_work(self) -> None:
        assert (
            found(*series("decode", running=[1] * 6, kv_usage=[0.04] * 6, transfer_queue=[64, 50, 40, 30, 20, 10]))
            == []
        )

    def test_a_queue_before_a_busy_decode_is_load(self) -> None:
        assert found(*series("decode", running=[60] * 6, kv_usage=[0.8] * 6, transfer_queue=[8] * 6)) == []

    def test_prefill_that_never_finishes_sending(self) -> None:
        stuck = series("prefill", waiting=[0] * 8, inflight_queue=[30, 12, 1, 1, 1, 1, 1, 1], kv_usage=[0.01] * 8)
        (finding,) = found(*stuck, *IDLE)
        assert finding.class_ == "handoff_stalled"
        assert finding.summary.startswith("prefill side")
        assert "transfer worker" in finding.summary

    def test_both_sides_stand_still(self) -> None:
        stuck = series("prefill", inflight_queue=[4] * 8)
        waits = series("decode", running=[0] * 8, kv_usage=[0.1] * 8, transfer_queue=[4] * 8)
        (finding,) = found(*stuck, *waits)
        assert not finding.decided

    def test_one_rank_of_several(self) -> None:
        well = [
            f
            for rank in (0, 1)
            for f in series("decode", rank, running=[9] * 6, kv_usage=[0.3] * 6, transfer_queue=[0, 1] * 3)
        ]
        ill = series("decode", 2, running=[1] * 6, kv_usage=[0.02] * 6, transfer_queue=[8] * 6)
        (finding,) = found(*well, *ill)
        assert finding.original_fault.ranks == (2,)

    def test_prefill_full_and_decode_never_begins(self) -> None:
        prefill = series("prefill", kv_usage=[0.4, 0.99, 1, 1, 1, 1], running=[4, 4, 0, 0, 0, 0])
        decode = series("decode", running=[0] * 6, kv_usage=[0.0] * 6)
        (finding,) = found(*prefill, *decode)
        assert finding.class_ == "handoff_stalled"
        assert "decode side" in finding.summary


class TestPieces:
    @staticmethod
    def moved(*rows: tuple[float, float]) -> list[Fact]:
        return [
            Fact("gauge", name, value, source=f"x.log: line {n}")
            for n, row in enumerate(rows)
            for name, value in zip(("serve.transfer_entries", "serve.transfer_MBps"), row, strict=True)
        ]

    def test_many_pieces_over_a_link_that_is_fast(self) -> None:
        (finding,) = found(*self.moved((1, 4792), (4096, 15.5)))
        assert finding.class_ == "handoff_allocation"
        assert "not the link" in finding.summary

    @pytest.mark.parametrize("rows", [[(1, 15), (4096, 15)], [(2048, 9000), (4096, 8500)], [(1, 15.5)], [(4096, 15.5)]])
    def test_others(self, rows: list[tuple[float, float]]) -> None:
        assert found(*self.moved(*rows)) == []


class TestPools:
    def test_too_little_decode(self) -> None:
        prefill = series("prefill", waiting=[0] * 9, kv_usage=[0.1] * 9)
        decode = series("decode", waiting=[0, 5, 10, 20, 30, 40, 50, 60, 70], kv_usage=[0.97] * 9, running=[64] * 9)
        (finding,) = found(*prefill, *decode)
        assert finding.class_ == "decode_starved"

    def test_too_little_prefill(self) -> None:
        prefill = series("prefill", waiting=[0, 5, 10, 20, 30, 40, 50, 60, 70], kv_usage=[0.6] * 9)
        decode = series("decode", waiting=[0] * 9, kv_usage=[0.1] * 9, running=[9] * 9, transfer_queue=[0] * 9)
        (finding,) = found(*prefill, *decode)
        assert finding.class_ == "prefill_starved"

    def test_pools_in_step(self) -> None:
        prefill = series("prefill", waiting=[3, 2, 4, 3, 2, 3, 4, 2, 3], kv_usage=[0.5] * 9)
        decode = series("decode", waiting=[1, 0, 2, 1, 0, 1, 2, 1, 0], kv_usage=[0.8] * 9, running=[40] * 9)
        assert found(*prefill, *decode) == []

    def test_timeouts_name_nobody(self) -> None:
        labels = (("state", "Bootstrapping"), ("pool", "prefill"))
        (finding,) = found(Fact("error", "handoff_timeout", 300.0, rank=2, labels=labels))
        assert (finding.class_, finding.decided, finding.original_fault.ranks) == ("undecided", False, ())
        assert finding.first_reporter == "prefill rank 2"


def record(rank: int, side: str, times: Sequence[tuple[int, int]], *, allocate: int = 0, **fields: object) -> RankTrace:
    """A rank of two that send or two that take, inside a call for all of each handoff. times: began and ended in ms
    after it was queued."""
    rows = tuple(
        Handoff(
            **({"request": f"{n:02x}", "side": side, "peers": ((rank + 2) % 4,), "queued_ns": 1_000 * (n + 1) * MS,
                "began_ns": (1_000 * (n + 1) + began) * MS, "ended_ns": (1_000 * (n + 1) + ended) * MS, "S_bytes": 4096,
                "serialise_ns": 0, "allocate_ns": allocate * MS, "attempt": 0, "owner": "prefill"} | fields)
        )
        for n, (began, ended) in enumerate(times)
    )  # fmt: skip
    op = "send" if side == "send" else "recv"
    calls = [
        Event(-1, "kv", "", op, n, 4096, "uint8", row.peers[0], row.began_ns, row.began_ns, row.ended_ns, "done")
        for n, row in enumerate(rows)
    ]
    head = Head(rank=rank, world=4, host="a", groups={"kv": (0, 1, 2, 3)})
    return RankTrace(head=head, calls=of_events(calls), handoffs=rows)


WELL = [(1, 5)] * 4


class TestRecords:
    def test_all_alike(self) -> None:
        ranks = [record(rank, "send" if rank < 2 else "take", WELL) for rank in range(4)]
        assert found(ranks=ranks) == []

    def test_a_slow_sender_is_named_and_not_its_taker(self) -> None:
        slow = [(1, 205)] * 4
        ranks = [record(0, "send", WELL), record(1, "send", slow), record(2, "take", WELL), record(3, "take", slow)]
        (finding,) = found(ranks=ranks)
        assert (finding.class_, finding.original_fault.ranks) == ("handoff_slow_sender", (1,))
        assert finding.cause == "network"  # inside its calls

    def test_a_taker_that_comes_late_is_named_and_not_its_sender(self) -> None:
        waits, late = [(1, 205)] * 4, [(200, 205)] * 4
        ranks = [record(0, "send", WELL), record(1, "send", waits), record(2, "take", WELL), record(3, "take", late)]
        (finding,) = found(ranks=ranks)
        assert (finding.class_, finding.original_fault.ranks) == ("handoff_stalled", (3,))
        assert "decode side" in finding.summary

    def test_four_handoffs_a_little_slower_may_be_chance_and_eight_are_not(self) -> None:
        # One of two equal ranks is the slower one of all n with probability 2 x 0.5 ** n: 0.125 of 4, 0.008 of 8.
        for count, named in ((4, 0), (8, 1)):
            well, slow = [(1, 5)] * count, [(1, 21)] * count
            ranks = [record(0, "send", well), record(1, "send", well), record(2, "take", well), record(3, "take", slow)]
            assert len(found(ranks=ranks)) == named

    def test_a_taker_that_is_slow_in_most_handoffs_only_is_not_named(self) -> None:
        mixed = [(1, 41)] * 8 + [(1, 5)] * 4  # a third of them as fast as its sibling: something else took the core
        ranks = [record(0, "send", [(1, 5)] * 12), record(1, "send", [(1, 5)] * 12)]
        ranks += [record(2, "take", [(1, 5)] * 12), record(3, "take", mixed)]
        assert found(ranks=ranks) == []

    def test_beginnings_on_clocks_that_nothing_binds_are_not_compared(self) -> None:
        # Rank 3's host is ahead by 10 s, and no call ties its clock to the others'.
        ahead = [(10_001, 10_005)] * 4
        ranks = [record(0, "send", WELL), record(1, "send", WELL), record(2, "take", WELL), record(3, "take", ahead)]
        ranks[3] = msgspec.structs.replace(ranks[3], head=msgspec.structs.replace(ranks[3].head, host="b"))
        assert found(ranks=ranks) == []

    def test_blocks_that_take_long_to_get(self) -> None:
        ranks = [record(rank, "send" if rank < 2 else "take", [(90, 95)] * 4, allocate=88) for rank in range(4)]
        (finding,) = found(ranks=ranks)
        assert finding.class_ == "handoff_allocation"

    def test_a_wait_before_the_transfer_is_not_decided(self) -> None:
        ranks = [record(rank, "send" if rank < 2 else "take", [(5_000, 5_004)] * 4) for rank in range(4)]
        (finding,) = found(ranks=ranks)
        assert (finding.class_, finding.decided) == ("decode_starved", False)

    def test_an_attempt_nobody_answers_for(self) -> None:
        ranks = [record(rank, "send" if rank < 2 else "take", WELL, owner="") for rank in range(4)]
        (finding,) = found(ranks=ranks)
        assert finding.class_ == "handoff_ownership"

    def test_a_second_attempt_that_is_never_taken(self) -> None:
        first = [record(rank, "send" if rank < 2 else "take", WELL) for rank in range(4)]
        again = record(0, "send", [(500, 504)], attempt=1)
        ranks = [
            RankTrace(head=first[0].head, calls=first[0].calls, handoffs=first[0].handoffs + again.handoffs),
            *first[1:],
        ]
        (finding,) = found(ranks=ranks)
        assert finding.class_ == "handoff_ownership"
