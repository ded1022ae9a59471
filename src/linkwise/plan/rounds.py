"""How long rounds are where prompts ride in them or run before them: a replica's steady state in closed form.

A replica works in rounds: every attention replica and every batch in flight makes one step. A round with a prompt's
chunk takes longer, for all. How many rounds do follows from how many chunks come in one, which follows from how long
rounds are: settled by turns on plain numbers; the last turn is the chain a figure shows.

Arrivals are Poisson, unless users wait for their answers. So a request meets as many others as there are on average,
and rows come in clusters: a prompt makes rounds longer, and longer rounds bring more prompts. With eta the share of
time that prompts take, rounds that follow each other have correlation eta, and the variance of the rows over their mean
tends to 1 / (1 - eta)^2 (a self-exciting process: Hawkes, Biometrika 58, 1971). Where each row makes rounds longer too,
a row meets 1 / (1 - the rows' share of a round) beyond the mean: exact for processor sharing whose step grows linearly
with its jobs, whose number is negative binomial then (Cohen, Acta Informatica 12, 1979). Of several replicas behind a
router that looks at load, each has its share of all requests there are, and its arrivals are evener (arrivals.py).
benchmarks/search_speed.py says how far all this and the simulator agree.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linkwise.core.quantity import Given, Num, decay, maximum, minimum, named, plain, power, value_of, where
from linkwise.plan import arrivals
from linkwise.plan.arrivals import NONE

# A queue of prompts needs slack: prompts fill at most this share of a replica's time, or TTFT has no bound.
MAX_PROMPT_LOAD = 0.9
MOST_BUSY = 0.99  # nearer to what leaves at most, requests wait longer than any figure says
TURNS, KEPT = 8, 0.4  # a turn keeps so much of the one before it; loads up to 90 % settle within a percent
MOST_KEPT = 0.95
LEAST_SLACK = 0.05  # of a round that does not grow with its rows; with less there is no steady state


class Lengths(NamedTuple):
    """Seconds of a round: calm (no prompt), held (with one chunk), full (with as many as one step has room for).

    prompt: a chunk's step through all stages. row: what one more request makes a round longer; shared: what a chunk on
    another attention replica adds beside one. room: chunks.
    """

    calm: Num
    held: Num
    full: Num
    prompt: Num
    row: Num
    shared: Num
    room: Num


class Load(NamedTuple):
    """batch: requests at hand; others: of them, that a request meets. chunks: of a prompt. tokens: rounds in which a
    row draws. taken_in: seconds from the client to the queue. alike: replicas behind one router, this one among them.

    flight: batches in flight. lanes: attention replicas. alone: prompts run before rows, not beside them. ahead: a step
    is put together while the one before it runs. closed: users wait for their answers.
    """

    batch: Num
    others: Num
    chunks: Num
    tokens: Num
    taken_in: Num
    alike: Num
    flight: int
    lanes: int
    alone: bool
    ahead: bool
    closed: bool


MEASURES = 6  # fields of a load that are numbers; the others say of what kind a replica is


class State(NamedTuple):
    """What a turn starts from. coming: chunks of others in a round. mean: seconds of a round. beside: seconds that
    chunks beside the first add to a round held up. rows: that decode in a round. longer: starts with a prompt, over
    those at which one begins."""

    coming: Num
    mean: Num
    beside: Num
    rows: Num
    longer: Num


class Pace(NamedTuple):
    """Rounds of a turn, seconds. more: what a further chunk adds. share: of rounds held up. draws: share of rounds in
    which a row draws a token. eta: share of time that prompts take. steps: that the prompts of a start take."""

    calm: Num
    held: Num
    mean: Num
    more: Num
    share: Num
    draws: Num
    eta: Num
    steps: Num


class Settled(NamedTuple):
    """Seconds of a round as a row sees it, to the first token, and of the whole stay. spread: variance of the requests
    at hand over their mean."""

    round: Num
    ttft: Num
    stay: Num
    spread: Num


def settle(length: Lengths, load: Load, given: Given) -> Settled:
    """Times of a request where `load.batch` are at hand and one comes for each that is done."""
    plain_length, plain_load = Lengths(*map(value_of, length)), Load(*map(value_of, load))
    coming = plain_load.others * plain_load.chunks / (plain_load.chunks + 0.5 + plain_load.tokens)
    mean = plain_length.calm + (plain_length.held - plain_length.calm) * (1 - decay(coming))
    state = State(coming, mean, 0.0, plain_load.others, 1.0)
    before: tuple[Num, Num] | None = None
    for _ in range(TURNS):
        new = _turn(plain_length, plain_load, state)[0]
        kept = KEPT if before is None else _kept(*before, state.coming, new.coming)
        before = state.coming, new.coming
        mixed = (KEPT * a + (1 - KEPT) * b for a, b in zip(state, new, strict=True))
        state = State(*mixed)._replace(coming=kept * state.coming + (1 - kept) * new.coming)
    words = (
        ("coming", "chunks", "of others in a round"), ("mean_round_before", "s", "all others"),
        ("beside_before", "s", "further chunks in a round held up"), ("rows_before", "requests", "that decode"),
        ("longer_before", "", "starts that a prompt holds up, over those at which one begins"),
    )  # fmt: skip
    source = f"settled in {TURNS} turns of the chain below: "
    recorded = (given(name, value, unit, source + note) for (name, unit, note), value in zip(words, state, strict=True))
    return _turn(length, load, State(*recorded))[1]


def _kept(was: Num, gave: Num, now: Num, gives: Num) -> Num:
    """What a turn keeps of the chunks before it: more where they swing about what they settle at, by the slope seen of
    the last two turns (Wegstein, Communications of the ACM 1, 1958)."""
    moved = now - was
    slope = where(abs(moved) > NONE * now, (gives - gave) / where(moved == 0, 1.0, moved), 0.0)
    return minimum(MOST_KEPT, maximum(KEPT, slope / minimum(-NONE, slope - 1)))


def settled(cases: Sequence[tuple[Lengths, Load]]) -> list[Settled]:
    """`settle` of many replicas, each at an array of batches: those of one kind are settled as one longer array."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for at, (_, load) in enumerate(cases):
        kinds.setdefault(load[MEASURES:], []).append(at)
    found: dict[int, Settled] = {}
    for places in kinds.values():
        lengths, loads = zip(*(cases[at] for at in places), strict=True)
        sizes = [len(load.batch) for load in loads]
        length = Lengths(*(_joined(column, sizes) for column in zip(*lengths, strict=True)))
        measures = (_joined(column, sizes) for column in zip(*(load[:MEASURES] for load in loads), strict=True))
        every = settle(length, Load(*measures, *loads[0][MEASURES:]), plain)
        ends = np.cumsum(sizes)
        parts = zip(*(np.split(np.broadcast_to(column, ends[-1]), ends[:-1]) for column in every), strict=True)
        found |= {at: Settled(*part) for at, part in zip(places, parts, strict=True)}
    return [found[at] for at in range(len(cases))]


