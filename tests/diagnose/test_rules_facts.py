"""Rules that read what monitors, devices, hosts and stacks say. Each has a healthy look-alike that says nothing."""

from collections.abc import Iterable

import pytest
from tests.diagnose.made_facts import SECOND, fact, found, hanging, one

from linkwise.diagnose.rules import devices, host, monitors, network, stacks, watchdogs
from linkwise.trace.calls import of_events
from linkwise.trace.events import Event, Head, RankTrace
from linkwise.trace.facts import Fact


def twice(facts: Iterable[Fact]) -> list[Fact]:
    """The same statements in two reports a minute apart."""
    return [one._replace(unix_ns=at * SECOND) for at in (1, 61) for one in facts]


def launched(counts: Iterable[int], op: str = "all_gather", comm: str = "0xfa", unix_ns: int = 0) -> list[Fact]:
    return [
        fact("launched", op, count, {"communicator": comm}, rank=rank, unix_ns=unix_ns)
        for rank, count in enumerate(counts)
    ]


class TestMonitors:
    def test_the_lower_count_is_behind_when_a_second_report_agrees(self) -> None:
        finding = one(monitors, *twice(launched([10, 10, 3, 10])))
        assert (finding.class_, finding.original_fault.ranks, finding.decided) == ("stopped_rank", (2,), True)

    def test_one_report_decides_nothing_alone(self) -> None:
        # Ranks launch ahead of each other: at one moment a rank may be behind and well.
        finding = one(monitors, *launched([10, 10, 3, 10]))
        assert (finding.class_, finding.original_fault.ranks, finding.decided) == ("undecided", (), False)
        assert "rank 2 has launched 3" in finding.summary
        assert "second look" in finding.would_decide

    def test_one_report_and_who_waits_decide_together(self) -> None:
        counts = launched([10, 10, 3, 10])
        by_peer = fact("watchdog", "timeout", 600, {"op": "all_gather"}, rank=0)
        finding, *_ = found(monitors, *counts, by_peer)
        assert (finding.class_, finding.original_fault.ranks) == ("stopped_rank", (2,))
        # A rank that itself complains of waiting is no witness against itself.
        for rank in (2, 118):  # nor is one that is no member
            finding, *_ = found(monitors, *counts, by_peer._replace(rank=rank))
            assert not finding.decided

    def test_one_report_and_records_of_the_peers_decide_together(self) -> None:
        # Ranks 0, 1 and 3 are in call 7 of their group, rank 2 has no call open and made six.
        ranks = hanging(4)
        done = Event(-1, "tp", "", "all_reduce", 6, 4096, "float32", -1, SECOND, SECOND, SECOND + 1, "done")
        ranks[2] = RankTrace(head=ranks[2].head, calls=of_events([done]))
        finding, *_ = found(monitors, *launched([7, 7, 6, 7], "all_reduce"), ranks=ranks)
        assert (finding.class_, finding.original_fault.ranks) == ("stopped_rank", (2,))

    def test_the_shorter_list_may_be_ahead(self) -> None:
        finding = one(monitors, *launched([640] * 12 + [641] * 2 + [640] * 18))
        assert not finding.decided
        assert finding.original_fault.ranks == ()
        assert "ranks 12, 13" in finding.summary
        assert "ahead and not to blame" in finding.summary
        assert finding.summary.startswith("30 ranks have launched 640")

    def test_a_majority_that_is_not_listed_is_behind_too(self) -> None:
        few = [fact("launched", "all_gather", 641, {"communicator": "c"}, rank=rank) for rank in (12, 13)]
        many = fact("launched", "all_gather", 640, {"communicator": "c", "ranks": "30"})
        finding = one(monitors, many, *few)
        assert not finding.decided
        assert finding.original_fault.ranks == ()
        assert finding.summary.startswith("30 ranks have launched 640")

    def test_a_rank_that_moves_on_is_not_behind(self) -> None:
        looks = launched([10, 8], unix_ns=SECOND) + launched([20, 19], unix_ns=60 * SECOND)
        assert found(monitors, *looks) == []

    def test_a_rank_that_stands_still_is(self) -> None:
        looks = launched([10, 8], unix_ns=SECOND) + launched([10, 8], unix_ns=60 * SECOND)
        finding = one(monitors, *looks)
        assert finding.original_fault.ranks == (1,)
        assert finding.confidence > one(monitors, *launched([10, 8])).confidence

    def test_a_host_that_does_not_answer_is_one_finding(self) -> None:
        gone = [fact("missing", "considered_dead", rank=rank, host="b") for rank in range(8, 16)]
        beside = [fact("place", "rank", rank=rank, host="a") for rank in range(8)]
        finding = one(monitors, *gone, *beside)
        assert (finding.class_, finding.original_fault.ranks) == ("dead_rank", tuple(range(8, 16)))
        assert finding.original_fault.host == "b"
        # One of its ranks runs: the host is there.
        assert len(found(monitors, *gone[1:], *beside, fact("place", "rank", rank=8, host="b"))) == 7

    def test_fewer_of_one_and_more_of_another_is_another_call(self) -> None:
        finding = one(monitors, *launched([10, 9, 10], "all_reduce"), *launched([4, 5, 4], "all_gather"))
        assert (finding.class_, finding.original_fault.ranks) == ("op_mismatch", (1,))

    def test_of_two_neither_is_the_odd_one(self) -> None:
        finding = one(monitors, *launched([10, 9], "all_reduce"), *launched([4, 5], "all_gather"))
        assert (finding.class_, finding.decided, finding.original_fault.ranks) == ("op_mismatch", False, ())

    def test_equal_counts_are_well(self) -> None:
        assert found(monitors, *launched([10, 10, 10, 10]), fact("status", "ok")) == []

    def test_a_rank_of_a_communicator_alone(self) -> None:
        """Where no communicator holds all processes, its own ranks are all that is known."""
        facts = [
            fact("launched", "all_reduce", value, {"communicator": "0x4e", "comm_rank": str(rank)}, host="a")
            for rank, value in enumerate((10, 3))
        ]
        finding = one(monitors, *twice(facts))
        assert (finding.original_fault.ranks, finding.original_fault.unit) == ((1,), "communicator 0x4e")

    def test_the_process_tells_the_rank(self) -> None:
        labels = {"communicator": "0x4e", "pid": "77"}
        facts = [fact("launched", "all_reduce", n, labels | {"comm_rank": str(n)}, host="a") for n in (0, 1)]
        facts[0] = facts[0]._replace(labels=(*facts[0].labels[:1], ("pid", "78"), ("comm_rank", "0")))
        place = fact("place", "rank", labels={"pid": "78"}, rank=6, host="a")
        assert one(monitors, *twice(facts), place).original_fault.ranks == (6,)

    def test_a_monitor_that_sees_it_agrees(self) -> None:
        facts = [
            fact("status", name, source=f"ras.json: communicator {n}") for n, name in enumerate(("ok", "mismatch"))
        ]
        assert [f.class_ for f in found(monitors, *facts, *twice(launched([10, 3])))] == ["stopped_rank"]

    def test_a_rank_that_does_not_answer(self) -> None:
        finding = one(monitors, fact("missing", "unresponsive", rank=1, host="a"))
        assert (finding.class_, finding.original_fault.ranks) == ("dead_rank", (1,))
        assert finding.would_decide  # it may only be stopped

    def test_a_monitor_that_sees_nothing_hides_nothing(self) -> None:
        dog = fact(
            "watchdog", "timeout", 1800, {"sequence": "9", "enqueued": "12", "completed": "8", "group": "0"}, rank=3
        )
        hang, disagrees = found(monitors, fact("status", "ok"), dog)
        assert hang.class_ == "hang"
        assert not hang.decided
        assert "enqueued everywhere, not completed" in hang.summary
        assert disagrees.class_ == "monitor_disagrees"
        assert disagrees.original_fault.ranks == ()

    def test_a_monitor_that_looked_before_the_call_disagrees_with_nobody(self) -> None:
        labels = {"sequence": "9", "enqueued": "12", "completed": "8"}
        dog = fact("watchdog", "timeout", 600, labels, rank=3, unix_ns=10_000 * SECOND)
        classes = [f.class_ for f in found(monitors, fact("status", "ok", unix_ns=9_000 * SECOND), dog)]
        assert "monitor_disagrees" in classes  # the hang itself is found, and the monitor did say ok
        alone = monitors._before(fact("status", "ok", unix_ns=9_000 * SECOND), dog)
        assert alone

    def test_a_monitor_beside_a_hang_of_the_record(self) -> None:
        (finding,) = found(monitors, fact("status", "ok"), ranks=hanging(4))
        assert finding.class_ == "monitor_disagrees"
        assert not finding.decided


