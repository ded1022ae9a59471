"""`linkwise calibrate` as a Python call, with the words of the command."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linkwise import doors
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath

if TYPE_CHECKING:
    from linkwise.engine.step_constants import StepCalibration
    from linkwise.simulate.calibrate.kernels import Outcome as Kernels
    from linkwise.simulate.calibrate.own import Outcome
    from linkwise.workload.results import LeftOut


def calibrate(
    files: "FilePath | Sequence[FilePath]", *, engine: str = "", model: FilePath = "", on: FilePath = "",
    tp: int | None = None, base: "FilePath | StepCalibration" = "",
) -> "Outcome":  # fmt: skip
    """What do my own results say of an engine's step? `fitted` says also which rows were left out, and why.

    files: results of vllm bench serve, SGLang, aiperf, guidellm, genai-perf, or a CSV. engine: of rows that name none,
    and only its rows. model, on, tp: of rows that do not say; rows that say another are left out. base: constants to
    start from; "" = the shipped ones. Raises InputError when no row can be simulated.
    """
    return fitted(files, engine=engine, model=model, on=on, tp=tp, base=base)[0]


def fitted(
    files: "FilePath | Sequence[FilePath]", *, engine: str = "", model: FilePath = "", on: FilePath = "",
    tp: int | None = None, base: "FilePath | StepCalibration" = "",
) -> "tuple[Outcome, tuple[LeftOut, ...]]":  # fmt: skip
    """The outcome, and every row that was left out with its reason."""
    from msgspec.structs import replace

    from linkwise.cluster.read import load as cluster
    from linkwise.engine import registry
    from linkwise.simulate.calibrate.own import calibrate as decide
    from linkwise.simulate.calibrate.rows import Given, cases_of
    from linkwise.workload import results

    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    paths = [doors.path(one, "files") for one in given]
    read = [results.read(path) for path in paths]
    rows = [row for one in read for row in one.rows]
    if engine:
        registry.get(engine)  # an unknown one is an error of its own, not of every row
    found = cases_of(
        rows, Given(engine=engine, model=os.fspath(model), cluster=cluster(os.fspath(on)) if on else None, tp=tp)
    )
    left_out = tuple(one for part in read for one in part.left_out) + found.left_out
    if not found.cases:
        raise InputError(
            f"none of {len(left_out)} rows can be simulated: {'; '.join(_reasons(left_out))}", where="calibrate",
            expected="rows of one engine with model, GPU, lengths and load",
        )  # fmt: skip
    known = _known(base) or found.cases[0].served.engine.calibration
    outcome = decide(found.cases, known, source=", ".join(Path(path).name for path in paths))
    return replace(outcome, rows_not_used=left_out), left_out


def kernels(
    tables: FilePath, *, engine: str, on: FilePath, base: "FilePath" = ""
) -> "Kernels":  # fmt: skip
    """What do kernels that were measured one by one say of a GPU's rates? Constants of `base` with those replaced.

    tables: a folder of parquet tables, or "aiconfigurator" for the installed package. engine: whose, such as
    vllm==0.24. on: a cluster or node with the GPU. Raises InputError where no table can be used.
    """
    from linkwise.cluster.read import load as cluster
    from linkwise.engine import registry
    from linkwise.simulate.calibrate import kernel_tables
    from linkwise.simulate.calibrate.kernels import from_kernels

    for word, option in ((engine, "--engine"), (on, "--on")):
        if not word:
            raise InputError("missing", where=option, expected="whose kernels: --engine vllm==0.24 --on h100-sxm")
    served, gpu = registry.get(engine), cluster(os.fspath(on)).accelerator
    known = _known(base) or served.calibration
    if known is None:
        raise InputError(
            f"{served.name} has no constants of its own", where="--engine", expected="vllm, sglang, trtllm"
        )
    if known.engine != served.name:
        raise InputError(f"constants of {known.engine}", where="--base", expected=f"those of {served.name}")
    return from_kernels(kernel_tables.find(os.fspath(tables), gpu.name, served.name, served.version), gpu, known)


def _known(base: "FilePath | StepCalibration") -> "StepCalibration | None":
    from linkwise.engine import step_calibrations

    if not isinstance(base, str | os.PathLike):
        return base
    return step_calibrations.load(doors.path(base, "base")) if base else None


_SHOWN = 3  # reasons why no row can be simulated


def _reasons(left_out: "Sequence[LeftOut]") -> list[str]:
    """The reasons, most rows first, each with the first place where it holds."""
    places: dict[str, list[str]] = {}
    for one in left_out:
        places.setdefault(one.reason, []).append(one.where)
    most = sorted(places.items(), key=lambda item: -len(item[1]))
    found = [f"{where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''}: {why}" for why, where in most]
    return found[:_SHOWN] + ([f"{len(found) - _SHOWN} more reasons"] if len(found) > _SHOWN else [])
