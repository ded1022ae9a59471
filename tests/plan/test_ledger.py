"""The ledger by hand calculation and against a real engine's weights."""

import pytest
from msgspec.structs import replace
from tests.plan import handmade

from linkwise.cluster.read import load as load_cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Options
from linkwise.engine.registry import get
from linkwise.model.read import from_config
from linkwise.model.read import load as load_model
from linkwise.plan.ledger import ledger, ledger_figures
from linkwise.workload.types import Workload

GiB = 2**30
VLLM = get("vllm")
LOAD = Workload(isl_tokens=2048, osl_tokens=256)
ONE, PLAIN = Layout(), Options()
# DeepSeek-V3's cache of a token: 61 layers x (512 + 64) x 2 B.
LATENT = 61 * 576 * 2


def of(model: str, on: str, layout: Layout = ONE, options: Options = PLAIN, load: Workload = LOAD, engine=VLLM):
    return ledger(load_model(model), load_cluster(on), engine, layout, options, load)


def sizes(memory, rank: int = 0) -> dict[str, int]:
    return {e.name: e.bytes for e in memory.ranks[rank].entries}


def test_an_8b_model_on_one_device_by_hand():
    # Llama-3.1-8B: 8,030,261,248 parameters; a token's cache is 32 layers x 2 x 8 heads x 128 x 2 B.
    memory = of("llama-3.1-8b", "1xh100-sxm")
    rank = memory.ranks[0]
    assert rank.bytes_of("weights") == 8_030_261_248 * 2
    assert rank.bytes_per_token == 32 * 2 * 8 * 128 * 2
    assert rank.budget_bytes == int(79.18 * GiB * 0.92)
    assert memory.kv_tokens == rank.kv_bytes // (131_072 * 16) * 16
    # 2,304 tokens are whole blocks of 16; a quarter more than the mean number in flight must fit.
    assert memory.requests == int(rank.kv_bytes / (131_072 * 2304 * 1.25))
    assert memory.shortfall is None


