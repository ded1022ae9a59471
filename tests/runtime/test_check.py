"""The calls a rank should make, written down by hand for small steps, and what a comparison says of each difference.

That real ranks make exactly these calls is asked of every layout of the oracle's table, in its own run.
"""

import pytest

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.dist.observer import Seen
from linkwise.engine import registry
from linkwise.model.held import held
from linkwise.model.read import from_config
from linkwise.runtime.check import (
    Planned,
    batch_of,
    combined,
    compare,
    expected,
    expected_handoff,
    memory_check,
    planned_memory,
)
from linkwise.runtime.steps import FILLER, SCRATCH, Row, Step
from linkwise.supervise.types import Sampling

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 120,
    "max_position_embeddings": 256, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 5,
    "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip
OURS = registry.get("linkwise")


def model(config=LLAMA, dtype="float32"):
    return held(from_config(config, None, name="tiny", source="test"), dtype)


def decode(number, start):
    return Row(number, start, (1,), False, Sampling(), (1, 2, 3))


def prompt(number, start, count, last=True):
    return Row(number, start, (1,) * count, True, Sampling() if last else None, (4, 5, 6))


def brief(calls):
    return [(call.kind, call.axis, call.role, call.S_bytes) for call in calls]


def seen_as(calls):
    """An observer's list of exactly these calls."""
    counts: dict[object, int] = {}
    found = []
    for call in calls:
        number = counts.get(call.axis, 0)
        counts[call.axis] = number + 1
        found.append(Seen(call.kind, call.axis, call.members, call.dtype, 0, call.S_bytes, call.peer, number))
    return found


def test_a_stage_receives_reduces_layer_by_layer_and_hands_on():
    # rows: one decoding, 5 of a prompt; hidden 32 in float32; stages of 2 and 1 layers; vocabulary 120 padded to 128
    step = Step(0, ((decode(0, 9), prompt(1, 0, 5)),))
    row = 6 * 32 * 4
    first = expected(model(), Layout(pp=2, tp=2), OURS, step, 1)
    layer = [("all_reduce", "tp", "attn.out", row), ("all_reduce", "tp", "mlp.out", row)]
    assert brief(first) == [("all_reduce", "tp", "embed", row), *layer, *layer, ("send", "pp", "pp.hidden", row)]
    assert (first[-1].members, first[-1].peer) == ((1, 3), 3)
    last = expected(model(), Layout(pp=2, tp=2), OURS, step, 3, first=10)
    logits = ("all_gather", "tp", "logits", 2 * 128 * 4)
    assert brief(last) == [("recv", "pp", "pp.hidden", row), *layer, logits]
    assert (last[0].members, last[0].peer, last[1].members) == ((11, 13), 11, (12, 13))


def test_stages_of_given_layers():
    step = Step(0, ((decode(0, 9),),))
    calls = expected(model(), Layout(pp=2, tp=2), OURS, step, 0, layers=(1, 2))
    assert [call.role for call in calls] == ["embed", "attn.out", "mlp.out", "pp.hidden"]
    with pytest.raises(InputError, match="stages of 1, 1 layers; expected 2 stages of at least one layer, 3 in all"):
        expected(model(), Layout(pp=2), OURS, step, 0, layers=(1, 1))


def test_ring_passes_go_to_the_next_rank_and_no_logits_are_gathered_for_nobody():
    # cp 3: a chunk of 4 at position 5: 2 rows a rank; 9 positions make 3 entries a rank of 2 heads x 2 x 8 x 4 B
    step = Step(0, ((prompt(0, 5, 4, last=False),),))
    calls = expected(model(), Layout(cp=3), OURS, step, 0)
    assert brief(calls) == [(kind, "cp", "cp.kv", 3 * 2 * 2 * 8 * 4) for _ in range(3 * 2) for kind in ("send", "recv")]
    assert [call.peer for call in calls[:2]] == [1, 2]


