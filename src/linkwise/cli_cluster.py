"""`linkwise cluster read, probe, lint`: topology files in, cluster files and findings out. Thin."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linkwise.cli_base import NO, UNDECIDABLE, YES, print_blocks, print_json
from linkwise.core.errors import InputError
from linkwise.core.files import read_text, write_bytes
from linkwise.core.schema import CLUSTER_SCHEMA

if TYPE_CHECKING:
    from linkwise.cluster.topology import Fabric, Machine
    from linkwise.cluster.types import Cluster

Json = Annotated[bool, typer.Option("--json", help="print the value as JSON, and nothing else")]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="write the cluster as YAML")]
Named = Annotated[str, typer.Option("--accelerator", help="what the GPUs are: a name, or a cluster YAML that has it")]
Gbps = Annotated[float | None, typer.Option("--nic-gbps", help="Gb/s of one NIC, where the file does not say")]

group = typer.Typer(no_args_is_help=True, help="The cluster as you have it: read topology files, probe, lint.")


@group.command()
def read(
    files: Annotated[list[str], typer.Argument(help="topology files: of one node, of each node, of the fabric")],
    nodes: Annotated[int | None, typer.Option(help="machines like the one in the file")] = None,
    fabric: Annotated[str, typer.Option(help="between nodes: rail, fat-tree, fat-tree:2 (oversubscribed), nvl")] = "",
    accelerator: Named = "",
    nic_gbps: Gbps = None,
    output: Output = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Topology files to one cluster, for --on cluster.yaml."""
    del debug  # read from the command line by `main`
    return _done(_combined(files, nodes, fabric, accelerator, nic_gbps), output, json)


@group.command()
def probe(
    accelerator: Named = "",
    nic_gbps: Gbps = None,
    output: Output = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """This machine: nvidia-smi or rocm-smi, and the PCI and NUMA tree. Exit code 1: it has no GPU."""
    del debug
    from linkwise.cluster.combine import combine
    from linkwise.cluster.probe import probe as look
    from linkwise.report import cluster as screens

    found = look()
    if output is not None:
        return _done(combine([found], accelerator=_accelerator(accelerator), nic_Gbps=nic_gbps), output, json)
    print_json(found) if json else print_blocks(screens.machine(found))
    return YES if found.gpus else NO


@group.command()
def lint(
    file: Annotated[str, typer.Argument(help="a topology file of one machine, or a cluster YAML")],
    accelerator: Named = "",
    json: Json = False,
    debug: Debug = False,
) -> int:
    """What hurts, with evidence. Exit code 1: something does; 3: this file cannot tell."""
    del debug
    from linkwise.cluster.identify import agree
    from linkwise.cluster.lint import lint as judge
    from linkwise.cluster.presets import accelerator as named
    from linkwise.cluster.topology import Machine
    from linkwise.report import cluster as screens

    given = _accelerator(accelerator)
    device = named(given) if isinstance(given, str) else given
    value = _machine_or_cluster(file)
    if device is not None and isinstance(value, Machine):
        agree((value,), device, [])
    found = judge(value, device)
    print_json(found) if json else print_blocks(screens.findings(found, file))
    return NO if any(finding.sure for finding in found) else UNDECIDABLE if found else YES


def _done(found: "Cluster", output: Path | None, json: bool) -> int:
    from linkwise.cluster.read import dump
    from linkwise.report import cluster as screens

    if output is not None:
        write_bytes(output, dump(found).encode())
    print_json(found) if json else print_blocks(screens.cluster(found, written=str(output or "")))
    return YES


def _combined(files: list[str], nodes: int | None, spec: str, accelerator: str, nic_gbps: float | None) -> "Cluster":
    """The files' machines and fabric as one cluster."""
    from linkwise.cluster.combine import combine
    from linkwise.cluster.fabrics import FabricSpec
    from linkwise.cluster.readers import read as load
    from linkwise.cluster.topology import Machine

    machines: list[Machine] = []
    fabrics: list[Fabric] = []
    for path in files:
        found = load(path)
        machines.append(found) if isinstance(found, Machine) else fabrics.append(found)
    if len(fabrics) + bool(spec) > 1:
        given = [fabric.source for fabric in fabrics] + ([f"--fabric {spec}"] if spec else [])
        raise InputError(f"several fabrics: {', '.join(given)}", expected="one")
    fabric = FabricSpec.parse(spec) if spec else next(iter(fabrics), None)
    return combine(machines, nodes=nodes, fabric=fabric, accelerator=_accelerator(accelerator), nic_Gbps=nic_gbps)


def _accelerator(given: str) -> Any:
    """A name, or the accelerator of a cluster file; None when not given."""
    if given.lower().endswith((".yaml", ".yml")):
        from linkwise.cluster.read import load

        return load(given).accelerator
    return given or None


def _machine_or_cluster(file: str) -> "Machine | Cluster":
    from linkwise.cluster.read import parse as cluster
    from linkwise.cluster.readers import parse
    from linkwise.cluster.topology import Fabric

    text = read_text(file)
    if CLUSTER_SCHEMA in text[:4096]:
        return cluster(text, where=file)
    found = parse(text, where=file)
    if isinstance(found, Fabric):
        raise InputError(
            "a fabric, not a machine",
            where=file,
            expected="a node's topology file, or a cluster file",
            hint="`linkwise cluster read` combines both, and lint judges the result",
        )
    return found
