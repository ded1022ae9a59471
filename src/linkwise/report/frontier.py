"""The lines of a frontier: what throughput costs in interactivity, and the choice for the targets."""

from linkwise.core.units import show_count, show_time
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.report.text import Verbatim

SHOWN = 10
NOTHING = "pareto     no layout fits: nothing to set side by side"
CLOSE = 0.05  # nearer than this, a plan is as good as another


def choice(found: Frontier) -> list[str]:
    """What the front says of the plan, in a line or two, and how separate pools that are better are made."""
    if not found.offers:
        return [NOTHING]
    what = f"{len(found.offers)} of {show_count(found.tried)} points, --pareto shows them"
    said = [f"cost       the plan: {_cost(found.own)}"] if found.own and found.own.usd_per_Mtoken is not None else []
    if found.choice is None:
        return [*said, f"pareto     {_none(found)}; {what}"]
    best = found.offers[found.choice]
    if found.own is None:
        return [*said, f"pareto     {what}"]
    if not _better(best, found.own):
        return [*said, f"pareto     for {_aim(best)} nothing is better than the plan; {what}"]
    if best.usd_per_Mtoken is not None:
        words = "cheaper"
    else:
        words = "on fewer devices" if best.for_rate_per_s else "more a device"
    offer = " ".join(_offer(best).split())
    return [*said, f"pareto     for {_aim(best)} {words} than the plan: {offer}; {what}", *_files(found)]


def instead(found: Frontier) -> list[str]:
    """What carries the load where no plan of one kind of group does."""
    if found.choice is None:
        return []
    one = found.offers[found.choice]
    return [f"but        {' '.join(_offer(one).split())}", *_files(found)]


def lines(found: Frontier) -> list[str]:
    """The front from most tokens a device to most tokens a user; then the choice. At most SHOWN offers.

    It follows a screen, which has said how separate pools are made unless the plan is as good.
    """
    if not found.offers:
        return []
    said = [
        f"pareto     {len(found.offers)} of {show_count(found.tried)} points, output tokens/s a device against tokens/s"
        " a user, every device at work; * is the choice for the targets"
    ]
    shown = _shown(found)
    said += [f"         {'*' if at == found.choice else ' '} {_offer(found.offers[at])}" for at in shown]
    if found.choice is None:
        said.append(f"           {_none(found)}")
        return [*said, *(f"           {note}" for note in found.notes)]
    one = found.offers[found.choice]
    if found.choice not in shown:
        said.append(f"for {one.for_rate_per_s:g}/s   * {_offer(one)}")
    left = found.devices - one.devices
    said += [f"           the choice leaves {left} of {found.devices} devices unused"] if left else []
    said += _files(found) if found.own is not None and not _better(one, found.own) else []
    return [*said, *(f"           {note}" for note in found.notes)]


def _aim(one: Offer) -> str:
    return "the targets" if one.for_rate_per_s is None else f"{one.for_rate_per_s:g}/s inside the targets"


def _better(one: Offer, own: Offer) -> bool:
    """Whether an offer takes less than the plan: money where there are prices, else devices for the same tokens."""
    if one.usd_per_Mtoken is not None and own.usd_per_Mtoken is not None:
        return one.usd_per_Mtoken < own.usd_per_Mtoken * (1 - CLOSE)
    return one.tokens_per_s_per_device * (1 - CLOSE) > own.tokens_per_s_per_device


def _cost(one: Offer) -> str:
    load = f"at {one.for_rate_per_s:g}/s" if one.for_rate_per_s is not None else "at what it delivers"
    return f"{one.usd_per_Mtoken:.3g} USD a million output tokens {load}, {one.devices} devices"


def _files(found: Frontier) -> list[str]:
    """How separate pools become plan files, and how they are simulated and started."""
    said: list[str] = [Verbatim(f"{'' if at else 'pools':<11}{line}") for at, line in enumerate(found.commands)]
    if found.commands:
        said.append("           each file alone says what such groups deliver without the other pool")
    if found.commands and not any(line.startswith("linkwise launch") for line in found.commands):
        said.append("           no command starts these: launch takes pools of tp and pp alone, on one cluster")
    return said


def _none(found: Frontier) -> str:
    """Why there is no choice."""
    missed = sum(one.simulated_ttft_s is not None for one in found.offers)
    if missed:
        return f"{missed} offers were simulated and miss the targets there, or would by as much: no choice"
    if any(one.meets for one in found.offers):
        return "offers meet the targets in closed form, and none of them could be simulated: no choice"
    return "no offer that uses the devices to the full meets the targets"


def _shown(found: Frontier) -> list[int]:
    """Evenly spread over the front; its ends and the choice always."""
    number = sum(one.for_rate_per_s is None for one in found.offers)
    if number <= SHOWN:
        return list(range(number))
    spread = {round(i * (number - 1) / (SHOWN - 1)) for i in range(SHOWN)}
    return sorted(spread | ({found.choice} if found.choice is not None and found.choice < number else set()))


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
