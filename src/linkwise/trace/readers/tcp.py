"""What the kernel counts of TCP and of interfaces: /proc/net/{snmp,netstat,dev}, `nstat`, `netstat -s`, `ss -ti`,
`ip -s link`.

gloo, NCCL's sockets and the engines' own messages go over it: retransmissions there are a slow or lossy network.
"""

import re

from linkwise.trace.readers import shared
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.shared import Block, Found

FORMAT = "TCP and interface counters"

# Of the kernel's figures those that tell of loss, overload and the totals they are shares of, by its own names
# (Linux net/ipv4/proc.c, snmp4_tcp_list and snmp4_net_list).
_TCP = ("InSegs", "OutSegs", "RetransSegs", "InErrs", "OutRsts", "EstabResets", "AttemptFails")
_EXT = (
    "TCPTimeouts", "TCPLostRetransmit", "TCPFastRetrans", "TCPSlowStartRetrans", "TCPSynRetrans", "TCPRetransFail",
    "TCPSpuriousRTOs", "TCPLossProbes", "TCPSackRecovery", "TCPBacklogDrop", "TCPRcvQDrop", "TCPZeroWindowDrop",
    "TCPAbortOnTimeout", "TCPAbortOnData", "TCPAbortOnClose", "TCPAbortOnMemory", "TCPMemoryPressures", "ListenDrops",
    "ListenOverflows", "PruneCalled", "TCPOFOQueue",
)  # fmt: skip
# net-tools' sentences for the same (statistics.c); others it prints by name.
_SENTENCES = (
    (re.compile(r"^\s+(\d+) segments received$"), "in_segs"),
    (re.compile(r"^\s+(\d+) segments sent out$"), "out_segs"),
    (re.compile(r"^\s+(\d+) segments retrans?mitt?ed$"), "retrans_segs"),
    (re.compile(r"^\s+(\d+) bad segments received"), "in_errs"),
    (re.compile(r"^\s+(\d+) resets sent$"), "out_rsts"),
    (re.compile(r"^\s+(\d+) connection resets received$"), "estab_resets"),
    (re.compile(r"^\s+(\d+) failed connection attempts$"), "attempt_fails"),
    (re.compile(r"^\s+(\d+) fast retransmits$"), "fast_retrans"),
    (re.compile(r"^\s+(\d+) (?:other )?TCP timeouts$"), "timeouts"),
    (re.compile(r"^\s+(\d+) retransmits in slow start$"), "slow_start_retrans"),
)
_KINDS = {
    "proc": re.compile(r"^(?:Tcp|TcpExt): [A-Z]", re.MULTILINE),
    "nstat": re.compile(r"^(?:#kernel|(?:Tcp|TcpExt)[A-Z]\w+ +\d+ +[\d.]+$)", re.MULTILINE),
    "sentences": re.compile(r"^[ \t]{1,20}\d+ segments (?:received|sent out)$", re.MULTILINE),
    "ss": re.compile(r"^[ \t]{1,20}(?:[a-z_]{1,20} ){0,12}?(?:wscale:\S{1,20} )?rto:[\d.]{1,20} ", re.MULTILINE),
    "dev": re.compile(r"^Inter-\|[ \t]{1,20}Receive", re.MULTILINE),
    "link": re.compile(r"^[ \t]{1,20}RX:[ \t]{1,20}bytes[ \t]{1,20}packets", re.MULTILINE),
}
_COLUMNS = ("bytes", "packets", "errors", "dropped")
_SOCKET = re.compile(
    r"^(?:tcp\s+)?(?:([A-Z][A-Z0-9-]{2,12})\s+)?(\d{1,12})\s+(\d{1,12})\s+(\S{3,80}:\S{1,10})\s+(\S{3,80}:\S{1,10})(?:\s|$)(.{0,500})"
)


def fits(title: str, head: str) -> bool:
    """By the headings of the files and commands."""
    return any(pattern.search(head) for pattern in _KINDS.values())


def recognises(source: Source) -> bool:
    """By the headings of the files and commands."""
    return shared.recognised(source, fits)


def read(source: Source) -> Reading:
    """Never refuses what it recognises; lines that do not hold numbers are left out."""
    return shared.reading(source, facts)


def facts(block: Block, found: Found) -> None:
    """Counters `tcp.<name>`, of interfaces `net.<name>`; of connections `tcp.conn_retrans` with both ends."""
    rows = block.text
    text = "\n".join(line for _, line in rows)
    kinds = {name for name, pattern in _KINDS.items() if pattern.search(text)}
    if "proc" in kinds:
        _proc(rows, found)
    if kinds & {"nstat", "sentences"}:
        _listed(rows, found)
    if "ss" in kinds:
        _sockets(rows, found)
    if kinds & {"dev", "link"}:
        _interfaces(rows, found)


