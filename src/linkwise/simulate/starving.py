"""Which of two pools waits, and what for: the other pool, or the links between them.

A queue in front of prefill says that prefill is short only where its replicas compute meanwhile. Where they stand still
though requests wait, their KV is held by prompts that are computed and cannot leave: decode has no room for them, or is
down, or the links are slow.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linkwise.simulate import state
from linkwise.simulate.rules import Fault
from linkwise.simulate.state import Array, World
from linkwise.simulate.types import PoolUse

QUEUED = 1.0  # requests that wait in front of each replica, mean over time: from here on a pool queues
FULL = 0.9  # of what a pool holds or does: from here on it has no room
MOST = 0.5  # of the waiting, or of those that hold a place: the larger part
LINKS = "links"


class Starving(NamedTuple):
    """role: the pool that waits, "" for none. short: what it waits for, a pool's role or LINKS. words: what is seen."""

    role: str = ""
    short: str = ""
    words: str = ""


class Held(NamedTuple):
    """While requests wait for prefill and their replica is up and computes nothing, seconds.

    still, of: request-seconds of waiting then, and of all waiting. offered, moving: request-seconds of computed prompts
    on those replicas: without a place at decode, and with one, waiting for the links or on them.
    """

    still: float
    of: float
    offered: float
    moving: float


def starving(
    w: World, use: Sequence[PoolUse], tpot_share: float, span_s: float, route: str, faults: Sequence[Fault] = ()
) -> Starving:
    """Of prefill and decode; nothing where neither queues, or both are full.

    A decode pool always computes: how full it is, is what it holds of its blocks and rows, and how near its tokens come
    to their target (tpot_share: mean over target, 0 without one). route: what limits a transfer, in words. faults:
    those that began; a pool that is short because its links are slow is short of links.
    """
    if len(use) < 2 or not span_s:
        return Starving()
    prefill, decode = use
    queues = [pool.waiting >= QUEUED * pool.replicas for pool in use]
    every, on_links_s = w.request, float(w.g["move_busy_s"][0])
    handed = every[(every["status"] == state.DONE) & (every["source"] >= 0)]
    moving = float(np.sum(handed["moved"] - handed["reserved"]))
    held_of_decode = moving + float(np.sum(handed["end"] - handed["moved"]))
    for_links = max(0.0, moving - on_links_s) / span_s
    # A prompt takes its place at decode before it moves: slow links fill decode with prompts that have not arrived.
    links_first = moving > MOST * held_of_decode and for_links >= QUEUED
    words = _links(for_links, on_links_s / span_s, use, route)
    slower = [one for one in faults if one.kind == "link"]
    words += _faults(slower, prefill, decode, "prefill") + _faults(slower, prefill, decode, "decode")
    slow = Starving(decode.role, LINKS, words)
    held = _held(w, handed, faults) if queues[0] else None
    if held is not None and held.still > MOST * held.of:
        if links_first or held.moving > held.offered:
            return slow
        words = _decode_short(prefill, decode, held) + _faults(faults, prefill, decode, "decode")
        return _blamed(Starving(prefill.role, decode.role, words), handed, use, faults)
    if held is not None and max(decode.kv_mean, decode.rows, tpot_share) < FULL:
        words = _prefill_short(prefill, decode, held) + _faults(faults, prefill, decode, "prefill")
        return _blamed(Starving(decode.role, prefill.role, words), handed, use, faults)
    if links_first or (not queues[1] and for_links >= QUEUED * min(one.replicas for one in use)):
        return slow
    if queues[1] and prefill.busy < FULL:
        words = _decode_short(prefill, decode, None) + _faults(faults, prefill, decode, "decode")
        return _blamed(Starving(prefill.role, decode.role, words), handed, use, faults)
    return Starving()


