"""Answers as OpenAI's API writes them, whole or in server-sent events."""

from collections.abc import Sequence
from typing import Any

import msgspec

from linkwise.runtime.serve.answer import Answer, Piece
from linkwise.runtime.serve.asks import Ask

DONE = b"data: [DONE]\n\n"


class Bodies:
    """One request's answers. id, created (seconds since 1970) and model stand in each."""

    def __init__(self, id: str, created: int, model: str, ask: Ask) -> None:
        self._ask = ask
        kind = "chat.completion" if ask.chat else "text_completion"
        self._head = {"id": id, "object": kind, "created": created, "model": model}
        # Completions write chunks under the same object name, chats under their own.
        self._chunk = {**self._head, "object": "chat.completion.chunk" if ask.chat else kind}

    def whole(self, texts: Sequence[str], reasons: Sequence[str], answer: Answer) -> bytes:
        choices = []
        for number, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
            content = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._ask.chat else {}
            plain = {} if self._ask.chat else {"text": text}
            choices.append({"index": number, **content, **plain, "logprobs": None, "finish_reason": reason})
        return msgspec.json.encode({**self._head, "choices": choices, "usage": _usage(answer)})

    def first(self) -> list[bytes]:
        """What comes before any text."""
        if not self._ask.chat:
            return []
        return [self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}, **_open()}])]

    def piece(self, piece: Piece) -> list[bytes]:
        """A piece's events: its text, then why it is over."""
        events: list[list[dict[str, Any]]] = []
        if self._ask.chat:
            if piece.text:
                events.append([{"index": piece.number, "delta": {"content": piece.text}, **_open()}])
            if piece.reason:
                events.append([{"index": piece.number, "delta": {}, "logprobs": None, "finish_reason": piece.reason}])
        elif piece.text or piece.reason:
            reason = piece.reason or None
            events.append([{"index": piece.number, "text": piece.text, "logprobs": None, "finish_reason": reason}])
        return [self._event(choices) for choices in events]

    def last(self, answer: Answer) -> list[bytes]:
        """What comes after all text."""
        usage = [_line({**self._chunk, "choices": [], "usage": _usage(answer)})] if self._ask.usage else []
        return [*usage, DONE]

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        # With usage asked for, every chunk has the field, null but in the last.
        return _line({**self._chunk, "choices": choices, **({"usage": None} if self._ask.usage else {})})


def _open() -> dict[str, None]:
    return {"logprobs": None, "finish_reason": None}


def _usage(answer: Answer) -> dict[str, int]:
    prompt, tokens = answer.prompt_tokens, answer.tokens
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def _line(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def error_event(body: dict[str, Any]) -> bytes:
    """An error after the first event: the status line is long gone."""
    return _line(body)
