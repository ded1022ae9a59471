"""Members of a group in different calls: who left the common order, and how?"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.rules.whereabouts import made_twice
from linkwise.diagnose.types import Class, Finding
from linkwise.trace.joined import P2P

# Kinds whose size is the same on every member; an all-to-all's differs by rank, a gather's by root.
SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
AHEAD = 64  # calls after the first difference that are compared to tell a skip from another call


class Sign(NamedTuple):
    """What must agree in a call. size -1 = may differ."""

    op: str
    size: int
    dtype: str
    role: str


def find(case: Case) -> Iterator[Finding]:
    """The first call of each group whose members disagree."""
    for group, call in sorted(_first_differences(case).items()):
        found = _judge(case, group, call)
        if found is not None:
            yield found


def differing(case: Case) -> dict[int, int]:
    """By group, the number of its first call that members disagree about."""
    rows, first = case.joined.rows, case.joined.first
    return {group: int(rows.sequence[first[call]]) for group, call in _first_differences(case).items()}


def _first_differences(case: Case) -> dict[int, int]:
    """By group, the first call (place in `Joined.first`) with members that disagree."""
    joined = case.joined
    rows, first = joined.rows, joined.first[:-1]
    if not len(first):
        return {}
    sized = np.isin(rows.op, [joined.op(name) for name in SAME_SIZE])
    size = np.where(sized & (rows.S_bytes > 0), rows.S_bytes, -1)
    bad = np.zeros(len(first), bool)
    for column in (rows.op, size, np.where(size > 0, rows.dtype, -1)):
        bad |= np.minimum.reduceat(column, first) != np.maximum.reduceat(column, first)
    bad |= _roles_differ(case)
    bad &= ~np.isin(rows.op[first], [joined.op(name) for name in P2P])
    found: dict[int, int] = {}
    for call in np.flatnonzero(bad).tolist():
        found.setdefault(int(rows.group[first[call]]), call)
    return found


def _roles_differ(case: Case) -> np.ndarray:
    """Calls whose members say they are at different places of the step; one that says none disagrees with nobody."""
    joined = case.joined
    rows, first = joined.rows, joined.first[:-1]
    known = rows.role != (joined.roles.index("") if "" in joined.roles else -1)
    low = np.minimum.reduceat(np.where(known, rows.role, np.iinfo(np.int64).max), first)
    return low < np.maximum.reduceat(np.where(known, rows.role, -1), first)


def _judge(case: Case, group: int, call: int) -> Finding | None:
    joined = case.joined
    number = int(joined.rows.sequence[joined.first[call]])
    lines = _lines(case, group, number)
    signs = {who: line[number] for who, line in lines.items() if number in line}
    counts = Counter(signs.values()).most_common()
    if len(counts) < 2:
        return None  # a record has a call twice, and its members agree about the last
    usual, votes = counts[0]
    odd = [who for who, sign in signs.items() if sign != usual]
    tie = len(counts) > 1 and votes * 2 <= len(signs)
    if tie:
        usual, odd, tie = _by_history(lines, signs, number, usual, odd)
    kind, words = _kind(lines, signs, odd, usual, number)
    again = signs[odd[0]]
    # Where calls alternate, one left out and one made twice look alike from there on: the counts of steps differ.
    maybe = kind == "skipped_collective" and all(line.get(number - 1, again) == again for line in lines.values())
    if maybe and all(made_twice(case, who, group) for who in odd):
        kind, words = "repeated_collective", f"repeated {_words(again)}"
    key = joined.groups[group].key
    ranks = [joined.ranks[who].head.rank for who in odd]
    others = [joined.ranks[who].head.rank for who in signs if who not in odd]
    shown = tuple(
        f"call {number} of group {key}: {case.name(who)} {_words(sign)}" for who, sign in sorted(signs.items())[:8]
    )
    if tie:
        return Finding(
            class_=kind,
            summary=f"call {number} of group {key}: {ranks_text(ranks)} and {ranks_text(others)} disagree, and"
            " neither is the majority",
            cause="software",
            confidence=0.5,
            decided=False,
            evidence=shown,
            would_decide="the plan of this step (--plan), or an earlier step in the record",
            next="compare the call's stack on both ranks",
            recovery="restart group",
        )
    return Finding(
        class_=kind,
        summary=f"{ranks_text(ranks)} {words} at call {number} of group {key}",
        original_fault=case.fault(*odd),
        cause="software",
        first_reporter="",
        confidence=0.95 if len(others) > 1 else 0.8,
        evidence=shown,
        next=f"the code path of {ranks_text(ranks)} before this call: it decided otherwise than {ranks_text(others)}",
        recovery="restart group",
    )


def _lines(case: Case, group: int, number: int) -> dict[int, dict[int, Sign]]:
    """By record, its calls in a group by number, from well before a call to well after it."""
    joined = case.joined
    rows = joined.rows
    near = (rows.group == group) & (np.abs(rows.sequence - number) <= 4 * AHEAD)
    near &= ~np.isin(rows.op, [joined.op(name) for name in P2P])
    found: dict[int, dict[int, Sign]] = {}
    for row in np.flatnonzero(near).tolist():
        op = joined.ops[rows.op[row]]
        size = int(rows.S_bytes[row]) if op in SAME_SIZE and rows.S_bytes[row] > 0 else -1
        sign = Sign(op, size, joined.dtypes[rows.dtype[row]] if size > 0 else "", joined.roles[rows.role[row]])
        found.setdefault(int(rows.who[row]), {})[int(rows.sequence[row])] = sign
    return found


def _by_history(
    lines: dict[int, dict[int, Sign]], signs: dict[int, Sign], number: int, usual: Sign, odd: list[int]
) -> tuple[Sign, list[int], bool]:
    """Of two ways to go on, the one that earlier steps took after the same call; still a tie when neither or both."""
    before = next((line[number - 1] for line in lines.values() if number - 1 in line), None)
    seen: Counter[Sign] = Counter()
    for line in lines.values():
        for at, sign in line.items():
            if at < number - 1 and sign == before and at + 1 < number and at + 1 in line:
                seen[line[at + 1]] += 1
    known = [sign for sign in set(signs.values()) if seen[sign]]
    if len(known) != 1:
        return usual, odd, True
    return known[0], [who for who, sign in signs.items() if sign != known[0]], False


def _kind(
    lines: dict[int, dict[int, Sign]], signs: dict[int, Sign], odd: list[int], usual: Sign, number: int
) -> tuple[Class, str]:
    reference = next(line for who, line in lines.items() if who not in odd and number in line)
    mine = lines[odd[0]]
    own = mine[number]
    swapped = mine.get(number + 1) == usual and own == reference.get(number + 1)
    after, usually = mine.get(number + 2), reference.get(number + 2)
    if swapped and (after == usually or None in {after, usually}):  # else, where calls alternate, one was left out
        return "reordered_collective", f"made {_words(own)} before {_words(usual)}"
    if _shifted(mine, reference, number, 1):
        return "skipped_collective", f"skipped {_words(usual)}"
    if reference.get(number - 1) == own and mine.get(number + 1, usual) == usual:
        return "repeated_collective", f"repeated {_words(own)}"
    after = _follows(reference, usual, number)
    if after is not None and after == own and number + 1 not in reference:
        return "skipped_collective", f"went on to {_words(own)} and skipped {_words(usual)}"
    if own.op != usual.op:
        return "op_mismatch", f"entered {_words(own)} where the others entered {_words(usual)}"
    if own.dtype != usual.dtype:
        return "dtype_mismatch", f"brought {own.dtype} where the others brought {usual.dtype}"
    return "size_mismatch", f"brought {own.size} B where the others brought {usual.size} B"


def _shifted(mine: dict[int, Sign], reference: dict[int, Sign], number: int, by: int) -> bool:
    """Whether a rank's calls from here on are the others' of one call later."""
    pairs = [
        (mine[at], reference[at + by]) for at in range(number, number + AHEAD) if at in mine and at + by in reference
    ]
    return bool(pairs) and all(a == b for a, b in pairs[:4])


def _follows(line: dict[int, Sign], sign: Sign, number: int) -> Sign | None:
    """What followed a call earlier in the record, the last time."""
    earlier = [at for at in line if at < number and line[at] == sign and at + 1 in line and at + 1 < number]
    return line[max(earlier) + 1] if earlier else None


def _words(sign: Sign) -> str:
    role = f" {sign.role}" if sign.role else ""
    size = f" of {sign.size} B" if sign.size >= 0 else ""
    return f"{sign.op}{role}{size}{' ' + sign.dtype if sign.dtype else ''}"
