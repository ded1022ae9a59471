"""What `linkwise report` shows, as a value: the plan and what stands beside it, each file known by its content."""

from collections.abc import Iterable
from pathlib import Path

from linkwise import answers
from linkwise.core.errors import InputError
from linkwise.core.files import read_bytes
from linkwise.core.schema import HANDOFF_SCHEMA, decode_json
from linkwise.diagnose.types import FINDINGS_SCHEMA, Findings
from linkwise.plan.types import Plan
from linkwise.report.page.types import Page
from linkwise.trace.gather import Evidence

_MAX_BYTES = 64 * 2**20
_HEAD = 4096  # our files say what they are in their first field


def page_of(plan: "str | Path | Plan", *beside: "str | Path") -> Page:
    """The page of a plan (value or file). beside: a handoff, findings, and evidence of a run in any formats.

    Raises InputError for what is no plan, for two handoffs or findings, and for paths that do not exist.
    """
    from linkwise.api import _plan_of
    from linkwise.api_diagnose import collect
    from linkwise.report.page.data import page_data

    handoffs: list[Path] = []
    findings: list[Path] = []
    evidence: list[Path] = []
    for path in map(Path, beside):
        kind = _schema(path)
        {HANDOFF_SCHEMA: handoffs, FINDINGS_SCHEMA: findings}.get(kind, evidence).append(path)
    handoff = answers.load(one) if (one := _one(handoffs, "handoff")) else None
    found: Evidence | None = collect(tuple(evidence)) if evidence else None
    return page_data(
        _plan_of(plan),
        handoff=handoff if isinstance(handoff, answers.Handoff) else None,
        findings=_findings(one) if (one := _one(findings, "diagnosis")) else None,
        evidence=found,
    )


def _one(paths: Iterable[Path], what: str) -> Path | None:
    found = list(paths)
    if len(found) > 1:
        raise InputError(f"{len(found)} files of a {what}", where="report", expected="one")
    return found[0] if found else None


def _findings(path: Path) -> Findings:
    return decode_json(read_bytes(path, max_bytes=_MAX_BYTES), Findings, where=str(path))


def _schema(path: Path) -> str:
    """The schema a file of ours begins with; "" of anything else, a folder among it."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        head = file.read(_HEAD).lstrip()
    if not head.startswith(b"{"):
        return ""
    name, _, rest = head[1:].lstrip().partition(b":")
    if name.strip() != b'"schema"':
        return ""
    return rest.lstrip().partition(b",")[0].strip().strip(b'"}').strip().decode("ascii", "replace")
