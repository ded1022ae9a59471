"""What can be wrong, a module each. A rule is a module with `find(case)`; to add one, write it and name it in RULES.

Rules that see the fault itself come before those that see its symptoms: `diagnose.py` drops what another explains.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Protocol, cast

from linkwise.diagnose.case import Case
from linkwise.diagnose.types import Finding

RULES = (
    "mismatch", "hang", "absent", "stacks", "monitors", "network", "devices", "host", "errors", "handoff", "pools",
    "engines", "links", "routes", "late", "kernels", "quotas", "compute", "experts",
)  # fmt: skip


class Rule(Protocol):
    """find: what it sees in a case; nothing when there is nothing, an undecided finding when it cannot tell."""

    def find(self, case: Case) -> Iterator[Finding]: ...


def rule(name: str) -> Rule:
    """The rule of that name, one of RULES."""
    return cast(Rule, import_module(f"linkwise.diagnose.rules.{name}"))
