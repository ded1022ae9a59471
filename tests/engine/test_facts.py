"""Facts of each engine: every figure has a source, versions overlay, device-dependent defaults."""

import msgspec
import pytest

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import facts_io, registry
from linkwise.engine.base import Batching, Convention, Defaults, Memory, Options


@pytest.mark.parametrize("name", facts_io.NAMES)
def test_every_figure_of_the_facts_has_a_source(name):
    engine = registry.get(name)
    raw = facts_io.raw(name)
    figures = [f"{part}.{key}" for part in ("defaults", "memory", "batching") for key in getattr(raw, part)]
    # A flag that says whether we compared, and a name, are not figures.
    figures += [f"convention.{key}" for key in raw.convention if key not in {"supported", "all_reduce"}]
    known = set(raw.sources) | {"defaults", "memory", "convention"} & set(raw.sources)
    missing = [f for f in figures if f not in known and f.partition(".")[0] not in known]
    # Implementation names and trivial repeats are covered by the figure they belong to.
    allowed = {
        "convention.all_reduce_small",
        "convention.head_split",
        "convention.pp_sliced",
        "convention.moe_replicated",
    }
    allowed |= {"convention.head_over", "convention.embed_over", "convention.kv_heads_replicate"}
    assert set(missing) <= allowed
    assert engine.sources


@pytest.mark.parametrize("name", facts_io.NAMES)
def test_facts_use_only_fields_of_the_contract(name):
    raw = facts_io.raw(name)
    for part, kind in (("defaults", Defaults), ("memory", Memory), ("convention", Convention), ("batching", Batching)):
        fields = {f.name for f in msgspec.structs.fields(kind)}
        assert set(getattr(raw, part)) <= fields
        for overlay in raw.versions:
            assert set(getattr(overlay, part)) <= fields


def test_vllm_defaults_follow_the_device(device):
    # vLLM get_batch_defaults: 70 GiB and more 8192 tokens and 1024 requests, A100 and smaller devices 2048 and 256.
    engine = registry.get("vllm")
    large, small, old = (
        engine.defaults_for(device(*d)) for d in ((79.18,), (23.58, "rtx4090"), (79.15, "a100-sxm-80"))
    )
    assert (large.max_batched_tokens, large.max_seqs) == (8192, 1024)
    assert (small.max_batched_tokens, small.max_seqs) == (2048, 256)
    assert (old.max_batched_tokens, old.max_seqs) == (2048, 256)
    assert large.memory_utilization == 0.92
    assert engine.defaults.max_seqs == 1024


def test_vllm_mla_block_is_the_kernels(device, make):
    # FlashMLA 64 on Hopper, CUTLASS MLA 128 on Blackwell (vllm/platforms/cuda.py).
    engine, model = registry.get("vllm"), make(mla=True)
    assert engine.resolve(Options(), model, device(139.8, "h200")).block_tokens == 64
    assert engine.resolve(Options(), model, device(178.0, "b200", 100)).block_tokens == 128
    assert engine.resolve(Options(), make(), device(178.0, "b200", 100)).block_tokens == 16


@pytest.mark.parametrize(
    ("version", "share", "graphs"),
    [("0.32", 0.92, True), ("0.21.0", 0.92, True), ("0.20.1", 0.9, False), ("0.11.0rc1", 0.9, False)],
)
def test_vllm_versions_overlay(version, share, graphs):
    # vLLM's log: "CUDA graph memory profiling is enabled (default since v0.21.0)"; 0.9 in the 0.11 documentation.
    engine = registry.get("vllm", version)
    assert engine.defaults.memory_utilization == share
    assert engine.memory.graphs_in_budget is graphs
    assert engine.version == version


@pytest.mark.parametrize(("length", "tokens"), [(20_000, 20_000), (29_000, 29_000), (35_000, 512)])
def test_old_vllm_profiles_a_whole_prompt_until_chunking(make, length, tokens):
    # vllm#10517, Llama-3.1-8B: activation 2.07 GiB at 20k and 2.99 at 29k (110,592 B a token), 0.06 GiB at 35k.
    engine = registry.get("vllm", "0.6.4")
    assert engine.resolve(Options(max_model_len=length), make()).max_batched_tokens == tokens
    assert engine.resolve(Options(max_model_len=length, max_batched_tokens=4096), make()).max_batched_tokens == 4096


@pytest.mark.parametrize(
    ("gib", "layout", "chunk", "share"),
    [
        # server_args.py by hand, MiB: 24,564 - (512 + 1.5 x 2048 + 2 x 24 + 128) = 20,804 -> 0.847.
        (24_564 / 1024, Layout(), 2048, 0.847),
        # 81,920 - (512 + 12,288 + 512 + 128) = 68,480 -> 0.836.
        (80.0, Layout(), 8192, 0.836),
        # tp 8: graphs to batch 512 and 1,024 for the ranks: 81,920 - 14,848 = 67,072 -> 0.819.
        (80.0, Layout(tp=8), 8192, 0.819),
        # dp 8 divides the chunk: 512 + 3,072 + 1,024 + 1,024 + 512 x 8 x 4.5 = 24,064 of 81,920 -> 0.706.
        (80.0, Layout(dp_attn=8, ep=8), 1024, 0.706),
    ],
)
def test_sglang_static_share_is_what_its_reserve_leaves(device, gib, layout, chunk, share):
    found = registry.get("sglang").defaults_for(device(gib, "rtx"), layout)
    assert found.max_batched_tokens == chunk
    assert found.memory_utilization == share
    assert found.utilization_of == "static"


