"""The catalogue: every entry can be read, says its source, and is found by any of its names."""

import pytest

from linkwise.model import catalogue
from linkwise.model.read import load


def test_every_entry_is_read_and_has_a_source() -> None:
    entries = catalogue.entries()
    assert len(entries) >= 40
    for entry in entries:
        assert entry.source, entry.name
        assert "/" in entry.hub, entry.name
        model = load(entry.hub)
        assert entry.name in model.source
        assert model.parameters > 0


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Llama-3.3-70B", "llama-3.3-70b"),
        ("meta-llama/llama-3.3-70b-instruct", "llama-3.3-70b"),
        ("DeepSeek-R1", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder-30b-a3b"),
        ("deepseek-r1-distill-qwen-14b", "deepseek-r1-distill-qwen-14b"),
    ],
)
def test_names_in_any_case(given: str, name: str) -> None:
    found = catalogue.find(given)
    assert found is not None
    assert found.name == name


def test_another_organisation_is_another_model() -> None:
    assert catalogue.find("someone/Llama-3.1-8B") is None


def test_entries_that_build_on_another_change_only_what_they_say() -> None:
    base, longer = load("qwen2.5-14b"), load("deepseek-r1-distill-qwen-14b")
    assert base.tensors == longer.tensors
    assert (base.max_len, longer.max_len) == (32768, 131072)


def test_near_names() -> None:
    assert catalogue.near("lama3.1-8b")[0] == "llama-3.1-8b"
    assert catalogue.near("qqqqqqqqqqqqqqqqqqqq") == []
