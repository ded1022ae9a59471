"""What a plan says of its own step times, for answers that rest on them."""

from linkwise.plan.types import Plan


def certainty(plan: Plan) -> tuple[str, ...]:
    """Notes: what step times rest on, and how far the plan's own figures are from what is measured in 8 of 10 cases."""
    notes = [f"step times rest on {plan.calibration}"]
    point, trust = plan.chosen.point, plan.trust
    spread = [
        f"{name} {interval.low_s / value:.2f} to {interval.high_s / value:.2f}"
        for name, value, interval in (
            ("TPOT", point.tpot_s, trust.tpot if trust else None),
            ("TTFT", point.ttft_s, trust.ttft if trust else None),
        )
        if interval is not None
    ]
    if spread:
        notes.append(f"what is measured is in 8 of 10 cases so many times what is said here: {', '.join(spread)}")
    notes += [f"extrapolated: {why}" for why in (trust.extrapolated if trust else ())]
    return tuple(notes)
