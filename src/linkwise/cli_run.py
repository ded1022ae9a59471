"""The command `linkwise run`: one prompt through the ranks of a plan or a layout. cli.py registers it.

Started by torchrun or srun, this process is one rank, and on rank 0 the driver as well; else it starts the ranks here.
"""

import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from linkwise import cli_base, streams
from linkwise.cli_words import Json
from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.layout import parse_layout
from linkwise.core.units import parse_time

if TYPE_CHECKING:
    from linkwise import api
    from linkwise.dist.launch import Start
    from linkwise.runtime.asked import Asked
    from linkwise.runtime.check import Comparison, Memory
    from linkwise.runtime.driver import LocalUnit
    from linkwise.runtime.text import Text

_OUTPUT = "Output"
MAX_TEMPERATURE = 1e6
MAX_TOKENS = 128  # of an answer, unless the user says


class Answer(NamedTuple):
    """What came back. ttft_s: to the first token. total_s: to the last."""

    text: str
    tokens: tuple[int, ...]
    reason: str
    ttft_s: float
    total_s: float


def run(
    plan: Annotated[str, typer.Argument(help="plan file, as plan -o writes it; left out: --layout, or one rank")] = "",
    weights: Annotated[str, typer.Option(help="folder with config.json, safetensors and tokenizer")] = "",
    prompt: Annotated[str, typer.Option(help="what the model goes on with")] = "",
    layout: Annotated[str, typer.Option(help="instead of a plan, such as tp=2,pp=2", metavar="DEGREES")] = "",
    prefill: Annotated[
        str, typer.Option(help="layout of a group of its own that computes prompts", metavar="DEGREES")
    ] = "",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 31, help="longest answer; left out: 128, or what there is room for")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: always the most likely token")] = 0.0,
    top_p: Annotated[float, typer.Option(help="above 0, up to 1: draw from the smallest set of this mass")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="the same seed draws the same tokens")] = 0,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 40, help="tokens of KV cache; left out: the plan's")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16; left out: the weights' own")] = "",
    timeout: Annotated[str, typer.Option(help="a rank that does not come back is named within this")] = "30s",
    start_timeout: Annotated[str, typer.Option(help="ranks that are not ready by then are named")] = "5min",
    backend: Annotated[str, typer.Option(help="nccl or gloo; left out: nccl where there are GPUs")] = "",
    layers: Annotated[
        str, typer.Option(help="of each pipeline stage, such as 6,2; left out: as even as can be", metavar="COUNTS")
    ] = "",
    microbatches: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="steps under way at once; left out: the plan's, or one a stage"),
    ] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--raw", help="the prompt as a user's message; left out: where there is a "
                                  "chat template")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="compare every call with the plan's ops; exit code 1: they differ")
    ] = False,
    trace: Annotated[str, typer.Option(help="folder for the ranks' traces", metavar="DIR")] = "",
    strict_map: Annotated[
        bool, typer.Option("--strict-map", help="ranks that are not where the plan puts them do not run")
    ] = False,
    *,
    json: Json = False,
) -> int:  # fmt: skip
    """Run a prompt through the ranks of a plan, on this machine or where torchrun or srun started them."""
    from linkwise.dist.launch import from_environment
    from linkwise.runtime.asked import parse_layers, settle

    _given(plan, weights, prompt, layout)
    _drawable(temperature, top_p)
    if strict_map and not plan:
        raise InputError("no plan says where ranks belong", where="--strict-map", expected="a plan")
    start = from_environment(os.environ)
    with _named(start):
        asked = settle(
            weights,
            plan=_plan(plan) if plan else None,
            layout=parse_layout(layout) if layout else None,
            prefill=parse_layout(prefill, "--prefill") if prefill else None,
            dtype=dtype,
            kv_tokens=kv_tokens,
            timeout_s=parse_time(timeout, where="--timeout"),
            start_s=parse_time(start_timeout, where="--start-timeout"),
            layers=parse_layers(layers) if layers else (),
            microbatches=microbatches,
            backend=backend,
            here=_here(os.environ) if start is not None else 0,
            observe=check,
            trace=trace,
        )
        if start is not None and start.world != asked.spec.ranks:
            if start.rank:  # all ranks find the same: one says it
                return InputError.exit_code
            raise InputError(
                f"{start.world} ranks, started by {start.by}", where="layout", expected=f"{asked.spec.ranks} ranks"
            )
    if start is None:
        from linkwise.runtime.driver import LocalUnit

        unit = LocalUnit("run", asked.spec, say=streams.say)
    else:
        from linkwise.runtime import hosted

        if start.rank:
            return hosted.follow(start, asked.spec.timeout_s, streams.say)
        unit = hosted.lead(start, asked.spec, streams.say)
    sampling = (temperature, top_p, seed)
    return _driven(
        unit, asked, prompt, chat, max_tokens, sampling, check=check, json=json, start=start, strict_map=strict_map
    )


