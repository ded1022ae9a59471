"""A tokenizer for tests: token t is the character with code 32 + t, so that every id is one visible letter."""

import threading
from typing import Any

from tests.supervise.fake import VOCAB, greedy

from linkwise.core.errors import InputError


class FakeStream:
    def push(self, token: int) -> str:
        return chr(31 + token)

    def finish(self) -> str:
        return ""


class FakeText:
    stop_ids: frozenset[int] = frozenset()
    vocab = VOCAB

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self.gate = threading.Event()  # texts of 1000 characters and more wait for it
        self.gate.set()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self.encoded.append(text)
        if len(text) >= 1000:
            self.gate.wait()
        return [1 + (ord(c) - 32) % (VOCAB - 1) for c in text]

    def at_least(self, text: str) -> int:
        return -(-len(text) // 4)  # as if a token could be four characters

    def written(self, messages: list[dict[str, Any]]) -> str:
        for number, message in enumerate(messages):
            if not isinstance(message.get("content"), str):
                raise InputError("no content", where=f"messages[{number}]", expected="a text")
        if not messages:
            raise InputError("no messages", expected="at least one")
        return "\n".join(f"{m['role']}:{m['content']}" for m in messages)

    def stream(self) -> FakeStream:
        return FakeStream()


def written(prompt: str, count: int) -> str:
    """What a greedy completion of the text gives without a fault."""
    return shown(FakeText().encode(prompt), count)


def shown(prompt: list[int], count: int) -> str:
    return "".join(chr(31 + t) for t in greedy(tuple(prompt), count))
