"""What one replica of a layout delivers at a batch size: TPOT, TTFT and the request rate it sustains.

A steady state in closed form, so that it explains itself. A replica has `batch` requests at hand; for each that
arrives one finishes. It works in rounds: every attention replica and every batch in flight makes one step, and each
request draws its next token. A round in which a prompt's chunk rides takes longer, for all: stages and attention
replicas wait for one another. How many rounds do follows from how many chunks come in one; the mean round is TPOT, the
rounds of a stay are its time, and requests at hand over that the sustained rate (Little's law). The event-by-event
account is the simulator's job; this is the figure the search ranks by, and benchmarks/search_speed.py says how far the
two agree.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, maximum, minimum, named, plain, power, times
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.batch import Batch, Part, decode_batch, mixed_batch, prefill_batch
from linkwise.plan.time import US, GroupTime, Span, group_seconds, spans
from linkwise.workload.types import Workload

# A queue of prompts needs slack: prompts fill at most this share of a replica's time, or TTFT has no bound.
MAX_PROMPT_LOAD = 0.9


NONE = 1e-12
TURNS = 3  # rounds lengthen each other: so many times the mean is put in again


class Operation(NamedTuple):
    """Figures of one replica at a batch size (arrays over batch sizes on the fast path). Seconds, requests/s."""

    tpot: Num
    ttft: Num
    rate: Num
    round: Num
    decode: GroupTime
    mixed: GroupTime


def in_flight(layout: Layout, options: Options) -> int:
    """Batches a pipeline keeps in flight: as many as stages unless the user says otherwise."""
    return options.microbatches or layout.pp


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
    context = given("context", workload.isl_tokens + workload.osl_tokens // 2, "tokens", "prompt and half the output")
    requests = step_requests(batch, layout, options, given)
    return decode_batch(requests, context, new=verified(options, given))


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
    decode = decode_step(workload, layout, options, batch, given).parts[0]
    chunk, _, cached = prompt_chunks(workload, max_batched_tokens)
    # The request whose prompt it is does not decode yet.
    others = maximum(0, decode.requests - 1)
    room = maximum(1, max_batched_tokens - times(others, decode.new))
    fresh = minimum(given("chunk", chunk, "tokens", "prompt chunk"), room)
    before = given("chunk_context", cached, "tokens", "mean tokens already cached")
    return _lone(mixed_batch(fresh, others, decode.context, new=decode.new, cached=before), layout)


def _lone(batch: Batch, layout: Layout) -> Batch:
    """A step of one attention replica with prompts, while the others decode: experts serve the tokens of all."""
    if layout.dp_attn == 1 or layout.cp > 1:
        return batch
    prompt, rows = batch.parts
    return batch._replace(everyone=named("everyone", prompt.tokens + times(layout.dp_attn, rows.tokens), "tokens"))


def full_step(
    workload: Workload, layout: Layout, options: Options, max_batched_tokens: int, batch: Num, given: Given = plain
) -> Batch:
    """As many prompt chunks beside the decoding requests as the token limit leaves room for; at least one."""
    decode = decode_step(workload, layout, options, batch, given).parts[0]
    chunk, _, cached = prompt_chunks(workload, max_batched_tokens)
    left = maximum(1, max_batched_tokens - times(decode.requests, decode.new))
    number = maximum(1, left / given("chunk", chunk, "tokens", "prompt chunk"))
    prompt = Part(number, minimum(chunk, left), given("chunk_context", cached, "tokens", "mean tokens"), prompt=True)
    others = Part(maximum(0, decode.requests - 1), decode.new, decode.context)
    return _lone(Batch("mixed", (prompt, others), times(others.requests, others.new) + number), layout)


def _joined(alike: Sequence[Batch], number: int) -> Batch:
    """Batches of the same parts as one of arrays so many times as long. number: the length of each."""

    def whole(*values: Num) -> Num:
        return np.concatenate([np.broadcast_to(np.asarray(one, float), (number,)) for one in values])

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


def _rounds(
    round_s: Num, held: Num, first_adds: Num, more_adds: Num, shared: Num, coming: Num, each: Num, flight: Num
) -> tuple[Num, Num]:
    """(the mean round, the round a request that arrives meets), seconds. coming: others' chunks in a round."""
    mean, held_rounds, adds = round_s + first_adds * (1 - power(1 / math.e, coming)), coming, coming
    for _ in range(TURNS):
        # A batch that starts with a prompt makes the next of each in flight wait, and what comes meanwhile starts then.
        came = coming / mean / flight
        calm, long = (power(1 / math.e, came * length) for length in (round_s, held))
        still = power(long, flight)
        run = named("run", (1 - still) / maximum(NONE, 1 - long), "starts", "behind a prompt, until the next or none")
        cycle = named("cycle", run + still / maximum(NONE, 1 - calm), "starts", "from prompt to prompt")
        held_rounds = named("held_rounds", run / cycle, "", "share of rounds held up by a prompt")
        # A batch that starts takes all that wait: of each in flight, chunks on a set beyond its first add up.
        further = named("further", flight * maximum(0, each - 1 / cycle), "chunks", "a round")
        elsewhere = named("elsewhere", maximum(0, coming - held_rounds - further), "chunks", "on other replicas")
        adds = named("round_adds", more_adds * further + shared * elsewhere, "s", "beyond a first chunk")
        mean = named("mean_round", round_s + first_adds * held_rounds + adds, "s")
    busy = named("busy_round", held + adds / maximum(NONE, held_rounds), "s", "a round with prompts")
    square = round_s * round_s * (1 - held_rounds) + busy * busy * held_rounds
    met = named("round_met", square / mean, "s", "of rounds, long ones are met more often")
    return mean, met


