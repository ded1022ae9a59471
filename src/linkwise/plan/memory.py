"""The figures of one rank's memory, computed once for every number type: plain integers for the search, recording
numbers for `explain`. What they mean as a ledger is ledger.py's question."""

import math
from typing import NamedTuple

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, floor, maximum, minimum, named, plain, total, value_of, where
from linkwise.engine.base import Convention, Engine, Options, Resolved
from linkwise.model.types import Model
from linkwise.plan.activations import Peak, peak
from linkwise.plan.inventory import Inventory, Stage, bytes_per_token, inventory, kv_layout
from linkwise.plan.residents import (
    Line,
    RankClass,
    adapters,
    draft_bytes_per_token,
    request_states,
    weights,
)
from linkwise.plan.step import kv_dtype_of
from linkwise.workload.types import Workload

_FACTS = "engine facts: memory"


class Case(NamedTuple):
    """One question, resolved: what the figures of every rank class rest on.

    target: requests one attention replica must hold, bursts included. in_flight: batches a pipeline keeps in flight.
    """

    stock: Inventory
    cluster: Cluster
    engine: Engine
    layout: Layout
    options: Options
    workload: Workload
    settings: Resolved
    convention: Convention
    kv_dtype: str
    in_flight: int
    target: int

    @property
    def mode(self) -> str:
        """What the engine's utilisation is a share of: total, static or free."""
        return self.engine.defaults.utilization_of


class Fixed(NamedTuple):
    """Bytes of a rank that no workload changes."""

    weights: Num
    adapters: Num
    resident: Num
    runtime: Num
    collective: Num
    graphs: Num


class Space(NamedTuple):
    """budget: what the engine counts. left: of it for KV. outside: what it does not count. spare: room for that.

    reserve: free memory an engine leaves alone (mode "free").
    """

    budget: Num
    left: Num
    outside: Num
    spare: Num
    reserve: Num


class Demand(NamedTuple):
    """States of requests on one rank. per_token, tokens: None for a hybrid stack, which is never divided.

    states: one request at the workload's lengths, by state. one: the longest that must fit. need: the target's.
    """

    per_token: int | None
    tokens: Num | None
    states: dict[str, Num]
    request: Num
    one: Num
    prefix: Num
    room: Num
    need: Num
    requests: Num


class RankFigures(NamedTuple):
    """Every figure of one rank class. short: bytes missing of the first resource that does not fit, 0 when all do."""

    who: RankClass
    lines: list[Line]
    fixed: Fixed
    peak: Peak
    space: Space
    demand: Demand
    short: Num

    @property
    def workspace(self) -> Num:
        """Working memory beside weights: activations, sampler, runtime, collective buffers, graphs."""
        fixed = self.fixed
        return total((self.peak.forward, self.peak.extra, fixed.runtime, fixed.collective, fixed.graphs))


