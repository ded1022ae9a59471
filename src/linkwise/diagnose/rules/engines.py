"""Engines that have requests and get nothing done, by what their own metrics or log lines say over time.

Nobody's rank follows from it: the loop waits for some call, which only stacks or dumps tell.
"""

from collections.abc import Iterator
from typing import NamedTuple

from linkwise.core.units import show_figure
from linkwise.diagnose.case import Case
from linkwise.diagnose.places import lines
from linkwise.diagnose.series import FEWEST, Engine, Series, engines
from linkwise.diagnose.types import Fault, Finding
from linkwise.trace.facts import Fact

# How long no token may be counted, of prompts or of answers. Engines count a prompt when it is through (vLLM
# v1/metrics/stats.py), so that one of 600,000 tokens at 10,000/s counts nothing for a minute. Of several requests that
# run, some decode meanwhile, or the first prompt of several ends sooner.
WAITING_S = 20.0  # requests wait and none runs
SEVERAL_S = 30.0  # several run
ALONE_S = 90.0  # one runs
GENERATED = "serve.gen_tokens"
DONE = (GENERATED, "serve.prompt_tokens", "serve.requests_total")
SPEED = "serve.gen_tok_s"
SPEEDS = (SPEED, "serve.prompt_tok_s")
_MOMENT = frozenset({"snapshot", "time", "pool"})


class _Standstill(NamedTuple):
    """The last stretch in which an engine had requests and nothing was counted. busy: of it, the figures of requests;
    still: of it, the figures that stand."""

    busy: dict[str, list[Fact]]
    still: list[list[Fact]]

    @property
    def waiting(self) -> list[Fact]:
        return self.busy.get("serve.waiting", [])

    @property
    def running(self) -> list[Fact]:
        return self.busy.get("serve.running", [])

    @property
    def seconds(self) -> float:
        """0 = its times are not known."""
        times = [fact.unix_ns for facts in self.busy.values() for fact in facts if fact.unix_ns]
        return (max(times) - min(times)) / 1e9 if times else 0.0


def find(case: Case) -> Iterator[Finding]:
    """Engines whose requests wait or run while nothing comes out; where pools hand off, handoff.py tells more."""
    if case.found("handoff"):
        return
    counters = [fact for fact in case.facts("counter", *DONE) if fact.name in DONE]
    for engine in engines(case):
        found = _standstill(engine, counters)
        if found is None:
            continue
        running = max((fact.value for fact in found.running), default=0.0)
        least = WAITING_S if not running else ALONE_S if running == 1 else SEVERAL_S
        if found.seconds >= least or (not found.seconds and not running):
            yield _finding(engine, found)


def _standstill(engine: Engine, counters: list[Fact]) -> _Standstill | None:
    """None where it gets on, has nothing to do, or where too little is known."""
    names = ("serve.waiting", "serve.running")
    busy: dict[str, Series] = {name: engine.gauges[name] for name in names if name in engine.gauges}
    if not busy or not all(map(_ordered, busy.values())):
        return None
    still = _counted(next(iter(busy.values())), engine, counters)
    still += [engine.gauges[name] for name in SPEEDS if name in engine.gauges]
    since = max([_idle_until(list(busy.values())), *map(_moved_at, still)])
    parts = {name: _after(series, since) for name, series in busy.items()}
    if min(map(len, parts.values())) < FEWEST:
        return None
    first = min(_order(fact) for facts in parts.values() for fact in facts)
    rest = [[fact for fact in series.facts if _order(fact) >= first] for series in still]
    told = [facts for facts in rest if len(facts) >= FEWEST]
    speed_alone = not any(facts[0].name == GENERATED for facts in told)
    if not any(facts[0].name in {GENERATED, SPEED} for facts in told):
        return None
    waits = parts.get("serve.waiting", [])
    if waits and waits[-1].value < 0.9 * waits[0].value and speed_alone:
        return None  # somebody takes them
    return _Standstill(parts, told)


