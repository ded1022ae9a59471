"""Figures of a run from what the loop left in its arrays."""

from collections.abc import Sequence

import numpy as np

from linkwise.core.units import show_time
from linkwise.simulate import state
from linkwise.simulate.rules import Pool, Run
from linkwise.simulate.saturation import beyond, refusals, saturation
from linkwise.simulate.starving import starving
from linkwise.simulate.state import Array, World
from linkwise.simulate.stretch import stretch
from linkwise.simulate.types import PoolUse, Split, Spread, Summary
from linkwise.workload.types import Targets


def spread(values: Array) -> Spread | None:
    if not len(values):
        return None
    ordered = np.sort(values)
    p50, p90, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Spread(mean=float(ordered.mean()), p50=p50, p90=p90, p95=p95, p99=p99, most=float(ordered[-1]))


def percentile(ordered: Array, share: float) -> float:
    """A percentile: on the line between the two values around it."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))


def gap_seconds() -> Array:
    """The middle of every bin of gaps, seconds; the first bin is zero."""
    place = np.arange(state.BINS)
    octave, part = place // state.BINS_PER_OCTAVE - state.LOWEST_OCTAVE, place % state.BINS_PER_OCTAVE
    middle = (0.5 + (part + 0.5) / (2 * state.BINS_PER_OCTAVE)) * 2.0**octave
    middle[0] = 0.0
    return middle


def _gaps(counts: Array) -> Spread | None:
    total = int(counts.sum())
    if not total:
        return None
    middle, upto = gap_seconds(), np.cumsum(counts)
    at = [float(middle[np.searchsorted(upto, share * total)]) for share in (0.5, 0.9, 0.95, 0.99)]
    most = float(middle[np.flatnonzero(counts)[-1]])
    return Spread(mean=float(middle @ counts / total), p50=at[0], p90=at[1], p95=at[2], p99=at[3], most=most)


def summary(
    w: World, pools: Sequence[Pool], run: Run, targets: Targets, notes: tuple[str, ...], not_modelled: tuple[str, ...],
    asked_per_s: float | None = None,
) -> Summary:  # fmt: skip
    """asked_per_s: the rate that arrivals were drawn at, None where nobody says."""
    g, every = w.g[0], w.request
    done = every[every["status"] == state.DONE]
    begin = float(every["arrival"].min())
    span = float(every["end"].max()) - begin
    ttft, e2e = done["first"] - done["arrival"], done["end"] - done["arrival"]
    several = done["output"] > 1
    tpot = (done["end"] - done["first"])[several] / (done["output"][several] - 1)
    inside = np.ones(len(done), bool)
    if targets.ttft_s is not None:
        inside &= ttft <= targets.ttft_s
    if targets.tpot_s is not None:
        inside[several] &= tpot <= targets.tpot_s
    use = tuple(_use(w, number, pool, span) for number, pool in enumerate(pools))
    tpot_share = float(tpot.mean()) / targets.tpot_s if targets.tpot_s and len(tpot) else 0.0
    seats = _seats(pools[-1], every, shared=bool(g["hits"]) and len(w.hashes) > 0)
    why = refusals(every) if run.users else saturation(every, asked_per_s) or beyond(every, seats, asked_per_s)
    refused, lost, unmoved = (int((every["status"] == s).sum()) for s in (state.REFUSED, state.LOST, state.UNMOVED))
    per_s = 1 / span if span else 0.0
    grew = None if run.users or why else stretch(every, targets.ttft_s)
    ended = begin + span
    never = [one for one in run.faults if one.start_s >= ended]
    met = [one for one in run.faults if one.start_s < ended]
    starves = starving(w, use, tpot_share, span, run.transfer.route, met)
    notes += tuple(
        f"the fault of replica {one.replica} at {show_time(one.start_s)} never began: the last request ended at"
        f" {show_time(ended)}"
        for one in never
    )
    return Summary(
        seed=run.seed, requests=len(every), served=len(done), refused=refused, lost=lost, unmoved=unmoved,
        span_s=span, rate_per_s=len(done) * per_s, output_tokens_per_s=int(done["output"].sum()) * per_s,
        ttft=spread(ttft), tpot=spread(tpot), itl=_gaps(w.gaps), e2e=spread(e2e),
        queue=spread(done["start"] - done["arrival"]), ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s,
        in_target=int(inside.sum()) / len(every), goodput_per_s=int(inside.sum()) * per_s, split=_split(done),
        pools=use, steps=int(g["steps"]), events=int(g["events"]), prefill_tokens=int(g["prefilled"]),
        cached_tokens=int(g["hits"]), recomputed_tokens=int(g["recomputed"]), decode_tokens=int(g["decoded"]),
        preemptions=int(g["preempted"]), retries=int(g["retries"]), in_system_s=float(g["area"]),
        saturated=bool(why), saturation=why, stretch=grew, starving=starves.role, short=starves.short,
        starving_why=starves.words, faults=run.faults, faults_never=tuple(map(run.faults.index, never)),
        recovery=run.recovery if run.faults else "",
        notes=notes, not_modelled=not_modelled,
    )  # fmt: skip


def _seats(pool: Pool, every: Array, *, shared: bool) -> int:
    """Requests that a pool has at once, on average at most: the engine's limit, and where prompts share no blocks what
    its KV holds, since a request holds its prompt and half of its answer over its stay."""
    rules, tokens = pool.rules, float(np.mean(every["input"] + every["output"] / 2))
    room = rules.max_seqs if shared else max(1, int(rules.kv_blocks * rules.block_tokens / tokens))
    return pool.replicas * rules.lanes * min(rules.max_seqs, room)


def _use(w: World, number: int, pool: Pool, span: float) -> PoolUse:
    mine = w.replica[w.replica["pool"] == number]
    lanes = w.lane[w.replica["pool"][w.lane["replica"]] == number]
    busy, active = float(mine["busy_s"].sum()), float(mine["active_s"].sum())
    stages, blocks = pool.tables.stages, pool.rules.kv_blocks
    end = float(w.request["end"].max())
    # A lane's integral ends where its blocks last changed.
    area = lanes["area"] + (blocks - lanes["free"] - lanes["cached"]) * (end - lanes["since"])
    waits, runs = _stays(w.request, pool.role)
    places = len(lanes) * pool.rules.max_seqs
    return PoolUse(
        role=pool.role, label=pool.label, replicas=pool.replicas, steps=int(mine["steps"].sum()),
        busy=busy / (stages * pool.replicas * span) if span else 0.0,
        bubble=max(0.0, 1 - busy / (stages * active)) if active else 0.0,
        kv_mean=float(area.sum()) / (len(lanes) * blocks * span) if span else 0.0,
        kv_peak=1 - int(lanes["least_free"].min()) / blocks, waiting=waits / span if span else 0.0,
        rows=min(1.0, runs / (places * span)) if span else 0.0,
    )  # fmt: skip


def _stays(every: Array, role: str) -> tuple[float, float]:
    """Request-seconds in front of a pool and in it, of requests that were served."""
    count = every["status"] == state.DONE
    if role == "decode":
        count = count & (every["source"] >= 0)

    def between(first: str, last: str) -> float:
        return float(np.sum(every[last] - every[first], where=count))

    waits, runs = {
        "both": (("arrival", "start"), ("start", "end")),
        "prefill": (("arrival", "start"), ("start", "prefilled")),
        "decode": (("prefilled", "reserved"), ("reserved", "end")),
    }[role]
    return between(*waits), between(*runs)


def _split(done: Array) -> Split | None:
    """Parts of the mean TTFT. A prompt that was never handed over waits for neither blocks nor links."""
    if not len(done):
        return None
    moved = done["source"] >= 0
    blocks = np.where(moved, done["reserved"] - done["prefilled"], 0.0)
    link = np.where(moved, done["moved"] - done["reserved"], 0.0)
    last = np.where(moved, done["first"] - done["moved"], done["first"] - done["prefilled"])
    return Split(
        queue_s=float(np.mean(done["start"] - done["arrival"])),
        prefill_s=float(np.mean(done["prefilled"] - done["start"])),
        blocks_s=float(np.mean(blocks)), link_s=float(np.mean(link)), first_decode_s=float(np.mean(last)),
    )  # fmt: skip
