"""`launch` as a Python call: a plan, or the pools of a handoff, as a Deployment."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from linkwise.core.errors import InputError

if TYPE_CHECKING:
    from linkwise.answers import Handoff
    from linkwise.launch.types import Deployment
    from linkwise.plan.types import Plan


def launch(
    source: "str | Path | Plan | Handoff",
    *,
    engine: str = "",
    weights: str = "",
    name: str = "",
    multi_node: str = "native",
    hosts: tuple[str, ...] = (),
    interface: str = "",
) -> "Deployment":
    """What is to be started for a plan or a handoff (value or file); `linkwise.launch.write.write` makes the files.

    Raises Refused where the engine cannot express it, InputError for malformed input.
    """
    from linkwise import answers, doors
    from linkwise.launch.build import Choices, deployment
    from linkwise.launch.types import MultiNode
    from linkwise.plan.types import Plan

    if multi_node not in get_args(MultiNode):
        raise InputError(
            repr(multi_node[:40]), where="--multi-node", expected="one of " + ", ".join(get_args(MultiNode))
        )
    value = answers.load(source) if isinstance(source, str | Path) else source
    if not isinstance(value, Plan | answers.Handoff):
        raise InputError(f"is a {type(value).__name__}", where="launch", expected="a plan, or a handoff")
    if isinstance(value, Plan):
        doors.saved(value, "plan")
    choices = Choices(
        engine=engine, weights=weights, called=name, multi_node=multi_node, hosts=hosts,  # type: ignore[arg-type]
        interface=interface,
    )  # fmt: skip
    if isinstance(value, Plan):
        return deployment(value, value.model, value.cluster, choices)
    return deployment(value, value.served, value.cluster, choices)
