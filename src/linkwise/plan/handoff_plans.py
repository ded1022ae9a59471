"""A handoff between the pools of two plans: as many groups as the plans have, on the devices they were made for."""

from typing import NamedTuple

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.quantity import Given, Num
from linkwise.engine.registry import get
from linkwise.plan.disaggregate import Disaggregation, verdict
from linkwise.plan.engine_of import engine_of
from linkwise.plan.handoff import figures_of, of_case
from linkwise.plan.handoff_pair import Pair, Pools
from linkwise.plan.handoff_pools import Moved, Side, between, moved
from linkwise.plan.handoff_supply import Supply, supply
from linkwise.plan.handoff_types import Handoff, HandoffOptions
from linkwise.plan.pool_counts import Both, Groups
from linkwise.plan.pools import Pool, Question, pool_of
from linkwise.plan.types import Plan
from linkwise.workload.types import Workload


class Asked(NamedTuple):
    """The pools of two plans, the load they are to serve, and what a handoff between them takes."""

    found: Handoff
    pools: Pools
    workload: Workload
    sides: tuple[Pool, Pool]
    moved: Moved


def asked(prefill: Plan, decode: Plan, workload: Workload, factors: HandoffOptions) -> Asked:
    """Raises InputError for plans that do not go together, and for groups whose handoff is not modelled."""
    _check(prefill, decode)
    devices = sum(plan.replicas * plan.layout.size for plan in (prefill, decode))
    shared = prefill.cluster == decode.cluster and devices <= decode.cluster.size
    own, other = msgspec.to_builtins(prefill.options), msgspec.to_builtins(decode.options)
    pools = Pools(
        prefill=prefill.layout, decode=decode.layout, prefill_groups=prefill.replicas, decode_groups=decode.replicas,
        other=None if shared else decode.cluster, differs=tuple(name for name in own if own[name] != other[name]),
    )  # fmt: skip
    rate = workload.rate_per_s or 1.0
    # Between one group of each, as a plan's front has it.
    case = between(
        decode.model, Side(prefill.cluster, prefill.layout), Side(decode.cluster, decode.layout), shared=shared,
        prompt_tokens=workload.isl_tokens, engine=engine_of(decode), rate_per_s=rate / pools.routes,
        kv_dtype=decode.options.kv_dtype or "auto", options=factors,
    )  # fmt: skip
    sides = [
        pool_of(plan.model, plan.cluster, engine_of(plan), plan.layout, workload, plan.options)
        for plan in (prefill, decode)
    ]
    found = msgspec.structs.replace(of_case(case), rate_per_s=rate)
    return Asked(found, pools, workload, (sides[0], sides[1]), moved(case))


def judged(it: Asked, mixed: tuple[Pool, ...]) -> Disaggregation:
    """The pools against mixed groups on as many devices of their cluster."""
    groups = it.pools.prefill_groups, it.pools.decode_groups
    return verdict(
        Question(
            devices=groups[0] * it.sides[0].ranks + groups[1] * it.sides[1].ranks, groups=groups,
            output_tokens=it.workload.osl_tokens, mixed=mixed[0], others=mixed[1:], prefill=it.sides[0],
            decode=it.sides[1], ttft_s=it.workload.targets.ttft_s, tpot_s=it.workload.targets.tpot_s,
            rate_per_s=it.workload.rate_per_s, exposed_s=it.moved.exposed_s, link_rate_per_s=it.moved.rate_per_s,
            limiting_link=it.moved.link,
        )
    )  # fmt: skip


def served(it: Asked) -> Supply:
    """What the pools serve of the rate, without a verdict: devices of two kinds are not weighed against each other."""
    groups = Groups(it.pools.prefill_groups, it.pools.decode_groups)
    used = groups.prefill * it.sides[0].ranks, groups.decode * it.sides[1].ranks
    of = it.workload.targets
    both = Both(
        *it.sides, it.workload.osl_tokens, used[1], used[0], of.ttft_s, of.tpot_s, it.moved.exposed_s,
        it.moved.rate_per_s,
    )  # fmt: skip
    return supply(both, it.workload.rate_per_s or 1.0, groups, given=True)


def explained(pair: Pair, pools: Pools, given: Given) -> dict[str, Num]:
    """The figures of a handoff of two plans, from the inputs it embeds."""
    case = between(
        pair.served, Side(pair.cluster, pools.prefill), Side(pools.other or pair.cluster, pools.decode),
        shared=pools.other is None, prompt_tokens=pair.prompt_tokens, engine=get(pair.engine, pair.engine_version),
        rate_per_s=pair.rate_per_s / pools.routes, kv_dtype=pair.kv_dtype, options=pair.factors,
    )  # fmt: skip
    return figures_of(case, given)


def _check(prefill: Plan, decode: Plan) -> None:
    """Raises InputError for the first thing that pools have in common and these do not."""

    def same(what: str, one: object, other: object) -> None:
        if one != other:
            raise InputError(f"{what}: {one} and {other}"[:200], where="pools", expected="the same on both sides")

    same("model", prefill.model.name, decode.model.name)
    if prefill.model != decode.model:
        raise InputError(f"two forms of {decode.model.name}", where="pools", expected="the same model on both sides")
    engines = [f"{plan.engine} {plan.engine_version}" for plan in (prefill, decode)]
    same("engine", *engines)
    same("KV dtype", prefill.options.kv_dtype or "auto", decode.options.kv_dtype or "auto")
    for name in ("isl_tokens", "osl_tokens", "prefix_hit"):
        same(name, getattr(prefill.workload, name), getattr(decode.workload, name))
