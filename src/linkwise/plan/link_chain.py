"""The chain behind the bytes of one link: what each op of the step puts on it, from the plan's inputs on."""

from linkwise.core.chain import chain_of
from linkwise.core.errors import InputError
from linkwise.core.quantity import Num, Quantity, named, times, total, value_of
from linkwise.core.units import GB, show_time
from linkwise.plan.explain import Explanation, subject
from linkwise.plan.figures import batches, ops_of
from linkwise.plan.flows import Ends, Roads, flows
from linkwise.plan.traffic import STEPS, Placed, place_ops
from linkwise.plan.types import Plan

PREFIX = "link:"
_FORM = '"link:SRC>DST" (in quotes), or "link:STEP:SRC>DST", such as "link:d0>island0" or "link:prefill:n0.nic0>rail0"'


def explain_link(plan: Plan, path: str) -> Explanation:
    """Bytes on a directed link in a step (decode unless said) at the plan's placement, all replicas.

    path: `link:d0>island0`, `link:prefill:d0>island0`. Raises InputError for another form, a link the cluster has not,
    or one that carries nothing.
    """
    step, ends = _parse(path)
    roads = Roads(plan.cluster)
    if ends not in roads.link:
        raise InputError(
            f"no link {'>'.join(ends)[:60]!r}", where=plan.cluster.name, expected=_FORM,
            hint="`linkwise traffic FILE --all` lists the links that carry bytes",
        )  # fmt: skip
    about = subject(plan)
    ops = ops_of(about, batches(about, Quantity.given)[step], Quantity.given)
    terms = []
    for placed in place_ops(plan, step, ops=ops):
        one_call = _on(roads, placed, ends)
        if one_call is not None:
            role = placed.op.role
            one = named(f"{role}.on_link", one_call, "B", f"one call, {placed.op.kind} by {placed.algorithm}")
            terms.append(named(f"{step}.{role}.on_link", times(placed.op.repeat, one), "B", _calls(placed)))
    if not terms:
        raise InputError(
            f"{'>'.join(ends)} carries nothing", where=f"{step} step", expected="a link that carries bytes"
        )
    link = roads.link[ends]
    bytes_ = total(terms)
    busy = show_time(value_of(bytes_) / link.effective_Bps)
    note = f"busy {busy} of the step at {link.effective_Bps / GB:.4g} GB/s usable of {link.spec_Bps / GB:.4g}"
    return Explanation(path, chain_of(named(path, bytes_, "B", f"{note}: {link.source}")))


def _parse(path: str) -> tuple[str, Ends]:
    step, colon, rest = path.removeprefix(PREFIX).rpartition(":")
    src, arrow, dst = rest.partition(">")
    if not arrow or not src or not dst or (colon and step not in STEPS):
        raise InputError(f"{path[:80]!r}", where="explain", expected=_FORM)
    return step or "decode", (src, dst)


def _on(roads: Roads, placed: Placed, ends: Ends) -> Num | None:
    """Bytes of one call on a link: equal flows counted, not listed one by one. None when there are none."""
    equal: dict[float, list[Num]] = {}
    for members in placed.groups:
        for flow in flows(placed.op.kind, roads, members, placed.call, placed.algorithm):
            if any((link.src, link.dst) == ends for link in flow.way):
                equal.setdefault(float(value_of(flow.bytes)), []).append(flow.bytes)
    terms = [times(len(same), same[0]) if len(same) > 1 else same[0] for value, same in equal.items() if value]
    return total(terms) if terms else None


def _calls(placed: Placed) -> str:
    op, count = placed.op, len(placed.groups)
    groups = f"{count} {op.group} groups" if count > 1 else f"one {op.group} group"
    calls = f"{op.repeat} calls" if op.repeat > 1 else "one call"
    return f"{calls} of {groups} of {op.size}, stage {op.stage}"
