"""The command `linkwise launch`: its words and options. cli.py registers it."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linkwise import cli_base, streams
from linkwise.cli_words import unused
from linkwise.core.errors import InputError
from linkwise.core.units import parse_time

if TYPE_CHECKING:
    from linkwise.launch.build import Prepared
    from linkwise.supervise.rules import Rules

_K8S, _START = "Kubernetes", "On this machine"


def launch(
    source: Annotated[
        str,
        typer.Argument(help="plan file, or a handoff's; plan:, handoff: (the last result); or a folder of a launch"),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder for commands, scripts and deployment.json")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="vllm, sglang, trtllm or dynamo; left out: the plan's")] = None,
    *,
    weights: Annotated[
        str | None, typer.Option(help="model folder on the nodes; left out: the plan's model by name")
    ] = None,
    name: Annotated[str | None, typer.Option(help="the model's name in the API; left out: the plan's")] = None,
    multi_node: Annotated[
        str | None, typer.Option(help="native (unless said otherwise), ray or slurm", metavar="KIND")
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(help="addresses of the nodes, in the plan's order; left out: hosts.env", metavar="A,B,..."),
    ] = None,
    interface: Annotated[str | None, typer.Option(help="network interface for rendezvous, such as eth0")] = None,
    router: Annotated[
        str | None, typer.Option(help="in front: engine (its own, before several groups) or linkwise", metavar="KIND")
    ] = None,
    port: Annotated[int | None, typer.Option(help="where requests go, on the first node; left out: 8000")] = None,
    data_parallel: Annotated[
        bool, typer.Option("--data-parallel", help="vllm: the replicas as data-parallel ranks of one server")
    ] = False,
    engine_args: Annotated[
        str | None,
        typer.Option(help="words added to every engine command; the layout stays the plan's", metavar="WORDS"),
    ] = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="requests need the key in LINKWISE_API_KEY, which is in no file")
    ] = False,
    start: Annotated[
        bool, typer.Option("--start", help="start it on this machine, route, watch, and stop", rich_help_panel=_START)
    ] = False,
    route: Annotated[
        bool, typer.Option("--route", help="route and watch what start.sh has started", rich_help_panel=_START)
    ] = False,
    on_fault: Annotated[
        str | None,
        typer.Option(
            help="retry (unless said otherwise), restart or reject: requests of a lost group", rich_help_panel=_START
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            help="a group without a token for so long is lost; left out: 30s", rich_help_panel=_START, metavar="TIME"
        ),
    ] = None,
    start_timeout: Annotated[
        str | None,
        typer.Option(
            help="how long a group may take until it serves; routers wait as long; left out: 30min, pods 1h",
            metavar="TIME",
        ),
    ] = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(help="manifests, no scripts: lws, llm-d or dynamo", metavar="KIND", rich_help_panel=_K8S),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="of the engine; left out: the one its makers publish", rich_help_panel=_K8S)
    ] = None,
    router_image: Annotated[
        str | None, typer.Option(help="of the router in front of pools, or llm-d's sidecar", rich_help_panel=_K8S)
    ] = None,
    cluster_topology: Annotated[
        str | None,
        typer.Option(help="dynamo: ClusterTopology whose level rack is a scale-up domain", rich_help_panel=_K8S),
    ] = None,
    object_name: Annotated[
        str | None,
        typer.Option(help="of the objects; left out: made of the model's name in the API", rich_help_panel=_K8S),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="print deployment.json, and nothing else", rich_help_panel="Output")
    ] = False,
) -> int:
    """A plan as what people run in production. Exit code 1: the engine cannot express it."""
    from linkwise import api_launch

    written = Path(source).is_dir()
    _only_where_it_counts(
        {
            "--engine": engine, "--weights": weights, "--name": name, "--multi-node": multi_node,
            "--hosts": hosts, "--interface": interface, "--router": router, "--port": port is not None,
            "--data-parallel": data_parallel, "--engine-args": engine_args or None, "--with-key": with_key,
            "--start": start, "--route": route, "--on-fault": on_fault, "--timeout": timeout,
            "--kubernetes": kubernetes, "--image": image, "--router-image": router_image,
            "--cluster-topology": cluster_topology, "--object-name": object_name, "-o": output, "--json": json,
        },
        written=written,
    )  # fmt: skip
    rules = _rules(on_fault or "retry", ("1h" if kubernetes else "30min") if start_timeout is None else start_timeout)
    bound_s = parse_time(timeout or "30s", where="--timeout")
    if start or route:
        _needs()
        if written:
            return _run(Path(source), rules, bound_s, start=start)
    if route or written:
        raise InputError(
            "a folder of a launch is started or routed", where="launch", expected="FOLDER --start or --route"
        )
    if output is None and (start or kubernetes or not json):
        raise InputError(
            "nowhere to write", where="launch", expected="-o FOLDER" + ("" if start or kubernetes else ", or --json")
        )
    given = cli_base.kept(source[:-1]) if source in {"plan:", "handoff:"} else source
    if kubernetes and output is not None:
        return _manifest(
            output, *api_launch.manifest(
                given, kubernetes, engine=engine or "", weights=weights or "", name=name or "",
                interface=interface or "", engine_args=engine_args or "", image=image or "",
                router_image=router_image or "", cluster_topology=cluster_topology or "",
                object_name=object_name or "", start_s=rules.start_s, with_key=with_key,
            )
        )  # fmt: skip
    made = api_launch.launch(
        given, engine=engine or "", weights=weights or "", name=name or "", multi_node=multi_node or "native",
        hosts=tuple(part.strip() for part in hosts.split(",")) if hosts else (), interface=interface or "",
        engine_args=engine_args or "", router=router or ("linkwise" if start else ""),
        port=8000 if port is None else port, start_s=rules.start_s,
        data_parallel=data_parallel, with_key=with_key,
    )  # fmt: skip
    if json:
        cli_base.print_json(made)
    if output is not None:
        from linkwise.launch.write import write
        from linkwise.report.launch import screen

        files = write(made, output)
        _say(made.differs, made.notes)
        if start:
            return _run(output, rules, bound_s, start=True)
        cli_base.print_blocks([] if json else screen(made, str(output), len(files)))
    return cli_base.YES


def _only_where_it_counts(given: dict[str, Any], *, written: bool) -> None:
    """Refuse options that are empty or would change nothing.

    written: SOURCE is a folder of a launch, whose files say the rest.
    """
    for name, value in given.items():
        if value == "":  # a variable that is not set, which would be taken as left out
            raise InputError("is empty", where=name, expected="a value, or the option left out")
    running, pods = ("--on-fault", "--timeout"), ("--image", "--router-image", "--cluster-topology", "--object-name")
    if written:
        what, besides = "a folder of a launch", [n for n in given if n not in {"--start", "--route", *running}]
        if given["--start"] and given["--route"]:
            what, besides = "--start", ["--route"]
    elif given["--kubernetes"]:
        scripts = ("--multi-node", "--hosts", "--router", "--port", "--data-parallel", "--start", "--route", "--json")
        what, besides = "--kubernetes", [*scripts, *running]
    elif given["--start"]:
        what, besides = "--start", ["--route", *pods]
        if given["--multi-node"] == "slurm":
            raise InputError("--multi-node slurm with --start", where="launch", expected="sbatch slurm.sh starts it")
    else:
        what, besides = "files that are only written", [*running, *pods]
    unused({name: given[name] for name in besides}, beside=what, where="launch")


def _manifest(output: Path, text: str, found: "Prepared") -> int:
    from linkwise.launch.write import write_manifest

    path = write_manifest(text, output)
    _say(found.differs, found.notes)
    streams.write(f"written    {path}\nstart      kubectl apply -f {path}")
    return cli_base.YES


def _needs() -> None:
    missing = [name for name in ("httpx", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(f"not installed: {', '.join(missing)}", expected="pip install linkwise[launch]")


def _rules(on_fault: str, start_timeout: str) -> "Rules":
    from linkwise.supervise.rules import Rules

    if on_fault not in {"retry", "restart", "reject"}:
        raise InputError(repr(on_fault)[:80], where="--on-fault", expected="retry, restart or reject")
    return Rules(on_fault=on_fault, start_s=parse_time(start_timeout, where="--start-timeout"))  # type: ignore[arg-type]


def _run(folder: Path, rules: "Rules", bound_s: float, *, start: bool) -> int:
    from linkwise.launch.start import run

    return run(folder, rules, streams.say, bound_s=bound_s, timeout_s=600.0, start=start)


def _say(differs: tuple[str, ...], notes: tuple[str, ...]) -> None:
    for said in differs:
        streams.say(f"differs: {said}")
    for said in notes:
        streams.say(f"note: {said}")
