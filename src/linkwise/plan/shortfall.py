"""The first resource that does not fit: the rank, what is needed, what there is, and what would help (DESIGN §2.4).

A change is named only where it removes the shortage: each was put through the same figures. Numbers are left to `fit`,
which looks for the smallest; "more ranks in the group" and "narrower weights" say a direction.
"""

import math
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.units import show_bytes, show_lack
from linkwise.plan.inventory import kv_layout
from linkwise.plan.memory import Case, RankFigures, case_of, rank_figures
from linkwise.plan.types import Shortfall

Check = Callable[[Case, RankFigures], Shortfall | None]

# Steps and shares an engine still runs with, from the mildest change down.
STEP_TOKENS = (8192, 4096, 2048, 1024, 512)
STEP_SEQS = (512, 256, 128, 64)
UTILISATIONS = (0.95, 0.97)
LOWER_UTILISATIONS = (0.9, 0.85, 0.8, 0.7)
_NARROWEST_BITS = 4
_BF16 = 16
WIDE_KV = frozenset({"bfloat16", "float16", "float32"})


def first_shortfall(case: Case, found: list[RankFigures]) -> Shortfall | None:
    """In the order weights, workspace, device memory, one request, target concurrency; the worst rank of the first."""
    for check in (_weights, _workspace, _device, _one_request, _concurrency):
        short = [(s, f) for f in found if (s := check(case, f)) is not None]
        if short:
            worst, f = max(short, key=lambda pair: pair[0].need - pair[0].have)
            offers = [text for text in _CHANGES[worst.resource](case, f, check) if text]
            return replace(worst, change=" or ".join(_listed(offers)))
    return None


def _listed(offers: list[str]) -> list[str]:
    return [", ".join(offers[:-1]), offers[-1]] if len(offers) > 1 else offers


def _weights(case: Case, f: RankFigures) -> Shortfall | None:
    need, budget = f.fixed.resident, f.space.budget
    if need <= budget:
        return None
    what = "weights and adapters" if f.fixed.adapters else "weights"
    needed, there, _ = show_lack(need, budget)
    return Shortfall(
        resource="weights", rank=f.who.first, need=need, have=budget, unit="B",
        reason=f"{what} take {needed} on each rank of {case.layout}, the budget is {there}",
    )  # fmt: skip


def _workspace(case: Case, f: RankFigures) -> Shortfall | None:
    if f.space.left >= 0:
        return None
    have = f.space.budget - f.fixed.resident
    need = have - f.space.left
    settings, peak = case.settings, f.peak.forward + f.peak.extra
    cause = f"{settings.max_batched_tokens:,} batched tokens"
    if f.peak.extra:
        cause = f"sampling up to {settings.max_seqs:,} requests over a vocabulary of {case.stock.model.vocab:,}"
    needed, there, _ = show_lack(need, have)
    rest = need - peak
    beside = f" and {show_bytes(rest)} for runtime, collective buffers and CUDA graphs" if rest else ""
    return Shortfall(
        resource="workspace", rank=f.who.first, need=need, have=have, unit="B",
        reason=f"weights leave {there}; working memory takes {needed}: {show_bytes(peak)} at the activation peak"
        f" ({cause}){beside}",
    )  # fmt: skip


def _device(case: Case, f: RankFigures) -> Shortfall | None:
    outside, spare = f.space.outside, f.space.spare
    if outside <= spare:
        return None
    what = "activations, graphs and runtime" if case.mode == "static" else "CUDA graphs"
    needed, there, _ = show_lack(outside, spare)
    return Shortfall(
        resource="device memory", rank=f.who.first, need=outside, have=spare, unit="B",
        reason=f"{what} live outside the budget and take {needed}, {there} are beside it",
    )  # fmt: skip


def _one_request(case: Case, f: RankFigures) -> Shortfall | None:
    demand, room = f.demand, max(0, f.demand.room)
    if demand.one <= room:
        return None
    longest = max(case.workload.total_tokens, case.options.max_model_len or 0)
    needed, there, _ = show_lack(demand.one, room)
    return Shortfall(
        resource="kv", rank=f.who.first, need=demand.one, have=room, unit="B",
        reason=f"one request of {longest:,} tokens needs {needed} of KV, {there} are left",
    )  # fmt: skip


