"""Where requests go: one OpenAI-compatible door before all groups, which retries what a lost group has begun.

A request goes to the group with the least under way, less what it has of the prompt's beginning in its cache
(supervise/router.py, over bytes of the prompt in place of tokens). With two pools a prompt is computed by a prefill
group, one token long, and its KV's address goes to the decode group (vLLM's NixlConnector protocol). An answer is
passed on as it comes; as long as nothing of it has been passed on, a lost group's requests start again elsewhere.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from linkwise.launch.unit import EngineUnit
from linkwise.supervise.router import Router
from linkwise.supervise.rules import Rules

MAX_BODY = 16 * 2**20
_BLOCK = 64  # bytes of a prompt that count as one block of the router
_TICK_S = 0.05
_PASSED = {"content-type", "x-request-id"}


class _Lost(Exception):
    """The group went away, or said it is broken, before anything was passed on."""


class _Pool:
    """Groups of one role, and what is under way on each, in bytes."""

    def __init__(self, units: Sequence[EngineUnit]) -> None:
        self.units = {unit.name: unit for unit in units}
        self._router = Router(list(self.units), block=_BLOCK)
        self._under_way = dict.fromkeys(self.units, 0)

    def pick(self, prompt: bytes, but: frozenset[str]) -> EngineUnit | None:
        ready = {n: self._under_way[n] for n, u in self.units.items() if u.state == "ready" and n not in but}
        if not ready:
            return None
        return self.units[self._router.pick(ready, self._router.hashes(prompt))]

    def charge(self, unit: EngineUnit, size: int) -> None:
        self._under_way[unit.name] += size

    @property
    def ready(self) -> int:
        return sum(unit.state == "ready" for unit in self.units.values())


class Front:
    """The door. pools: groups in the order a request visits them: one pool, or prefill and decode."""

    def __init__(
        self, pools: Sequence[Sequence[EngineUnit]], rules: Rules, *, bound_s: float, timeout_s: float
    ) -> None:
        self._pools = [_Pool(units) for units in pools]
        self._rules, self._bound_s = rules, bound_s
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=5.0), limits=httpx.Limits(max_connections=None)
        )
        self.retries = 0

    def app(self) -> Starlette:
        """What a server serves."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/{path:path}", self._ask, methods=["POST"]),
            ]
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def _health(self, _: Request) -> Response:
        """Can a token be produced now, in every pool?"""
        units = [unit for pool in self._pools for unit in pool.units.values()]
        ready = [unit for unit in units if unit.state == "ready"]
        fresh = [time.monotonic() - unit.last_s <= 1.0 for unit in ready]
        asked = [
            asyncio.to_thread(unit.token, self._bound_s)
            for unit, is_fresh in zip(ready, fresh, strict=True)
            if not is_fresh
        ]
        found = iter(await asyncio.gather(*asked))
        good = {unit.name: is_fresh or next(found) for unit, is_fresh in zip(ready, fresh, strict=True)}
        ok = all(any(good.get(name, False) for name in pool.units) for pool in self._pools)
        body = {"ok": ok, "units": {u.name: {"state": u.state, "token": good.get(u.name, False)} for u in units}}
        return JSONResponse(body, status_code=200 if ok else 503)

    async def _models(self, request: Request) -> Response:
        unit = self._pools[-1].pick(b"", frozenset())
        if unit is None:
            return _error(503, "no group serves yet")
        answer = await self._client.get(f"{unit.door.url}/v1/models", headers=_with_key(request))
        return Response(answer.content, answer.status_code, media_type="application/json")

    async def _ask(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                return _error(413, f"more than {MAX_BODY} bytes")
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            return _error(400, "the body is not JSON")
        if not isinstance(asked, dict):
            return _error(400, "the body is no JSON object")
        path = f"/v1/{request.path_params['path']}"
        headers = {k: v for k, v in request.headers.items() if k in _PASSED} | _with_key(request)
        return await self._answer(path, asked, headers)

    async def _answer(self, path: str, asked: dict[str, Any], headers: dict[str, str]) -> Response:
        """Tried on one group after another as the rule has it, until one has answered."""
        tries, until = 0, time.monotonic() + self._rules.wait_s
        but: frozenset[str] = frozenset()
        why = "no group serves yet"
        prompt = _prompt(asked)
        while True:
            picked = [pool.pick(prompt, but) for pool in self._pools]
            if any(unit is None for unit in picked):
                but = frozenset()  # a group that comes back may be the one that was lost
                if time.monotonic() > until:
                    return _error(503, why, retry_after=self._rules.backoff_most_s)
                await asyncio.sleep(_TICK_S)
                continue
            units = [unit for unit in picked if unit is not None]
            for pool, unit in zip(self._pools, units, strict=True):
                pool.charge(unit, len(prompt))
            try:
                return await self._once(path, asked, headers, units, prompt)
            except _Lost as lost:
                self._release(units, prompt)
                why = str(lost)
                if self._rules.on_fault == "reject" or tries >= self._rules.retries:
                    return _error(503, why, retry_after=self._rules.backoff_most_s)
                tries += 1
                self.retries += 1
                until = time.monotonic() + self._rules.wait_s
                but = frozenset(unit.name for unit in units if unit.state != "ready")

    def _release(self, units: Sequence[EngineUnit], prompt: bytes) -> None:
        for pool, unit in zip(self._pools, units, strict=True):
            pool.charge(unit, -len(prompt))

    async def _once(
        self, path: str, asked: dict[str, Any], headers: dict[str, str], units: Sequence[EngineUnit], prompt: bytes
    ) -> Response:
        last = units[-1]
        if len(units) > 1:
            asked = asked | {"kv_transfer_params": await self._prefilled(path, asked, headers, units[0])}
        answer = await self._send(last, path, asked, headers)
        if not asked.get("stream"):
            whole = answer.first + b"".join([part async for part in answer.rest()])
            self._release(units, prompt)
            return Response(whole, answer.status, answer.headers)
        return StreamingResponse(self._passed_on(units, prompt, answer), answer.status, answer.headers)

    async def _prefilled(
        self, path: str, asked: dict[str, Any], headers: dict[str, str], unit: EngineUnit
    ) -> dict[str, Any]:
        """The prompt computed by a prefill group: where its KV is."""
        wanted = {"do_remote_decode": True, "do_remote_prefill": False}
        where = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
        short = {k: v for k, v in asked.items() if k not in {"stream", "stream_options", "min_tokens"}}
        short |= {"max_tokens": 1, "stream": False, "kv_transfer_params": {**wanted, **where}}
        if "max_completion_tokens" in short:
            short["max_completion_tokens"] = 1
        answer = await self._send(unit, path, short, headers)
        text = answer.first + b"".join([part async for part in answer.rest()])
        try:
            found = json.loads(text).get("kv_transfer_params")
        except ValueError:
            found = None
        if answer.status != 200 or not isinstance(found, dict):
            raise _Lost(f"{unit.name} computed no prompt: status {answer.status}")
        return found

    async def _send(self, unit: EngineUnit, path: str, asked: dict[str, Any], headers: dict[str, str]) -> "_Answer":
        """The answer up to its first bytes. A group that is broken says so with 500 or 503: that is no answer."""
        sent = _clean(headers) | {"Accept-Encoding": "identity"}
        request = self._client.build_request("POST", unit.door.url + path, json=asked, headers=sent)
        try:
            response = await self._client.send(request, stream=True)
            if response.status_code in {500, 502, 503, 504}:
                await response.aclose()
                raise _Lost(f"{unit.name} answered {response.status_code}")
            stream = response.aiter_raw()
            first = await anext(stream, b"")
        except httpx.TransportError as error:
            raise _Lost(f"{unit.name}: {type(error).__name__}") from None
        unit.last_s = time.monotonic()
        return _Answer(unit, response, stream, first)

    async def _passed_on(self, units: Sequence[EngineUnit], prompt: bytes, answer: "_Answer") -> AsyncIterator[bytes]:
        try:
            yield answer.first
            async for part in answer.rest():
                yield part
        except _Lost as lost:
            # What was passed on cannot be taken back: the client is told, and asks again.
            yield b"data: " + json.dumps({"error": {"message": str(lost), "code": 503}}).encode() + b"\n\n"
        finally:
            self._release(units, prompt)


class _Answer:
    """A group's answer, its first bytes read."""

    def __init__(self, unit: EngineUnit, response: httpx.Response, stream: AsyncIterator[bytes], first: bytes) -> None:
        self._unit, self._response, self._stream, self.first = unit, response, stream, first
        self.status = response.status_code
        self.headers = {k: v for k, v in response.headers.items() if k in _PASSED}

    async def rest(self) -> AsyncIterator[bytes]:
        """What follows, as it comes. Raises _Lost when the group goes away."""
        try:
            async for part in self._stream:
                self._unit.last_s = time.monotonic()
                yield part
        except httpx.TransportError as error:
            raise _Lost(f"{self._unit.name}: {type(error).__name__}") from None
        finally:
            await self._response.aclose()


def _with_key(request: Request) -> dict[str, str]:
    """What a request says of its key: the servers ask for it, not this door."""
    return {k: v for k, v in request.headers.items() if k == "authorization"}


def _clean(headers: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k != "content-type"}


def _prompt(asked: dict[str, Any]) -> bytes:
    """What a cache may know the beginning of."""
    return json.dumps(asked.get("prompt", asked.get("messages", asked.get("input", ""))))[:65_536].encode()


def _error(status: int, message: str, *, retry_after: float = 0.0) -> Response:
    headers = {"Retry-After": str(max(1, round(retry_after)))} if retry_after else {}
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status, headers=headers)
