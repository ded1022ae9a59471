"""Evidence written by a test, read by one module; and files that nobody wrote, which may be refused in one way only."""

import os
import tempfile
from pathlib import Path
from types import ModuleType

from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.core.printable import printable
from linkwise.trace.facts import Fact
from linkwise.trace.readers.base import Reading, Source

JUNE_NS = 1_782_000_000_000_000_000  # 2026-06-21 00:00:00 UTC: the date that files of the tests bear


def read(folder: Path, module: ModuleType, text: str, name: str = "evidence.txt") -> Reading:
    """What the module says of a file of that text; it must recognise it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    os.utime(path, ns=(JUNE_NS, JUNE_NS))
    source = Source(path, where=name)
    assert module.recognises(source)
    reading: Reading = module.read(source)
    return reading


def recognises(folder: Path, module: ModuleType, text: str, name: str = "evidence.txt") -> bool:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return bool(module.recognises(Source(path, where=name)))


def pick(reading: Reading, kind: str, name: str = "") -> list[Fact]:
    """Facts of a kind, or of a kind and name, in order."""
    return [fact for fact in reading.facts if fact.kind == kind and name in ("", fact.name)]


def one(reading: Reading, kind: str, name: str) -> Fact:
    """The only fact of that kind and name."""
    (fact,) = pick(reading, kind, name)
    return fact


def values(reading: Reading, kind: str) -> dict[str, float]:
    return {fact.name: fact.value for fact in reading.facts if fact.kind == kind}


def never_raises(module: ModuleType, data: bytes, name: str) -> None:
    """A file of these bytes is read or refused with an InputError, and every fact of it is fit to be shown."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        try:
            source = Source(path, where=name)
            recognised = module.recognises(source)
            reading = module.read(source)
        except InputError:
            return
        assert isinstance(recognised, bool)
        for fact in reading.facts:
            shown = "".join((fact.text, fact.device, fact.host, fact.name, *(value for _, value in fact.labels)))
            assert printable(shown) == shown
            assert fact.unix_ns >= 0
            assert fact.value == fact.value


def mutated(text: str) -> st.SearchStrategy[bytes]:
    """The text with some of it cut out, doubled, or replaced by digits, signs or noise."""
    raw = text.encode()
    noise = st.one_of(
        st.binary(max_size=12), st.sampled_from([b"9" * 400, b"-1", b"nan", b"\x00", b"\n", b"(", b"\xff\xfe", b" : "])
    )
    edits = st.lists(st.tuples(st.integers(0, len(raw)), st.integers(0, 40), noise), min_size=1, max_size=6)

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        data = raw
        for at, length, new in changes:
            data = data[:at] + new + data[at + length :]
        return data

    return edits.map(apply)
