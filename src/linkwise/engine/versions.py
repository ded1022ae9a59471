"""Versions of engines, compared."""

import re

from linkwise.core.errors import InputError


def version_key(version: str) -> tuple[int, ...]:
    """Comparable form of a version: "0.11.0rc1" is (0, 11, 0, 0). Raises InputError without a leading number."""
    match = re.fullmatch(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})(?:[.+-]?[A-Za-z][\w.+-]{0,60})?", version.strip())
    if not match:
        raise InputError(
            f"engine version {version!r}"[:80], where="engine", expected="a version such as 0.32 or 0.11.0"
        )
    numbers = [int(n) for n in match[1].split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))
