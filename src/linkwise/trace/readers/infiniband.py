"""InfiniBand and RoCE ports: sysfs files by their path, and the text of ibstat, ibstatus, ibv_devinfo, perfquery,
`rdma statistic`, `rdma link` and `ethtool -S`.

A figure of sysfs has no name but its path: .../<device>/ports/<n>/counters/<name>.
"""

import re
from collections.abc import Callable
from itertools import pairwise

from linkwise.core.errors import InputError
from linkwise.trace.readers import shared
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.shared import Block, Found, number

FORMAT = "InfiniBand counters"

_COUNTER = re.compile(r"(?:^|/)([\w.-]{1,64})/ports/(\d{1,4})/(?:hw_)?counters/(\w{1,80})$")
_PORT = re.compile(r"(?:^|/)([\w.-]{1,64})/ports/(\d{1,4})/(state|phys_state|rate|link_layer|lid|sm_lid)$")
_DEVICE = re.compile(
    r"(?:^|/)((?:mlx|bnxt_re|irdma|roce|ibp|ibs|rdmap|efa|hfi|qedr|ionic|erdma|hns)[\w.-]{0,64}|"
    r"(?<=/infiniband/)[\w.-]{1,64})/(board_id|fw_ver|hca_type|hw_rev|node_desc|node_guid|node_type|sys_image_guid)$"
)
# Bits of the classic counters of a port (Linux drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR): full, they stand still.
# 32 bits, as data and packets have on old devices, are tested for every name.
_BITS = {
    "symbol_error": 16, "link_error_recovery": 8, "link_downed": 8, "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16, "port_rcv_switch_relay_errors": 16, "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8, "port_rcv_constraint_errors": 8, "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4, "VL15_dropped": 16,
}  # fmt: skip
_WORDS = ("port_xmit_data", "port_rcv_data")  # counted in words of 4 bytes (same file; IBTA PortCounters)
# perfquery's names of the same figures (linux-rdma/rdma-core infiniband-diags/perfquery.c).
_PERFQUERY = {
    "PortXmitData": "port_xmit_data", "PortRcvData": "port_rcv_data", "PortXmitPkts": "port_xmit_packets",
    "PortRcvPkts": "port_rcv_packets", "PortUnicastXmitPkts": "unicast_xmit_packets",
    "PortUnicastRcvPkts": "unicast_rcv_packets", "PortMulticastXmitPkts": "multicast_xmit_packets",
    "PortMulticastRcvPkts": "multicast_rcv_packets", "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery", "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors", "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors", "PortXmitDiscards": "port_xmit_discards",
    "PortXmitConstraintErrors": "port_xmit_constraint_errors", "PortXmitWait": "port_xmit_wait",
    "PortRcvConstraintErrors": "port_rcv_constraint_errors", "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors", "VL15Dropped": "VL15_dropped",
}  # fmt: skip
_TEXTS: dict[str, re.Pattern[str]] = {
    "ibstat": re.compile(r"^CA '[\w.-]{1,64}'\s*$", re.MULTILINE),
    "ibstatus": re.compile(r"^Infiniband device '[\w.-]{1,64}' port \d+ status:", re.MULTILINE),
    "ibv_devinfo": re.compile(r"^hca_id:\s", re.MULTILINE),
    "perfquery": re.compile(r"^# Port (?:extended )?counters: Lid \d+ port \d+", re.MULTILINE),
    "rdma": re.compile(r"^link [\w.-]{1,64}/\d+ (?:state |\w+ \d)", re.MULTILINE),
    "ethtool": re.compile(r"^NIC statistics:\s*$", re.MULTILINE),
}
# Of a thousand figures of a NIC those that tell of loss, congestion and errors, and the totals they are shares of
# (mlx5: Linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst). Not those of single rings.
_ETHTOOL = re.compile(
    r"(?!(?:rx|tx|ch)_?\d)\w*(?:discard|drop|err|pause|cnp|ecn|ce_mark|out_of|buf|timeout|crc|symbol|link_down|wait|"
    r"retrans|nak|congest|(?:packets|bytes)(?:_phy)?$)\w*"
)