class TestWatchdogs:
    @staticmethod
    def dogs(marks: list[tuple[int, int]]) -> list[Fact]:
        return [
            fact("watchdog", "timeout", 600, {"enqueued": str(a), "completed": str(b), "group": "0"}, rank=rank)
            for rank, (a, b) in enumerate(marks)
        ]

    def test_a_device_behind(self) -> None:
        finding = one(watchdogs, *self.dogs([(12, 9), (12, 9), (12, 8), (12, 9)]))
        assert (finding.class_, finding.original_fault.ranks) == ("device_error", (2,))

    def test_a_host_behind(self) -> None:
        finding = one(watchdogs, *self.dogs([(12, 9), (12, 9), (9, 9), (12, 9)]))
        assert (finding.class_, finding.original_fault.ranks) == ("stopped_rank", (2,))

    def test_host_or_device_behind(self) -> None:
        # Rank 3 enqueued 10, which the others completed and it did not, and nothing after it.
        finding = one(watchdogs, *self.dogs([(12, 10), (12, 10), (12, 10), (10, 9)]))
        assert (finding.original_fault.ranks, finding.cause, finding.decided) == ((3,), "", True)
        assert "its device does not end that call, or its host makes no more" in finding.summary
        assert one(watchdogs, *self.dogs([(12, 10), (12, 10), (12, 10), (9, 9)])).cause == "host"

    def test_nobody_behind(self) -> None:
        finding = one(watchdogs, *self.dogs([(12, 9), (11, 9), (12, 9), (12, 9)]))
        assert (finding.class_, finding.decided, finding.original_fault.ranks) == ("hang", False, ())

    def test_who_says_nothing_is_pointed_at(self) -> None:
        dogs = self.dogs([(12, 9), (11, 9), (12, 9), (12, 9)])
        ranks = [fact("place", "process", labels={"pid": str(90 + rank)}, rank=rank) for rank in range(4)]
        finding = one(watchdogs, *dogs[:2], dogs[3], *ranks)
        assert (finding.class_, finding.decided, finding.original_fault.ranks) == ("hang", False, ())
        assert "ranks 0, 1, 3 report it; rank 2 says nothing" in finding.summary
        assert finding.next.startswith("py-spy dump of rank 2")
        # Where most say nothing, they are of other groups, or their logs are not here.
        assert "enqueued everywhere" in one(watchdogs, dogs[0], *ranks).summary
        assert "enqueued everywhere" in one(watchdogs, *dogs, *ranks).summary

    def test_flags(self) -> None:
        def flags(*values: int) -> list[Fact]:
            return [fact("gauge", "rank.hang", value, rank=rank) for rank, value in enumerate(values)]

        assert found(watchdogs, *flags(0, 0, 0, 0)) == []
        assert one(watchdogs, *flags(1, 1, 0, 1)).original_fault.ranks == (2,)
        for undecided in (flags(1, 1, 1, 1), flags(1, 0, 1, 0), flags(0, 1, 0, 0)):
            finding = one(watchdogs, *undecided)
            assert (finding.class_, finding.decided, finding.original_fault.ranks) == ("hang", False, ())

    def test_an_idle_heartbeat_is_no_fault(self) -> None:
        notices = [fact("notice", "shm_broadcast_wait", 60.0, unix_ns=n * 60 * SECOND) for n in range(10)]
        for rule in (devices, host, monitors, network, stacks):
            assert found(rule, *notices) == []


