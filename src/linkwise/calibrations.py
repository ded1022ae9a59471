"""Which of the two kinds of calibration a file holds: links as measured, or an engine's step as fitted to results."""

from linkwise.core.errors import InputError
from linkwise.core.files import parse_yaml_object, read_text
from linkwise.engine import step_calibrations
from linkwise.engine.base import Engine


def is_of_steps(path: str) -> bool:
    """Whether the file says it holds an engine's step (linkwise calibrate), rather than links (linkwise measure)."""
    text = read_text(path, max_bytes=2 * step_calibrations.MAX_FILE_BYTES)
    return step_calibrations.is_one(parse_yaml_object(text, where=path))


def timed(engine: Engine, path: str | None) -> Engine:
    """The engine with the constants of a file of steps, or as it is. Raises InputError for those of another engine."""
    if path is None or not is_of_steps(path):
        return engine
    found = step_calibrations.load(path)
    if found.engine != engine.name:
        raise InputError(
            f"fitted to {found.engine}", where=f"{path}: engine", expected=f"a calibration of {engine.name}",
            hint="linkwise calibrate results.json --engine fits one",
        )  # fmt: skip
    return engine.calibrated(found)
