"""The commands `linkwise measure` and `linkwise check`: their words and options, and starting ranks.

Started by torchrun or srun, this process is one rank; else it starts the ranks on this machine, each with the same
command line.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from linkwise import cli_base
from linkwise.cli_words import Json, unused
from linkwise.core.errors import InputError
from linkwise.core.files import write_bytes
from linkwise.core.units import parse_time

if TYPE_CHECKING:
    from linkwise.cluster.types import Cluster
    from linkwise.dist.groups import Session
    from linkwise.dist.launch import Start
    from linkwise.measure.calibration import Calibration
    from linkwise.measure.laid import Laid
    from linkwise.plan.types import Plan

On = Annotated[str, typer.Option("--on", help="cluster the ranks are on: shorthand or a YAML file")]
PlanFile = Annotated[str, typer.Option("--plan", help="plan file: its groups, its ranks on its devices")]
Ranks = Annotated[int | None, typer.Option("--ranks", help="ranks to start here; torchrun and srun say it themselves")]
Timeout = Annotated[str, typer.Option(help="a rank that does not come back is named within this", metavar="TIME")]
Backend = Annotated[str, typer.Option(help="nccl or gloo; left out: nccl where there are GPUs")]


def measure(
    on: On = "",
    plan: PlanFile = "",
    ranks: Ranks = None,
    from_: Annotated[
        str, typer.Option("--from", help="read the output of nccl-tests instead of measuring", metavar="FILE")
    ] = "",
    kind: Annotated[
        str, typer.Option(help="with --from: which collective, where the file does not say", metavar="KIND")
    ] = "",
    sizes: Annotated[str, typer.Option(help="sizes of the sweep, in factors of four", metavar="MIN:MAX")] = "",
    step: Annotated[str, typer.Option(help="with --plan alone: the step to rehearse: decode, mixed or prefill")] = "",
    calibration: Annotated[
        str, typer.Option(help="with --plan alone: predict with this calibration", metavar="FILE")
    ] = "",
    timeout: Annotated[
        str, typer.Option(help="a rank that does not come back is named within this; left out: 60s", metavar="TIME")
    ] = "",
    backend: Backend = "",
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="write the calibration as YAML", rich_help_panel="Output"),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="every measured call", rich_help_panel="Output")] = False,
    json: Json = False,
) -> int:
    """What do the links really give? Or, with --plan alone: does the plan's communication take what it predicts?"""
    from linkwise.api_task import cluster_of

    if not on and not plan:
        raise InputError("neither a cluster nor a plan", expected="--on CLUSTER, or --plan FILE to rehearse one")
    if from_:
        unused({
            "--plan": plan, "--ranks": ranks, "--sizes": sizes, "--step": step, "--calibration": calibration,
            "--backend": backend, "--timeout": timeout,
        }, beside="--from")  # fmt: skip
    else:
        unused({"--kind": kind}, without="--from")
    timeout = timeout or "60s"
    if on:
        unused({"--step": step, "--calibration": calibration}, beside="--on")
    else:
        unused({"--sizes": sizes, "--output": output, "--all": all_, "--from": from_}, beside="--plan without --on")
    where = cluster_of(on) if on else None
    if from_:
        return _calibrated(_from_nccl_tests(from_, kind, where), where, output, all_, json)
    planned = _plan(plan, calibration) if plan else None
    if planned and not on:
        from linkwise.measure.rehearse import ops_of

        ops_of(planned, step or "decode")
    if sizes:
        from linkwise.measure.sweep import sizes as parsed

        parsed(sizes)
    words = _words(
        "measure", on=on, plan=plan, sizes=sizes, step=step, calibration=calibration, timeout=timeout,
        backend=backend, output=output, all=all_, json=json,
    )  # fmt: skip
    start, code = _start(words, ranks, where, planned, timeout, backend)
    if start is None:
        return code
    if planned and not on:
        return _rehearsed(start, planned, step or "decode", timeout, backend, json)
    assert where is not None  # noqa: S101 - one of the two is given
    return _swept(start, where, planned, sizes, timeout, backend, output, all_, json)


