"""What one replica of a layout delivers at a batch size: TPOT, TTFT and the request rate it sustains.

A steady state in closed form, so that it explains itself. A replica has `batch` requests at hand; for each that
arrives one finishes. The steps it makes are an engine's (engine/base.py, Batching): rows that decode, and a prompt's
chunk beside them or before them. How often rounds hold one, and what a request sees of it, is rounds.py's question;
requests at hand over the time of a stay is the sustained rate (Little's law). The event-by-event account is the
simulator's job; this is the figure the search ranks by, and benchmarks/search_speed.py says how far the two agree.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, floor, maximum, minimum, named, plain, times
from linkwise.engine.base import Batching, Engine, Options, Resolved
from linkwise.model.types import Model
from linkwise.plan import rounds
from linkwise.plan.batch import Batch, Part, decode_batch, mixed_batch, prefill_batch
from linkwise.plan.time import US, GroupTime, Span, group_seconds, spans
from linkwise.plan.types import Ledger
from linkwise.workload.types import Workload

MAX_PROMPT_LOAD = rounds.MAX_PROMPT_LOAD


class Operation(NamedTuple):
    """Figures of one replica at a batch size (arrays over batch sizes on the fast path). Seconds, requests/s.

    round: of rows alone. mixed: a prompt's chunk beside rows, whether or not the engine ever makes such a step.
    spread: variance of the requests at hand over their mean.
    """

    tpot: Num
    ttft: Num
    rate: Num
    round: Num
    decode: GroupTime
    mixed: GroupTime
    spread: Num


def in_flight(layout: Layout, options: Options) -> int:
    """Batches a pipeline keeps in flight: as many as stages unless the user says otherwise."""
    return options.microbatches or layout.pp


def at_work(workload: Workload, batch: int, replicas: int, given: Given = plain) -> Num | None:
    """Share of what `replicas` with `batch` users each would do that is done where users are too few for that.

    In a closed loop users may be fewer than batch x replicas (Little's law counts users, not seats); at a rate, fewer
    than replicas. None where nothing idles.
    """
    users = workload.concurrency
    room = replicas * (batch if workload.rate_per_s is None else 1)
    if users is None or users >= room:
        return None
    return given("users", users, "requests", "in flight in all") / given(
        "room", room, "requests", "were every replica as full as the fullest"
    )


def step_requests(batch: Num, layout: Layout, options: Options, given: Given = plain) -> Num:
    """Requests in one step of one attention replica when the whole replica decodes `batch` requests."""
    parts = layout.dp_attn * in_flight(layout, options)
    return named(
        "requests_per_step",
        ceil_div(batch, given("steps_per_round", parts, "steps", "dp_attn x batches in flight")),
        "requests",
    )


def decode_step(workload: Workload, layout: Layout, options: Options, batch: Num, given: Given = plain) -> Batch:
    """The mean decode step: context is the prompt and half the output; drafted tokens are verified with the next."""
    return _decoding(workload, options, step_requests(batch, layout, options, given), given)


def _decoding(workload: Workload, options: Options, requests: Num, given: Given) -> Batch:
    context = given("context", workload.isl_tokens + workload.osl_tokens // 2, "tokens", "prompt and half the output")
    return decode_batch(requests, context, new=verified(options, given))


def _mean_step(workload: Workload, layout: Layout, options: Options, at_hand: Num, given: Given) -> Batch:
    """The decode step of the fullest attention replica where so many requests are at hand on average.

    Between whole numbers it is the mean of the two: batches in flight take turns, so their mean counts; attention
    replicas wait for the fullest of them, whose requests are whole ones.
    """
    flight, lanes = in_flight(layout, options), layout.dp_attn
    each = at_hand / given("batches_in_flight", flight, "", "of a replica") if flight > 1 else at_hand
    if lanes == 1:
        return _decoding(workload, options, named("requests_per_step", each, "requests"), given)
    below = floor(each)
    fewer, more = (ceil_div(n, given("attention_replicas", lanes, "", "dp_attn")) for n in (below, below + 1))
    fullest = named("requests_per_step", fewer + (each - below) * (more - fewer), "requests", "on the fullest")
    return _decoding(workload, options, fullest, given)


def verified(options: Options, given: Given = plain) -> Num:
    """Tokens a request brings to a decode step: the next one and those drafted after it."""
    if not options.mtp_tokens:
        return 1
    return given("tokens_verified", 1 + options.mtp_tokens, "tokens", "the next token and the drafted ones")


def kept(options: Options) -> float:
    """Tokens a decode step yields on average: drafted ones are kept until the first that is refused."""
    return sum(options.mtp_acceptance**i for i in range(options.mtp_tokens + 1))


def prompt_chunks(workload: Workload, max_batched_tokens: int) -> tuple[int, int, int]:
    """(chunk tokens, number of chunks, mean cached context) of a prompt: engines cut prompts at their token limit."""
    cached = int(workload.isl_tokens * workload.prefix_hit)
    fresh = workload.isl_tokens - cached
    chunk = min(fresh, max_batched_tokens)
    number = -(-fresh // chunk)
    return -(-fresh // number), number, cached + (fresh - chunk) // 2


def prefill_step(workload: Workload, max_batched_tokens: int, given: Given = plain) -> Batch:
    """The mean prompt chunk."""
    chunk, number, context = prompt_chunks(workload, max_batched_tokens)
    return prefill_batch(
        given("chunk", chunk, "tokens", f"prompt in {number} chunk(s) of at most {max_batched_tokens} tokens"),
        given("chunk_context", context, "tokens", "mean tokens already cached"),
    )


def mixed_step(
    workload: Workload, layout: Layout, options: Options, max_batched_tokens: int, batch: Num, given: Given = plain
) -> Batch:
    """A prompt chunk that shares its step with the decoding requests; together within the token limit."""
    return _mixed(workload, layout, max_batched_tokens, decode_step(workload, layout, options, batch, given), given)


def _mixed(workload: Workload, layout: Layout, max_batched_tokens: int, rows: Batch, given: Given) -> Batch:
    decode = rows.parts[0]
    chunk, _, cached = prompt_chunks(workload, max_batched_tokens)
    # The request whose prompt it is does not decode yet.
    others = maximum(0, decode.requests - 1)
    room = maximum(1, max_batched_tokens - times(others, decode.new))
    fresh = minimum(given("chunk", chunk, "tokens", "prompt chunk"), room)
    before = given("chunk_context", cached, "tokens", "mean tokens already cached")
    step = mixed_batch(fresh, others, decode.context, new=decode.new, cached=before)
    return _lone(step, layout, times(layout.dp_attn, step.parts[1].tokens))


def _lone(batch: Batch, layout: Layout, rows: Num) -> Batch:
    """A step of one attention replica with prompts, while the others decode: experts serve the tokens of all. rows:
    tokens that all of them draw."""
    if layout.dp_attn == 1 or layout.cp > 1:
        return batch
    return batch._replace(everyone=named("everyone", batch.parts[0].tokens + rows, "tokens"))


def _prompt_step(
    workload: Workload, layout: Layout, max_batched_tokens: int, decode: Part, rule: Batching, *, full: bool,
    given: Given,
) -> Batch:  # fmt: skip
    """The step a prompt's chunk is in as the engine makes it: beside rows, or alone while they wait.

    full: as many chunks as the token limit leaves room for, at least one; whole ones where prompts are not cut, but for
    those that no step has room for.
    """
    chunk, chunks, cached = prompt_chunks(workload, max_batched_tokens)
    alone = rule.policy == "prefill-first"
    # The request whose prompt it is does not decode yet.
    rows = Part(maximum(0, decode.requests - 1), decode.new, decode.context)
    left = max_batched_tokens if alone else maximum(1, max_batched_tokens - rows.tokens)
    fresh = minimum(given("chunk", chunk, "tokens", "prompt chunk"), left)
    number: Num = 1
    if full:
        number = maximum(1, left / fresh if rule.cuts_prompts or chunks > 1 else floor(left / fresh))
    prompt = Part(number, fresh, given("chunk_context", cached, "tokens", "mean tokens already cached"), prompt=True)
    if alone:  # rows of the same attention replica wait; those of the others decode
        return _lone(Batch("prefill", (prompt,), number), layout, times(layout.dp_attn - 1, decode.tokens))
    return _lone(Batch("mixed", (prompt, rows), rows.tokens + number), layout, times(layout.dp_attn, rows.tokens))


def _joined(alike: Sequence[Batch], number: int) -> Batch:
    """Batches of the same parts as one of arrays so many times as long. number: the length of each."""

    def whole(*values: Num) -> Num:
        return np.concatenate([one if np.shape(one) == (number,) else np.full(number, float(one)) for one in values])

    parts = tuple(
        Part(whole(*(x.requests for x in same)), whole(*(x.new for x in same)), whole(*(x.context for x in same)),
             same[0].prompt)
        for same in zip(*(one.parts for one in alike), strict=True)
    )  # fmt: skip
    everyone = None if alike[0].everyone is None else whole(*(one.everyone for one in alike))
    return Batch(alike[0].kind, parts, whole(*(one.sampled for one in alike)), everyone)


def _apart(step: GroupTime, number: int) -> list[GroupTime]:
    """What `_joined` joined, without its stages."""
    token, interval = np.broadcast_arrays(step.token, step.interval)
    starts = range(0, len(token), number)
    return [GroupTime(token[at : at + number], interval[at : at + number], ()) for at in starts]


def _held(least: Num, step: GroupTime, decode: GroupTime, flight: Num, name: str) -> Num:
    """A round of all batches in flight, one of which makes this step."""
    return named(name, maximum(least, maximum(step.token, step.interval + (flight - 1) * decode.interval)), "s")


def request_seconds(engine: Engine, cluster: Cluster, workload: Workload, given: Given = plain) -> Num:
    """From the client to the engine's queue where no other request comes with it; None where that takes no time."""
    c = engine.step_constants(cluster)
    if not max(c.request_us, c.request_each_us, c.request_token_us):
        return None
    taken = given("request", (c.request_us + c.request_each_us) * US, "s", c.source("request_us"))
    tokens = given("prompt_tokens", workload.isl_tokens, "tokens", "workload")
    each = given("request_token", c.request_token_us * US, "s", c.source("request_token_us"))
    return named("taken_in", taken + tokens * each, "s", "from the client to the queue")


def seats(memory: Ledger, engine: Engine, workload: Workload, resolved: Resolved, layout: Layout) -> int:
    """Requests that a replica serves at once at most: by the engine's limit, or as many as its KV holds at the mean of
    their lengths while they are served. An engine that takes room for whole answers holds them at full length."""
    most = resolved.max_seqs * layout.dp_attn
    if memory.kv_tokens is None:
        return min(most, int(memory.requests * workload.burst))
    answer = max(0.5, engine.batching.reserve) * workload.osl_tokens
    return max(1, min(most, int(memory.kv_tokens / (workload.isl_tokens + answer + resolved.block_tokens / 2))))


class Replica(NamedTuple):
    """A replica at a batch size before its rounds are settled. yields: tokens a row draws in a round."""

    length: rounds.Lengths
    load: rounds.Load
    yields: Num
    decode: GroupTime
    mixed: GroupTime


def operation(
    model: Model, layout: Layout, engine: Engine, cluster: Cluster, workload: Workload, options: Options, batch: Num,
    places: dict[str, Span] | None = None, *, alike: int = 1, given: Given = plain,
) -> Operation:  # fmt: skip
    """A replica with `batch` requests at hand, and the prompts that keep it so. alike: replicas behind its router."""
    one = replica(model, layout, engine, cluster, workload, options, batch, places, given=given)
    one = among(one, given("alike", alike, "replicas", "behind one router that looks at load") if alike > 1 else 1)
    return _delivers(one, rounds.settle(one.length, one.load, given))


def operations(replicas: Sequence[Replica]) -> list[Operation]:
    """What each delivers, at arrays of batches: settled together, since a search asks for hundreds."""
    settled = rounds.settled([(one.length, one.load) for one in replicas])
    return [_delivers(one, seen) for one, seen in zip(replicas, settled, strict=True)]


def among(one: Replica, alike: Num) -> Replica:
    """One of several replicas that a router keeps even. In a closed loop each keeps its users."""
    return one if one.load.closed else one._replace(load=one.load._replace(alike=alike))


def full(one: Replica) -> Replica:
    """The last of a replica's batches with every seat taken for good: who is done is followed at once, by one."""
    number = np.size(one.load.batch)

    def last(values: Num) -> Num:
        return np.broadcast_to(values, number)[-1:]

    load = rounds.Load(*map(last, one.load[: rounds.MEASURES]), *one.load[rounds.MEASURES :])
    load = load._replace(others=load.batch - 1, alike=1, closed=True)
    return one._replace(length=rounds.Lengths(*map(last, one.length)), load=load)


def rate_of_seats(
    model: Model, layout: Layout, engine: Engine, cluster: Cluster, workload: Workload, options: Options, taken: int,
    places: dict[str, Span] | None = None,
) -> float:  # fmt: skip
    """Requests/s that a replica serves with so many seats taken for good."""
    one = replica(model, layout, engine, cluster, workload, options, np.array([float(taken)]), places)
    return float(operations([full(one)])[0].rate[0])


def _delivers(one: Replica, seen: rounds.Settled) -> Operation:
    tpot = named("tpot", seen.round / one.yields, "s", "a token, or those kept, each round")
    rate = named("rate", one.load.batch / seen.stay, "requests/s", "Little's law: one finishes for each that arrives")
    return Operation(tpot, seen.ttft, rate, one.length.calm, one.decode, one.mixed, seen.spread)


def replica(
    model: Model, layout: Layout, engine: Engine, cluster: Cluster, workload: Workload, options: Options, batch: Num,
    places: dict[str, Span] | None = None, *, given: Given = plain,
) -> Replica:  # fmt: skip
    """How long its rounds are, and what it has to do."""
    where_to, rule = places or spans(layout, cluster), engine.batching
    limit = engine.resolve(options, model, cluster.accelerator, layout).max_batched_tokens
    batch = given("batch", batch, "requests", "at hand on the replica, on average")
    flight = in_flight(layout, options)
    decode = _mean_step(workload, layout, options, batch, given)
    rows = decode.parts[0]
    # A quarter more rows: far enough to look over the steps in which kernels change, near enough for a slope.
    extra = ceil_div(rows.requests, 4) * (layout.dp_attn * flight)
    drawn = [decode, _mean_step(workload, layout, options, batch + extra, given)]
    alone, full = (_prompt_step(workload, layout, limit, rows, rule, full=one, given=given) for one in (False, True))
    together = [_mixed(workload, layout, limit, decode, given)]
    wide = (
        [alone._replace(everyone=times(layout.dp_attn, alone.tokens))]
        if alone.everyone is not None and model.moe
        else []
    )
    prompts = [alone, full, *wide]

    def seconds(steps: Sequence[Batch]) -> list[GroupTime]:
        def of(step: Batch) -> GroupTime:
            return group_seconds(model, layout, engine, cluster, step, options, where_to, given=given)

        if isinstance(batch, np.ndarray):  # the search's way: alike steps in one array
            return _apart(of(_joined(steps, len(batch))), len(batch))
        return [of(step) for step in steps]

    calm, grown = seconds(drawn)
    if rule.policy == "prefill-first":
        (mixed,), (chunk, filled, *others) = seconds(together), seconds(prompts)
    else:
        chunk, filled, *others = seconds(prompts)
        mixed = chunk
    # A token visits all stages in turn; its batch comes again once every batch in flight passed the slowest stage.
    batches = given("batches_in_flight", flight, "", "one for each stage unless asked otherwise")
    round_s, larger = (maximum(one.token, batches * one.interval) for one in (calm, grown))
    round_s = named("decode_round", round_s, "s")
    # A step with a prompt holds up all others of the replica: lanes wait for the slowest, stages for the one before.
    held = _held(round_s, chunk, calm, batches, "prompt_round")
    shared: Num = 0
    if others:  # what a chunk adds on one more attention replica, of all at once a part
        shared = (_held(held, others[0], calm, batches, "wide_round") - held) / (layout.dp_attn - 1)
    length = rounds.Lengths(
        calm=round_s, held=held, full=_held(held, filled, calm, batches, "full_round"), prompt=chunk.token,
        row=named("row_adds", maximum(0, larger - round_s) / extra, "s", "one more request to a round"),
        shared=named("shared_adds", shared, "s", "a chunk on another attention replica"),
        room=named("room", full.parts[0].requests, "chunks", "that one step has room for"),
    )  # fmt: skip
    closed = workload.concurrency is not None and workload.rate_per_s is None
    yields = given("tokens_a_round", kept(options), "tokens", "1, more with drafted tokens that are kept")
    after_first = given("after_first", max(workload.osl_tokens - 1, 0), "tokens", "the prompt's step gives the first")
    load = rounds.Load(
        batch=batch, others=named("others", batch - 1 if closed else batch, "requests", "that a request meets"),
        chunks=given("chunks", prompt_chunks(workload, limit)[1], "steps", "chunks of a prompt"),
        tokens=named("rounds_of_rows", after_first / yields, "rounds"),
        taken_in=_taken_in(engine, cluster, workload, given), alike=1,
        flight=flight, lanes=layout.dp_attn, alone=rule.policy == "prefill-first", ahead=rule.ahead, closed=closed,
    )  # fmt: skip
    return Replica(length, load, yields, calm, mixed)


def _taken_in(engine: Engine, cluster: Cluster, workload: Workload, given: Given) -> Num:
    seconds = request_seconds(engine, cluster, workload, given)
    return 0 if seconds is None else seconds
