"""The command `linkwise launch`: its words and options. cli.py registers it and owns what all commands share."""

from pathlib import Path
from typing import Annotated

import typer

from linkwise import cli_base, streams
from linkwise.core.errors import InputError

_K8S = "Kubernetes"


def launch(
    source: Annotated[str, typer.Argument(help="plan file, or a handoff's; or plan:, handoff: (the last result)")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder for commands, scripts and deployment.json")
    ] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm or dynamo; left out: the plan's")] = "",
    *,
    weights: Annotated[str, typer.Option(help="model folder on the nodes; left out: the plan's model by name")] = "",
    name: Annotated[str, typer.Option(help="the model's name in the API; left out: the plan's")] = "",
    multi_node: Annotated[str, typer.Option(help="native, ray or slurm", metavar="KIND")] = "native",
    hosts: Annotated[
        str, typer.Option(help="addresses of the nodes, in the plan's order; left out: hosts.env", metavar="A,B,...")
    ] = "",
    interface: Annotated[str, typer.Option(help="network interface for rendezvous, such as eth0")] = "",
    kubernetes: Annotated[
        str,
        typer.Option(help="manifests in place of scripts: lws, llm-d or dynamo", metavar="KIND", rich_help_panel=_K8S),
    ] = "",
    image: Annotated[
        str, typer.Option(help="of the engine; left out: the one its makers publish", rich_help_panel=_K8S)
    ] = "",
    router_image: Annotated[
        str, typer.Option(help="of the router in front of pools, or llm-d's sidecar", rich_help_panel=_K8S)
    ] = "",
    cluster_topology: Annotated[
        str, typer.Option(help="dynamo: ClusterTopology whose level rack is a scale-up domain", rich_help_panel=_K8S)
    ] = "",
    json: Annotated[
        bool, typer.Option("--json", help="print deployment.json, and nothing else", rich_help_panel="Output")
    ] = False,
) -> int:
    """A plan as what people run in production. Exit code 1: the engine cannot express it."""
    from linkwise import api_launch

    if output is None and not json:
        raise InputError("nowhere to write", where="launch", expected="-o FOLDER, or --json")
    given = cli_base.kept(source[:-1]) if source in {"plan:", "handoff:"} else source
    if kubernetes:
        if output is None or multi_node != "native" or hosts:
            raise InputError("--kubernetes takes -o, not --multi-node or --hosts", where="launch", expected="-o FOLDER")
        text, found = api_launch.manifest(
            given, kubernetes, engine=engine, weights=weights, name=name, interface=interface, image=image,
            router_image=router_image, cluster_topology=cluster_topology,
        )  # fmt: skip
        from linkwise.launch.write import write_manifest

        path = write_manifest(text, output)
        _say(found.differs, ())
        streams.write(f"written    {path}\nstart      kubectl apply -f {path}")
        return cli_base.YES
    if image or router_image or cluster_topology:
        raise InputError("images and topologies are Kubernetes'", where="launch", expected="--kubernetes KIND")
    made = api_launch.launch(
        given, engine=engine, weights=weights, name=name, multi_node=multi_node,
        hosts=tuple(part.strip() for part in hosts.split(",")) if hosts else (), interface=interface,
    )  # fmt: skip
    if output is not None:
        from linkwise.launch.write import write

        written = write(made, output)
        _say(made.differs, made.notes)
    if json:
        cli_base.print_json(made)
    elif output is not None:
        from linkwise.report.launch import screen

        cli_base.print_blocks(screen(made, str(output), len(written)))
    return cli_base.YES


def _say(differs: tuple[str, ...], notes: tuple[str, ...]) -> None:
    for said in differs:
        streams.say(f"differs: {said}")
    for said in notes:
        streams.say(f"note: {said}")
