"""A prompt's KV arrives at the decode ranks as if it had been computed there, and what is sent is what the plan lists.

Every rank makes the same random global KV; what a rank should hold is cut out of it by the heads written down here.
"""

import json
import subprocess
import sys

import pytest

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.model.read import from_config

pytest.importorskip("torch")

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 8, "intermediate_size": 64, "vocab_size": 128,
    "max_position_embeddings": 256, "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64,
    "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 24,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 128, "moe_layer_freq": 1,
    "max_position_embeddings": 256, "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip

# name: config, KV heads, prefill and decode layout, and what each rank holds: (layers, heads), prefill ranks first.
ALL3, ALL6 = [0, 1, 2], [0, 1, 2, 3, 4, 5]
CASES = {
    "1to2": (LLAMA, 6, {"tp": 1}, {"tp": 2}, [(ALL3, ALL6), (ALL3, [0, 1, 2]), (ALL3, [3, 4, 5])]),
    "2to1": (LLAMA, 6, {"tp": 2}, {"tp": 1}, [(ALL3, [0, 1, 2]), (ALL3, [3, 4, 5]), (ALL3, ALL6)]),
    "4to2": (LLAMA, 4, {"tp": 4}, {"tp": 2}, [*((ALL3, [n]) for n in range(4)), (ALL3, [0, 1]), (ALL3, [2, 3])]),
    "4to2 replicated": (
        LLAMA, 2, {"tp": 4}, {"tp": 2}, [*((ALL3, [n]) for n in (0, 0, 1, 1)), (ALL3, [0]), (ALL3, [1])],
    ),
    "3to1": (LLAMA, 3, {"tp": 3}, {"tp": 1}, [*((ALL3, [n]) for n in range(3)), (ALL3, [0, 1, 2])]),
    "3to2 of 6": (
        LLAMA, 6, {"tp": 3}, {"tp": 2},
        [*((ALL3, [2 * n, 2 * n + 1]) for n in range(3)), (ALL3, [0, 1, 2]), (ALL3, [3, 4, 5])],
    ),
    "mla 2to1": (MLA, 1, {"tp": 2}, {"tp": 1}, [([0, 1], [0])] * 3),
    "pp2 to tp2": (LLAMA, 6, {"pp": 2}, {"tp": 2}, [([0, 1], ALL6), ([2], ALL6), (ALL3, [0, 1, 2]), (ALL3, [3, 4, 5])]),
    "tp2 to pp2": (LLAMA, 6, {"tp": 2}, {"pp": 2}, [(ALL3, [0, 1, 2]), (ALL3, [3, 4, 5]), ([0, 1], ALL6), ([2], ALL6)]),
}  # fmt: skip
# Prompt of 10 tokens in blocks of 4: three blocks of each rank's own.
TOKENS, BLOCK, SENDER, TAKER = 10, 4, [3, 1, 5], [2, 6, 4]

