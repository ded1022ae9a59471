"""`launch` as a Python call: a plan, or the pools of a handoff, as a Deployment."""

import os
from typing import TYPE_CHECKING, Any, get_args

from linkwise.core.errors import InputError
from linkwise.core.files import FilePath

if TYPE_CHECKING:
    from linkwise.answers import Handoff
    from linkwise.launch.build import Prepared
    from linkwise.launch.types import Deployment
    from linkwise.plan.types import Plan


def launch(
    source: "FilePath | Plan | Handoff",
    *,
    engine: str = "",
    weights: str = "",
    name: str = "",
    multi_node: str = "native",
    hosts: tuple[str, ...] = (),
    interface: str = "",
    engine_args: str = "",
    router: str = "",
    port: int = 8000,
    start_s: float = 1800.0,
    data_parallel: bool = False,
    with_key: bool = False,
) -> "Deployment":
    """What is to be started for a plan or a handoff (value or file); `linkwise.launch.write.write` makes the files.

    start_s: how long a group may take until it serves. data_parallel: the replicas are ranks of one server, which
    balances over them itself. with_key: requests need the key in LINKWISE_API_KEY, read where the files run. Raises
    Refused where the engine cannot express it, InputError for malformed input.
    """
    from linkwise.launch.build import assemble

    found = _prepared(
        source, engine=engine, weights=weights, called=name, multi_node=multi_node, hosts=hosts, interface=interface,
        extra=_split(engine_args), router=router, port=port, start_s=start_s, data_parallel=data_parallel,
        with_key=with_key,
    )  # fmt: skip
    return assemble(*found)


def manifest(
    source: "FilePath | Plan | Handoff",
    kind: str,
    *,
    engine: str = "",
    weights: str = "",
    name: str = "",
    interface: str = "",
    engine_args: str = "",
    image: str = "",
    router_image: str = "",
    cluster_topology: str = "",
    object_name: str = "",
    start_s: float = 3600.0,
    with_key: bool = False,
) -> "tuple[str, Prepared]":
    """Kubernetes manifests (YAML) for a plan or a handoff, and what was asked of the engine, with notes on both.

    kind: lws, llm-d or dynamo. object_name: of the objects; "" = made of the model's name in the API. Other arguments
    as the command's options. Raises as `launch`.
    """
    from linkwise.launch.kubernetes import registry
    from linkwise.launch.kubernetes.pods import Cast, name_for

    engine = engine or ("dynamo" if kind == "dynamo" else "")
    found = _prepared(
        source, engine=engine, weights=weights, called=name, interface=interface, extra=_split(engine_args),
        start_s=start_s, with_key=with_key,
    )  # fmt: skip
    cast = Cast(object_name or name_for(found.asked.called), image, router_image, cluster_topology)
    made = registry.manifest(kind, found.asked, found.launcher, cast)
    return made.text, found._replace(notes=(*made.notes, *found.rate))


def _split(text: str) -> tuple[str, ...]:
    from linkwise.engine.flags import split

    return tuple(split(text))


def _prepared(source: "FilePath | Plan | Handoff", *, multi_node: str = "native", **given: Any) -> "Prepared":
    from linkwise import answers, doors
    from linkwise.launch.build import Choices, prepare
    from linkwise.launch.types import MultiNode
    from linkwise.plan.types import Plan

    if multi_node not in get_args(MultiNode):
        raise InputError(
            repr(multi_node[:40]), where="--multi-node", expected="one of " + ", ".join(get_args(MultiNode))
        )
    value = answers.load(source) if isinstance(source, str | os.PathLike) else source
    if not isinstance(value, Plan | answers.Handoff):
        raise InputError(f"is a {type(value).__name__}", where="launch", expected="a plan, or a handoff")
    if isinstance(value, Plan):
        doors.saved(value, "plan")
    choices = Choices(multi_node=multi_node, **given)  # type: ignore[arg-type]
    return prepare(value, choices)
