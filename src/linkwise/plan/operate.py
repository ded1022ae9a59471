"""What one replica of a layout delivers at a batch size: TPOT, TTFT and the request rate it sustains.

A steady state in closed form, so that it explains itself. A replica has `batch` requests at hand; for each that
arrives one finishes. Between two arrivals an attention replica with b requests draws one request's tokens, in osl/b
rounds, and the new prompt's chunks ride in some of their steps: that time is what a request costs, its inverse the
sustained rate, and b times it a request's stay (Little's law). The event-by-event account is the simulator's job; this
is the figure the search ranks by.
"""

from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, maximum, minimum, named, plain, times
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.batch import Batch, decode_batch, mixed_batch, prefill_batch
from linkwise.plan.time import GroupTime, Span, group_seconds, spans
from linkwise.workload.types import Workload

# A queue of prompts needs slack: prompts fill at most this share of a replica's time, or TTFT has no bound.
MAX_PROMPT_LOAD = 0.9


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
    return mixed_batch(fresh, others, decode.context, new=decode.new, cached=before)


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
    }
    decode, mixed = (
        group_seconds(model, layout, engine, cluster, step, options, where_to, given=given) for step in steps.values()
    )
    flight = given("batches_in_flight", in_flight(layout, options), "", "one for each stage unless asked otherwise")
    # A token visits all stages in turn; its batch comes again once every batch in flight passed the slowest stage.
    round_s = named("decode_round", maximum(decode.token, flight * decode.interval), "s")
    chunks = given("chunks", prompt_chunks(workload, limit)[1], "steps", "chunks of a prompt")
    yields = given("tokens_a_round", kept(options), "tokens", "1, more with drafted tokens that are kept")
    replicas = given("dp_attn", layout.dp_attn, "", "attention replicas, each with its own requests and prompts")
    # With fewer requests than attention replicas some idle; none has less than one.
    own = named("requests_per_attention_replica", maximum(1, batch / replicas), "requests")
    others = named("others", (own - 1) / own, "", "share of the requests at hand that are not a given one")

    after_first = given("after_first", max(workload.osl_tokens - 1, 0), "tokens", "the prompt's step gives the first")
    busy = named("prompt_steps", chunks * mixed.interval, "s", "the steps that carry one prompt")
    latency = named("prefill_latency", mixed.token + (chunks - 1) * mixed.interval, "s", "its own chunks, in turn")
    # Between two arrivals one request's tokens are drawn, shared by all that decode meanwhile; the arriving prompt's
    # steps carry the others' tokens too, so only what it adds to them counts. One request alone just waits for itself.
    rounds = named("rounds", after_first / yields / own, "rounds", "decode rounds between two arrivals")
    prompt = named("prompt_adds", busy - chunks * others * decode.interval + (latency - busy) / own, "s")
    slack = named("slack", 1 + others * (1 / MAX_PROMPT_LOAD - 1), "", "others' prompts leave room, or queues grow")
    cycle = named("cycle", maximum(rounds * round_s + prompt, busy * slack), "s", "between two arrivals")

    load = named("prompt_load", others * busy / cycle, "", "share of time in steps that carry others' prompts")
    queue = named("queue", load * busy / (2 * (1 - load)), "s", "M/D/1: prompts behind prompts")
    ttft = named(
        "ttft", latency + queue + others * decode.interval / 2, "s", "half of the step under way, then its own"
    )
    # Little's law, both ways: a request stays as long as its replica needs for all at hand; what is left of that after
    # its first token are its gaps, never shorter than a decode round, and the rate is what such stays sustain.
    turn = named("turn", own * cycle, "s", "requests at hand x time between arrivals")
    drawn = named("drawn", round_s / yields, "s", "a decode round alone")
    if workload.osl_tokens > 1:
        tpot = named("tpot", maximum(drawn, (turn - ttft) / after_first), "s", "never shorter than a decode round")
    else:
        tpot = named("tpot", drawn, "s", "a single token has no gaps: a decode round")
    stay = named("stay", maximum(turn, ttft + after_first * tpot), "s", "from arrival to the last token")
    rate = named("rate", batch / stay, "requests/s", "one finishes for each that arrives")
    return Operation(tpot, ttft, rate, round_s, decode, mixed)
