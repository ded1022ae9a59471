"""How far a predicted time can be trusted, as a plan and a simulation say it."""

from linkwise.core.schema import Frozen


class Interval(Frozen, frozen=True, kw_only=True):
    """An 80 % interval of a predicted time, seconds: one of ten measurements lies below, one above."""

    low_s: float
    high_s: float


class Trust(Frozen, frozen=True, kw_only=True):
    """Intervals of the mean TPOT and TTFT. extrapolated: what is outside the range the constants were fitted on, each
    in words; empty inside it. None of both: the constants are a roofline's, which nobody compared with this engine."""

    tpot: Interval | None
    ttft: Interval | None
    extrapolated: tuple[str, ...] = ()
