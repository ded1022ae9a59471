"""Host lists as Slurm's manuals write them, and hostile ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.cluster.hostlist import expand
from linkwise.core.errors import InputError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tux[0-3,12,18-20]", "tux0 tux1 tux2 tux3 tux12 tux18 tux19 tux20"),  # topology.conf(5)
        ("node[08-11]", "node08 node09 node10 node11"),
        ("a1,b[2-3],c", "a1 b2 b3 c"),
        ("[1101-1102]", "1101 1102"),
        ("rack[1-2]n[01-02]x", "rack1n01x rack1n02x rack2n01x rack2n02x"),
        ("single", "single"),
    ],
)
def test_names(text: str, names: str) -> None:
    assert expand(text, where="x") == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a host list"),
        ("a,", "not a host list"),
        ("a[1-2", "not a host list"),
        ("a]1[", "not a host list"),
        ("a b", "not a host list"),
        ("a[]", "no list of numbers"),
        ("a[x-y]", "no list of numbers"),
        ("a[3-1]", "runs backwards"),
        ("a[1-999999999999]", "too many names"),
        ("a[1-2000][1-2000]", "too many names"),
        ("a[1-900000],b[1-900000]", "too many names"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        expand(text, where="x")


@given(st.text(alphabet="a1[]-,0 ", max_size=30))
def test_any_text_is_names_or_an_input_error(text: str) -> None:
    try:
        names = expand(text, where="x", most=1000)
    except InputError:
        return
    assert 1 <= len(names) <= 1000
