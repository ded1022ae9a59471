"""One device, one name; a rank only where it is told; lists of facts stay bounded."""

import gzip
from pathlib import Path

import pytest
from tests.trace.readers.host_evidence import JUNE_NS, pick, read

from linkwise.core.errors import InputError
from linkwise.trace.readers import cgroup, shared
from linkwise.trace.readers.base import Source
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.shared import Found, bus_id, number, placed, placed_by_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0000:1B:00", "0000:1b:00"),  # the driver's
        ("00000000:1B:00.0", "0000:1b:00"),  # nvidia-smi's
        ("1b:00.0", "0000:1b:00"),  # lspci's
        ("0001:00:00.0", "0001:00:00"),
        ("0000:5c:00.1", "0000:5c:00.1"),
        ("gpu\x1b[31m", "gpu\\x1b[31m"),
    ],
)
def test_one_name_for_a_device(text: str, name: str) -> None:
    assert bus_id(text) == name


@pytest.mark.parametrize(
    ("text", "inside", "rank", "axes"),
    [
        ("Worker_TP1", False, 1, {"tp": "1"}),
        ("Worker_PP0_TP3_EP3", False, 3, {"pp": "0", "tp": "3", "ep": "3"}),
        ("Worker_PP1_TP3", False, -1, {"pp": "1", "tp": "3"}),  # nobody says how many a stage has
        ("Worker_DP1_TP1", False, -1, {"dp": "1", "tp": "1"}),
        ("DP1 TP5 EP5", True, 5, {"dp": "1", "tp": "5", "ep": "5"}),
        ("VllmWorker rank=4 pid=7", False, 4, {}),
        ("python x.py --node-rank 1 --local_rank 2", False, -1, {}),
        ("python x.py --rank 3", False, 3, {}),
        ("HTTP13 STEP4", False, -1, {}),
    ],
)
def test_ranks(text: str, inside: bool, rank: int, axes: dict[str, str]) -> None:
    assert placed(text, dp_inside=inside) == (rank, axes)


def test_ranks_of_files() -> None:
    assert placed_by_path("/x/exc_rank0.txt")[0] == 0
    assert placed_by_path("/x/rank_3/py-spy.txt")[0] == 3
    assert placed_by_path("/x/pyspy_tp2.log") == (2, {"tp": "2"})
    assert placed_by_path("frank3.log")[0] == -1


def test_numbers() -> None:
    assert number(" 2,159,571 ") == 2159571
    assert number("1e3") == 1000
    for text in ("nan", "inf", "-", "", "1 2", "9" * 400, "1e999"):
        assert number(text) is None


def test_clock() -> None:
    clock = Clock(JUNE_NS)  # 2026-06-21
    assert clock("[05/24/2026-14:11:49] [TRT-LLM]") == 1_779_631_909 * 10**9
    assert clock("2026-05-24T14:11:49.5+02:00 x") == (1_779_631_909 - 7200) * 10**9 + 500_000_000
    assert clock("(W pid=1) INFO 12-31 23:59:59 [x.py:1]") == 1_767_225_599 * 10**9  # of the year before
    assert clock("[rank0]:[E319 19:55:16.880866178 ProcessGroupNCCL.cpp:1]") == 0  # three digits: no date
    assert clock("[rank0]:[E0319 19:55:16.880866178 x]") == 1_773_950_116_880_866_178
    assert clock("2026-13-45 99:99:99") == 0
    assert clock("no time at all") == 0
    assert clock("1969-12-31 23:00:00") == 0


def test_bounds_and_labels() -> None:
    found = Found("log", "host1")
    for i in range(3000):
        found.add("gauge", "a", i, line=i + 1)
        found.add("error", "b", line=i + 1, labels={"why": "x\x1b", "empty": ""}, text="a\tline\x00")
    facts = found.reading().facts
    assert len([f for f in facts if f.kind == "error"]) == 1000
    assert len([f for f in facts if f.kind == "gauge"]) <= 514
    assert facts[-1].value == 2999
    assert facts[0].labels == (("why", "x\\x1b"),)
    assert facts[0].text == "a line\\x00"
    assert (facts[0].source, facts[0].host) == ("log: line 1", "host1")
    for i in range(2000):
        found.add("gauge", f"g{i}")
    assert any("series" in note for note in found.reading().notes)


def test_adornments_of_a_log_are_no_headings(tmp_path: Path) -> None:
    text = "nr_periods 1\nnr_throttled 2\n== results ==\nthrottled_usec 3\n"
    assert [f.value for f in pick(read(tmp_path, cgroup, text), "counter")] == [1, 2, 3]


def test_what_stands_before_the_first_heading(tmp_path: Path) -> None:
    text = "nr_periods 1\nnr_throttled 2\n==> /x/cpu.stat <==\nnr_periods 5\nnr_throttled 6\n"
    facts = pick(read(tmp_path, cgroup, text), "counter", "cpu.nr_throttled")
    assert [(f.value, f.label("snapshot")) for f in facts] == [(2, ""), (6, "1")]


def test_packed_files(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max.gz"
    path.write_bytes(gzip.compress(b"200000 100000\n"))
    source = Source(path)
    assert cgroup.recognises(source)
    assert cgroup.read(source).facts[0].value == 2


def test_a_report_of_endless_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_ROWS", 10)
    with pytest.raises(InputError, match="more than 10 lines"):
        read(tmp_path, cgroup, "nr_periods 1\nnr_throttled 2\n" + "x\n" * 20)


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("node3/dmesg.txt", "node3"),
        ("job/gpu-host-07/sys/x", "gpu-host-07"),
        ("nodeB/dmesg.txt", "nodeB"),
        ("node-b/dmesg.txt", "node-b"),
        ("gpu-b/dmesg.txt", "gpu-b"),
        ("gpu0/smi.txt", ""),  # a device
        ("gpu-0/smi.txt", ""),
        ("nodes/dmesg.txt", ""),
        ("hosts/dmesg.txt", ""),
        ("node3", ""),  # a file
    ],
)
def test_a_folder_may_name_a_host(path: str, host: str) -> None:
    assert shared.folder_host(path) == host
