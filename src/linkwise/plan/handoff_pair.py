"""A handoff between two pools with all it was asked with: what explains itself later, and what can be started."""

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.engine.base import Options
from linkwise.model.types import Model
from linkwise.plan.disaggregate import Disaggregation
from linkwise.plan.handoff_types import Handoff, HandoffOptions
from linkwise.workload.types import Workload

_OUTPUT_TOKENS = Workload().osl_tokens  # of files written before the length was kept


class Pair(Handoff, frozen=True, kw_only=True):
    """A handoff, its inputs, and the verdict between these two pools and mixed groups on the same devices.

    served, cluster, engine_version, factors, settings, output_tokens: the inputs; settings are both pools'.
    mixed: layout of a mixed group, the one that serves most inside the targets. verdict: None when there is none;
    `notes` say why. unserved: why pools on these devices cannot serve the rate; "" when they can or it is not known.
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
