"""Unix times of the lines of logs, in the many ways in which logs write them."""

import calendar
import re
from datetime import datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_DATES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?<!\d)(?P<y>\d{{4}})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ]{_TIME}(?P<z>Z|[+-]\d\d:?\d\d)?",
        rf"\[(?P<mo>\d\d)/(?P<d>\d\d)/(?P<y>\d{{4}})-{_TIME}",  # TensorRT-LLM
        rf"[A-Z][a-z]{{2}} (?P<mon>[A-Z][a-z]{{2}}) {{1,2}}(?P<d>\d{{1,2}}) {_TIME} (?:[A-Z]{{3,5}} )?(?P<y>\d{{4}})",
        rf"\[(?P<mon>[A-Z][a-z]{{2}}) (?P<d>\d\d) (?P<y>\d{{4}}) {_TIME}",  # fabric manager
        rf"^(?P<mon>[A-Z][a-z]{{2}}) {{1,2}}(?P<d>\d{{1,2}}) {_TIME}",  # syslog, journalctl
        rf"(?:\[|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) )(?P<mo>\d\d)-(?P<d>\d\d) {_TIME}",  # vLLM
        rf"(?<![A-Za-z\d])[IWEF](?P<mo>\d\d)(?P<d>\d\d) {_TIME}",  # glog: torch, Mooncake
    )
)


class Clock:
    """Unix time of a log's lines, 0 where a line has none. own_date_ns: of the file, which decides a missing year.

    A time without a zone is taken as UTC: within one file that keeps order and distances.
    """

    def __init__(self, own_date_ns: int) -> None:
        self._own = own_date_ns
        self._pattern = _DATES[0]
        self.no_zone = self.no_year = False

    def __call__(self, line: str) -> int:
        front = line[:200]
        found = self._pattern.search(front)
        for pattern in _DATES if found is None else ():
            if found := pattern.search(front):
                self._pattern = pattern
                break
        return self._unix_ns(found) if found else 0

    @property
    def notes(self) -> list[str]:
        """What was assumed."""
        zone = ["times name no zone: taken as UTC"] if self.no_zone else []
        return zone + (["dates have no year: the latest that fits the date of the file"] if self.no_year else [])

    def _unix_ns(self, found: re.Match[str]) -> int:
        parts = found.groupdict()
        name = (parts.get("mon") or "").lower()
        month = _MONTHS.index(name) + 1 if name in _MONTHS else int(parts.get("mo") or 0)
        year = int(parts.get("y") or 0)
        if year:
            seconds = self._seconds(year, month, parts)
        else:
            self.no_year = True
            year = datetime.fromtimestamp(self._own / 10**9).year if 0 < self._own < 2**62 else 1970
            seconds = self._seconds(year, month, parts)
            if seconds > self._own / 10**9 + 86_400:
                seconds = self._seconds(year - 1, month, parts)
        if seconds <= 0:
            return 0
        zone = parts.get("z")
        if zone is None:
            self.no_zone = True
        elif zone != "Z":
            digits = zone[1:].replace(":", "")
            offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
            seconds -= offset if zone[0] == "+" else -offset
        return max(0, seconds * 10**9 + int((parts["f"] or "0").ljust(9, "0")))

    @staticmethod
    def _seconds(year: int, month: int, parts: dict[str, str]) -> int:
        try:
            at = datetime(year, month, int(parts["d"]), int(parts["h"]), int(parts["m"]), min(59, int(parts["s"])))
        except ValueError:
            return 0
        return calendar.timegm(at.timetuple())
