"""From a plan file to the pools of a simulation: the engine's policy, the plan's KV, the plan's own step times."""

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.plan.handoff_pools import Side, handover
from linkwise.plan.operate import in_flight
from linkwise.plan.time import US
from linkwise.plan.types import Plan
from linkwise.simulate.cost import tables_of
from linkwise.simulate.rules import Pool, Rules, Transfer
from linkwise.simulate.served import Served, served
from linkwise.simulate.tables import Tables
from linkwise.workload.requests import Requests

MOST_TOKENS = 1 << 18  # of a step the tables hold


def longest_of(plan: Plan) -> int:
    """Most tokens of one request, prompt and answer."""
    return min(plan.resolved.max_model_len, plan.model.max_len)


def rules_of(plan: Plan) -> tuple[Rules, tuple[str, ...]]:
    """How the plan's replicas batch, and what of it is not exact."""
    return rules_for(served(plan))


def rules_for(what: Served) -> tuple[Rules, tuple[str, ...]]:
    """How one serving group batches, and what of it is not exact."""
    notes = []
    batching = what.engine.batching
    resolved, layout, verify = what.resolved, what.layout, 1 + what.options.mtp_tokens
    c = what.engine.step_constants(what.cluster)
    if resolved.max_batched_tokens > MOST_TOKENS:
        notes.append(f"steps hold {MOST_TOKENS:,} tokens at most here, not {resolved.max_batched_tokens:,}")
    tokens = what.kv_tokens
    if tokens is None:
        lengths = what.workload.total_tokens
        tokens = int(what.requests * what.workload.burst * lengths)
        notes.append(
            f"a hybrid stack has no KV bytes per token: its room is taken as {tokens:,} tokens, what the plan's"
            f" {what.requests:,} requests of {lengths:,} tokens leave and take"
        )
    blocks = tokens // layout.dp_attn // resolved.block_tokens
    if blocks < 1:
        raise InputError("the plan leaves no room for KV", where="simulate", expected="a plan that holds a request")
    return Rules(
        policy=batching.policy, chunked=batching.cuts_prompts, reserve=batching.reserve, ahead=batching.ahead,
        budget=min(resolved.max_batched_tokens, MOST_TOKENS),
        max_seqs=resolved.max_seqs, slots=in_flight(layout, what.options), lanes=layout.dp_attn,
        block_tokens=resolved.block_tokens, kv_blocks=blocks, verify=verify,
        part_blocks=batching.part_blocks and not any(x.mixer in {"linear", "mamba"} for x in what.model.layers),
        acceptance=what.options.mtp_acceptance if verify > 1 else 1.0, front_s=c.request_us * US,
        front_each_s=c.request_each_us * US, front_prompt_s=c.request_token_us * US,
    ), tuple(notes)  # fmt: skip


def pool_of(
    plan: Plan, load: Requests, *, role: str = "both", replicas: int | None = None
) -> tuple[Pool, tuple[str, ...]]:
    """A pool of the plan's replicas for these requests, and what of it is not exact."""
    return pool_for(served(plan), load, role=role, replicas=replicas or plan.replicas)


def pool_for(what: Served, load: Requests, *, role: str, replicas: int) -> tuple[Pool, tuple[str, ...]]:
    """A pool of such groups for these requests, and what of it is not exact."""
    rules, notes = rules_for(what)
    if role == "decode":  # its requests come from the other pool
        rules = replace(rules, front_s=0.0, front_each_s=0.0, front_prompt_s=0.0)
    if role == "prefill":  # a prompt holds no room for its answer, which is drawn elsewhere
        rules = replace(rules, reserve=0.0)
    tables = tables_for(what, rules, load)
    return Pool(rules, tables, replicas, role, f"{what.layout}, {what.cluster.name}"), notes


def tables_for(what: Served, rules: Rules, load: Requests, *, coarse: bool = False) -> Tables:
    """Every step a group that batches by these rules can make for these requests. coarse: see tables_of."""
    longest = int((load.input_tokens + load.output_tokens).max()) + rules.verify
    sampled = rules.slot_seqs * rules.verify + 1
    budget, rows = max(rules.budget, sampled), max(sampled, rules.budget)
    return tables_of(what, longest, budget=budget, sampled=rows, coarse=coarse)


def transfer_of(
    prefill: Plan, decode: Plan, load: Requests, *, replicas: tuple[int, int] | None = None, shared: bool | None = None
) -> tuple[Transfer, tuple[str, ...]]:
    """Seconds of a prompt's handover between the two plans' groups, and what they rest on.

    replicas: of each side, in place of the plans'. shared: whether both pools are on one cluster; None = where the
    plans name the same one and it holds both. Asked at two lengths, and a line drawn through them.
    """
    if prefill.model != decode.model:
        raise InputError(
            f"{prefill.model.name} and {decode.model.name}", where="pools", expected="the same model on both sides"
        )
    counts = replicas or (prefill.replicas, decode.replicas)
    if shared is None:
        sides = [Side(p.cluster, p.layout, n) for p, n in zip((prefill, decode), counts, strict=True)]
        same, room = prefill.cluster == decode.cluster, decode.cluster.size
        shared = same and sum(side.devices for side in sides) <= room
    return transfer_for(served(prefill), served(decode), load, replicas=counts, shared=shared)


def transfer_for(
    prefill: Served, decode: Served, load: Requests, *, replicas: tuple[int, int], shared: bool
) -> tuple[Transfer, tuple[str, ...]]:
    """`transfer_of` two kinds of groups of one model."""
    sides = [Side(one.cluster, one.layout, n) for one, n in zip((prefill, decode), replicas, strict=True)]
    middle = max(2, int(load.input_tokens.mean()))
    seen = [
        handover(
            decode.model, *sides, shared=shared, prompt_tokens=tokens, engine=decode.engine,
            kv_dtype=decode.options.kv_dtype or "auto",
        )
        for tokens in (middle, 2 * middle)
    ]  # fmt: skip
    once, twice = (one.transfer_s + one.copy_s for one in seen)
    each = (twice - once) / middle
    notes = [f"a prompt of {middle:,} tokens takes {once * 1e3:.3g} ms on {seen[0].limiting}, after its prefill"]
    if not shared:
        notes.append("the pools are on clusters of their own: their NICs join them, the network between is as wide")
    if seen[0].refused is not None:
        notes.append(f"{seen[0].connector} would not do this handover: {seen[0].refused.reason}")
    route = f"{seen[0].limiting}, {once * 1e3:.3g} ms a prompt of {middle:,} tokens"
    return Transfer(base_s=max(0.0, once - each * middle), token_s=max(0.0, each), route=route), tuple(notes)


def with_engine(plan: Plan, **changes: object) -> Plan:
    """The plan with other settings of the engine, as a what-if."""
    return replace(plan, resolved=replace(plan.resolved, **changes))


__all__ = ["longest_of", "pool_of", "rules_of", "transfer_of", "with_engine"]
