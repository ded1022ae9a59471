"""Can the pools that the devices hold serve the rate asked for, and which pool is short when they cannot?"""

import math
from typing import NamedTuple

from linkwise.core.schema import Frozen
from linkwise.plan.pools import Pool, Question


class Supply(Frozen, frozen=True, kw_only=True):
    """The rate asked for against whole groups, requests/s inside the targets.

    prefill_needed, decode_needed: groups that carry the rate, each at its best load (None: no load meets the targets).
    prefill_most, decode_most: groups the devices hold beside one group of the other pool. most_per_s: the best pair of
    pools on the devices. short: "prefill", "decode", "both", "devices" (each pool alone would do) or "".
    """

    rate_per_s: float
    prefill_needed: int | None
    decode_needed: int | None
    prefill_most: int
    decode_most: int
    devices_needed: int | None
    most_per_s: float
    serves: bool
    short: str
    reason: str


class _Side(NamedTuple):
    name: str
    other: str
    pool: Pool
    needed: int
    most: int

    @property
    def lacks(self) -> int:
        return self.needed - self.most


def supply(q: Question, rate_per_s: float, costs: tuple[float, float] | None, most_per_s: float) -> Supply:
    """costs: group-seconds of a request in the prefill and in the decode pool; None where no load meets the targets."""
    most = (
        max(0, (q.devices - q.decode.ranks) // q.prefill.ranks),
        max(0, (q.devices - q.prefill.ranks) // q.decode.ranks),
    )
    if costs is None:
        return Supply(
            rate_per_s=rate_per_s, prefill_needed=None, decode_needed=None, prefill_most=most[0], decode_most=most[1],
            devices_needed=None, most_per_s=0.0, serves=False, short="both",
            reason="the separate pools miss a target at any load",
        )  # fmt: skip
    # A whole number of groups that carries the rate exactly is enough.
    needed = [max(1, math.ceil(rate_per_s * cost * (1 - 1e-9))) for cost in costs]
    sides = (
        _Side("prefill", "decode", q.prefill, needed[0], most[0]),
        _Side("decode", "prefill", q.decode, needed[1], most[1]),
    )
    devices = sum(side.needed * side.pool.ranks for side in sides)
    lacking = [side for side in sides if side.lacks > 0]
    short = ""
    if devices > q.devices:
        short = "both" if len(lacking) == 2 else lacking[0].name if lacking else "devices"
    return Supply(
        rate_per_s=rate_per_s, prefill_needed=needed[0], decode_needed=needed[1], prefill_most=most[0],
        decode_most=most[1], devices_needed=devices, most_per_s=most_per_s, serves=not short, short=short,
        reason=_reason(q, rate_per_s, sides, devices, most_per_s),
    )  # fmt: skip


def _reason(q: Question, rate_per_s: float, sides: tuple[_Side, _Side], devices: int, most_per_s: float) -> str:
    asked = " + ".join(f"{s.needed} x {s.name} {s.pool.label}".rstrip() for s in sides)
    if devices <= q.devices:
        return f"{rate_per_s:g}/s take {asked}: {devices} of {q.devices} devices"
    lacks = [
        f"the {s.name} pool is short by {s.lacks} group{'s' if s.lacks > 1 else ''} ({s.most} of {s.needed} fit beside"
        f" one {s.other} group)"
        for s in sides
        if s.lacks > 0
    ]
    return (
        f"{rate_per_s:g}/s would take {asked}, {devices} devices in place of {q.devices};"
        f" {'; '.join(lacks) or f'short by {devices - q.devices} devices'}; the best pools on these devices serve"
        f" {most_per_s:.3g}/s"
    )