def request_seconds(engine: Engine, cluster: Cluster, workload: Workload, given: Given = plain) -> Num:
    """From the client to the engine's queue where no other request comes with it; None where that takes no time."""
    c = engine.step_constants(cluster.constants)
    if not max(c.request_us, c.request_each_us, c.request_token_us):
        return None
    taken = given("request", (c.request_us + c.request_each_us) * US, "s", c.source("request_us"))
    tokens = given("prompt_tokens", workload.isl_tokens, "tokens", "workload")
    each = given("request_token", c.request_token_us * US, "s", c.source("request_token_us"))
    return named("taken_in", taken + tokens * each, "s", "from the client to the queue")


def operation(
    model: Model,
    layout: Layout,
    engine: Engine,
    cluster: Cluster,
    workload: Workload,
    options: Options,
    batch: Num,
    places: dict[str, Span] | None = None,
    *,
    given: Given = plain,
) -> Operation:
    """A replica decoding `batch` requests at once, with the prompts that keep it so."""
    where_to = places or spans(layout, cluster)
    limit = engine.resolve(options, model, cluster.accelerator, layout).max_batched_tokens
    batch = given("batch", batch, "requests", "requests decoding at once on the replica")
    steps = {
        "decode": decode_step(workload, layout, options, batch, given),
        "mixed": mixed_step(workload, layout, options, limit, batch, given),
        "full": full_step(workload, layout, options, limit, batch, given),
    }

    def seconds(step: Batch) -> GroupTime:
        return group_seconds(model, layout, engine, cluster, step, options, where_to, given=given)

    decode = seconds(steps["decode"])
    alike = [steps["mixed"], steps["full"]]
    if steps["mixed"].everyone is not None and model.moe is not None:
        alike.append(steps["mixed"]._replace(everyone=times(layout.dp_attn, steps["mixed"].tokens)))
    if isinstance(batch, np.ndarray):  # the search's way: alike steps in one array
        mixed, packed, *wide = _apart(seconds(_joined(alike, len(batch))), len(batch))
    else:
        mixed, packed, *wide = map(seconds, alike)
    flight = given("batches_in_flight", in_flight(layout, options), "", "one for each stage unless asked otherwise")
    # A token visits all stages in turn; its batch comes again once every batch in flight passed the slowest stage.
    round_s = named("decode_round", maximum(decode.token, flight * decode.interval), "s")
    # A step with a prompt holds up all others of the replica: lanes wait for the slowest, stages for the one before.
    held = _held(round_s, mixed, decode, flight, "prompt_round")
    full = _held(held, packed, decode, flight, "full_round")
    room = named("room", steps["full"].parts[0].requests, "chunks", "that one step of a set has room for")
    first_adds = named("first_adds", held - round_s, "s", "what a prompt chunk adds to the round it rides in")
    more_adds = named("more_adds", (full - held) / maximum(NONE, room - 1), "s", "and each further one beside it")
    chunks = given("chunks", prompt_chunks(workload, limit)[1], "steps", "chunks of a prompt")
    yields = given("tokens_a_round", kept(options), "tokens", "1, more with drafted tokens that are kept")
    after_first = given("after_first", max(workload.osl_tokens - 1, 0), "tokens", "the prompt's step gives the first")
    sets = given("sets", layout.dp_attn * in_flight(layout, options), "", "attention replicas x batches in flight")

    # A request stays for its chunks' rounds, half of one under way and a round for every token after the first: each of
    # the others brings its chunks once in so many rounds.
    others = named("others", batch - 1, "requests", "that a request meets")
    stays = named("rounds_of_a_stay", chunks + 0.5 + after_first / yields, "rounds")
    most = named("most_chunks", MAX_PROMPT_LOAD * sets * room, "chunks", "prompts leave room, or their queue grows")
    coming = named("coming", minimum(others * chunks / stays, most), "chunks", "of others, in a round")
    each = named("coming_to_a_set", coming / sets, "chunks")
    # On other attention replicas a further chunk adds what experts do for it; that of one more, of all at once a part.
    shared: Num = 0
    if wide:
        all_held = _held(held, wide[0], decode, flight, "wide_round")
        shared = named("shared_adds", (all_held - held) / (layout.dp_attn - 1), "s", "a chunk on another replica")
    mean, met = _rounds(round_s, held, first_adds, more_adds, shared, coming, each, flight)
    wait = named("residual", others / batch * met / 2, "s", "half of the round under way, until its batch starts")
    load = named("prompt_load", minimum(each * full / mean / room, MAX_PROMPT_LOAD), "", "of the room for prompts")
    queue = named("queue", load * chunks * full / (2 * (1 - load)) / room, "s", "M/D/1: prompts behind prompts")
    beside = minimum(layout.dp_attn - 1, coming * met / mean)
    own = named("prefill", mixed.token + (chunks - 1) * held + shared * beside, "s", "its own chunks, in turn")
    tpot = named("tpot", mean / yields, "s", "a token, or those kept, each round")
    after = after_first * tpot
    first = named("first", wait + queue + own, "s", "half of the round under way, prompts before it, then its own")
    # The rest of a stay is waiting for room: prompts fill at most their share of all rounds.
    least = named("least_stay", others * chunks * full / most, "s", "requests at hand x time between prompts")
    inside = named("ttft_engine", first + maximum(0, least - first - after), "s", "no sooner than prompts have room")
    taken_in = request_seconds(engine, cluster, workload, given)
    ttft = named("ttft", inside + taken_in, "s") if taken_in is not None else named("ttft", inside, "s")
    stay = named("stay", ttft + after, "s", "from arrival to the last token")
    rate = named("rate", batch / stay, "requests/s", "Little's law: one finishes for each that arrives")
    return Operation(tpot, ttft, rate, round_s, decode, mixed)
