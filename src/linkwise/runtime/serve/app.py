"""The routes. `create_app` makes them over a Service; run.py makes a process of it."""

import asyncio
import contextlib
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linkwise.core.errors import InputError
from linkwise.runtime.serve import asks
from linkwise.runtime.serve.answer import Answer, Piece
from linkwise.runtime.serve.bodies import Bodies, error_event
from linkwise.runtime.serve.errors import ApiError
from linkwise.runtime.serve.limits import Limits, check_key
from linkwise.runtime.serve.metrics import Metrics
from linkwise.runtime.serve.spans import Spans
from linkwise.runtime.serve.turns import Turns
from linkwise.supervise.health import Health
from linkwise.supervise.supervisor import Supervisor
from linkwise.trace.events import request_key

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_OPEN = ("/health", "/ready", "/metrics")  # answered also while there is no room for requests
_GONE = 499  # nobody reads it; nginx's number
BODIES_BYTES = 256 * 2**20  # of all bodies on their way and waiting to be read


class Service(NamedTuple):
    """What is served. model: its name in the API. key: of the API, empty = none is asked.

    trace_key: of the hash under which a request stands in traces. vocab: of the model, where the tokenizer knows more.
    """

    supervisor: Supervisor
    text: asks.Text
    model: str
    metrics: Metrics
    spans: Spans
    limits: Limits = Limits()
    key: str = ""
    created: int = 0
    trace_key: bytes = b""
    vocab: int = 0


def create_app(service: Service, full: Callable[[], bool] = lambda: False) -> ASGIApp:
    """An ASGI application. It starts nothing: the supervisor's life is the caller's.

    full: is there no room for requests of the API? Health and metrics are answered all the same.
    """
    app = FastAPI(title="linkwise", openapi_url=None)
    routes = _Routes(service)
    service.metrics.watch(service.supervisor, routes.reading, lambda: service.spans.dropped)
    post, get = ["POST"], ["GET", "HEAD"]
    for path, methods, route in (
        ("/v1/completions", post, routes.completions),
        ("/v1/chat/completions", post, routes.chat),
        ("/v1/models", get, routes.models),
        ("/v1/models/{name:path}", get, routes.model),
        ("/health", get, routes.health),
        ("/ready", get, routes.ready),
        ("/metrics", get, routes.metrics),
    ):
        app.add_api_route(path, route, methods=methods, response_model=None)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)
    return _front(app, full)


