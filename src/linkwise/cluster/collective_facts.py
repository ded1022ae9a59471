"""What the constants of collective times were measured on, so that anything else is labelled: which kinds of link take
the figures of a relative, and how many ranks each implementation was measured with."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from linkwise.core.files import parse_yaml_object
from linkwise.core.schema import Frozen, convert


class _File(Frozen, frozen=True, kw_only=True):
    facts_version: int
    relatives: dict[str, str]
    ranks: dict[str, tuple[int, int]]


@cache
def _facts() -> _File:
    text = files("linkwise.cluster").joinpath("facts", "collectives.yaml").read_text("utf-8")
    return convert(parse_yaml_object(text, where="collectives.yaml"), _File, where="collectives.yaml")


def family(link: str) -> Iterator[str]:
    """A kind of link and its relatives, nearest first: efa3, efa2, nic."""
    while link:
        yield link
        link = _facts().relatives.get(link, "")


def measured(implementation: str, link: str, ranks: int) -> bool:
    """Whether an implementation was measured on this very kind of link with about as many ranks."""
    least, most = _facts().ranks.get(f"{implementation}.{link}", (1, 0))
    return least <= ranks <= most
