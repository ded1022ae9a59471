"""Commands of groups over several nodes, and what a command says beside layout and options: it is always named."""

import re

import pytest

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import facts_io, registry
from linkwise.engine.base import Options


@pytest.mark.parametrize(
    ("name", "layout", "nodes", "words"),
    [
        # vllm/config/parallel.py: nnodes, node_rank, master_addr; docs, data parallel deployment: the -dp flags.
        ("vllm", Layout(tp=8, pp=2), 2, "--nnodes 2 --node-rank NODE_RANK --master-addr HEAD_ADDRESS"),
        ("vllm", Layout(dp_attn=16, ep=16), 2, "--data-parallel-size-local 8 --data-parallel-address HEAD_ADDRESS"),
        # sglang docs, multi-node deployment.
        ("sglang", Layout(tp=16), 2, "--nnodes 2 --node-rank NODE_RANK --dist-init-addr HEAD_ADDRESS:PORT"),
        # TensorRT-LLM docs: one MPI task per GPU around trtllm-llmapi-launch.
        ("trtllm", Layout(tp=8, pp=2), 2, "mpirun -n 16 --hostfile HOSTFILE trtllm-llmapi-launch trtllm-serve m"),
    ],
)
def test_a_group_over_several_nodes_says_what_each_is_given(make, name, layout, nodes, words):
    engine = registry.get(name)
    found = engine.command("m", layout, Options(), nodes=nodes)
    assert words in " ".join(found)
    notes = " ".join(engine.node_notes(layout, nodes))
    for placeholder in re.findall(r"\b(?:NODE_RANK|HEAD_ADDRESS|HOSTFILE|PORT)\b", " ".join(found)):
        assert placeholder in notes
    assert engine.node_notes(layout, 1) == ()
    parsed = registry.parse_command(found, model=make(experts=64))
    assert parsed.layout == layout
    assert parsed.ignored  # the words for the nodes


def test_our_server_starts_ranks_of_one_machine_and_says_what_starts_more():
    engine = registry.get("linkwise")
    found = engine.command("m", Layout(tp=8, pp=2), Options(max_seqs=64), replicas=2, nodes=2)
    assert found == [
        "linkwise",
        "serve",
        "--weights",
        "m",
        "--layout",
        "tp=8,pp=2",
        "--replicas",
        "2",
        "--max-seqs",
        "64",
    ]
    assert "torchrun or srun" in engine.node_notes(Layout(tp=8, pp=2), 2)[0]


def test_our_server_starts_all_replicas_of_one_node():
    engine = registry.get("linkwise")
    assert engine.together(2, Layout(tp=4), 8) == (2, ())
    count, notes = engine.together(3, Layout(tp=4), 8)  # two on the first node, one on the second
    assert count == 1
    assert "one of 3 replicas" in notes[0] and "--replicas N" in notes[0]
    assert engine.together(1, Layout(tp=16), 8) == (1, ())
    assert registry.get("vllm").together(2, Layout(tp=4), 8) == (1, ())


def test_vllm_on_several_nodes_names_the_headless_ones():
    engine = registry.get("vllm")
    assert "--headless" in " ".join(engine.node_notes(Layout(tp=16), 2))
    assert "--data-parallel-start-rank N, N being 8 x" in " ".join(engine.node_notes(Layout(dp_attn=16, ep=16), 2))
    # Before --nnodes, several nodes were a Ray cluster (vllm docs 0.8, distributed serving).
    older = registry.get("vllm", "0.8")
    assert "--distributed-executor-backend ray" in " ".join(older.command("m", Layout(tp=16), Options(), nodes=2))
    assert "Ray cluster over the 2 nodes" in older.node_notes(Layout(tp=16), 2)[0]


def test_what_a_json_flag_says_beside_what_is_read_is_named():
    parsed = registry.parse_command(
        """vllm serve m -tp 4 --compilation-config '{"pass_config": {"enable_fi_allreduce_fusion": true,
        "enable_sp": true}, "level": 3}' --speculative-config '{"method": "mtp", "num_speculative_tokens": 1,
        "disable_by_batch_size": 8}' --eplb-config.window_size 100 --dtype bfloat16 --max-loras 3"""
    )
    assert parsed.layout == Layout(tp=4, sequence_sharded=True)
    assert parsed.options.dtype == "bfloat16"
    assert parsed.ignored == (
        "--speculative-config.disable_by_batch_size=8",
        "--compilation-config.pass_config.enable_fi_allreduce_fusion=true",
        "--compilation-config.level=3",
        "--eplb-config.window_size=100",
        "--max-loras 3",
    )


def test_a_wrapper_is_named():
    parsed = registry.parse_command("mpirun -n 16 trtllm-llmapi-launch trtllm-serve m --tp_size 16")
    assert parsed.ignored[0] == "mpirun -n 16 trtllm-llmapi-launch"


def test_a_settings_file_is_accounted_for():
    settings = "kv_cache_config: {enable_block_reuse: false, dtype: fp8}\ncuda_graph_config: null\nmax_batch_size: 64"
    text = "trtllm-serve m --max_batch_size 32 --extra_llm_api_options s.yaml"
    parsed = registry.parse_command(text, files={"s.yaml": settings})
    assert parsed.options == Options(kv_dtype="float8_e4m3", max_seqs=64, eager=True)
    assert parsed.ignored == ("kv_cache_config.enable_block_reuse=false (settings file)",)
    assert parsed.notes == ("the settings file's max_batch_size 64 overrides the flag's 32",)
    with pytest.raises(InputError, match="decoding_type 'Eagle' is not modelled"):
        registry.parse_command(text, files={"s.yaml": "speculative_config: {decoding_type: Eagle}"})


# A value that is not the default, by flag: what a reader does not take up has to show in `ignored` or `notes`.
VALUES = {
    "kv_dtype": "fp8", "dtype": "bfloat16", "quantization": "fp8", "max_batched_tokens": "4096", "max_seqs": "7",
    "memory_utilization": "0.5", "speculative": '{"method": "ngram"}', "compilation": '{"level": 3}',
    "eplb": '{"window_size": 5}', "all2all": "pplx", "a2a": "mooncake", "spec_algorithm": "NGRAM", "extra": "x.yaml",
    "dense_tp": "1", "spec_topk": "1", "spec_tokens": "3", "ep": "2", "moe_exchange": "all_gather", "lora_rank": "64",
    "weight_dtype": "fp8", "lora_count": "3",
}  # fmt: skip
# tp 2 and what divides it: the other degrees need ranks to divide.
GIVEN = {"model", "tp", "layout", "redundant_experts"}
BASE = {
    "vllm": "vllm serve m -tp 2",
    "sglang": "sglang serve --model-path m --tp 2",
    "trtllm": "trtllm-serve m --tp_size 2",
    "linkwise": "linkwise serve --weights m --layout tp=2",
}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (n, key)
        for n in BASE
        for key in facts_io.raw(n).flags.known
        if key not in {"model", "tp", "layout", "redundant_experts"}
    ],
)
def test_every_flag_that_is_accepted_leaves_a_trace(name, key):
    flag = facts_io.raw(name).flags.known[key]
    value = [] if flag.kind == "switch" else [VALUES.get(key, "2")]
    base = registry.parse_command(BASE[name])
    try:
        found = registry.parse_command([*BASE[name].split(), flag.names[0], *value])
    except InputError:
        return  # refused by name
    assert found != base, key
