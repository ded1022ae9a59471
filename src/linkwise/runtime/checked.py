"""A run's calls and memory, held against what was planned: what `linkwise run --check` finds."""

from linkwise.runtime.asked import Asked, kv_blocks
from linkwise.runtime.check import (
    Comparison,
    Memory,
    combined,
    compare,
    expected,
    expected_handoff,
    ledger_check,
    memory_check,
)
from linkwise.runtime.driver import LocalUnit


def compared(unit: LocalUnit, asked: Asked) -> tuple[Comparison, list[Memory]]:
    """Every step's calls, and the memory of every rank, against the plan's."""
    spec, model, engine = asked.spec, asked.model, asked.engine
    groups = [(0, spec.layout)] if spec.prefill is None else [(0, spec.prefill), (spec.prefill.size, spec.layout)]
    layouts = dict(groups)
    parts = []
    for one in unit.observed:
        if one.step is not None:
            layout = layouts[one.first]
            planned = {
                one.first + rank: expected(
                    model, layout, engine, one.step, rank, layers=spec.layers, first=one.first, options=asked.options
                )
                for rank in range(layout.size)
            }
        else:
            assert one.move is not None and spec.prefill is not None  # noqa: S101 - it is one of the two
            planned = {
                rank: expected_handoff(
                    model,
                    spec.prefill,
                    spec.layout,
                    engine,
                    one.move.tokens,
                    spec.block_tokens,
                    rank,
                    options=asked.options,
                )
                for rank in range(spec.ranks)
            }
        parts.append(compare(one.seen, planned))
    memory: list[Memory] = []
    for first, layout in groups:
        facts = unit.facts[first : first + layout.size]
        found = memory_check(
            model, layout, engine, weight_bytes=[fact.weight_bytes for fact in facts],
            kv_bytes=[fact.kv_bytes for fact in facts], kv_blocks=kv_blocks(spec, layout),
            block_tokens=spec.block_tokens, layers=spec.layers, options=asked.options,
        )  # fmt: skip
        memory += [one._replace(rank=first + one.rank) for one in found]
    return combined(parts), [*memory, *_ledgers(unit, asked)]


def _ledgers(unit: LocalUnit, asked: Asked) -> list[Memory]:
    """Memory against the plan file's own ledger, where the plan is our engine's and all of it is run as it stands."""

    plan, spec = asked.plan, asked.spec
    as_planned = plan is not None and plan.convention == asked.engine.name and plan.model.dtype == asked.model.dtype
    if plan is None or not as_planned or spec.layers or spec.prefill is not None:
        return []
    return ledger_check(
        plan,
        weight_bytes=[fact.weight_bytes for fact in unit.facts],
        kv_bytes=[fact.kv_bytes for fact in unit.facts],
        slots=kv_blocks(spec, spec.layout) * spec.block_tokens,
    )
