"""CPU time that was refused comes in one unit, from cgroups of both versions and from processes."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import mutated, never_raises, one, pick, read, recognises, values

from linkwise.trace.readers import cgroup, shared

V2 = """usage_usec 9000000
user_usec 8000000
system_usec 1000000
nr_periods 100
nr_throttled 40
throttled_usec 2500000
"""
V1 = "nr_periods 100\nnr_throttled 40\nthrottled_time 2500000000\n"
STATUS = """Name:\tVLLM::Worker_TP1
Umask:\t0022
State:\tS (sleeping)
Pid:\t4242
Threads:\t310
Cpus_allowed:\tff
Cpus_allowed_list:\t0-7
Mems_allowed_list:\t0-1
voluntary_ctxt_switches:\t1000
nonvoluntary_ctxt_switches:\t77
"""
PRESSURE = """some avg10=12.50 avg60=1.00 avg300=0.10 total=123456
full avg10=2.00 avg60=0.00 avg300=0.00 total=456
"""
NUMACTL = """policy: default
preferred node: current
physcpubind: 0 1 2 3
cpubind: 0
nodebind: 0
membind: 0 1
"""
DUMP = f"""== /sys/fs/cgroup/kubepods/pod7/cpu.stat ==
{V2}== /sys/fs/cgroup/kubepods/pod7/cpu.max ==
400000 100000
== rank 3 /proc/4242/schedstat ==
7000000000 3000000000 555
==> /proc/4243/status <==
{STATUS}== /proc/net/snmp ==
Tcp: InSegs OutSegs RetransSegs
Tcp: 10 20 3
== /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error ==
2
== /sys/class/infiniband/mlx5_0/ports/1/counters/link_downed ==
none
== /etc/hostname ==
node1
"""


def test_both_versions(tmp_path: Path) -> None:
    two = values(read(tmp_path, cgroup, V2), "counter")
    assert two["cpu.throttled_us"] == 2_500_000
    one_ = values(read(tmp_path, cgroup, V1), "counter")
    assert one_ == {"cpu.nr_periods": 100, "cpu.nr_throttled": 40, "cpu.throttled_us": 2_500_000}
    assert one_.items() <= two.items()


@pytest.mark.parametrize(
    ("name", "text", "cores", "said"),
    [
        ("cpu.max", "400000 100000\n", 4, "4 cores"),
        ("cpu.max", "max 100000\n", 0, "none"),
        ("cpu.cfs_quota_us", "250000\n", 2.5, "2.5 cores"),  # of the kernel's period of 100 ms
        ("cpu.cfs_quota_us", "-1\n", 0, "none"),
    ],
)
def test_quota(tmp_path: Path, name: str, text: str, cores: float, said: str) -> None:
    fact = one(read(tmp_path, cgroup, text, f"cgroup/job7/{name}"), "setting", "cpu_quota")
    assert (fact.value, fact.label("value"), fact.label("cgroup")) == (cores, said, "/job7")
    assert fact.label("period") == ("assumed" if "cfs" in name else "")


def test_a_process(tmp_path: Path) -> None:
    reading = read(tmp_path, cgroup, "7000000000 3000000000 555\n", "rank_2/proc/4242/schedstat")
    assert values(reading, "counter") == {
        "cpu.run_ns": 7_000_000_000, "cpu.run_delay_ns": 3_000_000_000, "cpu.timeslices": 555,
    }  # fmt: skip
    assert {f.label("pid") for f in reading.facts} == {"4242"}
    place = one(read(tmp_path, cgroup, STATUS), "place", "process")
    assert (place.rank, place.label("cpus"), place.label("mems"), place.label("pid")) == (1, "0-7", "0-1", "4242")
    assert values(read(tmp_path, cgroup, STATUS), "counter")["cpu.nonvoluntary_switches"] == 77


def test_pressure_and_affinity(tmp_path: Path) -> None:
    reading = read(tmp_path, cgroup, PRESSURE, "cpu.pressure")
    assert [(f.name, f.value, f.label("scope")) for f in pick(reading, "gauge")] == [
        ("cpu.pressure", 0.125, "some"),
        ("cpu.pressure", 0.02, "full"),
    ]
    text = "pid 7's current affinity list: 0-3,8\npid 8's current affinity mask: ff00\n"
    assert [(f.label("pid"), f.label("cpus")) for f in pick(read(tmp_path, cgroup, text), "place")] == [
        ("7", "0-3,8"),
        ("8", "8-15"),
    ]
    reading = read(tmp_path, cgroup, NUMACTL)
    assert one(reading, "place", "process").label("cpus") == "0,1,2,3"
    assert one(reading, "setting", "numa_policy").label("value") == "default"


def test_a_dump_of_many_files(tmp_path: Path) -> None:
    reading = read(tmp_path, cgroup, DUMP)
    delay = one(reading, "counter", "cpu.run_delay_ns")
    assert (delay.rank, delay.label("pid"), delay.value) == (3, "4242", 3_000_000_000)
    assert one(reading, "counter", "cpu.nr_throttled").label("cgroup") == "/kubepods/pod7"
    assert one(reading, "setting", "cpu_quota").value == 4
    # Parts of other formats are read by their own modules; a broken one spoils no other.
    assert one(reading, "counter", "tcp.retrans_segs").value == 3
    assert one(reading, "counter", "ib.symbol_error").device == "mlx5_0:1"
    assert any("'none' as the counter link_downed" in note for note in reading.notes)
    assert any("1 parts of the dump" in note for note in reading.notes)


def test_masks() -> None:
    assert shared.cpu_list("ff00ff") == "0-7,16-23"
    assert shared.cpu_list("00000001,00000005") == "0,2,32"
    assert shared.cpu_list("0x") == ""


def test_not_recognised(tmp_path: Path) -> None:
    assert not recognises(tmp_path, cgroup, "1 2 3\n", "numbers.txt")
    assert not recognises(tmp_path, cgroup, "a log of max 3\n", "cpu.max")


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated(V2), mutated(STATUS + PRESSURE), mutated(NUMACTL), mutated(DUMP)))
def test_only_refuses(data: bytes) -> None:
    never_raises(cgroup, data, "proc/7/schedstat")
    never_raises(cgroup, data, "cpu.max")
