"""Bytes each collective moves, per rank and call: useful and on the wire (DESIGN §3, §4).

S is the call's size as the process group sees it: all-reduce: the tensor on each rank; all-gather: the gathered output;
reduce-scatter: the input on each rank; all-to-all: what a rank holds to send, its own share included; send/recv: the
message. Every function takes plain numbers, arrays or recorded quantities. Sources: hardware facts on NCCL's algorithms
(ring, NVLS, tree) and the engines' custom kernels (one-shot, two-shot), as summarised in DESIGN §4.
"""

from collections.abc import Callable
from math import comb
from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.quantity import Num, named, where


class Wire(NamedTuple):
    """Per rank and call, bytes. useful_recv: needed and not already held. Invariant: useful_recv <= recv."""

    useful_recv: Num
    sent: Num
    recv: Num


def ring_all_reduce(S: Num, n: Num) -> Wire:
    """Reduce-scatter then all-gather around a ring: 2S(n-1)/n each way. Useful: the other ranks' reduced sum, once."""
    moved = 2 * S * (n - 1) / n
    return Wire(S * (n - 1) / n, moved, moved)


def one_shot_all_reduce(S: Num, n: Num) -> Wire:
    """Every rank reads every peer's tensor: S(n-1) received; each peer's read is a send of ours."""
    return Wire(S * (n - 1) / n, S * (n - 1), S * (n - 1))


def nvls_all_reduce(S: Num, n: Num) -> Wire:
    """NVLink SHARP: the switch reduces and multicasts. S(1 + 1/n) each way."""
    return Wire(S * (n - 1) / n, S * (n + 1) / n, S * (n + 1) / n)


def tree_all_reduce(S: Num, n: Num) -> Wire:
    """Double binary tree: 2S(n-1)/n each way on average over ranks."""
    return ring_all_reduce(S, n)


def all_gather(S: Num, n: Num) -> Wire:
    """Ring or direct: each rank receives the n-1 shards it lacks and sends as much. S is the gathered output."""
    moved = S * (n - 1) / n
    return Wire(moved, moved, moved)


def reduce_scatter(S: Num, n: Num) -> Wire:
    """Ring: S(n-1)/n each way; a rank needs the other ranks' contributions to its own shard, reduced: S/n."""
    moved = S * (n - 1) / n
    return Wire(where(n > 1, S / n, 0), moved, moved)


def all_to_all(S: Num, n: Num) -> Wire:
    """Uniform direct exchange: a rank keeps 1/n and sends the rest."""
    moved = S * (n - 1) / n
    return Wire(moved, moved, moved)


def send_recv(S: Num, n: Num = 2) -> Wire:
    """One message from one rank to the next."""
    return Wire(S, S, S)


def broadcast(S: Num, n: Num) -> Wire:
    """Ring broadcast: every rank but the root receives S and all but the last send it; the busiest rank's figures."""
    return Wire(S, S, S)


# kind -> algorithm -> bytes. The first algorithm of a kind is its default.
ALGORITHMS: dict[str, dict[str, Callable[[Num, Num], Wire]]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "one_shot": one_shot_all_reduce,
        "two_shot": ring_all_reduce,
        "nvls": nvls_all_reduce,
        "tree": tree_all_reduce,
    },
    "all_gather": {"ring": all_gather},
    "reduce_scatter": {"ring": reduce_scatter},
    "all_to_all": {"direct": all_to_all},
    "send_recv": {"direct": send_recv},
    "broadcast": {"ring": broadcast},
    "gather": {"direct": all_gather},
}


def default_algorithm(kind: str) -> str:
    """What a kind uses unless told otherwise."""
    return next(iter(ALGORITHMS[kind]))


def wire(kind: str, S: Num, n: Num, algorithm: str = "") -> Wire:
    """Bytes of one call of a kind under an algorithm (the kind's default when empty)."""
    variants = ALGORITHMS.get(kind)
    if variants is None:
        raise InputError(f"unknown collective {kind!r}", where="collective", expected=", ".join(ALGORITHMS))
    chosen = algorithm or next(iter(variants))
    if chosen not in variants:
        raise InputError(f"{kind} has no algorithm {chosen!r}", where="collective", expected=", ".join(variants))
    return variants[chosen](S, n)


def hops(kind: str, n: int, algorithm: str = "") -> int:
    """Sequential steps of one call: what latency multiplies."""
    if n <= 1:
        return 0
    if algorithm in {"one_shot", "direct", "nvls"}:
        return 1
    if algorithm == "two_shot":
        return 2
    return 2 * (n - 1) if kind == "all_reduce" else n - 1


def bubble(p: Num, m: Num) -> Num:
    """Idle share of a pipeline of p stages with m microbatches in flight: (p-1)/(m+p-1)."""
    return named("bubble", (p - 1) / (m + p - 1))


def distinct_nodes(nodes: int, experts: int, top_k: int, groups: int = 1, top_groups: int = 1) -> float:
    """Expected number of distinct nodes (or ranks) a token's experts lie on, uniform routing.

    N·(1 - C(E-E/N, k)/C(E, k)). With group-limited routing a token first draws `top_groups` of `groups`, then its
    experts from those alone: a node that holds whole groups is missed when none of its drawn groups' experts is taken,
    summed over how many of its groups are drawn. Never more than top_groups nodes then.
    """
    if groups <= 1 or groups % nodes:
        return nodes * (1 - _missed(experts, experts // nodes, top_k))
    here, each = groups // nodes, experts // groups
    miss = sum(
        comb(here, j) * comb(groups - here, top_groups - j) / comb(groups, top_groups)
        * _missed(top_groups * each, j * each, top_k)
        for j in range(min(here, top_groups) + 1)
    )  # fmt: skip
    return nodes * (1 - miss)


def _missed(of: int, here: int, drawn: int) -> float:
    """Chance that none of `drawn` out of `of` is among `here` of them."""
    return comb(of - here, drawn) / comb(of, drawn)