def _front(app: ASGIApp, full: Callable[[], bool]) -> ASGIApp:
    """Every answer bears the request's id, the client's or one of ours, errors too."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["linkwise.request_id"] = id

        async def bearing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id.encode())]
            await send(message)

        if full() and scope["path"] not in _OPEN:
            error = ApiError(503, "too many connections are open", code="too_many_connections", retry_s=1.0)
            reply = _answered(error)
            reply.headers["connection"] = "close"
            await reply(scope, receive, bearing)
            return
        await app(scope, receive, bearing)

    return front


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Response(body, status, headers, media_type="application/json")


def _answered(error: ApiError) -> Response:
    return _json(error.body(), error.status, error.headers())


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - registered for it alone
    return _answered(error)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: f"there is no {request.url.path}", 405: f"{request.method} is not served here"}
    reply = _answered(ApiError(status, words.get(status, str(getattr(error, "detail", "")))))
    reply.headers.update(getattr(error, "headers", None) or {})  # Allow, with 405
    return reply


async def _internal_error(_: Request, error: Exception) -> Response:
    return _answered(ApiError(500, f"internal error: {type(error).__name__}"))


class _Routes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._trace_key = service.trace_key or secrets.token_bytes(16)
        self._probe: asyncio.Future[Health] | None = None
        supervisor = service.supervisor
        self._turns = Turns(lambda: supervisor.waiting, supervisor.rules.max_waiting)
        self._bodies = 0  # bytes of them

    def reading(self) -> int:
        """Requests that wait for their turn to be read, and those that are read."""
        return self._turns.here

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, chat=False)

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, chat=True)

    async def models(self, request: Request) -> Response:
        check_key(request.headers.get("authorization"), self._service.key)
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, request: Request, name: str) -> Response:
        check_key(request.headers.get("authorization"), self._service.key)
        asks.known(name, self._service.model)
        return _json(self._card())

    async def health(self) -> Response:
        """Can a token be produced now? One probe answers all who ask meanwhile."""
        supervisor = self._service.supervisor
        if supervisor.stopping:
            reason = f"the server ends when {supervisor.live} live requests have"
            return _json({"status": "draining", "reason": reason, "units": []}, 503)
        loop = asyncio.get_running_loop()
        if self._probe is None or self._probe.done():
            probe = self._probe = loop.create_future()

            def answer(health: Health) -> None:
                # The loop may have ended meanwhile, and with it whoever asked.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(lambda: None if probe.done() else probe.set_result(health))

            supervisor.probe(answer)
        try:
            async with asyncio.timeout(supervisor.rules.probe_s + 1.0):
                health = await asyncio.shield(self._probe)
        except TimeoutError:
            return _json({"status": "unhealthy", "reason": "the supervisor does not answer", "units": []}, 503)
        lost = any(unit.state != "ready" for unit in health.units)
        status = "unhealthy" if not health.ok else "degraded" if lost else "ok"
        units = [unit._asdict() for unit in health.units]
        return _json({"status": status, "reason": health.reason, "units": units}, 200 if health.ok else 503)

    async def ready(self) -> Response:
        supervisor = self._service.supervisor
        ready, phases = supervisor.ready, supervisor.phases()
        status = "draining" if supervisor.stopping else "ready" if ready else "not ready"
        return _json({"status": status, "units": phases}, 200 if ready else 503)

    async def metrics(self) -> Response:
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _card(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.model,
            "object": "model",
            "created": service.created,
            "owned_by": "linkwise",
            "max_model_len": service.supervisor.max_tokens,
        }

    async def _generate(self, request: Request, *, chat: bool) -> Response:
        service = self._service
        check_key(request.headers.get("authorization"), service.key)
        if service.supervisor.stopping:
            service.metrics.refused("down")
            raise ApiError(503, "the server is draining: it ends when live requests have", retry_s=1.0)
        try:
            async with self._body(request) as body:
                began = time.monotonic()
                ask = await self._asked(body, request, chat=chat)
        except InputError as error:
            service.metrics.refused("invalid")
            raise ApiError(400, str(error)) from None
        except ApiError as error:
            if error.status != _GONE:
                service.metrics.refused({429: "full", 503: "down", 504: "timeout"}.get(error.status, "invalid"))
            raise
        id = request.scope["linkwise.request_id"]
        answer = self._answer(ask, id, request, began)
        name = f"{'chatcmpl' if chat else 'cmpl'}-{id}"
        bodies = Bodies(name, int(time.time()), service.model, ask)
        return _Reply(_events(ask, answer, bodies), answer.close, stream=ask.stream)

    async def _asked(self, body: bytes, request: Request, *, chat: bool) -> asks.Ask:
        """The request when its turn to be read has come; a client that goes away meanwhile gives its turn up."""
        service = self._service
        limits, rules = service.limits, service.supervisor.rules

        def read() -> asks.Ask:
            return asks.read(
                body, chat=chat, text=service.text, limits=limits, longest=service.supervisor.max_tokens,
                model=service.model, most=rules.max_waiting, vocab=service.vocab,
            )  # fmt: skip

        deadline = asyncio.get_running_loop().time() + limits.timeout_s
        reading = asyncio.create_task(self._turns.take(len(body), read, deadline, limits.timeout_s, chat=chat))
        leaving = asyncio.create_task(_gone(request.receive))
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            raise ApiError(_GONE, "the client went away")
        finally:
            for task in (reading, leaving):
                task.cancel()
            await asyncio.gather(reading, leaving, return_exceptions=True)

    def _answer(self, ask: asks.Ask, id: str, request: Request, began: float) -> Answer:
        service = self._service
        trace = request_key(id, self._trace_key)
        how = ask.sampling[0]
        sampling = {"gen_ai.request.temperature": how.temperature, "gen_ai.request.top_p": how.top_p}
        trails = [
            service.spans.trail(
                request.headers, {"gen_ai.request.max_tokens": most, "linkwise.request": trace, **sampling}, began
            )
            for most in ask.max_tokens
        ]
        # The client's id may come twice; ours never does.
        own = f"{id}-{secrets.token_hex(8)}"
        return Answer(
            own, ask, service.text, service.supervisor, service.metrics, trails, service.limits.timeout_s, trace, began
        )

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The body, which counts among all bodies while it is held."""
        limits = self._service.limits
        # Browsers send other types to this machine from any page without asking first.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the content type must be application/json")
        coding = request.headers.get("content-encoding", "").strip().lower()
        if coding not in {"", "identity"}:
            raise ApiError(415, f"the content encoding must be identity, not {coding[:40]}")
        length = request.headers.get("content-length", "")
        too_large = ApiError(413, f"the body is larger than {limits.body_bytes} bytes", code="body_too_large")
        if length.isascii() and length.isdigit() and int(length[:20]) > limits.body_bytes:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(limits.body_s):
                    async for part in request.stream():
                        size += len(part)
                        self._bodies += len(part)
                        if size > limits.body_bytes:
                            raise too_large
                        if self._bodies > max(BODIES_BYTES, limits.body_bytes):
                            raise ApiError(429, "the bodies of other requests fill their memory", retry_s=1.0)
                        parts.append(part)
            except TimeoutError:
                raise ApiError(408, f"the body did not come within {limits.body_s:g} s") from None
            except ClientDisconnect:
                raise ApiError(_GONE, "the client went away") from None
            yield b"".join(parts)
        finally:
            self._bodies -= size


