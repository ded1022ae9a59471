"""Frames: whole or in pieces, bounded, and refused when they are not as agreed."""

import socket
import threading

import msgspec
import pytest

from linkwise.core.layout import Layout
from linkwise.runtime.control import (
    FROM_RANK,
    MAX_FRAME,
    MAX_GREETING,
    TO_RANK,
    Begin,
    Broken,
    Channel,
    Frames,
    Hello,
    Line,
    Quit,
    Run,
    UnitSpec,
    frame,
    new_token,
    same_token,
)
from linkwise.runtime.steps import Row, Step
from linkwise.supervise.types import Sampling

STEP = Step(
    3, ((Row(7, 4, (1, 2), True, Sampling(0.5, 0.9, 2**63 - 1), (1, 2)), Row(-1, 0, (0,), False, None, ())), ())
)


def test_messages_survive_any_cut() -> None:
    spec = UnitSpec(weights="w", layout=Layout(tp=2), prefill=Layout())
    sent = [Run(STEP, (("k", ""), ())), Begin(spec, "localhost", 5), Quit()]
    data = b"".join(map(frame, sent))
    for size in (1, 3, 50, len(data)):
        frames = Frames(TO_RANK, MAX_FRAME)
        assert [m for at in range(0, len(data), size) for m in frames.feed(data[at : at + size])] == sent


@pytest.mark.parametrize(
    "data",
    [
        (MAX_GREETING + 1).to_bytes(4, "big"),
        b"\0\0\0\1\xc1",
        b"\0\0\0\2\x92\x01",
        frame(Quit()),  # of the other direction
        b"\0\0\0\7" + msgspec.msgpack.encode(["hello"]),
        frame(msgspec.Raw(msgspec.msgpack.encode(["hello", "one", "t", 1, 0]))),
    ],
)
def test_what_is_no_message_ends_the_conversation(data: bytes) -> None:
    with pytest.raises(Broken):
        list(Frames(FROM_RANK).feed(data))


def test_tokens() -> None:
    assert new_token() != new_token() and len(new_token()) == 32
    assert same_token("a", "a") and not same_token("a", "b") and not same_token("ä", "a")


def test_a_line_and_its_channel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(*server.getsockname()[:2])
        channel = Channel(server.accept()[0])
        assert channel.receive() == []
        line.send(Hello(1, "t", 2))
        found: list[object] = []
        while not found:
            found += channel.receive()
        assert found == [Hello(1, "t", 2)]
        # More than a socket takes at once: sending does not wait.
        big = Run(Step(1, (tuple(Row(i, 0, tuple(range(2000)), True, None, ()) for i in range(800)),)))
        channel.send(frame(big))
        assert channel.want
        heard: list[object] = []
        reader = threading.Thread(target=lambda: heard.extend(line.messages()))
        reader.start()
        while channel.want:
            channel.flush()
        channel.close()
        reader.join(timeout=20)
        assert heard == [big]
        line.close()


def test_a_driver_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    with pytest.raises(Broken, match="does not answer"):
        Line(*address)


def test_too_large_a_message_is_not_sent() -> None:
    with pytest.raises(ValueError, match="at most"):
        frame(Hello(0, "x" * (MAX_FRAME + 1), 0))
