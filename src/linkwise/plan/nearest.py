"""No layout is feasible: which changes would make one so. Every change offered has been searched, not guessed."""

import math
from collections.abc import Callable

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.core.units import show_time
from linkwise.model import quant
from linkwise.model.types import Model
from linkwise.plan import fit
from linkwise.plan.choose import choose, has_load
from linkwise.plan.ledger import ledger
from linkwise.plan.search import search
from linkwise.plan.types import Candidate, Rejection
from linkwise.workload.types import Targets, Workload

Best = Callable[[Model, Workload], Candidate | None]
_MEMORY = {"weights", "workspace", "device memory", "kv", "kv concurrency"}


def changes(
    case: fit.Case, fixed: dict[str, int], replicas: int | None, nearest: Rejection, counted: Candidate | None = None
) -> tuple[str, ...]:
    """The smallest changes that would make a plan feasible, most useful first.

    replicas: so many as were asked for. counted: what is feasible with another number of them.
    """
    model, cluster, engine, options, workload = case
    short = nearest.shortfall
    offers = [_another_number(counted, replicas, workload, cluster)] if counted is not None else []
    if short.resource in _MEMORY:
        memory = ledger(model, cluster, engine, nearest.layout, options, workload)
        if memory.shortfall is None:  # so many replicas have no room, as many as the devices hold have
            return tuple(offers) or (short.change,)
        return fit.nearest(case, fit.Tried(nearest.layout, memory), chosen=bool(fixed))

    def best(what: Model, load: Workload) -> Candidate | None:
        found = search(what, cluster, engine, options, load, fixed, replicas).candidates
        return choose(found, load, cluster)[0] if found else None

    if short.resource == "legality":
        return tuple(text for text in (*offers, short.change) if text)
    offers += [_as_it_is(best, model, workload), _narrower(best, model, workload), _looser(best, model, workload)]
    if short.resource == "rate":
        offers.append(_more_devices(best, model, workload, cluster))
    elif short.change:
        offers.append(short.change)
    return tuple(text for text in offers if text)


def _another_number(one: Candidate, asked: int | None, workload: Workload, cluster: Cluster) -> str:
    """How many replicas carry the load, and how many the devices hold."""
    most, word = cluster.size // one.group_size, "fewer" if (asked or 0) > one.replicas else "more"
    if not has_load(workload):
        return f"{word} replicas: {most} x ({one.layout}) fit the devices"
    return f"{word} replicas: {one.replicas} x ({one.layout}) carry the load, {most} fit the devices"


def _as_it_is(best: Best, model: Model, workload: Workload) -> str:
    """What the cluster does deliver inside the latency targets."""
    if workload.rate_per_s is None:
        return ""
    one = best(model, replace(workload, rate_per_s=None))
    if one is None:
        return ""
    carried = one.max_rate_per_s * one.replicas
    return (
        f"a rate of {carried:.2f}/s: {one.replicas} x ({one.layout}) carry it at TPOT {show_time(one.point.tpot_s)}"
        f" and TTFT {show_time(one.point.ttft_s)}, tensor groups inside the {one.tier} tier"
    )


def _narrower(best: Best, model: Model, workload: Workload) -> str:
    """FP8 weights, where the checkpoint is not quantised yet."""
    if model.quantization != "none":
        return ""
    tensors, _ = quant.what_if(model.tensors, "fp8", model.dtype)
    one = best(replace(model, tensors=tensors, quantization="fp8"), workload)
    return f"fp8 weights: {one.replicas} x ({one.layout}) meet every target" if one else ""


def _looser(best: Best, model: Model, workload: Workload) -> str:
    """The same load with the latency targets lifted, and what latency it then has."""
    targets = workload.targets
    if targets.ttft_s is None and targets.tpot_s is None:
        return ""
    one = best(model, replace(workload, targets=Targets()))
    if one is None:
        return ""
    return (
        f"looser targets: {one.replicas} x ({one.layout}) carry the load at TPOT {show_time(one.point.tpot_s)} and TTFT"
        f" {show_time(one.point.ttft_s)}"
    )


def _more_devices(best: Best, model: Model, workload: Workload, cluster: Cluster) -> str:
    """Replicas add up: the devices that carry the whole rate."""
    if workload.rate_per_s is None:
        return ""
    one = best(model, replace(workload, rate_per_s=None))
    if one is None:
        return ""
    devices = math.ceil(workload.rate_per_s / one.max_rate_per_s - 1e-9) * one.group_size
    nodes = math.ceil(devices / cluster.devices_per_node)
    return f"{devices} devices ({nodes} nodes): {devices // one.group_size} x ({one.layout}) carry the whole rate"
