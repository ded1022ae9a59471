"""What readers of host evidence share: dumps of many files in one, times, names of devices and ranks, bounded facts.

Eight modules read host evidence: each has `fits(title, head)` and `facts(block, found)` beside the reader's contract,
so that a dump whose parts begin with `== path ==` or `==> path <==` (as `tail -n +1` prints several files) is read
part by part, each by the module it fits.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.trace.facts import Fact, Kind, quoted
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.sieve import Sieve

PARTS = ("infiniband", "nvidia_smi", "lspci", "tcp", "cgroup", "kernel_log", "stacks", "engine_log")
MAX_LINE = 2_048  # characters of a line that patterns see; what they look for stands at its front
MAX_BLOCK_BYTES = 64 * 2**20
MAX_BLOCKS = 65_536
MAX_ROWS = 500_000  # of a report that is read whole
MAX_EACH = 1_000  # facts of one kind and name, gauges aside
MAX_FACTS = 50_000
MAX_SERIES = 512
SERIES = 256  # a gauge keeps between this many points and twice as many, evenly spread

# `== ... ==` is also how logs adorn a line: there a path or a command must stand in it.
_COMMAND = (
    r"\S*/|date\b|rank\b|pid\b|dmesg|journalctl|nvidia-smi|ib(?:stat|status|v_devinfo)\b|perfquery|ethtool|rdma\b|lspci|"
    r"ss\b|netstat|nstat|ip\b|numactl|taskset|cat\b|cpu\.|py-spy|gdb|gstack|env\b"
)
_HEADING = re.compile(rf"(?:==> (\S.{{0,500}}?) <==|={{2,3}} ((?:{_COMMAND}).{{0,500}}?) ={{2,3}})\s*")
_HAS_HEADING = re.compile(rf"^{_HEADING.pattern}$", re.MULTILINE)


class Block(NamedTuple):
    """One part of a dump, or a whole file. title: the path or command of its heading, else the file's own path.

    lines: numbered; of a whole file they can be read once. unix_ns: when it was taken, 0 = not known; own_date: that
    is the date of the file itself, the weakest of evidence. source: the file, where the block is all of it.
    """

    title: str
    lines: Iterable[tuple[int, str]]
    where: str
    unix_ns: int = 0
    own_date: bool = True
    source: Source | None = None

    def sifted(self, sieve: Sieve) -> Iterable[tuple[int, str]]:
        """Lines that may hold one of the sieve's words; of a part of a dump, which is small, all."""
        return self.source.sifted(sieve) if self.source else self.lines

    def first(self, most: int) -> Iterable[tuple[int, str]]:
        """Its first lines; of a file those of its head."""
        return islice(enumerate(self.source.text.splitlines(), 1) if self.source else self.lines, most)

    def tail(self, most: int) -> list[tuple[int, str]]:
        """Its last lines; the number 0 is not known."""
        return self.source.tail(most) if self.source else self.text[-most:]

    @property
    def text(self) -> list[tuple[int, str]]:
        """The lines of a part that is small by nature. Raises InputError for one that is not."""
        rows = list(islice(self.lines, MAX_ROWS + 1))
        if len(rows) > MAX_ROWS:
            raise InputError(f"more than {MAX_ROWS} lines", where=self.where, expected="counters or a short report")
        return rows


T = TypeVar("T")
Facts = Callable[[Block, "Found"], None]
Fits = Callable[[str, str], bool]


def recognised(source: Source, fits: Fits) -> bool:
    """A file, or any part of a dump as far as its head goes, is of that format."""
    if not _HAS_HEADING.search(source.text):
        return fits(_path(source), source.text)
    return any(fits(title, "\n".join(lines)) for title, lines in _parts(_path(source), source.text.splitlines()))


