"""`linkwise diagnose` as a Python call."""

from linkwise import doors
from linkwise.answers import plan_of
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.core.units import counted, parse_time
from linkwise.diagnose.diagnose import diagnose as judge
from linkwise.diagnose.diagnose import since as newest
from linkwise.diagnose.types import Findings
from linkwise.plan.types import Plan
from linkwise.trace.gather import Evidence, gather
from linkwise.trace.whose import Unusable


def diagnose(*evidence: "FilePath", plan: "FilePath | Plan | None" = None, since: str = "") -> Findings:
    """Whose fault was it? evidence: files and folders of any formats; plan: what the run was meant to do, a value or a
    file; since: only what happened in the last "10m" of it.

    Raises InputError for paths that do not exist, for no usable evidence at all, and for a malformed time or plan.
    """
    found = collect(evidence, since)
    if plan is None:
        return judge(found)
    return judge(found, plan_of(plan))


def collect(paths: "tuple[FilePath, ...]", since: str = "") -> Evidence:
    """What the files say, newest part only where asked. Raises InputError as `diagnose` does."""
    if not paths:
        raise InputError("no evidence", where="diagnose", expected="files or folders")
    seconds = parse_time(since, where="since") if since else 0.0
    found = gather([doors.path(path, "evidence") for path in paths], since_s=seconds)
    if not found.used:
        raise InputError(_none_of(found.unusable), where="evidence", expected="a file of a format in docs/evidence.md")
    return newest(found, seconds) if seconds else found


def _none_of(bad: tuple[Unusable, ...]) -> str:
    """Why no file can be used: the commonest reasons, each with a file it holds for."""
    if not bad:
        return "there are no files in it"
    reasons: dict[str, list[str]] = {}
    for one in bad:
        reasons.setdefault(one.reason, []).append(one.path)
    common = sorted(reasons.items(), key=lambda item: -len(item[1]))
    told = [
        f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {reason}" for reason, paths in common[:3]
    ]
    rest = [f"{counted(len(common) - 3, 'other reason')}"] if len(common) > 3 else []
    which = "the file cannot" if len(bad) == 1 else f"none of {len(bad)} files can"
    return f"{which} be used: {'; '.join(told + rest)}"
