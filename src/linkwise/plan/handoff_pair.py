"""A handoff between two pools with all it was asked with: what explains itself later, and what can be started."""

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen
from linkwise.engine.base import Options
from linkwise.model.types import Model
from linkwise.plan.disaggregate import Disaggregation
from linkwise.plan.handoff_supply import Supply
from linkwise.plan.handoff_types import Handoff, HandoffOptions
from linkwise.workload.types import Workload

_OUTPUT_TOKENS = Workload().osl_tokens  # of files written before the length was kept


class Pools(Frozen, frozen=True, kw_only=True):
    """The pools of two plans. prefill, decode: the layouts of whole groups. other: the decode pool's cluster where it
    is not the prefill pool's. differs: settings that the plans do not share."""

    prefill: Layout
    decode: Layout
    prefill_groups: int
    decode_groups: int
    other: Cluster | None = None
    differs: tuple[str, ...] = ()

    @property
    def routes(self) -> int:
        """Ways between the pools that are used at one time: an attention replica of each group has one of its own."""
        return min(self.prefill_groups, self.decode_groups) * min(self.prefill.dp_attn, self.decode.dp_attn)


def plain(layout: Layout) -> bool:
    """Whether tensor and pipeline parallelism are all of it: what `launch` starts as a pool."""
    return layout.size == layout.pp * layout.tp and layout.dcp == layout.ep == 1


class Pair(Handoff, frozen=True, kw_only=True):
    """A handoff, its inputs, and the verdict between these two pools and mixed groups on the same devices.

    served, cluster, engine_version, factors, settings, output_tokens: the inputs; settings are both pools'.
    mixed: layout of a mixed group, the one that serves most inside the targets. verdict: None when there is none;
    `notes` say why. unserved: why pools on these devices cannot serve the rate; "" when they can or it is not known.
    pools: those of two plans, where these were asked about; figures of the route are then at its share of the rate.
    unjudged: what pools serve that have no verdict.
    """

    served: Model
    cluster: Cluster
    engine_version: str
    factors: HandoffOptions
    settings: Options = Options()
    output_tokens: int = _OUTPUT_TOKENS
    mixed: Layout | None = None
    verdict: Disaggregation | None = None
    unserved: str = ""
    pools: Pools | None = None
    unjudged: Supply | None = None

    @property
    def supply(self) -> Supply | None:
        """What the pools serve of the rate; None where it is not known."""
        return self.unjudged if self.verdict is None else self.verdict.supply

    @property
    def groups(self) -> tuple[Layout, Layout]:
        """Layouts of a whole prefill and of a whole decode group."""
        return (self.prefill, self.decode) if self.pools is None else (self.pools.prefill, self.pools.decode)