def _joined(values: Sequence[Num], sizes: Sequence[int]) -> Num:
    whole = (one if np.shape(one) == (n,) else np.full(n, one) for one, n in zip(values, sizes, strict=True))
    return np.concatenate(list(whole))


def _turn(length: Lengths, load: Load, state: State) -> tuple[State, Settled]:
    """From how many chunks come and how long a round is to both again, and what a request sees of it."""
    most = MAX_PROMPT_LOAD * load.lanes * load.flight * length.room
    most = named("most_chunks", most, "chunks", "prompts leave room, or queue for ever")
    coming = minimum(state.coming, most)
    pace, beside, longer = _pace(length, load, state, coming)
    rows = named("rows", load.tokens * coming / load.chunks / pace.draws, "requests", "that decode in a round")
    first = _first(length, load, pace, beside, coming)
    later, met = _met(length, load, pace, coming, rows, first)
    each = (pace.mean / pace.draws - pace.calm) / maximum(NONE, coming) * load.chunks
    each = named("prompt_adds", each, "s", "a prompt to the rounds")
    seen = pace.mean / pace.draws + length.row * met / (1 - pace.eta) + each * later
    seen = named("row_round", seen, "s", "a round as a row sees it: itself in it, rows and prompts in clusters")
    after = load.tokens * seen
    least = named("least_stay", load.others * load.chunks * length.full / most, "s", "prompts have room no sooner")
    stay = named("stay", maximum(load.taken_in + first + after, least), "s", "from arrival to the last token")
    comes = minimum(load.others * load.chunks * pace.mean / stay, most)
    return State(comes, pace.mean, beside, rows, longer), Settled(seen, named("ttft", stay - after, "s"), stay, met)


