"""The engine's settings of every group, written out so that a later release's defaults change nothing.

What the plan says is kept. The longest request is lowered where the KV of a group does not hold one: vLLM and SGLang
do not start then.
"""

from typing import NamedTuple

import msgspec

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError, Refused
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options, Refusal, Resolved
from linkwise.launch.types import Role
from linkwise.model.types import Model
from linkwise.plan.handoff_pair import Pair
from linkwise.plan.ledger import ledger
from linkwise.plan.types import Plan
from linkwise.workload.types import Workload

_SPARE = 0.9  # of the KV a plan expects: what a longest request may take of it

Source = Plan | Pair


class Settled(NamedTuple):
    """Settings by the role of a group, and what differs from the plan by them."""

    options: dict[Role, Options]
    differs: tuple[str, ...]


def settle(source: Source, model: Model, cluster: Cluster, own: Engine, engine: Engine) -> Settled:
    """Settings for every role. own: the source's engine; engine: the one that is started.

    Raises Refused where the layout does not run or does not fit: under another engine, or as a pool.
    """
    if isinstance(source, Pair):
        return _pools(source, model, cluster, engine)
    if engine.name != own.name:
        return _other_engine(source, model, cluster, own, engine)
    length, differs = _longest(
        engine, source.layout, source.resolved, source.ledger.kv_tokens, source.workload.total_tokens
    )
    chosen = source.options
    return Settled({"both": _written(chosen, source.resolved, length or chosen.max_model_len)}, differs)


def refused(refusal: Refusal, where: str) -> Refused:
    """A refusal as an error, with what helps."""
    return Refused(refusal.reason, where=where, hint=f"What helps: {refusal.change}" if refusal.change else "")


def _written(chosen: Options, now: Resolved, length: int | None) -> Options:
    return msgspec.structs.replace(
        chosen,
        memory_utilization=now.memory_utilization,
        max_batched_tokens=now.max_batched_tokens,
        max_seqs=now.max_seqs,
        max_model_len=length,
    )


def _longest(
    engine: Engine, layout: Layout, now: Resolved, kv_tokens: int | None, needed: int, role: str = ""
) -> tuple[int | None, tuple[str, ...]]:
    """The longest request to allow where the engine's own choice is too long, and what to say; None = leave it.

    kv_tokens: of a group; None = its state does not grow with tokens. needed: tokens of a request that must run.
    """
    if kv_tokens is None:
        return None, ()
    asked, held = now.max_model_len, kv_tokens // layout.dp_attn  # a request lies on one attention replica
    length = max(needed, int(held * _SPARE))
    if asked <= held * _SPARE or length >= asked:
        return None, ()
    return length, (
        f"{f'{role}: ' if role else ''}the longest request is {length} tokens, not {asked}: KV is planned to hold"
        f" {held} tokens, and {engine.name} does not start when one request may need more",
    )


def _pools(source: Pair, model: Model, cluster: Cluster, engine: Engine) -> Settled:
    """Both pools, each by its own layout: a prefill group holds prompts, a decode group whole requests."""
    base = msgspec.structs.replace(source.settings, kv_dtype=None if source.kv_dtype == "auto" else source.kv_dtype)
    sides: tuple[tuple[Role, Layout, int], ...] = (
        ("prefill", source.prefill, 1), ("decode", source.decode, source.output_tokens),
    )  # fmt: skip
    options: dict[Role, Options] = {}
    said: list[str] = []
    for role, layout, output in sides:
        load = Workload(isl_tokens=source.prompt_tokens, osl_tokens=output)
        memory = ledger(model, cluster, engine, layout, base, load)
        if memory.shortfall is not None:
            raise Refused(memory.shortfall.reason, where=f"{role} group, {layout}", hint=memory.shortfall.change)
        now = engine.resolve(base, model, cluster.accelerator, layout)
        length, differs = _longest(engine, layout, now, memory.kv_tokens, load.total_tokens, role)
        options[role] = _written(base, now, length or base.max_model_len)
        said += differs
    return Settled(options, tuple(said))


def _other_engine(plan: Plan, model: Model, cluster: Cluster, own: Engine, engine: Engine) -> Settled:
    """What the plan's layout is under another engine. Raises Refused where it does not run or does not fit there."""
    refusal = engine.refuses(model, plan.layout, devices_per_node=cluster.devices_per_node, options=plan.options)
    if refusal is not None:
        raise refused(refusal, f"{plan.layout} under {engine.name}")
    try:
        model = engine.holds(model, plan.options, cluster.accelerator)
        engine.command("model", plan.layout, plan.options)
        there = engine.resolve(plan.options, model, cluster.accelerator, plan.layout)
    except InputError as error:
        raise Refused(error.message, where=f"{own.name}'s plan under {engine.name}", expected=error.expected) from None
    memory = ledger(model, cluster, engine, plan.layout, plan.options, plan.workload)
    if memory.shortfall is not None:
        raise Refused(
            f"does not fit under {engine.name}: {memory.shortfall.reason}",
            where=f"{plan.layout}", hint=memory.shortfall.change,
        )  # fmt: skip
    said = [f"the plan was made for {own.name} {own.version}: times and figures are not those of {engine.name}"]
    for field in there.__struct_fields__:
        before, after = getattr(plan.resolved, field), getattr(there, field)
        if before != after:
            said.append(f"{field} {after}, the default of {engine.name}; the plan has {before}")
    if memory.kv_tokens != plan.ledger.kv_tokens:
        said.append(f"KV tokens of a replica: {memory.kv_tokens} under {engine.name}, {plan.ledger.kv_tokens} planned")
    length, differs = _longest(engine, plan.layout, there, memory.kv_tokens, plan.workload.total_tokens)
    written = _written(plan.options, there, length or plan.options.max_model_len)
    return Settled({"both": written}, (*said, *differs))
