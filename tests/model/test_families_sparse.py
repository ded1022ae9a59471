"""Mixtures of experts at their released sizes: totals as the model cards state them, states and FLOPs by hand.

Role by role they are compared with transformers in tests/conformance/test_models_written.py, but for MTP layers, which
it does not build: the totals here are of the whole checkpoint.
"""

from typing import Any

import pytest

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.model.read import from_config
from linkwise.model.types import Model

GLM_4_5: dict[str, Any] = {
    "model_type": "glm4_moe",
    "torch_dtype": "bfloat16",
    "vocab_size": 151_552,
    "hidden_size": 5120,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 92,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "use_qk_norm": True,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131_072,
}
GLM_4_5_AIR = GLM_4_5 | {
    "hidden_size": 4096,
    "intermediate_size": 10_944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 46,
    "use_qk_norm": False,
    "n_routed_experts": 128,
    "first_k_dense_replace": 1,
}
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 262_144,
}


def read(config: dict[str, Any], **changes: Any) -> Model:
    return from_config(config | changes, None, name="test", source="test")


@pytest.mark.parametrize(
    ("config", "billions", "of_mtp"),
    [  # the cards state the checkpoint's sum; MTP by hand in the comments
        # Air: experts 128·3·1408·4096, shared 3·1408·4096, router 128·4096 + 128, attention q and o 2·12288·4096, k and
        # v 2·1024·4096, biases 14336, eh_proj 2·4096², five norms, copies of embedding and head 2·151552·4096.
        (GLM_4_5_AIR, 110.47, 3_616_573_568),
        (GLM_4_5, 358.34, None),
        # Attention q 8192·2048, k and v 2·512·2048, o 2048·4096, norms 2·256; experts 512·3·512·2048, router 512·2048,
        # shared 3·512·2048 and its gate 2048; both inputs' projection 2048·4096, five norms; no copies.
        (QWEN3_NEXT, 81.32, 1_650_471_424),
    ],
    ids=["glm-4.5-air", "glm-4.5", "qwen3-next"],
)
def test_parameters_of_the_checkpoint(config: dict[str, Any], billions: float, of_mtp: int | None) -> None:
    model = read(config)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.005)
    mtp = sum(t.parameters for t in model.tensors if t.role.startswith("mtp."))
    assert of_mtp is None or mtp == of_mtp
    assert model.mtp_layers == 1


def test_glm_4_5_keeps_plain_keys_and_values() -> None:
    # Keys and values x 8 heads x 128 x layers, in two bytes.
    for config, layers in ((GLM_4_5, 92), (GLM_4_5_AIR, 46)):
        assert 2 * sum(s.per_token for la in read(config).layers for s in la.states) == 2 * 2 * 8 * 128 * layers


def test_glm_4_5_routes_behind_its_dense_layers() -> None:
    model = read(GLM_4_5)
    assert [layer.ffn for layer in model.layers[:4]] == ["dense"] * 3 + ["moe"]
    assert model.moe is not None
    assert (model.moe.experts, model.moe.top_k, model.moe.shared_experts) == (160, 8, 1)
    norms = {t.name: t.shape for t in model.tensors if t.role == "attn.q_norm"}
    assert norms["model.layers.0.self_attn.q_norm"] == (128,)
    assert not [t for t in read(GLM_4_5_AIR).tensors if t.role.endswith("q_norm")]
    correction = next(t for t in model.tensors if t.role == "moe.router.correction")
    assert (correction.name, correction.dtype) == ("model.layers.3.mlp.gate.e_score_correction_bias", "float32")


def test_qwen3_next_keeps_states_instead_of_keys_in_three_layers_of_four() -> None:
    model = read(QWEN3_NEXT)
    assert [layer.mixer for layer in model.layers[:4]] == ["linear"] * 3 + ["full"]
    # Full: keys and values x 2 heads x 256.
    assert [s.per_token for layer in model.layers for s in layer.states if s.per_token] == [2 * 2 * 256] * 12
    conv, recurrent = model.layers[0].states
    # q and k 16 heads x 128 each, v 32 x 128: 8192 channels, the last three inputs of each.
    assert (conv.per_request, conv.heads) == (8192 * 3, 16)
    # A 128 x 128 matrix for each of 32 value heads, in the model's dtype as vLLM keeps it by default; a note says so.
    assert (recurrent.per_request, recurrent.dtype) == (32 * 128 * 128, "bfloat16")
    assert any("recurrent state" in note for note in model.notes)
    assert read(QWEN3_NEXT, mamba_ssm_dtype="float32").layers[0].states[1].dtype == "float32"


def test_flops_of_a_qwen3_next_token() -> None:
    linear, full = read(QWEN3_NEXT).layers[0], read(QWEN3_NEXT).layers[3]
    # Convolution: 8192 channels x 4 taps x 2. Recurrence: 7 for each element of 32 states of 128 x 128.
    assert linear.mixer_flops_per_token == 8192 * 4 * 2 + 32 * 128 * 128 * 7
    assert full.context_flops(1000) == 16 * (256 + 256) * 2 * 1000


def test_qwen3_next_stores_the_inputs_of_its_delta_net_as_two_tensors() -> None:
    shapes = [(t.name.rpartition(".")[2], t.role, t.shape[0]) for t in read(QWEN3_NEXT).tensors if t.layer == 0]
    assert [s for s in shapes if s[0].startswith("in_proj")] == [
        ("in_proj_qkvz", "linear.qkv", 8192),
        ("in_proj_qkvz", "linear.z", 4096),
        ("in_proj_ba", "linear.b", 32),
        ("in_proj_ba", "linear.a", 32),
    ]


def test_dense_layers_of_qwen3_next_stand_where_its_lists_say() -> None:
    model = read(QWEN3_NEXT, mlp_only_layers=[0])
    assert [layer.ffn for layer in model.layers[:2]] == ["dense", "moe"]


@pytest.mark.parametrize(
    ("config", "change"),
    [(QWEN3_NEXT, {"use_sliding_window": True}), (GLM_4_5, {"num_latent_heads": 3}), (GLM_4_5, {"head_dim": None})],
)
def test_what_is_not_known_is_refused_by_name(config: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises((NotUnderstood, InputError), match=next(iter(change))):
        read(config, **change)
