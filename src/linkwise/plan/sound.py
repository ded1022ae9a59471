"""Whether a plan that was read from a file can be true: types are checked when it is decoded, sense is checked here."""

import math

from linkwise.core.errors import InputError
from linkwise.core.layout import AXES
from linkwise.engine.sharding import ways
from linkwise.plan.collectives import ALGORITHMS
from linkwise.plan.engine_of import engine_of
from linkwise.plan.inventory import kv_layout
from linkwise.plan.types import Op, Plan

# Far beyond any machine, far below where arithmetic on it stops being exact or finite.
_MOST_BYTES = 10**16
_MOST_BATCH = 10**7


def check(plan: Plan, where: str) -> None:
    """Raises InputError naming the first field that contradicts the rest of the plan."""
    _check_grid(plan, where)
    if plan.chosen.layout != plan.layout:
        _refuse(where, "chosen.layout", str(plan.chosen.layout), str(plan.layout))
    for name, stated, own in (
        ("replicas", plan.chosen.replicas, plan.replicas), ("group_size", plan.chosen.group_size, plan.layout.size)
    ):  # fmt: skip
        if stated != own:
            _refuse(where, f"chosen.{name}", str(stated)[:40], f"{own}, as the plan has")
    front = plan.frontier
    if front is not None and front.choice is not None and not 0 <= front.choice < len(front.offers):
        _refuse(where, "frontier.choice", str(front.choice)[:40], "an index into frontier.offers, or none")
    if not 1 <= plan.chosen.point.batch <= _MOST_BATCH:
        _refuse(where, "chosen.point.batch", str(plan.chosen.point.batch)[:40], f"1..{_MOST_BATCH}")
    if not plan.ledger.ranks or not 0 <= plan.ledger.tightest < len(plan.ledger.ranks):
        _refuse(where, "ledger.tightest", str(plan.ledger.tightest)[:40], "an index into ledger.ranks")
    if plan.ledger.layout != plan.layout:
        _refuse(where, "ledger.layout", str(plan.ledger.layout), str(plan.layout))
    _check_ledger(plan, where)
    _check_calibration(plan, where)
    for field in ("tpot_s", "ttft_s", "rate_per_s", "tokens_per_s"):
        value = getattr(plan.chosen.point, field)
        if not 0 <= value < math.inf:
            _refuse(where, f"chosen.point.{field}", str(value)[:40], "a finite number, not negative")
    for step in ("prefill", "decode", "mixed"):
        for number, op in enumerate(getattr(plan, step)):
            _check_op(op, plan, where, f"{step}[{number}]")


def _check_grid(plan: Plan, where: str) -> None:
    """One row of the cluster's devices for every replica, no device twice."""
    size, devices, rows = plan.layout.size, plan.cluster.size, plan.rank_grid
    if len(rows) != plan.replicas:
        _refuse(where, "rank_grid", f"{len(rows)} rows", f"{plan.replicas} rows, one a replica")
    odd = next((row for row in rows if len(row) != size), None)
    if odd is not None:
        ranks = f"{size} in each, as many as the ranks of ({plan.layout})"
        _refuse(where, "rank_grid", f"a row of {len(odd)} devices", ranks)
    used = [device for row in rows for device in row]
    if len(set(used)) != len(used) or not all(0 <= d < devices for d in used):
        _refuse(where, "rank_grid", "a device twice or beyond the cluster", f"distinct devices 0..{devices - 1}")


def _check_calibration(plan: Plan, where: str) -> None:
    """The constants that the file embeds are those its times rest on, by name."""
    own = plan.step_calibration
    if own is not None and not own.constants:
        _refuse(
            where, "step_calibration.constants", "none", "those that the times rest on, or no step_calibration at all"
        )
    rests = own.label if own is not None else plan.cluster.constants.label
    if plan.calibration != rests and not plan.calibration.startswith(f"{rests}; links: "):
        given = rests[:80] if own is not None else "none"
        _refuse(where, "step_calibration", given, f"{plan.calibration[:80]!r}, which field calibration names")


