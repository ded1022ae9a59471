"""SGLang's wide expert parallelism: dense MLPs whole on each rank, the head over the attention tensor group.

Expected values: its sources (server_args.py: --moe-dense-tp-size, --enable-dp-lm-head; layers/communicator.py: a dense
layer is then whole, and each rank runs its own rows; layers/logits_processor.py: else the rows of all attention
replicas are gathered, and each rank has its part of the vocabulary for them) and hand calculation for DeepSeek-V3:
three dense layers of 3 x 7,168 x 18,432 elements in FP8 with a float32 scale for each 128 x 128, 58 shared experts of
3 x 7,168 x 2,048, a vocabulary of 129,280.
"""

import pytest

from linkwise import api
from linkwise.cluster.read import load as cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.batch import decode_batch
from linkwise.plan.inventory import inventory, stages
from linkwise.plan.places import spans
from linkwise.plan.step import step_ops
from linkwise.plan.time import work_of

DEEPSEEK, SGLANG = model("deepseek-v3"), registry.get("sglang")
WIDE = Options(moe_exchange="all_to_all", dense_whole=True, head_over_tp=True)
DENSE, SHARED = 3 * 3 * 7168 * 18432, 58 * 3 * 7168 * 2048
COMMAND = (
    "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3-0324 --tp-size 32 --dp-size 32"
    " --enable-dp-attention --moe-a2a-backend deepep"
)
FLAGS = ["--enable-dp-lm-head", "--moe-dense-tp-size", "1"]


def refused(ranks: int, options: Options) -> str:
    layout = Layout(dp_attn=ranks, ep=ranks)
    refusal = SGLANG.refuses(DEEPSEEK, layout, devices_per_node=8, options=options)
    return refusal.reason if refusal is not None else ""


def test_the_published_deployment_is_legal() -> None:
    assert refused(32, WIDE) == ""
    # 18,432 / 32 = 576 is no whole number of 128: this is what the flag is there for.
    assert "18432 / 32 = 576" in refused(32, Options(moe_exchange="all_to_all", head_over_tp=True))
    # 129,280 is padded to a multiple of 64 alone: 72 does not divide it, and need not where the head is over tp.
    assert "the vocabulary of 129,280" in refused(72, Options(moe_exchange="all_to_all", dense_whole=True))
    assert refused(72, WIDE) == "256 experts are not divisible by ep 72"


def test_experts_over_some_ranks_are_refused_with_an_all_to_all() -> None:
    # server_args.py: an all-to-all backend sets the expert degree to tp, which is all ranks of a stage.
    options = Options(moe_exchange="all_to_all")
    for layout in (Layout(tp=8), Layout(dp_attn=8), Layout(dp_attn=2, tp=4, ep=4, pp=2)):
        refusal = SGLANG.refuses(DEEPSEEK, layout, devices_per_node=8, options=options)
        assert refusal is not None and "spans all 8 ranks of a stage" in refusal.reason
        assert refusal.ways == ({"ep": 8},)
        assert SGLANG.refuses(DEEPSEEK, layout, devices_per_node=8) is None
    assert SGLANG.refuses(DEEPSEEK, Layout(tp=8, ep=8), devices_per_node=8, options=options) is None
    # A model without experts has no such degree to change.
    refusal = SGLANG.refuses(model("llama-3.1-8b"), Layout(tp=8), devices_per_node=8, options=options)
    assert refusal is not None and (refusal.change, refusal.ways) == ("leave moe_exchange out", ())


def test_a_search_with_a_load_leaves_such_layouts_out() -> None:
    load = {"isl": 2000, "osl": 200, "concurrency": 64}
    free = api.plan("deepseek-v3", "8xh200-sxm", engine="sglang", exchange="all_to_all", **load)
    assert free.layout.ep == free.layout.stage_size and "deepep" in free.command
    left = {r.layout: r.shortfall for r in free.rejected}
    assert (left[Layout(tp=8)].resource, left[Layout(tp=8)].change) == ("legality", "ep 8")
    # The free choice beside a command is searched under the command's options.
    given = api.plan(on="8xh200-sxm", from_command=COMMAND.replace("size 32", "size 8"), **load)
    assert given.layout == Layout(dp_attn=8, ep=8)
    assert any("a free choice for the same devices would be" in note for note in given.notes)


