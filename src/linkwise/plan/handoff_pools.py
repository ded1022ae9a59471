"""A handover between groups of two pools: on one cluster, or on two that only their NICs join."""

from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine
from linkwise.model.types import Model
from linkwise.plan.handoff import moved_of, of_case
from linkwise.plan.handoff_case import Apart, Case, Devices, case_of
from linkwise.plan.handoff_types import Handoff, HandoffOptions


class Side(NamedTuple):
    """A pool: `replicas` groups of a layout, on the first devices of its cluster that are free."""

    cluster: Cluster
    layout: Layout
    replicas: int = 1

    @property
    def devices(self) -> int:
        return self.replicas * self.layout.size


class Moved(NamedTuple):
    """What a handoff takes: seconds that prefill does not hide, prompts/s between a pair of groups, the slowest link.

    prefill_s: of a prompt, which the handoff hides behind.
    """

    exposed_s: float = 0.0
    rate_per_s: float | None = None
    link: str = ""
    prefill_s: float | None = None


def handover(
    model: Model, prefill: Side, decode: Side, *, shared: bool, prompt_tokens: int, engine: Engine,
    rate_per_s: float = 1.0, kv_dtype: str = "auto", options: HandoffOptions | None = None,
) -> Handoff:  # fmt: skip
    """What it takes to hand prompts from a group of one pool to a group of the other, on the longest way between them.

    shared: both pools are on prefill.cluster, one behind the other, the decode pool from a free node on where there is
    one. Otherwise each has devices of its own, even where the clusters are alike, and NICs join them, never a scale-up
    link. A group of several attention replicas hands over to one of them: tp ranks of each pipeline stage.
    Raises InputError for groups that do not fit, layouts that cut a prompt's tokens, and a cluster without NICs.
    """
    return of_case(
        between(
            model, prefill, decode, shared=shared, prompt_tokens=prompt_tokens, engine=engine, rate_per_s=rate_per_s,
            kv_dtype=kv_dtype, options=options,
        )
    )  # fmt: skip


def moved(case: Case) -> Moved:
    """What counts of `handover` where pools are counted. Each attention replica of a group has a route of its own."""
    figures, link = moved_of(case)
    each = float(figures["max_rate_per_s"]) * min(case.group.dp_attn, case.taking.dp_attn)
    return Moved(float(figures["exposed_s"]), each, link, float(figures["prefill_s"]))


def between(
    model: Model, prefill: Side, decode: Side, *, shared: bool, prompt_tokens: int, engine: Engine,
    rate_per_s: float = 1.0, kv_dtype: str = "auto", options: HandoffOptions | None = None,
) -> Case:  # fmt: skip
    """The case that `handover` answers, and its errors."""
    for side in (prefill, decode):
        if side.layout.cp * side.layout.dcp > 1:
            raise InputError(f"{side.layout}", where="pools", expected="no cp or dcp: their handover is not modelled")
    first = (decode.replicas - 1) * decode.layout.size if shared else 0
    if shared:
        first += _behind(prefill, decode)
    for side, end in ((prefill, prefill.layout.size), (decode, first + decode.layout.size)):
        if end > side.cluster.size:
            raise InputError(
                f"{prefill.replicas} x {prefill.layout} and {decode.replicas} x {decode.layout}"
                if shared else f"a group of {side.layout}", where="pools",
                expected=f"at most the {side.cluster.size} devices of {side.cluster.name}",
            )  # fmt: skip
    devices = _devices("prefill", prefill.layout, 0) | _devices("decode", decode.layout, first)
    moves = [Layout(tp=side.layout.tp, pp=side.layout.pp) for side in (prefill, decode)]
    other = prefill.cluster if shared else decode.cluster
    return case_of(
        model, prefill.cluster, prompt_tokens, rate_per_s, moves[0], moves[1], engine, kv_dtype,
        options or HandoffOptions(), Apart(other, shared, devices, prefill.layout, decode.layout),
    )  # fmt: skip


def _behind(prefill: Side, decode: Side) -> int:
    """First device of a decode pool behind a prefill pool: the next free node, or right behind where none is free."""
    node = -(-prefill.devices // prefill.cluster.devices_per_node) * prefill.cluster.devices_per_node
    return node if node + decode.devices <= prefill.cluster.size else prefill.devices


def _devices(side: str, layout: Layout, first: int) -> Devices:
    """The devices of a group's first attention replica, by its ranks of tp and pp."""
    stage = layout.dp_attn * layout.tp
    return {(side, s * layout.tp + r): first + s * stage + r for s in range(layout.pp) for r in range(layout.tp)}
