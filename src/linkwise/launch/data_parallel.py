"""Replicas as the data-parallel ranks of one server, where the engine balances over them itself."""

import msgspec

from linkwise.core.errors import InputError, Refused
from linkwise.launch.base import Asked, Launcher
from linkwise.launch.types import Group

WHERE = "--data-parallel"
DIFFERS = "the replicas are data-parallel ranks of one server: it balances over them, and one lost rank ends them all"


def together(asked: Asked, launcher: Launcher) -> Asked:
    """All replicas as one group on the same devices, so that nothing is counted twice.

    A plan's replicas share nothing. The flag that joins them also makes attention replicas, which share experts: models
    with experts are refused. Raises Refused, or InputError where there is nothing to join.
    """
    groups = asked.groups
    if not launcher.joins_replicas:
        raise Refused(f"{launcher.name} starts a server for each replica here", where=WHERE, expected="--engine vllm")
    if groups[0].role != "both":
        raise Refused("pools have a server for each group", where=WHERE, expected="a plan of one kind of group")
    if asked.model.moe is not None:
        raise Refused(
            f"{asked.model.name} has experts, which data-parallel ranks of one server share", where=WHERE,
            expected="a model without experts", hint="Plan it with dp_attn, and ep where experts stay whole",
        )  # fmt: skip
    if len(groups) == 1:
        raise InputError("a plan of one replica", where=WHERE, expected="several replicas")
    layout = groups[0].layout
    # As a layout with attention replicas counts its ranks: dp_attn between the context ranks and tp.
    blocks = range(0, layout.size, layout.tp)
    devices = tuple(d for first in blocks for group in groups for d in group.devices[first : first + layout.tp])
    merged = msgspec.structs.replace(layout, dp_attn=len(groups))
    return asked._replace(groups=(Group(name="replicas", role="both", layout=merged, devices=devices),))
