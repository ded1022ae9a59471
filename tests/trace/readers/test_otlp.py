"""Spans of requests from several engines come out under one set of names, each under its request."""

import contextlib
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.trace.facts import Span
from linkwise.trace.readers import otlp
from linkwise.trace.readers.base import Reading, Source

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MS = 10**6
AT = 1_780_000_000_000_000_000


def value(of: Any) -> dict[str, Any]:
    if isinstance(of, bool):
        return {"boolValue": of}
    if isinstance(of, int):
        return {"intValue": str(of)}
    if isinstance(of, float):
        return {"doubleValue": of}
    if isinstance(of, list):
        return {"arrayValue": {"values": [value(one) for one in of]}}
    return {"stringValue": of}


def pairs(**about: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(of)} for key, of in about.items()]


def span(name: str, begin_ms: int, end_ms: int, own: str = "", parent: str = "", **about: Any) -> dict[str, Any]:
    more = {"status": {"code": 2}} if about.pop("failed", False) else {}
    kind = about.pop("kind", 1)
    found = {
        "traceId": about.pop("trace", TRACE), "spanId": own or f"{begin_ms:016x}", "name": name, "kind": kind,
        "startTimeUnixNano": str(AT + begin_ms * MS), "endTimeUnixNano": str(AT + end_ms * MS),
        "attributes": pairs(**about), **more,
    }  # fmt: skip
    return {**found, "parentSpanId": parent} if parent else found


def export(*spans: dict[str, Any], service: str = "vllm", **about: Any) -> dict[str, Any]:
    resource = {"attributes": pairs(**{"service.name": service, **about})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "s"}, "spans": list(spans)}]}]}


def written(folder: Path, *documents: Any) -> Source:
    path = folder / "spans.jsonl"
    path.write_bytes(b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in documents))
    return Source(path)


def read(folder: Path, *documents: Any) -> Reading:
    source = written(folder, *documents)
    assert otlp.recognises(source)
    return otlp.read(source)


def times(spans: tuple[Span, ...]) -> list[tuple[str, str, float, float]]:
    return [(s.request, s.name, (s.began_ns - AT) / MS, (s.ended_ns - AT) / MS) for s in spans]


