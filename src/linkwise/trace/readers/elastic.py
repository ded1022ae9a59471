"""What torchrun (torch elastic) says of the processes it started: which ended, how, and which of them it saw first.

After pytorch: torch/distributed/elastic/multiprocessing/api.py (`failed (exitcode: -9) local_rank: 0 (pid: 7) of
binary: ...`) and errors/__init__.py (the block "Root Cause (first observed failure)"). Several lines make one fact.
"""

import re

from linkwise.trace.readers.log_time import Clock
from linkwise.trace.readers.shared import Found, word

WORDS = ("failed (exit", "exitcode  :", "(local_rank:", "  host      :", "  time      :", "Root Cause (first")
MAX_PROCESSES = 65_536

_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,4})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"
)
_FIELD = re.compile(r"(?:^|\s)(?P<name>time|host|rank|exitcode)\s{1,8}: (?P<value>\S.{0,300})")
_RANK = re.compile(r"(?P<rank>\d{1,7}) \(local_rank: (?P<local>\d{1,5})\)")
_EXIT = re.compile(r"(?P<code>-?\d{1,4}) +\(pid: (?P<pid>\d{1,10})\)")


class Elastic:
    """Takes a log's lines one by one; `flush` adds what they say together: a fact a process."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._block: dict[str, str] = {}
        self._root = False
        self._ended: dict[str, tuple[int, dict[str, str], str]] = {}  # by process id: line, what is known, text

    def take(self, line: int, row: str) -> bool:
        """Whether the line is torchrun's."""
        if "failed (exitcode" in row and (failed := _FAILED.search(row)):
            front = row[:80]
            self._keep(
                line, failed["pid"], {"code": failed["code"], "local_rank": failed["local"], "front": front}, row
            )
            return True
        if "Root Cause (first" in row:
            self._root = True
            return True
        if row.lstrip().startswith("traceback : "):  # the exit code again, in words
            return True
        field = _FIELD.search(row) if " : " in row[:80] else None
        if field is None or not (self._block or field["name"] == "time"):
            return False
        if field["name"] == "time":
            self._block.clear()
        if field["name"] != "exitcode":
            self._block[field["name"]] = field["value"].strip()
            return True
        if ended := _EXIT.match(field["value"]):
            rank = _RANK.match(self._block.get("rank", ""))
            about = {"code": ended["code"], "host": self._block.get("host", ""), "time": self._block.get("time", "")}
            about |= {"rank": rank["rank"], "local_rank": rank["local"]} if rank else {}
            about |= {"first": "1"} if self._root else {}
            self._keep(line, ended["pid"], about, row)
        self._root, self._block = False, {}
        return True

    def _keep(self, line: int, pid: str, about: dict[str, str], row: str) -> None:
        before = self._ended.get(pid)
        if before is None and len(self._ended) >= MAX_PROCESSES:
            return
        known = before[1] if before else {}
        self._ended[pid] = (before[0] if before else line, known | about, before[2] if before else row)

    def flush(self) -> None:
        """The log is over. A signal ended a process; a code above 0 is its own last word, which its log explains."""
        for pid, (line, about, row) in self._ended.items():
            code = int(about["code"])
            clock = Clock(0)
            told = about.get("time", "").replace("_", " ")
            unix_ns = clock(told) or clock(about.get("front", ""))
            labels = {"pid": pid, "local_rank": about.get("local_rank", ""), "first": about.get("first", "")}
            rank = int(about.get("rank", -1))
            host = word(about.get("host", "")) or self._found.host
            self._found.add(
                "exit" if code < 0 else "error", "died" if code < 0 else "exited", code, line=line, labels=labels,
                text=row, rank=rank, host=host, unix_ns=unix_ns,
            )  # fmt: skip
            if rank >= 0:
                self._found.add("place", "process", line=line, rank=rank, host=host, labels={"pid": pid})
