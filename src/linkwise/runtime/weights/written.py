"""Which folders `linkwise weights` may replace: those it wrote itself, and that nobody has changed since."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object, write_bytes
from linkwise.core.schema import encode_json

MARK = "linkwise-weights.json"
_SCHEMA = "linkwise.weights/1"


def mark(folder: Path) -> None:
    """Write down what the folder holds, for `check`."""
    write_bytes(folder / MARK, encode_json({"schema": _SCHEMA, "files": _files(folder)}))


def check(folder: Path) -> None:
    """Raises InputError unless the folder is new, empty, or just as `mark` found it."""
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder) or os.path.islink(folder):
        raise InputError("exists and is no folder", where=str(folder))
    found = _files(folder)
    if not found and not os.path.lexists(folder / MARK):
        return
    about = read_json_object(folder / MARK) if os.path.lexists(folder / MARK) else {}
    ours = about.get("files") if about.get("schema") == _SCHEMA else None
    ours = ours if isinstance(ours, dict) else {}
    for name, state in sorted(found.items()):
        if ours.get(name) != state:
            how = "has changed since this command wrote it" if name in ours else "this command did not write"
            raise InputError(
                f"holds {name[:80]!r}, which {how}",
                where=str(folder),
                expected="a new or empty folder, or one that this command wrote",
                hint="Remove the folder yourself, or name another one",
            )


def swap(made: Path, folder: Path) -> None:
    """Put a finished folder in the place of another, which is gone only when the new one is there. Raises OSError."""
    if not os.path.lexists(folder):
        os.rename(made, folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.before.", dir=folder.parent))
    before = aside / folder.name
    os.rename(folder, before)
    try:
        os.rename(made, folder)
    except BaseException:
        os.rename(before, folder)
        os.rmdir(aside)
        raise
    shutil.rmtree(aside)


def _files(folder: Path) -> dict[str, Any]:
    """Size and time of change of all it holds but the mark."""
    found: dict[str, Any] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if entry.name != MARK:
                found[entry.name] = [status.st_size, status.st_mtime_ns]
    return found
