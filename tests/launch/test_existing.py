"""What someone already runs, read from manifests: layouts worked out by hand from the flags in them.

The manifests are written here in the shapes of llm-d's guides, Dynamo's examples, LeaderWorkerSet's and compose files.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.launch.made import asked, deployment
from tests.launch.test_kubernetes import CAST, pools
from tests.test_cli import Shell

import linkwise
from linkwise.core.errors import InputError, Undecidable
from linkwise.core.layout import Layout
from linkwise.launch import registry as launchers
from linkwise.launch import server
from linkwise.launch.expand import Reader, Scope, Text, by_kubernetes, document
from linkwise.launch.kubernetes import registry
from linkwise.launch.manifest import choose, load
from linkwise.launch.work import Work
from linkwise.launch.write import write

WIDE_EP = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: wide-ep-decode}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 4
    workerTemplate:
      spec:
        initContainers:
        - {name: routing-proxy, image: some/sidecar:1, args: [--port=8000]}
        containers:
        - name: vllm
          image: vllm/vllm-openai:v0.22.1
          command: [/bin/bash, -c]
          args:
          - |-
            # Clear shared memory on start
            find /dev/shm -type f -delete
            START_RANK=$(( ${LWS_WORKER_INDEX:-0} * DP_SIZE_LOCAL ))
            exec vllm serve \\
              deepseek-ai/DeepSeek-V3 \\
              --port 8200 \\
              --trust-remote-code \\
              --enable-expert-parallel \\
              --tensor-parallel-size $TP_SIZE \\
              --data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) \\
              --data-parallel-size-local $DP_SIZE_LOCAL \\
              --data-parallel-address ${LWS_LEADER_ADDRESS} \\
              --data-parallel-start-rank $START_RANK \\
              --kv_transfer_config '{"kv_connector":"NixlConnector", "kv_role":"kv_both"}' \\
              --max-num-batched-tokens ${MAX_TOKENS}
          env:
          - {name: TP_SIZE, value: "1"}
          - {name: DP_SIZE_LOCAL, value: "8"}
          - {name: MAX_TOKENS, value: "512"}
          - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}
          resources: {limits: {nvidia.com/gpu: "8"}}
"""
DEPLOYMENTS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: prefill}
spec:
  replicas: 8
  template:
    spec:
      containers:
      - name: modelserver
        image: vllm/vllm-openai:v0.30.0
        args: ["openai/gpt-oss-120b", "--tensor-parallel-size=1"]
        resources: {limits: {nvidia.com/gpu: 1}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: decode}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: modelserver
        command: ["vllm", "serve"]
        args: ["openai/gpt-oss-120b", "--tensor-parallel-size=$(TP)"]
        env: [{name: TP, value: "4"}]
        resources: {limits: {nvidia.com/gpu: "8"}}
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {selector: {a: b}, ports: [{port: 80}]}
"""
DYNAMO_OLD = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  services:
    Frontend:
      componentType: frontend
      replicas: 1
      extraPodSpec: {mainContainer: {image: i, command: [python3, -m, dynamo.frontend]}}
    decode:
      replicas: 3
      multinode: {nodeCount: 2}
      resources: {limits: {gpu: "8"}}
      extraPodSpec:
        mainContainer:
          image: i
          command: [python3, -m, dynamo.vllm]
          args: [--model, meta-llama/Llama-3.3-70B-Instruct, --is-decode-worker, --tensor-parallel-size, "8",
                 --pipeline-parallel-size, "2", --disaggregation-mode, decode]
"""
COMPOSE = """
services:
  proxy: {image: nginx:1, ports: ["80:80"]}
  llm:
    image: lmsysorg/sglang:v0.5.10
    command: python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --mem-fraction-static 0.8
    deploy: {replicas: 2}
"""