def _concurrency(case: Case, f: RankFigures) -> Shortfall | None:
    demand, room = f.demand, f.demand.room
    if demand.need <= room:
        return None
    batches = f" ({case.in_flight} batches in flight)" if case.in_flight > 1 else ""
    headroom = f", headroom x {case.workload.burst:g} included" if case.workload.concurrency else ""
    needed, there, _ = show_lack(demand.need, room)
    return Shortfall(
        resource="kv concurrency", rank=f.who.first, need=demand.need, have=room, unit="B",
        reason=f"{case.target} requests of {case.workload.total_tokens:,} tokens{batches}{headroom} need {needed} of"
        f" KV; {there} hold {room // demand.request}",
    )  # fmt: skip


def _helps(case: Case, f: RankFigures, check: Check, **options: object) -> bool:
    """Whether options remove this shortage on this rank, and bring none that comes before it."""
    asked = replace(case.options, **options)
    try:
        changed = case_of(case.stock.model, case.cluster, case.engine, case.layout, asked, case.workload)
    except InputError:  # the engine has no such option, as ours stores no fp8 KV
        return False
    again = rank_figures(changed, f.who)
    for one in (_weights, _workspace, _device, _one_request, _concurrency):
        if one(changed, again) is not None:
            return False
        if one is check:
            return True
    return True


def _for_weights(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    yield "more ranks in the group"
    if case.stock.model.quantization == "none" and f.fixed.resident * _NARROWEST_BITS <= f.space.budget * _BF16:
        yield "narrower weights"


def _smaller_step(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    tokens, seqs = case.settings.max_batched_tokens, case.settings.max_seqs
    fewer = [n for n in STEP_TOKENS if n < tokens]
    rows = [n for n in STEP_SEQS if n < seqs]
    found = False
    for name, sizes in (("max_seqs", rows), ("max_batched_tokens", fewer)):
        best = next((n for n in sizes if _helps(case, f, check, **{name: n})), None)
        if best is not None:
            found = True
            yield f"{name} {best:,}"
    if not found and fewer and rows and _helps(case, f, check, max_batched_tokens=fewer[-1], max_seqs=rows[-1]):
        yield f"max_batched_tokens {fewer[-1]:,} with max_seqs {rows[-1]:,}"


def _for_workspace(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    yield from _smaller_step(case, f, check)
    yield from _more_share(case, f, check)
    yield "more ranks in the group"


def _more_share(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    for share in UTILISATIONS:
        if share > case.settings.memory_utilization and _helps(case, f, check, memory_utilization=share):
            yield f"memory_utilization {share:g}"
            return


def _for_device(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    for share in LOWER_UTILISATIONS:
        if share < case.settings.memory_utilization and _helps(case, f, check, memory_utilization=share):
            yield f"memory_utilization {share:g}"
            break
    yield from _smaller_step(case, f, check)
    if not case.options.eager and _helps(case, f, check, eager=True):
        yield "no CUDA graphs (eager)"


def _for_request(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    demand, room = f.demand, max(0, f.demand.room)
    if demand.per_token:
        block, over = case.settings.block_tokens, kv_layout(case.layout, case.convention)
        split = over.cp * over.dcp
        length = room // (demand.per_token * block) * block * split
        if length:
            yield f"a length of at most {length:,} tokens"
    yield from _narrow_kv(case, f, check)
    yield from _more_share(case, f, check)
    yield "more ranks in the group"


def _narrow_kv(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    if case.kv_dtype in WIDE_KV and _helps(case, f, check, kv_dtype="fp8"):
        yield "fp8 KV"


def _for_concurrency(case: Case, f: RankFigures, check: Check) -> Iterator[str]:
    # One request a replica is the least there is, and bursts need headroom even then.
    shared = bool(case.workload.concurrency)
    enough = shared and f.demand.room // f.demand.request >= math.ceil(case.workload.burst)
    if enough:
        yield "more replicas"
    yield "more ranks in the group"
    yield from _narrow_kv(case, f, check)
    yield from _more_share(case, f, check)
    if enough:
        yield "fewer requests at once"


_CHANGES: dict[str, Callable[[Case, RankFigures, Check], Iterator[str]]] = {
    "weights": _for_weights,
    "workspace": _for_workspace,
    "device memory": _for_device,
    "kv": _for_request,
    "kv concurrency": _for_concurrency,
}
