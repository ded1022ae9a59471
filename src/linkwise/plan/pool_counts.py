"""How many prefill and decode groups serve a load, and how well: one count, which a plan's front and a handoff ask.

A prompt costs a prefill group its time over the share of it that prompts may fill: their queue has to fit what the TTFT
target leaves. A router sends each prompt where fewest wait, so that n groups have about the queue of n servers (M/D/n;
Sakasegawa, Annals of the Institute of Statistical Mathematics 29, 1977): the more groups, the fuller they may be. An
answer costs a decode group its tokens times a step, shared by the batch. A larger batch serves more on a decode group,
and its longer step leaves prompts less time to queue: every batch has its own costs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from linkwise.core.quantity import Num, minimum, value_of
from linkwise.plan.operate import MAX_PROMPT_LOAD
from linkwise.plan.pools import Pool

Floats = npt.NDArray[np.float64]
NEWTON = 6  # steps to the load of a queue, from a start within a third of it


class Both(NamedTuple):
    """A kind of prefill group, a kind of decode group, what they are asked, and what joins them.

    devices: of both pools, or of the decode pool where prefill groups have `elsewhere` devices of their own. exposed_s:
    handoff time that prefill does not hide. link_rate_per_s: prompts/s between a pair of groups; None = no limit.
    """

    prefill: Pool
    decode: Pool
    output_tokens: int
    devices: int
    elsewhere: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    exposed_s: float = 0.0
    link_rate_per_s: float | None = None

    @property
    def ranks(self) -> tuple[int, int]:
        return self.prefill.ranks, self.decode.ranks

    def hold(self, groups: "Groups") -> bool:
        """Whether the devices hold so many groups."""
        used = groups.prefill * self.prefill.ranks, groups.decode * self.decode.ranks
        if self.elsewhere is None:
            return sum(used) <= self.devices
        return used[0] <= self.elsewhere and used[1] <= self.devices


class Groups(NamedTuple):
    prefill: int
    decode: int


class Loads(NamedTuple):
    """Decode batches inside the targets, what they leave a prompt to queue, seconds, and a request's group-seconds in
    each pool, of one prefill group: arrays over batches."""

    batches: Floats
    slack: Floats
    prefill_s: Floats
    decode_s: Floats


class Limit(NamedTuple):
    """The most that pools serve inside the targets, the decode batch they do it at, and what a request costs there."""

    rate: float
    batch: int
    prefill_s: float
    decode_s: float


class Latency(NamedTuple):
    """What requests see at a rate, and how many are at hand on a decode group (a mean)."""

    ttft_s: Floats
    tpot_s: Floats
    batch: Floats


class Balance(NamedTuple):
    """Two pools at work. starving: "prefill", "decode" or ""; idle: share of that pool's capacity without work."""

    rate: Num
    starving: str
    idle: float


def balance(prefill_groups: int, prefill_s: Num, decode_groups: int, decode_s: Num) -> Balance:
    """What the pools sustain together when a request costs a prefill group `prefill_s` and a decode group `decode_s`.

    Both are group-seconds per request: decode_s = output x step(b) / b. The ratio of groups that keeps both busy is the
    ratio of the two times; any other leaves one pool starving for the other's work.
    """
    offers, takes = prefill_groups / prefill_s, decode_groups / decode_s
    a, b = float(value_of(offers)), float(value_of(takes))
    idle = 1 - min(a, b) / max(a, b)
    starving = "" if idle < 0.05 else "decode" if a < b else "prefill"
    return Balance(minimum(offers, takes), starving, idle)


def loads_of(both: Both, table: tuple[Floats, Floats] | None = None) -> Loads:
    """The costs at every decode batch inside the targets. table: (batches, steps) to look at; None = every batch."""
    batches, steps = both.decode.table() if table is None else table
    alone = both.prefill.prefill_s
    slack = (np.inf if both.ttft_s is None else both.ttft_s) - alone - both.exposed_s - steps
    good = (steps <= (both.tpot_s or np.inf)) & (slack > 0)
    batches, steps, slack = batches[good], steps[good], slack[good]
    least = 0.0 if both.link_rate_per_s is None else 1 / both.link_rate_per_s
    decode_s = np.maximum(both.output_tokens * steps / batches, least)
    return Loads(batches, slack, prefill_seconds(both, slack, 1), decode_s)