@contextlib.contextmanager
def _named(start: "Start | None") -> Iterator[None]:
    """Bad input is told with the rank that found it, where a launcher started several."""
    try:
        yield
    except InputError as error:
        if start is None:
            raise
        where = f"rank {start.rank}" + (f": {error.where}" if error.where else "")
        raise InputError(error.message, where=where, expected=error.expected, hint=error.hint) from None


def _given(plan: str, weights: str, prompt: str, layout: str) -> None:
    if not weights:
        raise InputError("no weights", where="--weights", expected="a folder with config.json and safetensors")
    if not prompt:
        raise InputError("no prompt", where="--prompt", expected="some text")
    if plan and layout:
        raise InputError("a plan and a layout", where="--layout", expected="one of the two")


def _drawable(temperature: float, top_p: float) -> None:
    # Not the library's ranges: they have no open end, and let NaN through.
    if not 0.0 <= temperature < MAX_TEMPERATURE:
        raise InputError(f"{temperature:g}", where="--temperature", expected=f"from 0, below {MAX_TEMPERATURE:g}")
    if not 0.0 < top_p <= 1.0:
        raise InputError(f"{top_p:g}", where="--top-p", expected="above 0, up to 1")


def _here(environ: Mapping[str, str]) -> int:
    """Ranks that the launcher started on this machine, as far as it says: at least this one."""
    said = environ.get("LOCAL_WORLD_SIZE") or environ.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0]
    return max(1, int(said)) if said.isascii() and said.isdigit() and len(said) < 6 else 1


def _plan(path: str) -> "api.Plan":
    from linkwise import api

    found = api.load(path)
    if not isinstance(found, api.Plan):
        raise InputError(
            f"holds a {type(found).__name__}", where=path, expected="a plan, as `linkwise plan -o` writes it"
        )
    return found


def _driven(
    unit: "LocalUnit",
    asked: "Asked",
    prompt: str,
    chat: bool | None,
    max_tokens: int | None,
    sampling: tuple[float, float, int],
    *,
    check: bool,
    json: bool,
    start: "Start | None",
    strict_map: bool,
) -> int:
    from linkwise.runtime.checked import compared
    from linkwise.runtime.text import open_text
    from linkwise.supervise.types import Fault, Job, Sampling, State

    states: queue.Queue[tuple[State, Fault | None]] = queue.Queue()
    before = signal.signal(signal.SIGTERM, _terminated)
    began = time.monotonic()
    try:
        unit.start(lambda state, fault: states.put((state, fault)))  # loads while the tokenizer does
        text = open_text(asked.spec.weights, streams.say)
        for note in asked.notes:
            streams.say(f"note: {note}")
        ids = _ids(text, prompt, chat)
        most = _longest(unit, asked, len(ids), max_tokens)
        stops = text.stop_ids | frozenset(unit.arch.eos)
        job = Job("run", tuple(ids), most, Sampling(*sampling), stops, trace="0" * 16)
        _await_ready(unit, states)
        _compare_places(unit, asked, strict=strict_map)
        ready_s = time.monotonic() - began
        answer = _answered(unit, job, text, stream=not json)
        found = compared(unit, asked) if check else None
        steps = sum(one.step is not None for one in unit.observed)
        facts = unit.facts
    except LinkwiseError:
        if start is not None:  # this process is a rank as well, which may hang in a call
            _die(sys.exc_info()[1])
        raise
    finally:
        unit.stop()
        signal.signal(signal.SIGTERM, before)
        if unit.load.unwritten_events:
            streams.say(f"{unit.load.unwritten_events:,} events are missing in the traces: they could not be written")
    if json:
        cli_base.print_json(_data(answer, asked, len(ids), ready_s, facts, found))
    else:
        pace = f"{answer.total_s:.2f} s" if answer.total_s else "no time"
        streams.say(
            f"{len(ids)} prompt tokens, {len(answer.tokens)} drawn in {pace} ({answer.reason});"
            f" ranks ready after {ready_s:.1f} s"
        )
        if found is not None:
            from linkwise.report.runtime_check import comparison

            planned = asked.plan.ledger.kv_tokens if asked.plan is not None else None
            cli_base.print_blocks(comparison(*found, steps=steps, kv_tokens=(asked.spec.kv_tokens, planned)))
    return cli_base.NO if found is not None and not _equal(*found) else cli_base.YES