def test_decode_over_shards_combines_dcp_first_then_gathers_a_prompts_past():
    # tp 4, dcp 2, 2 KV heads: one query head a rank, one KV head on two ranks; 5 cached tokens fill 2 x 3 entries
    step = Step(0, ((decode(0, 9), prompt(1, 5, 4)),))
    calls = expected(model(), Layout(tp=4, dcp=2), OURS, step, 0, layers=(3,))[1:7]
    head = 8 * 4
    assert brief(calls)[:5] == [
        ("all_gather", "dcp", "dcp.query", 1 * 2 * head),
        ("all_gather", "dcp", "dcp.lse", 1 * 2 * 2 * 4),
        ("reduce_scatter", "dcp", "dcp.out", 1 * 2 * head),
        ("all_gather", "dcp", "dcp.kv", 6 * 2 * head),
        ("all_reduce", "tp", "attn.out", 5 * 32 * 4),
    ]


def test_each_rank_runs_its_attention_replicas_batch():
    # Replica 0 decodes 3 requests, replica 1 one, filled up to 3 rows; top-2 of 5 experts.
    filler = Row(FILLER, 0, (0, 0), True, None, (SCRATCH,))
    step = Step(0, ((decode(0, 3), decode(1, 4), decode(2, 5)), (decode(3, 6), filler)))
    layer = [
        ("all_to_all", "ep", "moe.counts", 5 * 8),
        ("all_to_all", "ep", "moe.dispatch", 3 * 2 * 32 * 4),
        ("all_to_all", "ep", "moe.combine", 3 * 2 * 32 * 4),
    ]
    for rank in (0, 1):
        calls = expected(model(MIXTRAL), Layout(dp_attn=2, ep=2), OURS, step, rank)
        assert brief(calls) == layer * 3
        assert [call.dtype for call in calls[:2]] == ["int64", "float32"]


