"""What a config.json may say about rotary positions and sizes, and what contradicts itself or gives no rotation."""

from typing import Any

import pytest

from linkwise.core.errors import InputError
from linkwise.runtime.arch import read_arch

CONFIG = {
    "model_type": "llama", "vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0}


def rope(**more: Any) -> Any:
    return read_arch(CONFIG | more, where="config.json", dtype="float32").rope


@pytest.mark.parametrize("given", [YARN, LLAMA3, LINEAR])
def test_either_name_and_both_when_they_agree(given: dict[str, Any]) -> None:
    old = {key: value for key, value in given.items() if key != "rope_type"} | {"type": given["rope_type"]}
    one = rope(rope_parameters={**given, "rope_theta": 5e5})
    assert one == rope(rope_scaling=old, rope_theta=5e5)
    assert one == rope(rope_scaling={**old, "rope_type": old["type"]}, rope_parameters=given, rope_theta=5e5)
    assert one.scaling["rope_type"] == given["rope_type"] and one.theta == 5e5


def test_no_scaling() -> None:
    for none in (None, {}, {"rope_type": "default"}, {"rope_theta": 10_000.0}):
        assert rope(rope_scaling=none) == rope(rope_parameters=none) == rope()


@pytest.mark.parametrize(
    ("new", "old", "says"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, LINEAR, "factor"),
        (LINEAR, {"type": "linear", "factor": 4.0}, r"factor 2.0 and 4.0"),
        ({**LINEAR, "rope_theta": 5e5}, LINEAR, "rope_theta 500000.0 and 10000.0"),
        (YARN, {**YARN, "beta_fast": 16}, "beta_fast None and 16"),
        ({"rope_type": "default"}, {"rope_type": "yarn"}, "rope_type 'default' and 'yarn'"),
    ],
)
def test_two_that_disagree_are_refused(new: dict[str, Any], old: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"rope_parameters and rope_scaling disagree: {says}"):
        rope(rope_parameters=new, rope_scaling=old)


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(
    "given",
    [
        {"rope_type": "longrope"},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "default", "type": "mrope"},
        {"rope_type": "linear", "type": "yarn", "factor": 2.0},
        {"rope_type": 7},
        {"rope_type": ["yarn"]},
        {"full_attention": {"rope_type": "default"}},
        [],
        "yarn",
        LINEAR | {"factor": 0},
        LINEAR | {"factor": -1.0},
        LINEAR | {"factor": float("nan")},
        LINEAR | {"factor": "2"},
        {"rope_type": "linear"},
        LINEAR | {"rope_theta": 0},
        LLAMA3 | {"factor": 0.0},
        LLAMA3 | {"low_freq_factor": 0},
        LLAMA3 | {"high_freq_factor": 1.0},
        LLAMA3 | {"original_max_position_embeddings": 0},
        {"rope_type": "llama3", "factor": 8.0},
        YARN | {"factor": 0},
        YARN | {"factor": -4.0},
        YARN | {"original_max_position_embeddings": -64},
        YARN | {"beta_fast": 1, "beta_slow": 32},
        YARN | {"beta_slow": -1},
        YARN | {"attention_factor": 0},
        YARN | {"mscale": -1.0},
        YARN | {"truncate": "yes"},
        YARN | {"rope_theta": 1.0},
    ],
)
def test_what_gives_no_rotation_is_refused_under_either_name(name: str, given: Any) -> None:
    with pytest.raises(InputError):
        rope(**{name: given})
    with pytest.raises(InputError):  # also behind one that is sound
        rope(**{"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "default"}, name: given})


def test_transformers_reads_what_is_taken() -> None:
    transformers = pytest.importorskip("transformers")
    for given in (YARN, LLAMA3, LINEAR):
        config = transformers.LlamaConfig(**{**CONFIG, "rope_scaling": given, "rope_theta": 5e5})
        found = rope(rope_scaling=given, rope_theta=5e5)
        assert config.rope_parameters["rope_type"] == found.scaling["rope_type"]
        assert config.rope_parameters["factor"] == found.scaling["factor"]
        assert rope(rope_parameters=config.rope_parameters) == found


def test_an_odd_head_has_no_pairs() -> None:
    with pytest.raises(InputError, match="7 rotated elements"):
        rope(head_dim=7)


@pytest.mark.parametrize("value", [0, -1, 1 << 40, 1.5, "8", True])
def test_counts_say_both_bounds(value: Any) -> None:
    with pytest.raises(InputError, match="vocab_size is") as error:
        rope(vocab_size=value)
    assert error.value.expected == "a whole number from 1 to 2147483648"


@pytest.mark.parametrize("value", [0, -1e-6, 1e13, "x", True])
def test_eps_is_positive(value: Any) -> None:
    with pytest.raises(InputError, match="rms_norm_eps"):
        rope(rms_norm_eps=value)


def test_a_cache_that_cannot_be_allocated_is_bad_input() -> None:
    torch = pytest.importorskip("torch")
    from linkwise.core.layout import Layout
    from linkwise.runtime.attention.cache import Cache

    arch = read_arch(CONFIG, where="config.json", dtype="float32")
    for blocks in (1 << 50, 1 << 62):
        with pytest.raises(InputError, match="bytes cannot be allocated"):
            Cache(arch, Layout(), 2, blocks, 16, dtype=torch.float32)
