"""SGLang's prefill context parallelism: prompts are split, the KV cache is whole on each of its ranks.

Its docs (prefill context parallelism): an all-gather makes a prompt's keys and values available on every rank, and the
decode scan is not divided. By hand for Qwen3-235B-A22B (94 layers, 4 KV heads of 128, bfloat16) on cp 2 x tp 4: a token
of one layer takes 2 x 128 x 2 B = 512 B on a rank, of all 48,128 B.
"""

import pytest

from linkwise import api
from linkwise.cluster.read import load as cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.batch import decode_batch, prefill_batch
from linkwise.plan.inventory import inventory, stages
from linkwise.plan.places import spans
from linkwise.plan.step import step_ops
from linkwise.plan.time import work_of

QWEN, SGLANG, NODE = model("qwen3-235b-a22b"), registry.get("sglang"), cluster("8xh100-sxm")
CP2, TP4 = Layout(cp=2, tp=4, ep=8), Layout(tp=4, ep=4)


def ops(batch):
    found = step_ops(QWEN, CP2, SGLANG, batch, Options())
    return {(op.role, op.kind): op for op in found}


def work(layout, batch):
    stock = inventory(QWEN)
    stage = stages(QWEN, layout, SGLANG)[0]
    return work_of(stock, stage, layout, SGLANG, NODE, batch, Options(), spans(layout, NODE))


def test_kv_is_whole_on_each_rank() -> None:
    found = api.fit("qwen3-235b-a22b", "8xh100-sxm", engine="sglang", cp=2, tp=4, ep=8)
    rank = found.ledger.ranks[0]
    assert rank.bytes_per_token == 48_128
    assert rank.kv_tokens == rank.kv_bytes // 48_128  # pages of one token; twice as many if cp split them
    entry = next(e for e in rank.entries if e.name == "kv")
    assert (entry.sharded_over, entry.replicated_over) == ("tp 4", "cp 2")
    assert entry.bytes == 48_128 * 2304  # one request of 2,048 + 256


def test_a_prompt_gathers_what_is_new_and_rows_are_alike() -> None:
    prompt = ops(prefill_batch(4096, 8192))
    gathered = prompt["cp.kv", "all_gather"]
    assert (gathered.size, gathered.S_bytes, gathered.repeat) == (2, 4096 * 512, 94)
    # Each rank's half of the prompt, 2,048 rows of 4,096 x 2 B, meets the other's at the experts of all 8.
    assert prompt["moe.dispatch", "all_gather"].S_bytes == 2 * 2048 * 4096 * 2
    rows = ops(decode_batch(32, 8192))
    assert not [role for role, _ in rows if role.startswith("cp.")]
    # Every rank has all 32 rows: the slices of the experts add up over the 8 ranks.
    assert (rows["moe.out", "all_reduce"].size, rows["moe.out", "all_reduce"].S_bytes) == (8, 32 * 4096 * 2)


def test_a_prompt_s_work_is_split_and_a_row_s_is_not() -> None:
    decode = decode_batch(32, 8192)
    assert work(CP2, decode).kv_bytes == work(TP4, decode).kv_bytes == 32 * 8193 * 48_128
    assert work(CP2, decode).attention_flops == work(TP4, decode).attention_flops
    prompt = prefill_batch(4096, 0)
    assert work(CP2, prompt).attention_flops == pytest.approx(work(TP4, prompt).attention_flops / 2)


def test_the_simulator_says_the_same() -> None:
    pytest.importorskip("numba")
    from linkwise import api_simulate

    words = {"engine": "sglang", "cp": 2, "tp": 4, "ep": 8, "replicas": 1, "isl": 4000, "osl": 200}
    plan = api.plan("qwen3-235b-a22b", "8xh100-sxm", rate=1.0, **words)
    ran = api_simulate.simulate(plan, requests=1500)
    assert ran.ttft.mean == pytest.approx(plan.chosen.point.ttft_s, rel=0.1)
    assert ran.tpot.mean == pytest.approx(plan.chosen.point.tpot_s, rel=0.1)


def test_the_switch_is_printed_and_asked_for() -> None:
    line = SGLANG.command("m", CP2, Options())
    assert "--enable-prefill-context-parallel" in line
    assert SGLANG.parse(line[1:]).layout == CP2
    newer = [word.replace("prefill-context-parallel", "prefill-cp") for word in line[1:]]
    assert SGLANG.parse([*newer, "--cp-strategy", "zigzag"]).layout == CP2
    line.remove("--enable-prefill-context-parallel")
    with pytest.raises(InputError, match="--attn-cp-size 2 without --enable-prefill-context-parallel"):
        SGLANG.parse(line[1:])


def test_split_decode_caches_are_said_to_depend_on_the_version() -> None:
    # Errors of its releases: "only supported on the AMD HIP platform", later "or CUDA platform".
    deepseek = model("deepseek-v3")
    assert any("--dcp-size on AMD devices alone" in one for one in SGLANG.warnings(deepseek, Layout(tp=8, dcp=8)))
    assert not SGLANG.warnings(deepseek, Layout(tp=8))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-3.3-70b", "splits prompts of qwen3_moe, not of llama"),
        ("deepseek-v3", "splits prompts of latent attention with DeepEP on one node"),
    ],
)
def test_models_whose_prompts_are_not_split_are_refused(name: str, said: str) -> None:
    refusal = SGLANG.refuses(model(name), Layout(cp=2, tp=4), devices_per_node=8)
    assert refusal is not None
    assert said in refusal.reason
    assert refusal.ways == ({"cp": 1},)
