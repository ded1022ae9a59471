"""The timeline holds every call once, on one clock, in the form Perfetto reads."""

import gzip
import json
from pathlib import Path

import pytest
from tests.diagnose.made import Step, run

from linkwise.core.errors import InputError
from linkwise.trace.clocks import align
from linkwise.trace.facts import Span
from linkwise.trace.gather import Evidence
from linkwise.trace.joined import join
from linkwise.trace.timeline import REQUESTS, write


def written(path: Path, evidence: Evidence) -> list[dict[str, object]]:
    clocks = align(evidence.trace)
    write(path, evidence, join(evidence.trace, clocks.shift_ns), clocks)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, object]] = json.loads(data)["traceEvents"]
    return events


def test_calls_of_hosts_stand_on_one_clock(tmp_path: Path) -> None:
    # Rank 1 arrives at 5 ms, rank 0 at 2 ms; both leave at 6 ms. Host b's clock is 40 ms ahead.
    found = run({"tp": (0, 1)}, [Step("tp", {0: 2, 1: 5})] * 4, hosts={0: "a", 1: "b"}, ahead_ms={1: 40})
    events = written(tmp_path / "t.json.gz", found)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 8
    first = {event["pid"]: (event["ts"], event["dur"]) for event in slices[:2]}
    assert first == {0: (0, 4000), 1: (3000, 1000)}  # us
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}  # type: ignore[index]
    assert names == {0: "rank 0 a", 1: "rank 1 b"}


def test_an_open_call_is_an_instant_and_requests_have_a_track(tmp_path: Path) -> None:
    found = run({"tp": (0, 1)}, [Step("tp", {0: 2, 1: 5})], ends=False)
    span = Span("ab12", "prefill", 1_700_000_000_000_000_000, 1_700_000_000_004_000_000)
    events = written(tmp_path / "t.json", Evidence(trace=found.trace, spans=(span,)))
    assert [event["ph"] for event in events if event.get("cat") == "all_reduce"] == ["i", "i"]
    assert [(e["pid"], e["dur"]) for e in events if e.get("cat") == "request"] == [(REQUESTS, 4000)]


def test_nothing_with_a_time_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no call and no request has a time"):
        written(tmp_path / "t.json", Evidence())
    assert list(tmp_path.iterdir()) == []
