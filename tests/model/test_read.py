"""Reading configs: figures people publish, and inputs that must be refused with one clear sentence."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.model import catalogue
from linkwise.model.read import from_config, load
from linkwise.model.types import Model, Split

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}


def _read(**changes: Any) -> Model:
    config = {k: v for k, v in (LLAMA | changes).items() if v is not ...}
    return from_config(config, name="test", source="config.json")


def _entry(name: str) -> dict[str, Any]:
    entry = catalogue.find(name)
    assert entry is not None
    return entry.config


def kv_bytes_per_token(model: Model, element_bytes: int = 2) -> int:
    return element_bytes * sum(s.per_token for layer in model.layers for s in layer.states)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),  # 131,072: K and V, layers, KV heads, width, bytes
        ("qwen3-1.7b", 2 * 28 * 8 * 128 * 2),  # 114,688
        ("deepseek-v3", 61 * (512 + 64) * 2),  # 70,272: one latent a layer
        ("kimi-k2", 61 * (512 + 64) * 2),
        ("qwen2.5-32b", 2 * 131_072),  # vLLM logged 131,072 a rank at tp2
        ("llama-2-7b", 2 * 32 * 32 * 128 * 2),  # 524,288
    ],
)
def test_kv_bytes_per_token(name: str, per_token: int) -> None:
    assert kv_bytes_per_token(load(name)) == per_token


@pytest.mark.parametrize(
    ("name", "billions", "digits"),
    [  # as the model cards and reports state them
        ("llama-3.1-8b", 8.03, 2),
        ("llama-3.3-70b", 70.55, 2),
        ("llama-3.1-405b", 405.85, 2),
        ("llama-2-7b", 6.74, 2),
        ("llama-2-13b", 13.02, 2),
        ("llama-2-70b", 68.98, 2),
        ("mistral-7b-v0.1", 7.24, 2),
        ("mistral-small-3.2-24b", 24.0, 1),
        ("mixtral-8x7b", 46.7, 1),
        ("mixtral-8x22b", 140.6, 1),
        ("qwen1.5-7b", 7.72, 2),
        ("qwen2.5-7b", 7.62, 2),
        ("qwen2.5-32b", 32.76, 2),
        ("qwen3-4b", 4.02, 2),
        ("qwen3-30b-a3b", 30.5, 1),
        ("qwen3-235b-a22b", 235.1, 1),
        ("qwen3-coder-480b-a35b", 480.2, 1),
        ("deepseek-v2", 235.7, 1),
        ("deepseek-v2-lite", 15.7, 1),
        ("kimi-k2", 1026.4, 1),
        ("gpt-oss-120b", 116.83, 2),
        ("gpt-oss-20b", 20.91, 2),
        ("llama-4-scout", 107.8, 1),
        ("llama-4-maverick", 400.7, 1),
        ("minimax-m2", 228.7, 1),
    ],
)
def test_parameters_as_published(name: str, billions: float, digits: int) -> None:
    assert round(load(name).parameters / 1e9, digits) == billions


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # the hub's safetensors summaries, to the last parameter
        ("qwen3-8b", 8_190_735_360),
        ("mistral-7b", 7_248_023_552),
        ("gpt-oss-120b", 116_829_156_672),
        ("gpt-oss-20b", 20_914_757_184),
    ],
)
def test_parameters_equal_the_published_count(name: str, parameters: int) -> None:
    assert load(name).parameters == parameters


def test_deepseek_v3_is_671_billion_without_its_mtp_module() -> None:
    """README_WEIGHTS: 671B without MTP. The module by hand: a MoE layer, eh_proj, copies of embedding and head."""
    model = load("deepseek-v3")
    mtp = sum(t.parameters for t in model.tensors if t.role.startswith("mtp."))
    experts = 257 * 3 * 2048 * 7168 + 256 * 7168 + 256  # routed and shared, router, correction
    latent = 1536 * 7168 + 24576 * 1536 + 576 * 7168 + 32768 * 512 + 7168 * 16384 + 1536 + 512
    around = 7168 * 14336 + 2 * 129_280 * 7168 + 3 * 7168 + 2 * 7168  # eh_proj, copies, its norms, the layer's
    assert mtp == experts + latent + around
    assert round((model.parameters - mtp) / 1e9, 1) == 671.0
    assert model.mtp_layers == 1
    assert len(model.layers) == 61


def test_a_large_moe_config_is_read_in_an_instant() -> None:
    load("deepseek-v3")
    start = time.perf_counter()
    model = load("deepseek-v3")
    assert time.perf_counter() - start < 0.1
    assert len(model.tensors) < 2000  # experts of a layer are one tensor with a count


def test_splits_of_grouped_query_attention() -> None:
    model = load("llama-3.1-8b")
    split = {t.role: (t.split, t.units) for t in model.tensors if t.layer == 0}
    assert split["attn.q"] == (Split.COLUMN, 32)
    assert split["attn.k"] == split["attn.v"] == (Split.KV, 8)
    assert split["attn.o"] == (Split.ROW, 32)
    assert split["mlp.gate"] == split["mlp.up"] == (Split.COLUMN, 0)
    assert split["mlp.down"] == (Split.ROW, 0)
    assert split["norm.input"] == (Split.NONE, 0)
    assert {t.split for t in model.tensors if t.role in ("embed", "head")} == {Split.VOCAB}


def test_a_latent_cache_is_one_piece_and_its_a_projections_whole() -> None:
    model = load("deepseek-v3")
    assert {s.heads for layer in model.layers for s in layer.states} == {1}
    assert model.mla_latent == 576
    split = {t.role: t.split for t in model.tensors if t.layer == 0}
    assert split["attn.kv_a"] is split["attn.q_a"] is Split.NONE
    assert split["attn.kv_b"] is split["attn.q_b"] is Split.COLUMN


def test_windows() -> None:
    oss = load("gpt-oss-20b")
    assert [layer.attends for layer in oss.layers[:4]] == [128, None, 128, None]
    assert {layer.attends for layer in load("mistral-7b-v0.1").layers} == {4096}
    assert {layer.attends for layer in load("mistral-7b").layers} == {None}
    scout = load("llama-4-scout")
    assert [layer.attends for layer in scout.layers[:4]] == [8192, 8192, 8192, None]
    qwen = {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 30}
    assert [layer.attends for layer in _read(**qwen).layers[28:]] == [None, None, 64, 64]
    off = _read(model_type="qwen2", sliding_window=64, use_sliding_window=False, max_window_layers=0)
    assert {layer.attends for layer in off.layers} == {None}


def test_a_mistral_config_that_is_silent_about_its_window_says_so() -> None:
    silent = _read(model_type="mistral", head_dim=128)
    assert {layer.attends for layer in silent.layers} == {4096}
    assert any("sliding_window is not stated" in note for note in silent.notes)
    assert {layer.attends for layer in _read(model_type="mistral", head_dim=128, sliding_window=None).layers} == {None}


def test_absent_fields_that_mean_one_models_number_are_refused() -> None:
    """transformers' classes default to one published model's sizes: taking them for another model would be a guess."""
    with pytest.raises(InputError, match="num_key_value_heads' is missing"):
        _read(model_type="qwen2", num_key_value_heads=...)
    with pytest.raises(InputError, match="head_dim' is missing"):
        _read(model_type="qwen3")
    deepseek = {k: v for k, v in _entry("deepseek-v2-lite").items() if k != "q_lora_rank"}
    with pytest.raises(InputError, match="q_lora_rank' is missing.*or null"):
        from_config(deepseek, name="x", source="x")


def test_a_guessed_dtype_is_said() -> None:
    model = _read(torch_dtype=...)
    assert model.dtype == "bfloat16"
    assert any("torch_dtype" in note for note in model.notes)


def test_multimodal_names() -> None:
    config = {"model_type": "llama4", "text_config": LLAMA | {"model_type": "llama"}}
    model = from_config(config, name="test", source="config.json")
    assert model.tensors[0].name == "language_model.model.embed_tokens"


def test_a_tower_that_is_not_known_is_said() -> None:
    """A language model's family around a section of its own, with some tower."""
    config = {"model_type": "llama", "text_config": LLAMA, "vision_config": {"x": 1}}
    model = from_config(config, name="test", source="config.json")
    assert any("vision tower is not counted" in note for note in model.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**30}, r"num_hidden_layers' is 10000.*expected an integer in 1..2000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers' is 0"),
        ({"num_hidden_layers": -4}, "num_hidden_layers' is -4"),
        ({"num_hidden_layers": True}, "num_hidden_layers' is True"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers' is '32'"),
        ({"num_hidden_layers": 32.0}, "num_hidden_layers' is 32.0"),
        ({"hidden_size": float("nan")}, "hidden_size' is nan"),
        ({"hidden_size": 10**9}, "hidden_size' is 1000000000"),
        ({"vocab_size": None}, "vocab_size' is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads' is 0"),
        ({"num_key_value_heads": 5}, "key/value heads that divide"),
        ({"num_key_value_heads": 64}, "num_key_value_heads' is 64"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings' is 'no'"),
        ({"model_type": "mistral", "layer_types": ["full_attention"]}, "a list of at least 32"),
        ({"model_type": "mistral", "layer_types": ["ring_attention"] * 32}, "layer_types holds ring_attention"),
        (
            {"model_type": "mistral", "sliding_window": None, "layer_types": ["sliding_attention"] * 32},
            "sliding_window is missing",
        ),
        ({"torch_dtype": "float7"}, "unknown dtype 'float7'"),
        ({"model_type": "gpt9"}, "model_type 'gpt9' is not known.*llama"),
        ({"model_type": 7}, "model_type' is 7"),
        ({"model_type": None}, "model_type' is missing"),
        ({"text_config": []}, "text_config: is a list"),
        ({"num_experts": 8}, "fields not understood: num_experts"),
        ({"use_cross_layer_kv": True, "kv_lora_rank": 8}, "not understood: kv_lora_rank, use_cross_layer_kv"),
    ],
)
def test_malformed_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _read(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "top level is a list"),
        ('{"model_type": "llama", ', "not valid JSON at line 1"),
        ("", "not valid JSON"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "an integer of 5000 digits"),
        ("{}", "'model_type' is missing"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    for given in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(InputError, match=message):
            load(str(given))


def test_a_folder_reads_its_modelopt_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    quant = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quant))
    model = load(str(tmp_path))
    assert (model.quantization, model.kv_dtype, model.name) == ("fp8", "float8_e4m3", tmp_path.name)


def test_an_unknown_wrapper_around_a_known_model_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="model_type 'mystery_vl' is not known"):
        from_config({"model_type": "mystery_vl", "text_config": LLAMA}, name="t", source="t")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "no name or path"),
        ("a\0b", "no name or path"),
        ("../nowhere", "no such file or folder"),
        ("/nowhere/at/all", "no such file or folder"),
        ("nowhere/config.json", "no such file or folder"),
        ("org/..", "expected organisation/model"),
        ("org/../../secret", "expected organisation/model"),
        ("org/mo del", "expected organisation/model"),
        ("org/model?x=1", "expected organisation/model"),
        ("a/b/c", "expected organisation/model"),
        ("lama-3.1-8b", r"similar: llama-3\.1-8b"),
        ("zzzzzzzzzz", "no model 'zzzzzzzzzz' is known.*Give the folder"),
    ],
)
def test_names_nobody_knows(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        load(name)