def _snake(name: str) -> str:
    short = name.removeprefix("TCP") or name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", short).lower()


def _count(found: Found, line: int, name: str, value: str, device: str = "") -> None:
    if re.fullmatch(r"\d{1,20}", value):
        found.add("counter", name, float(value), line=line, device=device)


def _proc(rows: list[tuple[int, str]], found: Found) -> None:
    """Pairs of lines: the names, then the values."""
    names: dict[str, list[str]] = {}
    for line, text in rows:
        group, _, rest = text.partition(":")
        if group not in {"Tcp", "TcpExt"}:
            continue
        words = rest[:65_536].split()
        if words and words[0][:1].isalpha():
            names[group] = words
            continue
        wanted = _TCP if group == "Tcp" else _EXT
        for name, value in zip(names.pop(group, []), words, strict=False):
            if name in wanted:
                _count(found, line, f"tcp.{_snake(name)}", value)


def _listed(rows: list[tuple[int, str]], found: Found) -> None:
    """`nstat`: name, value, rate; `netstat -s`: sentences, and `name: value` for newer figures."""
    for line, text in rows:
        row = text[:300]
        if named := re.match(r"(TcpExt|Tcp)([A-Z]\w{1,60})\s+(\d{1,20})\s+[\d.]+\s*$", row):
            if named[2] in (_TCP if named[1] == "Tcp" else _EXT):
                _count(found, line, f"tcp.{_snake(named[2])}", named[3])
        elif plain := re.match(r"\s+([A-Z]\w{1,60}): (\d{1,20})\s*$", row):
            if plain[1] in _EXT:
                _count(found, line, f"tcp.{_snake(plain[1])}", plain[2])
        else:
            for pattern, name in _SENTENCES:
                if sentence := pattern.match(row.rstrip()):
                    _count(found, line, f"tcp.{name}", sentence[1])


def _sockets(rows: list[tuple[int, str]], found: Found) -> None:
    """Each connection's line and the indented one below it. No `retrans:` there means that none happened."""
    ends: re.Match[str] | None = None
    for line, raw in rows:
        row = raw[: shared.MAX_LINE]
        if opened := _SOCKET.match(row):
            ends = opened
            row = opened[6]
        if ends is None or "rto:" not in row:
            continue
        figures = dict(re.findall(r"([a-z_]{2,20}):(\d[\d.,/]{0,24})", row))
        now, _, total = figures.get("retrans", "0/0").partition("/")
        pid = re.search(r"pid=(\d{1,10})", ends[6] + row)
        labels = {
            "local": ends[4], "peer": ends[5], "state": ends[1] or "", "recv_q": ends[2], "send_q": ends[3],
            "rtt_ms": figures.get("rtt", "").partition("/")[0], "cwnd": figures.get("cwnd", ""),
            "unacked": figures.get("unacked", ""), "lost": figures.get("lost", ""),
            "lastrcv_ms": figures.get("lastrcv", ""), "in_flight": now if now != "0" else "",
            "pid": pid[1] if pid else "",
        }  # fmt: skip
        if re.fullmatch(r"\d{1,20}", total):
            text = row if total != "0" else ""
            found.add("counter", "tcp.conn_retrans", float(total), line=line, labels=labels, text=text)
        ends = None


def _interfaces(rows: list[tuple[int, str]], found: Found) -> None:
    """/proc/net/dev has a row an interface; `ip -s link` names it, then RX and TX with the figures below each."""
    device, way = "", ""
    for line, text in rows:
        row = text[:1000]
        words = row.split()
        if opened := re.match(r"\d{1,6}: ([\w.@-]{1,40}?)(?:@[\w.-]+)?: <([A-Z_,-]{0,200})>", row):
            device, way = opened[1], ""
            flags = opened[2].split(",")
            if "NO-CARRIER" in flags and "UP" in flags:
                found.add("network", "net.link_down", line=line, device=device, text=row)
        elif flat := re.match(r"\s*([\w.-]{1,40}):\s*((?:\d{1,20}\s+){10,20}\d{1,20})\s*$", row):
            values = flat[2].split()
            for way_, start in (("rx", 0), ("tx", 8)):
                for column, value in zip(_COLUMNS, values[start : start + 4], strict=False):
                    _count(found, line, f"net.{way_}_{column}", value, flat[1])
        elif words and words[0] in {"RX:", "TX:"} and "bytes" in words:
            way = words[0][:2].lower()
        elif device and way:
            for column, value in zip(_COLUMNS, words, strict=False):
                _count(found, line, f"net.{way}_{column}", value, device)
            way = ""
