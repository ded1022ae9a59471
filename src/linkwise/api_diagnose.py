"""`linkwise diagnose` as a Python call."""

from pathlib import Path

from linkwise.core.errors import InputError
from linkwise.core.units import parse_time
from linkwise.diagnose.diagnose import diagnose as judge
from linkwise.diagnose.diagnose import since as newest
from linkwise.diagnose.types import Findings
from linkwise.plan.types import Plan
from linkwise.trace.gather import Evidence, gather


def diagnose(*evidence: "str | Path", plan: "str | Path | Plan | None" = None, since: str = "") -> Findings:
    """Whose fault was it? evidence: files and folders of any formats; plan: what the run was meant to do, a value or a
    file; since: only what happened in the last "10m" of it.

    Raises InputError for paths that do not exist, for no usable evidence at all, and for a malformed time or plan.
    """
    from linkwise import api

    return judge(collect(evidence, since), None if plan is None else api._plan_of(plan))


def collect(paths: "tuple[str | Path, ...]", since: str = "") -> Evidence:
    """What the files say, newest part only where asked. Raises InputError as `diagnose` does."""
    if not paths:
        raise InputError("no evidence", where="diagnose", expected="files or folders")
    seconds = parse_time(since, where="since") if since else 0.0
    found = gather(paths)
    if not found.used:
        first = f": {found.unusable[0].path}: {found.unusable[0].reason}" if found.unusable else ""
        raise InputError(f"none of {len(found.unusable)} file(s) can be used{first}", where="evidence")
    return newest(found, seconds) if seconds else found
