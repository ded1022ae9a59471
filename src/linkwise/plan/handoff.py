"""The handoff of a finished prompt's KV from a prefill to a decode group: bytes, routes, time, rate (DESIGN §4).

Bytes follow from the states both groups keep; routes from where their ranks lie; what is sent twice, staged or wrapped
in headers from the connector's facts and stated factors. Every figure can be asked with `given` for its chain.
"""

from linkwise.cluster.types import Cluster, Link
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, ceil_div, maximum, named, plain, times, total, value_of
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.batch import prefill_batch
from linkwise.plan.handoff_case import NETWORK, Case, Load, case_of, link_name, loads_of
from linkwise.plan.handoff_types import Flow, Handoff, HandoffOptions, LinkLoad, RankShare
from linkwise.plan.interval import times_label
from linkwise.plan.inventory import bytes_per_token, inventory, request_bytes, stages
from linkwise.plan.reshard import Piece, entries, entry_bytes, regions
from linkwise.plan.time import flops_seconds, group_seconds, read_seconds


def handoff(
    model: Model, cluster: Cluster, *, prompt_tokens: int, rate_per_s: float, prefill_tp: int, decode_tp: int,
    engine: Engine, prefill_pp: int = 1, decode_pp: int = 1, kv_dtype: str = "auto",
    options: HandoffOptions | None = None,
) -> Handoff:  # fmt: skip
    """What handing over `rate_per_s` prompts of `prompt_tokens` a second takes, from one prefill to one decode group.

    Raises InputError when the groups do not fit on the cluster or an argument is out of range.
    """
    case = case_of(
        model, cluster, prompt_tokens, rate_per_s, Layout(tp=prefill_tp, pp=prefill_pp),
        Layout(tp=decode_tp, pp=decode_pp), engine, kv_dtype, options or HandoffOptions(),
    )  # fmt: skip
    return of_case(case)


def handoff_figures(
    model: Model, cluster: Cluster, *, prompt_tokens: int, rate_per_s: float, prefill_tp: int, decode_tp: int,
    engine: Engine, prefill_pp: int = 1, decode_pp: int = 1, kv_dtype: str = "auto",
    options: HandoffOptions | None = None, given: Given = plain,
) -> dict[str, Num]:  # fmt: skip
    """The figures of `handoff` by name; with `given=Quantity.given` each carries its chain."""
    case = case_of(
        model, cluster, prompt_tokens, rate_per_s, Layout(tp=prefill_tp, pp=prefill_pp),
        Layout(tp=decode_tp, pp=decode_pp), engine, kv_dtype, options or HandoffOptions(),
    )  # fmt: skip
    return figures_of(case, given)


def figures_of(case: Case, given: Given = plain) -> dict[str, Num]:
    """The figures of a resolved handoff."""
    return _figures(case, loads_of(case), given)


def _piece_bytes(case: Case, piece: Piece, prompt: Num, given: Given) -> Num:
    each = given(
        f"{piece.state.name}_bytes_per_entry", entry_bytes(piece, case.kv_dtype), "B",
        f"{piece.layers} layers x heads {piece.first}..{piece.end - 1} of {piece.state.heads}, {case.kv_dtype}",
    )  # fmt: skip
    kept = entries(piece.state, prompt, case.block)
    whole = each * kept if piece.state.per_token else each
    if piece.share == 1:
        return whole
    return ceil_div(whole * piece.share.numerator, piece.share.denominator)


