"""A prefill and a decode group at every decode batch inside the targets, and the whole pools that serve most."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.plan.operate import MAX_PROMPT_LOAD
from linkwise.plan.pools import Pool, Question

Floats = npt.NDArray[np.float64]


class Loads(NamedTuple):
    """Every decode batch inside the targets: group-seconds of a request in each pool, arrays over batches."""

    batches: Floats
    prefill_s: Floats
    decode_s: Floats


def loads_of(q: Question, prefill: Pool, decode: Pool, exposed: float, link: float | None) -> Loads:
    """A larger batch serves more on a decode group, and its longer step leaves prompts less time to queue."""
    batches, steps = decode.table()
    slack = (np.inf if q.ttft_s is None else q.ttft_s) - prefill.prefill_s - exposed - steps
    good = (steps <= (q.tpot_s or np.inf)) & (slack > 0)
    batches, steps, slack = batches[good], steps[good], slack[good]
    queue = slack / (prefill.prefill_s / 2 + slack) if q.ttft_s is not None else np.ones(len(slack))
    least = 0.0 if link is None else 1 / link
    prompts = prefill.prompt / np.minimum(queue, MAX_PROMPT_LOAD)
    return Loads(batches, np.maximum(prompts, least), np.maximum(q.output_tokens * steps / batches, least))


def _best(good: Floats, seconds: Floats) -> int:
    """Where most is served; of as good ones the fewest device-seconds a request."""
    near = good >= good.max() * (1 - 1e-12)
    return int(np.argmin(np.where(near, seconds, np.inf)))


def whole_pools(q: Question, loads: Loads) -> tuple[int, int, int]:
    """(batch, prefill groups, decode groups) of the pools that serve most on the devices; zeros where none fit.

    The best split is where more prefill groups begin to serve more than what decode groups are left, or one before it.
    Decode groups are whole, at most one fewer than the devices left for them: that is so many prefill groups earlier.
    """
    rp, rd = q.prefill.ranks, q.decode.ranks
    most = (q.devices - rd) // rp
    if most < 1:
        return 0, 0, 0
    even = np.floor(q.devices * loads.prefill_s / (rp * loads.prefill_s + rd * loads.decode_s))
    prompts = np.clip(even + np.arange(-(rd // rp) - 1, 2)[:, None], 1, most)
    answers = (q.devices - prompts * rp) // rd
    rate = np.minimum(prompts / loads.prefill_s, answers / loads.decode_s)
    at = _best(rate, np.broadcast_to(seconds_of(q, loads), rate.shape))
    split, place = np.unravel_index(at, rate.shape)
    return int(loads.batches[place]), int(prompts[split, place]), int(answers[split, place])


def seconds_of(q: Question, loads: Loads) -> Floats:
    """Device-seconds of a request, whole groups not yet asked for."""
    return q.prefill.ranks * loads.prefill_s + q.decode.ranks * loads.decode_s
