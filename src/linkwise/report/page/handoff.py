"""A handoff's bytes on the plan's picture: one request's KV on its way from prefill to decode ranks."""

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.plan.handoff_types import Handoff
from linkwise.plan.types import Plan
from linkwise.report.page.types import Carried, Load, Picture


def handoff_load(found: Handoff, plan: Plan, drawn: Picture) -> Picture:
    """The picture with the handoff as one more step. Raises InputError when it is of another model or cluster."""
    names = {link.name for link in drawn.links}
    if found.model != plan.model.name:
        raise InputError(f"a handoff of {found.model}", where="handoff", expected=f"one of {plan.model.name}")
    used = {one.link for one in found.links}
    if used and not used & names:
        raise InputError(
            "a handoff on other links than the plan's", where="handoff", expected=f"one on {plan.cluster.name}"
        )
    places = {one.link: place for place, one in enumerate(found.links)}
    carried = tuple(
        Carried(like=one.link, bytes=one.wire_bytes, parts=(("kv.handoff", "handoff", one.wire_bytes),))
        for one in found.links
    )
    busiest = max(found.links, key=lambda one: one.utilization, default=None)
    load = Load(
        step="handoff",
        batch=1,
        over_s=1 / found.rate_per_s,  # a request's bytes cross in the time between two requests
        carried=carried,
        of=tuple(places.get(link.name, -1) for link in drawn.links),
        busiest=busiest.link if busiest else "",
        busiest_s=busiest.seconds if busiest else 0.0,
    )
    return replace(drawn, loads=(*drawn.loads, load))