def prefill_seconds(both: Both, slack: Floats, groups: Num) -> Floats:
    """Group-seconds of a prompt where so many groups may let prompts queue for `slack` seconds."""
    least = 0.0 if both.link_rate_per_s is None else 1 / both.link_rate_per_s
    load = fullest(both.prefill.prefill_s, slack, groups)
    return np.maximum(both.prefill.prompt / np.minimum(load, MAX_PROMPT_LOAD), least)


def queued(alone: float, load: Num, groups: Num) -> Floats:
    """Mean seconds a prompt waits for one of the groups, each busy for a share `load` of the time.

    alone: seconds of a prompt from start to end, also where stages or attention replicas work on several: a replica
    has a queue of its own, and steps of unlike length hold each other up in a pipeline. One group: M/D/1.
    """
    wait: Floats = load ** (np.sqrt(2 * (np.asarray(groups, float) + 1)) - 1) / (groups * (1 - load)) * alone / 2
    return wait


def fullest(alone: float, slack: Floats, groups: Num) -> Floats:
    """The load at which prompts wait just so long; of one group slack / (alone / 2 + slack)."""
    count = np.asarray(groups, float)
    power, wanted = np.sqrt(2 * (count + 1)) - 1, np.log(2 * count * np.minimum(slack, 1e9) / alone)
    load: Floats = 1 / (1 + np.exp(-wanted / power))  # exact for one group
    for _ in range(NEWTON):
        off = power * np.log(load) - np.log1p(-load) - wanted
        load = np.clip(load - off / (power / load + 1 / (1 - load)), load / 4, 1 - (1 - load) / 4)
    return load


def seconds_of(both: Both, loads: Loads) -> Floats:
    """Device-seconds of a request, whole groups not yet asked for."""
    return both.prefill.ranks * loads.prefill_s + both.decode.ranks * loads.decode_s


class Splits(NamedTuple):
    """Arrays (split, batch): whole groups, and the rate they serve."""

    prefill: Floats
    decode: Floats
    rate: Floats


