"""A handoff on the plan's picture: one request's KV on its way from prefill to decode ranks."""

from linkwise.cluster.links import links
from linkwise.core.errors import InputError
from linkwise.plan import handoff_types
from linkwise.plan.handoff_types import Handoff
from linkwise.plan.traffic_types import LinkLoad, Part
from linkwise.plan.types import Plan
from linkwise.report.page.picture import Counted

STEP = "handoff"


def counted(found: Handoff, plan: Plan) -> Counted:
    """The handoff as one more step. Raises InputError when it is of another model or on another cluster."""
    if found.model != plan.model.name:
        raise InputError(f"a handoff of {found.model}", where="handoff", expected=f"one of {plan.model.name}")
    loads = tuple(map(_load, found.links))
    known = {f"{link.src}>{link.dst}" for link in links(plan.cluster)}
    other = next((one.name for one in loads if one.name not in known), None)
    if other is not None:
        raise InputError(
            f"a handoff over {other}", where="handoff", expected=f"one on the plan's cluster, {plan.cluster.name}"
        )
    busiest = max(loads, key=lambda one: one.busy_s, default=None)
    # A request's bytes cross in the time between two requests.
    return Counted(STEP, 1, 1 / found.rate_per_s, loads, busiest.name if busiest else "")


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
        parts=(Part(role="kv.handoff", group=STEP, bytes=one.wire_bytes),),
    )
