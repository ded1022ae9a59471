"""How many tokens a text makes at least: a text far too long is refused before it costs a tokenizer seconds."""

import json
from typing import Any

from linkwise.runtime.detokenise import alphabet

# Bytes of a text that its composed form (NFC) has one of, at most: three (an Ohm sign alone; Hangul letters; marks).
_COMPOSED = 3
_KEEPS = {"ByteLevel", "Digits", "Punctuation", "Split"}  # they cut, and keep what they cut


class Least:
    """Counts by the longest token. Only for tokenizers of bytes: every byte that has a token is part of a token."""

    def __init__(self, tokenizer: Any) -> None:
        words = tokenizer.get_vocab(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder().values()
        # Bytes without a token of their own: they may vanish, or a run of them be one unknown token.
        self._lost = bytes(byte for letter, byte in alphabet().items() if letter not in words)
        # Such a token takes the spaces beside it along, however many.
        self._strips = any(token.lstrip or token.rstrip for token in added)
        longest = max([1, *map(len, words), *(len(token.content.encode()) for token in added)])
        self._bytes = longest * _kept(tokenizer)  # of a text, that one token may stand for; 0: nobody knows

    def tokens(self, text: str) -> int:
        """A lower bound; 0 where there is none to give."""
        if not self._bytes:
            return 0
        counted = "".join(text.split()) if self._strips else text
        return -(-len(counted.encode("utf-8", "replace").translate(None, self._lost)) // self._bytes)


def _kept(tokenizer: Any) -> int:
    """Bytes of a text per letter that the tokenizer's model gets of it, at most; 0: it may drop any number."""
    cutter = tokenizer.pre_tokenizer
    if type(tokenizer.model).__name__ != "BPE" or cutter is None:
        return 0
    state = json.loads(cutter.__getstate__())
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    kinds = {part["type"] for part in parts}
    if "ByteLevel" not in kinds or not kinds <= _KEEPS or any(part.get("behavior") == "Removed" for part in parts):
        return 0
    return {"NoneType": 1, "NFC": _COMPOSED}.get(type(tokenizer.normalizer).__name__, 0)
