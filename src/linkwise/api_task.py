"""What a command is asked about: model, cluster, engine and settings as they were given, or as they run today."""

import math
import os
from typing import NamedTuple

from linkwise import calibrations, doors
from linkwise import settings as _settings
from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.settings import Settings
from linkwise.workload.types import Workload


class Task(NamedTuple):
    """What is to be decided, as it was given or as it runs today. replicas: today's; None where the choice is free.

    kv_tokens: what each engine of a running server has room for; None = not said.
    """

    model: Model
    cluster: Cluster
    engine: Engine
    options: Options
    workload: Workload
    fixed: dict[str, int]
    replicas: int | None
    notes: tuple[str, ...]
    kv_tokens: int | None = None


def task_of(
    model: FilePath | Model | None,
    on: FilePath | Cluster,
    engine: str | Engine | None,
    settings: Settings,
    *,
    command: str = "",
    manifest: FilePath = "",
    running: str = "",
) -> Task:
    """Everything a command names, read and checked. command, manifest, running: as `plan` takes them."""
    from linkwise.api_existing import reader
    from linkwise.engine.registry import get

    given = _settings.check(settings)
    own = _settings.degrees(given)
    read = reader(command, manifest, running, degrees=bool(own))
    options, workload = _settings.options(given), _settings.workload(given)
    by = calibrations.timed(doors.engine("vllm" if engine is None else engine), _settings.file(given, "calibration"))
    where = cluster_of(on, given)
    if read is None:
        if model is None:
            raise InputError("no model", expected="a model, or a command that names one (--from-command)")
        what = by.holds(model_of(model, given), options, where.accelerator)
        return Task(what, where, by, options, workload, fixed_of(own, what, where), None, ())
    version = None if engine is None else doors.version_of(engine)
    today = read(version=version)
    if engine is not None and by.name != today.engine:
        raise InputError(
            f"{by.name}, but the command starts {today.engine}",
            where="engine",
            expected=f"{today.engine}, a version of it, or none",
        )
    given = _settings.check({"weights": today.options.weight_dtype, **given})
    what = model_of(today.model if model is None else model, given)
    # Once more with the model: what a data-parallel flag means depends on whether it has experts.
    today = read(version=version, model=what)
    without_effect = " ".join(today.ignored)
    ignored = (
        (f"flags and variables that change neither layout nor memory: {without_effect}",) if without_effect else ()
    )
    # Degrees of one's own make another layout: the command's then count no more. Beside a server that says how many
    # engines it has and no more, they are what it does not say.
    says = _degrees_of(today.layout)
    fixed = fixed_of({**says, **own} if today.partial else own or says, what, where)
    options = _settings.options(given, today.options)
    notes = (*today.notes, *ignored)
    by = calibrations.timed(get(today.engine, version), _settings.file(given, "calibration"))
    what = by.holds(what, options, where.accelerator)
    replicas: int | None = today.replicas
    if own:  # a server's engines are attention replicas of a group, or groups
        engines = today.replicas * today.layout.dp_attn
        replicas = max(1, engines // fixed.get("dp_attn", 1)) if today.partial else None
    return Task(what, where, by, options, workload, fixed, replicas, notes, today.kv_tokens)


def model_of(model: FilePath | Model, given: Settings) -> Model:
    from linkwise.model.read import load as read

    doors.of_type(model, (str, os.PathLike, Model), "model", "a model's name, its folder, or a Model")
    dtype = given.get("weights")
    if isinstance(model, Model):
        doors.experts(model, given)
        if dtype is not None:
            raise InputError("a Model is already resolved", where="weights", expected="a model's name or folder")
        return model
    found = read(os.fspath(model), weight_dtype=dtype)
    doors.experts(found, given)
    return found


def cluster_of(on: FilePath | Cluster, given: Settings | None = None) -> Cluster:
    """The cluster, with the constants of the calibration that the settings name."""
    from linkwise.cluster.read import load as read

    doors.of_type(on, (str, os.PathLike, Cluster), "on", "a cluster such as 2x8xh100-sxm, a YAML file, or a Cluster")
    if on == "":
        raise InputError("no cluster", where="--on", expected="a cluster such as 2x8xh100-sxm, or a YAML file")
    found: Cluster = doors.again(on, "on") if isinstance(on, Cluster) else read(os.fspath(on))
    path = _settings.file(given or {}, "calibration")
    if path is None or calibrations.is_of_steps(path):
        return found
    from linkwise.measure import calibration

    return calibration.apply(calibration.load(path), found, path)


def _degrees_of(layout: Layout) -> dict[str, int]:
    return {**layout.degrees(), "sequence_sharded": int(layout.sequence_sharded)}


def fixed_of(degrees: dict[str, int], model: Model, cluster: Cluster) -> dict[str, int]:
    """Degrees some layout on the cluster can have. Raises InputError that says which of them cannot be."""
    from linkwise.plan.search import layouts

    if not degrees or next(layouts(model, cluster, degrees), None) is not None:
        return degrees
    given, expected = _impossible(degrees, model, cluster)
    raise InputError(given, where="layout", expected=expected)


def _impossible(degrees: dict[str, int], model: Model, cluster: Cluster) -> tuple[str, str]:
    """What is wrong with degrees that no layout has, and what would be right."""
    from linkwise.plan.search import group_sizes

    outer = {n: degrees[n] for n in ("pp", "cp", "dp_attn", "tp") if n in degrees}
    product, layers, sizes = math.prod(outer.values()), len(model.layers), group_sizes(cluster)
    if outer.get("pp", 1) > layers:
        return f"pp {outer['pp']} is more than the model's {layers} layers", f"pp 1..{layers}"
    if not any(size % product == 0 for size in sizes):
        words = " x ".join(f"{n} {d}" for n, d in outer.items() if d > 1)
        what = words if words.count(" ") == 1 else f"{words} = {product} ranks"
        inside = ", ".join(str(s) for s in sizes if s <= cluster.devices_per_node)
        many = f"{cluster.nodes} nodes" if cluster.nodes > 1 else "a node"
        verb = "does" if what == words else "do"
        whole = " or whole nodes" if cluster.nodes > 1 else ""
        return f"{what} {verb} not pack into {many} of {cluster.devices_per_node} devices", inside + whole
    if degrees.get("ep", 1) > 1 and model.moe is None:
        return f"ep {degrees['ep']}, but the model has no experts", "ep 1"
    inner = {"dcp": "tp", "ep": "cp x dp_attn x tp, the ranks of a stage"}
    named = [n for n in inner if degrees.get(n, 1) > 1]
    given = ", ".join(f"{n} {d}" for n, d in degrees.items() if n in outer or n in named)
    return f"no layout has {given}", " and ".join(f"{n} that divides {inner[n]}" for n in named)
