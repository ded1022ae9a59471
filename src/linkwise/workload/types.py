"""For whom? Lengths, arrival rate and latency targets."""

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen

MAX_TOKENS = 100_000_000


class Targets(Frozen, frozen=True, kw_only=True):
    """Latency the user asks for, seconds; None = no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None


class Workload(Frozen, frozen=True, kw_only=True):
    """Mean lengths in tokens, arrivals per second, targets.

    concurrency: requests in flight at once; None derives it from rate and latency (Little's law).
    prefix_hit: share of prompt tokens found in the prefix cache, 0..1.
    burst: headroom over the mean number of requests in flight that KV must hold, >= 1.
    """

    isl_tokens: int = 2048
    osl_tokens: int = 256
    rate_per_s: float | None = None
    concurrency: int | None = None
    prefix_hit: float = 0.0
    burst: float = 1.25
    targets: Targets = Targets()

    def __post_init__(self) -> None:
        for field, value in (("isl_tokens", self.isl_tokens), ("osl_tokens", self.osl_tokens)):
            if not 1 <= value <= MAX_TOKENS:
                raise InputError(f"{field} is {value}", where="workload", expected=f"1..{MAX_TOKENS}")
        if self.rate_per_s is not None and not 0 < self.rate_per_s <= 1e7:
            raise InputError(f"rate_per_s is {self.rate_per_s}", where="workload", expected="above 0, at most 1e7")
        if self.concurrency is not None and not 1 <= self.concurrency <= 10_000_000:
            raise InputError(f"concurrency is {self.concurrency}", where="workload", expected="1..10000000")
        if not 0 <= self.prefix_hit < 1:
            raise InputError(f"prefix_hit is {self.prefix_hit}", where="workload", expected="0 <= share < 1")
        if not 1 <= self.burst <= 100:
            raise InputError(f"burst is {self.burst}", where="workload", expected="1..100")
        for field, target in (("ttft_s", self.targets.ttft_s), ("tpot_s", self.targets.tpot_s)):
            if target is not None and not 0 < target < 1e6:
                raise InputError(f"{field} is {target}", where="workload", expected="above 0, below 1e6 seconds")

    @property
    def total_tokens(self) -> int:
        """Tokens of one request at its end."""
        return self.isl_tokens + self.osl_tokens
