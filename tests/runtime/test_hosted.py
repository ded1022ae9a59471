"""Ranks that somebody else started: what becomes of them when one is stopped, the one that drives them included."""

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from linkwise.runtime.control import Here, Quit
from linkwise.runtime.worker import Patience, _listen, _read, _State

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.faults import tiny  # noqa: E402

WAIT_S = 150
Run = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def start(folder: Path) -> Iterator[Run]:
    """Two ranks of `linkwise run`, with torchrun's environment."""
    made: list[subprocess.Popen[str]] = []

    def run(*words: str, world: int = 2) -> list["subprocess.Popen[str]"]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(world):
            own = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            command = [sys.executable, "-m", "linkwise", "run", "--weights", str(folder), "--raw", "--prompt", "hello"]
            made.append(
                subprocess.Popen(
                    [*command, *words], env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
        return made

    yield run
    for process in made:
        process.kill()
        process.communicate()


def test_both_end_well_when_the_text_is_drawn(start: Run) -> None:
    both = start("--layout", "pp=2", "--max-tokens", "4", "--check")
    said = [one.communicate(timeout=WAIT_S) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert "every call as planned" in said[0][0] and said[1][0] == ""


def test_the_others_end_and_name_rank_0_when_it_is_stopped(start: Run) -> None:
    driver, other = start("--layout", "tp=2", "--max-tokens", "490", "--timeout", "6s")
    assert driver.stdout is not None and driver.stdout.read(1)
    driver.send_signal(signal.SIGSTOP)
    _, said = other.communicate(timeout=WAIT_S)
    assert other.returncode == 1
    assert "rank 1: rank 0, which drives the run, has said nothing for 4." in said


def test_a_rank_that_never_calls_is_named_within_the_start_time(start: Run) -> None:
    driver, other = start("--layout", "tp=2", "--timeout", "6s", "--start-timeout", "8s")
    other.send_signal(signal.SIGSTOP)
    _, said = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 1
    assert "not ready within 8 s: rank 1" in said


def test_too_few_ranks_are_told_once(start: Run) -> None:
    both = start("--layout", "tp=4")
    said = [one.communicate(timeout=WAIT_S)[1] for one in both]
    assert [one.returncode for one in both] == [2, 2]
    assert "rank 0: layout: 2 ranks, started by torchrun; expected 4 ranks" in said[0]
    assert said[1] == ""


class Said:
    """A driver's last words to a rank."""

    def __init__(self, *words: object) -> None:
        self.words = words

    def messages(self) -> Iterator[object]:
        yield from self.words


@pytest.mark.parametrize(("words", "left"), [((Quit(), Here()), []), ((Here(),), [1]), ((), [1])])
def test_a_rank_that_was_told_to_quit_leaves_in_order_whatever_comes_after_it(words: tuple[object, ...], left) -> None:
    found: list[int] = []
    _read(Said(*words), queue.SimpleQueue(), found.append, _State())  # type: ignore[arg-type]
    assert found == left


def listened(hear: bool) -> list[float]:
    """What is said of a driver that says nothing for 0.5 s, or something all the time for 1.5 s."""
    state, over, said = _State(), Event(), list[float]()
    thread = Thread(target=_listen, args=(state, Patience(0.5, said.append), over))
    thread.start()
    for _ in range(30):
        state.heard += hear
        time.sleep(0.05)
    over.set()
    thread.join()
    return said


def test_a_silent_driver_is_told_of_once_and_one_that_speaks_never() -> None:
    assert listened(True) == []
    assert len(listened(False)) == 1
    assert Here() == Here()
