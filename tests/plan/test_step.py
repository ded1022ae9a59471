"""What a step communicates. Expected values: vLLM 0.32 as observed (what each worker hands to its process group:
1 + 2L all-reduces of T·h, one all-gather of sampled rows' logits, hidden states and residual between stages), and hand
calculation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.core.layout import Layout
from linkwise.core.quantity import Quantity, value_of
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import from_config
from linkwise.plan.batch import Batch, Part, decode_batch, mixed_batch, prefill_batch
from linkwise.plan.ffn_ops import dedup_share
from linkwise.plan.inventory import held, inventory, stages
from linkwise.plan.step import rank_ops, stage_ops, step_ops
from linkwise.plan.writer import Place

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1024,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
TINY_MLA = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 512,
    "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 1024, "moe_intermediate_size": 128, "n_routed_experts": 16, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "q_lora_rank": 96, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 1024, "moe_layer_freq": 1,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def tiny():
    return from_config(TINY, None, name="tiny", source="test")


def tiny_mla():
    return from_config(TINY_MLA, None, name="tiny-mla", source="test")


def ops_of(model, layout, batch, engine="vllm", options=None, place=None):
    return step_ops(model, layout, registry.get(engine), batch, options or Options(), place=place or Place())


def test_vllm_dense_tp2_all_reduces_and_logits():
    # T = 61: prefill of 60 and one decoding request in the same step
    ops = ops_of(tiny(), Layout(tp=2), mixed_batch(60, 1, 100))
    calls = {(o.role, o.kind): (o.repeat, o.S_bytes) for o in ops}
    assert calls == {
        ("embed", "all_reduce"): (1, 61 * 256 * 2),
        ("attn.out", "all_reduce"): (4, 61 * 256 * 2),
        ("mlp.out", "all_reduce"): (4, 61 * 256 * 2),
        ("logits", "all_gather"): (1, 2 * 1024 * 2),
    }


def test_batching_adds_tokens_never_calls():
    one, many = (ops_of(tiny(), Layout(tp=2), decode_batch(n, 10)) for n in (1, 64))
    assert [(o.role, o.repeat) for o in one] == [(o.role, o.repeat) for o in many]


def test_logits_are_gathered_over_the_padded_vocabulary():
    # 1,000 rows pad to 1,024 = 16 x 64, whatever tp is
    model = from_config(TINY | {"vocab_size": 1000}, None, name="tiny", source="test")
    (logits,) = [o for o in ops_of(model, Layout(tp=4), decode_batch(3, 1)) if o.role == "logits"]
    assert logits.S_bytes == 3 * 1024 * 2


def test_pipeline_hands_over_hidden_states_and_residual():
    ops = [o for o in ops_of(tiny(), Layout(pp=2), prefill_batch(60)) if o.kind == "send_recv"]
    assert [(o.stage, o.repeat, o.S_bytes) for o in ops] == [(0, 2, 60 * 256 * 2)]


def test_vllm_generic_path_sends_slices_and_gathers_them():
    ops = ops_of(tiny(), Layout(pp=2, tp=2), prefill_batch(60))
    (sent,) = [o for o in ops if o.kind == "send_recv"]
    gathers = [o for o in ops if o.role == "pp.gather"]
    assert sent.S_bytes == 60 * 256 * 2 / 2
    assert [(o.stage, o.repeat, o.S_bytes) for o in gathers] == [(1, 2, 60 * 256 * 2)]


def test_weights_per_rank_of_a_real_vllm_run():
    # tiny Llama as above: 2,888,192 B at tp 2; 2,885,632 and 2,886,144 B at pp 2 (observed, vLLM 0.32 on CPU)
    model, engine = tiny(), registry.get("vllm")
    stock = inventory(model)

    def rank_bytes(layout):
        return [sum(h.bytes for h in held(stock, s, layout, engine)) for s in stages(model, layout, engine)]

    assert rank_bytes(Layout(tp=2)) == [2_888_192]
    assert rank_bytes(Layout(pp=2)) == [2_885_632, 2_886_144]


def test_sequence_sharded_replaces_each_all_reduce():
    ops = ops_of(tiny(), Layout(tp=2, sequence_sharded=True), prefill_batch(64))
    layers = [o for o in ops if o.role not in {"embed", "logits"}]
    assert sorted({(o.kind, o.repeat) for o in layers}) == [("all_gather", 4), ("reduce_scatter", 4)]
    moved = sum(o.wire_sent_bytes * o.repeat for o in layers)
    # 2 x 4 layers x (S/2 + S/2): the bytes of eight ring all-reduces at n = 2
    assert moved == 8 * 64 * 256 * 2


def test_textbook_moe_exchange():
    # per token: top_k · hidden · 1 B out, top_k · hidden · 2 B back; 3 MoE layers
    ops = ops_of(tiny_mla(), Layout(tp=1, dp_attn=4, ep=4), decode_batch(8, 10), engine="textbook")
    sizes = {o.role: (o.kind, o.repeat, o.S_bytes) for o in ops if o.role.startswith("moe")}
    assert sizes["moe.dispatch"] == ("all_to_all", 3, 8 * 4 * 512 * 1)
    assert sizes["moe.combine"] == ("all_to_all", 3, 8 * 4 * 512 * 2)


def test_tokens_replicated_over_tp_need_one_all_reduce_per_moe_layer():
    ops = ops_of(tiny_mla(), Layout(tp=4, ep=4), decode_batch(8, 10))
    assert {o.kind for o in ops if o.role.startswith("moe")} == {"all_reduce"}


def test_skewed_routing_lists_the_busiest_rank():
    ops = ops_of(
        tiny_mla(), Layout(dp_attn=4, ep=4), decode_batch(8, 10), engine="textbook", options=Options(moe_skew=2.0)
    )
    (dispatch,) = [o for o in ops if o.role == "moe.dispatch"]
    assert len(dispatch.sizes) == 4
    assert math.isclose(sum(dispatch.sizes), dispatch.S_bytes)
    assert dispatch.sizes[0] == pytest.approx(dispatch.S_bytes / 2)


def test_deduplication_per_node():
    # top-4 of 16 experts over 2 nodes: 2·(1 - C(8,4)/C(16,4)) distinct nodes, by hand 2·(1 - 70/1820)
    moe = from_config(TINY_MLA | {"n_group": 1, "topk_group": 1}, None, name="m", source="test").moe
    assert dedup_share(moe, 2) == pytest.approx(2 * (1 - 70 / 1820) / 4)
    assert dedup_share(moe, 1) == 1.0


def test_decode_context_parallel_gathers_queries_and_scatters_outputs():
    ops = ops_of(tiny_mla(), Layout(tp=4, dcp=4), decode_batch(8, 10))
    kinds = [(o.role, o.kind) for o in ops if o.role.startswith("dcp")]
    assert kinds == [("dcp.query", "all_gather"), ("dcp.lse", "all_gather"), ("dcp.out", "reduce_scatter")]


def test_ring_prefill_passes_every_kv_shard_round():
    # cp 2: each rank passes its half of the tokens' KV once per layer: 32 tokens x 4 heads x 2 x 32 x 2 B
    ops = ops_of(tiny(), Layout(cp=2), prefill_batch(64), engine="linkwise")
    (ring,) = [o for o in ops if o.role == "cp.kv"]
    assert (ring.repeat, ring.S_bytes) == (4, 32 * 4 * 2 * 32 * 2)


@given(
    st.sampled_from([Layout(tp=2), Layout(tp=4, pp=2), Layout(dp_attn=2, tp=2, ep=4), Layout(tp=4, dcp=2)]),
    st.integers(1, 4096), st.integers(1, 100_000), st.sampled_from(["textbook", "vllm", "linkwise"]),
)  # fmt: skip
def test_recorded_equals_float(layout, requests, context, engine):
    batch = Batch("decode", (Part(requests, 1, context),), requests)
    bare = ops_of(tiny_mla(), layout, batch, engine)
    kept = step_ops(tiny_mla(), layout, registry.get(engine), batch, Options(), place=Place(), given=Quantity.given)
    assert [value_of(o.S_bytes) for o in kept] == [o.S_bytes for o in bare]
    assert [value_of(o.wire_sent_bytes) for o in kept] == [o.wire_sent_bytes for o in bare]


def roles(ops):
    return {o.role: o for o in ops}


def test_mla_shards_gather_cache_wide_queries_and_scatter_latent_wide_outputs():
    # 8 heads over tp 4: 2 a rank, 8 gathered over dcp 4; cache entry 64 + 16, latent 64; bf16
    found = roles(ops_of(tiny_mla(), Layout(tp=4, dcp=4), decode_batch(8, 10)))
    assert found["dcp.query"].S_bytes == 8 * 8 * (64 + 16) * 2
    assert found["dcp.out"].S_bytes == 8 * 8 * 64 * 2


def test_a_new_prompt_under_dcp_gathers_only_its_cached_context():
    new = roles(ops_of(tiny_mla(), Layout(tp=4, dcp=4), prefill_batch(64)))
    assert not [r for r in new if r.startswith("dcp")]
    later = roles(ops_of(tiny_mla(), Layout(tp=4, dcp=4), prefill_batch(64, 100)))
    assert [r for r in later if r.startswith("dcp")] == ["dcp.latent"]
    # the whole cached latent of 100 tokens, 80 wide, bf16, in each of 4 layers
    assert (later["dcp.latent"].S_bytes, later["dcp.latent"].repeat) == (100 * 80 * 2, 4)


def test_vllm_without_expert_parallel_gathers_over_attention_replicas_and_reduces_over_tp():
    # data parallel 2 x tp 2, experts sliced over all 4: AG/RS over the 2 replicas, then the tp all-reduce
    found = roles(ops_of(tiny_mla(), Layout(tp=2, dp_attn=2), decode_batch(8, 10)))
    row = 8 * 512 * 2
    assert (found["moe.dispatch"].group, found["moe.dispatch"].S_bytes) == ("dp_attn", 2 * row)
    assert (found["moe.combine"].kind, found["moe.combine"].S_bytes) == ("reduce_scatter", 2 * row)
    assert (found["moe.out"].kind, found["moe.out"].group, found["moe.out"].S_bytes) == ("all_reduce", "tp", row)


def test_vllm_with_expert_parallel_gathers_over_the_stage():
    found = roles(ops_of(tiny_mla(), Layout(tp=2, dp_attn=2, ep=4), decode_batch(8, 10)))
    assert (found["moe.dispatch"].group, found["moe.dispatch"].S_bytes) == ("stage", 2 * 8 * 512 * 2)
    assert found["moe.restore"].group == "tp"
    assert "moe.out" not in found


# Node kernel, 2 nodes of 2 ranks, 4 of 16 experts: a copy to the other node with chance 1 - C(8,4)/C(16,4), one to the
# other rank of the own node with chance 1 - C(12,4)/C(16,4); over 4 copies of which 3/4 leave the rank.
ONCE = ((1 - 70 / 1820) + (1 - 495 / 1820)) / (4 * 3 / 4)


@pytest.mark.parametrize(("exchange", "share"), [("all_to_all", 1.0), ("all_to_all_node", ONCE)])
def test_deepep_copies_per_expert_or_per_node(exchange, share):
    # bf16 model: 2 B a value, both kernels; low latency adds a 16-byte header to each copy. 2 nodes, top-4 of 16.
    model = from_config(TINY_MLA | {"n_group": 1, "topk_group": 1}, None, name="m", source="test")
    found = roles(
        ops_of(
            model, Layout(dp_attn=4, ep=4), decode_batch(8, 10), options=Options(moe_exchange=exchange), place=Place(2)
        )
    )
    header = 16 if exchange == "all_to_all" else 0
    assert found["moe.dispatch"].S_bytes == 8 * 4 * (512 * 2 + header)
    assert found["moe.combine"].S_bytes == 8 * 4 * 512 * 2
    assert found["moe.dispatch"].wire_sent_bytes == pytest.approx(found["moe.dispatch"].S_bytes * 3 / 4 * share)


def test_fp8_models_dispatch_fp8_with_a_scale_for_each_128_values():
    # DeepEP low latency at hidden 7168: 16 + 7168 + 56·4 = 7,408 B a copy (its own documentation)
    from linkwise.model.read import load

    (dispatch,) = [
        o
        for o in ops_of(load("deepseek-v3"), Layout(dp_attn=8, ep=8), decode_batch(1, 1),
                        options=Options(moe_exchange="all_to_all"))
        if o.role == "moe.dispatch"
    ]  # fmt: skip
    assert dispatch.S_bytes == 8 * 7408


def test_drafted_tokens_ride_in_the_step_and_the_draft_layer_reduces_once_for_each():
    config = TINY_MLA | {"num_nextn_predict_layers": 1}
    model = from_config(config, None, name="m", source="test")
    found = roles(ops_of(model, Layout(tp=2), decode_batch(216, 10, new=2), options=Options(mtp_tokens=1)))
    assert found["attn.out"].S_bytes == 216 * 2 * 512 * 2
    assert found["logits"].S_bytes == 216 * 2 * 1024 * 2
    assert (found["mtp.attn.out"].repeat, found["mtp.moe.out"].repeat) == (1, 1)


def test_prompt_tokens_are_split_over_cp_and_decode_tokens_are_not():
    found = roles(ops_of(tiny(), Layout(tp=2, cp=2), mixed_batch(60, 3, 100), engine="linkwise"))
    assert found["attn.out"].S_bytes == (30 + 3) * 256 * 2


def test_prompts_are_filled_up_one_by_one_over_cp():
    batch = Batch("prefill", (Part(2, 5, 8, prompt=True), Part(1, 3, 0, prompt=True)), 3)
    found = roles(ops_of(tiny(), Layout(tp=2, cp=2), batch, engine="linkwise"))
    # 5 tokens are 3 rows a rank, twice; 3 are 2. 13 positions are 7 entries a rank, twice; 3 are 2; 2 of 4 heads x 32.
    assert found["attn.out"].S_bytes == (2 * 3 + 2) * 256 * 2
    assert found["cp.kv"].S_bytes == (2 * 7 + 2) * 2 * 2 * 32 * 2


def test_shards_of_a_cached_prompt_are_filled_up():
    # 101 cached tokens over dcp 4: 26 a rank. With cp 2 a rank has 51 of them, 13 in each of its 4 shards.
    found = roles(ops_of(tiny_mla(), Layout(tp=4, dcp=4), prefill_batch(64, 101)))
    assert found["dcp.latent"].S_bytes == 104 * 80 * 2
    found = roles(ops_of(tiny_mla(), Layout(tp=4, dcp=4, cp=2, ep=8), prefill_batch(64, 101), engine="linkwise"))
    assert found["dcp.latent"].S_bytes == 52 * 80 * 2


@pytest.mark.parametrize("engine", ["linkwise", "vllm"])
def test_sequence_sharded_rows_are_filled_up_to_the_same_number_on_each_rank(engine):
    found = roles(ops_of(tiny(), Layout(tp=4, pp=2, sequence_sharded=True), prefill_batch(61), engine=engine))
    assert found["embed"].S_bytes == 61 * 256 * 2
    assert {found[role].S_bytes for role in ("attn.in", "attn.out", "mlp.in", "mlp.out")} == {64 * 256 * 2}
    if engine == "linkwise":
        # Rows stay sharded from stage to stage, and come together ahead of the head.
        assert found["pp.hidden"].S_bytes == 16 * 256 * 2
        assert (found["head.in"].kind, found["head.in"].stage, found["head.in"].S_bytes) == ("all_gather", 1, 64 * 512)
    else:
        assert "head.in" not in found


def test_rows_shared_out_over_tensor_ranks_are_filled_up_ahead_of_the_experts():
    # 9 tokens over tp 2: 5 rows a rank, whatever the exchange
    direct = roles(ops_of(tiny_mla(), Layout(tp=2, dp_attn=2, ep=4), decode_batch(9, 10), engine="linkwise"))
    assert direct["moe.shared"].S_bytes == 9 * 512 * 2
    assert direct["moe.dispatch"].S_bytes == direct["moe.combine"].S_bytes == 5 * 4 * 512 * 2
    assert direct["moe.restore"].S_bytes == 10 * 512 * 2
    gathered = roles(ops_of(tiny_mla(), Layout(tp=2, dp_attn=2, ep=2), decode_batch(9, 10), engine="linkwise"))
    assert (gathered["moe.dispatch"].group, gathered["moe.dispatch"].S_bytes) == ("stage", 4 * 5 * 512 * 2)
    assert gathered["moe.restore"].S_bytes == 10 * 512 * 2


def test_row_counts_of_16_experts_go_ahead_of_our_direct_exchange():
    layout, batch = Layout(dp_attn=2, ep=2), decode_batch(9, 10)
    ours = ops_of(tiny_mla(), layout, batch, engine="linkwise")
    assert [o.role for o in ours if o.role.startswith("moe")] == ["moe.counts", "moe.dispatch", "moe.combine"]
    counts = roles(ours)["moe.counts"]
    assert (counts.kind, counts.group, counts.dtype, counts.S_bytes) == ("all_to_all", "ep", "int64", 16 * 8)
    assert "moe.counts" not in roles(ops_of(tiny_mla(), layout, batch))


def test_an_op_has_a_real_dtype():
    found = roles(ops_of(tiny_mla(), Layout(dp_attn=2, ep=2), decode_batch(9, 10), engine="linkwise"))
    assert {found["moe.dispatch"].dtype, found["moe.combine"].dtype} == {"bfloat16"}


@pytest.mark.parametrize("engine", ["linkwise", "vllm"])
def test_a_chunk_that_is_not_the_last_draws_nothing(engine):
    found = roles(ops_of(tiny(), Layout(tp=2), prefill_batch(64, 0, sampled=0), engine=engine))
    assert "logits" not in found and "attn.out" in found


@pytest.mark.parametrize(
    "layout", [Layout(tp=2, pp=2), Layout(tp=2, cp=2, ep=4), Layout(tp=4, dcp=2, sequence_sharded=True)]
)
def test_a_ranks_calls_are_the_stages_layer_by_layer(layout):
    engine, stock, batch = registry.get("linkwise"), inventory(tiny_mla()), mixed_batch(61, 3, 100, cached=9)
    for stage in stages(stock.model, layout, engine):
        args = stock, stage, layout, engine, batch, Options()
        whole = {(o.role, o.kind, o.group, o.S_bytes): o.repeat for o in stage_ops(*args)}
        one_by_one = {}
        for op in rank_ops(*args):
            key = op.role, op.kind, op.group, op.S_bytes
            one_by_one[key] = one_by_one.get(key, 0) + op.repeat
        assert one_by_one == whole
    outer = [o.role for o in rank_ops(*args) if o.role in {"attn.out", "mlp.out", "moe.out", "moe.restore"}]
    assert all(a == "attn.out" and b != "attn.out" for a, b in zip(outer[::2], outer[1::2], strict=True))


FALCON = {
    "model_type": "falcon_h1", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1024, "mamba_d_ssm": 512, "mamba_n_heads": 16,
    "mamba_d_head": 32, "mamba_d_state": 64, "mamba_n_groups": 2, "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def test_two_mixers_of_a_layer_end_in_a_reduction_each():
    # vLLM's falcon_h1.py: attention's o_proj, Mamba's out_proj and the MLP's down_proj are row-parallel layers.
    model = from_config(FALCON, None, name="falcon", source="test")
    ops = ops_of(model, Layout(tp=2), mixed_batch(60, 1, 100))
    calls = {o.role: o.repeat for o in ops if o.kind == "all_reduce"}
    assert calls == {"embed": 1, "attn.out": 2 * 3, "mlp.out": 3}