def waiting(at_hand: Num, spread: Num, rate: Num, seats: Num, most: Num, alike: Num = 1, given: Given = plain) -> Num:
    """Seconds a request waits until one of those that hold memory, or the engine's last seat, is done.

    rate: requests/s that come; most: that leave with every seat taken. alike: replicas behind one router, which a
    request waits for only where all seats of all are taken. As in M/D/c: half of what waits in M/M/c.
    Requests that come in clusters of `spread` take seats by clusters. The chance that all are taken is Sakasegawa's to
    one power of the load more: a replica with free seats is quicker than one without, so it fills up less often. That
    power is chosen by the simulator (benchmarks/search_speed.py), where one less gives 15 % more TTFT than there is.
    """
    seats = given("seats", seats, "requests", "that KV memory holds at their mean length, or the engine's limit")
    most = given("rate_of_seats", most, "requests/s", "the rate below with every seat taken")
    busy = named("busy", minimum(rate / most, MOST_BUSY), "", "of what leaves with every seat taken")
    taken = minimum(at_hand / seats, MOST_BUSY)
    every = alike * seats / maximum(1, alike * spread)
    full = named("all_taken", power(taken, power(2 * (every + 1), 0.5)), "", "chance, of all seats")
    return named("seat", full * busy / (2 * (1 - busy)) / (rate * alike), "s", "until a seat is free")


def _stages(load: Load, crowd: Num) -> Num:
    """How even arrivals are. crowd: requests that come in a round held up."""
    found = arrivals.stages(load.alike, crowd)
    return named("evenness", found, "stages", "of the time between arrivals; 1: by chance, 2: in turn with another")


