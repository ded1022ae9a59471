"""The requests a user asks for: a trace, or a plan's lengths with drawn arrivals, or a closed loop."""

import logging
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linkwise.core.errors import InputError
from linkwise.core.units import show_time
from linkwise.plan.types import Plan
from linkwise.simulate.of_plan import longest_of, rules_for
from linkwise.simulate.served import Served, served
from linkwise.workload import lengths, traces
from linkwise.workload.arrivals import KINDS as ARRIVALS
from linkwise.workload.arrivals import PERIODS, Arrivals, times
from linkwise.workload.lengths import KINDS, Lengths
from linkwise.workload.requests import MAX_REQUESTS, Floats, Ints, Requests, requests

DEFAULT_REQUESTS, MOST_DRAWN = 2000, 2_000_000  # where their number is not given
MANY = 1_000_000  # from here on their number is said before they are run
PER_USER = 10  # requests a user of a closed loop sends, where their number is not given
LONG = ("refuse", "drop")
# Lengths of which only the means are known: requests of equal lengths would march in step.
SCATTERED, SCATTER = "scattered", 0.2
SPREADS = (SCATTERED, *KINDS)


class Asked(NamedTuple):
    """A load in words; None = not said.

    trace: a file; without one, lengths are the plan's (or isl, osl), arrivals at rate_per_s or a closed loop of
    `users`, and where neither is given what the plan was made for. arrivals: a kind of workload/arrivals.py, poisson
    where it is not said; spread: one of SPREADS, scattered where it is not said. period_s, swing: of diurnal arrivals
    (a day and four fifths where they are not said), period_s of stays in two states too. long: "refuse" or "drop" what
    a trace has beyond the model's context.
    """

    trace: str | Path | None = None
    number: int | None = None
    rate_per_s: float | None = None
    users: int | None = None
    arrivals: str | None = None
    spread: str | None = None
    long: str | None = None
    period_s: float | None = None
    swing: float | None = None
    isl: int | None = None
    osl: int | None = None


class Load(NamedTuple):
    """Requests, the users of a closed loop (0 = they arrive as they say), and what they are in words.

    rate_per_s: what arrivals were drawn at; None for a trace and a closed loop.
    """

    requests: Requests
    users: int
    notes: tuple[str, ...]
    rate_per_s: float | None = None


def together(where: str, *pairs: tuple[str, object, str]) -> None:
    """Refuse an option that is given where another makes it mean nothing: (option, its value, what rules it out)."""
    for option, value, why in pairs:
        if value not in (None, "", ()):
            raise InputError(f"{option} {why}", where=where, expected=f"one of them, or no {option}")


def load_of(plan: Plan, asked: Asked, seed: int = 0, prefill: Plan | None = None) -> Load:
    """The requests for a plan. prefill: the plan of the pool that computes prompts, where `plan` only decodes.

    Raises InputError for words that do not go together, and for requests too long.
    """
    for name, value, known in (
        ("--long", asked.long, LONG), ("--arrivals", asked.arrivals, ARRIVALS), ("--lengths", asked.spread, SPREADS),
    ):  # fmt: skip
        if value is not None and value not in known:
            raise InputError(f"{value[:40]!r}", where=name, expected="one of " + ", ".join(known))
    found = _asked(plan, asked, seed, prefill)
    where = "simulate" if asked.trace is None else str(asked.trace)
    held, notes = _within(found.requests, longest_of(plan), asked, where)
    share, words = _cached(held, (prefill or plan).workload.prefix_hit)
    return found._replace(requests=held._replace(cached_share=share), notes=found.notes + notes + words)


def _cached(load: Requests, share: float) -> tuple[float, tuple[str, ...]]:
    """Share of each prompt that is found cached: the plan's, unless names say what prompts have in common."""
    if not share:
        return 0.0, ()
    if load.hash_tokens:
        said = f"the trace's hash_ids say what is found cached, not the plan's {share:.0%} of prompts"
        return 0.0, (said,)
    return share, (f"{share:.0%} of each prompt is found cached, as the plan says: held in KV, not computed",)


