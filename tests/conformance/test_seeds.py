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


def test_two_tp4_over_tp8_is_what_the_search_decides() -> None:
    seed = entry(DECISION)
    found = textbook.chain(DECISION, seed["inputs"])
    assert found.expect["group_size"].value == seed["inputs"]["gpus_per_node"]
    assert found.expect["replicas"].value == seed["inputs"]["nodes"]
    # The seed's words: keep each 4-rank tensor group inside one node, the second node as a replica.
    assert found.decision.startswith("keep each 4-rank tensor group inside one node")
    assert set(found.shows) == set(seed["expect"]["must_show"])
    assert all(any(c.isdigit() for c in text) for text in found.shows.values())
    # One more full copy: 70.55e9 parameters of two bytes (and each rank's own norms).
    assert found.expect["second_copy_bytes"].value == pytest.approx(2 * 70_553_706_496, rel=1e-3)
    # Two pools hold less than one: the weights are there twice.
    assert found.expect["kv_tokens_of_all"].value < found.expect["kv_tokens_of_one_group"].value
    assert "island tier" in found.shows["collective bytes that stay inside a node"]
    assert "cluster tier" in found.shows["collective bytes that stay inside a node"]