def _messages(case: Case, piece: Piece) -> int:
    """Messages of a piece: per layer and buffer one a block, one a token where a connector cuts head slices out of
    blocks, one in all where it merges neighbouring blocks (a fresh cache; a fragmented one takes more)."""
    if not piece.state.per_token:
        return piece.layers
    kept = int(value_of(entries(piece.state, case.prompt, case.block)))
    by_token = case.it.unequal_message == "token" and not piece.whole
    number = kept if by_token else 1 if case.it.merges and piece.whole else -(-kept // case.block)
    return int(-(-piece.layers * regions(piece.state) * number * piece.share.numerator // piece.share.denominator))


def _wire(case: Case, piece: Piece, payload: Num, given: Given) -> Num:
    """Payload with packet and message headers, as a network carries it."""
    if case.textbook:
        return payload
    o = case.options
    count = given("messages", _messages(case, piece), "messages", "blocks x layers x buffers of the piece")
    packets = count * ceil_div(payload / count, given("mtu", o.packet_payload_bytes, "B", "largest RDMA payload"))
    headers = packets * given("packet_header", o.packet_header_bytes, "B", "headers around a packet")
    return payload + headers + count * given("message_header", o.message_header_bytes, "B", "RETH")


def _link_seconds(case: Case, load: Load, prompt: Num, given: Given) -> tuple[Num, Num, Num]:
    """(payload, wire, seconds) of one request on a link."""
    link = load.link
    retry = given("retries", 1 + case.options.retry_share, "", "1 + share of bytes sent again, stated")
    sizes = [_piece_bytes(case, p, prompt, given) for p, _ in load.pieces]
    shares = [share for _, share in load.pieces]
    payload = named(f"payload on {link_name(link)}", total(map(times, shares, sizes)) * retry, "B")
    spec = given(f"{link.kind}_spec", link.spec_Bps, "B/s", f"{_whose(case, link)}: {link_name(link)}, one direction")
    if case.textbook:
        return payload, payload, read_seconds(payload, spec)
    share = given(f"{link.kind}_efficiency", link.effective_Bps / link.spec_Bps, "", link.source)
    effective = spec * share
    if link.kind not in NETWORK:
        return payload, payload, read_seconds(payload, effective)
    wired = total(
        times(share, _wire(case, p, size, given)) for (p, share), size in zip(load.pieces, sizes, strict=True)
    )
    wire = named(f"wire on {link_name(link)}", wired * retry, "B", note="headers included")
    return payload, wire, maximum(read_seconds(payload, effective), read_seconds(wire, spec))


def _whose(case: Case, link: Link) -> str:
    """The cluster a link is of."""
    return (case.other if "decode " in link.src + link.dst else case.cluster).name


def prefill_seconds(parameters: Num, prompt: Num, peak: Num, ranks: Num) -> Num:
    """The textbook's prefill time: 2 FLOPs a parameter and token at peak on every rank, no attention term."""
    flops = named("prefill_flops", 2 * parameters * prompt, "FLOP", "no attention term")
    return named("prefill_s", flops_seconds(flops, peak * ranks), "s")


def _prefill(case: Case, prompt: Num, given: Given) -> Num:
    if case.options.prefill_s is not None:
        return given("prefill_s", case.options.prefill_s, "s", "stated")
    if case.textbook:
        parameters = given("parameters", case.model.parameters, "parameters", case.model.source)
        peak = given("peak", case.cluster.accelerator.flops["bf16"], "FLOP/s", case.cluster.accelerator.label)
        return prefill_seconds(parameters, prompt, peak, given("prefill_ranks", case.group.size, "ranks", "layout"))
    step = group_seconds(case.model, case.group, case.engine, case.cluster, prefill_batch(prompt), Options())
    return given("prefill_s", value_of(step.token), "s", f"time of a prefill step, {case.cluster.constants.label}")


def _units(case: Case) -> int:
    """Parts a prompt's KV leaves in: layers, chunks, or the whole request."""
    if case.it.granularity == "layer":
        return len(case.model.layers)
    if case.it.granularity == "chunk":
        return -(-case.prompt // case.engine.resolve(Options(), case.model).max_batched_tokens)
    return 1


def _figures(case: Case, loads: list[Load], given: Given) -> dict[str, Num]:
    """Every figure with its chain. Which link limits is decided on plain numbers, then explained."""
    prompt = given("prompt", case.prompt, "tokens", "asked for")
    rate = given("rate", case.rate, "1/s", "asked for")
    stock, whole = inventory(case.model), Layout()
    (stage,) = stages(case.model, whole, case.engine)
    figures: dict[str, Num] = {}
    per_token = bytes_per_token(stock, stage, whole, case.kv_dtype)
    if per_token is not None:
        figures["kv_bytes_per_token"] = given("kv_bytes_per_token", per_token, "B", _token_source(case))
        kept = entries(stock.states[0][0], prompt, case.block) if stock.states else prompt
        figures["kv_bytes"] = named("kv_bytes", figures["kv_bytes_per_token"] * kept, "B")
    else:
        bytes_once = request_bytes(stock, stage, whole, case.kv_dtype, prompt, block_tokens=case.block)
        figures["kv_bytes"] = named("kv_bytes", bytes_once, "B")
    figures["payload_Bps"] = named("payload_Bps", figures["kv_bytes"] * rate, "B/s")
    figures["crossing_bytes"] = named(
        "crossing_bytes", total(_piece_bytes(case, p, prompt, given) for p in case.pieces), "B"
    )
    limit = _limiting(case, loads)
    payload, wire, seconds = _link_seconds(case, limit, prompt, given)
    figures |= {"link.payload_bytes": payload, "link.wire_bytes": wire}
    if case.it.serial_receive:
        figures["serial_s"] = _serial_seconds(case, prompt, given)
        seconds = maximum(seconds, figures["serial_s"])
    figures["transfer_s"] = named("transfer_s", seconds, "s", note=f"limited by {link_name(limit.link)}")
    copies = case.it.sender_copies + case.it.receiver_copies
    if copies and not case.textbook:
        slower = min(c.accelerator.hbm_Bps * c.constants.hbm_efficiency for c in (case.cluster, case.other))
        hbm = given("hbm", slower, "B/s", "device")
        share = given("busiest_share", max(_moved(case).values()), "B", "busiest rank's part of a request")
        passes = given("copies", copies, "copies", f"{case.name}: through staging buffers, read and written")
        figures["copy_s"] = named("copy_s", 2 * passes * share / hbm, "s")
    moved = figures["transfer_s"] + figures.get("copy_s", 0)
    figures["prefill_s"] = _prefill(case, prompt, given)
    figures["prefill_load"] = named("prefill_load", rate * figures["prefill_s"], "groups", "busy prefill groups")
    figures["share_of_prefill"] = named("share_of_prefill", figures["transfer_s"] / figures["prefill_s"])
    units = given("parts", _units(case), "parts", f"{case.name} sends by {case.it.granularity}")
    # Part i leaves when it is computed and the one before it has left: the last ends late by the longer of the two.
    behind = moved - (units - 1) / units * figures["prefill_s"]
    figures["exposed_s"] = named("exposed_s", maximum(moved / units, behind), "s", note="what prefill does not hide")
    figures["utilization"] = named("utilization", rate * figures["transfer_s"], note="below 1, or queues grow for ever")
    figures["max_rate_per_s"] = named("max_rate_per_s", 1 / figures["transfer_s"], "1/s")
    if value_of(figures["utilization"]) < 1:
        busy = figures["utilization"]
        figures["wait_s"] = named(
            "wait_s", busy / (2 * (1 - busy)) * figures["transfer_s"], "s", note="mean wait, M/D/1 queue"
        )
        figures["in_flight_bytes"] = named(
            "in_flight_bytes", rate * (moved + figures["wait_s"]) * figures["kv_bytes"], "B",
            note="KV that is finished but not yet handed over (Little's law)",
        )  # fmt: skip
    return figures


def _token_source(case: Case) -> str:
    parts = []
    for state, layers in inventory(case.model).states:
        parts.append(f"{len(layers)} layers x {state.per_token} elements of {state.name}, {case.kv_dtype}")
    return "; ".join(parts)


def _limiting(case: Case, loads: list[Load]) -> Load:
    return max(loads, key=lambda load: value_of(_link_seconds(case, load, case.prompt, plain)[2]))


def _serial_seconds(case: Case, prompt: Num, given: Given) -> Num:
    """The busiest receiver when it takes its senders in turn: each at the slowest link of its own route."""
    by_receiver: dict[int, list[Num]] = {}
    for piece in case.pieces:
        ways = case.routes[piece.sender, piece.receiver]
        slowest = min(link.effective_Bps / way.share for way in ways for link in way.links)
        speed = given("route", slowest, "B/s", f"prefill rank {piece.sender} to decode rank {piece.receiver}")
        by_receiver.setdefault(piece.receiver, []).append(_piece_bytes(case, piece, prompt, given) / speed)
    busiest = max(by_receiver.values(), key=lambda terms: sum(value_of(t) for t in terms))
    return named("serial_s", total(busiest), "s", note="one sender after the other")


def _moved(case: Case) -> dict[tuple[str, int], int]:
    """Bytes of a request each rank sends or receives."""
    moved = dict.fromkeys(case.devices, 0)
    for piece in case.pieces:
        size = int(_piece_bytes(case, piece, case.prompt, plain))
        moved["prefill", piece.sender] += size
        moved["decode", piece.receiver] += size
    return moved


def moved_of(case: Case) -> tuple[dict[str, Num], str]:
    """The figures of a resolved handoff and its slowest link, without what they rest on: a search asks for many."""
    busiest = _limiting(case, loads_of(case))
    return _figures(case, [busiest], plain), link_name(busiest.link)


def of_case(case: Case) -> Handoff:
    """What a resolved handoff takes."""
    loads = loads_of(case)
    busiest = _limiting(case, loads)
    figures = _figures(case, [busiest], plain)
    links = [_link(case, load) for load in loads]
    wait = figures.get("wait_s")
    return Handoff(
        model=case.model.name, engine=case.engine.name, connector=case.name, source=case.it.source,
        kv_dtype=case.kv_dtype, prompt_tokens=case.prompt, rate_per_s=case.rate, prefill=case.prefill,
        decode=case.decode, bytes_per_token=figures.get("kv_bytes_per_token"), kv_bytes=int(figures["kv_bytes"]),
        crossing_bytes=int(figures["crossing_bytes"]), messages=sum(_messages(case, p) for p in case.pieces),
        flows=tuple(_flow(case, p) for p in case.pieces), ranks=_ranks(case, figures),
        links=tuple(sorted(links, key=lambda x: -x.seconds)), limiting=link_name(busiest.link),
        transfer_s=float(figures["transfer_s"]), copy_s=float(figures.get("copy_s", 0.0)),
        prefill_s=float(figures["prefill_s"]), share_of_prefill=float(figures["share_of_prefill"]),
        exposed_s=float(figures["exposed_s"]), utilization=float(figures["utilization"]),
        max_rate_per_s=float(figures["max_rate_per_s"]), wait_s=None if wait is None else float(wait),
        in_flight_bytes=figures.get("in_flight_bytes"), keeps_up=wait is not None, refused=case.refused,
        notes=_notes(case, figures), not_modelled=NOT_MODELLED, figures={k: float(v) for k, v in figures.items()},
    )  # fmt: skip


NOT_MODELLED = (
    "whether both groups hold their weights and KV (linkwise fit answers it for each)",
    "handshake, request and completion messages between the pools",
    "other traffic on the same links (expert exchange across nodes, weight loading)",
    "prefix hits on the decode side, which send less",
)


def _flow(case: Case, piece: Piece) -> Flow:
    return Flow(
        sender=piece.sender, receiver=piece.receiver, state=piece.state.name, layers=piece.layers,
        heads=(piece.first, piece.end - 1), share=float(piece.share),
        bytes=int(_piece_bytes(case, piece, case.prompt, plain)), messages=_messages(case, piece),
        route=tuple(link_name(link) for link in case.routes[piece.sender, piece.receiver][0].links),
    )  # fmt: skip


def _link(case: Case, load: Load) -> LinkLoad:
    payload, wire, seconds = _link_seconds(case, load, case.prompt, plain)
    link = load.link
    return LinkLoad(
        link=link_name(link), kind=link.kind, spec_Bps=link.spec_Bps,
        effective_Bps=link.spec_Bps if case.textbook else link.effective_Bps, payload_bytes=float(payload),
        wire_bytes=float(wire),
        seconds=float(seconds), load_Bps=case.rate * float(wire), utilization=case.rate * float(seconds),
    )  # fmt: skip


def _ranks(case: Case, figures: dict[str, Num]) -> tuple[RankShare, ...]:
    stock, moved = inventory(case.model), _moved(case)
    result = []
    for (side, rank), device in case.devices.items():
        layout = case.prefill if side == "prefill" else case.decode
        stage = stages(case.model, layout, case.engine)[rank // layout.tp]
        holds = request_bytes(stock, stage, layout, case.kv_dtype, case.prompt, block_tokens=case.block)
        buffer = case.it.buffer_sender_bytes if side == "prefill" else case.it.buffer_receiver_bytes
        result.append(
            RankShare(
                side=side,
                rank=rank,
                device=device,
                held_bytes=int(holds),
                moved_bytes=moved[side, rank],
                staging_bytes=0 if case.textbook else buffer,
            )
        )
    return tuple(result)


def _notes(case: Case, figures: dict[str, Num]) -> tuple[str, ...]:
    notes = []
    moved = _moved(case)
    for side, buffer in (("prefill", case.it.buffer_sender_bytes), ("decode", case.it.buffer_receiver_bytes)):
        share = max(size for (s, _), size in moved.items() if s == side)
        if buffer and share > buffer:
            notes.append(f"a {side} rank's share of one prompt is {share:,} B, its staging buffer {buffer:,} B")
    if int(figures["crossing_bytes"]) > int(figures["kv_bytes"]):
        notes.append("replicated states are sent once per copy: crossing bytes exceed the KV of the request")
    if case.options.replicated == "shares" or case.it.replicated == "shares":
        notes.append("receivers of a replicated state gather their parts inside their group: not in the transfer time")
    if not (case.it.per_rank if case.options.per_rank is None else case.options.per_rank):
        notes.append("one rank per stage moves everything: gathering to it and scattering from it are not counted")
    groups = float(value_of(figures["prefill_load"]))
    if groups >= 1:
        each = 1 / float(value_of(figures["prefill_s"]))
        notes.append(
            f"one prefill group computes {each:.3g} prompts/s at most: {case.rate:g}/s takes several, each with routes"
            " of its own; the links here carry the whole rate"
        )
    if not case.textbook:
        notes.append(f"times rest on {times_label(case.engine, case.cluster)}")
    if case.other is not case.cluster:
        notes.append("two clusters are joined by the NICs of both; the network between them is taken to be as wide")
    return tuple(notes)


__all__ = [
    "Flow",
    "Handoff",
    "HandoffOptions",
    "LinkLoad",
    "RankShare",
    "handoff",
    "handoff_figures",
    "prefill_seconds",
]