def _asked(plan: Plan, asked: Asked, seed: int, prefill: Plan | None) -> Load:
    rate, users, work = asked.rate_per_s, asked.users, plan.workload
    if rate is not None and users is not None:
        raise InputError("a rate and a closed loop", where="simulate", expected="one of --rate and --concurrency")
    if asked.trace is not None:
        if rate is not None:
            raise InputError(
                "a trace and a rate", where="simulate", expected="one of them: a trace has its own arrivals"
            )
        why = "beside --workload: a trace has its own"
        together(
            "simulate", ("--isl", asked.isl, why), ("--osl", asked.osl, why), ("--lengths", asked.spread, why),
            ("--arrivals", asked.arrivals, why), ("--period", asked.period_s, why), ("--swing", asked.swing, why),
        )  # fmt: skip
        longest = longest_of(plan) if asked.long != "drop" else None
        notes = (f"{users:,} users in a closed loop: the trace's arrivals are not followed",) if users else ()
        return Load(traces.load(asked.trace, most=asked.number or MAX_REQUESTS, longest=longest), users or 0, notes)
    together("simulate", ("--long", asked.long, "without --workload: lengths that are drawn fit the context"))
    if rate is None and users is None:
        rate, users = work.rate_per_s, work.concurrency if work.rate_per_s is None else None
    if rate is None and users is None:
        raise InputError(
            "no load", where="simulate", expected="--rate, --concurrency or a trace: the plan was made for none"
        )
    kind = _arrivals(asked, users)
    count = PER_USER * users if users and not asked.number else enough(asked, rate or 1.0, DEFAULT_REQUESTS, MOST_DRAWN)
    if count > MAX_REQUESTS:
        raise InputError(f"{count:,} requests", where="simulate", expected=f"at most {MAX_REQUESTS:,}")
    if asked.number is None and count > MANY:
        each = f", {PER_USER} for each user" if users else ""
        logging.getLogger("linkwise").warning(
            "linkwise: %s requests are simulated%s: --requests N for fewer", f"{count:,}", each
        )
    inputs, outputs, words = _lengths(plan, asked, count, seed, prefill)
    said = {"period_s": _period(asked), "swing": asked.swing}
    stream = Arrivals(rate_per_s=rate or 1.0, kind=kind, **{k: v for k, v in said.items() if v is not None})
    at = np.zeros(count) if users else times(stream, count, seed)
    words = f"{words}, {f'{users} users in a closed loop' if users else _offered(stream, at)}"
    return Load(requests(at, inputs, outputs), users or 0, (f"{count:,} requests, {words}",), None if users else rate)


def enough(asked: Asked, rate_per_s: float, usual: int, most: int) -> int:
    """How many requests: as many as are asked for, or `usual`, or all of a period where arrivals come and go in one.

    Raises InputError where that takes more than `most`: a part of a day is no day.
    """
    kind, period = asked.arrivals or "", _period(asked)
    if asked.number is not None:
        return asked.number
    if period is None:
        return usual
    whole = rate_per_s * period * STAYS.get(kind, 1)
    if whole > most:
        short = span(0.99 * period * most / whole).replace(" ", "")
        raise InputError(
            f"a period of {span(period)} at {rate_per_s:g}/s takes {whole:,.0f} requests, at most {most:,} are drawn",
            where=f"--arrivals {kind}",
            expected=f"--period {short} or less, or --requests N for a part of one",
        )  # fmt: skip
    return max(usual, ceil(whole))


def _period(asked: Asked) -> float | None:
    """Of arrivals that have one."""
    return asked.period_s or PERIODS.get(asked.arrivals or "")


def span(seconds: float) -> str:
    """24 h, 30 min, 45 s."""
    for unit, scale in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return show_time(seconds)


def _arrivals(asked: Asked, users: int | None) -> str:
    """The kind of arrivals, once what is said of them means something."""
    if users:
        why = f"beside {'--concurrency' if asked.users else f'the {users} users that the plan was made for'}"
        why += ": users set their own arrivals"
        together(
            "simulate", ("--arrivals", asked.arrivals, why), ("--period", asked.period_s, why),
            ("--swing", asked.swing, why),
        )  # fmt: skip
    kind = asked.arrivals or "poisson"
    why = f"beside --arrivals {kind}, which has none"
    together(
        "simulate", ("--period", None if kind in ("diurnal", "mmpp") else asked.period_s, why),
        ("--swing", None if kind == "diurnal" else asked.swing, why),
    )  # fmt: skip
    return kind


