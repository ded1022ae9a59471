"""The lines of a frontier: what throughput costs in interactivity, and the choice for the targets."""

from linkwise.core.units import show_count, show_time
from linkwise.plan.frontier_types import Frontier, Offer

SHOWN = 10


def choice(found: Frontier) -> list[str]:
    """The choice in a line."""
    what = f"{len(found.offers)} of {show_count(found.tried)} points on the front, --pareto shows them"
    if found.choice is None:
        return [f"pareto     {_none(found)}; {what}"]
    return [f"pareto     {what}; for the targets: {' '.join(_offer(found.offers[found.choice]).split())}"]


def lines(found: Frontier) -> list[str]:
    """The front from most tokens a device to most tokens a user, the choice marked; at most SHOWN offers."""
    said = [
        f"pareto     {len(found.offers)} of {show_count(found.tried)} points, output tokens/s a device against tokens/s"
        " a user; * is the choice for the targets"
    ]
    said += [f"         {'*' if at == found.choice else ' '} {_offer(found.offers[at])}" for at in _shown(found)]
    if found.choice is None:
        said.append(f"           {_none(found)}")
    else:
        left = found.devices - found.offers[found.choice].devices
        said += [f"           the choice leaves {left} of {found.devices} devices unused"] if left else []
    return [*said, *(f"           {note}" for note in found.notes)]


def _none(found: Frontier) -> str:
    """Why there is no choice."""
    missed = sum(one.simulated_ttft_s is not None for one in found.offers)
    if missed:
        return f"{missed} offers were simulated and miss the targets there, or would by as much: no choice"
    return "no offer that uses the devices to the full meets the targets"


def _shown(found: Frontier) -> list[int]:
    """Evenly spread over the front; its ends and the choice always."""
    number = len(found.offers)
    if number <= SHOWN:
        return list(range(number))
    spread = {round(i * (number - 1) / (SHOWN - 1)) for i in range(SHOWN)}
    return sorted(spread | ({found.choice} if found.choice is not None else set()))


def _offer(one: Offer) -> str:
    cost = f", {one.usd_per_Mtoken:.2f} USD a million" if one.usd_per_Mtoken is not None else ""
    figures = (
        f"{show_count(one.tokens_per_s_per_device):>6} a device {one.tokens_per_s_per_user:>5.0f} a user{cost}:"
        f" {_groups(one)}, {show_count(one.batch)} at once; TTFT {show_time(one.ttft_s)}"
    )
    if one.simulated_tpot_s is None or one.simulated_ttft_s is None:
        return figures
    return (
        f"{figures}; simulated {1 / one.simulated_tpot_s:.0f} a user, TTFT {show_time(one.simulated_ttft_s)},"
        f" {one.simulated_rate_per_s:.3g} requests/s of {one.rate_per_s:.3g}"
    )


def _groups(one: Offer) -> str:
    if one.prefill_layout is None:
        return f"{one.groups} x ({one.layout}), steps of {show_count(one.max_batched_tokens)} tokens"
    where = f" on {one.prefill_on}" if one.prefill_on else ""
    starving = f", {one.starving} starves" if one.starving else ""
    return (
        f"prefill {one.prefill_groups} x ({one.prefill_layout}){where}, decode {one.groups} x ({one.layout}){starving}"
    )
