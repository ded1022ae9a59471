"""What stands beside the plan, and what of it is on the page: nothing that was given is left out in silence."""

from collections.abc import Iterator

from linkwise.core.units import counted
from linkwise.diagnose.types import Findings
from linkwise.report.page.types import Comparison
from linkwise.trace.gather import Evidence

_MOST = 5  # files that could not be used, by name


def without_calls(evidence: Evidence) -> bool:
    """Whether nothing of it can be held against the plan."""
    return not any(len(rank.calls) for rank in evidence.trace.ranks)


def of_evidence(evidence: Evidence, observed: Comparison | None, diagnosed: Findings | None) -> Iterator[str]:
    """What of the evidence is on the page, in words. diagnosed: what was found in it for the page, if asked."""
    formats = ", ".join(dict.fromkeys(one.format for one in evidence.used))
    what = f"{counted(len(evidence.used), 'file')} of evidence ({formats})"
    if observed is not None:
        links = counted(len(observed.links), "counted link") if observed.links else "no counted link"
        yield f"{what}: calls of {counted(observed.ranks, 'record')} and {links} are held against the plan"
    elif without_calls(evidence):
        yield f"{what}: no calls in it, so nothing is held against the plan"
    else:
        yield f"{what}: none of its calls is one of the plan's, so nothing is held against it"
    if diagnosed is not None:
        found = counted(len(diagnosed.findings), "finding") if diagnosed.findings else "nothing was found"
        yield f"the evidence was diagnosed for this page: {found}"
    for one in evidence.unusable[:_MOST]:
        yield f"not used: {one.path}: {one.reason}"
    if len(evidence.unusable) > _MOST:
        yield f"not used: {counted(len(evidence.unusable) - _MOST, 'other file')}"