def _offered(stream: Arrivals, at: Floats) -> str:
    """Arrivals in words; where so few requests come at another mean rate than asked, that rate too."""
    rate, long = stream.rate_per_s, float(at[-1] - at[0]) if len(at) > 1 else 0.0
    came = (len(at) - 1) / long if long > 0 else rate
    words = f"{stream.kind} arrivals at {rate:g}/s"
    words = words if abs(came / rate - 1) <= OFF else f"{words} over a long time, these at {came:.3g}/s"
    if stream.kind == "diurnal":
        periods = f"{long / stream.period_s:.2g} of a period of {span(stream.period_s)}"
        return f"{words} ({periods}, {100 * stream.swing:g} % up and down)"
    if stream.kind == "mmpp":
        return f"{words} (stays of {span(stream.period_s)} on average, {stream.burst:g} times as fast in one state)"
    return f"{words} (gaps scatter by {stream.cv:g} times their mean)" if stream.kind == "gamma" else words


OFF = 0.05  # a mean rate further off than this is said
STAYS = {"mmpp": 8}  # periods that a run takes in where nobody says how long it is; one of others


def scattered(
    isl: int, osl: int, group: Served, prefill: Served | None, number: int, seed: int
) -> tuple[Ints, Ints, float]:
    """Prompts and answers around these means, and the share by which they go up and down: a fifth, or less where the
    context or a replica's KV holds no more.

    prefill: the group that computes prompts, where `group` only decodes. It holds no answers.
    """
    share = min(SCATTER, _room(group) / (isl + osl) - 1)
    if prefill is not None:
        share = min(share, _room(prefill) / isl - 1)
    share = max(0.0, share)
    specs = [Lengths(mean=mean, kind="uniform", low=1 - share, high=1 + share) for mean in (isl, osl)]
    inputs, outputs = (lengths.tokens(spec, number, seed, stream) for stream, spec in enumerate(specs, 1))
    return inputs, outputs, share


def _room(group: Served) -> int:
    """Tokens of the longest request of a scatter that a replica takes: a block is spare, and a token for rounding."""
    rules = rules_for(group)[0]
    longest = min(group.resolved.max_model_len, group.model.max_len)
    return min(longest - 1, (rules.kv_blocks - 1) * rules.block_tokens - (rules.verify - 1))


def _lengths(plan: Plan, asked: Asked, count: int, seed: int, prefill: Plan | None) -> tuple[Ints, Ints, str]:
    """Prompts and answers, drawn, and what they are in words."""
    kind, longest = asked.spread or SCATTERED, longest_of(plan)
    isl, osl = asked.isl or plan.workload.isl_tokens, asked.osl or plan.workload.osl_tokens
    words = f"{kind} lengths of {isl:,} in and {osl:,} out"
    if kind == SCATTERED:
        first = None if prefill is None else served(prefill)
        inputs, outputs, share = scattered(isl, osl, served(plan), first, count, seed)
        return inputs, outputs, words + (f", {100 * share:.2g} % up and down" if share else ": no room to scatter them")
    specs = [Lengths(mean=mean, kind=kind) for mean in (isl, osl)]
    if kind == "lognormal":  # a drawn request fits the context: neither half of it is longer than half
        specs = [Lengths(mean=mean, kind=kind, most=longest // 2) for mean in (isl, osl)]
    inputs, outputs = (lengths.tokens(spec, count, seed, stream) for stream, spec in enumerate(specs, 1))
    return inputs, outputs, words


def _within(load: Requests, longest: int, asked: Asked, where: str) -> tuple[Requests, tuple[str, ...]]:
    """Requests the context holds, and what became of the others."""
    over = load.input_tokens + load.output_tokens > longest
    if not over.any():
        return load, ()
    at = int(np.flatnonzero(over)[0])
    if asked.long != "drop":
        raise InputError(
            f"request {at}: field input_tokens + output_tokens: {int(load.input_tokens[at]):,} +"
            f" {int(load.output_tokens[at]):,}", where=where, expected=f"at most the context of {longest:,} tokens",
            hint="--long drop leaves such requests out, and says how many" if asked.trace is not None else "",
        )  # fmt: skip
    keep = ~over
    if not keep.any():
        raise InputError("every request is longer than the context", where=where, expected=f"{longest:,} tokens")
    first = load.first_hash
    hashes = [load.hashes[first[i] : first[i + 1]].tolist() for i in np.flatnonzero(keep)] if load.hash_tokens else None
    left = requests(
        load.arrival_s[keep], load.input_tokens[keep], load.output_tokens[keep], hashes, load.hash_tokens, where=where
    )
    note = f"{int(over.sum()):,} of {load.number:,} requests are longer than {longest:,} tokens and were left out"
    return left, (note,)