def _pace(length: Lengths, load: Load, state: State, coming: Num) -> tuple[Pace, Num, Num]:
    """How rounds with prompts follow each other, and two figures of the next state: beside and longer."""
    grown = maximum(-length.calm / 2, length.row * (state.rows - load.batch))
    calm = named("calm_round", length.calm + grown, "s", "with the rows that decode")
    held = length.held if load.alone else named("held_round", length.held + grown, "s")
    more = named("more_adds", (length.full - length.held) / maximum(NONE, length.room - 1), "s", "a further chunk")
    # A batch that starts with a prompt makes the next of each in flight wait, and what comes meanwhile starts then.
    prompts = named("prompts", coming / load.chunks / load.flight, "prompts", "of others, a start")
    # In a pipeline prompts that come evenly hold up more starts, each alone, and each of them for less: no difference.
    crowd = coming / load.chunks * (held + state.beside) / state.mean
    even = _stages(load, crowd) if load.flight == 1 else 1
    quiet, long = (arrivals.none(prompts / state.mean * one, even) for one in (calm, held + state.beside))
    still = power(long, load.flight)
    run = named("run", (1 - still) / maximum(NONE, 1 - long), "starts", "behind a prompt, until the next or none")
    # While a prompt's further chunks run, new prompts begin on the other attention replicas.
    open_for = 1 + (state.longer - 1) * (1 - 1 / load.lanes)
    cycle = (1 - open_for * run * (quiet - long)) / maximum(NONE, 1 - quiet)
    cycle = named("cycle", maximum(1, cycle), "starts", "from new prompts to new prompts")
    # The prompts of a start, taken as geometric, make as many steps as their chunks fill.
    further = maximum(0, prompts * cycle - 1)
    over = power(further / (1 + further), length.room * load.lanes / load.chunks)
    steps = named("steps", load.chunks - 1 + 1 / (1 - over), "starts", "the prompts of a start take")
    longer = steps / (1 + (steps - 1) / cycle)  # on one attention replica, where the next ones wait for those steps
    if load.lanes > 1:  # on the others they begin meanwhile: starts at or after which a prompt goes on
        longer = (longer + (load.lanes - 1) * cycle * (1 - power(1 - 1 / cycle, steps))) / load.lanes
    longer = named("longer", longer, "", "starts with a prompt, over those with a new one")
    # No start has more than a step has room for. Of prompts cut into chunks, only those that follow another at once
    # fill its last step: one that finds nobody takes a step for each of its chunks.
    least = coming / load.flight / (length.room * load.lanes)
    found_none = maximum(0, 1 - least * length.full / state.mean) * minimum(1, load.chunks - 1)
    least = least * (1 + found_none * (length.room - 1))
    starts = named("prompt_starts", minimum(1, maximum(least, longer / cycle)), "", "share of starts with a prompt")
    share = named("held_share", minimum(1, maximum(starts, run / cycle * longer)), "", "of rounds held up by one")
    again = maximum(0, coming / load.flight / maximum(NONE, starts) - 1)
    again = named("again", again, "chunks", "beside the first of a start")
    same = minimum(_fullest(again, load.lanes), length.room - 1)
    if load.flight > 1:
        # Batches that follow each other through the stages wait for the longest (sizes taken as geometric), if the
        # later one takes up prompts that come meanwhile: that depends on which stage is longer by a hair, so half.
        meet = (1 - power(long, load.flight - 1)) / maximum(1, run) / 2
        same = same + named("meet", meet, "", "with a prompt right before") * same * (1 + same) / (1 + 2 * same)
    same = named("same", same, "chunks", "beside another in the fullest batch")
    beside = named("beside", more * same + length.shared * (again - same), "s", "they add")
    mean = named("mean_round", calm + (held - calm + beside) * share, "s")
    # Where prompts run first, rows of the same batch draw nothing then.
    waits: Num = 0
    if load.alone:
        # Of several chunks, those on the same attention replica share its step where it has room; answers that began
        # together end together, so that the next prompts come to one replica as well.
        hit = (1 + again) / (load.lanes + again * (1 - 1 / length.room))
        waits = minimum(starts * minimum(1, hit), MAX_PROMPT_LOAD)
    draws = named("draws", 1 - waits, "", "share of rounds in which a row draws a token")
    eta = named("eta", maximum(0, 1 - calm * draws / mean), "", "share of time that prompts take")
    return Pace(calm, held, mean, more, share, draws, eta, steps), beside, longer


def _fullest(again: Num, lanes: int) -> Num:
    """Chunks beyond the first in the fullest of the batches that 1 + again chunks fall into by chance."""
    if lanes == 1:
        return again
    each = (1 + again) / lanes
    pairs = again * each / 2  # few chunks: as many as pairs of them meet; many: a normal's largest of so many
    return minimum(minimum(again, pairs), maximum(0, each - 1) + power(2 * math.log(lanes) * each, 0.5))


