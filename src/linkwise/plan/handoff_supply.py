"""Can the pools serve the rate asked for, at what TTFT and TPOT, and which of them is short when they cannot?"""

from typing import NamedTuple

from linkwise.core.schema import Frozen
from linkwise.plan.pool_counts import Both, Groups, balance, carrying, latency, limit, whole
from linkwise.plan.pools import Pool


class Supply(Frozen, frozen=True, kw_only=True):
    """The rate asked for against whole groups, requests/s inside the targets.

    prefill_needed, decode_needed: the fewest groups that carry the rate (None: no batch meets the targets).
    prefill_groups, decode_groups: the pools this is about: those given, else those needed; 0 = none.
    prefill_most, decode_most: groups the devices hold beside one group of the other pool. most_per_s: of the pools
    given, else of the best pair of pools on the devices. short: "prefill", "decode", "both", "devices" (each pool alone
    would do) or "". ttft_s, tpot_s: of the pools at the rate; None where they do not serve it. starving: the pool that
    would wait for the other at the most they serve, "" = neither by 5 %.
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
    prefill_groups: int = 0
    decode_groups: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    starving: str = ""


class _Side(NamedTuple):
    """needed: groups. held: that are there, or fit."""

    name: str
    other: str
    pool: Pool
    needed: int
    held: int

    @property
    def lacks(self) -> int:
        return self.needed - self.held


def supply(both: Both, rate_per_s: float, groups: Groups | None, *, given: bool) -> Supply:
    """groups: the pools given, else the best pair on the devices; None where none fits."""
    most = _beside_one(both)
    anywhere = carrying(both, rate_per_s)
    if not anywhere:
        return Supply(
            rate_per_s=rate_per_s, prefill_needed=None, decode_needed=None, prefill_most=most[0], decode_most=most[1],
            devices_needed=None, most_per_s=0.0, serves=False, short="both",
            reason="the separate pools miss a target at any load",
        )  # fmt: skip
    fitting = [one for one in anywhere if both.hold(one)]
    needed = (fitting or anywhere)[0]
    best = None if groups is None else limit(both, groups)
    most_per_s = 0.0 if best is None else best.rate
    pools = groups if given and groups is not None else needed
    serves = most_per_s >= rate_per_s * (1 - 1e-9) if given else bool(fitting)
    sides = _sides(both, needed, most)
    if given and best is not None:  # against what they do at their best batch
        costs = best.prefill_s, best.decode_s
        sides = _sides(both, Groups(*(whole(rate_per_s * cost) for cost in costs)), pools)
    seen = latency(both, *pools, rate_per_s) if serves else None
    own = best if given else limit(both, pools)
    lacking = [side for side in sides if side.lacks > 0]
    short = "both" if len(lacking) == 2 else lacking[0].name if lacking else "devices"
    devices = sum(count * ranks for count, ranks in zip(needed, both.ranks, strict=True))
    if given:
        reason = _of_given(rate_per_s, sides, most_per_s)
    else:
        reason = _of_needed(both, rate_per_s, sides, devices, most_per_s, serves=serves)
    return Supply(
        rate_per_s=rate_per_s, prefill_needed=needed.prefill, decode_needed=needed.decode, prefill_most=most[0],
        decode_most=most[1], devices_needed=devices, most_per_s=most_per_s, serves=serves,
        short="" if serves else short, prefill_groups=pools.prefill, decode_groups=pools.decode,
        ttft_s=None if seen is None else float(seen.ttft_s), tpot_s=None if seen is None else float(seen.tpot_s),
        reason=reason,
        starving=balance(pools.prefill, own.prefill_s, pools.decode, own.decode_s).starving if own else "",
    )  # fmt: skip


def _beside_one(both: Both) -> tuple[int, int]:
    """Groups of each kind that the devices hold beside one group of the other."""
    rp, rd = both.ranks
    if both.elsewhere is not None:
        return both.elsewhere // rp, both.devices // rd
    return max(0, (both.devices - rd) // rp), max(0, (both.devices - rp) // rd)


def _sides(both: Both, needed: Groups, held: tuple[int, int]) -> tuple[_Side, _Side]:
    return (
        _Side("prefill", "decode", both.prefill, needed.prefill, held[0]),
        _Side("decode", "prefill", both.decode, needed.decode, held[1]),
    )


def _of_given(rate_per_s: float, sides: tuple[_Side, _Side], most_per_s: float) -> str:
    have = " + ".join(f"{s.held} x {s.name} {s.pool.label}".rstrip() for s in sides)
    lacks = [f"the {s.name} pool is short by {_groups(s.lacks)}" for s in sides if s.lacks > 0]
    return "; ".join((f"{rate_per_s:g}/s on {have}, which serve {most_per_s:.4g}/s inside the targets", *lacks))


def _of_needed(
    both: Both, rate_per_s: float, sides: tuple[_Side, _Side], devices: int, most_per_s: float, *, serves: bool
) -> str:
    asked = " + ".join(f"{s.needed} x {s.name} {s.pool.label}".rstrip() for s in sides)
    have = both.devices + (both.elsewhere or 0)
    if serves:
        return f"{rate_per_s:g}/s take {asked}: {devices} of {have} devices"
    lacks = [
        f"the {s.name} pool is short by {_groups(s.lacks)} ({s.held} of {s.needed} fit beside one {s.other} group)"
        for s in sides
        if s.lacks > 0
    ]
    return (
        f"{rate_per_s:g}/s would take {asked}, {devices} devices in place of {have};"
        f" {'; '.join(lacks) or f'short by {devices - have} devices'}; the best pools on these devices serve"
        f" {most_per_s:.3g}/s"
    )


def _groups(number: int) -> str:
    return f"{number} group{'s' if number > 1 else ''}"
