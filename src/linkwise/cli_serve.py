"""The command `linkwise serve`: its words and options. cli.py registers it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from linkwise import streams
from linkwise.core.errors import InputError
from linkwise.core.files import read_text
from linkwise.core.units import parse_bytes, parse_time

if TYPE_CHECKING:
    from linkwise.runtime.asked import Asked
    from linkwise.runtime.serve.units import Wanted

_Words = ParamSpec("_Words")
START_MORE_S = 30.0  # the group names its late ranks itself; this is for one that does not
_SERVE, _GROUP, _FAULT, _LIMIT = "Address", "Group", "Lost ranks", "Limits"


def _ended(*_: Any) -> None:
    raise SystemExit(0)


def _ends(command: Callable[_Words, int]) -> Callable[_Words, int]:
    """SIGTERM ends the command with 0 from its first moment, which loads for a second, not only once it serves."""

    @wraps(command)
    def guarded(*words: _Words.args, **options: _Words.kwargs) -> int:
        if threading.current_thread() is not threading.main_thread():  # others may not have signals
            return command(*words, **options)
        before = signal.signal(signal.SIGTERM, _ended)
        try:
            return command(*words, **options)
        finally:
            signal.signal(signal.SIGTERM, before)

    return guarded


@_ends
def serve(
    plan: Annotated[str, typer.Argument(help="plan file, or a handoff's; left out: --layout says it")] = "",
    *,
    weights: Annotated[Path, typer.Option(help="model folder: config.json, safetensors, tokenizer.json")],
    layout: Annotated[
        str, typer.Option(help="degrees of a replica, such as tp=2,pp=2", rich_help_panel=_GROUP, metavar="DEGREES")
    ] = "",
    prefill: Annotated[
        str,
        typer.Option(help="prompts on ranks of their own; --layout decodes", rich_help_panel=_GROUP, metavar="DEGREES"),
    ] = "",
    replicas: Annotated[
        int | None, typer.Option(help="how many groups, or pairs of them", rich_help_panel=_GROUP)
    ] = None,
    dtype: Annotated[str, typer.Option(help="left out: the weights' own", rich_help_panel=_GROUP)] = "",
    kv_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 40, help="KV of each group, tokens; left out: the plan's", rich_help_panel=_GROUP),
    ] = None,
    max_len: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 31, help="longest request, tokens; left out: the model's", rich_help_panel=_GROUP),
    ] = None,
    max_seqs: Annotated[
        int | None, typer.Option(min=1, max=1 << 31, help="most requests of one step", rich_help_panel=_GROUP)
    ] = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 31, help="most tokens of one step", rich_help_panel=_GROUP)
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            help="of each pipeline stage, such as 6,2; left out: as even as can be",
            rich_help_panel=_GROUP,
            metavar="COUNTS",
        ),
    ] = "",
    microbatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="steps under way at once; left out: the plan's, or one a stage",
            rich_help_panel=_GROUP,
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="nccl or gloo; left out: nccl where there are GPUs", rich_help_panel=_GROUP)
    ] = "",
    trace: Annotated[
        str, typer.Option(help="folder for the ranks' traces", rich_help_panel=_GROUP, metavar="FOLDER")
    ] = "",
    strict_map: Annotated[
        bool,
        typer.Option(
            "--strict-map", help="ranks that are not where the plan puts them do not serve", rich_help_panel=_GROUP
        ),
    ] = False,
    host: Annotated[str, typer.Option(help="address to bind", rich_help_panel=_SERVE)] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one", rich_help_panel=_SERVE)] = 8000,
    name: Annotated[
        str, typer.Option(help="the model's name in the API; left out: the folder's", rich_help_panel=_SERVE)
    ] = "",
    key_file: Annotated[
        Path | None, typer.Option(help="file with the API key, or LINKWISE_API_KEY holds it", rich_help_panel=_SERVE)
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="serve other machines without a key", rich_help_panel=_SERVE)
    ] = False,
    spans: Annotated[
        Path | None, typer.Option(help="file for OpenTelemetry spans (OTLP-JSON lines)", rich_help_panel=_SERVE)
    ] = None,
    on_fault: Annotated[
        str, typer.Option(help="retry, restart or reject: what requests of a lost group get", rich_help_panel=_FAULT)
    ] = "retry",
    retries: Annotated[int, typer.Option(min=0, max=1000, help="of one request", rich_help_panel=_FAULT)] = 3,
    timeout: Annotated[
        str,
        typer.Option(
            help="a rank that does not come back is named within this", rich_help_panel=_FAULT, metavar="TIME"
        ),
    ] = "30s",
    start_timeout: Annotated[
        str,
        typer.Option(help="ranks that are not ready by then are named", rich_help_panel=_FAULT, metavar="TIME"),
    ] = "5min",
    wait: Annotated[
        str,
        typer.Option(help="how long a request waits for a group to come up", rich_help_panel=_FAULT, metavar="TIME"),
    ] = "60s",
    max_waiting: Annotated[
        int,
        typer.Option(min=1, max=1 << 20, help="requests without a first token; more get 429", rich_help_panel=_LIMIT),
    ] = 256,
    max_tokens: Annotated[
        int, typer.Option(min=1, max=1 << 31, help="new tokens of one answer", rich_help_panel=_LIMIT)
    ] = 1 << 20,
    max_body: Annotated[str, typer.Option(help="of a request", rich_help_panel=_LIMIT, metavar="SIZE")] = "4MiB",
    request_timeout: Annotated[
        str, typer.Option(help="of a whole request; then 504", rich_help_panel=_LIMIT, metavar="TIME")
    ] = "10min",
    drain: Annotated[
        str, typer.Option(help="what live requests get at SIGTERM", rich_help_panel=_LIMIT, metavar="TIME")
    ] = "30s",
) -> int:
    """An OpenAI-compatible server that survives a lost rank. Exit code 0 after SIGTERM."""
    from linkwise import api

    _needs()
    _alone(os.environ)
    from linkwise.runtime.asked import parse_layers, settle
    from linkwise.runtime.serve import units
    from linkwise.runtime.serve.app import Service
    from linkwise.runtime.serve.limits import Limits
    from linkwise.runtime.serve.metrics import Metrics
    from linkwise.runtime.serve.run import bind, check_host
    from linkwise.runtime.serve.run import serve as run
    from linkwise.runtime.serve.spans import Spans
    from linkwise.runtime.text import open_text
    from linkwise.supervise.rules import Rules
    from linkwise.supervise.supervisor import Supervisor

    if on_fault not in {"retry", "restart", "reject"}:
        raise InputError(repr(on_fault)[:80], where="--on-fault", expected="retry, restart or reject")
    if not 0 <= port < 65_536:
        raise InputError(f"port {port}", where="--port", expected="0..65535")
    key = _key(key_file)
    check_host(host, key, no_key=no_key)
    what = units.wanted(api.load(plan) if plan else None, layout=layout, prefill=prefill, replicas=replicas)
    bound = parse_time(timeout, where="--timeout")
    start_s = parse_time(start_timeout, where="--start-timeout")
    rules = Rules(
        on_fault=on_fault,  # type: ignore[arg-type]
        retries=retries,
        wait_s=parse_time(wait, where="--wait"),
        max_waiting=max_waiting,
        silent_s=max(60.0, 3 * bound),
        start_s=start_s + START_MORE_S,
    )
    limits = Limits(
        body_bytes=parse_bytes(max_body, where="--max-body"),
        max_tokens=max_tokens,
        timeout_s=parse_time(request_timeout, where="--request-timeout"),
    )
    text = open_text(weights, streams.say)
    trace_key = os.urandom(16)
    sizes = {"max_len": max_len, "max_seqs": max_seqs, "max_batched_tokens": max_batched_tokens}
    asked = settle(
        weights,
        plan=what.plan,
        layout=what.layout,
        prefill=what.prefill,
        dtype=dtype,
        kv_tokens=kv_tokens,
        timeout_s=bound,
        start_s=start_s,
        layers=parse_layers(layers) if layers else (),
        microbatches=microbatches,
        backend=backend,
        units=what.replicas,
        trace=trace,
        **{name: value for name, value in sizes.items() if value is not None},
    )
    for note in asked.notes:
        if not note.startswith("one of the plan's"):  # `run` runs one, this command all
            streams.say(f"note: {note}")
    made = units.build(what, asked, streams.say, threads=_threads(what, asked), strict_map=strict_map)
    supervisor = Supervisor(made, rules, streams.say)
    called = name or weights.resolve().name
    metrics = Metrics(called, supervisor.max_tokens)
    with bind(host, port) as listener:
        kept = Spans(spans, called, streams.say)
        service = Service(
            supervisor, text, called, metrics, kept, limits, key, int(time.time()), trace_key, asked.model.vocab
        )
        ranks = what.replicas * asked.spec.ranks
        return run(service, listener, streams.say, drain_s=parse_time(drain, where="--drain"), ranks=ranks)


def _alone(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several processes: they would be as many servers."""
    from linkwise.dist.launch import from_environment

    start = from_environment(environ)
    if start is not None and start.world > 1:
        raise InputError(
            f"rank {start.rank} of {start.world}, started by {start.by}",
            where="linkwise serve",
            expected="one process: it starts its ranks itself (`linkwise run` is one rank of several)",
        )


def _needs() -> None:
    # Found, not imported: the ranks are processes of their own, and this one answers sooner without torch.
    missing = [name for name in ("fastapi", "prometheus_client", "torch", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(f"not installed: {', '.join(missing)}", expected="pip install linkwise[run]")


def _threads(what: "Wanted", asked: "Asked") -> int:
    """Cores are shared by all ranks of this machine, not by those of one unit; one is left to this process.

    Threads of a rank wait for each other at the end of every operation: where one of them has no core, all are late.
    0: as OMP_NUM_THREADS says.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return 0
    return max(1, (len(os.sched_getaffinity(0)) - 1) // (what.replicas * asked.spec.ranks))


def _key(file: Path | None) -> str:
    """The API key; never an argument, which every user of the machine can read."""
    if file is None:
        return os.environ.get("LINKWISE_API_KEY", "").strip()
    key = read_text(file, max_bytes=4096).strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InputError("holds no key", where=str(file), expected="one line of printable ASCII")
    return key
