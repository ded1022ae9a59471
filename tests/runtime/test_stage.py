"""One rank alone: what a step gives back, whom experts worked for, and shapes by name."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file
from tests.runtime.families import FAMILIES, saved

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.runtime.arch import read_arch
from linkwise.runtime.comm import Comm
from linkwise.runtime.moe import expert_shares
from linkwise.runtime.shapes import expected, names
from linkwise.runtime.split.tensor import Rows, Weights
from linkwise.runtime.stage import Stage
from linkwise.runtime.steps import Row, Step
from linkwise.runtime.weights.source import open_source
from linkwise.supervise.types import Sampling


def test_a_step_draws_for_the_rows_that_want_it_and_counts_experts_rows(tmp_path: Path) -> None:
    model = saved("qwen3_moe", tmp_path)
    source = open_source(tmp_path)
    arch = read_arch(source.fields, where="config.json", dtype=source.dtype)
    stage = Stage(arch, Layout(), 0, Comm({}), source, kv_blocks=4, block_tokens=8)
    texts = [(5, 17, 3, 99), (8, 8, 1), (64, 2)]
    hows = [Sampling(), None, Sampling()]
    rows = [Row(i, 0, text, True, how, (i + 1,)) for i, (text, how) in enumerate(zip(texts, hows, strict=True))]
    drawn = stage.run(Step(7, (tuple(rows),)))
    with torch.no_grad():
        wanted = [int(model(torch.tensor([texts[i]])).logits[0, -1].argmax()) for i in (0, 2)]
    assert drawn is not None
    assert drawn.number == 7
    assert stage.pieces == 4 * 2 + 1 + 1  # halves of layers, the rest of the way, and the draw
    assert drawn.tokens == ((0, wanted[0]), (2, wanted[1]))
    # Layer 1 is dense; 9 tokens choose 2 of 6 experts in each other layer.
    assert sorted(stage.expert_load) == [0, 2, 3]
    assert all(len(load) == 6 and sum(load) == 9 * 2 for load in stage.expert_load.values())


def test_a_step_that_draws_nothing(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    source = open_source(tmp_path)
    arch = read_arch(source.fields, where="config.json", dtype=source.dtype)
    stage = Stage(arch, Layout(), 0, Comm({}), source, kv_blocks=4, block_tokens=8)
    step = Step(0, ((Row(0, 0, (1, 2, 3), True, None, (1,)),),))
    drawn = stage.run(step)
    assert drawn is not None
    assert drawn.tokens == ()
    logits = stage.logits(step)
    assert logits is not None
    assert logits.shape == (0, 120)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_names_of_a_model_are_those_that_transformers_saves(tmp_path: Path, family: str) -> None:
    saved(family, tmp_path)
    source = open_source(tmp_path)
    arch = read_arch(source.fields, where="config.json", dtype=source.dtype)
    assert sorted(names(arch)) == list(source.names)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_tied_head_must_be_the_embedding(tmp_path: Path, tp: int) -> None:
    saved("llama", tmp_path)  # 120 rows, and 128 with those that fill up: the second of two ranks has 56 of them
    source = open_source(tmp_path)
    arch = read_arch(source.fields, where="config.json", dtype=source.dtype)
    tensors = load_file(tmp_path / "model.safetensors")
    for rank, row, equal in ((tp - 1, None, True), (tp - 1, 119, False), (0, 119, tp == 2)):
        head = tensors["model.embed_tokens.weight"].clone()
        if row is not None:
            head[row, 7] += 1.0
        save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
        weights = Weights(open_source(tmp_path), Layout(tp=tp), rank, dtype=torch.float32, arch=arch)
        assert weights.same_vocab("lm_head.weight", "model.embed_tokens.weight") == equal
        assert weights.bytes == 0
    with pytest.raises(InputError, match="tie_word_embeddings"):
        Stage(arch, Layout(), 0, Comm({}), open_source(tmp_path), kv_blocks=4, block_tokens=8)


@pytest.mark.parametrize(
    ("count", "ep", "shares"),
    [(8, 2, [(0, 4), (4, 8)]), (6, 4, [(0, 2), (2, 4), (4, 5), (5, 6)]), (3, 4, [(0, 1), (1, 2), (2, 3), (3, 3)])],
)
def test_low_places_hold_one_expert_more(count: int, ep: int, shares: list[tuple[int, int]]) -> None:
    assert expert_shares(count, ep) == shares


def test_sharded_rows_are_padded_to_whole_shares() -> None:
    """Five rows over two ranks: three each, the sixth is padding."""
    rows = Rows(Layout(tp=2, sequence_sharded=True), Comm({}))
    assert rows.kept(5) == 3
    kept = rows.shard(torch.arange(10.0).view(5, 2))
    assert kept.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert Rows(Layout(tp=2), Comm({})).kept(5) == 5


def test_shapes_by_name() -> None:
    """DeepSeek-V3 as published: 7168 hidden, 128 heads of 128 + 64, latent 512 + 64, 256 experts of 2048."""
    fields = {
        "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 128, "intermediate_size": 18432, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
        "n_group": 8, "topk_group": 4,
    }  # fmt: skip
    arch = read_arch(fields, where="config.json", dtype="bfloat16")
    wanted = {
        "lm_head.weight": (129280, 7168),
        "model.layers.0.mlp.down_proj.weight": (7168, 18432),
        "model.layers.5.mlp.gate.e_score_correction_bias": (256,),
        "model.layers.5.mlp.experts.255.up_proj.weight": (2048, 7168),
        "model.layers.5.mlp.shared_experts.down_proj.weight": (7168, 2048),
        "model.layers.5.self_attn.kv_b_proj.weight": (128 * 256, 512),
        "model.layers.5.self_attn.q_a_layernorm.weight": (1536,),
        "model.layers.5.post_attention_layernorm.weight": (7168,),
    }
    assert {name: expected(arch, name) for name in wanted} == wanted
