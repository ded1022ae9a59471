"""When requests arrive: Poisson, Gamma, Markov-modulated and diurnal, from a counter-based generator.

Philox counts, so a seed gives the same stream everywhere; arrivals are rounded to a microsecond, so that the
last bit of a machine's logarithm does not show either.
"""

import numpy as np

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.workload.requests import MAX_REQUESTS, Floats

KINDS = ("poisson", "gamma", "mmpp", "diurnal", "even")
PERIODS = {"diurnal": 86_400.0, "mmpp": 300.0}  # seconds, where nobody says: a day, and stays that fill a queue
_US = 1e-6


class Arrivals(Frozen, frozen=True, kw_only=True):
    """A stream of arrivals.

    kind: poisson; gamma (gaps with coefficient of variation `cv`: 1 = Poisson, above = bursts); mmpp (two states, in
    one of which arrivals come `burst` times as fast as in the other; half of the time in each, `period_s` a stay on
    average); diurnal (a sine around the rate, `swing` of it up and down, over `period_s`); even (equal gaps).
    rate_per_s: the mean over a long time.
    """

    rate_per_s: float
    kind: str = "poisson"
    cv: float = 2.0
    burst: float = 4.0
    swing: float = 0.8
    period_s: float = PERIODS["diurnal"]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind is {self.kind[:40]!r}", where="arrivals", expected="one of " + ", ".join(KINDS))
        for field, low, high in (
            ("rate_per_s", 1e-9, 1e9),
            ("cv", 0.01, 100.0),
            ("burst", 1.0, 1e6),
            ("swing", 0.0, 1.0),
            ("period_s", 1e-3, 1e8),
        ):
            value = getattr(self, field)
            if not low <= value <= high:  # NaN is refused as well
                raise InputError(f"{field} is {value}", where="arrivals", expected=f"{low:g}..{high:g}")


def generator(seed: int, stream: int) -> np.random.Generator:
    """Numbers of one stream of a seed: 0 arrivals, 1 lengths, 2 outputs. Other streams do not move when one is read."""
    if not 0 <= seed < 2**63:
        raise InputError(f"seed is {seed}"[:60], where="seed", expected="0..2^63-1")
    return np.random.Generator(np.random.Philox(key=[seed, stream]))


def times(spec: Arrivals, number: int, seed: int) -> Floats:
    """Arrival of each of `number` requests, seconds, ascending."""
    if not 1 <= number <= MAX_REQUESTS:
        raise InputError(f"{number} requests", where="arrivals", expected=f"1..{MAX_REQUESTS}")
    draw, gap = generator(seed, 0), 1 / spec.rate_per_s
    if spec.kind == "even":
        gaps = np.full(number, gap)
    elif spec.kind == "gamma":
        shape = 1 / spec.cv**2
        gaps = draw.gamma(shape, gap / shape, number)
    else:
        gaps = draw.exponential(1.0, number)  # of a stream of rate 1: the other kinds bend its time
        if spec.kind == "mmpp":
            return _rounded(_modulated(np.cumsum(gaps), spec, draw))
        if spec.kind == "diurnal":
            return _rounded(_diurnal(np.cumsum(gaps), spec))
        gaps *= gap
    return _rounded(np.cumsum(gaps))


def _rounded(at: Floats) -> Floats:
    return np.round(at / _US) * _US


def _modulated(work: Floats, spec: Arrivals, draw: np.random.Generator) -> Floats:
    """Times at which the integral of a rate that jumps between two states reaches `work`."""
    low = 2 * spec.rate_per_s / (1 + spec.burst)
    rates = low * np.where(np.arange(2) == 0, 1.0, spec.burst)
    at, done, parts_t, parts_w = 0.0, 0.0, [0.0], [0.0]
    while done < work[-1]:
        stays = draw.exponential(spec.period_s, 1024)
        for index, stay in enumerate(stays):
            at += float(stay)
            done += float(stay * rates[index % 2])
            parts_t.append(at)
            parts_w.append(done)
        if len(parts_t) > MAX_REQUESTS:
            raise InputError(
                f"period_s is {spec.period_s:g}: more changes of state than {MAX_REQUESTS:,}", where="arrivals"
            )
    return np.interp(work, parts_w, parts_t)


def _diurnal(work: Floats, spec: Arrivals) -> Floats:
    """Times at which rate · (t + swing · (1 - cos wt) / w) reaches `work`, on a fine grid of each period."""
    omega = 2 * np.pi / spec.period_s
    per_period = spec.rate_per_s * spec.period_s
    periods = np.floor(work / per_period)
    grid = np.linspace(0.0, spec.period_s, 4097)
    reached = spec.rate_per_s * (grid + spec.swing * (1 - np.cos(omega * grid)) / omega)
    return periods * spec.period_s + np.interp(work - periods * per_period, reached, grid)
