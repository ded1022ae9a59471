"""Shapes and counters without a kernel: lines for `tc`, and what `ip -j -s link show` says."""

import pytest

from linkwise.core.errors import InputError
from linkwise.measure.lab import counters
from linkwise.measure.lab.counters import Count, parse, since, snapshot
from linkwise.measure.lab.tc import tbf


def test_a_token_bucket() -> None:
    # 25 MB/s are 200 Mbit/s; 2 ms of it are 50,000 bytes, more than four frames of 9014.
    assert tbf("nic0", 25e6) == "qdisc add dev nic0 root tbf rate 200000000bit burst 50000 limit 67108864"
    assert "burst 36056 " in tbf("nic0", 1e6)  # four frames


def test_framing_by_hand() -> None:
    # MTU 9000: less 20 of IPv4, 20 of TCP, 12 of timestamps; on the wire with 14 of Ethernet.
    frame, acknowledgement = 8948 * counters.FRAMING, 2 * 8948 * counters.ACKS  # one for every second segment
    assert (counters.PAYLOAD_BYTES, frame, acknowledgement) == (8948, pytest.approx(9014), pytest.approx(66))


def test_statistics_of_interfaces() -> None:
    text = """[{"ifname": "c0a", "mtu": 9000, "stats64": {"rx": {"bytes": 10, "packets": 1, "errors": 0},
              "tx": {"bytes": 9014, "packets": 2, "carrier_changes": 3}}}]"""
    assert parse(text) == {"c0a": (Count(9014, 2), Count(10, 1))}


def test_the_difference_of_two_readings() -> None:
    assert since({"a>b": Count(5, 1)}, {"a>b": Count(12, 3)}) == {"a>b": Count(7, 2)}


def test_outside_a_lab_there_are_no_counters(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.delenv(counters.SOCKET, raising=False)
    with pytest.raises(InputError, match="in no lab"):
        snapshot()
    monkeypatch.setenv(counters.SOCKET, str(tmp_path / "gone.sock"))
    with pytest.raises(InputError, match="does not answer"):
        snapshot()