def test_sharded_rows_are_filled_up_and_stay_so_between_stages():
    # 5 rows over tp 2 are filled up to 6; each rank hands 3 of them on; the last stage gathers them before its head.
    step = Step(0, ((prompt(0, 0, 5),),))
    layout = Layout(pp=3, tp=2, sequence_sharded=True)
    row, filled = 5 * 32 * 4, 6 * 32 * 4
    block = [
        ("all_gather", "tp", "attn.in", filled), ("reduce_scatter", "tp", "attn.out", filled),
        ("all_gather", "tp", "mlp.in", filled), ("reduce_scatter", "tp", "mlp.out", filled),
    ]  # fmt: skip
    first, last = (expected(model(), layout, OURS, step, rank) for rank in (0, 5))
    assert brief(first) == [("all_reduce", "tp", "embed", row), *block, ("send", "pp", "pp.hidden", filled // 2)]
    assert brief(last)[0] == ("recv", "pp", "pp.hidden", filled // 2)
    assert brief(last)[-2:] == [("all_gather", "tp", "head.in", filled), ("all_gather", "tp", "logits", 128 * 4)]


def test_batches_keep_their_rows_apart():
    batch = batch_of((decode(0, 9), prompt(1, 4, 5, last=False)))
    assert (batch.kind, batch.sampled, batch.tokens) == ("mixed", 1, 6)
    assert batch_of((decode(0, 1),)).kind == "decode" and batch_of((prompt(0, 0, 3),)).kind == "prefill"
    # Each prompt is filled up for itself: 5 and 3 tokens over cp 2 are 3 and 2 rows.
    assert batch_of((prompt(0, 0, 5), prompt(1, 0, 3))).rank_tokens(2) == 5


A = Planned("all_reduce", "embed", "tp", (0, 1), 64, "float32")
B = Planned("send", "pp.hidden", "pp", (0, 2), 32, "float32", 2)
C = Planned("all_reduce", "attn.out", "tp", (0, 1), 128, "float32")


def test_equal_calls_in_any_interleaving_of_groups():
    found = compare({0: seen_as([B, A, C])}, {0: [A, B, C]})
    assert found.equal and found.ranks == 1
    assert [(line.role, line.observed_calls, line.observed_bytes, line.equal) for line in found.lines] == [
        ("embed", 1, 64, True), ("pp.hidden", 1, 32, True), ("attn.out", 1, 128, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([A, B], "rank 0: all_reduce attn.out of 128 B float32 in group tp (ranks 0, 1) was planned and not made"),
        ([C, A, B], "rank 0, call 0 of group tp (ranks 0, 1): all_reduce embed of 64 B float32"),
        ([A, B._replace(peer=0), C], "with rank 2 was planned, send of 32 B float32 with rank 0 observed"),
        ([A, B, C._replace(S_bytes=256)], "all_reduce of 256 B float32 observed"),
        ([A, B, C._replace(dtype="bfloat16")], "all_reduce of 128 B bfloat16 observed"),
        ([A, B, C, C], "call 2 of group tp (ranks 0, 1): all_reduce of 128 B float32 was observed and not planned"),
        ([A, B, C, C._replace(axis="ep")], "call 0 of group ep (ranks 0, 1): all_reduce of 128 B float32 was observed"),
    ],
)
def test_every_difference_is_found_and_said(made, words):
    found = compare({0: seen_as(made)}, {0: [A, B, C]})
    assert not found.equal and words in found.difference


def test_what_comes_back_from_experts_is_compared_over_the_group():
    plan = Planned("all_to_all", "moe.combine", "ep", (0, 1), 100, "float32")
    planned = {rank: [plan] for rank in (0, 1)}

    def observed(*sizes):
        return {rank: seen_as([plan._replace(S_bytes=size)]) for rank, size in enumerate(sizes)}

    assert compare(observed(180, 20), planned).equal
    assert "200 B were planned over its ranks, 201 B observed" in compare(observed(180, 21), planned).difference


def test_comparisons_add_up():
    good, bad = compare({0: seen_as([A])}, {0: [A]}), compare({0: []}, {0: [A]})
    both = combined([good, bad, good])
    assert (both.lines[0].planned_calls, both.lines[0].observed_calls) == (3, 2)
    assert both.difference == bad.difference


def test_memory_is_counted_as_the_ledger_does():
    # tp 2, bfloat16. Embedding and head: 64 of 128 rows each. A layer: half of q, o (32 x 32), k, v (16 x 32) and
    # three 48 x 32, two norms; one norm more. KV: one head, keys and values, 8 wide, in 3 layers.
    layer = (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32) // 2 + 2 * 32
    weights = 2 * (2 * 64 * 32 + 3 * layer + 32)
    kv = 3 * 2 * 8 * 2 * 10 * 16
    assert planned_memory(model(dtype="bfloat16"), Layout(tp=2), OURS, 1, 10, 16) == (weights, kv)
    twice = 2 * weights
    found = memory_check(
        model(),
        Layout(tp=2),
        OURS,
        weight_bytes=[twice, twice + 1],
        kv_bytes=[2 * kv] * 2,
        kv_blocks=10,
        block_tokens=16,
    )
    assert [(one.rank, one.what) for one in found if not one.equal] == [(1, "weights")]


def test_a_handoffs_messages_by_rank():
    # 10 tokens in blocks of 4: 12 entries x one of 2 heads x 8 x 4 B, keys and values, in each of 3 layers
    made = [expected_handoff(model(), Layout(), Layout(tp=2), OURS, 10, 4, place, first=4) for place in range(3)]
    size = 12 * 8 * 4 * 2
    assert brief(made[0]) == [("send", "handoff", "kv.handoff", size)] * 6
    assert [call.peer for call in made[0]] == [5, 6] * 3
    assert brief(made[2]) == [("recv", "handoff", "kv.handoff", size)] * 3
    assert (made[2][0].members, made[2][0].peer, made[2][0].dtype) == ((4, 5, 6), 4, "float32")