def _held(w: World, handed: Array, faults: Sequence[Fault]) -> Held:
    """What holds prefill's replicas while requests wait in front of them, lane by lane."""
    # When a prompt was computed again is not known: it counts as nothing under way, and its time is taken off below.
    once = np.where(handed["preempted"] > 0, handed["prefilled"], handed["start"])
    kinds = [
        (handed["source"], handed["arrival"], handed["start"]), (handed["source"], once, handed["prefilled"]),
        (handed["source"], handed["prefilled"], handed["reserved"]),
        (handed["source"], handed["reserved"], handed["moved"]),
    ]  # fmt: skip
    down = [
        (lane, one.start_s, one.end_s)
        for one in faults if one.kind == "down"
        for lane in np.flatnonzero(w.lane["replica"] == one.replica)
    ]  # fmt: skip
    table = np.array(down, float).reshape(-1, 3).T
    kinds.append((table[0], table[1], table[2]))
    lane = np.concatenate([np.tile(kind[0], 2) for kind in kinds]).astype(np.int64)
    at = np.concatenate([np.concatenate(kind[1:]) for kind in kinds])
    change = np.zeros((len(at), len(kinds)), np.int64)
    first = 0
    for i, (lanes, _, _) in enumerate(kinds):
        middle, last = first + len(lanes), first + 2 * len(lanes)
        change[first:middle, i], change[middle:last, i] = 1, -1
        first = last
    order = np.lexsort((at, lane))
    at, lane = at[order], lane[order]
    waits, computes, offered, moving, gone = np.cumsum(change[order], axis=0).T
    # All that is open on a lane is closed by its last event: what follows until the next lane's first is nothing.
    takes = np.where(np.diff(lane, append=-1) == 0, np.diff(at, append=0.0), 0.0)
    still = takes * ((waits > 0) & (computes == 0) & (gone == 0))
    own = w.replica["pool"][w.lane["replica"][lane]] == state.FIRST_POOL
    stages = int(w.pool["stages"][state.FIRST_POOL])
    mine = w.replica["pool"] == state.FIRST_POOL
    again = max(0.0, float(w.replica["busy_s"][mine].sum()) / stages - float(takes @ (own & (computes > 0))))
    share = max(0.0, 1 - again / float(still.sum())) if still.any() else 0.0
    unknown = (offered + moving == 0) & (still > 0)  # held by prompts computed again, whose decode side had died
    return Held(
        still=share * float(still @ waits), of=float(takes @ waits), offered=float(still @ (offered + unknown)),
        moving=float(still @ moving),
    )  # fmt: skip


def _blamed(found: Starving, handed: Array, use: Sequence[PoolUse], faults: Sequence[Fault]) -> Starving:
    """The same, short of links where slow links of the pool that is short cover most of what waits for it."""
    first = found.short == use[0].role
    begins, ends = ("arrival", "start") if first or use[1].waiting < use[0].waiting else ("prefilled", "reserved")
    all_of = float(np.sum(handed[ends] - handed[begins]))
    pool = use[0] if first else use[1]
    covered = sum(
        float(np.sum(np.clip(np.minimum(handed[ends], one.end_s) - np.maximum(handed[begins], one.start_s), 0, None)))
        for one in faults
        if one.kind == "link" and (one.replica < use[0].replicas) == first
    )
    return found._replace(short=LINKS) if covered > MOST * all_of * pool.replicas else found


def _prefill_short(prefill: PoolUse, decode: PoolUse, held: Held) -> str:
    words = (
        f"the decode pool waits for the other: {prefill.waiting:.3g} requests wait for prefill, mean over time, while"
        f" decode has {decode.kv_mean:.0%} of its KV and {decode.rows:.0%} of its rows in use"
    )
    share = held.still / held.of
    return words + (
        f"; {share:.0%} of that time because prefill's KV is full of prompts that wait to move" if share > 1 - FULL
        else ""
    )  # fmt: skip


def _decode_short(prefill: PoolUse, decode: PoolUse, held: Held | None) -> str:
    if held is None:
        return (
            f"the prefill pool waits for the other: {decode.waiting:.3g} prompts wait for decode's blocks and rows,"
            f" mean over time, while prefill is {prefill.busy:.0%} busy"
        )
    return (
        f"the prefill pool waits for the other: {prefill.waiting:.3g} requests wait in front of it, mean over time,"
        f" {held.still / held.of:.0%} of that time because its KV is full of computed prompts that decode does not"
        f" take; prefill is {prefill.busy:.0%} busy"
    )


def _faults(faults: Sequence[Fault], prefill: PoolUse, decode: PoolUse, role: str) -> str:
    """The faults of the pool that is short."""
    pool, words = (prefill if role == "prefill" else decode), ""
    for kind, said in (("down", "down"), ("slow", "slow"), ("link", "behind slow links")):
        mine = (one.replica < prefill.replicas for one in faults)
        hurt = {
            one.replica
            for one, first in zip(faults, mine, strict=True)
            if one.kind == kind and first == (role == "prefill")
        }
        words += f"; {len(hurt)} of {role}'s {pool.replicas} replicas {said} for a time" if hurt else ""
    return words


def _links(for_links: float, on_links: float, use: Sequence[PoolUse], route: str) -> str:
    prefill, decode = use
    words = (
        f"the decode pool waits for the links: {for_links:.3g} computed prompts wait for them and {on_links:.2g} are on"
        f" their way, mean over time, while prefill is {prefill.busy:.0%} busy and decode has {decode.rows:.0%} of its"
        " rows in use"
    )
    if prefill.waiting >= QUEUED * prefill.replicas:
        words += f"; {prefill.waiting:.3g} requests wait for prefill behind them"
    return words + (f"; the slowest part: {route}" if route else "")
