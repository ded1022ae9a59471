"""Spans of requests as OTLP-JSON: one export a line, as the collector's file exporter and linkwise write them, or one
document. What engines call the parts of a request is brought to request, queue, prefill, transfer, decode.

No attribute is kept but those in KEPT: others may hold a prompt or an answer. Facts: opentelemetry-proto
opentelemetry/proto/trace/v1/trace.proto and its JSON mapping (64-bit numbers as text); vllm-project/vllm
vllm/tracing (attributes gen_ai.latency.* in s on one span); sgl-project/sglang python/sglang/srt/tracing (stages, rid).
"""

import io
import math
import re
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
from msgspec import Meta, Raw

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped
from linkwise.trace.facts import Span
from linkwise.trace.readers.base import Reading, Source

FORMAT = "OTLP spans (JSON)"

MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_SPANS = 1_000_000
MAX_NS = 2**62
MAX_ANCESTORS = 64
_EXPORT = "exports of spans in OTLP-JSON"

IDS = ("linkwise.request", "gen_ai.request.id", "request.id", "request_id", "rid")
KEPT = frozenset({
    "unit", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.completion_tokens", "gen_ai.response.finish_reasons", "gen_ai.latency.e2e",
    "gen_ai.latency.time_to_first_token", "tp_rank", "dp_rank", "bootstrap_room", "http.response.status_code",
    "http.status_code",
})  # fmt: skip
_PARTS = {
    "request": "request", "llm_request": "request", "queue": "queue", "prefill": "prefill", "transfer": "transfer",
    "decode": "decode", "prefill_waiting": "queue", "prefill_bootstrap": "queue", "decode_prepare": "queue",
    "decode_bootstrap": "queue", "decode_waiting": "queue", "prefill_forward": "prefill", "chunked_prefill": "prefill",
    "prefill_transfer_kv_cache": "transfer", "decode_transferred": "transfer", "decode_loop": "decode",
    "decode_forward": "decode",
}  # fmt: skip
_WORDS = (
    (re.compile(r"transfer|hand_?off|kv[_.-]?(?:send|recv|pull|push)"), "transfer"),
    (re.compile(r"queue|waiting"), "queue"),
    (re.compile(r"prefill"), "prefill"),
    (re.compile(r"decode"), "decode"),
)
_SGLANG_ROOT = re.compile(r"\A(?:prefill |decode | )?Req ")
# vLLM's one span in parts, one after the other from its beginning.
_LATENCIES = (
    ("gen_ai.latency.time_in_queue", "queue"),
    ("gen_ai.latency.time_in_model_prefill", "prefill"),
    ("gen_ai.latency.time_in_model_decode", "decode"),
)
_SERVER = {2, "2", "SPAN_KIND_SERVER"}
_ERROR = {2, "2", "STATUS_CODE_ERROR"}
_MARK = b"\xef\xbb\xbf"
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError, OverflowError)

_Text = Annotated[str, Meta(max_length=4096)]


class _Value(msgspec.Struct):
    stringValue: str | None = None
    string_value: str | None = None
    intValue: int | str | None = None
    int_value: int | str | None = None
    doubleValue: float | str | None = None
    double_value: float | str | None = None
    boolValue: bool | None = None
    bool_value: bool | None = None
    arrayValue: Raw = Raw(b"null")
    array_value: Raw = Raw(b"null")


class _Pair(msgspec.Struct):
    key: str = ""
    value: Raw = Raw(b"{}")


class _Values(msgspec.Struct):
    values: list[Raw] = []


class _Attributes(msgspec.Struct):
    attributes: list[Raw] = []


class _Status(msgspec.Struct):
    code: int | str | None = None


class _Span(msgspec.Struct):
    traceId: _Text = ""
    trace_id: _Text = ""
    spanId: _Text = ""
    span_id: _Text = ""
    parentSpanId: _Text | None = None
    parent_span_id: _Text | None = None
    name: str = ""
    kind: int | str | None = None
    startTimeUnixNano: int | str = 0
    start_time_unix_nano: int | str = 0
    endTimeUnixNano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[Raw] = []
    status: _Status | None = None


class _Scope(msgspec.Struct):
    spans: list[Raw] = []


class _Resource(msgspec.Struct):
    resource: _Attributes | None = None
    scopeSpans: list[Raw] = []
    scope_spans: list[Raw] = []
    instrumentationLibrarySpans: list[Raw] = []  # until OTLP 0.19


