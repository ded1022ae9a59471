"""The worked calculations of the project's brief (seeds/chains.json) come out within their tolerance, each through the
functions every plan runs through. Tolerances are relative, 0 means exact; a boolean or a decision is always exact."""

import json
from pathlib import Path

import pytest

from linkwise.core.quantity import Quantity
from linkwise.plan import textbook

SEEDS = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "seeds" / "chains.json"
pytestmark = pytest.mark.skipif(not SEEDS.exists(), reason=f"reference data is not at {SEEDS}")
ENTRIES = json.loads(SEEDS.read_text()) if SEEDS.exists() else []
IDS = [e["id"] for e in ENTRIES]
DECISION = "two_tp4_over_tp8"


def entry(name: str) -> dict:
    return next(e for e in ENTRIES if e["id"] == name)


def test_every_entry_is_known() -> None:
    assert {name for name, _ in textbook.chains()} == set(IDS)
    assert len(IDS) == len(set(IDS)) == 11


@pytest.mark.parametrize("name", [n for n in IDS if n != DECISION])
def test_entry_within_its_tolerance(name: str) -> None:
    seed = entry(name)
    found = textbook.chain(name, seed["inputs"])
    assert set(seed["expect"]) <= set(found.expect)
    for key, expected in seed["expect"].items():
        figure = found.expect[key]
        assert isinstance(figure, Quantity)
        if isinstance(expected, bool) or seed["tolerance"] == 0:
            assert figure.value == expected, key
        else:
            assert abs(figure.value - expected) <= seed["tolerance"] * abs(expected), (key, figure.value, expected)


@pytest.mark.parametrize("name", [n for n in IDS if n != DECISION])
def test_the_catalogue_s_facts_give_the_same_answer(name: str) -> None:
    seed = entry(name)
    found = textbook.chain(name)
    for key, expected in seed["expect"].items():
        assert found.expect[key].value == pytest.approx(expected, rel=seed["tolerance"] or 1e-12, abs=0), key
