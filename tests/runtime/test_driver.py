"""The driver with ranks that are processes without torch: texts, cancellation, and every kind of fault by name."""

import json
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_model import text
from tests.runtime.fake_rank import BUSY, LAG, LEAVE, LONG, RAISE, SLEEP, prepare
from tests.supervise.fake import until

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.runtime import arrivals, group
from linkwise.runtime.control import Hello, frame
from linkwise.runtime.driver import LocalUnit, UnitSpec
from linkwise.supervise.types import Event, Failed, Fault, Finished, Job, Sampling, Token

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_rank.py")))
LIVES = count()
BOUND_S = 6.0  # within which a rank is named
WAIT_S = 100  # for what has no bound: a machine may be busy


class Driven:
    """A unit with what it said."""

    def __init__(self, folder: Path, layout: Layout, **spec: Any) -> None:
        sizes = {"kv_tokens": 2048, "block_tokens": 4, "timeout_s": BOUND_S} | spec
        self.lines: list[str] = []
        settled = UnitSpec(weights=str(folder), layout=layout, **sizes)
        self.unit = LocalUnit(f"u{next(LIVES)}", settled, command=COMMAND, say=self.lines.append)
        self.states: queue.Queue[tuple[str, Fault | None]] = queue.Queue()
        self.events: queue.Queue[Event] = queue.Queue()

    def start(self) -> "Driven":
        self.unit.start(lambda state, fault: self.states.put((state, fault)))
        assert self.states.get(timeout=WAIT_S) == ("starting", None)
        return self

    def ready(self) -> "Driven":
        self.start()
        state, fault = self.states.get(timeout=WAIT_S)
        assert state == "ready", fault
        return self

    def submit(self, id: str, prompt: list[int], tokens: int = 4, **more: Any) -> None:
        self.unit.submit(Job(id, tuple(prompt), tokens, **more), self.events.put)

    def until_end(self, ids: int) -> list[Event]:
        found: list[Event] = []
        while ids:
            found.append(self.events.get(timeout=WAIT_S))
            ids -= not isinstance(found[-1], Token)
        return found

    def fault(self) -> tuple[Fault, float]:
        began = time.monotonic()
        state, fault = self.states.get(timeout=WAIT_S)
        assert state == "failed" and fault is not None
        return fault, time.monotonic() - began


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def driven(tmp_path: Path, env: None) -> Iterator[Any]:
    made: list[Driven] = []

    def make(layout: Layout, **spec: Any) -> Driven:
        one = Driven(prepare(tmp_path), layout, **spec)
        made.append(one)
        return one

    yield make
    for one in made:
        one.unit.stop()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def said(events: list[Event], id: str) -> list[int]:
    return [event.token for event in events if isinstance(event, Token) and event.id == id]


def test_texts_of_concurrent_requests_restart_and_stop(driven: Any, tmp_path: Path) -> None:
    one = driven(Layout(pp=2, dp_attn=2)).ready()
    jobs = {str(i): [i, 2, 3, 4, 5, 6][: 2 + i % 5] for i in range(12)}
    for id, prompt in jobs.items():
        one.submit(id, prompt, 7)
    events = one.until_end(12)
    for id, prompt in jobs.items():
        assert said(events, id) == text(prompt, 7)
        assert sum(isinstance(e, Finished) and e.id == id for e in events) == 1
    load = one.unit.load
    assert (load.running, load.waiting, load.generated_tokens, load.kv_used_tokens) == (0, 0, 84, 0)
    assert load.kv_tokens == 2048
    pids = [facts.pid for facts in one.unit.facts]
    assert len(set(pids)) == 4 and [facts.rank for facts in one.unit.facts] == [0, 1, 2, 3]

    one.submit("long", [1, 2], 300)
    assert isinstance(one.events.get(timeout=WAIT_S), Token)
    one.unit.cancel("long")
    assert one.until_end(1)[-1] == Finished("long", "cancelled")
    one.unit.cancel("unknown")

    answers: queue.Queue[bool] = queue.Queue()
    one.unit.probe(answers.put)
    assert answers.get(timeout=WAIT_S)

    one.submit("unfinished", [1], 400)
    one.unit.stop()
    assert one.unit.state == "stopped" and all(map(gone, pids))
    assert isinstance(one.until_end(1)[-1], Failed)
    assert one.states.get(timeout=WAIT_S) == ("stopped", None)
    with pytest.raises(RuntimeError, match="stopped"):
        one.submit("x", [1])
    one.unit.probe(answers.put)
    assert not answers.get(timeout=WAIT_S)
    one.unit.stop()

    for name in tmp_path.glob("meet-*/*"):
        name.unlink()
    one.ready()
    one.submit("a", [7, 8], 3)
    assert said(one.until_end(1), "a") == text([7, 8], 3)