def within_length(model: Model, options: Options, workload: Workload) -> Workload:
    """The workload, if its requests are no longer than the model, or the limit given, allows.

    Lengths nobody gave are cut to fit; lengths that were given raise InputError.
    """
    limit, name = options.max_model_len or model.max_len, "max_model_len" if options.max_model_len else model.name
    if not limit or workload.total_tokens <= limit:
        return workload
    usual = Workload()
    if (workload.isl_tokens, workload.osl_tokens) == (usual.isl_tokens, usual.osl_tokens) and limit > 1:
        output = max(1, limit * usual.osl_tokens // usual.total_tokens)
        return replace(workload, isl_tokens=limit - output, osl_tokens=output)
    raise InputError(
        f"requests of {workload.isl_tokens:,} + {workload.osl_tokens:,} tokens",
        where="workload",
        expected=f"at most {limit:,} tokens in all ({name})",
    )


def case_of(
    model: Model, cluster: Cluster, engine: Engine, layout: Layout, options: Options, workload: Workload
) -> Case:
    """Resolve what the user left open. Raises InputError for options that contradict the model."""
    if options.mtp_tokens and not model.mtp_layers:
        raise InputError(
            f"mtp_tokens is {options.mtp_tokens}", where="options", expected=f"0: {model.name} carries no MTP layers"
        )
    in_flight = options.microbatches or layout.pp
    target = in_flight
    if workload.concurrency is not None:
        replicas = max(1, cluster.size // layout.size) * layout.dp_attn
        target = math.ceil(-(-workload.concurrency // replicas) * workload.burst)
    return Case(
        stock=inventory(model),
        cluster=cluster,
        engine=engine,
        layout=layout,
        options=options,
        workload=workload,
        settings=engine.resolve(options, model, cluster.accelerator, layout),
        convention=engine.convention_for(model, layout, options),
        kv_dtype=kv_dtype_of(model, options),
        in_flight=in_flight,
        target=target,
    )


def rank_figures(case: Case, who: RankClass, given: Given = plain) -> RankFigures:
    """Every figure of one rank class."""
    lines = weights(case.stock, who, case.layout, case.engine, case.convention, case.options, given)
    fixed = _fixed(case, who, lines, given)
    work = peak(
        case.stock, who.stage, case.layout, case.engine.memory, case.convention, case.options, case.settings, given
    )
    space = _space(case, fixed, work, given)
    demand = _demand(case, who.stage, space.left, given)
    short = _short(
        weights=fixed.resident - space.budget,
        workspace=0 - space.left,
        device=space.outside - space.spare,
        request=demand.one - demand.room,
        concurrency=demand.need - demand.room,
    )
    return RankFigures(who, lines, fixed, work, space, demand, short)


def _fixed(case: Case, who: RankClass, lines: list[Line], given: Given) -> Fixed:
    memory, options = case.engine.memory, case.options
    size = total(line.bytes for line in lines)
    whole = case.stock.weight_bytes
    note = f"{value_of(size) / max(1, whole):.1%} of the checkpoint's {whole / 1e9:.1f} GB on this rank"
    size = named("weights", size, "B", note)
    lora = adapters(case.stock, who, case.layout, case.convention, options, given)
    eager = options.eager or not case.engine.defaults.cuda_graphs
    return Fixed(
        weights=size,
        adapters=lora,
        resident=named("resident", size + lora, "B", "weights and adapters") if options.lora_count else size,
        runtime=given("runtime", memory.runtime_bytes, "B", f"{_FACTS}, context and libraries"),
        collective=given("collective", memory.collective_bytes if case.layout.size > 1 else 0, "B", _FACTS),
        graphs=given("cuda_graphs", 0 if eager else memory.graph_bytes, "B", _FACTS),
    )


def _space(case: Case, fixed: Fixed, work: Peak, given: Given) -> Space:
    """The budget by the engine's rule, and what weights and working memory leave of it."""
    accelerator = case.cluster.accelerator
    device = given("device", accelerator.memory_bytes, "B", accelerator.memory_source)
    share = given("utilisation", case.settings.memory_utilization, "", "option or engine default")
    working = total((work.forward, work.extra, fixed.runtime, fixed.collective))
    graphs_inside = case.engine.memory.graphs_in_budget
    inside = working + fixed.graphs if graphs_inside else working
    if case.mode == "free":
        # The share is of what a trial run leaves free: the budget is the device, and the rest of it stays unused.
        free = named("free", device - fixed.resident - inside, "B", "after loading weights and a trial run")
        left = named("kv", where(free > 0, floor(free * share), free), "B", "left for KV")
        reserve = named("reserve", free - left, "B")
        return Space(device, left, 0 if graphs_inside else fixed.graphs, reserve, reserve)
    budget = named("budget", floor(device * share), "B", "device memory x utilisation")
    spare = named("beside_budget", device - budget, "B")
    if case.mode == "static":
        # The budget is weights and KV; everything else lives beside it.
        left = named("kv", budget - fixed.resident, "B", "left for KV")
        return Space(budget, left, working + fixed.graphs, spare, 0)
    left = budget - fixed.resident - inside
    left = named("kv", left, "B", f"left for KV: {value_of(left) / max(1, value_of(budget)):.0%} of the budget")
    return Space(budget, left, 0 if graphs_inside else fixed.graphs, spare, 0)


def _demand(case: Case, stage: Stage, left: Num, given: Given) -> Demand:
    """What requests keep on a rank of a stage, and how many of them there is room for."""
    options, workload, block = case.options, case.workload, case.settings.block_tokens
    layout = kv_layout(case.layout, case.convention)

    def of(length: Num) -> dict[str, Num]:
        return request_states(case.stock, stage, layout, options, case.kv_dtype, length, block)

    each = bytes_per_token(case.stock, stage, layout, case.kv_dtype)
    tokens: Num | None = None
    if each is not None:
        each += draft_bytes_per_token(case.stock, stage, layout, options, case.kv_dtype)
    if each:
        per_token = given(
            "bytes_per_token", each, "B", f"{case.kv_dtype} entries of a token in every layer of this rank"
        )
        split = given("cp x dcp", layout.cp * layout.dcp, "", "ranks a request's tokens are split over")
        tokens = named(
            "rank_tokens", maximum(0, left) // (per_token * block) * block * split, "tokens", f"whole blocks of {block}"
        )
    states = of(given("length", workload.total_tokens, "tokens", "workload: prompt and output"))
    request = named("request", total(states.values()), "B", "one request at the workload's lengths, whole blocks")
    one, prefix, room = request, 0, left
    if options.max_model_len and options.max_model_len > workload.total_tokens:
        longest = given("max_model_len", options.max_model_len, "tokens", "option: one such request must fit")
        one = named("longest_request", total(of(longest).values()), "B")
    if options.prefix_cache_tokens:
        cached = of(given("prefix_cache_tokens", options.prefix_cache_tokens, "tokens", "option"))
        prefix = named("prefix_cache", total(cached.values()), "B")
        room = named("room", left - prefix, "B", "for running requests")
    need = named("kv_needed", given("target", case.target, "requests", _target(case)) * request, "B")
    requests = _requests(room, request, case, given) if states else 0
    return Demand(each, tokens, states, request, one, prefix, room, need, requests)


def _requests(room: Num, request: Num, case: Case, given: Given) -> Num:
    """Requests of the workload's lengths one attention replica holds, all batches in flight together."""
    usable = maximum(0, room)
    burst = given("burst", case.workload.burst, "", "workload: headroom over the mean number in flight")
    # Where not even two requests fit there is no headroom to keep: the one that fits is served.
    count = maximum(floor(usable / (request * burst)), minimum(1, usable // request))
    return named("requests", count, "requests", "at the workload's lengths, after headroom for bursts")


def _target(case: Case) -> str:
    if case.workload.concurrency is None:
        return "one request in each batch in flight: the workload asks for no concurrency"
    return (
        f"workload: {case.workload.concurrency} in flight in all, one attention replica's share x"
        f" {case.workload.burst:g} for bursts"
    )


def _short(**by_resource: Num) -> Num:
    """Bytes missing of the first resource that does not fit, in the order given."""
    lacks = [named(f"{name}_short", lack, "B") for name, lack in by_resource.items()]
    result = maximum(0, lacks[-1])
    for lack in reversed(lacks[:-1]):
        result = where(lack > 0, lack, result)
    return named("short", result, "B", "of the first resource that does not fit")


def group_figures(case: Case, found: list[RankFigures], given: Given = plain) -> tuple[Num | None, Num]:
    """KV tokens (None for a hybrid stack) and requests of the whole group: the tightest class, times its replicas."""
    replicas = given("dp_attn", case.layout.dp_attn, "", "attention replicas, each with its own requests")
    keeping = [f.demand for f in found if f.demand.states]
    if not keeping:
        return None, 0
    requests, tokens = keeping[0].requests, keeping[0].tokens
    for demand in keeping[1:]:
        requests = minimum(requests, demand.requests)
        tokens = None if tokens is None or demand.tokens is None else minimum(tokens, demand.tokens)
    note = "of the group: the tightest rank class"
    if tokens is not None:
        tokens = named("kv_tokens", tokens * replicas, "tokens", note)
    return tokens, named("requests", requests * replicas, "requests", note)
