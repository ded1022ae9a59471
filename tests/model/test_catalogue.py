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


@pytest.mark.parametrize(
    ("given", "served"),
    [
        # An id stands for its own weights, though their shape is another entry's.
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1"),
        ("deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1"),
        ("deepseek-ai/deepseek-v3-0324", "deepseek-ai/DeepSeek-V3-0324"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-30B-A3B-Thinking-2507"),
        ("Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("deepseek-coder-v2", "deepseek-ai/DeepSeek-Coder-V2-Instruct"),
        # A short name stands for its entry's.
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("minimax-m2.x", "MiniMaxAI/MiniMax-M2"),
    ],
)
def test_what_is_served_is_what_was_asked_for(given: str, served: str) -> None:
    assert load(given).served_as == served


def test_every_id_of_the_catalogue_is_served_as_itself() -> None:
    for entry in catalogue.entries():
        for name in (entry.hub, *entry.also):
            assert load(name).served_as == (name if "/" in name else entry.hub)


def test_another_organisation_is_another_model() -> None:
    assert catalogue.find("someone/Llama-3.1-8B") is None


def test_entries_that_build_on_another_change_only_what_they_say() -> None:
    base, longer = load("qwen2.5-14b"), load("deepseek-r1-distill-qwen-14b")
    assert base.tensors == longer.tensors
    assert (base.max_len, longer.max_len) == (32768, 131072)


def test_near_names() -> None:
    assert catalogue.near("lama3.1-8b")[0] == "llama-3.1-8b"
    assert catalogue.near("qqqqqqqqqqqqqqqqqqqq") == []
