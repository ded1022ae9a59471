"""Tokens to text while they come, never half a character."""

import codecs
from collections.abc import Set
from typing import Any

_HELD = 16  # tokens held back at most where a decoder is not of bytes
_PARTIAL = "\ufffd"


def alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, the rest for 256 and following, in order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}


class Stream:
    """The text of one answer. All texts that push and finish give, joined, are the text of all tokens (where a decoder
    is not of bytes: of all whose bytes are UTF-8; it judges a run of bytes as a whole, which nobody who streams can).

    A character of several tokens comes with its last one. Special tokens, and ids the tokenizer does not know, are no
    text.
    """

    def __init__(self, tokenizer: Any, special: Set[int]) -> None:
        from tokenizers.decoders import ByteLevel

        self._tokenizer, self._special = tokenizer, special
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._letters = alphabet() if isinstance(tokenizer.decoder, ByteLevel) else None
        # Other decoders: texts depend on the tokens before, so the last ones that were given out are decoded again.
        self._given: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """The text this token completes; empty when there is none yet."""
        if token in self._special:
            return ""
        word = self._tokenizer.id_to_token(token)
        if word is None:
            return ""
        if self._letters is not None:
            return self._bytes.decode(self._encoded(word, self._letters))
        self._held.append(token)
        return self._take(final=len(self._held) > _HELD)

    def finish(self) -> str:
        """What is left: the bytes of a character that never ended, as U+FFFD."""
        return self._bytes.decode(b"", True) if self._letters is not None else self._take(final=True)

    @staticmethod
    def _encoded(word: str, letters: dict[str, int]) -> bytes:
        try:
            return bytes([letters[letter] for letter in word])
        except KeyError:  # a token added as plain text
            return word.encode()

    def _take(self, *, final: bool) -> str:
        before = self._tokenizer.decode(self._given)
        after: str = self._tokenizer.decode([*self._given, *self._held])
        if not self._held or (after.endswith(_PARTIAL) and not final):
            return ""
        self._given, self._held = self._held, []
        return after[len(before) :]