class TestDevices:
    def test_a_gpu_that_fell_off_the_bus_is_its_ranks(self) -> None:
        xid = fact("device", "xid.79", 1, {"severity": "hardware"}, host="a", device="0000:41:00")
        place = fact("place", "gpu", rank=5, host="a", device="0000:41:00.0")
        finding = one(devices, xid, place)
        assert (finding.class_, finding.original_fault.ranks, finding.cause) == ("device_error", (5,), "device")

    def test_a_cpu_s_error_is_of_its_host_and_asks_for_no_gpu_tool(self) -> None:
        finding = one(devices, fact("device", "mce.uncorrected", 1, {"severity": "hardware"}, host="a"))
        assert (finding.class_, finding.cause, finding.original_fault.host) == ("device_error", "host", "a")
        assert "nvidia-smi" not in finding.next
        assert found(devices, fact("notice", "mce.logged", host="a"), fact("notice", "mce.corrected", host="a")) == []

    def test_a_program_s_error_on_another_host_is_told_beside_a_broken_device(self) -> None:
        lost = fact("device", "xid.79", 1, {"severity": "hardware"}, host="b", device="0000:9b:00")
        program = fact("device", "xid.13", 1, {"severity": "application"}, host="a", device="0000:1b:00")
        assert [(one.class_, one.original_fault.host) for one in found(devices, lost, program)] == [
            ("device_error", "b"),
            ("undecided", "a"),
        ]
        # On the host of the broken device it may follow from that.
        assert len(found(devices, lost, program._replace(host="b"))) == 1

    def test_memory_errors_are_counted_in_words(self) -> None:
        labels = {"severity": "hardware", "scope": "volatile", "memory": "dram"}
        ecc = fact("device", "ecc.uncorrected", 3, labels, device="0000:2b:00")
        assert "3 uncorrectable memory errors in DRAM" in one(devices, ecc).summary

    def test_by_the_process_on_it(self) -> None:
        xid = fact("device", "xid.95", 1, {"severity": "hardware"}, host="a", device="0000:41:00")
        process = fact("place", "process", labels={"pid": "77"}, host="a", device="0000:41:00")
        pid = fact("place", "process", labels={"pid": "77"}, rank=2, host="a")
        assert one(devices, xid, process, pid).original_fault.ranks == (2,)

    def test_the_one_rank_of_the_host_whose_calls_to_a_device_failed_too(self) -> None:
        lost = fact("device", "xid.79", 1.0, {"severity": "hardware"}, device="0000:3b:00", host="a")
        failed = [
            fact("error", "cuda_error", 0, {"reason": "x"}, rank=rank, host=at) for rank, at in ((2, "a"), (9, "b"))
        ]
        finding = one(devices, lost, *failed)
        assert (finding.original_fault.ranks, finding.confidence) == ((2,), 0.75)
        both = fact("error", "cuda_error", rank=3, host="a")
        assert one(devices, lost, *failed, both).original_fault.ranks == ()
        elsewhere = fact("place", "gpu", 0, {"pid": "7"}, rank=2, host="a", device="0000:1b:00")
        assert one(devices, lost, *failed, elsewhere).original_fault.ranks == ()

    def test_a_programs_error_is_not_the_devices(self) -> None:
        xid = fact("device", "xid.31", 1, {"severity": "application"}, host="a", device="0000:41:00")
        finding = one(devices, xid, fact("place", "gpu", rank=5, host="a", device="0000:41:00"))
        assert not finding.decided
        assert finding.original_fault.ranks == ()
        ended = fact("device", "xid.43", 1, {"severity": "application"}, device="0000:41:00")
        assert found(devices, ended) == []
        hard = fact("device", "xid.48", 1, {"severity": "hardware"}, host="b", device="0000:1b:00")
        assert [(f.original_fault.host, f.decided) for f in found(devices, xid, hard)] == [("b", True), ("a", False)]

    @pytest.mark.parametrize(("name", "labels", "bad"), [
        ("throttle.hw_thermal", {"pstate": "P0"}, True), ("throttle.hw_slowdown", {"pstate": "P8"}, False),
        ("throttle.sw_power_cap", {}, False), ("pcie_downgraded", {"width": "x8"}, True),
        ("ecc.uncorrected", {"scope": "volatile"}, True), ("ecc.uncorrected", {"scope": "aggregate"}, False),
        ("xid.63", {"severity": "hardware"}, False), ("sxid.12028", {"severity": "hardware", "fatal": "0"}, False),
    ])  # fmt: skip
    def test_what_counts(self, name: str, labels: dict[str, str], bad: bool) -> None:
        assert bool(found(devices, fact("device", name, 1, labels, host="a", device="0000:41:00"))) == bad

    def test_a_fault_of_last_month_is_another_story(self) -> None:
        now = 1_780_000_000 * SECOND
        xid = fact("device", "xid.79", 1, {"severity": "hardware"}, device="gpu1", unix_ns=now - 30 * 86_400 * SECOND)
        call = Event(-1, "tp", "", "all_reduce", 0, 4, "float32", -1, now, now, now + 1, "done")
        rank = RankTrace(head=Head(rank=0, world=2, groups={"tp": (0, 1)}), calls=of_events([call]))
        assert found(devices, xid, ranks=[rank]) == []
        assert found(devices, xid) != []

    @pytest.mark.parametrize("name", ["throttle.hw_thermal", "xid.79"])
    def test_a_device_that_two_hosts_have_is_of_neither_unless_the_host_is_said(self, name: str) -> None:
        def record(rank: int, at: str) -> RankTrace:
            return RankTrace(head=Head(rank=rank, world=2, host=at, device="0000:1d:00.0"), calls=of_events([]))

        told = fact("device", name, labels={"severity": "hardware"}, device="0000:1d:00.0")
        both = [record(0, "a"), record(1, "b")]
        finding = one(devices, told, ranks=both)
        assert (finding.decided, finding.original_fault.ranks) == (False, ())
        assert "rank 0 on a or rank 1 on b" in finding.summary
        finding = one(devices, told._replace(host="b"), ranks=both)
        assert (finding.decided, finding.original_fault.ranks) == (True, (1,))
        finding = one(devices, told, ranks=both[:1])  # one host in all the evidence
        assert (finding.decided, finding.original_fault.ranks) == (True, (0,))