async def _events(ask: asks.Ask, answer: Answer, bodies: Bodies) -> AsyncIterator[bytes]:
    """The answer's bytes: one part when it is not streamed. What goes wrong before the first part is raised."""
    if not ask.stream:
        texts, reasons = [""] * len(ask.prompts), [""] * len(ask.prompts)
        while not answer.over:
            for piece in await answer.next():
                texts[piece.number] += piece.text
                reasons[piece.number] = piece.reason
        yield bodies.whole(texts, reasons, answer)
        return
    begun = False
    while not answer.over:
        pieces: list[Piece] = []
        try:
            pieces = await answer.next()
        except ApiError as error:
            if not begun:
                raise
            yield error_event(error.body())
            return
        shown = [event for piece in pieces for event in bodies.piece(piece)]
        if shown and not begun:
            begun, shown = True, [*bodies.first(), *shown]
        if shown:
            yield b"".join(shown)
    yield b"".join(bodies.last(answer))


class _Reply(Response):
    """Sends parts as they come. A client that goes away ends it, also while there is nothing to send."""

    def __init__(self, parts: AsyncIterator[bytes], close: Callable[[], None], *, stream: bool) -> None:
        kind = "text/event-stream" if stream else "application/json"
        super().__init__(None, 200, media_type=kind)
        self._parts, self._close, self._stream = parts, close, stream
        if stream:
            self.headers["cache-control"] = "no-cache"
            self.headers["x-accel-buffering"] = "no"
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(scope, receive, send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self._close()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._parts)
        except ApiError as error:
            await _answered(error)(scope, receive, send)
            return
        if not self._stream:
            self.headers["content-length"] = str(len(first))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": first, "more_body": self._stream})
        if self._stream:
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    call: Awaitable[Any]
    while True:
        call = receive()
        if (await call)["type"] == "http.disconnect":
            return