def test_idle_stop_is_kind(driven: Any) -> None:
    one = driven(Layout(tp=2)).ready()
    began = time.monotonic()
    one.unit.stop()
    assert time.monotonic() - began < 2
    assert one.unit.error is None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_at_once(driven: Any, rank: int) -> None:
    one = driven(Layout(tp=2)).ready()
    one.submit("a", [1, 2], 500)
    first = one.events.get(timeout=WAIT_S)
    pids = [facts.pid for facts in one.unit.facts]
    os.kill(pids[rank], signal.SIGKILL)
    fault, after = one.fault()
    assert (fault.ranks, fault.kind) == ((rank,), "dead") and "SIGKILL" in fault.message
    one.unit.stop()
    assert after < BOUND_S and all(map(gone, pids))
    events = [first, *one.until_end(1)]
    assert events[-1] == Failed("a", fault)
    assert said(events, "a") == text([1, 2], len(events) - 1)


def test_two_killed_ranks_are_named_together(driven: Any) -> None:
    one = driven(Layout(tp=4)).ready()
    pids = [facts.pid for facts in one.unit.facts]
    for rank in (1, 3):
        os.kill(pids[rank], signal.SIGKILL)
    assert one.fault()[0].ranks == (1, 3)


@pytest.mark.parametrize("busy", [True, False])
def test_a_stopped_rank_is_named(driven: Any, busy: bool) -> None:
    one = driven(Layout(tp=2)).ready()
    if busy:
        one.submit("a", [1, 2], 500)
        one.events.get(timeout=WAIT_S)
    pids = [facts.pid for facts in one.unit.facts]
    os.kill(pids[1], signal.SIGSTOP)
    fault, after = one.fault()
    assert (fault.ranks, fault.kind) == ((1,), "stopped")
    one.unit.stop()
    assert after < BOUND_S and all(map(gone, pids))


def test_a_stopped_rank_is_named_by_its_silence_alone(driven: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linkwise.runtime.local.Processes.halted", lambda self: [])
    one = driven(Layout(tp=2)).ready()
    os.kill(one.unit.facts[0].pid, signal.SIGSTOP)
    fault, after = one.fault()
    assert (fault.ranks, fault.kind) == ((0,), "stopped") and "heartbeat" in fault.message
    assert after < BOUND_S


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(pp=2)])
def test_a_sleeping_rank_is_named(driven: Any, layout: Layout) -> None:
    one = driven(layout).ready()
    pids = [facts.pid for facts in one.unit.facts]
    one.submit("a", [SLEEP + 1], 5)
    fault, after = one.fault()
    assert (fault.ranks, fault.kind) == ((1,), "slow") and "attn.out" in fault.message
    one.unit.stop()
    assert after < BOUND_S and all(map(gone, pids))


@pytest.mark.parametrize("token", [LONG, BUSY])
@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(pp=2)])
def test_a_rank_that_computes_for_long_is_left_alone(driven: Any, layout: Layout, token: int) -> None:
    """Its stage takes longer than the time limit, and so does the other rank's call that waits for it."""
    one = driven(layout).ready()
    one.submit("a", [token, 2], 3)
    events = one.until_end(1)
    assert events[-1] == Finished("a", "length") and said(events, "a") == text([token, 2], 3)
    assert one.states.empty()


def test_a_slow_group_tells_whose_prompt_it_was_computing(driven: Any) -> None:
    one = driven(Layout(tp=2)).ready()
    one.submit("decodes", [1, 2], 400)
    one.events.get(timeout=WAIT_S)
    one.submit("sticks", [SLEEP + 1], 5)
    fault, _ = one.fault()
    assert (fault.ranks, fault.kind, fault.jobs) == ((1,), "slow", ("sticks",))


def test_counters_go_on_over_lives_that_nobody_looked_at(driven: Any, tmp_path: Path) -> None:
    one = driven(Layout()).ready()
    one.submit("a", [1, 2, 3], 4)
    one.until_end(1)
    os.kill(one.unit.facts[0].pid, signal.SIGKILL)
    one.fault()
    one.unit.stop()
    load = one.unit.load
    assert (load.running, load.prompt_tokens, load.generated_tokens) == (0, 3, 4)
    for name in tmp_path.glob("meet-*/*"):
        name.unlink()
    one.ready()
    one.submit("b", [1, 2, 3, 4, 5], 6)
    one.until_end(1)
    load = one.unit.load
    assert (load.prompt_tokens, load.generated_tokens) == (3 + 5, 4 + 6)


def test_traces_that_are_not_written_are_told_and_counted(
    driven: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "WRITTEN_S", 1.5)
    one = driven(Layout(tp=2)).ready()

    def now(events: int, trouble: str) -> None:
        (tmp_path / "new").write_text(json.dumps([events, trouble]))
        (tmp_path / "new").replace(tmp_path / "unwritten")  # ranks read it all the time

    now(3, "no space left on device")
    assert until(lambda: one.lines)
    for trouble in ("", "no space left on device", ""):  # a little room is no end of it
        now(5, trouble)
        time.sleep(0.6)
    assert until(lambda: len(one.lines) == 2)
    first, second = (line.removeprefix(f"{one.unit.name}: traces are ") for line in one.lines)
    assert re.fullmatch(r"not written: rank [01]: no space left on device; the ranks go on without", first)
    assert second == "written again; 10 events are missing"
    now(7, "no space left on device")  # what is told last counts too
    one.unit.stop()
    assert one.unit.load.unwritten_events == 14


