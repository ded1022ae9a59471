"""How far predicted times can be trusted, as lines of a screen."""

from linkwise.core.units import show_time
from linkwise.plan.trust import Interval, Trust


def trust_lines(trust: Trust | None) -> list[str]:
    """The 80 % intervals, and what is extrapolated."""
    if trust is None or (trust.tpot is None and trust.ttft is None):
        return []
    words = [
        f"{name} {show_time(one.low_s)} to {show_time(one.high_s)}"
        for name, one in (("TTFT", trust.ttft), ("TPOT", trust.tpot))
        if isinstance(one, Interval)
    ]
    lines = [f"           in 8 of 10 cases {', '.join(words)}"]
    return lines + [f"           extrapolated: {why}" for why in trust.extrapolated]
