"""Where in a large log does its last part begin? Found by the times of a few lines instead of by reading it."""

from typing import BinaryIO

from linkwise.trace.readers.log_time import Clock

SEEK_BYTES = 32 * 2**20  # below this a log is read whole
KEPT_BYTES = 4 * 2**20  # of its beginning, where ranks, devices and settings are named
_WINDOW = 64 * 2**10
_STEP = 2**20  # as near as the search comes to the place
_MARGIN_NS = 60 * 10**9  # lines of several processes are in order only about so well


def beginning(file: BinaryIO, size: int, seconds: float, own_date_ns: int) -> int:
    """The byte at which a line begins and all later than `seconds` before the log's last time is behind; 0: not known.

    The log must be in order of time to within a minute. own_date_ns: of the file, for dates without a year.
    """
    clock = Clock(own_date_ns)
    last = max((clock(line) for line in _lines(file, max(0, size - 4 * _WINDOW), 4 * _WINDOW)), default=0)
    first = last - int(seconds * 1e9) - _MARGIN_NS
    if not last or first <= 0:
        return 0
    low, high = 0, size
    while high - low > _STEP:
        middle = (low + high) // 2
        at = next((ns for line in _lines(file, middle, _WINDOW) if (ns := clock(line))), 0)
        if not at:  # a long part without times: no order to search in
            return 0
        low, high = (middle, high) if at < first else (low, middle)
    file.seek(low)
    return low + len(file.readline(_WINDOW)) if low else 0


def _lines(file: BinaryIO, at: int, most: int) -> list[str]:
    """Whole lines from a byte on, the first of them behind the next line's end."""
    file.seek(at)
    rows = file.read(most).split(b"\n")
    return [row[:200].decode("utf-8", errors="replace") for row in rows[1 if at else 0 : -1]]
