"""Standard output: held until it stands, but for text that must appear at once."""

import io
import os
import sys
from typing import Any

import pytest

from linkwise import cli_run, streams
from linkwise.core.errors import OutputError
from linkwise.dist.watch import Lost
from linkwise.supervise.types import Failed, Fault, Finished, Job, Token


def piped(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A standard output that is no terminal. Not a fixture: pytest puts its own back before a test's body."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_text_that_must_appear_at_once_comes_after_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    out = piped(monkeypatch)
    with streams.held_output():
        print("before")
        assert out.getvalue() == ""
        streams.write_now("now\x1b[2J", end="")
        assert out.getvalue() == "before\nnow\\x1b[2J"
        print("after")
    assert out.getvalue() == "before\nnow\\x1b[2Jafter\n"


def test_a_command_that_goes_on_ends_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    read, written = os.pipe()
    with open(written, "w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        streams.write_now("now")
        os.close(read)
        with pytest.raises(OutputError, match="nobody reads") as error:
            streams.write_now("then")
        assert error.value.exit_code == 74
    read, written = os.pipe()
    os.close(read)
    with open(written, "w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        streams.write("a finished answer: its exit code answers")


def test_nothing_that_was_held_comes_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = piped(monkeypatch)
    with pytest.raises(ValueError, match="x"), streams.held_output():
        streams.write_now("shown")
        print("held")
        raise ValueError("x")
    assert out.getvalue() == "shown\n"


class _Unit:
    """Has drawn all its tokens at once."""

    error = None

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def submit(self, job: Job, sink: Any) -> None:
        for event in self._events:
            sink(event)


class _Text:
    def __init__(self, out: io.StringIO, seen: list[str]) -> None:
        self._out, self._seen = out, seen

    def stream(self) -> Any:
        return self

    def push(self, token: int) -> str:
        self._seen.append(self._out.getvalue())  # what the reader had when this token came
        return f"w{token} "

    def finish(self) -> str:
        return ""


def answered(out: io.StringIO, last: Any, *, stream: bool = True) -> tuple[Any, list[str]]:
    seen: list[str] = []
    unit: Any = _Unit([Token("run", 1, 0), Token("run", 2, 1), last])
    with streams.held_output():
        return cli_run._answered(unit, Job("run", (1,), 5), _Text(out, seen), stream=stream), seen  # type: ignore[arg-type]


def test_an_answer_reaches_a_pipe_while_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    out = piped(monkeypatch)
    answer, seen = answered(out, Finished("run", "length"))
    assert seen == ["", "w1 "]
    assert (answer.text, out.getvalue()) == ("w1 w2 ", "w1 w2 \n")


def test_what_came_before_an_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    out = piped(monkeypatch)
    with pytest.raises(Lost):
        answered(out, Failed("run", Fault((1,), "dead", "rank 1 was killed")))
    assert out.getvalue() == "w1 w2 \n"


def test_json_is_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    out = piped(monkeypatch)
    answer, _ = answered(out, Finished("run", "length"), stream=False)
    assert (answer.text, out.getvalue()) == ("w1 w2 ", "")
