"""What one replica of a layout delivers at a batch size: TPOT, TTFT and the request rate it sustains.

A steady state in closed form, so that it explains itself. For each request that arrives one finishes, so between two
arrivals an attention replica with b requests runs osl/b decode rounds, and the new prompt's chunks ride in some of
their steps. That time is what a request costs: its inverse is the sustained rate. The event-by-event account is the
simulator's job; this is the figure the search ranks by.
"""

from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, maximum, minimum, named, plain
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.step import Batch, decode_batch, mixed_batch, prefill_batch
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
    """The mean decode step: context is the prompt and half the output."""
    context = given("context", workload.isl_tokens + workload.osl_tokens // 2, "tokens", "prompt and half the output")
    return decode_batch(step_requests(batch, layout, options, given), context)


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
    decode = decode_step(workload, layout, options, batch, given)
    chunk, _, _ = prompt_chunks(workload, max_batched_tokens)
    room = maximum(1, max_batched_tokens - decode.sampled)
    return mixed_batch(minimum(given("chunk", chunk, "tokens", "prompt chunk"), room), *decode.parts[0][::2])


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
    osl = given("osl", workload.osl_tokens, "tokens", "workload")
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
    replicas = given("dp_attn", layout.dp_attn, "", "attention replicas, each with its own requests and prompts")
    own = named("requests_per_attention_replica", batch / replicas, "requests")

    rounds = named("rounds", osl / own, "rounds", "decode rounds between two arrivals: one token to each request")
    prompt = named("prompt", chunks * maximum(0, mixed.interval - decode.interval), "s", "what riding chunks add")
    busy = named("prompt_steps", chunks * mixed.interval, "s", "the steps that carry one prompt")
    least = busy / given("max_prompt_load", MAX_PROMPT_LOAD, "", "prompts leave slack, or their queue has no bound")
    cycle = named("cycle", maximum(rounds * round_s + prompt, least), "s", "between two arrivals")
    rate = named("rate", replicas / cycle, "requests/s", "one finishes for each that arrives")
    tpot = named("tpot", cycle / rounds, "s", "others' prompts stretch every token's gap")

    load = named("prompt_load", busy / cycle, "", "share of time spent in steps that carry a prompt")
    # Prompts queue behind prompts (M/D/1); the step under way ends first.
    wait = named("wait", load * busy / (2 * (1 - load)), "s", "M/D/1 queue of prompts")
    latency = named("prefill_latency", mixed.token + (chunks - 1) * mixed.interval, "s", "its own chunks, in turn")
    ttft = named("ttft", latency + wait + decode.interval, "s")
    return Operation(tpot, ttft, rate, round_s, decode, mixed)