def _counted(gauge: Series, engine: Engine, counters: list[Fact]) -> list[Series]:
    """An engine's counters of tokens and requests, each in order of time."""
    own = {pair for pair in gauge.facts[-1].labels if pair[0] not in _MOMENT}
    looks: dict[tuple[object, ...], list[Fact]] = {}
    for fact in counters:
        if (fact.host, fact.rank) == (engine.host, engine.rank) and own <= set(fact.labels):
            about = tuple(pair for pair in fact.labels if pair[0] not in _MOMENT)
            looks.setdefault((fact.name, about), []).append(fact)
    return [Series(tuple(sorted(facts, key=_order))) for facts in looks.values()]


def _moved_at(series: Series) -> tuple[int, int]:
    """When a figure moved last: of a counter, its last look before it had its last value; of a speed, above 0."""
    last = series.facts[-1]
    moving = [f for f in series.facts if (f.value > 0 if f.kind == "gauge" else f.value != last.value)]
    return _order(moving[-1]) if moving else (-1, -1)


def _idle_until(busy: list[Series]) -> tuple[int, int]:
    """The last moment at which no request was there."""
    here: dict[tuple[int, int], float] = {}
    for series in busy:
        for fact in series.facts:
            here[_order(fact)] = here.get(_order(fact), 0.0) + fact.value
    return max((at for at, requests in here.items() if requests < 1), default=(-1, -1))


def _after(series: Series, at: tuple[int, int]) -> list[Fact]:
    return [fact for fact in series.facts if _order(fact) > at]


def _order(fact: Fact) -> tuple[int, int]:
    snapshot = fact.label("snapshot")
    return fact.unix_ns, int(snapshot) if snapshot.isascii() and snapshot.isdigit() and len(snapshot) < 19 else 0


def _ordered(series: Series) -> bool:
    """Whether its points have an order: two files of one moment may be of two engines."""
    return len(set(map(_order, series.facts))) == len(series.facts)


def _finding(engine: Engine, found: _Standstill) -> Finding:
    waits, runs = found.waiting, found.running
    some = (waits or runs)[-1]
    name = some.label("engine")
    who = " ".join(
        word for word in (engine.pool, f"engine {name}".strip(), engine.host and f"of {engine.host}") if word
    )
    waiting = f"{show_figure(waits[-1].value)} requests wait and " if waits and waits[-1].value else ""
    running = f"{show_figure(runs[-1].value)} count as running" if runs and runs[-1].value else "none runs"
    counted = ", ".join(
        f"{_WORDS[facts[0].name]} {show_figure(facts[-1].value, 6)} all the while" for facts in found.still
    )
    return Finding(
        class_="hang",
        summary=f"{who}: no token comes out{f' over {found.seconds:.0f} s' if found.seconds else ''} while"
        f" {waiting}{running}: its loop stands, or takes nothing in; what it waits for is not said",
        original_fault=Fault(host=engine.host),
        first_reporter="the engine's metrics",
        confidence=0.5,
        decided=False,
        waited_s=found.seconds,
        evidence=(
            "; ".join(
                f"{facts[0].name} {show_figure(facts[0].value, 6)} to {show_figure(facts[-1].value, 6)}"
                for facts in found.busy.values()
            )
            + f"; {counted}",
            *lines([some, *((waits or runs)[:1]), *(facts[-1] for facts in found.still)]),
        ),
        would_decide="stacks of all its processes (py-spy dump), flight recorder dumps, or its log: whether it"
        " stands in a call, was told to pause, has no blocks for the request in front, or works on a longer prompt",
        next="py-spy dump of the engine and of every worker",
        recovery="restart group",
    )


_WORDS = {
    GENERATED: "tokens generated", "serve.prompt_tokens": "prompt tokens", "serve.requests_total": "requests done",
    SPEED: "generation throughput", "serve.prompt_tok_s": "prompt throughput",
}  # fmt: skip