class _Export(msgspec.Struct):
    resourceSpans: list[Raw] = []
    resource_spans: list[Raw] = []


_EXPORTS, _LIST, _ANY = (msgspec.json.Decoder(kind) for kind in (_Export, list[Raw], Raw))
_RESOURCE, _SCOPE, _SPAN = (msgspec.json.Decoder(kind) for kind in (_Resource, _Scope, _Span))
_PAIR, _VALUE, _VALUES = (msgspec.json.Decoder(kind) for kind in (_Pair, _Value, _Values))


class Part(NamedTuple):
    """A span as it is read. id: what it says of its request; parent: of the span it is part of."""

    trace: str
    own: str
    parent: str
    id: str
    span: Span
    server: bool
    latencies: tuple[tuple[str, float], ...]


def recognises(source: Source) -> bool:
    """An export of spans near the beginning."""
    head = source.head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return head[:1] in {b"{", b"["} and (b'"resourceSpans"' in head or b'"resource_spans"' in head)


def read(source: Source) -> Reading:
    """All spans. Raises InputError for a file without one; broken lines and odd spans are left out with a note."""
    taken = _Taken()
    first = broken = last = 0
    for number, text in _documents(source):
        if text.strip() and not taken.document(text):
            first, broken, last = first or number, broken + 1, number
    if not taken.parts:
        where = f"{source.where}: line {first}" if first else source.where
        raise InputError("no whole span", where=where, expected=_EXPORT)
    notes = []
    if broken:
        notes.append(f"{broken} lines were not understood, the first is line {first}, the last is line {last}")
    if taken.odd:
        notes.append(f"{taken.odd} spans or attributes were not understood, or have no end, and are left out")
    if taken.dropped:
        notes.append(f"{taken.dropped} spans beyond {MAX_SPANS} are left out")
    return Reading(spans=tuple(_named(taken.parts)), notes=tuple(notes))


def _documents(source: Source) -> Iterator[tuple[int, bytes]]:
    """Lines that are documents, or the whole file where its first line is none."""
    with source.open() as file:
        line, number = _line(file, source.where, 1), 1
        if _decoded(_EXPORTS, line.removeprefix(_MARK)) is None:
            rest = _line(file, source.where, 1, whole=True)
            if _decoded(_ANY, line.removeprefix(_MARK) + rest) is not None:
                yield 1, line + rest
                return
            # A broken line: those after it may be whole.
            yield 1, line
            yield from enumerate(io.BytesIO(rest), 2)
            return
        while line:
            yield number, line
            number += 1
            line = _line(file, source.where, number)


