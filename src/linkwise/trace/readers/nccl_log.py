"""Logs of NCCL_DEBUG=INFO: which rank runs where, how it reaches the others, what it called, what failed.

One file may hold many ranks, with or without a launcher's marks. Calls (NCCL_DEBUG_SUBSYS=COLL) are logged when they
are enqueued: of their end the log says nothing.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from linkwise.core.errors import InputError
from linkwise.trace.facts import Fact, Kind, quoted
from linkwise.trace.readers import nccl_lines as lines
from linkwise.trace.readers.asked import WORDS as ASKED
from linkwise.trace.readers.asked import unasked
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.nccl_ranks import Place, Process, Processes, Ranks
from linkwise.trace.readers.sieve import Sieve
from linkwise.trace.readers.watchdog import WORDS, Watchdog

FORMAT = "NCCL log"
MAX_FACTS = 50_000
MAX_FRONTS = 4_096

_OURS = re.compile(
    r" NCCL (?:INFO|WARN|TRACE) |Watchdog caught collective|last enqueued (?:NCCL )?work: |"
    r"ProcessGroup\w{1,8}(?:'s)? watchdog (?:got stuck|hang)|ProcessGroup.{0,80} Heartbeat monitor timed out!|"
    r"ProcessGroup.{0,200} attempting to dump debug info, due to "
)
_IB_NICS = re.compile(r"\[\d{1,3}\](\w{1,60}:\d{1,3})/(\w{1,20})")
_SOCKETS = re.compile(r"(?:\[\d{1,3}\]|OOB |Using )([A-Za-z][\w.-]{0,40}):([0-9a-fA-F.:%\w]{2,60})<\d{1,5}>")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to (\S.{0,120})")
_EVENT = re.compile(
    r"NET/IB\S* ?: (?:(\w{1,60}:\d{1,3}) )?(?:Got )?(?:non-fatal |fatal )?async (?:fatal )?event"
    r"(?: on \S+ \(\w+\))? ?: (.{1,80})"
)
_HARMLESS = ("port active", "client reregistration", "gid table change", "lid change", "sm change", "pkey change")
_NVLS = re.compile(r"Connected NVLS tree|(?<!\d)([1-9]\d{0,3}) nvls channels|^NVLS comm ")
_CLOSED = re.compile(
    r"onnection (?:closed|reset) by |Connection refused|No route to host|Timeout waiting|failed : Broken pipe|"
    r"remote process exited"
)
_PEER = re.compile(r"(?:peer|from|to) (?P<peer>[\w.:%-]{1,250}?)(?:\.[a-z][\w.-]{0,200})?<\d{1,5}>")
_REASON = re.compile(r"Cuda failure (?:\d{1,4} )?'(?P<reason>[^']{1,120})'")
_SHM = re.compile(r"failed to extend .{1,200} to \d+ bytes|No space left on device")
# What NCCL says when it gives up; other warnings are of settings, plugins and things that are slow.
_FAILED = re.compile(
    r"unhandled |Failed to execute operation|Could not receive type|Socket recv failed|Error encountered progressing|"
    r"Call to (?:recv|send|connect|accept)\b.{0,200}failed|Failed to CUDA|Aborted? |internal error"
)


_SIEVE = Sieve(" NCCL ", *WORDS, *ASKED)


class _Told(NamedTuple):
    """A fact of a process. peer: a rank of its communicator, -1 = none."""

    fact: Fact
    process: Process
    place: Place | None
    peer: int


def recognises(source: Source) -> bool:
    """A line of NCCL or of PyTorch's watchdog, in whatever log."""
    return any(_OURS.search(line[: lines.MAX_LINE]) for _, line in unasked(enumerate(source.text.splitlines())))


def read(source: Source) -> Reading:
    """One log. Raises InputError for what is no text of bounded lines, and for a log that says nothing."""
    log = Log(source.where, source.date_ns)
    for number, line in unasked(source.sifted(_SIEVE)):
        log.take(number, line)
    found = log.reading()
    if not found.facts and not found.ranks:
        raise InputError("no line of it is understood", where=source.where, expected="NCCL_DEBUG=INFO output")
    return found