def test_activations_follow_batched_tokens_by_hand():
    # 2 B x (3 x 4,096 + 3 x 14,336) = 110,592 B a token (vllm#10517's slope).
    for tokens in (512, 20_000):
        memory = of("llama-3.1-8b", "1xh100-sxm", options=Options(max_batched_tokens=tokens))
        assert sizes(memory)["activations"] == 110_592 * tokens
    # In a tensor group gate, up and their product divide, and the all-reduce adds two hidden copies.
    memory = of("llama-3.1-8b", "2xh100-sxm", Layout(tp=2), Options(max_batched_tokens=1000))
    assert sizes(memory)["activations"] == 2 * (5 * 4096 + 3 * 14_336 // 2) * 1000


def test_sampler_peak_counts_where_it_exceeds_the_forward_pass():
    # vLLM facts: 9.55 float32 copies of rows x vocabulary and 1.36 hidden copies of every token.
    sampled = 9.55 * 1024 * 128_256 * 4 + 1.36 * 8192 * 4096 * 2
    parts = sizes(of("llama-3.1-8b", "1xh100-sxm"))
    assert parts["activations"] + parts["logits"] == pytest.approx(sampled, abs=1)
    # A row needs a token: 256 batched tokens sample 256 rows, and tp divides none of it.
    few = Options(max_batched_tokens=256)
    one, two = (sizes(of("llama-3.1-8b", "2xh100-sxm", layout, few)) for layout in (Layout(), Layout(tp=2)))
    assert one["activations"] + one["logits"] == two["activations"] + two["logits"]
    # Only the last stage samples.
    memory = of("llama-3.1-8b", "2xh100-sxm", Layout(pp=2))
    assert [sizes(memory, rank)["logits"] > 0 for rank in (0, 1)] == [False, True]


@pytest.fixture
def tiny():
    """The tiny Llama of an observed vLLM run: 4 layers, hidden 256, 8 heads, 4 KV heads, MLP 512, vocabulary 1,024."""
    config = {
        "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024,
        "max_position_embeddings": 2048, "tie_word_embeddings": False,
    }  # fmt: skip
    return from_config(config, name="tiny", source="test")


def test_weights_per_rank_as_a_real_engine_loaded_them(tiny):
    # Observed on vLLM 0.32: 2,888,192 B at tp 2; 2,885,632 and 2,886,144 B at pp 2.
    on = load_cluster("2xh100-sxm")
    tensor = ledger(tiny, on, VLLM, Layout(tp=2), Options(), LOAD)
    assert [r.bytes_of("weights") for r in tensor.ranks] == [2_888_192]
    pipeline = ledger(tiny, on, VLLM, Layout(pp=2), Options(), LOAD)
    assert [r.bytes_of("weights") for r in pipeline.ranks] == [2_885_632, 2_886_144]


def test_latent_is_replicated_over_tp_and_divided_by_dcp():
    on = "8xh200-sxm"
    whole, split = of("deepseek-v3", on, Layout(tp=8)), of("deepseek-v3", on, Layout(tp=8, dcp=8))
    assert whole.ranks[0].bytes_per_token == split.ranks[0].bytes_per_token == LATENT
    # Eight shards of the tokens, up to whole blocks.
    assert split.kv_tokens == pytest.approx(8 * whole.kv_tokens, rel=1e-3)
    entry = next(e for e in whole.ranks[0].entries if e.name == "kv.latent")
    assert (entry.sharded_over, entry.replicated_over) == ("", "tp 8")
    entry = next(e for e in split.ranks[0].entries if e.name == "kv.latent")
    assert (entry.sharded_over, entry.replicated_over) == ("dcp 8", "")


def test_grouped_heads_divide_then_replicate():
    # Llama-3.1-70B has 8 KV heads of 128 in 80 layers: tp 8 keeps one on a rank, tp 16 one as well.
    eight = of("llama-3.1-70b", "2x8xh100-sxm", Layout(tp=8)).ranks[0].bytes_per_token
    sixteen = of("llama-3.1-70b", "2x8xh100-sxm", Layout(tp=16)).ranks[0].bytes_per_token
    assert eight == sixteen == 80 * 2 * 1 * 128 * 2


def test_dp_attn_replicates_attention_and_adds_up_requests():
    on, layout = "8xh200-sxm", Layout(dp_attn=8, ep=8)
    memory = of("deepseek-v3", on, layout)
    rank = memory.ranks[0]
    attention = next(e for e in rank.entries if e.name == "weights.attn")
    assert (attention.sharded_over, attention.replicated_over) == ("", "dp_attn 8")
    experts = next(e for e in rank.entries if e.name == "weights.moe.experts")
    assert experts.sharded_over == "ep 8 x moe_tp 1"
    assert memory.kv_tokens == 8 * rank.kv_tokens
    assert memory.requests == 8 * rank.requests


def test_rank_classes_partition_the_group_and_differ_by_stage_and_remainder():
    # 256 experts over 24 ranks: sixteen hold 11, eight hold 10; dense first layers make the first stage differ.
    memory = of("deepseek-v3", "6x8xh200-sxm", Layout(pp=2, dp_attn=24, ep=24))
    ranks = sorted(r for one in memory.ranks for r in one.ranks)
    assert ranks == list(range(48))
    assert [len(one.ranks) for one in memory.ranks] == [16, 8, 16, 8]
    first, second = memory.ranks[:2]
    per_expert = 3 * 7168 * 2048
    more = next(e.bytes for e in first.entries if e.name == "weights.moe.experts")
    less = next(e.bytes for e in second.entries if e.name == "weights.moe.experts")
    layers = VLLM.stage_layers(61, 2)[0] - 3
    assert more - less == pytest.approx(layers * per_expert, rel=1e-3)  # FP8 with one float32 scale a 128 x 128 block


def test_equal_middle_stages_are_one_class():
    memory = of("llama-3.1-405b", "4x8xh100-sxm", Layout(tp=8, pp=4))
    assert [one.rank_class for one in memory.ranks] == ["stage 0", "stage 1, 2", "stage 3"]
    assert memory.ranks[1].ranks == tuple(range(8, 24))


def test_adapters_by_hand():
    # Llama-3.1-8B, rank 16, attention only. in + out of q, k, v, o: 8,192 + 5,120 + 5,120 + 8,192 in 32 layers.
    options = Options(lora_count=4, lora_rank=16, lora_targets=("attn",))
    assert sizes(of("llama-3.1-8b", "1xh100-sxm", options=options))["adapters"] == 4 * 16 * 26_624 * 32 * 2
    # tp 2 divides the side that the weight divides: q 4,096 + 2,048, k and v 4,096 + 512, o 2,048 + 4,096.
    halved = sizes(of("llama-3.1-8b", "2xh100-sxm", Layout(tp=2), options))["adapters"]
    assert halved == 4 * 16 * (2 * 6144 + 2 * 4608) * 32 * 2


def test_draft_layers_are_loaded_only_when_asked_for():
    on = "8xh200-sxm"
    without, with_mtp = of("deepseek-v3", on, Layout(tp=8)), of("deepseek-v3", on, Layout(tp=8), Options(mtp_tokens=1))
    assert "weights.mtp" not in " ".join(sizes(without))
    assert any(name.startswith("weights.mtp") for name in sizes(with_mtp))
    # One more layer of latent cache.
    assert with_mtp.ranks[0].bytes_per_token - without.ranks[0].bytes_per_token == 576 * 2
    assert sizes(with_mtp)["kv.draft"] == 576 * 2 * 2304


def test_prefix_cache_and_kv_dtype_by_hand():
    plain = of("llama-3.1-8b", "1xh100-sxm")
    cached = of("llama-3.1-8b", "1xh100-sxm", options=Options(prefix_cache_tokens=10_000))
    assert sizes(cached)["kv.prefix_cache"] == 10_000 * 131_072
    assert cached.ranks[0].kv_bytes == plain.ranks[0].kv_bytes
    assert cached.requests == int((plain.ranks[0].kv_bytes - 10_000 * 131_072) / (131_072 * 2304 * 1.25))
    narrow = of("llama-3.1-8b", "1xh100-sxm", options=Options(kv_dtype="fp8"))
    assert narrow.ranks[0].bytes_per_token == 65_536


def test_hybrid_stack_is_never_divided():
    memory = of("gpt-oss-20b", "1xh100-sxm")
    assert memory.kv_tokens is None
    assert memory.ranks[0].bytes_per_token is None
    # 12 full layers keep all 2,304 tokens, 12 windows keep 128: 2 x 8 heads x 64 x 2 B each.
    assert sizes(memory)["kv"] == 12 * (2304 + 128) * 2048
    assert "kv_tokens" not in ledger_figures(
        load_model("gpt-oss-20b"), load_cluster("1xh100-sxm"), VLLM, Layout(), Options(), LOAD
    )


def test_target_concurrency_is_shared_by_replicas_and_carries_headroom():
    # 64 requests over 8 replicas are 8 each; a burst of 1.5 needs room for 12 of 131,072 x 2,304 B.
    load = replace(LOAD, concurrency=64, burst=1.5)
    assert sizes(of("llama-3.1-8b", "8xh100-sxm", load=load))["kv"] == 12 * 2304 * 131_072
    # Under attention data parallelism a replica of attention takes its own share.
    memory = of("deepseek-v3", "8xh200-sxm", Layout(dp_attn=8, ep=8), load=load)
    assert sizes(memory)["kv.latent"] == 12 * 2304 * LATENT


def test_pipeline_needs_a_request_in_every_batch_in_flight():
    assert sizes(of("llama-3.1-8b", "4xh100-sxm", Layout(pp=4)))["kv"] == 4 * 2304 * 131_072 // 4
    more = Options(microbatches=8)
    assert sizes(of("llama-3.1-8b", "4xh100-sxm", Layout(pp=4), more))["kv"] == 8 * 2304 * 131_072 // 4


def small(total_GB: float):
    """One device of so many decimal GB."""
    on = handmade.cluster(nodes=1, devices=1)
    return replace(on, accelerator=replace(on.accelerator, memory_bytes=int(total_GB * 1e9)))


@pytest.mark.parametrize(
    ("total_GB", "options", "resource"),
    [
        (17.0, Options(), "weights"),  # 16.06 GB of weights against 15.64
        (20.0, Options(), "workspace"),  # 18.4 - 16.06 = 2.34 against 5.18 of sampling and more
        (25.0, Options(max_model_len=131_072), "kv"),  # 1.2 GB left; one such request takes 17.2
        (40.0, Options(), ""),
    ],
)
def test_first_resource_that_does_not_fit(total_GB, options, resource):
    # A device below 70 GB runs 2,048 tokens and 256 requests by default; keep the large device's.
    options = replace(options, max_batched_tokens=8192, max_seqs=1024)
    memory = ledger(load_model("llama-3.1-8b"), small(total_GB), VLLM, Layout(), options, LOAD)
    assert (memory.shortfall.resource if memory.shortfall else "") == resource
    if memory.shortfall:
        assert memory.shortfall.need > memory.shortfall.have


def test_concurrency_is_the_last_resource():
    load = replace(LOAD, concurrency=10_000)
    short = of("llama-3.1-8b", "1xh100-sxm", load=load).shortfall
    assert (short.resource, short.rank) == ("kv concurrency", 0)
    assert short.need == 12_500 * 2304 * 131_072


def test_graphs_outside_the_budget_must_fit_beside_it():
    # vLLM before 0.21 captures 0.39 GiB of graphs outside the budget: 0.5 % of 79.18 GiB is as much, 0.3 % is less.
    old = get("vllm", "0.11.0")
    share = Options(memory_utilization=0.997)
    assert of("llama-3.1-8b", "1xh100-sxm", options=share, engine=old).shortfall.resource == "device memory"
    assert of("llama-3.1-8b", "1xh100-sxm", options=replace(share, eager=True), engine=old).shortfall is None
    rank = of("llama-3.1-8b", "1xh100-sxm", engine=old).ranks[0]
    assert not next(e for e in rank.entries if e.name == "cuda_graphs").in_budget


def test_static_share_holds_weights_and_kv_only():
    engine = get("sglang")
    rank = of("llama-3.1-8b", "1xh100-sxm", engine=engine).ranks[0]
    assert rank.kv_bytes == rank.budget_bytes - rank.bytes_of("weights")
    assert not next(e for e in rank.entries if e.name == "activations").in_budget


def test_free_share_is_of_what_a_trial_run_leaves():
    engine = get("trtllm")
    rank = of("llama-3.1-8b", "1xh100-sxm", engine=engine).ranks[0]
    taken = sum(e.bytes for e in rank.entries if e.in_budget and e.name not in {"kv", "reserve"})
    assert rank.kv_bytes == int((rank.device_bytes - taken) * 0.9)


def test_mxfp4_experts_are_padded_by_their_kernel():
    # vllm#23278 logs 65.9651 GiB for gpt-oss-120b: hidden 2,880 -> 3,072 and intermediate 2,880 -> 2,944.
    rank = of("gpt-oss-120b", "1xh100-sxm").ranks[0]
    assert rank.bytes_of("weights") == pytest.approx(65.9651 * GiB, rel=0.002)
    parts = {e.name: e.bytes for e in rank.entries}
    assert parts["weights.moe.padding"] / parts["weights.moe.experts"] == pytest.approx(
        3072 * 2944 / 2880**2 - 1, rel=1e-6
    )


def test_full_length_that_does_not_fit_is_a_warning():
    # RTX 3090: 5.4 GB of KV hold 41,168 tokens, the model's own limit is 131,072.
    memory = of("llama-3.1-8b", "1xrtx-3090")
    assert any("131,072 tokens does not fit" in w for w in memory.warnings)
    assert memory.shortfall is None
    asked = of("llama-3.1-8b", "1xrtx-3090", options=Options(max_model_len=131_072))
    assert asked.shortfall.resource == "kv"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(mtp_tokens=2), "carries no MTP"),
        (Options(lora_count=1, lora_targets=("moe.shared",)), "match no weight"),
    ],
)
def test_options_that_contradict_the_model_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        of("llama-3.1-8b", "1xh100-sxm", options=options)
