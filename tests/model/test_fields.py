"""Every field of a config is read, known to be harmless, refused, or named in a note: never silently dropped."""

from typing import Any

import pytest

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.model import catalogue
from linkwise.model.read import from_config
from linkwise.model.types import Model

# Llama-3.3-70B's architecture (its published config.json).
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN = LLAMA | {"model_type": "qwen3", "head_dim": 128}


def _read(**config: Any) -> Model:
    return from_config(config, name="m", source="config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("new_attention_trick", True),
        ("cross_layer_kv_share", 2),
        ("kv_share_factor", 2),
        ("mlp_variant", "moe"),
        ("ffn_multiplier", 1.5),
        ("expansion", 3),
        ("layer_group", 4),
        ("block_length", 64),
        ("shared_kv", True),
        ("sliding_window", 4096),
        ("layer_types", ["full_attention"] * 80),
    ],
)
def test_a_structural_field_nobody_reads_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(NotUnderstood, match=f"fields not understood: {field}"):
        _read(**LLAMA, **{field: value})


def test_any_other_unread_field_is_noted() -> None:
    found = _read(**LLAMA, flavour="vanilla", zest=3, calm=False, empty=[], nothing=None, image_token_id=7)
    assert "fields not accounted for: calm, flavour, zest" in found.notes


def test_a_structural_field_that_is_off_is_noted_not_refused() -> None:
    assert "fields not accounted for: use_new_experts" in _read(**LLAMA, use_new_experts=False).notes
    assert not any("accounted" in n for n in _read(**LLAMA, sliding_window=None).notes)


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
@pytest.mark.parametrize("name", ["kimi-k2.5", "mistral-small-3.2-24b"])
def test_sections_are_accounted_for_as_well(name: str, section: str) -> None:
    entry = catalogue.find(name)
    assert entry is not None
    changed = entry.config | {section: entry.config[section] | {"new_expert_layers": 3}}
    with pytest.raises(NotUnderstood, match=f"{section}.*new_expert_layers"):
        from_config(changed, name="m", source="m")


def test_blocks_of_a_searched_architecture_are_accounted_for() -> None:
    block = {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.0, "new_expert_count": 4}}
    config = LLAMA | {"model_type": "nemotron-nas", "num_hidden_layers": 1, "block_configs": [block]}
    with pytest.raises(NotUnderstood, match=r"block_configs\[0\]: ffn: fields not understood: new_expert_count"):
        _read(**config)


def test_every_catalogue_entry_is_accounted_for() -> None:
    for entry in catalogue.entries():
        model = from_config(entry.config, name=entry.name, source=entry.name)
        assert not any("accounted" in note for note in model.notes), entry.name


def test_heads_that_do_not_divide_the_width_need_a_head_dim() -> None:
    with pytest.raises(InputError, match="hidden_size 8191 is not divisible by 64 attention heads.*multiple of 64"):
        _read(**LLAMA | {"hidden_size": 8191})
    assert _read(**LLAMA | {"hidden_size": 8191, "head_dim": 128}).head_dim == 128


def _kept(model: Model) -> list[int | None]:
    return [layer.states[0].window for layer in model.layers]


def test_qwen_has_a_window_only_where_it_is_switched_on() -> None:
    # transformers' Qwen3Config: sliding_window counts if use_sliding_window (false by default), and then in layers from
    # max_window_layers (28) on; both windows default to 4096.
    assert _kept(_read(**QWEN, sliding_window=1024)) == [None] * 80
    assert _kept(_read(**QWEN, sliding_window=1024, use_sliding_window=True)) == [None] * 28 + [1024] * 52
    assert _kept(_read(**QWEN, use_sliding_window=True, max_window_layers=70)) == [None] * 70 + [4096] * 10
    with pytest.raises(NotUnderstood, match="use_sliding_window is not true"):
        _read(**QWEN, sliding_window=1024, layer_types=["sliding_attention"] * 80)


def test_qwen_moe_windows_differ_by_generation() -> None:
    # transformers: Qwen3MoeConfig has no max_window_layers; Qwen2MoeConfig slides in even layers below it.
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "num_hidden_layers": 6}
    on = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 4}
    assert _kept(_read(**QWEN | experts | {"model_type": "qwen3_moe"} | on)) == [512] * 6
    older = {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 512}
    assert _kept(_read(**QWEN | experts | older | on)) == [512, None, 512, None, None, None]


def test_mistral_and_mixtral_slide_in_every_layer() -> None:
    # transformers' MistralConfig and MixtralConfig: the window holds for all layers.
    assert _kept(_read(**LLAMA | {"model_type": "mistral"}, sliding_window=4096)) == [4096] * 80