def _check_ledger(plan: Plan, where: str) -> None:
    """The arithmetic of plan/memory.py, on the plan's own figures: a budget is the sum of its parts, and what is left
    for KV holds so many whole blocks and so many requests."""
    layout, block, burst = plan.layout, plan.resolved.block_tokens, plan.workload.burst
    over = kv_layout(layout, engine_of(plan).convention_for(plan.model, layout, plan.options))
    split = over.cp * over.dcp
    for number, rank in enumerate(plan.ledger.ranks):
        at = f"ledger.ranks[{number}]"
        parts = [e for e in rank.entries if e.place == "device" and e.in_budget and e.name.split(".")[0] != "kv"]
        _same(where, f"{at}.budget_bytes", rank.budget_bytes, sum(e.bytes for e in parts) + rank.kv_bytes)
        left = max(0, rank.kv_bytes)
        if rank.bytes_per_token and rank.kv_tokens is not None:
            tokens = left // (rank.bytes_per_token * block) * block * split
            _same(where, f"{at}.kv_tokens", rank.kv_tokens, tokens)
        request = plan.figures.get(f"request.rank{rank.ranks[0]}") if rank.ranks else None
        if request and request > 0 and burst > 0:
            room = max(0, left - sum(e.bytes for e in rank.entries if e.name == "kv.prefix_cache"))
            requests = max(math.floor(room / (request * burst)), min(1, room // request))
            _same(where, f"{at}.requests", rank.requests, int(requests))
    keeping = [r for r in plan.ledger.ranks if any(e.name.split(".")[0] == "kv" for e in r.entries)]
    if not keeping:
        return
    held = [r.kv_tokens for r in keeping]
    tokens_of_all = None if None in held else min(t for t in held if t is not None) * layout.dp_attn
    _same(where, "ledger.kv_tokens", plan.ledger.kv_tokens, tokens_of_all)
    _same(where, "ledger.requests", plan.ledger.requests, min(r.requests for r in keeping) * layout.dp_attn)
    _same(where, "chosen.kv_tokens", plan.chosen.kv_tokens, plan.ledger.kv_tokens)
    _same(where, "chosen.requests", plan.chosen.requests, plan.ledger.requests)


def _same(where: str, field: str, given: int | None, recomputed: int | None) -> None:
    if given != recomputed:
        expected = "none, for a hybrid stack" if recomputed is None else f"{recomputed:,}, as its parts make it"
        _refuse(where, field, "none" if given is None else f"{given:,}"[:40], expected)


def _check_op(op: Op, plan: Plan, where: str, field: str) -> None:
    if op.group not in AXES or op.size != ways(plan.layout, op.group):
        _refuse(where, f"{field}.group", f"{op.group[:40]} of {op.size}", f"an axis of {plan.layout} and its degree")
    if op.kind not in ALGORITHMS:
        _refuse(where, f"{field}.kind", op.kind[:40], ", ".join(ALGORITHMS))
    if not 0 <= op.stage < plan.layout.pp or not 1 <= op.repeat <= _MOST_BATCH:
        _refuse(where, f"{field}.stage", f"stage {op.stage}, {op.repeat} calls", f"stage 0..{plan.layout.pp - 1}")
    for name in ("S_bytes", "tokens", "useful_recv_bytes", "wire_sent_bytes", "wire_recv_bytes"):
        _check_bytes(getattr(op, name), where, f"{field}.{name}")
    if op.sizes and len(op.sizes) != op.size:
        _refuse(where, f"{field}.sizes", f"{len(op.sizes)} sizes", f"none or {op.size}")
    for value in op.sizes:
        _check_bytes(value, where, f"{field}.sizes")


def _check_bytes(value: object, where: str, field: str) -> None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not 0 <= value <= _MOST_BYTES:  # type: ignore[operator]
        _refuse(where, field, str(value)[:40], f"a number in 0..{_MOST_BYTES:g}")


def _refuse(where: str, field: str, given: str, expected: str) -> None:
    raise InputError(f"field {field}: {given}", where=where, expected=expected)
