"""Large logs: what a sieve lets through, what --since does not read, where reading ends when time is up."""

import gzip
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.trace import readers
from linkwise.trace.gather import gather
from linkwise.trace.readers import base, engine_log, seek
from linkwise.trace.readers.base import Source
from linkwise.trace.readers.sieve import Sieve

STATS = (
    "INFO 02-27 {h:02}:{m:02}:{s:02} [loggers.py:127] Engine 000: Avg prompt throughput: 900.0 tokens/s, Avg generation"
    " throughput: {n}.5 tokens/s, Running: 3 reqs, Waiting: 7 reqs, GPU KV cache usage: 12.5%\n"
)


def stats(seconds: int) -> str:
    """A line a second from 10:00 on; its throughput is its number."""
    return "".join(STATS.format(h=10 + n // 3600, m=n // 60 % 60, s=n % 60, n=n) for n in range(seconds))


@given(
    st.lists(st.text("abcd ", max_size=12), max_size=12),
    st.lists(st.text("abcd", min_size=4, max_size=6), min_size=1, max_size=4),
)
def test_a_sieve_lets_no_line_with_a_word_fall(lines: list[str], words: list[str]) -> None:
    block = "".join(f"\n{line}" for line in [*lines, ""]).encode()
    found = dict(Sieve(*words).lines(block))
    assert all(found[n] == lines[n].encode() for n in found)
    assert {n for n, line in enumerate(lines) if any(word in line for word in words)} <= set(found)


def test_a_word_of_a_sieve_may_be_how_a_line_begins() -> None:
    block = b"\n  frame\nnone at all\n    deep\na  b\n"
    assert [n for n, _ in Sieve("\n  ").lines(block)] == [0, 2]


def test_a_sieve_of_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="lets everything through"):
        Sieve("ab")


def test_lines_keep_their_numbers_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BLOCK_BYTES", 64)
    rows = [f"{n} {'x' * (n % 90)}{' needle' * (n % 7 == 0)}" for n in range(200)]
    path = tmp_path / "log"
    for text in ("\n".join(rows), "\n".join(rows) + "\n", "\n".join(rows) + "\n\n\n"):
        path.write_text(text)
        source = Source(path)
        assert source.tail(2) == [(0, rows[-2]), (0, rows[-1])]  # nobody has counted yet
        assert list(source.lines())[:200] == list(enumerate(rows, 1))
        assert source.tail(3) == [(198, rows[-3]), (199, rows[-2]), (200, rows[-1])]
        needles = [(n, row) for n, row in enumerate(rows, 1) if "needle" in row]
        assert [one for one in Source(path).sifted(Sieve("needle")) if "needle" in one[1]] == needles
    (tmp_path / "log.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    packed = Source(tmp_path / "log.gz")
    assert list(packed.lines()) == list(enumerate(rows, 1))
    assert packed.tail(1) == [(200, rows[-1])]


def test_since_reads_the_beginning_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SEEK_BYTES", 100_000), ("KEPT_BYTES", 1_000), ("_STEP", 2_000)):
        monkeypatch.setattr(seek, name, value)
    monkeypatch.setattr(base, "BLOCK_BYTES", 1_000)
    path = tmp_path / "server.log"
    path.write_text("NCCL_NET_GDR_LEVEL=0\n" + stats(7200))
    # The last time is 11:59:59: five minutes and a minute's margin before it begin with line 6,840 of figures.
    source = Source(path, since_s=300)
    _, reading = readers.read(source)
    figures = [fact for fact in reading.facts if fact.name == "serve.gen_tok_s"]
    later = [fact.value for fact in figures if fact.value > 100]
    assert 6_820 <= min(later) <= 6_839.5
    assert max(later) == 7_199.5
    assert [fact.source for fact in figures if fact.value == 7_199.5] == [f"{path}: line 7201"]
    assert any(fact.name == "NCCL_NET_GDR_LEVEL" for fact in reading.facts)
    (note,) = [note for note in reading.notes if "before the time asked for" in note]
    assert note.startswith("lines ")
    assert len(later) >= 360


def test_a_log_without_times_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seek, "SEEK_BYTES", 1_000)
    monkeypatch.setattr(seek, "KEPT_BYTES", 100)
    path = tmp_path / "server.log"
    path.write_text("[rank1]: something\n" * 500 + "[rank1]: RuntimeError: CUDA error: unspecified launch failure\n")
    _, reading = readers.read(Source(path, since_s=10))
    assert [fact.name for fact in reading.facts] == ["cuda_error"]
    assert reading.notes == ()


def test_when_time_is_up_what_was_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BLOCK_BYTES", 10_000)
    ticks = count()
    monkeypatch.setattr(base.time, "process_time", lambda: float(next(ticks)))
    path = tmp_path / "server.log"
    path.write_text(stats(1000))
    source = Source(path)
    source.until_cpu_s = 6.0
    reading = engine_log.read(source)
    assert 0 < len([fact for fact in reading.facts if fact.name == "serve.running"]) < 500
    assert "read to line" in source.notes[0]
    assert "% of it" in source.notes[0]


def test_files_beyond_the_most_are_named_and_the_rest_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linkwise.trace.gather.MAX_FILES", 2)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(stats(2))
    found = gather([tmp_path])
    assert [one.path for one in found.used] == ["a", "b"]
    assert [(one.path, one.reason) for one in found.unusable] == [("c", "not read: more than 2 files")]


def test_a_storm_on_one_rank_does_not_drown_the_others(tmp_path: Path) -> None:
    """2,000 lines of rank 0, then one of rank 3 and one exception of rank 5."""
    path = tmp_path / "server.log"
    line = "(Worker_TP{} pid=1{}) ERROR 02-27 10:00:00 [x.py:1] RuntimeError: CUDA error: unspecified launch failure\n"
    odd = "(Worker_TP0 pid=10) ERROR 02-27 10:00:00 [x.py:1] ValueError: {}\n"
    text = line.format(0, 0) * 2000 + "".join(map(odd.format, range(500))) + line.format(3, 3)
    path.write_text(text + odd.format("late").replace("TP0 pid=10", "TP5 pid=15"))
    _, reading = readers.read(Source(path))
    errors = [fact for fact in reading.facts if fact.name == "cuda_error"]
    assert {fact.rank for fact in errors} == {0, 3}
    assert len(errors) <= 1001
    assert {fact.rank for fact in reading.facts if fact.name == "exception"} == {0, 5}
    assert any("999 facts" in note or "1,000 facts" in note or "1000 facts" in note for note in reading.notes)
