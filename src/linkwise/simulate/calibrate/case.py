"""A measured run as the simulator runs it: a serving group, its load, and the means that were measured."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.ledger import ledger
from linkwise.simulate.rules import Transfer
from linkwise.simulate.served import Served
from linkwise.workload.arrivals import Arrivals, times
from linkwise.workload.lengths import Lengths, tokens
from linkwise.workload.requests import Requests, requests
from linkwise.workload.types import Workload

PER_USER = 10  # requests a user of a closed loop sends where a file does not say how many there were
MOST_REQUESTS = 20_000  # simulated of one run: a mean over more says no more
MOST_ROOM = 1 << 40


class Split(NamedTuple):
    """Where groups of their own compute the prompts. served, rules: as Case's, of those groups. replicas: of the groups
    that compute prompts, and of those that decode. transfer, router: as in simulate/rules.py. handshake_s: before a
    prompt may start, while both sides find each other."""

    served: Served
    rules: Mapping[str, Any]
    replicas: tuple[int, int]
    transfer: Transfer
    router: str = "least"
    handshake_s: float = 0.0


class Case(NamedTuple):
    """One run under one load. users: of a closed loop, else rate_per_s. spread: of lengths, as workload/lengths.py.

    ttft_s, tpot_s: measured means; NaN where one was not. group: what it is left out with when the fit is checked (a
    model). name: where it is from. rules: fields of simulate/rules.py its engine was told otherwise than its defaults.
    split: the groups that compute prompts, where served and rules are of those that only decode. version_said: whether
    anybody says which version of the engine ran; else it is the newest we know, which the run is no evidence of.
    prefix_hit: share of each prompt that was found cached.
    """

    served: Served
    isl: int
    osl: int
    spread: str
    users: int
    rate_per_s: float
    number: int
    ttft_s: float
    tpot_s: float
    group: str
    name: str
    rules: Mapping[str, Any] = {}
    split: Split | None = None
    version_said: bool = True
    prefix_hit: float = 0.0

    @property
    def load(self) -> Requests:
        """The requests of the run; the same on any machine."""
        inputs, outputs = (
            tokens(Lengths(mean=mean, kind=self.spread), self.number, 0, stream)
            for mean, stream in ((self.isl, 1), (self.osl, 2))
        )
        at = np.zeros(self.number) if self.users else times(Arrivals(rate_per_s=self.rate_per_s), self.number, 0)
        return requests(at, inputs, outputs)._replace(cached_share=self.prefix_hit)


def serving(
    model: Model, cluster: Cluster, engine: Engine, layout: Layout, options: Options, isl: int, osl: int
) -> Served:
    """A layout that ran, whatever we think of it: where our ledger leaves no room, room is taken as endless."""
    workload = Workload(isl_tokens=isl, osl_tokens=osl)
    memory = ledger(model, cluster, engine, layout, options, workload)
    resolved = engine.resolve(options, model, cluster.accelerator, layout)
    resolved = replace(resolved, max_model_len=max(resolved.max_model_len, isl + osl))
    room = memory.kv_tokens if memory.kv_tokens is not None else memory.requests * (isl + osl)
    if room < layout.dp_attn * (isl + osl):
        room = MOST_ROOM
    return Served(model, cluster, engine, layout, options, resolved, None, room, memory.requests, workload)
