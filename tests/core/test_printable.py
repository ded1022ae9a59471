"""Text that others wrote cannot drive a terminal: Unicode's own categories say which characters are not shown."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, escaped_json, printable

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
anything = st.text(alphabet=st.characters(exclude_categories=[]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain · ünïcode 模型", "plain · ünïcode 模型"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\u202eevil\u2066\u200b", r"\u202eevil\u2066\u200b"),
        ("\x7f\x9b", r"\x7f\x9b"),  # DEL, and the one-byte CSI
        ("\U000e0041", r"\U000e0041"),  # an invisible tag letter
        ("\udcff", r"\udcff"),
    ],
)
def test_what_a_reader_would_not_see_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(anything)
def test_nothing_hidden_is_left(text: str) -> None:
    assert not {unicodedata.category(c) for c in printable(text)} & HIDDEN
    assert not {unicodedata.category(c) for c in str(InputError(text, where=text, expected=text, hint=text))} & HIDDEN
    kept = printable(text, keep="\n")
    assert kept.count("\n") == text.count("\n")


def test_an_error_is_one_bounded_line() -> None:
    line = str(InputError("m" * 10**6, where="w" * 10**6, expected="e" * 10**6, hint="h" * 10**6))
    assert len(line) <= 2000
    assert line.startswith("www")
    assert line.endswith("hhh")


@given(st.text(max_size=50), st.integers(10, 40))
def test_clipped_keeps_both_ends(text: str, most: int) -> None:
    short = clipped(text, most)
    assert len(short) <= most
    assert short == text or (text.startswith(short.split("...")[0]) and text.endswith(short[-(most // 3) :]))


@given(st.text())
def test_escaped_json_is_the_same_value(text: str) -> None:
    raw = json.dumps({"name": text}, ensure_ascii=False, indent=1).encode()
    safe = escaped_json(raw)
    assert json.loads(safe) == {"name": text}
    assert not {unicodedata.category(c) for c in safe.decode() if c != "\n"} & HIDDEN
