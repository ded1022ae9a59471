"""`linkwise ui`: the page with inputs that recompute in place. For this machine only, and nothing leaves it.

The server listens on 127.0.0.1. A request must carry the token of the address that was printed, and name this host and
port, so that no page of another origin (or a name that was pointed here) can use it. One plan is computed at a time.
"""

import hmac
import os
import re
import secrets
import sys
import threading
from collections.abc import Mapping
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Meta

from linkwise import doors, settings
from linkwise.api_task import cluster_of, fixed_of, model_of
from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen
from linkwise.engine.base import Options
from linkwise.plan.evaluate import Points
from linkwise.plan.types import NoPlan, Plan
from linkwise.report.page.data import page_data
from linkwise.report.page.html import html, script_of
from linkwise.report.page.layouts import Searched
from linkwise.report.page.types import Page

HOST = "127.0.0.1"
MAX_BODY_BYTES = 64 * 2**10
QUIET_S = 30.0  # a client that says nothing for so long is let go
_FIELDS = tuple(name for name in settings.words() if name not in settings.FILES)
_COUNT = re.compile(r"[0-9]{1,9}")  # digits that Python may be asked to read as a number
_GROUPS = ("Workload", "Layout", "Engine settings", "Experts")

Text = Annotated[str, Meta(max_length=4096)]


class Inputs(Frozen, frozen=True, kw_only=True):
    """What the form says. settings: as `linkwise plan` takes them; what is absent is searched, or the default."""

    model: Text
    on: Text
    engine: Text
    settings: dict[Text, int | float | bool | Text] = {}


def inputs_of(plan: Plan) -> Inputs:
    """The form as it stands for a plan: its lengths, load, targets and what its options say; degrees are searched."""
    load, targets, options, usual = plan.workload, plan.workload.targets, plan.options, Options()
    given: dict[str, Any] = {"isl": load.isl_tokens, "osl": load.osl_tokens, "concurrency": load.concurrency}
    units = {"rate": (load.rate_per_s, "/s"), "ttft": (targets.ttft_s, "s"), "tpot": (targets.tpot_s, "s")}
    given |= {n: None if v is None else repr(v).removesuffix(".0") + unit for n, (v, unit) in units.items()}
    given |= {name: value for name in ("burst", "prefix_hit") if (value := getattr(load, name, None))}
    for name in _FIELDS:
        field = settings.option_field(name)
        if field and (value := getattr(options, field)) != getattr(usual, field):
            given[name] = value
    if options.lora_count:
        given["lora"] = f"{options.lora_count}:{options.lora_rank}"
    return Inputs(
        model=plan.model.name,
        on=plan.cluster.name,
        engine=f"{plan.engine}@{plan.engine_version}",
        settings={name: value for name, value in given.items() if value is not None},
    )


def compute(base: Plan, asked: Inputs) -> Page | NoPlan:
    """The page for other inputs. base: the plan the form began with, whose model and cluster stay known by their names.

    Raises InputError for malformed inputs, for files among them, and for a model that is not on this machine.
    """
    from linkwise.plan.build import plan as build

    for name in settings.FILES:
        if name in asked.settings:
            raise InputError(f"{name} names a file", where="settings", expected="linkwise plan, then linkwise ui FILE")
    given = settings.check(asked.settings)
    same = asked.model == base.model.name and given.get("weights") == base.options.weight_dtype
    model = base.model if same else _known(asked.model, given)
    cluster = base.cluster if asked.on == base.cluster.name else cluster_of(asked.on)
    fixed = fixed_of(settings.degrees(given), model, cluster)
    engine = doors.engine(asked.engine)
    seen: dict[Layout, Points] = {}
    found = build(
        model, cluster, engine, settings.options(given), settings.workload(given), fixed=fixed, seen=seen.__setitem__
    )
    if isinstance(found, NoPlan):
        return found
    return page_data(found, searched=None if fixed else Searched(seen, found.rejected))


def _known(name: str, given: settings.Settings) -> Any:
    """A model of the catalogue or of a folder: asking a hub would tell it what somebody plans."""
    from linkwise.model import catalogue

    if not os.path.lexists(name.strip()) and catalogue.find(name.strip()) is None:
        raise InputError(f"model {name[:80]!r}", where="ui", expected="a name of `linkwise models`, or a folder here")
    return model_of(name, given)


