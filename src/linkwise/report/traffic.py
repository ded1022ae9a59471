"""The screens of `traffic`: ranks and links in one picture, the busiest links, bytes by tier, the time of every op."""

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from linkwise.core.units import GB, show_bytes, show_count, show_time
from linkwise.plan.traffic_types import LinkLoad, OpTraffic, Traffic
from linkwise.report.drawing import KINDS, Box, Drawing, Port, Seat, drawing
from linkwise.report.text import LINE_WIDTH, cluster_line, table, width_of

if TYPE_CHECKING:
    from rich.table import Table

WHOLE = 16  # devices that are all drawn; beyond, nodes that carry the same share a box, and so many boxes are drawn
BOXES = 3
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_FEW = 8


def screen(found: Traffic, *, every_link: bool = False, width: int | None = None) -> "list[str | Table]":
    """The picture, then the tables. every_link: all links that carry bytes, not only the busiest."""
    return [*summary(found, width), *_tables(found, every_link), *(f"note: {text}" for text in found.notes)]


def summary(found: Traffic, width: int | None = None) -> list[str]:
    """What runs where, the busiest link, and ranks and links in one picture.

    width: columns there are; None = those of standard output.
    """
    room = width_of(sys.stdout) if width is None else width
    return [f"{found.model}, {_copies(found)}, {cluster_line(found.cluster)}", *_busiest(found), *diagram(found, room)]


def _copies(found: Traffic) -> str:
    if found.replicas > 1:
        return f"{found.replicas} replicas of {found.layout}"
    return f"{found.layout}" + (f", replica {found.first_replica}" if found.first_replica else "")


def _busiest(found: Traffic) -> list[str]:
    if not found.links:
        return [f"{found.step:<10} nothing crosses a link"]
    link = found.load(found.busiest_by_time)
    alike = sum(abs(x.busy_s - link.busy_s) <= 1e-9 * link.busy_s for x in found.links) - 1
    words = f"{link.name} is busy {show_time(link.busy_s)} of the {found.step} step, {show_bytes(link.bytes)} over it"
    lines = [f"busiest    {words}" + _others(alike)]
    if found.busiest_by_bytes != found.busiest_by_time:
        other = found.load(found.busiest_by_bytes)
        lines.append(
            f"most bytes {other.name}: {show_bytes(other.bytes)}, but busy only {show_time(other.busy_s)} on a"
            f" {other.effective_Bps / GB:.0f} GB/s link"
        )
    return lines


def _others(alike: int) -> str:
    return f"; {show_count(alike)} other{'s' if alike > 1 else ''} as long" if alike else ""


def diagram(found: Traffic, width: int = LINE_WIDTH) -> list[str]:
    """Nodes as boxes, a line a device: its rank, then each link with bytes out and in and a bar of how busy it is.

    Where that is wider than `width`, marks and bars get shorter, then each link of a device has a line of its own.
    """
    if not found.links:
        return []
    drawn = drawing(found)
    busy = found.load(found.busiest_by_time).busy_s
    lines = [
        "",
        f"bytes of one {found.step} step: → out of the device, ← into it; bar: time busy, full = {show_time(busy)}",
    ]
    nodes = alike(drawn, whole=found.cluster.devices_per_node * len(drawn.boxes) <= WHOLE)
    pictures = [[line for boxes in nodes[:BOXES] for line in _box(boxes, drawn, style)] for style in _STYLES]
    lines += next((one for one in pictures if max(map(len, one)) <= width), pictures[-1])
    lines += [_summary(boxes) for boxes in nodes[BOXES : BOXES + _FEW]]
    if len(nodes) > BOXES + _FEW:
        lines.append(f"... {sum(map(len, nodes[BOXES + _FEW :]))} more nodes (--all lists every link)")
    if drawn.core:
        lines += _core(drawn)
    return lines


def alike(drawn: Drawing, *, whole: bool) -> list[list[Box]]:
    """Nodes to draw, each with those that carry the same; the busiest node's first when they do not all fit."""
    if whole:
        return [[box] for box in drawn.boxes]
    found: dict[object, list[Box]] = {}
    for box in drawn.boxes:
        found.setdefault(box.loads, []).append(box)
    return sorted(found.values(), key=lambda boxes: not any(drawn.by_time in p.ends for b in boxes for p in b.ports))


