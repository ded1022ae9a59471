"""The screen of `handoff`: what crosses, over which route, whether it keeps up, what it costs the first token."""

from typing import TYPE_CHECKING

from linkwise.core.units import GB, show_bytes, show_count, show_time
from linkwise.plan.disaggregate import Disaggregation
from linkwise.plan.handoff_pair import Pair
from linkwise.plan.handoff_types import Handoff
from linkwise.report.text import remarks, table

if TYPE_CHECKING:
    from rich.table import Table


def screen(found: Pair) -> list[str]:
    """The answer in a few lines; every rank, flow and link is behind --ranks and --links."""
    verdict, (prefill, decode) = found.verdict, found.groups
    each = f" ({show_count(found.bytes_per_token)} B a token)" if found.bytes_per_token else ", a hybrid stack"
    routes = 1 if found.pools is None else found.pools.routes
    over = f" over {routes} routes" if routes > 1 else ""
    twice = found.crossing_bytes - found.kv_bytes
    lines = [
        f"{found.model}: {prefill} prefill to {decode} decode, {found.engine} with {found.connector},"
        f" {show_count(found.prompt_tokens)} prompt tokens, {found.rate_per_s:g} requests/s",
        f"moves      {show_bytes(found.kv_bytes)} of KV a request{each}, kept in {found.kv_dtype}"
        + (f"; {show_bytes(twice)} more for states both sides replicate" if twice > 0 else ""),
        f"           {show_bytes(found.kv_bytes * found.rate_per_s)}/s in all,"
        f" {show_count(found.messages)} messages a request",
        f"limited by {found.limiting}: {show_time(found.transfer_s)} a request, {found.utilization:.0%} busy at this"
        f" rate{over}, {found.max_rate_per_s * routes:.3g} requests/s at most",
        f"against    prefill {show_time(found.prefill_s)}: the transfer is {found.share_of_prefill:.1%} of it;"
        f" {show_time(found.exposed_s)} come after it"
        + (f", copies {show_time(found.copy_s)}" if found.copy_s else ""),
    ]
    if found.refused is not None:
        lines.append(f"refused    {found.refused.reason}. {found.refused.change}".rstrip(". "))
    if found.keeps_up and found.wait_s is not None:
        waiting = f", {show_bytes(found.in_flight_bytes * routes)} of KV under way" if found.in_flight_bytes else ""
        lines.append(f"route      keeps up: mean wait {show_time(found.wait_s)}{waiting}")
    else:
        lines.append("route      does not keep up: requests queue without end")
    said = found.supply
    if said is not None:
        lines.append(f"pools      {'serve the rate' if said.serves else 'do not serve the rate'}: {said.reason}")
        if said.ttft_s is not None and said.tpot_s is not None:
            starves = f"; with more the {said.starving} pool starves" if said.starving else ""
            lines.append(
                f"           at that rate TTFT {show_time(said.ttft_s)}, TPOT {show_time(said.tpot_s)}{starves}"
            )
    elif found.unserved:
        lines.append(f"pools      do not serve the rate: {found.unserved}")
    if verdict is not None:
        lines += _verdict(found, verdict)
    notes = (*found.notes, *(verdict.notes if verdict else ()))
    terms = " or handoff:verdict.transfer" if verdict else ""
    more = f"more       --ranks  --links  --json   any figure: linkwise explain handoff:transfer_s{terms}"
    return [*lines, *remarks(notes), "not modelled: " + "; ".join(found.not_modelled), more]


def _verdict(found: Pair, verdict: Disaggregation) -> list[str]:
    """Mixed or separate pools on the same devices: the five terms that lead from one to the other."""
    prefill, decode = found.groups
    pools = f"{verdict.prefill_groups} x prefill {prefill} + {verdict.decode_groups} x decode {decode}"
    lines = [
        f"verdict    {verdict.verdict}: {verdict.disaggregated_per_s:.3g} requests/s inside the targets with {pools},"
        f" {verdict.mixed_per_s:.3g} with mixed groups of {found.mixed}"
    ]
    lines += [f"           {term.per_s:+8.2f}/s  {term.name:<14} {term.why}" for term in verdict.terms]
    if verdict.starving:
        lines.append(
            f"           the {verdict.starving} pool idles {verdict.idle:.0%}; both are busy at {verdict.ratio:.2f} : 1"
        )
    return [
        *lines,
        f"           break-even: {verdict.break_even}",
        f"           settle it by measuring {verdict.measure}",
    ]


def ranks(found: Handoff) -> "list[str | Table]":
    """Each rank's share of a request, and who sends what to whom."""
    shares = [
        [s.side, s.rank, s.device, show_bytes(s.held_bytes), show_bytes(s.moved_bytes), show_bytes(s.staging_bytes)]
        for s in found.ranks
    ]
    flows = [
        [f.sender, f.receiver, f.state, f.layers, f"{f.heads[0]}-{f.heads[1]}", f"{f.share:.3g}", show_bytes(f.bytes)]
        for f in found.flows
    ]
    return [
        table(["side", ">rank", ">device", ">holds", ">moves", ">staging"], shares, title="a request, rank by rank"),
        table([">from", ">to", "state", ">layers", "heads", ">share of tokens", ">bytes"], flows, title="flows"),
    ]


def links(found: Handoff) -> "list[str | Table]":
    """Every directed link under the handoff, the busiest first."""
    rows = [
        [
            x.link,
            f"{x.spec_Bps / GB:.1f}",
            f"{x.effective_Bps / GB:.1f}",
            show_bytes(x.payload_bytes),
            show_bytes(x.wire_bytes),
            show_time(x.seconds),
            f"{x.utilization:.0%}",
        ]
        for x in found.links
    ]
    heads = ["link", ">spec GB/s", ">usable GB/s", ">payload", ">on the wire", ">time", ">busy"]
    return [table(heads, rows, title="links, one request")]