def reading(source: Source, facts: Facts) -> Reading:
    """All facts of a file; of a dump's parts by the modules they fit. Raises InputError as the reader of it does."""
    found = Found(source.where, folder_host(source.where))
    own_ns = source.date_ns
    if not _HAS_HEADING.search(source.text):
        found.block = Block(_path(source), source.lines(), source.where, own_ns, source=source)
        facts(found.block, found)
        return found.reading()
    skipped, taken_ns = 0, 0
    for cut in _blocks(source):
        if cut.title.split()[:1] == ["date"]:
            taken_ns = _date_ns(cut) or taken_ns
            continue
        block = found.block = cut._replace(unix_ns=taken_ns or own_ns, own_date=not taken_ns)
        head = "\n".join(line for _, line in islice(block.lines, 400))
        part = next((m for m in map(_module, PARTS) if m.fits(block.title, head)), None)
        if part is None:
            skipped += 1
            continue
        try:
            part.facts(block, found)
        except InputError as error:  # one broken part does not spoil the others
            found.note(f"not usable: {error}")
    if skipped:
        found.note(f"{skipped} parts of the dump are of no known format")
    return found.reading()


def _module(name: str) -> Any:
    return import_module(f"linkwise.trace.readers.{name}")


def _path(source: Source) -> str:
    return os.path.abspath(source.path).removesuffix(".gz")


# By number; by letter (a number behind "gpu" is a device of some host).
_HOST = re.compile(r"(?:[\w-]*-)?(?:(?:host|node|worker)(?:[-_.]?\d[\w.-]{0,60}|[-_.][A-Za-z]|[A-Z])|gpu[-_.][A-Za-z])")


def folder_host(where: str) -> str:
    """A host that a folder of the evidence names: `node3/dmesg.txt`, `gpu-host-07/sys/...`, `nodeB/`, `gpu-b/`."""
    folders = where.split("/")[:-1]
    named = [folder for folder in folders if _HOST.fullmatch(folder)]
    return word(named[0]) if named else ""


