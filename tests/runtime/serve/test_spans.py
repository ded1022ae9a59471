"""Spans of requests: under the client's traceparent, nested in time, and without any text."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.full_disk import files_end_at
from tests.runtime.serve.words import written
from tests.supervise.fake import FakeUnit, until

from linkwise.core.errors import InputError
from linkwise.runtime.serve import spans as spans_module
from linkwise.runtime.serve.limits import Limits
from linkwise.runtime.serve.spans import Spans
from linkwise.supervise.types import Fault

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def spans(serve, tmp_path_factory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("spans") / "spans.jsonl"
    units = [FakeUnit("a", pace_s=0.003), FakeUnit("b", pace_s=0.003)]
    server = serve(*units, spans=path)
    before = time.time_ns()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {"prompt": "confidential", "max_tokens": 40, "temperature": 0}
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        next(u for u in units if u.load.running).fail(Fault((0,), "stopped", "rank 0 gives no sign of life"))
        list(lines)
    server.ask("no parent", 1)
    server.service.spans.close()
    found = [
        span
        for line in path.read_text().splitlines()
        for part in json.loads(line)["resourceSpans"]
        for scope in part["scopeSpans"]
        for span in scope["spans"]
    ]
    assert "confidential" not in path.read_text()
    assert written("confidential", 4) not in path.read_text()
    assert all(before <= int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"]) <= time.time_ns() for s in found)
    return found


def _of(spans: list[dict[str, Any]], trace: str) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in spans if span["traceId"] == trace}


def test_spans_are_children_of_the_clients(spans) -> None:
    mine = _of(spans, TRACE)
    assert set(mine) == {"request", "queue", "prefill", "decode"}
    request = mine["request"]
    assert request["parentSpanId"] == PARENT
    assert request["kind"] == 2  # SERVER in OTLP
    assert {mine[n]["parentSpanId"] for n in ("queue", "prefill", "decode")} == {request["spanId"]}
    times = [request["startTimeUnixNano"], mine["queue"]["startTimeUnixNano"], mine["queue"]["endTimeUnixNano"],
             mine["prefill"]["startTimeUnixNano"], mine["prefill"]["endTimeUnixNano"],
             mine["decode"]["startTimeUnixNano"], mine["decode"]["endTimeUnixNano"],
             request["endTimeUnixNano"]]  # fmt: skip
    assert times == sorted(times, key=int)


def test_a_retry_and_the_counts_are_in_them(spans) -> None:
    request = _of(spans, TRACE)["request"]
    values = {a["key"]: a["value"] for a in request["attributes"]}
    assert values["gen_ai.usage.input_tokens"] == {"intValue": "12"}
    assert values["gen_ai.usage.output_tokens"] == {"intValue": "40"}
    assert values["gen_ai.response.finish_reasons"] == {"arrayValue": {"values": [{"stringValue": "length"}]}}
    (event,) = request["events"]
    assert event["name"] == "retry"
    assert {a["key"]: a["value"] for a in event["attributes"]}["cause"] == {"stringValue": "stopped"}


def test_a_request_without_a_parent_begins_a_trace(spans) -> None:
    (request,) = [s for s in spans if s["name"] == "request" and s["traceId"] != TRACE]
    assert "parentSpanId" not in request


def test_a_full_disk_costs_spans_which_are_counted_and_told(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spans.jsonl"
    server = serve(spans=path)

    def asked() -> int:
        assert server.ask("hi", 3).status_code == 200
        assert server.service.spans._provider.force_flush()
        return len(path.read_text().splitlines())

    assert asked() == 1
    with files_end_at(path.stat().st_size + 20):
        assert asked() == 1  # nothing of a line that does not fit
        assert asked() == 1
    assert server.metric("linkwise:spans_dropped_total{") == 2 * 4  # request, queue, prefill, decode
    assert asked() == 2  # which may be a little room
    assert len(server.said) == 1
    monkeypatch.setattr(spans_module, "WRITTEN_S", 0.0)
    assert asked() == 3
    assert server.said == [
        f"spans are not written to {path}: file too large; requests go on without",
        f"spans are written again to {path}; 8 are missing",
    ]
    assert server.metric('linkwise:trace_events_dropped_total{engine="0"') == 0


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Spans(tmp_path / "none" / "spans.jsonl", "m")


def test_a_refused_request_leaves_no_spans(serve, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    unit = FakeUnit("a")
    server = serve(unit, spans=path, max_waiting=2, limits=Limits(timeout_s=2.0))
    unit.frozen = True
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {"prompt": ["admitted", "refused"], "max_tokens": 4}
    first = threading.Thread(target=lambda: server.ask("first"))
    first.start()
    # The unit has it: admitted alone, it would still be in the queue, and have no prefill.
    assert until(lambda: server.supervisor.waiting == 1 and server.supervisor.queued() == 0)
    assert server.client.post("/v1/completions", json=body, headers=headers).status_code == 429
    first.join()
    server.service.spans.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    spans = [s for one in found for r in one["resourceSpans"] for p in r["scopeSpans"] for s in p["spans"]]
    # Of the client's own trace alone: the first request's spans may still be open when its answer is there.
    names = sorted(s["name"] for s in spans if s["traceId"] == TRACE)
    assert names in (["queue", "request"], ["prefill", "queue", "request"])
