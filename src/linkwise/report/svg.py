"""Traffic as a picture: a standalone SVG. No script, no style sheet, nothing fetched; mid-tone colours that read on a
light and on a dark page. Text goes through the XML writer, which escapes it."""

import xml.etree.ElementTree as ET
from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.units import show_bytes, show_time
from linkwise.plan.traffic_types import Traffic
from linkwise.report.drawing import Box, Drawing, Port, Seat, drawing
from linkwise.report.traffic import WHOLE, alike, spans

NODES = 4  # boxes in a picture: beyond, a caption says what is left out
_SEAT, _ROW, _BAR = 124, 92, 22
_TEXT, _LINE, _CALM, _HOT = "#7a7a7a", "#8c8c8c", (120, 144, 156), (221, 75, 47)
_FONT = "ui-sans-serif, system-ui, sans-serif"


def svg(found: Traffic) -> str:
    """The drawing of one step's traffic as SVG text."""
    drawn = drawing(found)
    nodes = alike(drawn, whole=found.cluster.devices_per_node * len(drawn.boxes) <= WHOLE)
    shown = nodes[:NODES]
    plot = _Plot(found.cluster, drawn, [boxes[0] for boxes in shown])
    x = 20.0
    for boxes in shown:
        x = plot.node(x, boxes) + 24
    width = max(x, 900.0)
    bottom = plot.fabric(20, width - 20) if plot.has_nics else plot.floor
    plot.text(20, 26, f"{found.model}, {found.replicas} x {found.layout}: one {found.step} step", size=15)
    plot.text(20, 46, _caption(found, sum(map(len, nodes[NODES:]))), size=11)
    plot.root.set("viewBox", f"0 0 {width:.0f} {bottom + 20:.0f}")
    plot.root.set("width", f"{width:.0f}")
    plot.root.set("height", f"{bottom + 20:.0f}")
    return ET.tostring(plot.root, encoding="unicode", xml_declaration=False) + "\n"


def _caption(found: Traffic, hidden: int) -> str:
    if not found.links:
        return "nothing crosses a link"
    link = found.load(found.busiest_by_time)
    more = f"; {hidden} more nodes are not drawn" if hidden else ""
    return (
        f"Each pair of lines: bytes out of (left) and into (right) a device. Width and colour: time busy, at most"
        f" {show_time(link.busy_s)} on {link.name} ({found.calibration}){more}."
    )


class _Lane(NamedTuple):
    """Where a pair of lines runs: its middle, the device's end and the far end."""

    x: float
    near: float
    far: float


