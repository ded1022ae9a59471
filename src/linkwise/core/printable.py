"""Text that others wrote, made safe to print: what a terminal would obey, or a reader not see, becomes visible."""

import unicodedata
from functools import cache

# Of one name in a message; a whole message holds a little more.
MAX_ECHO = 200


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with control, format (bidi, zero width), separator and surrogate characters as `\x1b`, `\u202e`.

    keep: characters that stay, such as the newlines of a finished screen.
    """
    if text.isascii() and text.isprintable():  # nearly all text, decided at C speed
        return text
    return "".join(c if c in keep else _shown(c) for c in text)


def clipped(text: str, most: int = MAX_ECHO) -> str:
    """At most `most` characters: the beginning, `...`, and the end."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]}...{text[-end:]}"


def escaped_json(text: bytes) -> bytes:
    r"""JSON whose invisible characters are `\u` escapes: the same value, safe to print. They occur in strings only."""
    if text.isascii() and b"\x7f" not in text:
        return text
    return "".join(c if c == "\n" or _shown(c) == c else _json_escape(c) for c in text.decode()).encode()


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


@cache
def _shown(character: str) -> str:
    # Cc control, Cf format, Cs surrogate, Zl and Zp separators of lines and paragraphs.
    if unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return character
    code = ord(character)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
