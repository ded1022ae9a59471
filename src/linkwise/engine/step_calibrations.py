"""Calibrations of engines' steps as files: those that are shipped, one an engine, and a user's own."""

from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import dump_yaml, parse_yaml_object, read_text
from linkwise.core.schema import convert
from linkwise.engine.step_constants import STEP_CALIBRATION_SCHEMA, StepCalibration

MAX_FILE_BYTES = 2**20


@cache
def shipped(engine: str) -> StepCalibration | None:
    """The calibration that comes with an engine's facts; None for an engine nobody measured."""
    file = resources.files("linkwise.engine") / "facts" / f"step_{engine}.yaml"
    if not file.is_file():
        return None
    where = f"engine/facts/step_{engine}.yaml"
    return parse(file.read_text(encoding="utf-8"), where=where)


def load(path: str | Path) -> StepCalibration:
    """A calibration from a file. Raises InputError, naming file and field, for anything else."""
    return parse(read_text(path, max_bytes=MAX_FILE_BYTES), where=str(path))


def is_one(content: dict[str, object]) -> bool:
    """Whether a file's content says it is one."""
    return content.get("schema") == STEP_CALIBRATION_SCHEMA


def parse(text: str, *, where: str) -> StepCalibration:
    try:
        found = convert(parse_yaml_object(text, where=where), StepCalibration, where=where)
    except InputError as error:
        place = error.where if error.where.startswith(where) else f"{where}: {error.where}"
        raise InputError(error.message, where=place, expected=error.expected, hint=error.hint) from None
    if not found.constants:
        raise InputError("field constants: none", where=where, expected="at least one constant of a step")
    return found


def dump(calibration: StepCalibration) -> str:
    """As a file, in YAML. What is fitted does not say that it is not assumed."""
    found = msgspec.to_builtins(calibration)
    for one in found["constants"].values():
        if not one["assumed"]:
            del one["assumed"]
    return dump_yaml(found)