def _terminated(*_: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _die(error: BaseException | None) -> None:
    streams.say(f"error: {error}")
    os._exit(error.exit_code if isinstance(error, LinkwiseError) else cli_base.INTERNAL)


def _ids(text: "Text", prompt: str, chat: bool | None) -> list[int]:
    if chat or (chat is None and text.has_template):
        return text.chat([{"role": "user", "content": prompt}])
    return text.encode(prompt)


def _longest(unit: "LocalUnit", asked: "Asked", prompt: int, wanted: int | None) -> int:
    """New tokens that the answer may have. InputError for more than there is room for behind the prompt."""
    room = unit.max_tokens - prompt
    if wanted is not None and wanted > room > 0:
        raise InputError(
            f"{prompt:,} prompt tokens and {wanted:,} new ones",
            where="--max-tokens",
            expected=f"at most {room:,}: the model and KV for {asked.spec.kv_tokens:,} tokens take {unit.max_tokens:,}",
        )
    return min(wanted or MAX_TOKENS, max(1, room))  # a prompt without any room is refused by the unit


def _compare_places(unit: "LocalUnit", asked: "Asked", *, strict: bool) -> None:
    """Say where the ranks are, and what of it is not as planned. strict: InputError for the latter."""
    from linkwise.runtime.places import found, planned
    from linkwise.supervise.rank_map import differences, shown

    where = found(unit.facts)
    for line in shown(where):
        streams.say(line)
    plan = asked.plan
    if plan is None or asked.spec.prefill is not None:
        if strict:
            raise InputError(
                "no plan says where these ranks belong", where="--strict-map", expected="a plan of them all"
            )
        return
    said = differences(planned(plan, 0), where, plan.cluster.accelerator.name)
    if said and strict:
        raise InputError("; ".join(said)[:1000], where="--strict-map", expected="ranks where the plan has them")
    for line in said:
        streams.say(f"note: {line}")


def _await_ready(unit: "LocalUnit", states: Any) -> None:
    from linkwise.dist.watch import Lost

    while True:
        state, fault = states.get()
        if state == "ready":
            return
        if fault is not None:
            raise unit.error or Lost(fault.message, fault.ranks)


def _answered(unit: "LocalUnit", job: Any, text: "Text", *, stream: bool) -> Answer:
    """The answer; written while it comes when that is wanted."""
    from linkwise.dist.watch import Lost
    from linkwise.supervise.types import Event, Finished, Token

    events: queue.Queue[Event] = queue.Queue()
    began, first = time.monotonic(), 0.0
    unit.submit(job, events.put)
    decoded, parts, tokens = text.stream(), [], []
    while True:
        event = events.get()
        if isinstance(event, Token):
            first = first or time.monotonic() - began
            tokens.append(event.token)
            parts.append(decoded.push(event.token))
        else:
            parts.append(decoded.finish())
        if stream and parts[-1]:
            _show(parts[-1])
        if isinstance(event, Finished):
            if stream:
                _show("\n")
            return Answer("".join(parts), tuple(tokens), event.reason, first, time.monotonic() - began)
        if not isinstance(event, Token):
            if stream and tokens:
                _show("\n")
            raise unit.error or Lost(event.fault.message, event.fault.ranks)


def _show(part: str) -> None:
    streams.write_now(part, end="", keep="\n\t")


def _equal(calls: "Comparison", memory: "Sequence[Memory]") -> bool:
    return calls.equal and all(one.equal for one in memory)


def _data(
    answer: Answer, asked: "Asked", prompt_tokens: int, ready_s: float, facts: Sequence[Any], found: Any
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "schema": "linkwise.run/1",
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.reason,
        "prompt_tokens": prompt_tokens,
        "ready_s": ready_s,
        "ttft_s": answer.ttft_s,
        "total_s": answer.total_s,
        "layout": asked.spec.layout,
        "prefill": asked.spec.prefill,
        "kv_tokens": asked.spec.kv_tokens,
        "ranks": list(facts),
        "notes": asked.notes,
    }
    if found is not None:
        calls, memory = found
        data["check"] = {
            "equal": _equal(calls, memory),
            "difference": calls.difference,
            "calls": [line._asdict() | {"equal": line.equal} for line in calls.lines],
            "memory": [one._asdict() | {"equal": one.equal} for one in memory],
        }
    return data
