"""Which layouts engines refuse, with the reason and the smallest change; how they cut pipelines; warnings."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry, rules
from linkwise.engine.base import Options
from linkwise.model.read import from_config


def refusal(name, model, layout, version=None):
    return registry.get(name, version).refuses(model, layout, devices_per_node=8)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "linkwise"])
@pytest.mark.parametrize(
    ("kind", "layout", "reason", "change"),
    [
        ({}, {"tp": 3}, "32 attention heads", "tp 2"),
        ({"kv_heads": 8, "heads": 48}, {"tp": 3}, "8 KV heads", "tp 2"),
        ({}, {"pp": 9}, "8 layers", "pp 8"),
        ({}, {"ep": 2, "tp": 2}, "no experts", "ep 1"),
        ({"intermediate": 14_340}, {"tp": 8}, "mlp.gate: 14340 features", "tp 4"),
    ],
)
def test_what_no_engine_runs(make, name, kind, layout, reason, change):
    found = refusal(name, make(**kind), Layout(**layout))
    assert found is not None
    assert reason in found.reason
    assert found.change == change


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("family", "gpt_oss", "a gpt_oss model"), ("quantization", "fp8 128x128", "weights in fp8 128x128")],
)
def test_models_our_runtime_has_no_forward_pass_for(make, field, value, reason):
    found = refusal("linkwise", replace(make(), **{field: value}), Layout(tp=2))
    assert found is not None and reason in found.reason
    assert (found.change, found.ways) == ("another engine", ())


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "linkwise"])
@pytest.mark.parametrize("layout", [{"tp": 8}, {"tp": 16}, {"pp": 3, "tp": 4}])
def test_what_every_engine_runs(make, name, layout):
    # tp 16 over 8 KV heads replicates each twice.
    assert refusal(name, make(), Layout(**layout)) is None


@pytest.mark.parametrize(
    ("name", "change"),
    # vLLM's expert degree is all ranks or none, so it cannot be 8 of 16; the others take any divisor.
    [("vllm", "ep 1"), ("sglang", "ep 8"), ("trtllm", "ep 8"), ("linkwise", "ep 8")],
)
def test_more_expert_ranks_than_experts(make, name, change):
    found = refusal(name, make(experts=8), Layout(tp=16, ep=16))
    assert found is not None and "more than the 8 experts" in found.reason
    assert found.change == change


def test_a_change_that_meets_another_rule_is_followed_to_its_end(make):
    # Grouped heads have no cp, and without it tp is not above the 8 KV heads: dcp goes too.
    found = refusal("vllm", make(), Layout(tp=4, cp=2, dcp=2))
    assert found is not None and "sparse latent attention only" in found.reason
    assert found.change == "cp 1, dcp 1"
    # Nine stages of eight layers, and three ways to cut 32 heads: both have to change.
    found = refusal("vllm", make(), Layout(pp=9, tp=3))
    assert found is not None and found.change == "pp 8, tp 2"


MODELS = [
    {},
    {"heads": 48, "kv_heads": 4, "layers": 3},
    {"heads": 64, "kv_heads": 2, "vocab": 50_001},
    {"experts": 60, "moe_intermediate": 768, "fp8": True},
    {"experts": 8, "mla": True, "heads": 128},
    {"experts": 64, "kv_heads": 2, "mixer": "sliding"},
]
DEGREES = itertools.product(
    (1, 2, 3, 4, 6, 16), (1, 2, 5), (1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 4, 12, 0), (False, True)
)
LAYOUTS = [
    Layout(tp=tp, pp=pp, cp=cp, dp_attn=dp, dcp=dcp, ep=ep or tp * cp * dp, sequence_sharded=sharded)
    for tp, pp, cp, dp, dcp, ep, sharded in DEGREES
    if tp % dcp == 0 and tp * cp * dp % (ep or 1) == 0
]


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "linkwise", "textbook"])
@pytest.mark.parametrize("kind", MODELS)
def test_every_change_that_names_a_degree_is_true(make, name, kind):
    model, engine = make(**kind), registry.get(name)
    refused = 0
    for layout in LAYOUTS:
        found = engine.refuses(model, layout, devices_per_node=8)
        if found is None:
            continue
        refused += 1
        if not found.ways:
            assert not any(c.isdigit() for c in found.change), (layout, found)
            continue
        (way,) = found.ways
        assert way and all(f"{n} {d}" in found.change or n == "sequence_sharded" for n, d in way.items()), found
        changed = rules.moved(layout, way)
        assert changed is not None and changed != layout
        assert engine.refuses(model, changed, devices_per_node=8) is None, (layout, found)
    assert refused


def test_vllm_aborts_where_the_padded_vocabulary_does_not_divide(make):
    # Observed on vLLM 0.32: tp 3 over a padding that 3 does not divide aborts. 32,000 is 500 x 64.
    model = make(heads=48, kv_heads=48, vocab=32_000, intermediate=12_288)
    found = refusal("vllm", model, Layout(tp=3))
    assert found is not None and "vocabulary of 32,000" in found.reason


def test_a_vocabulary_is_padded_to_64_before_it_is_divided(make):
    # 32,001 pads to 501 x 64 = 32,064 = 3 x 10,688.
    assert refusal("vllm", make(heads=48, kv_heads=48, vocab=32_001, intermediate=12_288), Layout(tp=3)) is None


@pytest.mark.parametrize(
    ("moe_intermediate", "tp", "runs"),
    [
        (768, 8, False),  # Qwen3-30B-A3B-FP8: 96 features a rank
        (768, 4, False),  # vllm#25292: 192
        (768, 2, True),
        (1536, 8, False),  # vllm#17569, Qwen3-235B-A22B-FP8: 192
        (1536, 4, True),
        (2560, 8, False),  # 320, reported for another checkpoint; 640 at tp 4 runs
        (2560, 4, True),
    ],
)
def test_fp8_blocks_must_divide_each_shard(make, moe_intermediate, tp, runs):
    model = make(experts=128, moe_intermediate=moe_intermediate, fp8=True)
    found = refusal("vllm", model, Layout(tp=tp))
    assert (found is None) is runs
    if found:
        assert f"= {moe_intermediate // tp} features" in found.reason
        assert f"ep {tp}" in found.change
    # Expert parallelism keeps experts whole (the way out those threads found), and BF16 has no blocks.
    assert refusal("vllm", model, Layout(tp=tp, ep=tp)) is None
    assert refusal("vllm", make(experts=128, moe_intermediate=moe_intermediate), Layout(tp=tp)) is None


def test_dense_fp8_mlp_of_deepseek_v3_stops_at_tp_32(make):
    # sglang#3491: 18,432 / 32 = 576 is not a multiple of 128; 18,432 / 16 = 1,152 is.
    model = make(heads=128, intermediate=18_432, mla=True, fp8=True, hidden=7168)
    found = refusal("sglang", model, Layout(tp=32))
    assert found is not None and "576" in found.reason and found.change == "tp 16"
    assert refusal("sglang", model, Layout(tp=16)) is None


def test_expert_degrees(make):
    model = make(experts=64)
    # vLLM: all ranks of a stage, or off. SGLang: any divisor. TensorRT-LLM: ep x moe_tp = tp.
    found = refusal("vllm", model, Layout(tp=8, ep=4))
    assert found is not None and found.change == "ep 8"
    assert refusal("vllm", model, Layout(tp=2, dp_attn=4, ep=8)) is None
    assert refusal("sglang", model, Layout(tp=8, ep=4)) is None
    assert refusal("trtllm", model, Layout(tp=8, ep=4)) is None


def test_uneven_experts(make):
    # vLLM spreads a remainder over the first ranks; SGLang and TensorRT-LLM want equal numbers.
    model = make(experts=60)
    layout = Layout(dp_attn=8, ep=8)
    assert refusal("vllm", model, layout) is None
    for name in ("sglang", "trtllm"):
        found = refusal(name, model, layout)
        assert found is not None and found.change == "ep 4"


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "linkwise"])
def test_attention_replicas_of_a_dense_model_are_replicas(make, name):
    found = refusal(name, make(), Layout(dp_attn=2))
    assert found is not None and "dense" in found.reason and "replicas" in found.change


def test_trtllm_attention_is_data_parallel_over_all_ranks_or_none(make):
    found = refusal("trtllm", make(experts=64), Layout(dp_attn=4, tp=2))
    assert found is not None and found.change == "dp_attn 8 with tp 1"
    assert refusal("trtllm", make(experts=64), Layout(dp_attn=8, ep=8)) is None


@pytest.mark.parametrize(
    ("kv_heads", "tp", "dcp", "runs"),
    # vllm/config/model.py: tp > kv heads, dcp <= tp // kv heads, query heads per KV head a multiple of dcp.
    [(8, 8, 2, False), (4, 8, 2, True), (2, 8, 4, True), (2, 8, 8, False), (8, 16, 2, True)],
)
def test_decode_context_parallelism_of_grouped_heads(make, kv_heads, tp, dcp, runs):
    assert (refusal("vllm", make(kv_heads=kv_heads), Layout(tp=tp, dcp=dcp)) is None) is runs


def test_decode_context_parallelism_of_mla_takes_any_divisor(make):
    model = make(mla=True, heads=128, experts=64)
    for name in ("vllm", "sglang"):
        assert refusal(name, model, Layout(tp=8, dcp=8)) is None
    assert refusal("trtllm", model, Layout(tp=8, dcp=8)) is not None
    assert refusal("sglang", make(kv_heads=2), Layout(tp=8, dcp=2)) is not None


def test_decode_context_parallelism_beside_other_mixers_is_refused(make):
    found = refusal("vllm", make(kv_heads=2, mixer="sliding"), Layout(tp=8, dcp=2))
    assert found is not None and "sliding" in found.reason


def test_version_gates(make):
    model = make(mla=True, heads=128, experts=64, mixer="sparse")
    assert refusal("vllm", model, Layout(tp=8, dcp=8), "0.9") is not None
    assert refusal("vllm", model, Layout(tp=4, cp=2), "0.30") is not None
    assert refusal("vllm", model, Layout(tp=4, cp=2)) is None
    # v1/attention/backend.py: supports_pcp; mla_attention.py: supports_pcp_dcp.
    assert refusal("vllm", make(mla=True, heads=128, experts=64), Layout(tp=4, cp=2)) is not None
    found = refusal("vllm", model, Layout(tp=4, cp=2, dcp=2))
    assert found is not None and "allows 1 or tp" in found.reason
    # vllm/config/parallel.py: "PCP does not support data parallelism yet."
    assert refusal("vllm", model, Layout(tp=2, cp=2, dp_attn=2)) is not None


def test_sglang_nodes_hold_equal_numbers_of_ranks(make):
    model = make(heads=12, kv_heads=12, intermediate=12_288, layers=12)
    found = registry.get("sglang").refuses(model, Layout(pp=9), devices_per_node=8)
    assert found is not None and "2 nodes" in found.reason


@pytest.mark.parametrize(
    ("name", "layers", "pp", "expected"),
    [
        # vllm get_pp_indices by hand: extras go to the stages before the last, counted backwards.
        ("vllm", 61, 2, (31, 30)),
        ("vllm", 61, 4, (15, 15, 16, 15)),
        ("vllm", 62, 4, (15, 16, 16, 15)),
        ("vllm", 63, 4, (16, 16, 16, 15)),
        ("vllm", 80, 8, (10,) * 8),
        # sglang get_pp_indices: the last stages have one more.
        ("sglang", 61, 4, (15, 15, 15, 16)),
        ("sglang", 62, 4, (15, 15, 16, 16)),
        # tensorrt_llm/mapping.py: the first stages have one more.
        ("trtllm", 61, 4, (16, 15, 15, 15)),
        ("linkwise", 61, 4, (16, 15, 15, 15)),
        ("textbook", 62, 4, (16, 16, 15, 15)),
    ],
)
def test_stage_layers(name, layers, pp, expected):
    assert registry.get(name).stage_layers(layers, pp) == expected


@given(st.sampled_from(["vllm", "sglang", "trtllm", "linkwise", "textbook"]), st.integers(1, 300), st.integers(1, 300))
def test_stages_partition_the_layers(name, layers, pp):
    engine = registry.get(name)
    if pp > layers:
        with pytest.raises(InputError):
            engine.stage_layers(layers, pp)
        return
    counts = engine.stage_layers(layers, pp)
    assert len(counts) == pp
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1


def test_older_vllm_is_said_to_ignore_the_pipeline_split(make):
    # vllm#32105 (since 0.14) and #34076 (0.15.2rc1): the length check used all layers' KV.
    model, layout = make(), Layout(pp=2)
    (found,) = registry.get("vllm", "0.15").warnings(model, layout)
    assert "32105" in found and "--max-model-len" in found and "vLLM 0.15 compares" in found
    (later,) = registry.get("vllm").warnings(model, layout)
    assert "later releases check per stage" in later
    (uneven,) = registry.get("vllm").warnings(make(layers=7), layout)
    assert "may still refuse stages that differ" in uneven
    assert registry.get("vllm").warnings(model, Layout(tp=8)) == ()


@given(
    st.sampled_from(["vllm", "sglang", "trtllm", "linkwise", "textbook"]),
    st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32]),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
def test_a_refusal_always_says_why_and_what_else(make, name, tp, pp, dp, experts):
    model = make(experts=64 if experts else 0)
    found = refusal(name, model, Layout(tp=tp, pp=pp, dp_attn=dp))
    if found is not None:
        assert found.reason
        assert found.change


@pytest.mark.parametrize(("degrees", "named"), [({"cp": 2}, "cp 2"), ({"dp_attn": 2, "ep": 2}, "dp_attn 2")])
def test_our_runtime_shards_rows_only_where_all_ranks_see_them(make, degrees, named):
    model = make(experts=64)
    found = refusal("linkwise", model, Layout(tp=2, sequence_sharded=True, **degrees))
    assert found is not None and f"sequence_sharded with {named}" in found.reason
    assert found.change == "sequence_sharded off"
    assert refusal("linkwise", model, Layout(tp=2, **degrees)) is None
    assert refusal("linkwise", model, Layout(tp=2, pp=2, sequence_sharded=True)) is None


@pytest.mark.parametrize("option", [{"mtp_tokens": 2}, {"moe_exchange": "all_gather"}])
def test_what_our_runtime_does_not_run_is_refused_by_name(make, option):
    ((name, value),) = option.items()
    with pytest.raises(InputError, match=f"linkwise: {name} is {value}"):
        registry.get("linkwise").resolve(Options(**option), make(experts=64))
    assert registry.get("linkwise").resolve(Options(moe_exchange="all_to_all"), make(experts=64)).block_tokens == 16


MAMBA = {
    "model_type": "falcon_h1", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 1024, "mamba_d_ssm": 512, "mamba_n_heads": 16,
    "mamba_d_state": 64, "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(("groups", "tp", "change"), [(2, 2, None), (2, 8, "tp 2"), (1, 8, None), (8, 8, None)])
def test_groups_of_a_mamba_layer_divide_or_there_is_one(groups, tp, change):
    model = from_config(MAMBA | {"mamba_n_groups": groups}, None, name="falcon", source="test")
    found = refusal("vllm", model, Layout(tp=tp))
    assert (found and found.change) == change
    assert found is None or "2 heads or groups of recurrent layers" in found.reason
