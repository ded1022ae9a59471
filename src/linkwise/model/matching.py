"""Lists of module names in quantisation configs, matched by each format's own rule, fast for thousands of entries.

exact/prefix   every format: an entry names a module; what lies below it (`entry.`) is covered too.
suffix         Hugging Face's modules_to_not_convert: an entry may be the last words of a name (`gate`, `lm_head`).
glob           ModelOpt's exclude_modules and modules_to_not_convert: `*` and `?` as in a shell, over the whole name.
regex          compressed-tensors' `re:` entries, matched from the start of the name.
Experts are one entry for all: `experts.7.` and `experts.*.` are the same place.
"""

import fnmatch
import re
from dataclasses import dataclass

from linkwise.core.errors import InputError

MAX_ENTRIES = 1_000_000
_MAX_PATTERN = 300
_EXPERT = re.compile(r"\.experts\.[0-9]+(?=\.|$)")


def generic(name: str) -> str:
    """A module name with the expert's number dropped: `...experts.7.up_proj` -> `...experts.*.up_proj`."""
    return _EXPERT.sub(".experts.*", name)


@dataclass(frozen=True)
class Names:
    """A compiled list of module names."""

    exact: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def match(self, name: str) -> bool:
        """Whether the list covers a module."""
        if self.starts and name.startswith(self.starts):
            return True
        if self.suffixes and name.endswith(self.suffixes):
            return True
        if self.pattern and self.pattern.match(name.replace("experts.*", "experts.0")):
            return True
        part = name
        while part:
            if part in self.exact:
                return True
            part = part.rpartition(".")[0]
        return False


def compile_names(entries: object, *, where: str, suffix: bool = False, regex: bool = False) -> Names:
    """A list of names as a `Names`. `suffix`: entries may be last words; `regex`: `re:` entries are allowed.

    Raises InputError for a list that is not one of strings, and for a regular expression that could take forever.
    """
    if entries is None:
        return Names()
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES or not all(isinstance(e, str) for e in entries):
        raise InputError("not a list of module names", where=where, expected="a list of strings")
    exact: set[str] = set()
    starts: list[str] = []
    patterns: list[str] = []
    for entry in entries:
        if regex and entry.startswith("re:"):
            patterns.append(_checked(entry[3:], where))
        elif not any(sign in entry for sign in "*?["):
            exact.add(generic(entry))
        elif len(entry) > 1 and not any(sign in entry[:-1] for sign in "*?[") and entry.endswith("*"):
            starts.append(generic(entry[:-1]))
        elif len(entry) > _MAX_PATTERN:
            raise InputError(f"a pattern of {len(entry)} characters", where=where, expected=f"at most {_MAX_PATTERN}")
        else:
            # A module that a glob names covers what lies below it.
            patterns.append(fnmatch.translate(entry))
            patterns.append(fnmatch.translate(f"{entry}.*"))
    return Names(
        exact=frozenset(exact),
        suffixes=tuple(f".{e}" for e in exact) if suffix else (),
        starts=tuple(starts),
        pattern=re.compile("|".join(f"(?:{p})" for p in dict.fromkeys(patterns))) if patterns else None,
    )


def _checked(pattern: str, where: str) -> str:
    # Python's engine backtracks: repeated groups and many open repeats can take exponential or high polynomial time.
    if len(pattern) > _MAX_PATTERN or re.search(r"\)\s*[*+{?]", pattern) or len(re.findall(r"[*+{]", pattern)) > 4:
        raise InputError(
            f"regular expression {pattern[:60]!r} is too complex", where=where, expected="at most 4 simple repeats"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(f"regular expression {pattern[:60]!r}: {error}", where=where) from None
    return pattern
