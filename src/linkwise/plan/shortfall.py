"""The first resource that does not fit: the rank, what is needed, what there is, and what would help (DESIGN §2.4)."""

from linkwise.core.units import show_bytes
from linkwise.plan.memory import Case, RankFigures
from linkwise.plan.types import Shortfall


def first_shortfall(case: Case, found: list[RankFigures]) -> Shortfall | None:
    """In the order weights, workspace, device memory, one request, target concurrency; the worst rank of the first."""
    for check in (_weights, _workspace, _device, _one_request, _concurrency):
        short = [s for s in (check(case, f) for f in found) if s is not None]
        if short:
            return max(short, key=lambda s: s.need - s.have)
    return None


def _weights(case: Case, f: RankFigures) -> Shortfall | None:
    need, budget = f.fixed.resident, f.space.budget
    if need <= budget:
        return None
    ranks = -(-need * case.layout.size // max(1, budget))
    what = "weights and adapters" if f.fixed.adapters else "weights"
    return Shortfall(
        resource="weights",
        rank=f.who.first,
        need=need,
        have=budget,
        unit="B",
        reason=f"{what} take {show_bytes(need)} on each rank of {case.layout}, the budget is {show_bytes(budget)}",
        change=f"at least {ranks} ranks in the group, or narrower weights",
    )


def _workspace(case: Case, f: RankFigures) -> Shortfall | None:
    if f.space.left >= 0:
        return None
    have = f.space.budget - f.fixed.resident
    settings, peak = case.settings, f.peak.forward + f.peak.extra
    cause = f"{settings.max_batched_tokens:,} batched tokens"
    change = "a smaller max_batched_tokens"
    if f.peak.extra:
        cause = f"sampling up to {settings.max_seqs:,} requests over a vocabulary of {case.stock.model.vocab:,}"
        change = "a smaller max_seqs or max_batched_tokens"
    return Shortfall(
        resource="workspace",
        rank=f.who.first,
        need=have - f.space.left,
        have=have,
        unit="B",
        reason=f"weights leave {show_bytes(have)}; the activation peak alone is {show_bytes(peak)} ({cause})",
        change=f"{change}, a higher memory_utilization, or more ranks in the group",
    )


def _device(case: Case, f: RankFigures) -> Shortfall | None:
    outside, spare = f.space.outside, f.space.spare
    if outside <= spare:
        return None
    what = "activations, graphs and runtime" if case.mode == "static" else "CUDA graphs"
    return Shortfall(
        resource="device memory",
        rank=f.who.first,
        need=outside,
        have=spare,
        unit="B",
        reason=f"{what} live outside the budget and take {show_bytes(outside)}, {show_bytes(spare)} are beside it",
        change="a lower memory_utilization, fewer batched tokens, or no CUDA graphs (eager)",
    )


def _one_request(case: Case, f: RankFigures) -> Shortfall | None:
    demand, room = f.demand, max(0, f.demand.room)
    if demand.one <= room:
        return None
    longest = max(case.workload.total_tokens, case.options.max_model_len or 0)
    fits = ""
    if demand.per_token:
        block, split = case.settings.block_tokens, case.layout.cp * case.layout.dcp
        fits = f"a length of at most {room // (demand.per_token * block) * block * split:,} tokens, "
    return Shortfall(
        resource="kv",
        rank=f.who.first,
        need=demand.one,
        have=room,
        unit="B",
        reason=f"one request of {longest:,} tokens needs {show_bytes(demand.one)} of KV, {show_bytes(room)} are left",
        change=f"{fits}fp8 KV, or more ranks in the group",
    )


def _concurrency(case: Case, f: RankFigures) -> Shortfall | None:
    demand, room = f.demand, f.demand.room
    if demand.need <= room:
        return None
    batches = f" ({case.in_flight} batches in flight)" if case.in_flight > 1 else ""
    headroom = f", headroom x {case.workload.burst:g} included" if case.workload.concurrency else ""
    return Shortfall(
        resource="kv concurrency",
        rank=f.who.first,
        need=demand.need,
        have=room,
        unit="B",
        reason=f"{case.target} requests of {case.workload.total_tokens:,} tokens{batches}{headroom} need"
        f" {show_bytes(demand.need)} of KV; {show_bytes(room)} hold {room // demand.request}",
        change="more replicas or ranks, fp8 KV, or fewer requests at once",
    )
