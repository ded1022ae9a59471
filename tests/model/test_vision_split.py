"""How a vision tower divides: hand-made sizes, and Qwen3-VL-32B's as its config.json has them."""

import pytest

from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.sharding import shard
from linkwise.model.read import from_config
from linkwise.model.types import Model, Split

# Qwen3-VL-32B-Instruct's vision_config; one text layer is enough here.
VISION = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3, "patch_size": 16,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304, "out_hidden_size": 5120,
    "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
TEXT = {
    "model_type": "qwen3_vl_text", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 1,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 262144, "dtype": "bfloat16",
}  # fmt: skip
# By hand, parameters: a block's divided matrices and the biases that go with their outputs ...
H, INNER, MERGED, OUT = 1152, 4304, 4 * 1152, 5120
DIVIDED = 27 * (3 * H * H + 3 * H + H * H + 2 * INNER * H + INNER) + 4 * (MERGED * MERGED + MERGED + OUT * MERGED)
# ... and what is whole: norms (weight and bias), biases after a reduction, patches and positions.
WHOLE = 27 * (4 * H + 2 * H) + 4 * OUT + 2 * H + 3 * 2 * MERGED + (3 * 2 * 16 * 16 * H + H) + 2304 * H


@pytest.fixture(scope="module")
def model() -> Model:
    config = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": VISION}
    return from_config(config, name="vl", source="vl")


def _held(model: Model, engine: str, tp: int) -> int:
    convention = registry.get(engine).convention
    tower = [t for t in model.tensors if t.role.startswith("vision")]
    return sum(shard(t, Layout(tp=tp), convention).bytes for t in tower)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_projections_divide_and_the_rest_is_whole(model: Model, engine: str, tp: int) -> None:
    # vLLM: mm_encoder_tp_mode defaults to "weights"; 16 heads, 4304 and 4608 features divide by 16. bf16: 2 bytes.
    assert _held(model, engine, tp) == 2 * (DIVIDED // tp + WHOLE)


def test_a_tower_whose_heads_do_not_divide_is_whole(model: Model) -> None:
    # vLLM's is_vit_use_data_parallel(num_heads): 16 heads over 32 ranks (or 3) fall back to a copy on each.
    assert _held(model, "vllm", 32) == _held(model, "vllm", 3) == 2 * (DIVIDED + WHOLE)
    assert registry.get("vllm").refuses(model, Layout(tp=32), devices_per_node=8) is None


def test_tensorrt_llm_copies_the_tower(model: Model) -> None:
    # tensorrt_llm/_torch/models/modeling_qwen2vl.py: "copying vision encoder on all devices".
    assert _held(model, "trtllm", 8) == 2 * (DIVIDED + WHOLE)


def test_pieces_are_whole_heads(model: Model) -> None:
    for tensor in model.tensors:
        if tensor.role.startswith("vision") and tensor.split is not Split.NONE:
            extent = tensor.shape[0] if tensor.split is Split.COLUMN else tensor.shape[-1]
            assert tensor.units == 16 and extent % tensor.units == 0, tensor.name