class TestHost:
    @pytest.mark.parametrize(("throttled", "bad"), [(400, True), (20, False)])
    def test_quota(self, throttled: int, bad: bool) -> None:
        facts = [
            fact("counter", "cpu.nr_periods", 1000, host="a", source="cpu.stat: line 4"),
            fact("counter", "cpu.nr_throttled", throttled, host="a", source="cpu.stat: line 5"),
        ]
        findings = found(host, *facts)
        assert bool(findings) == bad
        if bad:
            assert "container CPU quota" in findings[0].summary
            assert (findings[0].class_, findings[0].original_fault.host) == ("host_contention", "a")

    def test_out_of_memory(self) -> None:
        oom = fact("exit", "oom", -9, {"pid": "991", "command": "python"}, host="a")
        named = one(host, oom, fact("place", "process", labels={"pid": "991"}, rank=6, host="a"))
        assert (named.class_, named.original_fault.ranks) == ("dead_rank", (6,))
        unnamed = one(host, oom)
        assert not unnamed.decided
        assert unnamed.original_fault.ranks == ()

    def test_a_kill_of_the_host_whose_process_id_nobody_knows(self) -> None:
        """A container numbers its processes by itself: host, time and name join the kill with the rank that ended."""
        labels = {"pid": "88113", "command": "VLLM::Worker_TP"}
        kill = fact("exit", "oom", -9, labels, host="a", unix_ns=100 * SECOND)
        for end in (
            fact("exit", "died", 0, {"code": "unknown"}, rank=3, host="a", unix_ns=105 * SECOND),
            fact("exit", "died", -9, rank=3, host="a", unix_ns=105 * SECOND),
        ):
            finding = one(host, kill, end)
            assert (finding.original_fault.ranks, finding.decided, finding.confidence) == ((3,), True, 0.9)
            assert "the kernel killed process 88113 (VLLM::Worker_TP)" in finding.summary
            for other in (kill._replace(host="b"), kill._replace(unix_ns=9_000 * SECOND)):
                dead, apart = found(host, other, end)  # neither hides the other
                assert (dead.original_fault.ranks, dead.confidence, apart.decided) == ((3,), 0.8, False)
        place = fact("place", "process", 0, {"pid": "12"}, rank=3, host="a")
        browser = fact("exit", "oom", -9, {"pid": "9", "command": "chrome"}, host="a")
        assert found(host, place, browser) == []
        assert not one(host, place, kill).decided

    def test_those_that_are_ended_because_of_another(self) -> None:
        exits = [fact("exit", "died", value, rank=rank) for rank, value in enumerate((-6, -15, -11, -6))]
        assert one(host, *exits).original_fault.ranks == (2,)
        assert found(host, *(fact("exit", "died", 0, rank=rank) for rank in range(4))) == []

    def test_many_that_end_alike(self) -> None:
        exits = [fact("exit", "died", 1, rank=rank) for rank in range(4)]
        undecided = one(host, *exits)
        assert not undecided.decided
        assert undecided.original_fault.ranks == ()
        timed = [end._replace(unix_ns=(10 - end.rank) * SECOND) for end in exits]
        assert one(host, *timed).original_fault.ranks == (3,)

    def test_a_lock_is_held_by_the_one_that_does_not_wait(self) -> None:
        waits = [fact("error", "lock_wait", labels={"lock": "/jit/x.lock"}, rank=rank) for rank in (1, 2, 3)]
        finding = one(host, *waits)
        assert (finding.class_, finding.original_fault.ranks) == ("stopped_rank", (0,))
        two = one(host, *waits[1:])
        assert not two.decided  # 0 or 1
        beside = fact("stack", "broadcast", rank=1)
        assert one(host, *waits[1:], beside).original_fault.ranks == (0,)

    def test_one_waiter_is_an_ordinary_build(self) -> None:
        assert found(host, fact("error", "lock_wait", labels={"lock": "/jit/x.lock"}, rank=1)) == []


