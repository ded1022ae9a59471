"""OpenTelemetry spans of each request, as lines of OTLP-JSON in a file. No prompt and no output text is in them.

request (child of the client's W3C traceparent) > queue (until a unit has it), prefill (until its first token), decode.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linkwise._version import __version__
from linkwise.core.errors import InputError
from linkwise.supervise.supervisor import Placed
from linkwise.trace.bounded import append_whole, why

MAX_FILE_BYTES = 2**30  # then spans are dropped
WRITTEN_S = (
    10.0  # without trouble, before they are said to be written again: a disk nearly full takes some now and then
)


class Trail:
    """One answer's spans; this one keeps none. Times: time.monotonic()."""

    def placed(self, event: Placed, at: float) -> None:
        """It went to a unit."""

    def first(self, at: float) -> None:
        """Its first token came."""

    def ended(self, reason: str, prompt: int, tokens: int, at: float) -> None:
        """It is over."""


class _Trail(Trail):
    def __init__(self, tracer: Any, context: Any, attributes: dict[str, Any], began: float) -> None:
        from opentelemetry import trace

        self._trace, self._tracer = trace, tracer
        self._skew = time.time_ns() - time.monotonic_ns()
        came = self._ns(began)
        self._request = tracer.start_span(
            "request", context=context, kind=trace.SpanKind.SERVER, attributes=attributes, start_time=came
        )
        self._inside = trace.set_span_in_context(self._request, context)
        self._part: Any = self._begin("queue", came)
        self._name = "queue"

    def _begin(self, name: str, at_ns: int) -> Any:
        self._name = name
        return self._tracer.start_span(name, context=self._inside, start_time=at_ns)

    def _ns(self, at: float) -> int:
        return int(at * 1e9) + self._skew

    def placed(self, event: Placed, at: float) -> None:
        if event.cause is not None:
            words = {"unit": event.unit, "retry": event.retry, "cause": event.cause.kind}
            self._request.add_event("retry", words, timestamp=self._ns(at))
        if self._name == "queue":
            self._part.end(end_time=self._ns(at))
            self._part = self._begin("prefill", self._ns(at))
            self._part.set_attribute("unit", event.unit)

    def first(self, at: float) -> None:
        self._part.end(end_time=self._ns(at))
        self._part = self._begin("decode", self._ns(at))

    def ended(self, reason: str, prompt: int, tokens: int, at: float) -> None:
        self._part.end(end_time=self._ns(at))
        self._request.set_attributes(
            {
                "gen_ai.usage.input_tokens": prompt,
                "gen_ai.usage.output_tokens": tokens,
                "gen_ai.response.finish_reasons": (reason,),
            }
        )
        if reason == "error":
            self._request.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        self._request.end(end_time=self._ns(at))


class Spans:
    """Makes trails; without a file they keep nothing. say: takes a line when spans are not written, or are again."""

    def __init__(self, path: str | Path | None, model: str, say: Callable[[str], None] = lambda line: None) -> None:
        self._provider: Any = None
        self._lines: Any = None
        self._model = model
        if path is None:
            return
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise InputError(
                "the package opentelemetry-sdk is not installed", where="--spans", expected="pip install linkwise[run]"
            ) from None
        resource = Resource({"service.name": "linkwise", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._lines = exporter(path, say)
        self._provider.add_span_processor(BatchSpanProcessor(self._lines))
        self._tracer = self._provider.get_tracer("linkwise.serve", __version__)
        self._parents = TraceContextTextMapPropagator()

    def trail(self, headers: Mapping[str, str], attributes: Mapping[str, Any], began: float) -> Trail:
        """The spans of one answer, under the client's traceparent if there is a valid one, from `began` on."""
        if self._provider is None:
            return Trail()
        wanted = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        given = {"gen_ai.request.model": self._model, **attributes}
        return _Trail(self._tracer, self._parents.extract(wanted), given, began)

    @property
    def dropped(self) -> int:
        """Spans that could not be written."""
        return self._lines.dropped if self._lines is not None else 0

    def close(self) -> None:
        """Write what is still held."""
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None


def exporter(path: str | Path, say: Callable[[str], None] = lambda line: None) -> Any:
    """A span exporter that appends one OTLP-JSON object per line and batch. InputError when the file cannot be made.

    A batch that cannot be written is dropped and counted (`dropped`): a full disk costs spans, never requests.
    """
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    try:
        file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the server runs
    except OSError as error:
        raise InputError(f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(path)) from None

    class _Lines(SpanExporter):
        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._failed, self.dropped = 0.0, 0  # when the last batch could not be written, which was said; 0 = none

        def export(self, spans: Sequence[Any]) -> Any:
            line = json.dumps(_otlp(spans), separators=(",", ":")).encode() + b"\n"
            with self._lock:
                trouble, now = self._put(line), time.monotonic()
                if trouble:
                    self.dropped += len(spans)
                    if not self._failed:
                        say(f"spans are not written to {path}: {trouble}; requests go on without")
                    self._failed = now
                elif self._failed and now - self._failed > WRITTEN_S:
                    say(f"spans are written again to {path}; {self.dropped:,} are missing")
                    self._failed = 0.0
            return SpanExportResult.FAILURE if trouble else SpanExportResult.SUCCESS

        def _put(self, line: bytes) -> str:
            """Why the line was not written."""
            if file.closed:
                return "closed"
            try:
                end = os.fstat(file.fileno()).st_size
                if end + len(line) > MAX_FILE_BYTES:
                    return f"it has {MAX_FILE_BYTES >> 20} MiB, which is all it gets"
                append_whole(file.fileno(), line, end)
            except OSError as error:
                return why(error)
            return ""

        def shutdown(self) -> None:
            with self._lock:
                file.close()

    return _Lines()


def _otlp(spans: Sequence[Any]) -> dict[str, Any]:
    resource = _attributes(spans[0].resource.attributes) if spans else []
    scope = {"name": "linkwise.serve", "version": __version__}
    inside = {"scope": scope, "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [inside]}]}


def _span(span: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": f"{span.context.trace_id:032x}",
        "spanId": f"{span.context.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value + 1,  # the wire counts from 1, the SDK from 0
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "events": [
            {"timeUnixNano": str(event.timestamp), "name": event.name, "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "status": {"code": span.status.status_code.value},
    }
    if span.parent is not None:
        found["parentSpanId"] = f"{span.parent.span_id:016x}"
    return found


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, tuple | list):
        return {"arrayValue": {"values": [_value(v) for v in value]}}
    return {"stringValue": str(value)}
