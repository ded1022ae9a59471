"""Bytes of quantised checkpoints, by hand and against published totals."""

from typing import Any

import pytest

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.model import quant, quant_read
from linkwise.model.read import from_config, load
from linkwise.model.types import Model, Tensor

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}


def _llama(quantization: dict[str, Any] | None = None, hf_quant: dict[str, Any] | None = None) -> Model:
    config = LLAMA | ({"quantization_config": quantization} if quantization else {})
    return from_config(config, hf_quant, name="small", source="test")


def _tensor(model: Model, name: str) -> Tensor:
    (found,) = [t for t in model.tensors if t.name == name]
    return found


def test_deepseek_v3_holds_the_published_numbers_of_elements() -> None:
    """The hub's safetensors summary of deepseek-ai/DeepSeek-V3: elements by dtype, scales and MTP included."""
    model = load("deepseek-v3")
    by_dtype = {d: sum(t.parameters for t in model.tensors if t.dtype == d) for d in {t.dtype for t in model.tensors}}
    scales = sum(t.scale_bytes for t in model.tensors) // 4
    assert by_dtype["float8_e4m3"] == 680_571_043_840
    assert by_dtype["bfloat16"] == 3_918_786_560
    assert by_dtype["float32"] + scales == 41_555_600


def test_deepseek_v3_scales_of_one_layer_by_hand() -> None:
    model = load("deepseek-v3")
    # ceil(rows / 128) x ceil(columns / 128) float32 scales per weight.
    assert _tensor(model, "model.layers.3.self_attn.kv_a_proj_with_mqa").scale_bytes == 5 * 56 * 4  # [576, 7168]
    assert _tensor(model, "model.layers.3.self_attn.q_b_proj").scale_bytes == 192 * 12 * 4  # [24576, 1536]
    expert = _tensor(model, "model.layers.3.mlp.experts.*.gate_proj")  # 256 of [2048, 7168]
    assert (expert.bytes, expert.scale_bytes) == (256 * 2048 * 7168, 256 * 16 * 56 * 4)
    router = _tensor(model, "model.layers.3.mlp.gate")
    assert (router.dtype, router.scale_bytes) == ("bfloat16", 0)
    assert _tensor(model, "model.layers.3.mlp.gate.e_score_correction_bias").bytes == 256 * 4


@pytest.mark.parametrize(("name", "total"), [("gpt-oss-120b", 65_248_815_744), ("gpt-oss-20b", 13_761_264_768)])
def test_gpt_oss_equals_the_published_checkpoint_size(name: str, total: int) -> None:
    """total_size of the published model.safetensors.index.json."""
    assert load(name).weight_bytes == total


def test_nvfp4_by_hand() -> None:
    model = _llama({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]})
    up = _tensor(model, "model.layers.0.mlp.up_proj")  # [640, 256]
    assert up.bytes == 640 * 256 // 2
    assert up.scale_bytes == 640 * 256 // 16 + 4 + 4  # e4m3 a group of 16, two float32 scalars
    assert _tensor(model, "lm_head").bytes == 1000 * 256 * 2
    weight_only = _llama({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]})
    assert _tensor(weight_only, "model.layers.0.mlp.up_proj").scale_bytes == 640 * 256 // 16 + 4


def test_modelopt_fp8_and_its_kv_cache() -> None:
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*layers.1*"]}
    model = _llama(hf_quant={"quantization": quantization})
    up = _tensor(model, "model.layers.0.mlp.up_proj")
    assert (up.bytes, up.scale_bytes) == (640 * 256, 8)
    assert _tensor(model, "model.layers.1.mlp.up_proj").dtype == "bfloat16"
    assert model.kv_dtype == "float8_e4m3"