def check(
    on: On = "",
    plan: PlanFile = "",
    ranks: Ranks = None,
    timeout: Timeout = "30s",
    backend: Backend = "",
    *,
    ranks_table: Annotated[
        bool, typer.Option("--ranks-table", help="every rank's place and probe", rich_help_panel="Output")
    ] = False,
    json: Json = False,
) -> int:
    """Is every participant there, where it should be, and as fast as its peers? Exit code 1: no; 3: undecided."""
    from linkwise.api_task import cluster_of

    if not on and not plan:
        raise InputError("neither a cluster nor a plan", expected="--on CLUSTER, --plan FILE or both")
    where = cluster_of(on) if on else None
    planned = _plan(plan, "") if plan else None
    words = _words("check", on=on, plan=plan, timeout=timeout, backend=backend, ranks_table=ranks_table, json=json)
    start, code = _start(words, ranks, where, planned, timeout, backend)
    if start is None:
        return code
    from linkwise.measure.check import check as look

    laid = _laid(where, planned, start.world)
    with _joined(start, backend, timeout) as (session, library), _progress(start) as progress:
        found = look(session, laid, library=library, progress=progress)
    if found is None:
        return 0
    if json:
        cli_base.print_json(found)
    else:
        from linkwise.report import measure as screens

        cli_base.print_blocks(screens.check(found), screens.check_ranks(found) if ranks_table else ())
    return found.exit_code


def _swept(
    start: "Start", where: "Cluster", planned: "Plan | None", sizes: str, timeout: str, backend: str,
    output: Path | None, all_: bool, json: bool,
) -> int:  # fmt: skip
    from linkwise.measure import points, sweep
    from linkwise.measure.laid import machine_notes

    laid = _laid(where, planned, start.world)
    with _joined(start, backend, timeout) as (session, library), _progress(start) as progress:
        wanted = sweep.sizes(sizes or ("1KiB:256MiB" if session.backend == "nccl" else "1KiB:16MiB"))
        single = session.backend == "nccl"  # gloo's calls are waited for anyway
        jobs = sweep.collective_jobs(where, laid.devices, laid.groups, wanted, single=single)
        jobs += sweep.pair_jobs(where, laid.devices)
        hosts = _hosts(session)
        times = sweep.run(session, jobs, progress)
    if start.rank:
        return 0
    found = points.calibrate(
        where,
        sweep.samples(where, laid.devices, jobs, times),
        library=library,
        source=f"linkwise measure, ranks started by {start.by}",
        ranks=start.world,
        pairs=sweep.rates(laid.devices, jobs, times),
        hosts=hosts.names,
        notes=(*_notes(library, where, hosts.devices), *machine_notes(laid, hosts.machines)),
    )
    return _calibrated(found, where, output, all_, json)


def _calibrated(found: "Calibration", where: "Cluster | None", output: Path | None, all_: bool, json: bool) -> int:
    from linkwise.measure.calibration import dump
    from linkwise.report import measure as screens

    assert where is not None  # noqa: S101 - asked for above
    if output is not None:
        write_bytes(output, dump(found).encode())
    if json:
        cli_base.print_json(found)
    else:
        cli_base.print_blocks(
            screens.calibration(found, str(output or "")),
            screens.samples(found) if all_ else (),
        )
    return 0


def _rehearsed(start: "Start", planned: "Plan", step: str, timeout: str, backend: str, json: bool) -> int:
    from linkwise.measure.laid import machine_notes
    from linkwise.measure.rehearse import rehearse

    laid = _laid(None, planned, start.world)
    with _joined(start, backend, timeout) as (session, library), _progress(start) as progress:
        hosts = _hosts(session)
        notes = () if start.rank else machine_notes(laid, hosts.machines)
        notes += () if start.rank else _notes(library, planned.cluster, hosts.devices)
        found = rehearse(session, planned, step, laid.replicas, library=library, notes=notes, progress=progress)
    if found is None:
        return 0
    if json:
        cli_base.print_json(found)
    else:
        from linkwise.report import measure as screens

        cli_base.print_blocks(screens.rehearsal(found))
    return 0 if found.as_planned else 1


def _words(name: str, **options: Any) -> list[str]:
    """The command line of a rank: the same options, without `--ranks`, which its launcher decides."""
    words = [name]
    for option, value in options.items():
        flag = "--" + option.replace("_", "-")
        words += [flag] if value is True else [f"{flag}={value}"] if value else []
    return words


def _plan(path: str, calibration: str) -> "Plan":
    from linkwise.answers import plan_of
    from linkwise.measure import calibration as calibrations
    from linkwise.measure.laid import with_constants

    found = plan_of(path)
    if not calibration:
        return found
    return with_constants(found, calibrations.apply(calibrations.load(calibration), found.cluster, calibration))


