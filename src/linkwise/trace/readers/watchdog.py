"""What PyTorch's NCCL watchdog says in a log, of whatever program.

After pytorch: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, whose wordings changed from release to release.
"""

import re

from linkwise.trace.facts import Fact, quoted
from linkwise.trace.readers.nccl_lines import MAX_LINE, launcher_rank

MAX_WATCHDOGS = 10_000

_RANK = re.compile(
    r"\[(?:PG (?:ID )?(?P<number>\d{1,9}) (?:PG GUID (?P<guid>[^\]\s]{0,120}) )?)?Rank (?P<rank>\d{1,7})\]"
)
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: Work\w{1,8}\((?P<fields>[^\n]{0,500}?Timeout\(ms\)=\d{1,15})\)"
    r"(?: ran for (?P<ms>\d{1,15}) milliseconds)?"
)
_FIELD = re.compile(r"(\w+)(?:\(ms\))?=(\[[\d, ]*\]|[^,\s]{1,60})")
_STATUS = re.compile(
    r"(?:work(?: sequence id)?: (?P<seq>-?\d{1,18})[,.]? ?(?:PG status: )?)?last enqueued(?: NCCL)? work: "
    r"(?P<enqueued>-?\d{1,18}), (?:last started(?: NCCL)? work: -?\d{1,18}, )?last completed(?: NCCL)?(?: work)?: "
    r"(?P<completed>-?\d{1,18})",
    re.IGNORECASE,
)
_SIGNAL = re.compile(
    r"Received a dump signal due to a collective timeout from (?P<who>this local rank|rank ?\d{1,7}|[\w ]{1,40})"
)
_STUCK = re.compile(
    r"watchdog (?:thread )?(?:got stuck for|has not .{0,40} for) (?P<s>\d{1,9}) ?(?:seconds|sec)|"
    r"Heartbeat monitor timed out! |attempting to dump debug info, due to ProcessGroup\w{1,8} watchdog hang",
    re.IGNORECASE,
)
_ENDS = re.compile(r"attempting to dump debug info, due to (?:a )?collective timeout", re.IGNORECASE)
# Numbers in [PG ID 3 ... Rank 0] count within the group; what torch puts in front of its line is the rank of the world.
_WORLD = re.compile(r"\[rank(\d{1,7})\]: ?\[[IWEF]")
WORDS = ("chdog", "nqueued", "Heartbeat mon", "ump debug info")  # of which each of its lines holds one


class Watchdog:
    """What PyTorch's watchdog says in a log: one fact a rank and call, however often and in how many lines it says it.

    Facts: watchdog collective_timeout (value: seconds it ran), watchdog heartbeat (its own thread stood still), and
    launched work: how far a rank had got that the timeout of another made tell.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._found: dict[tuple[str, int, str], Fact] = {}
        self._ends: dict[int, Fact] = {}  # by rank, what it says when it ends because of a call told of before

    def take(self, number: int, line: str, unix_ns: int = 0) -> bool:
        """One line; whether it was the watchdog's."""
        if not any(word in line for word in WORDS):
            return False
        line = line[:MAX_LINE]
        timeout, status, stuck = _TIMEOUT.search(line), _STATUS.search(line), _STUCK.search(line)
        ends = _ENDS.search(line)
        if timeout is None and status is None and stuck is None and ends is None:
            return False
        who, world = _RANK.search(line), _WORLD.search(line)
        rank = int(world[1]) if world else launcher_rank(line)
        rank = int(who["rank"]) if who and rank < 0 else rank
        group = {"group": _group(who["guid"] or who["number"]) if who and who["number"] else ""}
        about = Fact(
            "watchdog", "", rank=rank, unix_ns=unix_ns, text=quoted(line), source=f"{self._where}: line {number}"
        )
        if timeout is not None:
            fields = dict(_FIELD.findall(timeout["fields"]))
            told = {
                "op": op_of(fields.get("OpType", "")), "sequence": fields.get("SeqNum", ""),
                "timeout_s": _seconds(fields.get("Timeout", "")), "numel_in": fields.get("NumelIn", ""),
                "numel_out": fields.get("NumelOut", ""),
            }  # fmt: skip
            value = int(timeout["ms"] or 0) / 1000
            self._add(about._replace(name="collective_timeout", value=value, unit="s"), told | group)
        if status is not None:
            told = {"sequence": status["seq"] or "", "enqueued": status["enqueued"], "completed": status["completed"]}
            signal = _SIGNAL.search(line)
            if signal is None:
                self._add(about._replace(name="collective_timeout", unit="s"), told | group)
            else:
                fact = about._replace(kind="launched", name="work", value=float(max(int(status["enqueued"]), 0)))
                self._add(fact, told | group | {"told_by": signal["who"]})
        elif stuck is not None:
            self._add(about._replace(name="heartbeat", value=float(stuck["s"] or 0), unit="s"), group)
        elif timeout is None and len(self._ends) < MAX_WATCHDOGS:
            self._ends.setdefault(rank, about._replace(name="collective_timeout", unit="s"))
        return True

    def _add(self, fact: Fact, labels: dict[str, str]) -> None:
        key = (fact.name, fact.rank, labels.get("sequence", ""))
        before = self._found.get(key)
        if before is None and len(self._found) >= MAX_WATCHDOGS:
            return
        known = dict(before.labels) if before else {}
        known |= {name: quoted(value) for name, value in labels.items() if value and not known.get(name)}
        self._found[key] = (before or fact)._replace(
            value=max(fact.value, before.value if before else 0.0), labels=tuple(known.items())
        )

    def facts(self) -> list[Fact]:
        """All facts, in the order of their first lines; of a rank's end only where it says nothing else."""
        told = {fact.rank for fact in self._found.values()}
        return [*self._found.values(), *(fact for rank, fact in self._ends.items() if rank not in told)]


def _group(guid: str) -> str:
    """A group as the flight recorder's reader names it: "default_pg:0" from "0(default_pg)"."""
    named = re.fullmatch(r"([^()]+)\((.+)\)", guid)
    return f"{named[2]}:{named[1]}" if named else guid


def op_of(name: str) -> str:
    """Our op from OpType: ALLREDUCE, _ALLGATHER_BASE, ALLTOALL_BASE, ..."""
    word = name.strip("_").lower().removesuffix("_base").removesuffix("_sparse").removesuffix("_coalesced")
    known = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
    return known.get(word, re.sub(r"\W+", "_", word)[:60])


def _seconds(milliseconds: str) -> str:
    return f"{int(milliseconds) / 1000:g}" if milliseconds.isascii() and milliseconds.isdigit() else ""