def form(plan: Plan) -> str:
    """The inputs as HTML, filled with what a plan was made from."""
    now = inputs_of(plan)
    named = (("model", now.model), ("on", now.on), ("engine", now.engine))
    parts = [_field(name, str, value, "cluster" if name == "on" else name, "") for name, value in named]
    words = settings.words()
    for group in _GROUPS:
        fields = [
            _field(name, kind, now.settings.get(name), name.replace("_", " "), word.help)
            for name, (kind, word) in words.items()
            if word.group == group and name in _FIELDS
        ]
        body = "".join(fields)
        parts.append(body if group == "Workload" else f"<details><summary>{group}</summary>{body}</details>")
    button = '<button class="plain" type="submit">Compute</button><p id="ui-says" role="status"></p>'
    return f'<form class="inputs" id="inputs" autocomplete="off">{"".join(parts)}{button}</form>'


def _field(name: str, kind: Any, value: Any, label: str, help: str) -> str:
    if kind is bool:
        box = f'<input type="checkbox" name="{name}" data-kind="bool"{" checked" if value else ""}>'
    else:
        shape = kind.__name__ if kind in {int, float} else "str"
        shown = "" if value is None else escape(str(value))
        box = f'<input type="text" name="{name}" data-kind="{shape}" value="{shown}" size="14">'
    return f'<label title="{escape(help)}">{escape(label)}{box}</label>'


class Server(ThreadingHTTPServer):
    """Serves one plan's page and computes others. address: with the token, to be opened."""

    daemon_threads = True

    def __init__(self, plan: Plan, library: str, port: int = 0) -> None:
        self.plan, self.library = plan, library
        self.token = secrets.token_urlsafe(32)
        self.busy = threading.Lock()
        self.first = page_data(plan)
        super().__init__((HOST, port), Handler)
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """What to open."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class Handler(BaseHTTPRequestHandler):
    """GET / is the page, POST /page another page's data."""

    server: Server
    timeout: ClassVar[float] = QUIET_S
    server_version, sys_version = "linkwise", ""

    def do_GET(self) -> None:
        """The page."""
        asked = urlsplit(self.path)
        if not self._ours() or asked.path != "/":
            return self._answer(404, b"", "text/plain")
        given = parse_qs(asked.query, max_num_fields=4).get("token", [""])[0]
        if not self._right(given):
            return self._answer(403, b"open the address that linkwise printed\n", "text/plain")
        form_html = form(self.server.plan)
        text = html(
            self.server.first, self.server.library, inputs=form_html, script=script_of("ui.js"), connect="'self'"
        )
        return self._answer(200, text.encode(), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """Other inputs: the data of their page, or what is wrong with them."""
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if not self._ours() or self.path != "/page":
            return self._answer(404, b"", "text/plain")
        if scheme != "Bearer" or not self._right(given):
            return self._answer(403, b"", "text/plain")
        size = self.headers.get("Content-Length", "")
        if not _COUNT.fullmatch(size) or int(size) > MAX_BODY_BYTES:
            return self._answer(413, b"", "text/plain")
        text = self.rfile.read(int(size))
        if not self.server.busy.acquire(blocking=False):
            return self._answer(503, _error("another plan is being computed"), "application/json")
        try:
            code, body = self._computed(text)
        finally:
            self.server.busy.release()
        return self._answer(code, body, "application/json")

    def _computed(self, text: bytes) -> tuple[int, bytes]:
        try:
            found = compute(self.server.plan, msgspec.json.decode(text, type=Inputs))
        except (LinkwiseError, msgspec.MsgspecError) as error:
            return 400, _error(str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours is told to its user, and the server goes on
            return 500, _error(f"internal error: {type(error).__name__}")
        if isinstance(found, NoPlan):
            short = found.nearest.shortfall
            near = f"no layout is feasible; nearest {found.nearest.layout}: {short.reason}"
            return 409, _error("; ".join([near, *found.changes[:2]]))
        return 200, msgspec.json.encode(found)

    def _ours(self) -> bool:
        """Whether the request is meant for this server and comes from its own page."""
        origin = self.headers.get("Origin")
        host = self.headers.get("Host", "")
        return host in self.server.hosts and origin in {None, f"http://{host}"}

    def _right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        headers: Mapping[str, str] = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the address holds the token."""


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