def _parts(path: str, lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Titles and lines of a dump; what stands before its first heading goes under the file's own path."""
    title, kept = path, list[str]()
    for line in lines:
        heading = _HEADING.fullmatch(line) if line.startswith("==") else None
        if heading is None:
            kept.append(line)
            continue
        yield title, kept
        title, kept = heading[1] or heading[2], []
    yield title, kept


def _blocks(source: Source) -> Iterator[Block]:
    title, kept, size, count = _path(source), list[tuple[int, str]](), 0, 0
    for number, line in source.lines():
        heading = _HEADING.fullmatch(line) if line.startswith("==") else None
        if heading is None:
            size += len(line) + 64
            if size > MAX_BLOCK_BYTES:
                raise InputError(f"a part of more than {MAX_BLOCK_BYTES} bytes", where=f"{source.where}: line {number}")
            kept.append((number, line))
            continue
        if count or any(text.strip() for _, text in kept):
            yield Block(title, kept, source.where)
        title, kept, size, count = heading[1] or heading[2], [], 0, count + 1
        if count > MAX_BLOCKS:
            raise InputError(f"more than {MAX_BLOCKS} parts", where=f"{source.where}: line {number}")
    yield Block(title, kept, source.where)


def _date_ns(block: Block) -> int:
    line = next((line.strip() for _, line in block.lines if line.strip()), "")
    epoch = re.fullmatch(r"(\d{9,10})(?:\.(\d{1,9}))?", line)
    if epoch:
        return int(epoch[1]) * 10**9 + int((epoch[2] or "0").ljust(9, "0"))
    return Clock(0)(line)


class Series(Generic[T]):
    """What a file says again and again: every stride-th of it, and the last. most: kept at a time, the last aside."""

    def __init__(self, most: int = 2 * SERIES) -> None:
        self._most = most
        self.kept: list[tuple[int, T]] = []
        self.last: tuple[int, T] | None = None
        self.seen, self.stride = 0, 1

    def add(self, line: int, one: T) -> None:
        self.last = (line, one)
        if self.seen % self.stride == 0:
            self.kept.append(self.last)
            if len(self.kept) > self._most:
                del self.kept[1::2]
                self.stride *= 2
        self.seen += 1

    def all(self) -> list[tuple[int, T]]:
        assert self.last is not None  # noqa: S101 - made with its first point
        return self.kept if self.kept[-1] is self.last else [*self.kept, self.last]


class Found:
    """Facts of one file as they are found, within bounds: of a flood the first ones stay, and a note says so.

    A counter that a file holds more than once gets the label snapshot: 1, 2, ... from its second time on.
    """

    def __init__(self, where: str, host: str = "") -> None:
        self.where, self.host = where, host
        self.block: Block | None = None  # the part that is being read
        self._facts: list[tuple[int, Fact]] = []
        self._series: dict[object, Series[Fact]] = {}
        self._counts: dict[tuple[Kind, str], int] = {}
        self._ranks: dict[tuple[Kind, str], set[int]] = {}
        self._heard: dict[tuple[Kind, str], set[tuple[str, ...]]] = {}
        self._snapshots: dict[object, int] = {}
        self._lost, self._lost_series, self._stride = 0, 0, 1
        self._notes: dict[str, None] = {}

    def add(
        self,
        kind: Kind,
        name: str,
        value: float = 0.0,
        *,
        line: int = 0,
        labels: dict[str, str] | None = None,
        text: str = "",
        **fields: Any,
    ) -> None:
        """One fact: fields as of Fact. Labels without a value are left out; text is made fit to be shown.

        Figures and states without a time of their own get that of their part, with the label time=mtime where that is
        no more than the date of the file.
        """
        rank = fields.get("rank", -1)
        if kind != "gauge" and self.full(kind, name, rank):
            self._lost += 1
            return
        pairs = tuple((key, word(value)) for key, value in (labels or {}).items() if value)
        fields.setdefault("host", self.host)
        name, fields["device"] = clipped(printable(name), 100), clipped(printable(fields.get("device", "")), 100)
        if "unix_ns" not in fields and self.block and kind in {"counter", "gauge", "device", "network"}:
            fields["unix_ns"] = self.block.unix_ns
            pairs += (("time", "mtime"),) if self.block.own_date and self.block.unix_ns else ()
        source = f"{self.where}: line {line}" if line else self.where
        fact = Fact(kind, name, float(value), labels=pairs, text=quoted(text[:MAX_LINE]), source=source, **fields)
        if kind == "gauge":
            self._point(line, fact)
            return
        self._counts[kind, name] = self._counts.get((kind, name), 0) + 1
        self._ranks.setdefault((kind, name), set()).add(rank)
        if kind == "counter":
            key = (name, fact.device, fact.rank, fact.host, pairs)
            before = self._snapshots.get(key, 0)
            self._snapshots[key] = before + 1
            if before:
                fact = fact._replace(labels=(*pairs, ("snapshot", str(before))))
        self._facts.append((line, fact))

    def full(self, kind: Kind, name: str, rank: int) -> bool:
        """Whether no more facts of a kind and name are kept of a rank: a storm on one does not drown the others."""
        if len(self._facts) >= MAX_FACTS:
            return True
        return self._counts.get((kind, name), 0) >= MAX_EACH and rank in self._ranks.get((kind, name), ())

    def stormed(self, kind: Kind, name: str, who: tuple[str, ...]) -> bool:
        """Whether a line of that meaning is one of a storm, and of a process of which it has kept one; counts it as
        left out if so. who: words of the line that tell the process, cheaper to find than its rank."""
        if self._counts.get((kind, name), 0) < MAX_EACH:
            return False
        heard = self._heard.setdefault((kind, name), set())
        if who not in heard and len(heard) < MAX_SERIES:
            heard.add(who)
            return False
        self._lost += 1
        return True

    def _point(self, line: int, fact: Fact) -> None:
        key = (fact.name, fact.device, fact.rank, fact.host, tuple(p for p in fact.labels if p[0] != "count"))
        if key not in self._series and len(self._series) >= MAX_SERIES:
            self._lost_series += 1
            return
        self._series.setdefault(key, Series[Fact]()).add(line, fact)

    def thinned(self, stride: int) -> None:
        """Of lines of figures only one in so many was handed over."""
        self._stride = max(self._stride, stride)

    def note(self, text: str) -> None:
        if len(self._notes) < 100:
            self._notes[quoted(text)] = None

    def reading(self) -> Reading:
        rows = self._facts + [row for series in self._series.values() for row in series.all()]
        rows.sort(key=lambda row: row[0])
        notes = list(self._notes)
        if not rows and not notes:
            notes.append("nothing in it that a diagnosis asks for")
        if self._lost:
            flood = max(self._counts, key=lambda key: self._counts[key])
            notes.append(f"{self._lost} facts beyond the first {MAX_EACH} of a name left out, most of them {flood[1]}")
        thinned = max([self._stride, *(series.stride for series in self._series.values())])
        if thinned > 1:
            notes.append(f"of long series of figures one in {thinned} is kept")
        if self._lost_series:
            notes.append(f"figures of more than {MAX_SERIES} series left out")
        return Reading(facts=tuple(fact for _, fact in rows), notes=tuple(notes))


def word(text: str) -> str:
    """A name or a short value of evidence, fit for a label."""
    return clipped(printable(text.strip()), 1_000)


def number(text: str) -> float | None:
    """A plain decimal number, thousands separators aside; None for anything else."""
    found = re.fullmatch(r"[-+]?[\d,]{1,25}(?:\.\d{0,25})?(?:[eE][-+]?\d{1,2})?", text.strip())
    try:
        return float(found[0].replace(",", "")) if found else None
    except ValueError:
        return None


def bus_id(text: str) -> str:
    """A PCI address as all readers write it: `0000:1b:00`, and its function only where that is not 0: `0000:5c:00.1`.

    The driver logs no function, nvidia-smi eight digits of domain, lspci often none: one device, one name.
    """
    found = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?", text.strip())
    if not found:
        return word(text)
    domain = (found[1] or "0").lstrip("0").rjust(4, "0")
    function = f".{found[4]}" if found[4] and found[4] != "0" else ""
    return f"{domain}:{found[2]}:{found[3]}{function}".lower()


def cpu_list(mask: str) -> str:
    """CPUs of a hexadecimal mask as the kernel lists them: ff00ff -> 0-7,16-23. "" for what is no mask."""
    digits = mask.replace(",", "").removeprefix("0x")
    if not re.fullmatch(r"[0-9a-fA-F]{1,2048}", digits):
        return ""
    bits = bin(int(digits, 16))[:1:-1]
    runs = [(run.start(), run.end() - 1) for run in re.finditer("1+", bits)]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


_AXIS = re.compile(r"(?<![A-Za-z])(DP|PP|TP|EP|CP)[_-]?(\d{1,6})(?![\dA-Za-z])", re.IGNORECASE)
_RANK = re.compile(
    r"(?<![A-Za-z])(?<!node[-_ ])(?<!local[-_ ])(?<!dp[-_ ])(?<!nnode[-_ ])rank[ _=:.\[-]{0,3}(\d{1,6})(?!\d)",
    re.IGNORECASE,
)


def placed(text: str, *, dp_inside: bool = False) -> tuple[int, dict[str, str]]:
    """The rank that a process or file name tells, -1 when it does not, and its places on the axes it names.

    Worker_TP1 is rank 1 of its engine; PP2_TP1 is not decided, as nobody says how many tensor ranks a stage has.
    dp_inside: the tensor ranks count through all attention replicas, as SGLang's do, so that DP1 TP5 is rank 5.
    """
    axes = {axis.lower(): str(int(place)) for axis, place in _AXIS.findall(text[:300])}
    said = _RANK.search(text[:300])
    if said:
        return int(said[1]), axes
    alone = axes.get("pp", "0") == "0" and (dp_inside or axes.get("dp", "0") == "0")
    return (int(axes["tp"]) if "tp" in axes and alone else -1), axes


def placed_by_path(title: str) -> tuple[int, dict[str, str]]:
    """The same of a file: by its name (`exc_rank0.txt`), or by its folder's (`rank_3/py-spy.txt`)."""
    *_, folder, name = ["", "", *title.rstrip("/").split("/")]
    by_name = placed(name, dp_inside=True)
    return by_name if by_name[0] >= 0 or by_name[1] else placed(folder, dp_inside=True)