# torch is imported once; the ranks are forks of that process.
CODE = """
import json, os, sys, torch
from linkwise.dist.groups import Named, create, join
from linkwise.dist.launch import _environment, from_environment
from linkwise.core.layout import Layout
from linkwise.dist.observer import observe
from linkwise.engine import registry
from linkwise.model.read import from_config
from linkwise.runtime.check import compare, expected_handoff
from linkwise.runtime.comm import Comm
from linkwise.runtime.split.handoff import finish, hand_over, orders, take_over

given = json.loads(GIVEN)

def cut(whole, layers, heads):
    return [tuple(each[layer][:, :, heads] if each.dim() == 5 else each[layer] for each in whole) for layer in layers]

def body(session):
    engine, me = registry.get("linkwise"), session.start.rank
    found = {}
    teams = {}
    for size in (3, 4, 5, 6):
        team = create(session, [Named("handoff", tuple(range(size)))])
        teams[size] = next(iter(team.values()), None)
    for name, (config, kv_heads, prefill, decode, holds) in given["cases"].items():
        if me >= len(holds):
            continue
        model = from_config({**config, "num_key_value_heads": kv_heads} if kv_heads > 1 else config, None,
                            name="tiny", source="test")
        prefill, decode = Layout(**prefill), Layout(**decode)
        made = torch.Generator().manual_seed(7)
        depth, blocks, size = len(model.layers), len(given["sender"]), given["block"]
        shape = (depth, blocks, size, 24 + 8) if model.is_mla else (depth, blocks, size, kv_heads, 8)
        whole = [torch.randn(shape, generator=made) for _ in range(1 if model.is_mla else 2)]
        layers, heads = holds[me]
        mine = cut(whole, layers, heads)
        table = given["sender"] if me < prefill.size else given["taker"]
        cache = [tuple(torch.full((8, *each.shape[1:]), float(me)) for each in layer) for layer in mine]
        comm = Comm({"handoff": teams[len(holds)]})
        todo = orders(model, prefill, decode, engine)[me]
        with observe() as seen:
            if me < prefill.size:
                for layer, values in zip(cache, mine):
                    for place, value in zip(layer, values):
                        place[table] = value
                finish(hand_over(comm, cache, layers[0], todo, table))
            else:
                take_over(comm, cache, layers[0], todo, table)
        planned = expected_handoff(model, prefill, decode, engine, given["tokens"], size, me)
        right = all(torch.equal(place[table], value) for layer, values in zip(cache, mine)
                    for place, value in zip(layer, values))
        rest = [block for block in range(8) if block not in table]
        untouched = all(bool((place[rest] == me).all()) for layer in cache for place in layer)
        answer = compare({me: seen}, {me: planned})
        found[name] = [right, untouched, answer.difference, [one.S_bytes for one in seen]]
    with open(f"{sys.argv[1]}/{me}.json", "w") as file:
        json.dump(found, file)

with observe():  # loads a good part of torch, once for all
    torch.ones(1).add_(1)
children = []
for rank in range(RANKS):
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        with join(from_environment(_environment(rank, RANKS, int(sys.argv[2]))), backend="gloo") as session:
            body(session)
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""
RANKS = 6


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    from linkwise.dist.launch import _serving

    folder = tmp_path_factory.mktemp("handoff")
    given = {"cases": CASES, "tokens": TOKENS, "block": BLOCK, "sender": SENDER, "taker": TAKER}
    script = folder / "ranks.py"
    script.write_text(f"GIVEN, RANKS = {json.dumps(given)!r}, {RANKS}\n" + CODE)
    with _serving() as port:
        done = subprocess.run(
            [sys.executable, str(script), str(folder), str(port)],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", list(CASES))
def test_decode_ranks_hold_their_slices_and_the_plan_lists_what_was_sent(said, name):
    for rank in range(len(CASES[name][4])):
        right, untouched, difference, _ = said[rank][name]
        assert right and untouched, f"rank {rank}"
        assert not difference


def test_messages_are_whole_blocks_of_keys_and_values(said):
    # 12 kept tokens x 3 heads x 8 elements x 4 B, keys and values: one message for each of 3 layers and 2 receivers
    assert said[0]["1to2"][3] == [2 * 12 * 3 * 8 * 4] * 6
    assert said[1]["1to2"][3] == [2 * 12 * 3 * 8 * 4] * 3
    # one latent, 24 + 8 elements wide, in each of 2 layers, from the rank that matches: rank 1 sends nothing
    assert [each["mla 2to1"][3] for each in said[:3]] == [[12 * 32 * 4] * 2, [], [12 * 32 * 4] * 2]
    # heads 0-1, 2 | 3, 4-5 of 6: the middle rank serves both receivers
    assert [len(each["3to2 of 6"][3]) for each in said[:5]] == [3, 6, 3, 6, 6]


@pytest.mark.parametrize("layout", [{"cp": 2}, {"tp": 4, "dcp": 2}])
def test_layouts_that_cut_tokens_are_refused_by_name(layout):
    from linkwise.runtime.split.handoff import orders

    model = from_config(LLAMA | {"num_key_value_heads": 2}, None, name="tiny", source="test")
    with pytest.raises(InputError, match="decode layout has d?cp 2; expected tp and pp only"):
        orders(model, Layout(), Layout(**layout), registry.get("linkwise"))
