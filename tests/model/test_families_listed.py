"""docs/models.md names every family there is, and no other."""

import re
from pathlib import Path

from linkwise.model import families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def test_the_page_of_models_names_every_family() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == set(families.FAMILIES) | set(families.WRAPPERS)
