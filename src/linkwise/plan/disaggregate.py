"""Mixed serving against separate prefill and decode pools on the same devices: five signed terms and a verdict.

Everything is counted in requests/s inside the targets (goodput). The terms lead from the mixed figure to the
disaggregated one step by step, so they add up to the difference:

    interference   decode steps no longer wait for others' prompts
    device fit     each pool gets the layout (or hardware) that suits its phase
    transfer       prompts wait for their KV, and a link may cap the handoffs
    failure        what a dying group takes with it, and what has to be computed again
    capacity       pools are whole groups: one side starves while the other is full

A mixed replica with b requests decoding spends, per output token of each, one step and its share of everybody's
prompts: TPOT = step(b) + b · ride / output, where a prompt that rides in decode steps adds `ride` seconds to them.
Prompts queue (M/D/n) before they run, and fill at most MAX_PROMPT_LOAD of a group's time.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, maximum, minimum, named, plain, total, value_of
from linkwise.core.schema import Frozen
from linkwise.core.units import show_time
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.handoff import HandoffOptions, handoff
from linkwise.plan.handoff_flip import break_even
from linkwise.plan.handoff_supply import Supply, supply
from linkwise.plan.operate import MAX_PROMPT_LOAD
from linkwise.plan.pool_counts import Balance, Both, Groups, balance, fullest, limit, loads_of, most, seconds_of
from linkwise.plan.pools import Pool, Question, pool_of
from linkwise.workload.types import Workload


class Term(Frozen, frozen=True, kw_only=True):
    """One step from mixed to disaggregated, requests/s; positive speaks for separate pools."""

    name: str
    per_s: float
    why: str


class Disaggregation(Frozen, frozen=True, kw_only=True):
    """The verdict. terms add up to disaggregated_per_s - mixed_per_s.

    prefill_groups, decode_groups: whole groups on the devices. ratio: prefill groups to one decode group at which both
    are busy. starving: the pool that waits for the other ("" when neither by more than 5 %), idle: its idle share.
    supply: whether the pools serve the rate asked for; None when none is. question: what was asked, with the mixed
    groups that were compared, so that the verdict's figures explain themselves.
    """

    verdict: str
    mixed_per_s: float
    disaggregated_per_s: float
    terms: tuple[Term, ...]
    prefill_groups: int
    decode_groups: int
    ratio: float
    starving: str
    idle: float
    mixed_batch: int
    decode_batch: int
    limiting_link: str
    break_even: str
    measure: str
    notes: tuple[str, ...]
    question: Question
    supply: Supply | None = None


class _Flow(NamedTuple):
    """A prefill and a decode group inside the targets. cost: group-seconds of a request; None = no batch meets them."""

    prefill_s: Num
    decode_s: Num
    batch: int


def both_of(q: Question) -> Both:
    """The separate pools that a question asks about."""
    return Both(
        q.prefill, q.decode, q.output_tokens, q.devices, q.elsewhere, q.ttft_s, q.tpot_s, q.exposed_s, q.link_rate_per_s
    )


def groups_of(q: Question) -> Groups | None:
    """The groups given, else those that serve most; None where no pair of them fits or is in time."""
    return most(both_of(q)) if q.groups is None else Groups(*q.groups)


def _mixed_batch(q: Question, pool: Pool) -> tuple[int, float]:
    """The batch with the most requests/s at which a mixed group meets the targets, and that rate; 0 when none does."""
    batches, steps = pool.table()
    rate = np.minimum(1 / (pool.ride + q.output_tokens * steps / batches), MAX_PROMPT_LOAD / pool.prompt)
    load = rate * pool.prompt
    ttft = pool.prefill_s + load * pool.prefill_s / (2 * (1 - load)) + steps
    good = (batches / (rate * q.output_tokens) <= (q.tpot_s or np.inf)) & (ttft <= (q.ttft_s or np.inf))
    if not good.any():
        return 0, 0.0
    best = int(np.argmax(np.where(good, rate, -1.0)))
    return int(batches[best]), float(rate[best])


def settled(q: Question) -> Question:
    """The question with one kind of mixed group: what its devices serve most with, the first named of equals."""
    if not q.others:
        return q
    best, most = q.mixed, -1.0
    for pool in (q.mixed, *q.others):
        served = _mixed_batch(q, pool)[1] * (q.devices // pool.ranks)
        if served > most * (1 + 1e-9):
            best, most = pool, served
    return msgspec.structs.replace(q, mixed=best, others=())


def _mixed_rate(q: Question, batch: int, given: Given) -> Num:
    """Requests/s of one mixed group."""
    step = given("step.mixed", q.mixed.step(batch), "s", f"decode step of {batch} requests")
    output = given("output", q.output_tokens, "tokens", "workload")
    ride = given("ride.mixed", q.mixed.ride, "s", "what one prompt adds to the steps it rides in")
    prompt = given("prompt.mixed", q.mixed.prompt, "s", f"group time of one prompt, {q.mixed.label}".rstrip(", "))
    cost = named("cost.mixed", ride + output * step / batch, "s", "group time of a request: its prompt and its steps")
    least = named("least.mixed", prompt / MAX_PROMPT_LOAD, "s", "prompts leave slack, or their queue has no bound")
    return 1 / maximum(cost, least)


def _flow(
    q: Question, prefill: Pool, decode: Pool, batch: int, exposed: Num, link: Num | None, tag: str, given: Given,
    groups: int = 1,
) -> _Flow:  # fmt: skip
    """Costs of a request in two pools at a decode batch inside the targets, prompts at the best load theirs allows.
    groups: of prefill, that a router keeps even."""
    step = given(
        f"step.{tag}", decode.step(batch), "s", f"decode step of {batch} requests, {decode.label}".rstrip(", ")
    )
    output = given("output", q.output_tokens, "tokens", "workload")
    prompt = given(f"prompt.{tag}", prefill.prompt, "s", f"group time of one prompt, {prefill.label}".rstrip(", "))
    decode_s = named(f"decode_cost.{tag}", output * step / batch, "s", f"group time of a request at batch {batch}")
    load: Num = MAX_PROMPT_LOAD
    if q.ttft_s is not None:
        alone = given(f"prefill.{tag}", prefill.prefill_s, "s", "one prompt from start to end")
        target = given("ttft", q.ttft_s, "s", "target")
        slack = named(f"slack.{tag}", target - alone - exposed - step, "s", "left for queueing")
        # M/D/1: wait = load / (2 (1 - load)) x a prompt from start to end, so at this load prompts wait just the slack.
        full = 2 * slack / (alone + 2 * slack)
        if groups > 1:
            found = float(fullest(value_of(alone), np.array([value_of(slack)]), groups)[0])
            full = given(
                f"fullest.{tag}", found, "", f"at which prompts wait just the slack for one of {groups} groups"
            )
        load = named(f"load.{tag}", minimum(full, MAX_PROMPT_LOAD), "", "share of time busy")
    cost = named(f"prefill_cost.{tag}", prompt / load, "s", "group time of a request, slack for the target included")
    if link is not None:
        cost, decode_s = (maximum(x, 1 / link) for x in (cost, decode_s))
    return _Flow(cost, decode_s, batch)


class _Steps(NamedTuple):
    """The waterfall: goodput after each term, requests/s."""

    mixed: Num
    apart: Num
    fitted: Num
    moved: Num
    mended: Num
    whole: Num
    batch: int
    flow: _Flow | None
    groups: tuple[int, int]


def _waterfall(q: Question, given: Given) -> _Steps:
    none = given("none", 0.0, "requests/s", "no batch meets the targets")
    devices = given("devices", q.devices, "devices", "asked for")
    groups = q.devices // q.mixed.ranks
    batch, _ = _mixed_batch(q, q.mixed)
    mixed: Num = none
    if batch and groups:
        count = given("groups", groups, "groups", "whole mixed groups")
        mixed = named("mixed", count * _mixed_rate(q, batch, given), "requests/s")
    mixed_only = msgspec.structs.replace(q, prefill=q.mixed, decode=q.mixed)
    same = _leanest(mixed_only, 0.0, None, "same", given)
    apart = named("apart", groups / (same.prefill_s + same.decode_s), "requests/s") if same and groups else none
    own = _leanest(q, 0.0, None, "own", given)
    fitted = named("fitted", devices / _device_seconds(q, own), "requests/s") if own else none
    exposed = given("exposed", q.exposed_s, "s", "handoff time prefill does not hide")
    link = None if q.link_rate_per_s is None else given("link", q.link_rate_per_s, "1/s", q.limiting_link or "route")
    flow = _leanest(q, exposed, link, "moved", given)
    if flow is None:
        return _Steps(mixed, apart, fitted, none, none, none, batch, None, (0, 0))
    moved = named("moved", devices / _device_seconds(q, flow), "requests/s", "whole groups not yet asked for")
    mended = named("mended", moved + _recovery(q, mixed, batch, moved, flow, given), "requests/s")
    pools = groups_of(q)
    served = None if pools is None else limit(both_of(q), pools)
    if pools is None or served is None:
        return _Steps(mixed, apart, fitted, moved, mended, none, batch, flow, (0, 0))
    # Whole groups may be served best at another batch: where prompts are short of groups, a smaller one.
    at, alike = served.batch, pools.prefill
    same_flow = at == flow.batch and alike == 1
    best = flow if same_flow else _flow(q, q.prefill, q.decode, at, exposed, link, "whole", given, alike)
    paired = balance(pools.prefill, best.prefill_s, pools.decode, best.decode_s).rate
    note = f"{pools.prefill} prefill and {pools.decode} decode groups"
    whole = named("disaggregated", mended * paired / moved, "requests/s", note)
    return _Steps(mixed, apart, fitted, moved, mended, whole, batch, best, pools)


def _leanest(q: Question, exposed: Num, link: Num | None, tag: str, given: Given) -> _Flow | None:
    """The batch with the fewest device-seconds a request; None where no batch meets the targets."""
    joined = None if link is None else float(value_of(link))
    both = both_of(q)._replace(exposed_s=float(value_of(exposed)), link_rate_per_s=joined)
    loads = loads_of(both)
    if not len(loads.batches):
        return None
    batch = int(loads.batches[np.argmin(seconds_of(both, loads))])
    return _flow(q, q.prefill, q.decode, batch, exposed, link, tag, given)


def _device_seconds(q: Question, flow: _Flow) -> Num:
    return total((q.prefill.ranks * flow.prefill_s, q.decode.ranks * flow.decode_s))


def _recovery(q: Question, mixed: Num, batch: int, moved: Num, flow: _Flow, given: Given) -> Num:
    """Goodput that failures cost the mixed groups, less what they cost the pools.

    A dead group is gone for the restart; in a pool its partners wait too. A mixed or decode group takes its running
    requests' KV with it: their prompts are computed again (and handed over again).
    """
    f = given("failures", q.failures_per_device_hour / 3600, "1/s", "unexpected interruptions of a device")
    restart = given("restart", q.restart_s, "s", "stated")
    redo_mixed = batch * given("recomputed.mixed", q.mixed.prompt, "s", "group time of one prompt")
    lost_mixed = named("lost.mixed", f * q.mixed.ranks * (restart + redo_mixed), "", "share of a mixed group's time")
    # A decode group's requests come back through the prefill pool: decode_s / prefill_s groups of it serve one group.
    redo_pools = flow.batch * flow.prefill_s * flow.prefill_s / flow.decode_s
    lost_prefill = f * q.prefill.ranks * restart
    lost_pools = named(
        "lost.pools", lost_prefill + f * q.decode.ranks * (restart + redo_pools), "", "share of the pools"
    )
    return named("recovery", mixed * lost_mixed - moved * lost_pools, "requests/s")


NAMES = ("interference", "device fit", "transfer", "failure", "capacity")


def verdict_figures(q: Question, *, given: Given = plain) -> dict[str, Num]:
    """Both goodputs and the five terms by name, requests/s; with `given=Quantity.given` each carries its chain."""
    s = _waterfall(settled(q), given)
    ladder = (s.mixed, s.apart, s.fitted, s.moved, s.mended, s.whole)
    terms = {name: named(name, b - a, "requests/s") for name, a, b in zip(NAMES, ladder, ladder[1:], strict=False)}
    return {"mixed": s.mixed, "disaggregated": s.whole} | terms


def verdict(question: Question) -> Disaggregation:
    """Mixed or disaggregated, with the five terms, what limits, what flips it and what to measure."""
    q = settled(question)
    s = _waterfall(q, plain)
    found = {k: float(v) for k, v in verdict_figures(q).items()}
    answer = winner(q)
    pools = balance(s.groups[0], s.flow.prefill_s, s.groups[1], s.flow.decode_s) if s.flow and all(s.groups) else None
    notes = []
    if not all(s.groups) and s.flow:
        notes.append(
            f"{q.devices} devices hold no prefill group of {q.prefill.ranks} beside a decode group of {q.decode.ranks}"
        )
    if s.flow is None:
        notes.append("the separate pools miss a target at any load")
    if not s.batch:
        notes.append("a mixed group misses a target at any batch")
    ratio = s.flow.prefill_s / s.flow.decode_s if s.flow else 0.0
    return Disaggregation(
        verdict="neither meets the targets" if answer == "neither" else answer,
        mixed_per_s=found["mixed"], disaggregated_per_s=found["disaggregated"],
        terms=tuple(Term(name=n, per_s=found[n], why=w) for n, w in _why(q, s, pools).items()),
        prefill_groups=s.groups[0], decode_groups=s.groups[1], ratio=float(ratio),
        starving=pools.starving if pools else "", idle=pools.idle if pools else 0.0, mixed_batch=s.batch,
        decode_batch=s.flow.batch if s.flow else 0, limiting_link=q.limiting_link,
        break_even=break_even(question, winner), measure=_measure(q, s, found), notes=tuple(notes), question=q,
        supply=None if q.rate_per_s is None
        else supply(both_of(q), q.rate_per_s, groups_of(q), given=q.groups is not None),
    )  # fmt: skip


def _why(q: Question, s: _Steps, pools: Balance | None) -> dict[str, str]:
    stretch = s.batch * q.mixed.ride / q.output_tokens
    idle = (
        f"the {pools.starving} pool starves {pools.idle:.0%} of its time"
        if pools and pools.starving
        else "both pools busy"
    )
    texts = (
        f"at batch {s.batch} others' prompts add {show_time(stretch)} to every token",
        f"prefill on {q.prefill.label or q.prefill.ranks}, decode on {q.decode.label or q.decode.ranks}",
        f"{show_time(q.exposed_s)} of a handoff is not hidden"
        + (f", over {q.limiting_link}" if q.limiting_link else ""),
        f"{q.failures_per_device_hour:.2g} failures per device-hour, {show_time(q.restart_s)} to come back",
        f"{s.groups[0]} prefill : {s.groups[1]} decode groups on {q.devices} devices, {idle}",
    )
    return dict(zip(NAMES, texts, strict=True))


def winner(question: Question) -> str:
    """mixed, disaggregated, or neither: the whole verdict's answer."""
    s = _waterfall(settled(question), plain)
    mixed, whole = float(s.mixed), float(s.whole)
    return "neither" if not (mixed or whole) else "disaggregated" if whole > mixed else "mixed"


