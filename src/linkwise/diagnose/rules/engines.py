"""Engines that have requests and get nothing done, by what their own metrics say over time.

Nobody's rank follows from it: the loop waits for some call, which only stacks or dumps tell.
"""

from collections.abc import Iterator

from linkwise.diagnose.case import Case
from linkwise.diagnose.places import lines
from linkwise.diagnose.series import FEWEST, Engine, Series, engines
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.facts import Fact

LONG_S = 20.0  # without a token while requests wait and none runs
PROMPT_S = 60.0  # while some run: a long prompt makes no token until its end
DONE = ("serve.gen_tokens", "serve.requests_total")


def find(case: Case) -> Iterator[Finding]:
    """Engines whose requests wait while nothing comes out; where pools hand off, handoff.py tells more."""
    if case.found("handoff"):
        return
    counters = [fact for fact in case.facts("counter", *DONE) if fact.name in DONE]
    for engine in engines(case):
        waiting, running = (engine.gauges.get(name) for name in ("serve.waiting", "serve.running"))
        if waiting is None or running is None or not _ordered(waiting) or not _ordered(running):
            continue
        tail, runs = waiting.tail, running.tail
        idle = max(runs) == 0
        if len(tail) < FEWEST or len(runs) < FEWEST or min(tail) < 1 or tail[-1] < 0.9 * tail[0]:
            continue
        if not idle and (min(runs) < 1 or waiting.seconds == 0):
            continue
        if 0 < waiting.seconds < (LONG_S if idle else PROMPT_S) or not _stands(engine, counters, waiting, idle=idle):
            continue
        yield _finding(engine, counters, waiting, running)


def _ordered(series: Series) -> bool:
    """Whether its points have an order: two files of one moment may be of two engines."""
    return len({(fact.unix_ns, fact.label("snapshot")) for fact in series.facts}) == len(series.facts)


def _stands(engine: Engine, counters: list[Fact], waiting: Series, *, idle: bool) -> bool:
    """Whether nothing came out while the requests waited, as far as is known, and something is."""
    done: dict[tuple[object, ...], list[float]] = {}
    since_ns = waiting.facts[-len(waiting.tail)].unix_ns
    for fact in counters:
        if _its(engine, waiting, fact) and fact.unix_ns >= since_ns:
            about = tuple(pair for pair in fact.labels if pair[0] not in {"snapshot", "time"})
            done.setdefault((fact.name, about), []).append(fact.value)
    if any(min(values) != max(values) for values in done.values()):
        return False
    counted = any(name == DONE[0] and len(values) >= FEWEST for (name, _), values in done.items())
    speed = engine.gauges.get("serve.gen_tok_s")
    return counted or (idle and speed is not None and len(speed.tail) >= FEWEST and max(speed.tail) == 0)


def _its(engine: Engine, waiting: Series, fact: Fact) -> bool:
    own = {pair for pair in waiting.facts[-1].labels if pair[0] not in {"snapshot", "time", "pool"}}
    return (fact.host, fact.rank) == (engine.host, engine.rank) and own <= set(fact.labels)


def _finding(engine: Engine, counters: list[Fact], waiting: Series, running: Series) -> Finding:
    tokens = [fact for fact in counters if fact.name == DONE[0] and _its(engine, waiting, fact)]
    last = max(tokens, key=lambda fact: fact.unix_ns, default=None)
    seconds = f" over {waiting.seconds:.0f} s" if waiting.seconds else ""
    name = waiting.facts[-1].label("engine")
    who = " ".join(
        word for word in (engine.pool, f"engine {name}".strip(), engine.host and f"of {engine.host}") if word
    )
    return Finding(
        class_="hang",
        summary=f"{who}: no token comes out{seconds} while {waiting.tail[-1]:g} requests wait"
        + (" and none runs" if running.tail[-1] == 0 else f" and {running.tail[-1]:g} count as running")
        + ": its loop stands, or takes nothing in; what it waits for is not said",
        original_fault=Fault(host=engine.host),
        first_reporter="the engine's metrics",
        confidence=0.5,
        decided=False,
        waited_s=waiting.seconds,
        evidence=(
            f"waiting {waiting.tail[0]:g} to {waiting.tail[-1]:g}, running {running.tail[0]:g} to {running.tail[-1]:g}"
            + (f", tokens generated {last.value:g} all the while" if last else ""),
            *lines(
                [waiting.facts[-len(waiting.tail)], waiting.facts[-1], running.facts[-1], *([last] if last else [])]
            ),
        ),
        would_decide="stacks of all its processes (py-spy dump), flight recorder dumps, or its log: whether it"
        " stands in a call, was told to pause, or has no blocks for the request in front",
        next="py-spy dump of the engine and of every worker",
        recovery="restart group",
    )
