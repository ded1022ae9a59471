"""What stands beside the plan's own steps in the picture: a handoff, and traffic counted at another placement."""

from collections.abc import Sequence

from linkwise.cluster.links import links
from linkwise.core.errors import InputError
from linkwise.plan import handoff_types
from linkwise.plan.handoff_pair import Pair
from linkwise.plan.handoff_types import Handoff
from linkwise.plan.step import kv_dtype_of
from linkwise.plan.traffic_types import LinkLoad, Part, Traffic
from linkwise.plan.types import Plan
from linkwise.report.page.picture import Counted

HANDOFF = "handoff"


def handoff(found: Handoff, plan: Plan) -> Counted:
    """One request's KV on its way. Raises InputError when it is of another model or on another cluster."""
    loads = tuple(map(_load, found.links))
    _check(found.model, loads, plan, "handoff")
    busiest = max(loads, key=lambda one: one.busy_s, default=None)
    # A request's bytes cross in the time between two requests.
    return Counted(HANDOFF, 1, 1 / found.rate_per_s, loads, busiest.name if busiest else "")


def unlike(found: Pair, plan: Plan) -> tuple[str, ...]:
    """What a handoff was planned for otherwise than the plan, in words. Raises InputError for another cluster."""
    own, other = plan.cluster, found.cluster
    if (own.name, own.size, own.devices_per_node) != (other.name, other.size, other.devices_per_node):
        raise InputError(
            f"a handoff on {other.name[:80]}, {other.size} devices", where="handoff",
            expected=f"one on the plan's cluster, {own.name}, {own.size} devices",
        )  # fmt: skip
    asks = plan.workload
    pairs = (
        (f"{found.engine} {found.engine_version}", f"{plan.engine} {plan.engine_version}"),
        (f"prompts of {found.prompt_tokens} tokens", f"prompts of {asks.isl_tokens} tokens"),
        (f"answers of {found.output_tokens} tokens", f"answers of {asks.osl_tokens} tokens"),
        (f"KV in {found.kv_dtype}", f"KV in {kv_dtype_of(plan.model, plan.options)}"),
        (f"weights quantized: {found.served.quantization}", f"weights quantized: {plan.model.quantization}"),
        (f"{found.rate_per_s:g} requests/s", f"{asks.rate_per_s:g} requests/s" if asks.rate_per_s else "no rate"),
    )
    said = tuple(f"it is for {theirs}, the plan for {ours}" for theirs, ours in pairs if theirs != ours)
    return said if own == other else ("its links have other figures than the plan's", *said)


def traffic(name: str, found: Traffic, over_s: float, plan: Plan) -> Counted:
    """A step as `linkwise traffic --json` counted it. over_s: the plan's own turn of that step.

    Raises InputError when it is of another model or on another cluster.
    """
    _check(found.model, found.links, plan, "traffic")
    return Counted(f"{found.step} of {name}", 1, over_s, found.links, found.busiest_by_time)


def _check(model: str, loads: Sequence[LinkLoad], plan: Plan, what: str) -> None:
    if model != plan.model.name:
        raise InputError(f"{what} of {model[:80]}", where=what, expected=f"that of {plan.model.name}")
    known = {f"{link.src}>{link.dst}" for link in links(plan.cluster)}
    other = next((one.name for one in loads if one.name not in known), None)
    if other is not None:
        where = f"that on the plan's cluster, {plan.cluster.name}"
        raise InputError(f"{what} over {other[:80]}", where=what, expected=where)


def _load(one: handoff_types.LinkLoad) -> LinkLoad:
    src, _, dst = one.link.partition("->")
    return LinkLoad(
        src=src,
        dst=dst,
        kind=one.kind,
        tier="",
        spec_Bps=one.spec_Bps,
        effective_Bps=one.effective_Bps,
        bytes=one.wire_bytes,
        busy_s=one.seconds,
        parts=(Part(role="kv.handoff", group=HANDOFF, bytes=one.wire_bytes),),
    )