def test_linkwise_writes_what_is_read(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from linkwise.runtime.serve.spans import Spans

    path = tmp_path / "spans.jsonl"
    writer = Spans(path, "tiny")
    begun = time.time_ns()
    at = time.monotonic()
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    trail = writer.trail(headers, {"linkwise.request": "ab12cd34ab12cd34"}, at)
    trail.first(at + 0.02)
    trail.ended("error", 12, 3, at + 0.05)
    writer.close()
    reading = otlp.read(Source(path))
    assert {(s.name, s.request, s.service) for s in reading.spans} == {
        (name, "ab12cd34ab12cd34", "linkwise") for name in ("request", "queue", "decode")
    }
    request = next(s for s in reading.spans if s.name == "request")
    assert request.failed
    assert 40 * MS < request.ended_ns - request.began_ns < 60 * MS
    assert abs(request.began_ns - begun) < 1000 * MS
    assert dict(request.labels)["gen_ai.usage.output_tokens"] == "3"
    assert dict(request.labels)["gen_ai.response.finish_reasons"] == "error"


def test_vllm_has_one_span_and_its_parts_as_attributes(tmp_path: Path) -> None:
    latency = {
        "gen_ai.latency.e2e": 0.5, "gen_ai.latency.time_in_queue": 0.1, "gen_ai.latency.time_in_model_prefill": 0.15,
        "gen_ai.latency.time_in_model_decode": 0.25, "gen_ai.request.id": "cmpl-7", "gen_ai.prompt": "a secret",
    }  # fmt: skip
    reading = read(tmp_path, export(span("llm_request", 1000, 1500, **latency), **{"host.name": "node-a"}))
    assert times(reading.spans) == [
        ("cmpl-7", "request", 1000, 1500),
        ("cmpl-7", "queue", 1000, 1100),
        ("cmpl-7", "prefill", 1100, 1250),
        ("cmpl-7", "decode", 1250, 1500),
    ]
    first = reading.spans[0]
    assert (first.service, dict(first.labels)) == (
        "vllm", {"span": "llm_request", "host": "node-a", "gen_ai.latency.e2e": "0.5"},
    )  # fmt: skip
    assert "secret" not in repr(reading)


def test_sglang_has_stages_under_a_request(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        export(
            span("Bootstrap Room 0x1f", 0, 90, "01"),
            span("prefill Req 5f3a9b21", 1, 80, "02", "01", rid="5f3a9b21aa"),
            span("Scheduler [TP 0] (host:ab | pid:7)", 2, 79, "03", "02"),
            span("prefill_bootstrap", 2, 10, "04", "03"),
            span("prefill_waiting", 10, 20, "05", "03"),
            span("prefill_forward", 20, 50, "06", "03"),
            span("prefill_transfer_kv_cache", 50, 79, "07", "03", failed=True),
            service="sglang",
        ),
    )
    assert [(s.name, s.request) for s in reading.spans] == [
        ("Bootstrap Room 0x1f", "5f3a9b21aa"),  # the only request of the trace
        ("request", "5f3a9b21aa"),
        ("Scheduler [TP 0] (host:ab | pid:7)", "5f3a9b21aa"),
        ("queue", "5f3a9b21aa"),
        ("queue", "5f3a9b21aa"),
        ("prefill", "5f3a9b21aa"),
        ("transfer", "5f3a9b21aa"),
    ]
    assert [s.failed for s in reading.spans] == [False] * 6 + [True]


def test_a_part_belongs_to_the_request_above_it(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        export(span("decode", 5, 9, "0b", "0a")),  # exported before its parent
        export(
            span("POST /v1/completions", 0, 10, "0a", kind=2, request_id="one"),
            span("POST /v1/completions", 20, 30, "1a", kind="SPAN_KIND_SERVER", request_id="two"),
            span("KVTransfer", 21, 22, "1b", "1a"),
            span("queue_wait", 40, 41, "2b", trace="ff"),
        ),
    )
    assert [(s.name, s.request) for s in reading.spans] == [
        ("decode", "one"), ("request", "one"), ("request", "two"), ("transfer", "two"), ("queue", "ff"),
    ]  # fmt: skip


def test_other_spellings(tmp_path: Path) -> None:
    snake = {
        "resource_spans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"string_value": "router"}}]},
                "scope_spans": [
                    {
                        "spans": [
                            {
                                "trace_id": "aa", "span_id": "01", "parent_span_id": "00", "name": "prefill",
                                "start_time_unix_nano": AT, "end_time_unix_nano": AT + 5,
                                "status": {"code": "STATUS_CODE_ERROR"},
                                "attributes": [{"key": "gen_ai.request.id", "value": {"string_value": "r"}},
                                               {"key": "tp_rank", "value": {"int_value": 3}}],
                            }
                        ]
                    }
                ],
            }
        ]
    }  # fmt: skip
    expected = Span("r", "prefill", AT, AT + 5, "router", True, (("span", "prefill"), ("tp_rank", "3")))
    assert read(tmp_path, snake).spans == (expected,)
    assert read(tmp_path, json.dumps(snake, indent=2).encode()).spans == (expected,)
    assert read(tmp_path, json.dumps([snake, snake], indent=2).encode()).spans == (expected, expected)
    old = json.loads(json.dumps(export(span("queue", 1, 2))).replace("scopeSpans", "instrumentationLibrarySpans"))
    assert [s.name for s in read(tmp_path, old).spans] == ["queue"]