def test_the_head_over_tp_is_printed_with_attention_replicas_alone() -> None:
    # server_args.py: with dp 1 the flag is switched off, and beside plain replicas an assertion ends the start.
    options = Options(head_over_tp=True)
    assert "--enable-dp-lm-head" in SGLANG.command("m", Layout(dp_attn=2, tp=4), options)
    assert "--enable-dp-lm-head" not in SGLANG.command("m", Layout(tp=4), options, replicas=2)


def test_the_flags_are_read_and_printed() -> None:
    words = [*COMMAND.split()[3:], *FLAGS]
    read = SGLANG.parse(words)
    assert (read.options.dense_whole, read.options.head_over_tp) == (True, True)
    printed = SGLANG.command("m", read.layout, read.options, nodes=4)
    assert SGLANG.parse(printed[1:]).options == read.options
    assert not any("planned as" in note and "deepep" not in note for note in read.notes)
    with pytest.raises(InputError, match="--enable-dp-lm-head"):
        SGLANG.parse(["-m", "sglang.launch_server", "--model-path", "m", "--tp-size", "8", "--enable-dp-lm-head"])


def test_bytes_of_a_rank() -> None:
    words = {"engine": "sglang", "tp": 1, "dp_attn": 32, "ep": 32, "utilization": 0.85, "exchange": "all_to_all"}
    found = api.fit("deepseek-v3", "4x8xh100-sxm", dense_whole=True, head_over_tp=True, **words)
    held = {e.name: e.bytes for e in found.ledger.ranks[0].entries}
    assert held["weights.mlp"] == DENSE + DENSE // (128 * 128) * 4
    assert held["weights.head"] == held["weights.embed"] == 129_280 * 7168 * 2
    words |= {"dp_attn": 8, "ep": 8}
    split = {e.name: e.bytes for e in api.fit("deepseek-v3", "8xh200-sxm", **words).ledger.ranks[0].entries}
    assert split["weights.mlp"] == held["weights.mlp"] // 8
    assert split["weights.head"] == held["weights.head"] // 8
    assert split["weights.embed"] == held["weights.embed"]  # over the attention tensor group, which is one rank


def test_rows_and_logits_of_a_step() -> None:
    layout, node, batch = Layout(dp_attn=8, ep=8), cluster("8xh200-sxm"), decode_batch(64, 2000)

    def ops(options: Options):
        return {op.role: op for op in step_ops(DEEPSEEK, layout, SGLANG, batch, options)}

    def work(options: Options):
        stage = stages(DEEPSEEK, layout, SGLANG)[0]
        return work_of(inventory(DEEPSEEK), stage, layout, SGLANG, node, batch, options, spans(layout, node))

    apart, whole = ops(Options(moe_exchange="all_to_all")), ops(WIDE)
    assert apart["head.in"].S_bytes == 8 * 64 * 7168 * 2
    assert (apart["logits"].size, apart["logits"].S_bytes) == (8, 8 * 64 * 129_280 * 2)
    assert (apart["mlp.in"].size, apart["mlp.in"].S_bytes, apart["mlp.in"].repeat) == (8, 8 * 64 * 7168 * 2, 3)
    assert not {"head.in", "logits", "mlp.in", "mlp.out"} & whole.keys()
    # 64 rows of 8 replicas through an eighth, or 64 through all of it: the same work.
    split, own = work(Options(moe_exchange="all_to_all")), work(WIDE)
    assert split.blocks["mlp-all"].flops["fp8-block"] == 2 * 64 * DENSE
    assert own.blocks["mlp"].flops["fp8-block"] == 2 * 64 * (DENSE + SHARED)
    for found in (split, own):
        assert found.blocks["head"].flops["bf16"] == 2 * 64 * 129_280 * 7168
    assert own.blocks["head"].bytes == 8 * split.blocks["head"].bytes
    assert "mlp-all" not in own.blocks
    # Two tensor ranks to a replica: each runs a half of its rows through the whole MLP.
    pair = Layout(dp_attn=4, tp=2, ep=8)
    halves = work_of(
        inventory(DEEPSEEK), stages(DEEPSEEK, pair, SGLANG)[0], pair, SGLANG, node, batch, WIDE, spans(pair, node)
    )
    assert halves.blocks["mlp-own"].flops["fp8-block"] == 2 * 32 * DENSE


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "linkwise"])
def test_other_engines_have_no_such_option(engine: str) -> None:
    with pytest.raises(InputError, match="dense_whole"):
        api.fit("llama-3.1-8b", "1xh100-sxm", engine=engine, tp=1, dense_whole=True)