class _Style(NamedTuple):
    """How wide a picture is. bar: of a full bar. long: marks in full words, ranks in a wide column. stacked: a line a
    link, not a line a device."""

    bar: int = 10
    long: bool = True
    stacked: bool = False


_STYLES = (
    _Style(), _Style(long=False), _Style(bar=5, long=False), _Style(long=False, stacked=True),
    _Style(bar=5, long=False, stacked=True), _Style(bar=2, long=False, stacked=True),
)  # fmt: skip


def _widths(seats: Iterable[Seat], style: _Style) -> dict[str, int]:
    """Width of the label of each column that some device has."""
    widths: dict[str, int] = {}
    for seat in seats:
        for column, port in _columns(seat.ports):
            widths[column] = max(widths.get(column, 0), len(port.label))
    if style.stacked:
        return dict.fromkeys(widths, max(widths.values(), default=0))
    return {column: widths[column] for column in sorted(widths)}


def _columns(ports: tuple[Port, ...]) -> Iterable[tuple[str, Port]]:
    """Ports with their column: the kind, numbered where a device has several."""
    for kind, same in groupby(ports, key=lambda p: p.kind):
        for number, port in enumerate(same):
            yield f"{KINDS.index(kind)} {number}", port


def _summary(same: list[Box]) -> str:
    """A node that is not drawn, in a line: its busiest port."""
    port = max(same[0].ports, key=lambda p: p.share)
    ranks = [seat.rank for seat in same[0].seats if seat.rank]
    who = f"{ranks[0]} to {ranks[-1].removeprefix('rank ')}" if len(ranks) > 1 else "".join(ranks) or "no rank"
    return f"{_called(same)}: {who}; busiest {_cell(port, 0)}".rstrip()


def _called(same: list[Box]) -> str:
    numbers = [box.node for box in same]
    return f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {spans(numbers)} alike"


def _box(same: list[Box], drawn: Drawing, style: _Style) -> list[str]:
    box = same[0]
    widths = _widths((seat for one in drawn.boxes for seat in one.seats), style)
    lines = [line for seat in box.seats if seat.rank or seat.ports for line in _seat(seat, widths, drawn, style)]
    lines += [("", "")] * bool(box.nics)
    margin, label = " " * len(_who("", "", style)), max([12, *(len(p.label) for p in box.nics)])
    lines += [(f"{margin}{_cell(p, label, style.bar)}", _mark((p,), drawn, style)) for p in box.nics]
    title = f" node {box.node} " + (f"({_called(same)}) " if len(same) > 1 else "")
    free = sum(1 for seat in box.seats if not seat.rank and not seat.ports)
    if free:
        title += f"({free} devices free) "
    width = max(len(title) + 2, *(len(text) for text, _ in lines)) if lines else len(title) + 2
    top = "┌─" + title + "─" * (width - len(title)) + "─┐"
    return [top, *(f"│ {text:<{width}} │{mark}" for text, mark in lines), "└" + "─" * (width + 2) + "┘"]


def _who(rank: str, device: str, style: _Style) -> str:
    return f"{rank:<10} {device:<5}  " if style.long else f"{rank:<8} {device:<4} "


def _seat(seat: Seat, widths: dict[str, int], drawn: Drawing, style: _Style) -> list[tuple[str, str]]:
    """Lines of a device, each with its mark."""
    cells = dict(_columns(seat.ports))
    who = _who(seat.rank or "free", f"d{seat.device}", style)
    if not style.stacked:
        blank = len(_cell(Port("", "", 0, 0, 0, frozenset()), 0, style.bar))
        shown = [_cell(cells[c], w, style.bar) if c in cells else " " * (w + blank) for c, w in widths.items()]
        return [((who + ("   " if style.long else "  ").join(shown)).rstrip(), _mark(seat.ports, drawn, style))]
    ports = [(column, cells[column]) for column in sorted(cells)]
    if not ports:
        return [(who.rstrip(), "")]
    return [
        ((" " * len(who) if at else who) + _cell(port, widths[column], style.bar), _mark((port,), drawn, style))
        for at, (column, port) in enumerate(ports)
    ]


def _cell(port: Port, width: int, length: int = 10) -> str:
    amounts = f"→ {show_bytes(port.out_bytes):>8}  ← {show_bytes(port.in_bytes):>8}"
    return f"{port.label:<{width}}  {amounts}  {bar(port.share, length)}"