def fits(title: str, head: str) -> bool:
    """A sysfs file of a port or a device, or the output of one of the commands above."""
    if _COUNTER.search(title) or _PORT.search(title) or _DEVICE.search(title):
        return len(head) <= 4096 and head.strip().count("\n") == 0
    return any(pattern.search(head) for pattern in _TEXTS.values())


def recognises(source: Source) -> bool:
    """By the path of a sysfs file, or by a command's own heading."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Raises InputError for a counter that is no whole number."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Counters `ib.<sysfs name>` (data in bytes) and `net.<ethtool name>`, the state of ports, what a NIC is."""
    rows = block.text
    if any(pattern.search(block.title) for pattern in (_COUNTER, _PORT, _DEVICE)):
        _sysfs(block, next(((n, line.strip()) for n, line in rows if line.strip()), (0, "")), found)
        return
    text = "\n".join(line for _, line in rows)
    for name, pattern in _TEXTS.items():
        if pattern.search(text):
            _READ[name](block.title, rows, found)


def _sysfs(block: Block, row: tuple[int, str], found: Found) -> None:
    line, value = row
    if counter := _COUNTER.search(block.title):
        if not re.fullmatch(r"\d{1,20}", value):
            raise InputError(
                f"{value[:80]!r} as the counter {counter[3]}",
                where=f"{block.where}: line {max(line, 1)}",
                expected="a whole number",
            )
        if counter[3] == "lifespan":  # how long the card's figures are kept before they are read anew, in ms
            found.add("setting", "ib.lifespan_ms", float(value), line=line, device=f"{counter[1]}:{counter[2]}")
            return
        _counter(found, line, counter[3], int(value), f"{counter[1]}:{counter[2]}")
    elif port := _PORT.search(block.title):
        _port(found, line, port[3], value, f"{port[1]}:{port[2]}")
    elif device := _DEVICE.search(block.title):
        found.add("place", "nic", line=line, device=device[1], labels={device[2]: value})


def _counter(found: Found, line: int, name: str, value: int, device: str) -> None:
    full = value in {2**32 - 1, 2 ** _BITS.get(name, 64) - 1}
    unit = ""
    if name in _WORDS:
        name, value, unit = f"{name}_bytes", value * 4, "bytes"
    labels = {"saturated": "1" if full else ""}
    found.add("counter", f"ib.{name}", value, line=line, device=device, labels=labels, unit=unit)


def _port(found: Found, line: int, field: str, value: str, device: str) -> None:
    """One figure of a port in any command's spelling: `4: ACTIVE`, `PORT_ACTIVE (4)`, `400 Gb/sec (4X NDR)`."""
    word = re.sub(r"^\d+: |^PORT_|\s*\(\d+\)$", "", value[:200]).strip()
    if field in {"state", "phys_state"}:
        good = word.upper().replace("_", "") == ("ACTIVE" if field == "state" else "LINKUP")
        found.add("gauge", f"ib.port_{field}", good, line=line, device=device, labels={"state": word})
        if not good:
            found.add("network", "ib.port_down", line=line, device=device, labels={field: word}, text=value)
    elif field == "rate":
        speed = re.match(r"([\d.]{1,10})(?: Gb/sec)?(?: \((\d+X)? ?(\w*)\))?", value[:200])
        if speed and (gbps := number(speed[1])):
            labels = {"lanes": speed[2] or "", "speed": speed[3] or ""}
            found.add("gauge", "ib.rate_gbps", gbps, line=line, device=device, labels=labels, unit="Gb/s")
    elif field == "link_layer":
        found.add("place", "port", line=line, device=device, labels={"link_layer": word})


def _ibstat(title: str, rows: list[tuple[int, str]], found: Found) -> None:
    device, port = "", "1"
    fields = {"State": "state", "Physical state": "phys_state", "Rate": "rate", "Link layer": "link_layer"}
    about = {"CA type": "hca_type", "Firmware version": "fw_ver", "Node GUID": "node_guid"}
    for line, text in rows:
        key, _, value = (part.strip() for part in text.partition(":"))
        if named := re.match(r"CA '([\w.-]{1,64})'", text):
            device = named[1]
        elif opened := re.match(r"\s*Port (\d{1,4}):", text):
            port = opened[1]
        elif device and key in fields and value:
            _port(found, line, fields[key], value, f"{device}:{port}")
        elif device and key in about and value:
            found.add("place", "nic", line=line, device=device, labels={about[key]: value})