class TestStacks:
    @staticmethod
    def stands(*places: tuple[str, str]) -> list[Fact]:
        return [
            fact("stack", name, labels={"caller": caller, "thread": "main"}, rank=rank, source=f"rank{rank}.txt")
            for rank, (name, caller) in enumerate(places)
        ]

    def test_different_collectives(self) -> None:
        told = self.stands(("all_reduce", "can_terminate_prefetch"), *[("broadcast", "_broadcast_reqs")] * 3)
        finding = one(stacks, *told)
        assert (finding.class_, finding.cause, finding.original_fault.ranks) == ("control_divergence", "software", ())
        assert finding.first_reporter == "rank 0"

    def test_the_same_collective(self) -> None:
        finding = one(stacks, *self.stands(*[("all_gather", "prepare_mlp_sync_batch")] * 16))
        assert (finding.class_, finding.decided, finding.original_fault.ranks) == ("hang", False, ())
        assert "no rank can be named" in finding.summary

    def test_the_proxy_queue_is_ambiguous(self) -> None:
        finding = one(stacks, *self.stands(("broadcast", "recv_requests"), ("nccl_proxy", "forward")))
        assert not finding.decided
        assert finding.original_fault.ranks == ()
        assert "descriptors" in finding.summary
        assert "decisions" in finding.summary

    def test_one_in_a_lock(self) -> None:
        finding = one(stacks, *self.stands(("barrier", "load"), ("lock", "wait"), ("barrier", "load")))
        assert (finding.class_, finding.original_fault.ranks) == ("stopped_rank", (1,))

    def test_one_elsewhere_at_one_moment_may_be_chance(self) -> None:
        told = self.stands(("all_reduce", "f"), ("all_reduce", "f"), ("compute", "tokenise"))
        assert not one(stacks, *told).decided
        sure = one(stacks, *told, fact("watchdog", "timeout", 600, rank=0))
        assert (sure.decided, sure.original_fault.ranks) == (True, (2,))

    def test_an_idle_driver_whose_workers_wait_for_its_next_broadcast(self) -> None:
        told = self.stands(("idle", "poll"), *[("broadcast", "recv_requests")] * 3)
        assert found(stacks, *told) == []
        # With requests that wait it should not be idle; and in an all-reduce it has a part of its own.
        assert found(stacks, *told, fact("gauge", "serve.waiting", 5)) != []
        assert found(stacks, *self.stands(("idle", "poll"), *[("all_reduce", "forward")] * 3)) != []

    def test_a_running_group(self) -> None:
        assert found(stacks, *self.stands(("compute", "forward"), ("device_wait", "copy"), ("all_reduce", "f"))) == []
        assert found(stacks, *self.stands(("idle", "recv"), ("idle", "recv"))) == []
        assert found(stacks, *self.stands(("all_reduce", "f"))) == []