def _laid(where: "Cluster | None", planned: "Plan | None", ranks: int) -> "Laid":
    from linkwise.measure.laid import on_cluster, on_plan

    if planned is not None:
        return on_plan(planned, ranks, where)
    assert where is not None  # noqa: S101 - one of the two is given
    return on_cluster(where, ranks)


def _start(
    words: list[str], ranks: int | None, where: "Cluster | None", planned: "Plan | None", timeout: str, backend: str
) -> tuple["Start | None", int]:
    """This process as a rank; or None and the exit code of the ranks that were started here."""
    from linkwise.dist.launch import from_environment, leash, spawn

    leash(os.environ)
    try:
        import torch
    except ImportError:
        raise InputError("PyTorch is not installed", where=words[0], expected="pip install linkwise[run]") from None
    from linkwise.dist.groups import check_backend, check_timeout
    from linkwise.measure.laid import usual_ranks

    check_timeout(parse_time(timeout, where="--timeout"))
    check_backend(backend)
    start = from_environment(os.environ)
    if start is not None:
        if ranks is not None and ranks != start.world:
            raise InputError(f"{ranks}", where="--ranks", expected=f"{start.world}, as {start.by} started them")
        _laid(where, planned, start.world)
        return start, 0
    count = ranks if ranks is not None else usual_ranks(where, planned, torch.cuda.device_count())
    _laid(where, planned, count)
    return None, spawn(words, count)


@contextmanager
def _joined(start: "Start", backend: str, timeout: str) -> Iterator[tuple["Session", str]]:
    """A session, and the name of its library."""
    import torch

    from linkwise.dist.groups import join

    with join(start, backend=backend, timeout_s=parse_time(timeout, where="--timeout")) as session:
        name = "gloo"
        if session.backend == "nccl":
            version = torch.cuda.nccl.version()
            name = "nccl " + ".".join(map(str, version if isinstance(version, tuple) else (version,)))
        yield session, f"{name} (torch {torch.__version__})"


class _Hosts(NamedTuple):
    """Of each rank, on rank 0; empty on the others. machines: equal for ranks of one machine. devices: as the driver
    calls the GPUs that calls are timed on."""

    names: tuple[str, ...]
    machines: tuple[str, ...]
    devices: tuple[str, ...]


def _hosts(session: "Session") -> _Hosts:
    from linkwise.dist.groups import host_facts, share

    mine = {**host_facts(), "device": ""}
    if session.backend == "nccl":
        import torch

        mine["device"] = torch.cuda.get_device_properties(session.device).name
    found = share(session, "hosts", mine) or []
    names, machines, devices = (tuple(one[what] for one in found) for what in ("host", "machine", "device"))
    return _Hosts(names, machines, devices)


def _notes(library: str, where: "Cluster", devices: tuple[str, ...]) -> tuple[str, ...]:
    """What the figures are of. Raises InputError where the GPUs are known to be other ones than the cluster's."""
    if not library.startswith("gloo"):
        from linkwise.cluster import identify

        return identify.measured_on(devices, where.accelerator, "this machine")
    return (f"gloo moves CPU memory: these figures are of its sockets, not of {where.accelerator.label}",)


@contextmanager
def _progress(start: "Start") -> Iterator[Callable[[int, int, str], Any]]:
    """A bar, and what is being measured, on rank 0's terminal; nothing elsewhere."""
    from linkwise.measure.sweep import silent

    if start.rank or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, words: bar.update(
            task, completed=done, total=total or None, description=escape(words)
        )


def _from_nccl_tests(path: str, kind: str, where: "Cluster | None") -> "Calibration":
    from linkwise.cluster import identify
    from linkwise.measure import nccl_tests, points

    if where is None:
        raise InputError("no cluster", where="--from", expected="--on CLUSTER, which the run was made on")
    run = nccl_tests.load(path)
    seen = identify.measured_on(run.products, where.accelerator, path)
    found = nccl_tests.samples(run, where, kind=kind, where=path)
    return points.calibrate(
        where,
        found,
        library=f"nccl {run.version}".strip(),
        source=f"nccl-tests, {path}",
        ranks=len(run.devices),
        hosts=tuple(host for host, _ in run.devices),
        notes=("single links were not measured: nccl-tests times whole groups", *run.notes, *seen),
    )
