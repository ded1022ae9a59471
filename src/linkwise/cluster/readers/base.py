"""What every reader is, and the small readings they share: PCI addresses, CPU masks, NUMA lists, terminal colours."""

import re
from typing import Protocol

from linkwise.cluster.topology import Fabric, Machine, Part, PathClass
from linkwise.core.errors import InputError

# A host holds a few dozen GPUs and NICs, a fused dump of one NVLink domain some 200; every pair of them is looked at.
MAX_DEVICES = 256
MAX_NUMA_NODES = 256
MAX_TEXT = 2 * 2**20  # characters of a matrix; the largest real one is under 100 kB
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_BUS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_LIST = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*")


class Reader(Protocol):
    """One format. FORMAT names it; `recognises` looks at the text alone; `read` gives a value or raises InputError."""

    FORMAT: str

    def recognises(self, text: str) -> bool: ...

    def read(self, text: str, *, where: str) -> Machine | Fabric: ...


def plain(text: str) -> str:
    """Text without terminal colours, with Unix line ends."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def bounded(text: str, *, where: str) -> str:
    """A matrix in plain text. Raises InputError beyond MAX_TEXT characters."""
    if len(text) > MAX_TEXT:
        raise InputError(f"{len(text)} characters", where=where, expected=f"at most {MAX_TEXT} of a topology matrix")
    return plain(text)


def bus_id(text: str) -> str | None:
    """A PCI address in lower case with a four-digit domain (NVML writes eight); None when it is none."""
    match = _BUS.fullmatch(text.strip().lower())
    if not match:
        return None
    domain = (match[1] or "0000").lstrip("0")
    return f"{domain:0>4}:{match[2]}"


def cpu_list(mask: str) -> str:
    """A CPU mask in words of 32 bits ("0000ffff,0xffffffff") as a list ("0-47"); "" when empty or not a mask."""
    words = [word.strip().lower().removeprefix("0x") for word in mask.split(",")]
    if len(words) > 256 or not all(re.fullmatch(r"[0-9a-f]{0,8}", word) for word in words):
        return ""
    bits = int("".join(f"{word:0>8}" for word in words), 16)
    numbers = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
    starts = [n for n in numbers if not (n and bits >> (n - 1) & 1)]
    ends = [n for n in numbers if not bits >> (n + 1) & 1]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def numa_list(text: str) -> tuple[int | None, bool]:
    """`(node, several)` of "1", "0-3", "0,3-9", "N/A" or "": the first node listed, and whether there are more."""
    if not _LIST.fullmatch(text):
        return None, False
    return int(re.split(r"[-,]", text)[0]), not text.isdigit()


def check_devices(parts: list[Part], *, where: str) -> None:
    """Refuse more devices than any host has."""
    count = sum(part.kind in ("gpu", "nic") for part in parts)
    if count > MAX_DEVICES:
        raise InputError(f"{count} GPUs and NICs", where=where, expected=f"at most {MAX_DEVICES} in one machine")


def worse(a: PathClass, b: PathClass) -> PathClass:
    """The farther of two classes."""
    order = list(PathClass)
    return max(a, b, key=order.index)