def bar(share: float, length: int = 10) -> str:
    """A share of the full bar; anything above nothing shows."""
    eighths = max(round(share * length * 8), 1 if share > 0 else 0)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(length)


def _mark(ports: tuple[Port, ...], drawn: Drawing, style: _Style) -> str:
    words = [
        word
        for word, name in (("busiest", drawn.by_time), ("most bytes", drawn.by_bytes))
        if any(name in p.ends for p in ports)
    ]
    if not words:
        return ""
    return f" ◀ {', '.join(words) if style.long else words[0]}"


def _core(drawn: Drawing) -> list[str]:
    lines = ["between switches"]
    shown = sorted(drawn.core, key=lambda p: -p.share)[: 2 * _FEW]
    keep = [p for p in drawn.core if p in shown]
    lines += [f"  {_cell(p, 12)}{_mark((p,), drawn, _STYLES[0])}".rstrip() for p in keep]
    hidden = len(drawn.core) - len(keep)
    return lines + ([f"  ... {hidden} more, none busier"] if hidden else [])


def spans(numbers: list[int]) -> str:
    """0-3, 5"""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)


def _tables(found: Traffic, every_link: bool) -> "list[str | Table]":
    if not found.links:
        return []
    tiers = [
        [t.tier, t.links, show_bytes(t.bytes), show_bytes(t.sent_bytes), t.busiest, show_time(t.busy_s)]
        for t in found.tiers
    ]
    ordered = sorted(found.links, key=lambda x: (-float(f"{x.busy_s:.9g}"), -x.bytes))
    shown = ordered if every_link else _different(ordered)[:_FEW]
    title = "every link" if every_link else "busiest links (--all: every one; of links that carry the same, the first)"
    blocks: list[str | Table] = [
        "",
        table(
            ["tier", ">links", ">bytes on them", ">sent by busiest device", "busiest", ">busy"], tiers, title="by tier"
        ),
        "",
        table(
            ["link", "kind", ">usable", ">bytes", ">busy", "carries"],
            [_link_row(x) for x in shown],
            title=f"{title}, {found.calibration}",
        ),
        "",
        _op_table(found),
    ]
    return blocks


def _different(links: list[LinkLoad]) -> list[LinkLoad]:
    """The first of the links that carry the same, of the same kind."""
    seen: dict[object, LinkLoad] = {}
    for link in links:
        parts = tuple((p.role, p.group, float(f"{p.bytes:.9g}")) for p in link.parts)
        seen.setdefault((link.kind, link.effective_Bps, parts), link)
    return list(seen.values())


def _link_row(link: LinkLoad) -> list[str]:
    parts = ", ".join(f"{p.role} ({p.group}) {show_bytes(p.bytes)}" for p in link.parts[:4])
    more = f", {len(link.parts) - 4} more" if len(link.parts) > 4 else ""
    return [
        link.name,
        link.kind,
        f"{link.effective_Bps / GB:.4g} GB/s",
        show_bytes(link.bytes),
        show_time(link.busy_s),
        parts + more,
    ]


def _op_table(found: Traffic) -> "Table":
    heads = ["role", "kind", "groups", "stage", "algorithm", ">calls", ">S", ">latency", ">on links", ">alone", ">step"]
    rows = [
        [
            op.role,
            op.kind,
            f"{op.groups} x {op.group} {op.size}",
            stages,
            op.algorithm,
            show_count(op.calls),
            show_bytes(op.S_bytes),
            show_time(op.latency_s),
            show_time(op.transfer_s),
            show_time(op.alone_s),
            show_time(op.step_s),
        ]
        for op, stages in _by_stage(found.ops)
    ]
    return table(
        [*heads, "slowest link"],
        [[*row, op.link] for row, (op, _) in zip(rows, _by_stage(found.ops), strict=True)],
        title="one call of each op with all its groups at once; alone: one group only",
    )


def _by_stage(ops: tuple[OpTraffic, ...]) -> list[tuple[OpTraffic, str]]:
    """Ops with the stages that make the same call: one line for all of them, the longest in front."""
    found: dict[object, list[OpTraffic]] = {}
    for op in ops:
        found.setdefault((op.role, op.kind, op.group, op.S_bytes, op.calls, op.algorithm), []).append(op)
    return [(max(same, key=lambda o: o.step_s), spans([o.stage for o in same])) for same in found.values()]
