"""The screen of `linkwise run --check`: planned and observed calls by role, and memory against the ledger."""

from collections.abc import Sequence

from linkwise.core.units import show_bytes
from linkwise.runtime.check import Comparison, Memory


def comparison(
    found: Comparison, memory: Sequence[Memory] = (), steps: int = 0, kv_tokens: tuple[int, int | None] = (0, None)
) -> list[str]:
    """Lines: one a role and kind over all ranks, then the verdict, then memory.

    kv_tokens: of a group as it ran, and as a plan file has them, where the memory holds a comparison with that.
    """
    over = f"{found.ranks} rank{'s' if found.ranks != 1 else ''}" + (f", {steps} steps" if steps else "")
    lines = [f"calls      planned against observed at the process groups, {over}"]
    if not found.lines:
        lines.append("           none: one rank talks to nobody")
    for line in found.lines:
        planned = f"{line.planned_calls:,} of {show_bytes(line.planned_bytes)}"
        seen = f"{line.observed_calls:,} of {show_bytes(line.observed_bytes)}"
        verdict = "equal" if line.equal else f"observed {seen}"
        lines.append(f"           {line.role:<14} {line.kind:<15} {planned:<24} {verdict}")
    if found.difference:
        lines.append(f"differs    {found.difference}")
    else:
        lines.append("           every call as planned: kind, group, order, bytes, dtype and peer")
    for what in dict.fromkeys(one.what for one in memory):
        lines += _memory(what, [one for one in memory if one.what == what], kv_tokens)
    return lines


def _memory(what: str, ranks: Sequence[Memory], kv_tokens: tuple[int, int | None]) -> list[str]:
    wrong = [one for one in ranks if not one.equal]
    if not wrong:
        each = sorted({one.planned_bytes // max(1, one.slots) for one in ranks})
        size = " to ".join(dict.fromkeys(show_bytes(value) for value in (each[0], each[-1])))
        if not ranks[0].slots:
            return [f"memory     {what}: {size} a rank, as the ledger has it, to the byte"]
        ran, planned = kv_tokens
        many = "as many as the plan has" if planned == ran else f"the plan has {planned or 0:,}"
        return [f"memory     {what}: {size} a token on each rank, as the ledger has it; {ran:,} tokens run, {many}"]
    return [
        f"memory     {what} of rank {one.rank}: {one.allocated_bytes:,} B allocated,"
        f" the ledger has {one.planned_bytes:,} B"
        for one in wrong
    ]