def _line(file: BinaryIO, where: str, number: int, whole: bool = False) -> bytes:
    """The next line, or the rest; what a gzip that breaks off still gave is used."""
    try:
        line = (file.read if whole else file.readline)(MAX_DOCUMENT_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        return b""
    if len(line) > MAX_DOCUMENT_BYTES:
        raise InputError(f"more than {MAX_DOCUMENT_BYTES} bytes", where=f"{where}: line {number}", expected=_EXPORT)
    return line


class _Taken:
    """Parts of all documents so far."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.odd = self.dropped = 0

    def document(self, text: bytes) -> bool:
        """One export, or a list of them. False: it is none."""
        text = text.removeprefix(_MARK)
        found = _decoded(_EXPORTS, text)
        listed = [text] if found is not None else _decoded(_LIST, text) or []
        good = [self.export(_decoded(_EXPORTS, one)) for one in listed]
        return any(good)

    def export(self, found: Any) -> bool:
        if found is None:
            return False
        for raw in (*found.resourceSpans, *found.resource_spans):
            self.resource(_decoded(_RESOURCE, raw))
        return True

    def resource(self, found: Any) -> None:
        if found is None:
            self.odd += 1
            return
        about = self.attributes(found.resource.attributes if found.resource else [])
        service, host = about.get("service.name", ""), about.get("host.name", "")
        for raw in (*found.scopeSpans, *found.scope_spans, *found.instrumentationLibrarySpans):
            scope = _decoded(_SCOPE, raw)
            self.odd += scope is None
            for one in scope.spans if scope else ():
                if len(self.parts) >= MAX_SPANS:
                    self.dropped += 1
                    continue
                part = self.part(_decoded(_SPAN, one), clipped(str(service)), clipped(str(host)))
                if part is None:
                    self.odd += 1
                else:
                    self.parts.append(part)

    def part(self, found: Any, service: str, host: str) -> Part | None:
        if found is None:
            return None
        began = _ns(found.startTimeUnixNano or found.start_time_unix_nano)
        ended = _ns(found.endTimeUnixNano or found.end_time_unix_nano)
        if not 0 < began <= ended:
            return None
        about = self.attributes(found.attributes)
        labels = tuple((key, clipped(str(value))) for key, value in about.items() if key in KEPT)
        name = clipped(found.name)
        labels = (("span", name), *((("host", host),) if host else ()), *labels)
        failed = found.status is not None and found.status.code in _ERROR
        latencies = tuple((part, _seconds(about.get(key))) for key, part in _LATENCIES)
        return Part(
            found.traceId or found.trace_id,
            found.spanId or found.span_id,
            found.parentSpanId or found.parent_span_id or "",
            clipped(str(next((about[key] for key in IDS if about.get(key)), ""))),
            Span("", name, began, ended, service, failed, labels),
            found.kind in _SERVER,
            latencies,
        )

    def attributes(self, raws: list[Raw]) -> dict[str, Any]:
        """The values that are asked for by anyone above."""
        found: dict[str, Any] = {}
        for raw in raws[:256]:
            pair = _decoded(_PAIR, raw)
            if pair is None:
                self.odd += 1
            elif pair.key in _ASKED:
                value = _plain(_decoded(_VALUE, pair.value))
                if value is not None:
                    found[pair.key] = value
        return found


_ASKED = {*IDS, *KEPT, *(key for key, _ in _LATENCIES), "service.name", "host.name"}


def _plain(value: Any) -> Any:
    """The value of an attribute: a scalar, or texts of a list joined by commas; None for others."""
    if value is None:
        return None
    for name in ("string", "int", "double", "bool"):
        for spelled in (f"{name}Value", f"{name}_value"):
            if getattr(value, spelled) is not None:
                return getattr(value, spelled)
    for raw in (value.arrayValue, value.array_value):
        listed = _decoded(_VALUES, raw)
        if listed is not None:
            inner = [_decoded(_VALUE, one) for one in listed.values[:16]]
            return ",".join(str(one.stringValue or one.string_value or "") for one in inner if one is not None)
    return None


def _named(parts: list[Part]) -> Iterator[Span]:
    """Spans with their request: as they say, else as the nearest span above them, else as the one request of the trace
    says, else the trace's id. Names as everywhere in linkwise."""
    above = {(part.trace, part.own): part for part in parts if part.own}
    ids: dict[str, set[str]] = {}
    for part in parts:
        if part.id:
            ids.setdefault(part.trace, set()).add(part.id)
    for part in parts:
        request, here, hops = part.id, part, 0
        while not request and here.parent and hops < MAX_ANCESTORS:
            parent = above.get((part.trace, here.parent))
            if parent is None:
                break
            request, here, hops = parent.id, parent, hops + 1
        only = ids.get(part.trace, set())
        request = request or (next(iter(only)) if len(only) == 1 else clipped(part.trace))
        root = part.server and (part.trace, part.parent) not in above
        yield part.span._replace(request=request, name=_name(part.span.name, root))
        at = part.span.began_ns
        for name, seconds in part.latencies:
            if seconds >= 0:
                ended = min(at + round(seconds * 1e9), MAX_NS)
                yield Span(request, name, at, ended, part.span.service, part.span.failed, (("span", part.span.name),))
                at = ended


def _name(name: str, root: bool) -> str:
    known = _PARTS.get(name)
    if known or root or _SGLANG_ROOT.match(name):
        return known or "request"
    lower = name.lower()
    return next((part for pattern, part in _WORDS if pattern.search(lower)), name)


def _ns(value: int | str) -> int:
    """A time in ns, which JSON has as text or number; 0 for what is none."""
    if isinstance(value, str):
        if not value.isascii() or not value.isdigit() or len(value) > 20:
            return 0
        value = int(value)
    return value if 0 <= value <= MAX_NS else 0


def _seconds(value: Any) -> float:
    """A duration in s; -1 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return -1.0
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return -1.0
    return found if math.isfinite(found) and 0 <= found < 1e9 else -1.0


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes | Raw) -> Any:
    try:
        return decoder.decode(text)
    except _BROKEN:
        return None