def test_trtllm_blocks_were_64_tokens():
    # TensorRT-LLM#2268: 631 blocks of 64 tokens = 40,384 tokens.
    assert registry.get("trtllm", "0.12").defaults.block_tokens == 64
    assert registry.get("trtllm").defaults.block_tokens == 32
    assert registry.get("trtllm").defaults.utilization_of == "free"


@pytest.mark.parametrize("version", ["", "latest", "x.y", "0..1", "1" * 50])
def test_a_version_without_a_number_is_refused(version):
    with pytest.raises(InputError):
        facts_io.version_key(version)


def test_unknown_engines_are_named():
    with pytest.raises(InputError, match="vllm, sglang, trtllm, linkwise, textbook"):
        registry.get("vlm")


def test_engines_by_alias_and_pinned_version():
    assert registry.get("TensorRT-LLM").name == "trtllm"
    assert registry.get("vllm==0.11").version == "0.11"
    assert registry.get("vllm") is registry.get("vllm")


def test_known_lists_what_is_supported_and_what_is_unverified():
    lines = {k.name: k for k in registry.known()}
    assert set(lines) == set(facts_io.NAMES)
    assert lines["vllm"].convention_supported
    assert not lines["trtllm"].convention_supported
    assert not lines["sglang"].convention_supported
    assert "memory.runtime_bytes" in lines["trtllm"].unverified
    assert "0.21" in lines["vllm"].older


def test_a_newer_version_is_said_to_be_unchecked(make):
    newer = registry.get("vllm", "0.40").warnings(make(), Layout())
    assert any("newer than the facts" in w for w in newer)
    assert registry.get("vllm", "0.32.1").warnings(make(), Layout()) == ()


def test_vllm_shared_experts_are_whole_when_tokens_are_sharded_over_tp(make):
    # vllm/config/parallel.py use_sequence_parallel_moe: expert parallel, tp > 1 and dp > 1.
    engine, model = registry.get("vllm"), make(experts=64)
    both = engine.convention_for(model, Layout(tp=2, dp_attn=4, ep=8), Options())
    assert both.shared_over == "none"
    assert engine.convention_for(model, Layout(tp=8, ep=8), Options()).shared_over == "tp"
    assert engine.convention_for(model, Layout(), Options(moe_exchange="all_to_all")).moe_exchange == "all_to_all"
    assert engine.convention.moe_exchange == "all_gather"


def test_trtllm_gathers_tokens_unless_its_all_to_all_over_nvlink_is_said(make):
    # fused_moe_wide_ep.py select_alltoall_method_type: not below so many expert ranks, nor without NVLink across nodes.
    engine, model, wide = registry.get("trtllm"), make(experts=64), Layout(dp_attn=16, ep=16)
    assert engine.convention_for(model, wide, Options()) == engine.convention
    assert engine.convention.moe_exchange == "all_gather"
    direct = engine.convention_for(model, wide, Options(moe_exchange="all_to_all"))
    assert direct.moe_exchange == "all_to_all"
    assert direct.mlp_over == engine.convention.mlp_over


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "float8_e8m0", "int32"])
@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "linkwise"])
def test_a_kv_dtype_no_engine_stores_is_refused(make, name, dtype):
    with pytest.raises(InputError, match=f"{name} .*KV dtype: '{dtype}' is not stored; expected one of bfloat16"):
        registry.get(name).resolve(Options(kv_dtype=dtype), make())


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        # vllm/config/cache.py CacheDType; sglang server_args.py choices; TensorRT-LLM KvCacheConfig.dtype.
        ("vllm", ["bf16", "fp16", "fp8", "fp8_e5m2", "fp4"]),
        ("sglang", ["bf16", "fp8", "fp8_e5m2", "fp4"]),
        ("trtllm", ["bf16", "fp8", "fp4"]),
    ],
)
def test_kv_dtypes_an_engine_stores_have_a_word_in_its_command(make, name, stored):
    engine, model = registry.get(name), make()
    for dtype in [*stored, None, "auto"]:
        options = Options(kv_dtype=dtype)
        assert engine.resolve(options, model).block_tokens >= 1
        assert engine.command("m", Layout(), options)
    assert len(engine.facts.gates["kv_dtypes"]) == len(stored)


def test_vllm_lays_steps_out_ahead_since_0_14():
    # vLLM release notes 0.14.0: async scheduling is enabled by default.
    ahead = {version: registry.get("vllm", version).batching.ahead for version in ("0.13.2", "0.14.0", "0.32.0")}
    assert ahead == {"0.13.2": False, "0.14.0": True, "0.32.0": True}


def test_how_engines_batch():
    # SGLang: get_next_batch_to_run takes new prompts first. TensorRT-LLM: enable_chunked_prefill defaults to false.
    said = {name: registry.get(name).batching for name in ("vllm", "sglang", "trtllm")}
    assert {name: (one.policy, one.cuts_prompts) for name, one in said.items()} == {
        "vllm": ("mixed", True), "sglang": ("prefill-first", True), "trtllm": ("mixed", False)
    }  # fmt: skip
