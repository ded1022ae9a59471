"""Ways to serve a load, set beside each other: what a plan's frontier is made of."""

from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen


class Offer(Frozen, frozen=True, kw_only=True):
    """One way to serve: with every group the devices hold at full load, or the groups a rate takes.

    for_rate_per_s: the rate its groups were counted for; None = all groups, at full load.

    mode: "mixed" (each group serves prompts and answers) or "separate" (prefill groups hand over to decode groups).
    layout, groups: of the mixed or decode groups. batch: requests at once on one of them. max_batched_tokens: its
    policy; of the prefill groups where they are separate. devices: used, of those given.
    prefill_rate_per_s, decode_rate_per_s: of one group of separate pools where these do best; pair_rate_per_s:
    prompts/s that the route between a pair of them carries, 0 = no limit known.
    rate_per_s: of the whole deployment. tokens_per_s_per_device: output tokens. usd_per_Mtoken: per million output
    tokens, devices used. starving: the pool that waits for the other. exposed_s: of a handoff, not hidden by prefill.
    simulated_*: by the event loop, at that rate or else in a closed loop of as many users; None = not simulated.
    """

    mode: str
    layout: Layout
    groups: int
    batch: int
    devices: int
    tpot_s: float
    ttft_s: float
    rate_per_s: float
    tokens_per_s_per_device: float
    meets: bool
    max_batched_tokens: int = 0
    prefill_layout: Layout | None = None
    prefill_groups: int = 0
    prefill_on: str = ""
    usd_per_Mtoken: float | None = None
    starving: str = ""
    exposed_s: float = 0.0
    limiting_link: str = ""
    prefill_rate_per_s: float = 0.0
    decode_rate_per_s: float = 0.0
    pair_rate_per_s: float = 0.0
    for_rate_per_s: float | None = None
    simulated_tpot_s: float | None = None
    simulated_ttft_s: float | None = None
    simulated_rate_per_s: float | None = None

    @property
    def tokens_per_s_per_user(self) -> float:
        """Interactivity."""
        return 1 / self.tpot_s


class Frontier(Frozen, frozen=True, kw_only=True):
    """The Pareto set of output tokens/s a device against tokens/s a user, least interactive first.

    choice: place of the offer for the targets, and the rate where one is asked; None when no offer meets them. Offers
    that were counted for a rate are the last ones. commands: to type for a choice of separate pools. own: the plan's
    own deployment; None without a plan. tried: points compared. notes: what was not searched, and whether the
    finalists were simulated.
    """

    offers: tuple[Offer, ...]
    choice: int | None
    tried: int
    devices: int
    notes: tuple[str, ...] = ()
    own: Offer | None = None
    commands: tuple[str, ...] = ()
