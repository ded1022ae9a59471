"""Words added to engine commands: what the files say themselves cannot be said twice, by whatever name.

Names as the engines declare them: vllm/engine/arg_utils.py and entrypoints/openai/cli_args.py (0.32), sglang
server_args.py, tensorrt_llm/commands/serve.py.
"""

import pytest
from tests.launch.made import asked, legal

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.launch import added, registry
from linkwise.launch.base import Asked, Ports, engine_words
from linkwise.launch.types import MultiNode, Role

VLLM = (
    "--host x", "--port 1", "--uds /s", "--served-model-name x", "--headless", "--nnodes 2", "-n 2", "--node-rank 1",
    "-r 1", "--master-addr x", "--master-port 1", "--data-parallel-size-local 1", "-dpl 1", "--data-parallel-rank 0",
    "-dpn 0", "--data-parallel-start-rank 1", "-dpr 1", "--data-parallel-address x", "-dpa x",
    "--data-parallel-rpc-port 1", "-dpp 1", "--data-parallel-backend ray", "-dpb ray", "--data-parallel-hybrid-lb",
    "-dph", "--data-parallel-external-lb", "-dpe", "--distributed-executor-backend ray",
)  # fmt: skip
SGLANG = (
    "--host x", "--port 1", "--served-model-name x", "--nnodes 2", "--node-rank 1", "--dist-init-addr x:1",
    "--nccl-init-addr x:1", "--base-gpu-id 4", "--disaggregation-mode prefill",
)  # fmt: skip
TRTLLM = ("--host x", "--port 1", "--served_model_name x", "--gpus_per_node 4", "--extra_llm_api_options x.yaml")


def given(engine: str, words: str, role: Role = "both", around: str = "") -> tuple[Asked, str]:
    connector = {"vllm": "nixl", "sglang": "sglang_mooncake"}.get(engine, "") if role != "both" else ""
    made = asked("llama-3.3-70b", engine, [range(8)], Layout(tp=8), extra=tuple(words.split()), connector=connector)
    groups = tuple(group.__class__(name=f"{role}-0", role=role, layout=group.layout, devices=group.devices)
                   for group in made.groups)  # fmt: skip
    return made._replace(groups=groups), around or engine


@pytest.mark.parametrize(
    ("engine", "words", "around"),
    [
        *(("vllm", words, "") for words in VLLM),
        *(("sglang", words, "") for words in SGLANG),
        *(("trtllm", words, "") for words in TRTLLM),
        ("vllm", "--seed 1 --data_parallel_rank=0", ""),
        ("vllm", "--port=1", "dynamo"),
        ("sglang", "--dist-init-addr=x:1", "dynamo"),
    ],
)
def test_what_the_files_say_is_refused_by_name(engine: str, words: str, around: str) -> None:
    made, launcher = given(engine, words, around=around)
    name = next(w for w in words.split() if w.startswith("-") and w != "--seed").partition("=")[0].replace("_", "-")
    with pytest.raises(InputError, match=f"--engine-args: {name} is what the files say themselves"):
        added.check(made, registry.get(launcher))


@pytest.mark.parametrize("words", ["--kv-transfer-config {}", "--kv-transfer-config.kv_role=kv_both"])
def test_what_is_written_for_pools_alone_is_refused_for_pools_alone(words: str) -> None:
    made, _ = given("vllm", words, "prefill")
    with pytest.raises(InputError, match="--kv-transfer-config is what the files say"):
        added.check(made, registry.get("vllm"))
    whole, _ = given("vllm", words)
    added.check(whole, registry.get("vllm"))


@pytest.mark.parametrize(
    ("engine", "multi_node"), [("vllm", "native"), ("vllm", "ray"), ("sglang", "native"), ("trtllm", "slurm")]
)
def test_a_launcher_lists_every_flag_it_writes(engine: str, multi_node: MultiNode) -> None:
    """Whatever the layout: what is written for one of them is refused for all."""
    launcher, seen = registry.get(engine), set[str]()
    for layout in legal("qwen3-30b-a3b", engine, 32):
        made = asked("qwen3-30b-a3b", engine, [range(layout.size)], layout, multi_node=multi_node)
        (group,) = made.groups
        if launcher.refuses(made, group) is None:
            own = engine_words(made, group)
            for process in launcher.processes(made, group, Ports()):
                if made.weights in process.command:  # an engine's command; not srun's, nor Ray's
                    words = process.command[process.command.index(made.weights) :]
                    seen |= {w.replace("_", "-") for w in words if w.startswith("--") and w not in own}
    assert len(seen) > 3
    assert seen <= launcher.flags