def _met(length: Lengths, load: Load, pace: Pace, coming: Num, rows: Num, first: Num) -> tuple[Num, Num]:
    """Beyond the mean, what a row meets: (prompts a round, rows; itself is one of them)."""
    if load.closed:
        return 0, 1
    eta, tokens, lag = pace.eta, maximum(1, load.tokens), 2 if load.ahead else 1  # rounds from arrival to the step
    end = maximum(0, 1 - lag / (tokens * (1 - eta)))
    reach = named("reach", eta / (1 - eta) * end, "", "arrivals that one brings while it draws")
    most = 1 + rows  # a deviation as large as the mean
    bunch = minimum((1 + 2 * reach) / (1 - eta * eta) / load.alike, most)
    bunch = named("bunch", bunch, "", "variance of the rows over their mean")
    slack = maximum(LEAST_SLACK, 1 - rows * length.row / pace.calm)
    met = named("met", minimum(bunch / slack, most), "requests", "beyond the mean, of rows a row meets")
    # Those that came while its own prompt ran, and whom they bring, are before most of its rounds. Where prompts run
    # first, so are those that came while it waited: it draws nothing until all of them are through.
    own = first if load.alone else length.prompt + (load.chunks - 1) * pace.held
    own = maximum(0, own - lag * pace.calm)
    each = coming / load.chunks / pace.mean
    came = arrivals.after(each * own, _stages(load, each * pace.held))
    later = came / (1 - eta) / tokens
    return named("later", later, "prompts", "a round beyond the mean"), met


def _first(length: Lengths, load: Load, pace: Pace, beside: Num, coming: Num) -> Num:
    """Seconds from the queue to the first token."""
    busy = pace.held + beside
    each = coming / load.chunks / pace.mean
    even = _stages(load, each * busy)
    # Evenly as they come, the prompt before is mostly through when the next one comes.
    over = each * (pace.mean + busy)
    fewer = arrivals.after(over, even) / maximum(NONE, over)
    share = pace.share * fewer
    mean = pace.calm * (1 - share) + busy * share
    square = pace.calm * pace.calm * (1 - share) + busy * busy * share
    met = named("round_met", square / mean, "s", "of rounds, long ones are met more often")
    # Half of the round under way, until its batch starts. Put together ahead: until any batch starts, of those in
    # flight, and a round more, which is a long one where a long one goes on.
    start = met / 2
    if load.ahead:
        further = (1 - 1 / pace.steps) * (share * busy / mean - share) * (busy - pace.calm)
        start = start / load.flight + named("round_after", pace.mean + further, "s", "the one after it")
    working = named("working", 1 - decay(load.others), "", "chance that the replica is not idle")
    wait = named("wait", working * start, "s", "until it is in a step")
    full = coming / (load.lanes * load.flight) / length.room * length.full / pace.mean
    filled = named("prompt_load", minimum(full, MAX_PROMPT_LOAD), "", "of the room for prompts")
    # M/D/c after Sakasegawa: a step serves `room` chunks. Those under way are counted above, hence no root minus 1.
    queued = power(filled, power(2 * (length.room + 1), 0.5)) / (2 * (1 - filled)) / length.room
    queued = queued * arrivals.queues(filled, even)
    # What is left of a prompt under way beyond the step that is counted above; where no other replica's prompts make
    # rounds long, the round after is counted too.
    takes = load.chunks / length.room
    left = maximum(0, takes - 1) / 2
    if load.ahead and load.lanes == 1:
        left = left * maximum(0, 1 - 2 / takes)
    queue = (queued * load.chunks + filled * fewer * left) * length.full
    queue = named("queue", queue, "s", "prompts behind more than one step has room for")
    with_it = arrivals.beside(each / load.flight * met, even) * load.chunks
    with_it = named("with_it", with_it, "chunks", "that came in the same round")
    company = minimum(length.room - 1, with_it / load.lanes) * pace.more
    company = company + minimum(load.lanes - 1, with_it) * length.shared
    further = pace.held + beside * (1 - 1 / load.lanes)  # on other attention replicas prompts begin meanwhile
    own = length.prompt + (load.chunks - 1) * further + company
    own = named("own", own, "s", "its chunks in turn, with others beside them")
    return named("first", wait + queue + own, "s", "from the queue to the first token")
