"""Values go through the door once: typed, unknown fields refused, the wrong field named."""

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
        ({"name": "lab", "colour": "red"}, "room.yaml: object contains unknown field `colour`"),
        ({"nodes": []}, "room.yaml: object missing required field `name`"),
        (
            {"name": "lab", "nodes": [{"count": 1, "tail": 2}]},
            "room.yaml: field nodes[0]: object contains unknown field `tail`",
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