def test_a_cut_end_and_broken_lines(tmp_path: Path) -> None:
    one = export(span("queue", 1, 2))
    reading = read(tmp_path, one, b'{"resourceSpans": [{"sco\n', one, json.dumps(one).encode()[:-9])
    assert len(reading.spans) == 2
    assert reading.notes == ("2 lines were not understood, the first is line 2, the last is line 4",)
    first_broken = read(tmp_path, b'{"resourceSpans": [{"sco\n', one)
    assert len(first_broken.spans) == 1
    packed = gzip.compress(b"".join(json.dumps(export(span("queue", n, n + 7919 % (n + 1)))).encode() + b"\n"
                                    for n in range(1, 9000)))  # fmt: skip
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    assert 100 < len(otlp.read(Source(tmp_path / "cut.gz")).spans) < 8999


def test_spans_without_an_end_are_left_out(tmp_path: Path) -> None:
    open_ = span("decode", 5, 9)
    open_["endTimeUnixNano"] = "0"
    reading = read(tmp_path, export(span("queue", 1, 2), open_, span("prefill", 9, 5)))
    assert [s.name for s in reading.spans] == ["queue"]
    assert reading.notes == ("2 spans or attributes were not understood, or have no end, and are left out",)


@pytest.mark.parametrize("odd", [None, -1, 10**30, "x", "\x1b[31m", [], {}, True, 1.5, "9" * 500, "²"])
@pytest.mark.parametrize("field", ["traceId", "spanId", "name", "kind", "startTimeUnixNano", "attributes", "status"])
def test_an_odd_field_costs_its_span_at_most(tmp_path: Path, field: str, odd: Any) -> None:
    bad = span("decode", 5, 9, rid="r")
    bad[field] = odd
    reading = read(tmp_path, export(span("queue", 1, 2, trace="aa"), bad))
    assert reading.spans[0].name == "queue"
    assert len(reading.spans) <= 2


@pytest.mark.parametrize("odd", ["NaN", float(10**9), -1.0, "x", True, [0.5], "1e400"])
def test_odd_latencies_make_no_part(tmp_path: Path, odd: Any) -> None:
    reading = read(tmp_path, export(span("llm_request", 1, 2, **{"gen_ai.latency.time_in_queue": odd})))
    assert [s.name for s in reading.spans] == ["request"]


def test_parents_in_a_circle(tmp_path: Path) -> None:
    reading = read(tmp_path, export(span("a", 1, 2, "01", "02"), span("b", 1, 2, "02", "01")))
    assert [s.request for s in reading.spans] == [TRACE, TRACE]


@pytest.mark.parametrize(
    "document", [b'{"resourceSpans": []}', b'{"resourceSpans": 5}', b'{"resourceSpans": [{}, 3]}', b'["resourceSpans"']
)
def test_what_is_refused(tmp_path: Path, document: bytes) -> None:
    source = written(tmp_path, document)
    assert otlp.recognises(source)
    with pytest.raises(InputError, match="no whole span"):
        otlp.read(source)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_SPANS", 3)
    reading = read(tmp_path, export(*(span("queue", n, n + 1) for n in range(1, 6))))
    assert len(reading.spans) == 3
    assert reading.notes == ("2 spans beyond 3 are left out",)
    monkeypatch.setattr(otlp, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes"):
        read(tmp_path, export(span("queue", 1, 2)))


@pytest.mark.parametrize("data", [b"", b"{}", b"resourceSpans", b'{"resourceMetrics": []}', b"\xff\x00"])
def test_what_is_something_else(tmp_path: Path, data: bytes) -> None:
    assert not otlp.recognises(written(tmp_path, data))


TEXT = json.dumps(export(span("llm_request", 1, 9, rid="r", tp_rank=1), span("queue", 1, 2))).encode() * 2


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(TEXT)), st.integers(0, 30), st.binary(max_size=12)), min_size=1, max_size=5
    )
)  # fmt: skip
def test_changed_bytes(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, bytes]]) -> None:
    text = TEXT
    for at, length, new in changes:
        text = text[:at] + new + text[at + length :]
    with contextlib.suppress(InputError):
        otlp.read(written(tmp_path_factory.mktemp("fuzz"), text))
