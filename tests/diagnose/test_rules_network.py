"""Rules about the network: errors, growth of counters, transports, groups of one shape. Healthy look-alikes beside."""

import pytest
from msgspec.structs import replace
from tests.diagnose.made_facts import SECOND, fact, found, hanging, one

from linkwise.diagnose.rules import devices, links, network
from linkwise.trace.calls import of_events
from linkwise.trace.events import Event, Head, RankTrace


def looks(*values: float) -> list[tuple[float, dict[str, str]]]:
    return [(value, {"snapshot": str(n)} if n else {}) for n, value in enumerate(values)]


class TestNetwork:
    def test_no_answer_within_the_retries(self) -> None:
        errors = [fact("network", "ib.completion.12.129", rank=rank, text="NET/IB : Got completion") for rank in (3, 0)]
        finding = one(network, *errors)
        assert (finding.class_, finding.cause) == ("network_error", "configuration")
        assert finding.original_fault.ranks == ()
        assert finding.first_reporter == "rank 3"
        assert "GID" in finding.next

    def test_no_answer_and_a_port_that_is_down(self) -> None:
        error = fact("network", "ib.completion.12.129", device="mlx5_2:1", host="b")
        down = fact("network", "ib.port_down", device="mlx5_2:1", host="b")
        finding = one(network, error, down)
        assert (finding.cause, finding.original_fault.link, finding.original_fault.host) == ("network", "mlx5_2:1", "b")

    def test_one_report_of_no_answer_does_not_say_whose_it_is(self) -> None:
        finding = one(network, fact("network", "ib.completion.12.129", 0, {"peer": "10.0.0.2"}, rank=0, host="a"))
        assert (finding.decided, finding.original_fault.host, finding.cause) == (False, "", "")
        assert "rank 0 gets no answer from 10.0.0.2, as it alone says" in finding.summary

    def test_a_host_at_one_end_of_all_failed_requests(self) -> None:
        address = fact("place", "address", 0, {"address": "10.0.0.5"}, rank=5, host="node5")
        errors = [
            fact("network", "ib.completion.12.129", 0, {"peer": "10.0.0.5"}, rank=rank, host=f"node{rank}")
            for rank in (4, 6)
        ]
        alone = one(network, address, *errors)
        assert (alone.original_fault.host, alone.original_fault.link, alone.confidence) == ("node5", "", 0.65)
        died = fact("exit", "died", -9, rank=5, host="node5")
        assert not one(network, address, *errors, died).decided
        down = fact("network", "ib.port_down", device="0000:5e:00", host="node5")
        cable = fact("device", "nic_cable", 1.0, {"severity": "hardware"}, device="0000:5e:00", host="node5")
        finding = one(network, address, *errors, down, cable)
        assert (finding.original_fault.host, finding.original_fault.link) == ("node5", "0000:5e:00")
        assert "ranks 4, 6 have node5 at the other end" in finding.summary
        assert "link down, cable unplugged" in finding.summary
        # Of one pair only what a NIC of it reports decides.
        assert one(network, address, errors[0], cable).original_fault.host == "node5"
        assert not one(network, address, errors[0]).decided
        # The NIC's own finding speaks of the same place, so that they are one.
        assert one(devices, cable).original_fault == finding.original_fault
        assert "cable" in one(devices, cable).next

    def test_flushed_requests_follow_from_another(self) -> None:
        errors = [fact("network", f"ib.completion.{code}", rank=0) for code in ("12.129", "5.249")]
        assert "status 12" in one(network, *errors).summary

    def test_access_control(self) -> None:
        acs = fact("setting", "pcie_acs", 1.0, {"value": "on"}, host="a", device="0000:41:00")
        finding = one(network, fact("network", "ib.completion.4.81", rank=0), acs)
        assert (finding.cause, finding.original_fault.host) == ("configuration", "a")
        assert "ACS" in finding.summary

    def test_access_control_and_peer_to_peer(self) -> None:
        acs = fact("setting", "pcie_acs", 1.0, host="a")
        p2p = fact("transport", "p2p", rank=0, peer=1)
        finding = one(network, acs, p2p, ranks=hanging(2))
        assert (finding.class_, finding.cause, finding.original_fault.ranks) == (
            "transport_unexpected", "configuration", (),
        )  # fmt: skip
        assert found(network, acs, p2p) == []  # a machine that works with it
        assert found(network, fact("setting", "pcie_acs", 0.0), p2p, ranks=hanging(2)) == []

    def test_an_unused_port_is_down(self) -> None:
        down = fact("network", "ib.port_down", device="mlx5_3:1", host="a")
        assert found(network, down) == []
        up = fact("gauge", "ib.port_state", 1.0, device="mlx5_3:1", host="b")
        assert one(network, down, up).original_fault.link == "mlx5_3:1"

    @pytest.mark.parametrize(("name", "more", "bad"), [
        ("ib.symbol_error", 500, True), ("ib.link_downed", 1, True), ("ib.local_ack_timeout_err", 60, True),
        ("ib.symbol_error", 3, False), ("ib.port_xmit_wait", 10**9, False), ("ib.out_of_sequence", 20, False),
    ])  # fmt: skip
    def test_counters_that_grow(self, name: str, more: int, bad: bool) -> None:
        looks = [
            fact("counter", name, 7, host="a", device="mlx5_0:1"),
            fact("counter", name, 7 + more, {"snapshot": "1"}, host="a", device="mlx5_0:1"),
        ]
        assert [f.original_fault.link for f in found(network, *looks)] == (["mlx5_0:1"] if bad else [])

    def test_one_look_at_a_counter_says_nothing(self) -> None:
        assert found(network, fact("counter", "ib.symbol_error", 65_000, host="a", device="mlx5_0:1")) == []

    @pytest.mark.parametrize(("again", "bad"), [(5_000, True), (50, False)])
    def test_segments_sent_twice(self, again: int, bad: bool) -> None:
        sent = [fact("counter", "tcp.out_segs", value, label, host="a") for value, label in looks(0, 100_000)]
        twice = [fact("counter", "tcp.retrans_segs", value, label, host="a") for value, label in looks(0, again)]
        assert [f.original_fault.host for f in found(network, *sent, *twice)] == (["a"] if bad else [])

    def test_ranks_that_go_another_way(self) -> None:
        ways = [fact("transport", "net.ib.gdr", rank=rank, peer=8) for rank in range(7)]
        finding = one(network, *ways, fact("transport", "net.ib", rank=7, peer=8))
        assert (finding.class_, finding.original_fault.ranks) == ("transport_unexpected", (7,))
        assert found(network, *ways) == []
        both = [fact("transport", name, rank=rank, peer=8) for rank in range(4) for name in ("p2p", "shm")]
        assert found(network, *both) == []  # two sockets

    def test_sockets_where_there_are_nics(self) -> None:
        ways = [fact("transport", "net.socket", rank=rank, peer=1 - rank) for rank in range(2)]
        assert found(network, *ways) == []
        finding = one(network, *ways, fact("place", "nic", device="mlx5_0", host="a"))
        assert finding.original_fault.ranks == ()  # all of them: nobody's own


