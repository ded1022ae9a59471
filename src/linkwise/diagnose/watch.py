"""The same rules on what happens now: the ends of growing records, looked at every few seconds.

A turn reads the last part of each record, not all of it, so that its cost does not grow with the run. A finding counts
when two turns in a row see it, unless the driver saw it too: a record is written half a second behind its rank, and a
few calls late are nothing.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from linkwise.core.errors import InputError
from linkwise.diagnose.diagnose import diagnose
from linkwise.diagnose.types import DRIVER, Finding, Findings
from linkwise.plan.types import Plan
from linkwise.trace import readers
from linkwise.trace.events import RankTrace, Trace
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence
from linkwise.trace.ras_live import ask
from linkwise.trace.readers.base import Source
from linkwise.trace.readers.own import read_tail
from linkwise.trace.whose import Unusable, told
from linkwise.trace.writer import EARLIER, FAULTS, SUFFIX

TURN_S = 2.0
TAIL_BYTES = 48 * 2**10  # some 350 calls of a rank: several steps
RAS_S = 10.0
STALE_S = 60.0  # a record nobody writes to any more is of a group that ended
MAX_RECORDS = 4096


class Change(NamedTuple):
    """A finding that appeared, or one that is over."""

    finding: Finding
    over: bool
    at: float


class Watch:
    """One watcher. folder: where ranks write their records; ras: HOST:PORT of an NCCL job's RAS service, "" = none."""

    def __init__(self, folder: Path | None, *, plan: Plan | None = None, ras: str = "") -> None:
        self.folder, self.plan, self.ras = folder, plan, ras
        self._began_ns = time.time_ns()
        self._known: dict[Any, Finding] = {}
        self._once: set[Any] = set()
        self._asked, self._heard = -RAS_S, Evidence()
        self.silent = ""  # why the RAS service does not answer now; "" = it does, or was not asked
        self.answered = False  # whether it ever did
        self.watched = False  # whether any rank was ever looked at, by its record or by the service
        self.last = Findings()

    def turn(self) -> list[Change]:
        """Look once. Raises InputError when the folder is gone."""
        # Other hosts' ranks write elsewhere, and those that just start have not begun to.
        self.last = diagnose(self._evidence(), self.plan, without=("absent",))
        now = time.time()
        seen = {(one.class_, one.original_fault): one for one in self.last.findings}
        sure = {key: one for key, one in seen.items() if key in self._once or key in self._known or _seen(one)}
        self._once = set(seen)
        changes = [Change(one, over=False, at=now) for key, one in sure.items() if key not in self._known]
        changes += [Change(one, over=True, at=now) for key, one in self._known.items() if key not in seen]
        self._known = sure
        return changes

    def _evidence(self) -> Evidence:
        ranks: list[RankTrace] = []
        facts: list[Fact] = []
        bad: list[tuple[str, str]] = []
        for path in self._files():
            try:
                if path.name.endswith(FAULTS):
                    facts += readers.read(Source(path))[1].facts
                else:
                    ranks.append(read_tail(path, TAIL_BYTES))
            except InputError as error:
                bad.append((str(path), str(error)))
        heard = self._ras()
        self.watched = self.watched or bool(ranks) or self.answered
        return Evidence(
            trace=Trace(ranks=tuple(ranks) + heard.trace.ranks),
            facts=tuple(fact for fact in facts if fact.unix_ns >= self._began_ns) + heard.facts,
            unusable=tuple(one._replace(path=Path(one.path).name) for one in told(bad, ranks)) + heard.unusable,
        )

    def _files(self) -> Iterator[Path]:
        """Records that grow, and faults; of a rank that was started again, the newest record."""
        if self.folder is None:
            return
        now = time.time()
        newest: dict[str, tuple[float, Path]] = {}
        try:
            with os.scandir(self.folder) as entries:
                for count, entry in enumerate(entries):
                    if count > MAX_RECORDS:
                        break
                    if entry.name.endswith(FAULTS):
                        yield Path(entry.path)
                    elif entry.name.endswith(SUFFIX) and not entry.name.endswith(EARLIER):
                        changed = entry.stat().st_mtime
                        who = entry.name.split(".rank")[0] + entry.name.partition(".rank")[2].split(".")[0]
                        if now - changed < STALE_S and changed > newest.get(who, (0.0, entry.path))[0]:
                            newest[who] = (changed, Path(entry.path))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(self.folder)) from None
        yield from (path for _, path in newest.values())

    def _ras(self) -> Evidence:
        """What RAS said last; asked anew every RAS_S, since it asks every process of the job."""
        if not self.ras or time.monotonic() - self._asked < RAS_S:
            return self._heard
        self._asked = time.monotonic()
        try:
            report = ask(self.ras)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "ras"
                path.write_bytes(report)
                reading = readers.read(Source(path, where=self.ras))[1]
            now = time.time_ns()
            told = tuple(fact if fact.unix_ns else fact._replace(unix_ns=now) for fact in reading.facts)
            # Counts of one report decide nothing: those of the one before stay beside them.
            newest = max((fact.unix_ns for fact in self._heard.facts), default=0)
            before = tuple(f for f in self._heard.facts if f.kind == "launched" and f.unix_ns == newest)
            self._heard = Evidence(trace=Trace(ranks=reading.ranks), facts=before + told)
            self.answered, self.silent = True, ""
        except InputError as error:
            self.silent = str(error)
            self._heard = Evidence(unusable=(Unusable(self.ras, str(error)),))
        return self._heard


def _seen(one: Finding) -> bool:
    """Whether a driver saw it, so that it need not be seen twice."""
    return one.first_reporter == DRIVER