def test_an_error_is_told_by_its_rank(driven: Any) -> None:
    one = driven(Layout(tp=2)).ready()
    one.submit("a", [RAISE + 1], 5)
    fault, after = one.fault()
    assert (fault.ranks, fault.kind) == ((1,), "error") and "out of luck" in fault.message
    assert after < BOUND_S


def test_an_exit_is_told_with_its_last_words(driven: Any) -> None:
    one = driven(Layout(tp=2)).ready()
    one.submit("a", [LEAVE + 0], 5)
    fault, _ = one.fault()
    assert (fault.ranks, fault.kind) == ((0,), "dead")
    assert "code 3" in fault.message and "fatal: leaving" in fault.message


def test_a_slow_participant_is_known_before_anything_fails(driven: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "IN_A_ROW", 3)
    one = driven(Layout(tp=2)).ready()
    one.submit("a", [LAG + 1], 100)  # 5 s, in every step of which the rank is late
    events = one.until_end(1)
    assert isinstance(events[-1], Finished)
    (line,) = one.lines
    assert line.startswith(f"{one.unit.name}: rank 1 holds the others up: ")
    here = one.unit.arrivals
    assert here[1].lagging and not here[0].lagging
    assert here[1].own_s > 0.04 and here[1].own_s > here[1].others_s + 0.02


def test_an_observed_request_ends_when_every_rank_has_told(driven: Any) -> None:
    one = driven(Layout(tp=2), observe=True).ready()
    for number in range(20):  # rank 0 draws: what rank 1 saw of the last step may come after the last token
        one.submit(str(number), [1, 2, 3], 3)
        one.until_end(1)
        assert one.unit.observed
        assert all(set(step.seen) == {0, 1} for step in one.unit.observed)


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [({"missing_on": 1}, 2, "tensor 'x' is missing"), ({"exits_on": 1}, None, "no such library")],
)
def test_a_rank_that_cannot_start(tmp_path: Path, env: None, fields: dict[str, int], code: int, word: str) -> None:
    one = Driven(prepare(tmp_path, **fields), Layout(tp=2)).start()
    fault, _ = one.fault()
    assert (fault.ranks, fault.kind) == ((1,), "start") and word in fault.message
    if code:
        assert isinstance(one.unit.error, InputError) and "rank 1" in str(one.unit.error)
    one.unit.stop()


def test_a_rank_that_never_starts(tmp_path: Path, env: None) -> None:
    one = Driven(prepare(tmp_path, sleeps_on=0), Layout(tp=2), start_s=8.0).start()
    fault, _ = one.fault()
    assert (fault.ranks, fault.kind) == ((0,), "start")
    one.unit.stop()


def test_jobs_that_no_rank_could_run_are_refused(driven: Any) -> None:
    one = driven(Layout(), kv_tokens=40)
    assert one.unit.max_tokens == 40
    one.ready()
    for prompt in ([], [64], [-1], [1] * 40):
        with pytest.raises(InputError):
            one.submit("a", prompt)
    for sampling in (Sampling(top_p=0), Sampling(temperature=-1), Sampling(seed=1 << 64)):
        with pytest.raises(InputError):
            one.submit("a", [1], sampling=sampling)
    with pytest.raises(InputError):
        one.submit("a", [1], 0)


def test_strangers_are_not_listened_to(driven: Any) -> None:
    one = driven(Layout(tp=2)).ready()
    host, port, _ = one.unit._group._peers.address
    for words in (b"GET / HTTP/1.1\r\n\r\n", frame(Hello(0, "guess", 1)), b"\xff\xff\xff\xff"):
        with socket.create_connection((host, port), timeout=5) as stranger:
            stranger.sendall(words)
            try:
                assert stranger.recv(10) == b""
            except ConnectionResetError:
                continue
    one.submit("a", [1], 3)
    assert said(one.until_end(1), "a") == text([1], 3)


def test_ranks_end_with_their_driver(tmp_path: Path, env: None) -> None:
    """A driver that is killed leaves nobody behind, stopped ranks included."""
    import subprocess

    code = """
import sys, time
from pathlib import Path
from linkwise.core.layout import Layout
from tests.runtime.test_driver import Driven
one = Driven(Path(sys.argv[1]), Layout(tp=2)).ready()
print(*(facts.pid for facts in one.unit.facts), flush=True)
time.sleep(60)
"""
    prepare(tmp_path)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        os.kill(pids[1], signal.SIGSTOP)
        driver.kill()
    deadline = time.monotonic() + 30
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(pids) == 2 and all(map(gone, pids))


def test_submitting_from_many_threads(driven: Any) -> None:
    one = driven(Layout(pp=2), max_seqs=4).ready()
    threads = [threading.Thread(target=one.submit, args=(str(i), [i, i + 1], 5)) for i in range(16)]
    for thread in threads:
        thread.start()
    events = one.until_end(16)
    for i in range(16):
        assert said(events, str(i)) == text([i, i + 1], 5)