def _measure(q: Question, s: _Steps, found: dict[str, float]) -> str:
    """The measurement that settles the term with the most weight."""
    widest = max(NAMES, key=lambda n: abs(found[n]))
    return {
        "interference": f"TPOT of a mixed group at {max(1, s.batch)} concurrent requests, and its decode step alone",
        "device fit": "one prompt on the prefill layout and one decode step on the decode layout",
        "transfer": "time from the end of prefill to the first decode step"
        + (f", over {q.limiting_link}" if q.limiting_link else ""),
        "failure": "time a killed group needs to serve again",
        "capacity": f"utilisation of both pools at {s.groups[0]} : {s.groups[1]}",
    }[widest]


def compare(
    model: Model, cluster: Cluster, engine: Engine, workload: Workload, *, mixed: Layout | tuple[Layout, ...],
    prefill: Layout, decode: Layout, options: Options | None = None, handoff_options: HandoffOptions | None = None,
) -> Disaggregation:  # fmt: skip
    """The verdict on one cluster: step times from the plan's time model, the handoff from its routes.

    mixed: one layout, or several, of which the one with the most requests/s inside the targets is compared.
    Raises InputError when a layout does not fit, or the prefill and decode groups do not fit beside each other.
    """
    chosen = options or Options()
    moved = handoff(
        model, cluster, prompt_tokens=workload.isl_tokens, rate_per_s=workload.rate_per_s or 1.0,
        prefill_tp=prefill.tp, prefill_pp=prefill.pp, decode_tp=decode.tp, decode_pp=decode.pp, engine=engine,
        kv_dtype=chosen.kv_dtype or "auto", options=handoff_options,
    )  # fmt: skip
    several = (mixed,) if isinstance(mixed, Layout) else mixed
    sides = [pool_of(model, cluster, engine, layout, workload, chosen) for layout in (prefill, decode, *several)]
    return verdict(
        Question(
            prefill=sides[0],
            decode=sides[1],
            mixed=sides[2],
            others=tuple(sides[3:]),
            devices=cluster.size,
            output_tokens=workload.osl_tokens,
            ttft_s=workload.targets.ttft_s,
            tpot_s=workload.targets.tpot_s,
            rate_per_s=workload.rate_per_s,
            exposed_s=moved.exposed_s,
            link_rate_per_s=moved.max_rate_per_s,
            limiting_link=moved.limiting,
        )
    )
