"""Values go through the door once: typed, unknown fields refused, the wrong field named."""

import json

import pytest

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen, convert, decode_json, encode_json


class Node(Frozen, frozen=True, kw_only=True):
    count: int
    kinds: tuple[str, ...] = ()


class Room(Frozen, frozen=True, kw_only=True):
    name: str
    nodes: tuple[Node, ...] = ()


def test_a_value_survives_its_file() -> None:
    room = Room(name="lab", nodes=(Node(count=2, kinds=("h100",)),))
    text = encode_json(room)
    assert decode_json(text, Room, where="room.json") == room
    assert text.endswith(b"\n")
    assert text.count(b"\n") > 3, "a person can read it"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"name": "lab", "nodes": [{"count": "2"}]}, "room.yaml: field nodes[0].count: expected `int`, got `str`"),
        (
            {"name": "lab", "colour": "red"},
            "room.yaml: object contains unknown field `colour`; expected one of name, nodes",
        ),
        ({"nodes": []}, "room.yaml: object missing required field `name`"),
        (
            {"name": "lab", "nodes": [{"count": 1, "tail": 2}]},
            "room.yaml: field nodes[0]: object contains unknown field `tail`; expected one of count, kinds",
        ),
    ],
)
def test_a_wrong_field_is_named(value: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        convert(value, Room, where="room.yaml")
    assert str(caught.value) == message


@pytest.mark.parametrize("text", [b"", b'{"name": ', b"\xff", b'{"name": "a"} trailing', b"[" * 200_000])
def test_text_that_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(InputError, match=r"^room.json: "):
        decode_json(text, Room, where="room.json")


def test_a_value_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Node(count=1).count = 2  # type: ignore[misc]


def test_a_field_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"^room.json: field 'name' is given twice"):
        decode_json(b'{"name": "a", "name": "b"}', Room, where="room.json")


class Half(Frozen, frozen=True, kw_only=True):
    share: float
    figures: dict[str, int | float] = {}

    def __post_init__(self) -> None:
        if self.share > 1:
            raise InputError(f"share is {self.share}", where="half", expected="at most 1")


def test_a_values_own_check_names_the_file() -> None:
    with pytest.raises(InputError, match=r"^h.json: half: share is 2.0; expected at most 1$"):
        decode_json(b'{"share": 2}', Half, where="h.json")


def test_reading_and_writing_again_changes_no_byte() -> None:
    once = encode_json(Half(share=0, figures={"a": 3, "b": 3.0, "c": 10**20}))
    assert b'"share": 0.0' in once
    assert b'"a": 3,' in once, "a count stays a whole number"
    assert encode_json(decode_json(once, Half, where="h")) == once


def test_what_is_no_unicode_is_refused_and_what_is_not_seen_is_escaped() -> None:
    with pytest.raises(InputError, match="is not valid Unicode"):
        encode_json(Room(name="\udcff"))
    text = encode_json(Room(name="\u202ex\x7f"))
    assert text.isascii()
    assert decode_json(text, Room, where="room.json") == Room(name="\u202ex\x7f")


def test_a_field_that_is_nearly_known_is_asked_about() -> None:
    said = "field `node`; expected one of name, nodes. Did you mean nodes?"
    for read in (
        lambda value: convert(value, Room, where="room"),
        lambda value: decode_json(json.dumps(value).encode(), Room, where="room"),
    ):
        with pytest.raises(InputError) as caught:
            read({"name": "lab", "node": []})
        assert said in str(caught.value)
