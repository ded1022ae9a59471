"""Positions, slots and sampled rows by hand; sizes of the cache against the planner's ledger."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.model.read import from_config
from linkwise.plan.inventory import inventory, token_bytes
from linkwise.runtime.arch import read_arch
from linkwise.runtime.attention.cache import Cache
from linkwise.runtime.attention.view import Sampled, view_of
from linkwise.runtime.steps import FILLER, Row
from linkwise.supervise.types import Sampling

PROMPT = Row(5, 3, (10, 11, 12, 13, 14), True, Sampling(), (7, 4))  # positions 3 .. 7
DECODE = Row(6, 4, (20,), False, Sampling(), (2, 9))


def _written(batch: tuple[Row, ...], layout: Layout, rank: int, block: int = 4) -> dict[int, int]:
    """Slot -> token that a rank writes, block 0 left out."""
    view = view_of(batch, layout, rank, block)
    flat = torch.full((64, 1), -1)
    view.write(flat, view.tokens[:, None])
    return {slot: int(token) for slot, token in enumerate(flat[:, 0]) if token >= 0 and slot >= block}


def test_one_rank() -> None:
    view = view_of((DECODE, PROMPT), Layout(), 0, 4)
    assert (view.n, view.decode) == (6, 1)
    assert view.tokens.tolist() == [20, 10, 11, 12, 13, 14]
    assert view.positions.tolist() == [4, 3, 4, 5, 6, 7]
    assert view.sampled == (Sampled(0, 0, True), Sampled(1, 5, True))
    # Position 4 of request 6 is the first of its second block, 9; positions 3 and 4 .. 7 of request 5 in 7 and 4.
    assert _written((DECODE, PROMPT), Layout(), 0) == {36: 20, 31: 10, 16: 11, 17: 12, 18: 13, 19: 14}


def test_context_parallel_ranks() -> None:
    """cp 2: even positions on rank 0, odd ones on rank 1; entry p // 2. The chunk has 5 tokens: rank 0 pads one row."""
    even, odd = (view_of((DECODE, PROMPT), Layout(cp=2), rank, 4) for rank in range(2))
    assert even.tokens.tolist() == [20, 11, 13, 14] and even.positions.tolist() == [4, 4, 6, 7]
    assert odd.tokens.tolist() == [20, 10, 12, 14] and odd.positions.tolist() == [4, 3, 5, 7]
    assert (even.prompts[0].own, odd.prompts[0].own) == (2, 3)
    # Position 7 is on rank 1; rank 0 names some row, and a decode row is on both.
    assert even.sampled == (Sampled(0, 0, True), Sampled(1, 2, False))
    assert odd.sampled == (Sampled(0, 0, True), Sampled(1, 3, True))
    # Entries 1 .. 3 of request 5 are in its first block, 7; entry 2 of request 6 in block 2.
    assert _written((DECODE, PROMPT), Layout(cp=2), 0) == {2 * 4 + 2: 20, 7 * 4 + 2: 11, 7 * 4 + 3: 13}
    assert _written((DECODE, PROMPT), Layout(cp=2), 1) == {7 * 4 + 1: 10, 7 * 4 + 2: 12, 7 * 4 + 3: 14}


def test_every_token_is_kept_once_by_the_rank_that_owns_it() -> None:
    """cp 2 x dcp 2: position p on cp rank p % 2, entry e = p // 2 on dcp rank e % 2, as its entry e // 2."""
    row = Row(1, 0, tuple(range(50, 63)), True, None, (3, 1))
    layout = Layout(cp=2, tp=2, dcp=2)
    kept = {}
    for rank in range(4):
        for slot, token in _written((row,), layout, rank, 3).items():
            kept[token - 50] = (rank, (3, 1).index(slot // 3) * 3 + slot % 3)
    assert kept == {p: (p % 2 * 2 + p // 2 % 2, p // 4) for p in range(13)}
    view = view_of((row,), layout, 3, 3)
    assert [view.local(length) for length in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_filler_rows_touch_block_0_only() -> None:
    filler = Row(FILLER, 9, (1, 1, 1), True, None, (5, 6))
    for layout in (Layout(), Layout(cp=2), Layout(tp=2, dcp=2)):
        assert _written((filler._replace(prompt=False, tokens=(1,)), filler), layout, 0) == {}


def test_what_cannot_be() -> None:
    with pytest.raises(InputError, match="decode rows first"):
        view_of((PROMPT, DECODE), Layout(), 0, 4)
    with pytest.raises(InputError, match="request 5 has 1 KV blocks for 8 tokens"):
        view_of((PROMPT._replace(blocks=(7,)),), Layout(), 0, 4)


_LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
_MLA = {
    "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64,
    "num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip


@pytest.mark.parametrize("config", [_LLAMA, _MLA], ids=["grouped", "latent"])
@pytest.mark.parametrize(
    "layout", [Layout(), Layout(tp=2), Layout(tp=4), Layout(tp=4, dcp=2), Layout(cp=2, tp=2)], ids=str
)
def test_the_cache_takes_what_the_ledger_says(config: dict[str, Any], layout: Layout) -> None:
    """Bytes of one layer's token, as plan/inventory.py counts them, times tokens and layers."""
    (state, _), *_ = inventory(from_config(config, None, name="tiny", source="test")).states
    arch = read_arch(config, where="test", dtype="bfloat16")
    cache = Cache(arch, layout, 2, 5, 4, dtype=torch.bfloat16)
    assert cache.nbytes == 2 * 5 * 4 * token_bytes(state, layout, "bfloat16")
