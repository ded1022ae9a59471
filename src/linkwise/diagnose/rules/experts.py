"""Experts that more tokens choose than others: the rank that holds them computes more, and all others wait for it.

What a rank brings to the exchange that returns experts' outputs is what its experts have computed.
"""

from collections.abc import Iterator

import numpy as np

from linkwise.diagnose.case import Case, ranks_text
from linkwise.diagnose.types import Finding

# A rank with a quarter more than its even share sets the pace of the whole group by as much. Short of a lasting
# preference the largest share changes from rank to rank, by chance and with the text.
UNEVEN, LASTING = 1.25, 0.75
LEAST = 20  # exchanges of a group, for a preference to mean something
RETURNED = "combine"


def find(case: Case) -> Iterator[Finding]:
    """Groups whose exchanges of experts' outputs always have the same rank ahead."""
    joined = case.joined
    rows = joined.rows
    combines = [place for place, role in enumerate(joined.roles) if role.endswith(RETURNED)]
    here = np.isin(rows.role, combines) & (rows.op == joined.op("all_to_all"))
    call = np.repeat(np.arange(joined.calls), np.diff(joined.first))
    for place, group in enumerate(joined.groups):
        mine = here & (rows.group == place)
        if not mine.any() or len(group.known) < len(group.members):
            continue
        column = {who: at for at, who in enumerate(sorted(group.known.values()))}
        numbers, where = np.unique(call[mine], return_inverse=True)
        table = np.zeros((len(numbers), len(column)))
        table[where, [column[who] for who in rows.who[mine].tolist()]] = rows.S_bytes[mine]
        found = _ahead(case, np.asarray(sorted(column)), table[table.sum(axis=1) > 0], group.key)
        if found is not None:
            yield found


def _ahead(case: Case, places: np.ndarray, table: np.ndarray, key: str) -> Finding | None:
    """table: bytes by exchange and record."""
    if len(table) < LEAST:
        return None
    load = table.sum(axis=0) / table.sum()
    even = 1 / len(load)
    busiest = int(load.argmax())
    ahead_by = table[:, busiest] - even * table.sum(axis=1)
    more = float((ahead_by > 0).mean())
    often = more + 0.5 * float((ahead_by == 0).mean())  # even is neither ahead nor behind
    if load[busiest] < UNEVEN * even or often < LASTING:
        return None
    ahead = [int(who) for who, share in zip(places, load, strict=True) if share >= UNEVEN * even]
    ranks = [case.joined.ranks[who].head.rank for who in ahead]
    waited = 0.0
    if case.timing is not None:
        waited = float(sum(case.timing.own_ns[who] for who in ahead)) / 1e9
    return Finding(
        class_="expert_imbalance",
        summary=f"experts of {ranks_text(ranks)} get {100 * load[busiest]:.0f} % of the group's tokens, an even share"
        f" is {100 * even:.0f} %",
        original_fault=case.fault(*ahead),
        confidence=min(0.95, 0.5 + 0.4 * (load[busiest] / even - 1) + 0.3 * often),
        waited_s=waited,
        evidence=(
            f"outputs that experts returned over group {key}: "
            + ", ".join(
                f"{case.name(int(who))} {100 * share:.0f} %" for who, share in zip(places[:16], load, strict=False)
            ),
            f"{case.name(int(places[busiest]))} had more than its even share in {100 * more:.0f} % of"
            f" {len(table)} exchanges, less in {100 * (1 - 2 * often + more):.0f} %",
        ),
        next="the router's load by expert; place hot experts apart, or hold copies of them (EPLB)",
        recovery="none",
    )
