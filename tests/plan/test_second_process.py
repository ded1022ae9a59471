"""A search that is split: a process that is killed, or cannot be started, costs time and no answer."""

import logging
import os
import signal
import sys

import pytest

import linkwise
from linkwise import api_frontier
from linkwise.plan import search as searched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is split off on Linux alone")
ASKED = {"isl": 2000, "osl": 300, "ttft": "2s", "tpot": "50ms"}


def killed_beside(parent: int, value: int) -> int:
    """What no memory is left for in any process but one."""
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


LOOKED, PARENT = searched._looked, os.getpid()


def dies_beside(*given):
    """Half of a search, in a process that does not live to its end."""
    killed_beside(PARENT, 0)
    return LOOKED(*given)


def test_what_a_killed_process_was_asked_for_is_done_here(caplog: pytest.LogCaptureFixture) -> None:
    other = api_frontier.Beside()
    try:
        with caplog.at_level(logging.WARNING, "linkwise"):
            first = other.submit(killed_beside, os.getpid(), 41)
            assert first.result() == 41
            assert other.submit(killed_beside, os.getpid(), 42).result() == 42, "nor does it take anything later"
        assert "ended early" in caplog.text
    finally:
        other.close()


def test_an_error_of_the_work_itself_is_an_error() -> None:
    other = api_frontier.Beside()
    try:
        with pytest.raises(ZeroDivisionError):
            other.submit(divmod, 1, 0).result()
    finally:
        other.close()


def test_without_room_for_a_process_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", none)
    other = api_frontier.Beside()
    try:
        assert other.submit(divmod, 7, 3).result() == (2, 1)
    finally:
        other.close()


def test_a_plan_whose_second_process_is_killed_is_the_same_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = linkwise.plan("llama-3.3-70b", "2x8xh100-sxm", **ASKED)
    monkeypatch.setattr(searched, "WORTH", 1)
    monkeypatch.setattr(searched, "_looked", dies_beside)
    with caplog.at_level(logging.WARNING, "linkwise"):
        found = linkwise.plan("llama-3.3-70b", "2x8xh100-sxm", **ASKED)
    assert "ended early" in caplog.text
    assert found == whole