class Log:
    """What lines of NCCL and of PyTorch's watchdog say together. Readers of other logs may hand theirs over.

    date_ns: of the file, for the year that lines of the watchdog leave out.
    """

    def __init__(self, where: str, date_ns: int = 0) -> None:
        self._where = where
        self._clock = Clock(date_ns)
        self._watchdog = Watchdog(where)
        self._processes = Processes()
        self._fronts: dict[str, Process] = {}  # by what stands before NCCL INFO, without a time the same on all lines
        self._ways: dict[tuple[int, int, str, int], list[int]] = {}  # place of the fact, number of its channels
        self._told: list[_Told] = []
        self._seen: set[tuple[str, ...]] = set()
        self._addresses: dict[str, str] = {}  # host by address
        self._lost = 0

    def take(self, number: int, line: str) -> bool:
        """One line; whether it was one of NCCL's or of the watchdog's."""
        if "chdog" in line or "nqueued" in line or "Heartbeat mon" in line or "ump debug info" in line:
            # PyTorch writes month and day as one number: E603 is the third of June.
            front = re.sub(r"\[([IWEF])(\d{3}) ", r"[\g<1>0\2 ", line[:80])
            if self._watchdog.take(number, line, self._clock(front)):
                return True
        front, info, text = line[: lines.MAX_LINE].partition(" NCCL INFO ")
        process, warn = self._fronts.get(front) if info else None, False
        if process is None:
            parsed = lines.parsed(line)
            if parsed is None:
                return False
            process, warn, text = self._processes.of(parsed), parsed.warn, parsed.text
            if process is None:
                self._lost += 1
                return True
            if process.hint < 0:
                process.hint = lines.launcher_rank(line)
            if info and not warn and len(self._fronts) < MAX_FRONTS:
                self._fronts[front] = process
        if "opCount" in text and (call := lines.call(text)):
            self._processes.call(process, call)
        elif "Init" in text and (joined := lines.communicator(text)):
            self._processes.join(process, joined)
        elif " via " in text and (way := lines.way(text)):
            self._way(process, way, number, text)
        elif warn:
            self._warning(process, text, number, self._clock(line[:120]))
        else:
            self._fact(process, text, number)
        return True

    def reading(self) -> Reading:
        """Facts and records with ranks of the world, as far as the lines say them."""
        notes: list[str] = []
        ranks = Ranks(self._processes, notes)
        facts = (*ranks.places(self._where), *self._resolved(ranks), *self._watchdog.facts())
        traces = tuple(ranks.traces(self._where, FORMAT))
        if lost := self._lost + self._processes.lost:
            notes.append(f"{lost} lines are left out: more processes, communicators, calls or facts than are kept")
        return Reading(ranks=traces, facts=facts, notes=(*(notes if self._processes.all else ()), *self._clock.notes))

    def _resolved(self, ranks: Ranks) -> Iterator[Fact]:
        channels = {pair[0]: pair[1] for pair in self._ways.values()}
        for n, (fact, process, place, peer) in enumerate(self._told):
            found = fact._replace(
                rank=ranks.of(process),
                peer=ranks.world(place or process.latest, peer),
                value=float(channels.get(n, fact.value)),
            )
            if host := self._host(fact.label("peer")):
                found = found._replace(peer=ranks.alone_on(host), labels=(*fact.labels, ("peer_host", host)))
            yield found

    def _host(self, peer: str) -> str:
        """The host that an address, or a host's own name, stands for; "" = none that the log knows."""
        known = self._addresses.get(peer, "")
        return known or next(
            (one.host for one in self._processes.all.values() if one.host.partition(".")[0] == peer), ""
        )

    def _way(self, process: Process, way: lines.Way, number: int, text: str) -> None:
        """One fact a pair of ranks and way: value: its channels."""
        place = process.latest
        key = (id(process), id(place.communicator) if place else 0, way.name, way.peer)
        if key in self._ways:
            self._ways[key][1] += 1
        elif len(self._told) < MAX_FACTS:
            self._ways[key] = [len(self._told), 1]
            self._add(process, "transport", way.name, number, text, channel=way.channel, peer=way.peer)
        else:
            self._lost += 1

    def _warning(self, process: Process, text: str, number: int, unix_ns: int) -> None:
        about: dict[str, Any] = {"number": number, "text": text, "unix_ns": unix_ns}
        if done := lines.completion(text):
            name = f"ib.completion.{done.status}" + f".{done.vendor}" * bool(done.vendor)
            self._add(process, "network", name, device=done.device, peer_address=done.peer, side=done.side, **about)
        elif event := _EVENT.search(text):
            what = event[2].strip()
            kind: Kind = "notice" if what.lower().startswith(_HARMLESS) else "network"
            self._add(process, kind, "ib.async_event", device=event[1] or "", event=what, **about)
        elif "ismatched collective" in text or "collective mismatch" in text:
            self._add(process, "error", "nccl_mismatch", **about)
        elif _CLOSED.search(text):
            peer = _PEER.search(text)
            self._add(process, "error", "peer_closed", peer_address=peer["peer"] if peer else "", **about)
        elif "Cuda failure" in text:
            reason = _REASON.search(text)
            self._once(process, "error", "cuda", reason=reason["reason"] if reason else "", **about)
        elif _SHM.search(text):
            self._once(process, "error", "host_disk_full", **about)
        elif _FAILED.search(text):
            self._once(process, "error", "nccl_failed", **about)
        else:
            self._once(process, "notice", "nccl_warning", per=re.sub(r"\d+", "#", text)[:80], **about)

    def _fact(self, process: Process, text: str, number: int) -> None:
        about: dict[str, Any] = {"number": number, "text": text}
        if setting := _SETTING.search(text):
            self._once(process, "setting", setting[1], per=process.host, given=setting[2].strip().rstrip("."), **about)
        elif nvls := _NVLS.search(text):
            self._once(process, "transport", "coll.nvls", value=float(nvls[1] or 0), **about)
        elif text.startswith("Trees "):
            self._once(process, "transport", "coll.tree", **about)
        elif "GPU Direct RDMA Disabled" in text:
            self._once(process, "setting", "nccl.gpudirect_rdma", per=process.host, given="off", **about)
        elif "Using" in text and ("NET/" in text or "ootstrap" in text):
            for device, link in _IB_NICS.findall(text):
                make = {"IB": "InfiniBand"}.get(link, link)
                self._once(process, "place", "nic", per=process.host, device=device, link=make, **about)
            for name, address in _SOCKETS.findall(text):
                if name != "lo" and address not in self._addresses and len(self._addresses) < MAX_FACTS:
                    self._addresses[address] = process.host
                    self._add(process, "place", "address", address=address, **about)

    def _once(self, process: Process, kind: Kind, name: str, *, per: str = "", **fields: Any) -> None:
        """A fact that says nothing new the second time: a process, or whatever is given."""
        who = per or f"{process.host}:{process.pid}:{process.device}"
        key = (kind, name, who, fields.get("device", ""), fields.get("given", ""))
        if key not in self._seen and len(self._seen) < MAX_FACTS:
            self._seen.add(key)
            self._add(process, kind, name, **fields)

    def _add(
        self,
        process: Process,
        kind: Kind,
        name: str,
        number: int,
        text: str,
        *,
        value: float = 0.0,
        device: str = "",
        unix_ns: int = 0,
        peer: int = -1,
        peer_address: str = "",
        given: str = "",
        **labels: str,
    ) -> None:
        """given, peer_address: labels whose names are those of arguments."""
        if len(self._told) >= MAX_FACTS:
            self._lost += 1
            return
        labels |= {"value": given, "peer": peer_address, "pid": str(process.pid)}
        fact = Fact(
            kind,
            name,
            value,
            host=process.host,
            device=device,
            unix_ns=unix_ns,
            labels=tuple((key, quoted(word)) for key, word in labels.items() if word),
            text=quoted(text[: lines.MAX_LINE]),
            source=f"{self._where}: line {number}",
        )
        self._told.append(_Told(fact, process, process.latest, peer))