def test_int4_packs_by_hand() -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    compressed = _llama(
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "ignore": ["lm_head", "re:.*self_attn.*"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
    )
    up = _tensor(compressed, "model.layers.0.mlp.up_proj")
    assert (up.bytes, up.scale_bytes) == (640 * 256 // 2, 640 * 8 * 2 + 8)  # bf16 scales, one int32 pair
    assert _tensor(compressed, "model.layers.0.self_attn.q_proj").dtype == "bfloat16"
    gptq = _tensor(_llama({"quant_method": "gptq", "bits": 4, "group_size": 128}), "model.layers.0.mlp.up_proj")
    # 640 x 2 groups: a float16 scale and 4 bits of zero point each; 256 int32 input indices.
    assert (gptq.bytes, gptq.scale_bytes) == (640 * 256 // 2, 1280 * 2 + 640 + 256 * 4)
    awq = _tensor(_llama({"quant_method": "awq", "bits": 4, "group_size": 128}), "model.layers.0.mlp.up_proj")
    assert (awq.bytes, awq.scale_bytes) == (640 * 256 // 2, 1280 * 2 + 640)


def test_packed_integers_of_8_bits() -> None:
    """Four to a word; engines unpack them, so they are not the int8 that is multiplied as it is."""
    own = {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False, "sym": True}
    gptq = _tensor(_llama(own), "model.layers.0.mlp.up_proj")
    # 640 x 1 group: a float16 scale and 8 bits of zero point each; 256 int32 input indices.
    assert (gptq.dtype, gptq.bytes, gptq.scale_bytes) == ("uint8", 640 * 256, 640 * 2 + 640 + 256 * 4)
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    compressed = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    up = _tensor(_llama(compressed), "model.layers.0.mlp.up_proj")
    assert (up.dtype, up.bytes, up.scale_bytes) == ("uint8", 640 * 256, 640 * 2 + 8)


def test_modules_that_gptq_leaves_out_by_expression() -> None:
    own = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*self_attn.*": {}}}
    model = _llama(own)
    assert _tensor(model, "model.layers.0.self_attn.q_proj").dtype == "bfloat16"
    assert _tensor(model, "model.layers.0.mlp.up_proj").dtype == "int4"


def test_mixed_precision_by_module() -> None:
    layers = {
        "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
        "model.layers.1.mlp": {"quant_algo": "NVFP4", "group_size": 16},
        "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    }
    model = _llama({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    dtypes = {t.name: t.dtype for t in model.tensors}
    assert dtypes["model.layers.0.mlp.up_proj"] == "float8_e4m3"
    assert dtypes["model.layers.0.mlp.gate_proj"] == "bfloat16"
    assert dtypes["model.layers.1.mlp.down_proj"] == "float4_e2m1"
    assert dtypes["lm_head"] == "float4_e2m1"  # named, so stored as named
    assert model.quantization == "mixed: fp8 + nvfp4 + w4a16 nvfp4"


def test_experts_of_a_layer_must_agree() -> None:
    layers = {f"model.layers.0.mlp.experts.{i}.up_proj": {"quant_algo": a} for i, a in enumerate(["FP8", "NVFP4"])}
    with pytest.raises(NotUnderstood, match="different formats"):
        _llama({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes.*cannot be counted"),
        ({"quant_method": "quark"}, "quant_method 'quark' is not known"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "quant_algo 'FP3' is not known"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [True, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [-1, 128]}, "weight_block_size"),
        ({"quant_method": 8}, "quant_method is 8"),
        ({"quant_method": "gptq", "bits": 3}, "gptq with 3 bits"),
        ({"quant_method": "gptq", "bits": [4]}, "gptq with .4. bits"),
        ({"quant_method": "awq", "bits": 8}, "awq with 8 bits"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*mlp.*": {"bits": 8}}}, "dynamic stores"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(a+)+$": {}}}, "too complex"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "list of module names"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "one group of 'Linear'"),
        ({"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["re:(a+)+$"]}, "too complex"),
        ({"quant_method": "fp8", "kv_cache_scheme": "FP2"}, "KV cache quantisation 'FP2'"),
        ([], "is a list"),
    ],
)
def test_formats_that_cannot_be_counted_are_refused(quantization: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quant_read.parse(quantization, None, where="test", dtype="bfloat16")


def test_what_if_restores_linear_weights_only() -> None:
    config = LLAMA | {"tie_word_embeddings": False}
    model = from_config(config, name="small", source="test", weight_dtype="fp8")
    linear = 2 * (256 * 256 * 2 + 128 * 256 * 2 + 3 * 640 * 256)  # q, o, k, v, gate, up, down of two layers
    plain = 2 * 1000 * 256 + 5 * 256  # embedding, head, five norms
    assert model.weight_bytes == linear + 2 * 7 * 4 + plain * 2
    assert "what-if" in model.notes[-1]
    with pytest.raises(InputError, match="weight_dtype: 'q4' is no storage"):
        from_config(config, name="small", source="test", weight_dtype="q4")


def test_what_if_of_a_quantised_checkpoint_starts_from_its_weights() -> None:
    as_bf16 = load("deepseek-v3", weight_dtype="bf16")
    # All elements at two bytes but the float32 correction biases: 59 routers of 256.
    assert as_bf16.weight_bytes == 2 * as_bf16.parameters + 2 * 59 * 256


def test_a_scheme_pads_packed_rows() -> None:
    assert quant.packed(128, name="x", scale_dtype="float16").element_bytes(3, 9) == 3 * 2 * 4  # two int32 words a row
    assert quant.nvfp4().element_bytes(3, 9) == 3 * 5
