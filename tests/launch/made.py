"""Deployments for tests, made from a layout without planning one."""

from collections.abc import Iterator, Sequence
from functools import cache

from linkwise.cluster.read import load as cluster_of
from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.engine import registry as engines
from linkwise.engine.base import Options
from linkwise.launch import registry
from linkwise.launch.base import Asked
from linkwise.launch.build import assemble
from linkwise.launch.types import Deployment, Group, Served
from linkwise.model.read import load as model_of
from linkwise.model.types import Model
from linkwise.plan.search import layouts

CLUSTER = "8x8xh100-sxm"


@cache
def model(name: str) -> Model:
    return model_of(name)


@cache
def cluster(name: str = CLUSTER) -> Cluster:
    return cluster_of(name)


def asked(
    name: str,
    engine: str,
    rows: Sequence[Sequence[int]],
    layout: Layout,
    *,
    on: str = CLUSTER,
    version: str | None = None,
    around: str = "",
    **more: object,
) -> Asked:
    """Replicas of a layout on these devices. engine: the plan's; around: the launcher's, where it is another."""
    groups = tuple(
        Group(name=f"replica-{number}", role="both", layout=layout, devices=tuple(row))
        for number, row in enumerate(rows)
    )
    return Asked(
        model=model(name), weights="models/it", called="it", cluster=cluster(on), engine=engines.get(engine, version),
        options=dict.fromkeys(("both", "prefill", "decode"), Options()), groups=groups, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def deployment(given: Asked, launcher: str = "") -> Deployment:
    return assemble(given, registry.get(launcher or given.engine.name), Served(isl_tokens=10, osl_tokens=10))


def legal(name: str, engine: str, most: int = 64) -> Iterator[Layout]:
    """Every layout of at most so many ranks that the engine does not refuse, sequence-sharded ones too."""
    for fixed in ({}, {"sequence_sharded": 1}):
        for layout in layouts(model(name), cluster(), fixed):
            if layout.size <= most and engines.get(engine).refuses(model(name), layout, devices_per_node=8) is None:
                yield layout
