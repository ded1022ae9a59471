"""The command `linkwise run`: one prompt through the ranks of a plan or a layout. cli.py registers it.

Started by torchrun or srun, this process is one rank, and on rank 0 the driver as well; else it starts the ranks here.
"""

import os
import queue
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from linkwise import cli_base, streams
from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.layout import parse_layout
from linkwise.core.printable import printable
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
    max_tokens: Annotated[int, typer.Option(min=1, max=1 << 31, help="longest answer")] = 128,
    temperature: Annotated[float, typer.Option(help="0: always the most likely token")] = 0.0,
    top_p: Annotated[float, typer.Option(help="above 0, up to 1: draw from the smallest set of this mass")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="the same seed draws the same tokens")] = 0,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 40, help="tokens of KV cache; left out: the plan's")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16; left out: the weights' own")] = "",
    timeout: Annotated[str, typer.Option(help="a rank that does not come back is named within this")] = "30s",
    backend: Annotated[str, typer.Option(help="nccl or gloo; left out: nccl where there are GPUs")] = "",
    chat: Annotated[
        bool | None, typer.Option("--chat/--raw", help="the prompt as a user's message; left out: where there is a "
                                  "chat template")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="compare every call with the plan's ops; exit code 1: they differ")
    ] = False,
    trace: Annotated[str, typer.Option(help="folder for the ranks' traces", metavar="DIR")] = "",
    *,
    json: Annotated[
        bool, typer.Option("--json", help="print the value as JSON, and nothing else", rich_help_panel=_OUTPUT)
    ] = False,
) -> int:  # fmt: skip
    """Run a prompt through the ranks of a plan, on this machine or where torchrun or srun started them."""
    from linkwise.dist.launch import from_environment
    from linkwise.runtime.asked import settle

    _given(plan, weights, prompt, layout)
    _drawable(temperature, top_p)
    start = from_environment(os.environ)
    asked = settle(
        weights,
        plan=_plan(plan) if plan else None,
        layout=parse_layout(layout) if layout else None,
        prefill=parse_layout(prefill, "--prefill") if prefill else None,
        dtype=dtype,
        kv_tokens=kv_tokens,
        timeout_s=parse_time(timeout, where="--timeout"),
        backend=backend,
        here=_here(os.environ) if start is not None else 0,
        observe=check,
        trace=trace,
    )
    if start is not None and start.world != asked.spec.ranks:
        raise InputError(
            f"{start.world} ranks, started by {start.by}", where="layout", expected=f"{asked.spec.ranks} ranks"
        )
    if start is None:
        from linkwise.runtime.driver import LocalUnit

        unit = LocalUnit("run", asked.spec)
    else:
        from linkwise.runtime import hosted

        if start.rank:
            return hosted.follow(start, asked.spec.timeout_s)
        unit = hosted.lead(start, asked.spec)
    sampling = (temperature, top_p, seed)
    return _driven(unit, asked, prompt, chat, max_tokens, sampling, check=check, json=json, start=start)


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
    max_tokens: int,
    sampling: tuple[float, float, int],
    *,
    check: bool,
    json: bool,
    start: "Start | None",
) -> int:
    from linkwise.runtime.text import open_text
    from linkwise.supervise.types import Fault, Job, Sampling, State

    states: queue.Queue[tuple[State, Fault | None]] = queue.Queue()
    before = signal.signal(signal.SIGTERM, _terminated)
    began = time.monotonic()
    try:
        unit.start(lambda state, fault: states.put((state, fault)))  # loads while the tokenizer does
        text = open_text(asked.spec.weights)
        for note in asked.notes:
            streams.say(f"note: {note}")
        ids = _ids(text, prompt, chat)
        stops = text.stop_ids | frozenset(unit.arch.eos)
        job = Job("run", tuple(ids), max_tokens, Sampling(*sampling), stops, trace="0" * 16)
        _await_ready(unit, states)
        ready_s = time.monotonic() - began
        answer = _answered(unit, job, text, stream=not json)
        found = _compared(unit, asked) if check else None
        steps = sum(one.step is not None for one in unit.observed)
        facts = unit.facts
    except LinkwiseError:
        if start is not None:  # this process is a rank as well, which may hang in a call
            _die(sys.exc_info()[1])
        raise
    finally:
        unit.stop()
        signal.signal(signal.SIGTERM, before)
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

            cli_base.print_blocks(comparison(*found, steps=steps))
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
    sys.stdout.write(printable(part, keep="\n\t"))
    sys.stdout.flush()


def _compared(unit: "LocalUnit", asked: "Asked") -> "tuple[Comparison, Sequence[Memory]]":
    """Every step's calls, and the memory of every rank, against the plan's."""
    from linkwise.runtime.asked import kv_blocks
    from linkwise.runtime.check import combined, compare, expected, expected_handoff, memory_check

    spec, model, engine = asked.spec, asked.model, asked.engine
    groups = [(0, spec.layout)] if spec.prefill is None else [(0, spec.prefill), (spec.prefill.size, spec.layout)]
    layouts = dict(groups)
    parts = []
    for one in unit.observed:
        if one.step is not None:
            layout = layouts[one.first]
            planned = {
                one.first + rank: expected(model, layout, engine, one.step, rank, layers=spec.layers, first=one.first)
                for rank in range(layout.size)
            }
        else:
            assert one.move is not None and spec.prefill is not None  # noqa: S101 - it is one of the two
            planned = {
                rank: expected_handoff(
                    model, spec.prefill, spec.layout, engine, one.move.tokens, spec.block_tokens, rank
                )
                for rank in range(spec.ranks)
            }
        parts.append(compare(one.seen, planned))
    memory: list[Memory] = []
    for first, layout in groups:
        facts = unit.facts[first : first + layout.size]
        found = memory_check(
            model, layout, engine, weight_bytes=[fact.weight_bytes for fact in facts],
            kv_bytes=[fact.kv_bytes for fact in facts], kv_blocks=kv_blocks(spec, layout),
            block_tokens=spec.block_tokens, layers=spec.layers,
        )  # fmt: skip
        memory += [one._replace(rank=first + one.rank) for one in found]
    return combined(parts), memory


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
