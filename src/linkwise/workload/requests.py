"""Requests as arrays: when each arrives, how long its prompt and its answer are, which prefix it shares with others."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.core.errors import InputError
from linkwise.workload.types import MAX_TOKENS

MAX_REQUESTS = 20_000_000

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Requests(NamedTuple):
    """`len(input_tokens)` requests in order of arrival.

    arrival_s: seconds from the start, ascending. input_tokens, output_tokens: of the prompt and of the answer.
    hashes: names of the prompts' blocks of `hash_tokens` tokens, equal where prompts share a prefix, request after
    request; request i has hashes[first_hash[i]:first_hash[i + 1]]. The last one may be of what is left of the prompt:
    it is equal where as much is left and a trace names it alike. hash_tokens 0 = no prompt has names.
    cached_share: of each prompt's tokens, what is found in a prefix cache where prompts have no names; its KV is held
    all the same.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    first_hash: Ints
    hashes: Ints
    hash_tokens: int = 0
    cached_share: float = 0.0

    @property
    def number(self) -> int:
        return len(self.input_tokens)

    def first(self, number: int) -> "Requests":
        """The first so many requests."""
        ends = self.first_hash[: number + 1]
        return Requests(
            self.arrival_s[:number],
            self.input_tokens[:number],
            self.output_tokens[:number],
            ends,
            self.hashes[: int(ends[-1])],
            self.hash_tokens,
            self.cached_share,
        )


def requests(
    arrival_s: Floats, input_tokens: Ints, output_tokens: Ints, hashes: list[list[int]] | None = None,
    hash_tokens: int = 0, *, where: str = "requests",
) -> Requests:  # fmt: skip
    """Checked requests. Raises InputError naming the first request and the field that cannot be."""
    number = len(input_tokens)
    if not number:
        raise InputError("no request", where=where, expected="at least one")
    if number > MAX_REQUESTS:
        raise InputError(f"{number:,} requests", where=where, expected=f"at most {MAX_REQUESTS:,}")
    if not len(arrival_s) == len(output_tokens) == number:
        raise InputError("columns of different lengths", where=where, expected="one value a request in each")
    _check(arrival_s, ~np.isfinite(arrival_s) | (arrival_s < 0), "arrival_s", "finite seconds, not negative", where)
    for name, column in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        _check(column, (column < 1) | (column > MAX_TOKENS), name, f"1..{MAX_TOKENS}", where)
    late = np.flatnonzero(np.diff(arrival_s) < 0)
    if len(late):
        at = int(late[0]) + 1
        raise InputError(
            f"request {at}: field arrival_s: {arrival_s[at]:g} after {arrival_s[at - 1]:g}",
            where=where, expected="arrivals in order", hint="Sort the requests by arrival",
        )  # fmt: skip
    twice = next((i for i, x in enumerate(hashes or ()) if len(set(x)) != len(x)), None)
    if twice is not None:
        raise InputError(f"request {twice}: field hashes: a block twice", where=where, expected="each block once")
    counts = np.array([len(x) for x in hashes] if hashes else [0] * number, np.int64)
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    flat = np.fromiter((h for x in hashes or () for h in x), np.int64, int(first[-1]))
    prompts = np.asarray(input_tokens, np.int64)
    _check(counts, (counts - 1) * hash_tokens >= prompts, "hashes", "no more blocks than the prompt has", where)
    left = np.zeros(len(flat), np.int64)  # tokens of a block that ends with its prompt
    part = np.flatnonzero(counts * hash_tokens > prompts)
    left[first[part + 1] - 1] = prompts[part] - (counts[part] - 1) * hash_tokens
    named = np.unique(flat, return_inverse=True)[1].reshape(-1)
    names, dense = np.unique(named * max(1, hash_tokens) + left, return_inverse=True)
    return Requests(
        np.asarray(arrival_s, float), prompts, np.asarray(output_tokens, np.int64), first,
        dense.astype(np.int64).reshape(-1), hash_tokens if len(names) else 0,
    )  # fmt: skip


def _check(column: npt.NDArray[np.generic], wrong: npt.NDArray[np.bool_], name: str, expected: str, where: str) -> None:
    bad = np.flatnonzero(wrong)
    if len(bad):
        at = int(bad[0])
        raise InputError(f"request {at}: field {name}: {column[at]}", where=where, expected=expected)
