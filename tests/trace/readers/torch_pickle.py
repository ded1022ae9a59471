"""Pickles as PyTorch's C++ pickler writes them: protocol 2, strings in the memo, containers not."""

import struct
from typing import Any


def dumps(value: Any) -> bytes:
    """A pickle of dicts, lists, pairs, strings, numbers, None."""
    return b"\x80\x02" + b"".join(_written(value, {})) + b"."


def _written(value: Any, memo: dict[str, int]) -> list[bytes]:
    if isinstance(value, dict):
        inner = [part for pair in value.items() for side in pair for part in _written(side, memo)]
        return [b"}(", *inner, b"u"]
    if isinstance(value, list):
        return [b"](", *(part for item in value for part in _written(item, memo)), b"e"]
    if isinstance(value, tuple):
        assert len(value) == 2
        return [*_written(value[0], memo), *_written(value[1], memo), b"\x86"]
    if isinstance(value, str):
        return [_string(value, memo)]
    if isinstance(value, float):
        return [b"G" + struct.pack(">d", value)]
    return [_scalar(value)]


def _string(text: str, memo: dict[str, int]) -> bytes:
    if text in memo:
        return _indexed(b"h", b"j", memo[text])
    memo[text] = len(memo)
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data + _indexed(b"q", b"r", memo[text])


def _indexed(short: bytes, long: bytes, index: int) -> bytes:
    return short + bytes([index]) if index < 256 else long + struct.pack("<I", index)


def _scalar(value: int | bool | None) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if 0 <= value < 2**8:
        return b"K" + bytes([value])
    if 0 <= value < 2**16:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