class TestLinks:
    @staticmethod
    def groups(times_ms: list[list[float]], hosts: tuple[str, str] = ("a", "b")) -> list[RankTrace]:
        """Group g is rank 2g on one host and 2g + 1 on another, which always comes 50 ms later; times of its calls."""
        world, ranks = 2 * len(times_ms), []
        for rank in range(world):
            events = []
            for n, took in enumerate(times_ms[rank // 2]):
                begin = (1 + n) * SECOND + (rank % 2) * 50_000_000
                end = (1 + n) * SECOND + 50_000_000 + int(took * 1e6)
                events.append(
                    Event(-1, f"g{rank // 2}", "", "all_reduce", n, 2**30, "float32", -1, 0, begin, end, "done")
                )
            members = (rank - rank % 2, rank - rank % 2 + 1)
            head = Head(rank=rank, world=world, host=hosts[rank % 2], groups={f"g{rank // 2}": members})
            ranks.append(RankTrace(head=head, calls=of_events(events)))
        return ranks

    def test_groups_that_are_slower_every_time(self) -> None:
        finding = one(links, ranks=self.groups([[439, 440, 441, 438, 439]] * 2 + [[277, 276, 278, 279, 277]] * 6))
        assert (finding.class_, finding.decided, finding.original_fault.ranks) == ("slow_link", False, ())
        assert "2 of 8 groups" in finding.summary
        assert "1.6 times" in finding.summary

    @pytest.mark.parametrize("times", [
        [[277, 276, 278, 279, 277]] * 8,
        [[277, 700, 278, 279, 277]] + [[277, 276, 278, 279, 277]] * 3,  # once
        [[439] * 5, [277] * 5],  # of two, which is the usual one?
        [[439, 440]] + [[277, 276]] * 7,  # too few calls
        [[0.4] * 5] + [[0.2] * 5] * 7,  # start-up
    ])  # fmt: skip
    def test_others(self, times: list[list[float]]) -> None:
        assert found(links, ranks=self.groups(times)) == []

    def test_groups_on_one_host_and_on_two_are_not_alike(self) -> None:
        ranks = self.groups([[439] * 5] * 2 + [[277] * 5] * 6)
        moved = [replace(rank, head=replace(rank.head, host="a")) if rank.head.rank >= 4 else rank for rank in ranks]
        assert found(links, ranks=moved) == []

    def test_without_hosts_groups_of_one_shape_are_alike(self) -> None:
        finding = one(links, ranks=self.groups([[439] * 5] * 2 + [[277] * 5] * 6, hosts=("", "")))
        assert not finding.decided
        assert "Hosts are not known" in finding.summary

    def test_a_link_that_becomes_slow_on_the_way(self) -> None:
        # Twelve calls as fast as the others', then twelve that take ten times as long: the median is in between.
        finding = one(links, ranks=self.groups([[4.0] * 12 + [40.0] * 12] + [[4.0] * 24] * 3))
        assert "1 of 4 groups" in finding.summary
        assert "10 times as long" in finding.summary
        assert "last 50 % of their calls" in finding.summary
        spell = [4.0] * 18 + [7.0] * 6  # the host was busy at the end
        assert found(links, ranks=self.groups([spell] + [[4.0] * 24] * 3)) == []

    def test_slow_beside_calls_that_take_no_time(self) -> None:
        assert "60 times" in one(links, ranks=self.groups([[30.0] * 6] + [[0.5] * 6] * 3)).summary
        assert found(links, ranks=self.groups([[1.5] * 6] + [[0.5] * 6] * 3)) == []