def splits(both: Both, loads: Loads) -> Splits | None:
    """The whole groups on all devices that can be the best at each batch; None where the devices hold no pair.

    The best split is where more prefill groups begin to serve more than what decode groups are left, or one before it.
    Decode groups are whole, at most one fewer than the devices left for them: that is so many prefill groups earlier.
    """
    (rp, rd), size = both.ranks, both.devices
    most = (size - rd) // rp if both.elsewhere is None else both.elsewhere // rp
    if most < 1 or size < rd or not len(loads.batches):
        return None
    shared = both.elsewhere is None

    def answers(prompts: Floats) -> Floats:
        return np.floor((size - prompts * rp) / rd) if shared else np.full(prompts.shape, float(size // rd))

    def even(prefill_s: Floats) -> Floats:
        per_answer = rp * prefill_s + rd * loads.decode_s if shared else loads.decode_s
        return np.clip(np.floor((size if shared else float(size // rd)) * prefill_s / per_answer), 1, most)

    # The fewest that serve what decode groups take: between those that prompts fill and those that queue alone.
    low = np.maximum(1, even(prefill_seconds(both, np.full(len(loads.slack), np.inf), 1)) - 1)
    high = np.minimum(most, even(loads.prefill_s) + 2)
    while (low < high).any():
        middle = np.floor((low + high) / 2)
        enough = middle / prefill_seconds(both, loads.slack, middle) >= answers(middle) / loads.decode_s
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    prompts = np.clip(low + np.arange(-(rd // rp) - 1.0 if shared else -1.0, 2.0)[:, None], 1, most)
    prefill_s = prefill_seconds(both, loads.slack, prompts)
    return Splits(prompts, answers(prompts), np.minimum(prompts / prefill_s, answers(prompts) / loads.decode_s))


def _best(good: Floats, cost: Floats) -> int:
    """Where it is best; of as good ones the least costly."""
    return int(np.argmin(np.where(good >= good.max() * (1 - 1e-12), cost, np.inf)))


def most(both: Both, costs: tuple[float, float] | None = None) -> Groups | None:
    """The groups that serve most on the devices, or most for their cost; None where no pair of them fits or is in time.

    costs: of a prefill and of a decode group. Looked for at every batch up to 128, then at steps of 1/64.
    """
    loads = loads_of(both, both.decode.grid())
    found = splits(both, loads)
    if found is None:
        return None
    spent = np.broadcast_to(seconds_of(both, loads), found.rate.shape)
    goal = found.rate if costs is None else found.rate / (found.prefill * costs[0] + found.decode * costs[1])
    split, batch = np.unravel_index(_best(goal, spent), goal.shape)
    return Groups(int(found.prefill[split, batch]), int(found.decode[split, batch]))


def each_batch(both: Both, table: tuple[Floats, Floats]) -> tuple[Loads, Splits] | None:
    """For every batch of the table the split that serves most a device: arrays over batches."""
    loads = loads_of(both, table)
    found = splits(both, loads)
    if found is None:
        return None
    per_device = found.rate / (found.prefill * both.prefill.ranks + found.decode * both.decode.ranks)
    at = np.argmax(per_device, axis=0)[None]
    return loads, Splits(*(np.take_along_axis(one, at, axis=0)[0] for one in found))


def limit(both: Both, groups: Groups) -> Limit | None:
    """What so many groups serve at most; None where no batch meets the targets."""
    loads = loads_of(both)
    if not len(loads.batches):
        return None
    prefill_s = prefill_seconds(both, loads.slack, groups.prefill)
    rate = np.minimum(groups.prefill / prefill_s, groups.decode / loads.decode_s)
    at = _best(rate, seconds_of(both, loads))
    return Limit(float(rate[at]), int(loads.batches[at]), float(prefill_s[at]), float(loads.decode_s[at]))


def carrying(
    both: Both, rate: float, costs: tuple[float, float] | None = None, table: tuple[Floats, Floats] | None = None
) -> Sequence[Groups]:
    """Groups that carry a rate inside the targets, the cheapest first: fewer of one kind take more of the other.

    costs: of a prefill and of a decode group; None = their devices. Also more groups than the devices hold.
    """
    loads = loads_of(both, table)
    needed = [_fewest(both, loads, rate), whole(rate * loads.decode_s)]
    first, second = costs or both.ranks
    found = {Groups(int(p), int(d)) for p, d in np.unique(np.stack(needed, axis=1), axis=0)}
    return sorted(found, key=lambda one: (one.prefill * first + one.decode * second, one.prefill))


def _fewest(both: Both, loads: Loads, rate: float) -> npt.NDArray[np.int64]:
    """Prefill groups that carry a rate, at each batch: between those that prompts fill and those that queue alone."""
    low, high = whole(rate * prefill_seconds(both, np.full(len(loads.slack), np.inf), 1)), whole(rate * loads.prefill_s)
    while (low < high).any():
        middle = (low + high) // 2
        enough = whole(rate * prefill_seconds(both, loads.slack, middle)) <= middle
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return np.asarray(high)


def whole(groups: Num) -> Num:
    """Groups that are busy for so many groups' time; a whole number that is just reached is enough."""
    return np.maximum(1, np.ceil(groups * (1 - 1e-9))).astype(int)


def latency(both: Both, prefill: Num, decode: Num, rate: Num) -> Latency:
    """What requests see where so many groups serve a rate that they carry; numbers, or arrays of them.

    On a decode group as many are at hand as come in the time of an answer (Little's law).
    """
    batch, step = _settled(both.decode, np.asarray(rate / decode * both.output_tokens, float))
    busy = np.minimum(rate * both.prefill.prompt / prefill, MAX_PROMPT_LOAD)
    alone = both.prefill.prefill_s
    return Latency(alone + queued(alone, busy, prefill) + both.exposed_s + step, step, batch)


def _settled(pool: Pool, tokens_per_s: Floats) -> tuple[Floats, Floats]:
    """(mean requests at hand, seconds of their step) of a decode group that yields so many tokens/s; the largest batch
    where none yields them."""
    batches, steps = pool.points()
    reached = np.maximum.accumulate(batches / steps)
    at = np.minimum(np.searchsorted(reached, tokens_per_s * (1 - 1e-12)), len(batches) - 1)
    before = np.maximum(at - 1, 0)
    # Between two points a step is a straight line, below the first point as long as there.
    width = np.where(at > 0, batches[at] - batches[before], 1.0)
    slope = (steps[at] - steps[before]) / width
    meets = 1 - tokens_per_s * slope
    start = steps[before] - slope * batches[before]
    batch = np.minimum(tokens_per_s * start / np.where(meets > 0, meets, 1.0), batches[at])
    batch = np.where(meets > 0, batch, batches[at])
    return batch, start + slope * batch
