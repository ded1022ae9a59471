"""What `linkwise report` shows, as a value: the plan and what stands beside it, each file known by its content."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from linkwise import answers
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath, read_bytes
from linkwise.core.schema import HANDOFF_SCHEMA, decode_json
from linkwise.diagnose.types import FINDINGS_SCHEMA, Findings
from linkwise.measure.lab.run import LAB_SCHEMA, LabResult
from linkwise.plan.traffic_types import TRAFFIC_SCHEMA, Traffic
from linkwise.plan.types import Plan
from linkwise.report.page.types import Page
from linkwise.trace.gather import Evidence

_MAX_BYTES = 64 * 2**20


def page_of(plan: "FilePath | Plan", *beside: "FilePath") -> Page:
    """The page of a plan (value or file). beside: a handoff, traffic, findings, a lab's counts, and evidence of a run.

    Raises InputError for what is no plan, for two handoffs or findings, for a handoff on another cluster, and for paths
    that do not exist.
    """
    from linkwise.answers import plan_of
    from linkwise.api_diagnose import collect
    from linkwise.api_handoff import explain_handoff
    from linkwise.report.page import others
    from linkwise.report.page.data import page_data

    made = plan_of(plan)
    handoffs: list[Path] = []
    findings: list[Path] = []
    traffics: list[Path] = []
    labs: list[Path] = []
    evidence: list[Path] = []
    for path in map(Path, beside):
        ours = {HANDOFF_SCHEMA: handoffs, FINDINGS_SCHEMA: findings, TRAFFIC_SCHEMA: traffics, LAB_SCHEMA: labs}
        ours.get(_schema(path), evidence).append(path)
    loaded = answers.load(one) if (one := _one(handoffs, "handoff")) else None
    handoff = loaded if isinstance(loaded, answers.Handoff) else None
    if labs and not evidence:
        raise InputError("a lab without traces", where="report", expected="the traces of the run in it, too")
    found: Evidence | None = collect(tuple(evidence)) if evidence else None
    said = {path: f": {'; '.join(words)}" for path in handoffs if handoff and (words := others.unlike(handoff, made))}
    kinds = (("handoff", handoffs), ("traffic", traffics), ("findings", findings), ("lab", labs))
    return page_data(
        made,
        handoff=handoff,
        handoff_chains={path: explain_handoff(handoff, path).chain for path in handoff.figures} if handoff else None,
        traffics=[(path.name, _read(path, Traffic)) for path in traffics],
        findings=_read(one, Findings) if (one := _one(findings, "diagnosis")) else None,
        evidence=found,
        lab=_read(one, LabResult) if (one := _one(labs, "lab")) else None,
        used=[f"{path.name}: {kind}{said.get(path, '')}" for kind, paths in kinds for path in paths],
    )


def _one(paths: Iterable[Path], what: str) -> Path | None:
    found = list(paths)
    if len(found) > 1:
        raise InputError(f"{len(found)} files of a {what}", where="report", expected="one")
    return found[0] if found else None


T = TypeVar("T")


def _read(path: Path, kind: type[T]) -> T:
    return decode_json(read_bytes(path, max_bytes=_MAX_BYTES), kind, where=str(path))


class _Head(msgspec.Struct, frozen=True):
    """What says which kind of file it is."""

    schema: str = ""


def _schema(path: Path) -> str:
    """The schema a JSON file of ours names; "" of anything else, a folder or a trace of many lines among it."""
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return ""
    text = read_bytes(path, max_bytes=_MAX_BYTES)
    try:
        return msgspec.json.decode(text, type=_Head).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