class _Plot:
    """Collects elements. Rows from top to bottom: host, island, devices, NICs, network."""

    def __init__(self, cluster: Cluster, drawn: Drawing, boxes: list[Box]) -> None:
        self.cluster, self.drawn = cluster, drawn
        self.root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONT, "role": "img"})
        kinds = {port.kind for box in boxes for seat in box.seats for port in seat.ports}
        self.top = 96.0
        self.rows = [kind for kind in ("host", "peers", "island") if kind in kinds]
        self.has_nics = "nic" in kinds
        self.seat_y = self.top + 8 + len(self.rows) * (_BAR + _ROW)
        self.nic_y = self.seat_y + 40 + _ROW
        self.floor = self.nic_y + _BAR + 14 if self.has_nics else self.seat_y + 40 + 14

    def node(self, x: float, boxes: list[Box]) -> float:
        """One node; returns its right edge."""
        box = boxes[0]
        seats = [seat for seat in box.seats if seat.rank or seat.ports]
        right = x + len(seats) * _SEAT + 16
        words = f"node {box.node}" + (f"; nodes {spans([b.node for b in boxes])} alike" if len(boxes) > 1 else "")
        self.box(x, self.top - 30, right - x, self.floor - self.top + 30, words, faint=True)
        middles = {seat.device: x + 8 + _SEAT * (place + 0.5) for place, seat in enumerate(seats)}
        for row, kind in enumerate(self.rows):
            self.bar(seats, middles, kind, self.top + row * (_BAR + _ROW))
        self.nics(box, seats, middles)
        for seat in seats:
            self.seat(seat, middles[seat.device])
        return right

    def bar(self, seats: list[Seat], middles: dict[int, float], kind: str, y: float) -> None:
        """What devices share, as a bar over those that use it, and the lines down to them."""
        for label, users in self.users(seats, kind).items():
            xs = [middles[seat.device] for seat, _ in users]
            # Two rows: lines of the upper one pass beside the lower one's, with their bytes above it.
            aside = 0.0 if len(self.rows) == 1 else -16.0 if self.rows[-1] == kind else 46.0
            for (_, port), x in zip(users, xs, strict=True):
                self.pair(_Lane(x + aside, self.seat_y, y + _BAR), port, at=y + _BAR + _ROW / 2)
            words = "direct links" if kind == "peers" else label
            self.box(min(xs) - 54, y, max(xs) - min(xs) + 108, _BAR, words)

    def nics(self, box: Box, seats: list[Seat], middles: dict[int, float]) -> None:
        shared = {port.label.split(" ")[0]: port for port in box.nics}
        for label, users in self.users(seats, "nic").items():
            xs = [middles[seat.device] for seat, _ in users]
            nic = label.split(" ")[0]
            for (_, port), x in zip(users, xs, strict=True):
                self.pair(_Lane(x, self.seat_y + 34, self.nic_y), port)
            middle = sum(xs) / len(xs)
            beyond = shared.get(nic, users[0][1])
            self.pair(_Lane(middle, self.nic_y + _BAR, self.floor + 56), beyond, note=beyond.label.partition(" ")[2])
            self.box(min(xs) - 44, self.nic_y, max(xs) - min(xs) + 88, _BAR, nic)

    def users(self, seats: list[Seat], kind: str) -> dict[str, list[tuple[Seat, Port]]]:
        """Seats by what they are linked to: an island (its peers where there is no switch), a host, a NIC."""
        found: dict[str, list[tuple[Seat, Port]]] = {}
        for seat in seats:
            for port in seat.ports:
                if port.kind == kind:
                    key = f"{self.cluster.island_of(seat.device)}" if kind == "peers" else port.label
                    found.setdefault(key, []).append((seat, port))
        return found

    def seat(self, seat: Seat, x: float) -> None:
        hot = any(self.drawn.by_time in port.ends for port in seat.ports)
        self.box(x - 52, self.seat_y, 104, 34, "", hot=hot)
        self.text(x, self.seat_y + 14, seat.rank or "free", size=11, anchor="middle")
        self.text(x, self.seat_y + 28, f"device {seat.device}" + (" · busiest" if hot else ""), size=9, anchor="middle")

    def fabric(self, x: float, right: float) -> float:
        """The network under all nodes; returns its lower edge."""
        y = self.floor + 56
        self.box(x, y, right - x, _BAR, "network between nodes")
        lines = sorted(self.drawn.core, key=lambda port: -port.share)[:8]
        for number, port in enumerate(lines):
            words = f"{port.label}: {show_bytes(port.out_bytes)} up, {show_bytes(port.in_bytes)} down"
            self.text(x + 8, y + _BAR + 16 + 14 * number, words, size=10, fill=_colour(port.share))
        return y + _BAR + 14 * len(lines) + (6 if lines else 0)

    def pair(self, lane: _Lane, port: Port, note: str = "", at: float | None = None) -> None:
        """Both directions, with their bytes beside them (at a height, or in the middle); silent ones stay thin."""
        group = ET.SubElement(self.root, "g")
        ET.SubElement(group, "title").text = _xml(
            f"{' '.join(sorted(port.ends))}: out {show_bytes(port.out_bytes)}, in {show_bytes(port.in_bytes)},"
            f" busy {port.share:.0%} of the busiest"
        )
        middle = (lane.near + lane.far) / 2 if at is None else at
        for side, count, start, end in (
            (-1, port.out_bytes, lane.near, lane.far),
            (1, port.in_bytes, lane.far, lane.near),
        ):
            self.arrow(group, lane.x + side * 5, start, end, port.share if count else 0.0)
            anchor = "end" if side < 0 else "start"
            self.text(lane.x + side * 11, middle, show_bytes(count), anchor=anchor, size=9, parent=group)
        if note:
            self.text(lane.x + 11, middle + 12, note, size=9, parent=group)

    def arrow(self, parent: ET.Element, x: float, start: float, end: float, share: float) -> None:
        colour, step = _colour(share), 6 if end > start else -6
        line = {"x1": f"{x:g}", "y1": f"{start:g}", "x2": f"{x:g}", "y2": f"{end - step:g}"}
        style = {"stroke": colour, "stroke-width": f"{1 + 4 * share:.2f}"}
        ET.SubElement(parent, "line", line | style)
        points = f"{x - 4:g},{end - step:g} {x + 4:g},{end - step:g} {x:g},{end:g}"
        ET.SubElement(parent, "polygon", {"points": points, "fill": colour})

    def box(
        self, x: float, y: float, width: float, height: float, words: str, *, faint: bool = False, hot: bool = False
    ) -> None:
        stroke = _colour(1.0) if hot else _LINE
        place = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}", "rx": "4"}
        style = {"fill": _LINE, "fill-opacity": "0.05" if faint else "0.2", "stroke": stroke}
        ET.SubElement(self.root, "rect", place | style | {"stroke-width": "2" if hot else "1"})
        if words:
            if faint:
                self.text(x + 8, y + 16, words, size=11)
            else:
                self.text(x + width / 2, y + height / 2 + 4, words, size=11, anchor="middle")

    def text(
        self, x: float, y: float, words: str, *, size: int, anchor: str = "start", fill: str = _TEXT,
        parent: ET.Element | None = None,
    ) -> None:  # fmt: skip
        place = {"x": f"{x:g}", "y": f"{y:g}", "font-size": f"{size}", "text-anchor": anchor, "fill": fill}
        ET.SubElement(self.root if parent is None else parent, "text", place).text = _xml(words)


def _colour(share: float) -> str:
    mixed = (round(calm + (hot - calm) * share) for calm, hot in zip(_CALM, _HOT, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _xml(words: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in words if c >= " " and c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff")