def _ibstatus(title: str, rows: list[tuple[int, str]], found: Found) -> None:
    device = ""
    fields = {"state": "state", "phys state": "phys_state", "rate": "rate", "link_layer": "link_layer"}
    for line, text in rows:
        key, _, value = (part.strip() for part in text.partition(":"))
        if named := re.match(r"Infiniband device '([\w.-]{1,64})' port (\d{1,4}) status:", text):
            device = f"{named[1]}:{named[2]}"
        elif device and key in fields and value:
            _port(found, line, fields[key], value, device)


def _ibv_devinfo(title: str, rows: list[tuple[int, str]], found: Found) -> None:
    device, port = "", "1"
    for line, text in rows:
        key, _, value = (part.strip() for part in text.partition(":"))
        if key == "hca_id":
            device = value[:64]
        elif key == "port" and value.isdecimal():
            port = value[:4]
        elif device and key in {"state", "phys_state", "link_layer"} and value:
            _port(found, line, key, value, f"{device}:{port}")
        elif device and key in {"fw_ver", "board_id", "hca_type", "node_guid"} and value:
            found.add("place", "nic", line=line, device=device, labels={key: value})


def _perfquery(title: str, rows: list[tuple[int, str]], found: Found) -> None:
    device = ""
    for line, text in rows:
        if named := re.match(r"# Port (?:extended )?counters: Lid (\d{1,6}) port (\d{1,4})", text):
            device = f"lid{named[1]}:{named[2]}"  # it names no device; a path like perfquery-mlx5_0.txt may
            if own := re.search(r"(mlx\d_\w{1,16}|bnxt_re\d+)", title.rpartition("/")[2]):
                device = f"{own[1]}:{named[2]}"
            continue
        figure = re.match(r"(\w{1,64}):\.*(0x[0-9a-fA-F]{1,16}|\d{1,20})\s*$", text)
        if figure and device and figure[1] in _PERFQUERY:
            value = int(figure[2], 16 if "x" in figure[2] else 10)
            _counter(found, line, _PERFQUERY[figure[1]], value, device)


def _rdma(title: str, rows: list[tuple[int, str]], found: Found) -> None:
    for line, text in rows:
        named = re.match(r"link ([\w.-]{1,64})/(\d{1,4}) (.{0,20000})", text)
        if not named:
            continue
        words = named[3].split()
        device = f"{named[1]}:{named[2]}"
        for key, value in pairwise(words):
            if key in {"state", "physical_state"}:
                _port(found, line, key.replace("physical", "phys"), value, device)
            elif re.fullmatch(r"\d{1,20}", value) and re.fullmatch(r"[a-z]\w{2,79}", key) and not key.endswith("lid"):
                _counter(found, line, key, int(value), device)


def _ethtool(title: str, rows: list[tuple[int, str]], found: Found) -> None:
    name = re.search(r"-S ([\w.-]{1,32})|ethtool[-_.]?(?:S[-_.])?([\w-]{1,32})", title.rpartition("/")[2])
    device = (name[1] or name[2]) if name else ""
    for line, text in rows:
        figure = re.match(r"\s+(?:\[\d+\]: )?([\w.]{1,80}): (\d{1,20})\s*$", text)
        if figure and _ETHTOOL.fullmatch(figure[1]):
            found.add("counter", f"net.{figure[1]}", float(figure[2]), line=line, device=device)


_READ: dict[str, Callable[[str, list[tuple[int, str]], Found], None]] = {
    "ibstat": _ibstat,
    "ibstatus": _ibstatus,
    "ibv_devinfo": _ibv_devinfo,
    "perfquery": _perfquery,
    "rdma": _rdma,
    "ethtool": _ethtool,
}
