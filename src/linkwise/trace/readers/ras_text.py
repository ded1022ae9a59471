"""The text of NCCL's RAS subsystem, line by line (see `ras`)."""

import re
from collections.abc import Iterable, Iterator

from linkwise.trace.facts import Fact, Kind, quoted
from linkwise.trace.readers.nccl_lines import snake

MAX_RANKS = 65_536  # of one communicator of which a count is told by its remainder

_TABLE = re.compile(
    r"\s*(\d{1,6})\s+(\d{1,7})\s+(\d{1,7})\s+([\d-]{1,15})\s+(\d{1,7})\s+(\d{1,7})\s+([A-Z]{2,12})\s+([A-Z,]{2,40})\s*"
)
_NUMBERS = re.compile(r"[\s\d]*\d\s*")
_HEADING = re.compile(r"#(\d{1,6})-(\d{1,7}) \(([0-9a-f]{1,16})\) ([A-Z]{2,12})\s*")
_COUNTS = re.compile(r"\s+Communicator ranks have different (\w{1,40}) operation counts")
_MANY = re.compile(r"\s+(\d{1,7}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"\s+Rank (\d{1,7}) has (?:launched up to operation (\d{1,18})|not launched any operations)")
_RANK = re.compile(r"\s+Rank (\d{1,7}) ")
_MISSING = re.compile(r"\s+The missing ranks?: ([\d, ]{1,2000})")
_REPORTED = re.compile(r"\s+(?:\d{1,7} ranks|Rank (\d{1,7})) reported (\w[\w ]{2,40}?)(?: --.*)?\s*")
_PLACE = re.compile(r"GPU ([\d,]{1,200})(?: \(NVML [\d,]{1,200}\))? managed by process (\d{1,10}) on node (\S{1,100})")
_PROCESS = re.compile(
    r"\s*(?:\[.{0,40}\] PEER_DEAD: )?Process (\d{1,10}) on node (\S{1,100}) managing GPUs? ([\d,]{1,200})"
)


def recognises(head: str) -> bool:
    """The headings of a report, or of RAS's monitoring mode."""
    return ("Job summary\n===" in head and "Communicators..." in head) or "RAS Monitor Mode" in head


def facts(lines: Iterable[tuple[int, str]], where: str) -> Iterator[Fact]:
    """All statements of a report, or of several one after the other."""
    report = _Report(where, 1)
    for number, line in lines:
        if line.startswith("NCCL version ") and report.begun:
            yield from report.end()
            report = _Report(where, report.number + 1)
        report.begun = report.begun or line.startswith("Job summary")
        yield from report.take(number, line[:4000])
    yield from report.end()


class _Report:
    """One report as its lines come."""

    def __init__(self, where: str, number: int) -> None:
        self.where, self.number = where, number
        self.begun = False
        self._gpus = 0  # of the whole job
        self._sizes: dict[str, tuple[int, int]] = {}  # of communicators, and how many, by number of their group
        self._section = ""
        self._communicator, self._size, self._world = "", 0, False
        self._op, self._value, self._reason = "", -1, ""
        self._listed: dict[int, int] = {}  # launched, by rank, of the op that is told of
        self._counted: list[tuple[int, int]] = []  # how many ranks have launched how many
        self._line = 0

    def take(self, number: int, line: str) -> Iterator[Fact]:
        self._line = number
        if heading := _HEADING.fullmatch(line):
            yield from self.end()
            group, _, self._communicator, self._section = heading.groups()
            self._size, count = self._sizes.get(group, (0, 0))
            self._world = 0 < self._size == self._gpus and count == 1
            return
        if line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT", "Errors", "Warnings"):
            yield from self.end()
            self._section, self._communicator = line.strip(), ""
            return
        if table := _TABLE.fullmatch(line):
            yield from self._group(table, line)
        elif _NUMBERS.fullmatch(line) and not self._sizes:
            self._gpus = int(line.rsplit(maxsplit=1)[-1][:9])  # the last number of the job summary
        elif process := _PROCESS.match(line):
            name = "considered_dead" if self._section == "DEAD" or "PEER_DEAD" in line else "unresponsive"
            pid, host, device = process.groups()
            yield self._fact("missing", name, line, host=host, pid=pid, device=f"gpu{device}")
        elif self._communicator:
            yield from self._detail(line)

    def _group(self, table: re.Match[str], line: str) -> Iterator[Fact]:
        group, count, _, _, size, _, state, errors = table.groups()
        self._sizes[group] = int(size), int(count)
        whole = int(size) == self._gpus and int(count) == 1 and int(size) <= MAX_RANKS
        members = tuple(range(int(size))) if whole else ()
        for word in dict.fromkeys(errors.lower().split(",")):
            if word:
                yield Fact(
                    "status", word, group=members, text=quoted(line), source=f"{self.where}: line {self._line}",
                    labels=self._labels({"size": size, "communicators": count, "state": state.lower()}),
                )  # fmt: skip

    def _detail(self, line: str) -> Iterator[Fact]:
        """A line of what is wrong with a communicator."""
        if counts := _COUNTS.match(line):
            yield from self.end()
            # 2.24 and 2.25 count all collectives together.
            self._op = "collective" if counts[1] == "collective" else snake(counts[1])
        elif many := _MANY.match(line):
            self._value = int(many[2] or 0)
            self._counted.append((int(many[1]), self._value))
        elif missing := _MISSING.match(line):
            for rank in re.findall(r"\d{1,7}", missing[1]):
                yield self._of_rank("missing", "unresponsive", int(rank), line)
        elif reported := _REPORTED.fullmatch(line):
            self._reason = reported[2]
            if reported[1]:
                yield self._of_rank("error", "nccl_error", int(reported[1]), line, reason=self._reason)
        elif rank := _RANK.match(line):
            yield from self._rank(int(rank[1]), line)

    def _rank(self, rank: int, line: str) -> Iterator[Fact]:
        if one := _ONE.match(line):
            self._counted.append((1, int(one[2] or 0)))
            self._listed[rank] = int(one[2] or 0)
        elif self._section == "INCOMPLETE":
            yield self._of_rank("missing", "unresponsive", rank, line)
            return
        elif self._section == "ERROR":
            yield self._of_rank("error", "nccl_error", rank, line, reason=self._reason)
            return
        elif self._op and self._value >= 0:
            self._listed[rank] = self._value
        else:
            return
        if self._op:
            yield self._of_rank("launched", self._op, rank, line)._replace(value=float(self._listed[rank]))
        if _PLACE.search(line):
            yield self._of_rank("place", "rank", rank, line)

    def end(self) -> Iterator[Fact]:
        """Ranks that are counted and not listed have what is left over: the majority, of which RAS says no more."""
        listed = list(self._listed.values())
        left = [(count, value) for count, value in self._counted if count != listed.count(value)]
        rest = self._size - len(self._listed)
        if self._op and len(left) == 1 and left[0][0] == rest and self._size <= MAX_RANKS:
            for rank in range(self._size):
                if rank not in self._listed:
                    text = f"{left[0][0]} ranks have launched up to operation {left[0][1]}, this one among them"
                    fact = self._of_rank("launched", self._op, rank, text, listed="no")
                    yield fact._replace(value=float(left[0][1]))
        elif self._op:
            for count, value in left:
                text = f"{count} ranks have launched up to operation {value}"
                yield self._fact("launched", self._op, text, ranks=str(count))._replace(value=float(value))
        self._op, self._value, self._reason = "", -1, ""
        self._listed, self._counted = {}, []

    def _of_rank(self, kind: Kind, name: str, rank: int, text: str, **labels: str) -> Fact:
        if place := _PLACE.search(text):
            labels |= {"device": f"gpu{place[1]}", "pid": place[2], "host": place[3]}
        fact = self._fact(kind, name, text, comm_rank=str(rank), **labels)
        return fact._replace(rank=rank if self._world else -1)

    def _fact(self, kind: Kind, name: str, text: str, **labels: str) -> Fact:
        about = {"communicator": f"0x{self._communicator}", "size": str(self._size)} if self._communicator else {}
        source = f"{self.where}: line {self._line}"
        host = labels.get("host", "")
        return Fact(kind, name, host=host, text=quoted(text), source=source, labels=self._labels(about | labels))

    def _labels(self, labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
        more = {"snapshot": str(self.number)} if self.number > 1 else {}
        return tuple((key, quoted(value)) for key, value in (labels | more).items() if value)