def read(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    return path


def test_a_script_in_a_leader_worker_set(tmp_path: Path) -> None:
    (one,) = load(read(tmp_path, WIDE_EP))
    found = one.parse()
    # 4 pods of 8 devices: 32 attention replicas of tp 1 share their experts.
    assert found.layout == Layout(tp=1, dp_attn=32, ep=32)
    assert (found.replicas, one.devices, found.options.max_batched_tokens) == (2, 32, 512)
    assert found.model == "deepseek-ai/DeepSeek-V3"
    assert not [note for note in found.notes if "devices" in note]


def test_deployments_of_two_pools(tmp_path: Path) -> None:
    path = read(tmp_path, DEPLOYMENTS)
    prefill, decode = load(path)
    assert (prefill.parse().layout, prefill.parse().replicas) == (Layout(tp=1), 8)
    assert (decode.parse().layout, decode.parse().replicas) == (Layout(tp=4), 2)
    assert "pods ask for 8 devices, the command uses 4" in decode.parse().notes[-1]
    with pytest.raises(InputError, match="2 different commands.*prefill, decode"):
        choose(load(path), "", str(path))
    assert choose(load(path), "decode", str(path)).name == "decode"


def test_a_dynamo_graph_of_the_older_kind(tmp_path: Path) -> None:
    (one,) = load(read(tmp_path, DYNAMO_OLD))
    assert (one.parse().layout, one.parse().replicas, one.devices) == (Layout(tp=8, pp=2), 3, 16)


def test_a_compose_file(tmp_path: Path) -> None:
    (one,) = load(read(tmp_path, COMPOSE))
    found = one.parse()
    assert (found.engine, found.layout, found.replicas) == ("sglang", Layout(tp=2), 2)
    assert found.options.memory_utilization == 0.8


@pytest.mark.parametrize(("kind", "launcher"), [("lws", "vllm"), ("llm-d", "vllm"), ("dynamo", "dynamo")])
def test_what_we_write_is_read_back(tmp_path: Path, kind: str, launcher: str) -> None:
    rows = [range(n * 16, (n + 1) * 16) for n in range(2)]
    given = asked("llama-3.3-70b", "vllm", rows, Layout(tp=8, pp=2))
    path = read(tmp_path, registry.manifest(kind, given, launchers.get(launcher), CAST).text)
    one = choose(load(path), "", str(path))
    assert (one.parse().layout, one.parse().replicas, one.devices) == (Layout(tp=8, pp=2), 2, 16)
    path = read(tmp_path, registry.manifest(kind, pools(), launchers.get(launcher), CAST).text)
    found = {one.name.removeprefix("it-"): one.parse() for one in load(path)}
    assert {name: (p.layout, p.replicas) for name, p in found.items()} == {
        "prefill": (Layout(tp=4), 2), "decode": (Layout(tp=8), 1),
    }  # fmt: skip


def test_our_own_folder_is_read_back(tmp_path: Path) -> None:
    rows = [range(n * 16, (n + 1) * 16) for n in range(2)]
    for engine in ("vllm", "sglang", "trtllm"):
        made = deployment(asked("llama-3.3-70b", engine, rows, Layout(tp=8, pp=2)))
        write(made, tmp_path / engine)
        one = choose(load(tmp_path / engine), "", "x")
        assert (one.parse().engine, one.parse().layout, one.parse().replicas) == (engine, Layout(tp=8, pp=2), 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b\n", "no container starts a known engine"),
        ("kind: Deployment\nspec: 5\n", "no container starts"),
        (DEPLOYMENTS.replace("replicas: 8", "replicas: many"), "'many'"),
        (DEPLOYMENTS.replace('"--tensor-parallel-size=1"', '"--tensor-parallel=1"'), "unknown flag"),
        ("x: {{ .Values.a }}\n", "Helm template"),
        ("a: &a [1]\nb: *a\n", "aliases"),
        ("---\n" * 600, "documents"),
    ],
)
def test_files_that_say_nothing_or_too_much(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        for one in load(read(tmp_path, text)):
            one.parse()


def test_expansion_is_arithmetic_and_names_alone() -> None:
    known = {"A": "3", "B": "x y"}

    def expanded(written: str) -> str:
        return document(written, Scope({n: Text(v) for n, v in known.items()}), Reader(Work()))

    assert expanded("$A ${A} ${C:-d} $((A * 2 + 1)) $((7 / 2)) ${B} ${#B} ${A:+e} ${C:+f}") == "3 3 d 7 3 x y 3 e "
    for kept in ("$(id)", "`id`", "$((A**2))", "$((9/0))", "$UNKNOWN", "${A//b/c}", "$((__import__))"):
        assert expanded(kept) == kept
    assert by_kubernetes("$(A) $$(A) $(NO)", known, Work()) == "3 $(A) $(NO)"


def test_fit_and_plan_of_what_runs_today(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shell = Shell(capsys, tmp_path)
    read(tmp_path, DEPLOYMENTS)
    ran = shell("plan --from-manifest m.yaml:decode --on 2x8xh100-sxm --isl 1000 --osl 100 -o p.json")
    assert (ran.code, ran.err) == (0, "")
    found = linkwise.load("p.json")
    assert isinstance(found, linkwise.Plan)
    assert (found.layout, found.replicas, found.model.name) == (Layout(tp=4), 2, "openai/gpt-oss-120b")
    ran = shell("fit --from-manifest m.yaml:decode --on 8xh100-sxm")
    assert ran.code == 0
    assert "tp4" in ran.out
    today = linkwise.fit(on="8xh100-sxm", from_command="vllm serve openai/gpt-oss-120b -tp 2")
    assert (today.fits, today.layout) == (True, Layout(tp=2))
    assert shell("fit --on 8xh100-sxm").code == 2
    assert shell("plan --from-manifest m.yaml --on 8xh100-sxm").code == 2
    ran = shell("plan --from-manifest m.yaml --from-command vllm --on 8xh100-sxm")
    assert ran.code == 2
    assert "one of them" in ran.err
    shell("launch p.json -o d")
    assert shell("fit --from-manifest d --on 8xh100-sxm").code == 0
    assert list(yaml.safe_load_all((tmp_path / "m.yaml").read_text()))


METRICS = b"""# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",gpu_memory_utilization="0.85",num_gpu_blocks="9"} 1
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",gpu_memory_utilization="0.85",num_gpu_blocks="9"} 1
"""
MODELS = b'{"data": [{"id": "it", "root": "openai/gpt-oss-120b", "max_model_len": 8192, "parent": null}]}'
DEV = b"""{"vllm_config": {
 "model_config": {"model": "deepseek-ai/DeepSeek-V3", "max_model_len": 8192, "enforce_eager": false},
 "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 8,
  "enable_expert_parallel": true, "all2all_backend": "allgather_reducescatter", "decode_context_parallel_size": 1},
 "cache_config": {"gpu_memory_utilization": 0.9, "block_size": 64, "cache_dtype": "auto"},
 "scheduler_config": {"max_num_batched_tokens": 4096, "max_num_seqs": 128},
 "compilation_config": {"pass_config": {"enable_sp": false}}, "speculative_config": null, "lora_config": null}}"""
SGLANG = b"""{"model_path": "deepseek-ai/DeepSeek-V3", "tp_size": 16, "dp_size": 4, "enable_dp_attention": true,
 "pp_size": 1,
 "ep_size": 16, "moe_a2a_backend": "none", "kv_cache_dtype": "auto", "mem_fraction_static": 0.8, "version": "0.5.10",
 "chunked_prefill_size": 8192, "disable_cuda_graph": false, "context_length": null}"""


def served(**pages: bytes) -> Callable[[str], bytes | None]:
    names = {"/metrics": "metrics", "/v1/models": "models", "/server_info?config_format=json": "info",
             "/get_server_info": "sglang", "/version": "version"}  # fmt: skip
    return lambda path: pages.get(names.get(path, ""))


def test_a_vllm_server_in_its_development_mode() -> None:
    told = server.read("http://h:1", degrees=False, get=served(metrics=METRICS, models=MODELS, info=DEV))
    found = told.parse()
    assert found.layout == Layout(tp=2, dp_attn=8, ep=16)
    assert (found.model, found.options.max_batched_tokens, found.options.memory_utilization) == (
        "deepseek-ai/DeepSeek-V3", 4096, 0.9,
    )  # fmt: skip
    assert "144 KV tokens in each of 2 engines" in " ".join(found.notes)


def test_a_vllm_server_does_not_say_its_layout() -> None:
    pages = served(metrics=METRICS, models=MODELS, version=b'{"version": "0.32.0"}')
    with pytest.raises(Undecidable, match="VLLM_SERVER_DEV_MODE"):
        server.read("http://h:1", degrees=False, get=pages)
    found = server.read("http://h:1", degrees=True, get=pages).parse()
    assert (found.model, found.replicas, found.options.memory_utilization) == ("openai/gpt-oss-120b", 2, 0.85)
    assert not any("0.32" in note for note in found.notes)


@pytest.mark.parametrize(
    ("served_by", "planned", "said"),
    [
        ("0.32.0", None, ""),  # the facts' own
        ("0.32.1.dev5+g1a2b3c", None, ""),
        ("0.31.0", None, "the server is vllm 0.31.0, the facts are those of 0.32"),
        ("0.31.0", "0.31", ""),
        ("0.32.0", "0.31", "the server is vllm 0.32.0, the facts are those of 0.31"),
        ("main", None, "the server is vllm main"),
    ],
)
def test_a_server_of_another_version_is_said(served_by: str, planned: str | None, said: str) -> None:
    pages = served(metrics=METRICS, models=MODELS, info=DEV, version=json.dumps({"version": served_by}).encode())
    notes = [n for n in server.read("h:1", degrees=False, get=pages).parse(version=planned).notes if "facts" in n]
    assert (len(notes), said in "".join(notes)) == (bool(said), True)


def running(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """A vLLM server of two engines that does not say its layout."""
    metrics = METRICS.replace(b'num_gpu_blocks="9"', b'num_gpu_blocks="%d"' % blocks)
    models = MODELS.replace(b"openai/gpt-oss-120b", b"meta-llama/Llama-3.3-70B-Instruct")
    monkeypatch.setattr(server, "_getter", lambda _: served(metrics=metrics, models=models))


def test_a_servers_engines_are_the_replicas_of_the_degrees_given(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, 25_000)
    found = linkwise.plan(on="2x8xh100-sxm", from_running="http://h:1", tp=4, isl=1000, osl=100)
    assert isinstance(found, linkwise.Plan)
    beside = linkwise.plan(
        on="2x8xh100-sxm", isl=1000, osl=100, engine="vllm",
        from_command="vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 -dp 2 --max-model-len 8192 --block-size 16"
        " --gpu-memory-utilization 0.85",
    )  # fmt: skip
    assert isinstance(beside, linkwise.Plan)
    assert (found.layout, found.replicas) == (beside.layout, beside.replicas) == (Layout(tp=4), 2)
    assert found.figures == beside.figures


@pytest.mark.parametrize(
    ("more", "layout", "replicas"),
    [
        ({}, Layout(tp=2, dp_attn=2), 1),
        ({"ep": 4}, Layout(tp=2, dp_attn=2, ep=4), 1),
        ({"dp_attn": 1}, Layout(tp=2), 2),
    ],
)
def test_a_servers_engines_are_attention_replicas_where_experts_are_shared(
    more: dict[str, int], layout: Layout, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_getter", lambda _: served(metrics=METRICS, models=MODELS))
    found = linkwise.plan(on="8xh100-sxm", from_running="http://h:1", tp=2, isl=1000, osl=100, **more)  # type: ignore[arg-type]
    assert isinstance(found, linkwise.Plan)
    assert (found.layout, found.replicas) == (layout, replicas)


def test_a_servers_kv_room_is_held_against_the_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(blocks: int) -> list[str]:
        running(monkeypatch, blocks)
        found = linkwise.fit(on="2x8xh100-sxm", from_running="http://h:1", tp=4)
        assert found.ledger is not None
        planned.append(found.ledger.kv_tokens or 0)
        return [note for note in found.notes if "the plan has" in note]

    planned: list[int] = []
    (said,) = notes(9)  # 144 tokens
    assert "144 KV tokens in each engine" in said and f"{planned[0]:,}" in said
    assert f"{144 / planned[0]:.3g} times" in said
    assert notes(planned[0] // 16 * 104 // 100) == []
    assert len(notes(planned[0] // 16 * 107 // 100)) == 1
    assert len(notes(planned[0] // 16 * 90 // 100)) == 1


def test_a_server_of_a_pool_says_so() -> None:
    """vllm/config/kv_transfer.py: kv_role; sglang/srt/server_args.py: disaggregation_mode, "null" = no pool."""
    for pages, pool in (
        (
            {
                "metrics": METRICS,
                "info": DEV.replace(b'"lora', b'"kv_transfer_config": {"kv_role": "kv_consumer"}, "lora'),
            },
            "decode",
        ),
        ({"sglang": SGLANG.replace(b'"pp_size"', b'"disaggregation_mode": "prefill", "pp_size"')}, "prefill"),
    ):
        found = server.read("h:1", degrees=False, get=served(**pages)).parse()
        assert f"the server is the {pool} pool of a pair" in found.notes[-1]
    plain = SGLANG.replace(b'"pp_size"', b'"disaggregation_mode": "null", "pp_size"')
    assert not [n for n in server.read("h:1", degrees=False, get=served(sglang=plain)).parse().notes if "pool" in n]


def test_an_sglang_server() -> None:
    found = server.read("http://h:1", degrees=False, get=served(sglang=SGLANG)).parse()
    # tp 16 counts all ranks of the stage; four attention replicas of four.
    assert found.layout == Layout(tp=4, dp_attn=4, ep=16)
    assert found.options.max_batched_tokens == 2048


@pytest.mark.parametrize("url", ["ftp://h:1", "http://", "http://h:99999", "http://u:p@h:1", "http://127.0.0.1:9"])
def test_addresses_without_a_server(url: str) -> None:
    with pytest.raises(InputError):
        server.read(url, degrees=True)


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"tp_size": 1, "model_path": "--x"}', b'{"data": 5}'])
def test_answers_of_something_else(text: bytes) -> None:
    with pytest.raises(InputError):
        server.read("http://h:1", degrees=True, get=lambda _: text)
