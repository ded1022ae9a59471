"""Manifests: fields as their API servers have them, groups that stay inside the boundary they are planned in.

Expected values are worked out from the plan by hand; what a shell in a pod makes of a script is asked of bash, with the
variables LeaderWorkerSet documents.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.launch.made import asked
from tests.test_cli import Shell

from linkwise.core.errors import InputError, Refused
from linkwise.core.layout import Layout
from linkwise.engine.registry import parse_command
from linkwise.launch import registry as launchers
from linkwise.launch.base import Asked
from linkwise.launch.kubernetes import registry, schema
from linkwise.launch.kubernetes.pods import Cast
from linkwise.launch.types import Group

CAST = Cast("it", "an/image:1", "a/router:1", "topo")


def made(given: Asked, kind: str = "lws", launcher: str = "", cast: Cast = CAST) -> list[dict[str, Any]]:
    text = registry.manifest(kind, given, launchers.get(launcher or given.engine.name), cast)
    return list(yaml.safe_load_all(text))


def pod_words(container: dict[str, Any], **environment: str) -> list[str]:
    """What the container's shell would start, Kubernetes' own expansion done first."""
    (script,) = container["args"]
    text = script.replace("$$(", "$(").replace("exec ", "printf '%s\\n' ", 1)
    ran = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env=os.environ | environment)
    return ran.stdout.splitlines()


def lws_pods(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Containers of one group, leader first."""
    template = spec["leaderWorkerTemplate"]
    leader = template.get("leaderTemplate", template["workerTemplate"])
    others = [template["workerTemplate"]] * (template["size"] - 1)
    return [t["spec"]["containers"][0] for t in (leader, *others)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("layout", "count"),
    [
        (Layout(tp=8), 3), (Layout(tp=2), 4), (Layout(tp=8, pp=2), 2), (Layout(tp=8, pp=4), 2), (Layout(tp=16), 1),
    ],
)  # fmt: skip
def test_pods_sum_to_the_plan_and_run_its_layout(engine: str, layout: Layout, count: int) -> None:
    rows = [range(n * layout.size, (n + 1) * layout.size) for n in range(count)]
    workers, service = made(asked("llama-3.3-70b", engine, rows, layout))
    assert workers["spec"]["replicas"] == count
    containers = lws_pods(workers["spec"])
    devices = [int(c["resources"]["limits"]["nvidia.com/gpu"]) for c in containers]
    assert len(containers) == max(1, layout.size // 8)
    assert count * sum(devices) == count * layout.size
    for index, container in enumerate(containers):
        words = pod_words(container, LWS_LEADER_ADDRESS="it-0.it", LWS_WORKER_INDEX=str(index), POD_IP="10.0.0.9")
        found = parse_command(words)
        assert (found.layout, found.replicas) == (layout, 1)
        if len(containers) > 1:
            assert words[words.index("--node-rank") + 1] == str(index)
            at = words.index("--master-addr" if engine == "vllm" else "--dist-init-addr") + 1
            assert words[at].split(":")[0] == "it-0.it"
        assert ("--port" in words) or index > 0
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_attention_replicas_of_a_pod_follow_from_its_index() -> None:
    given = asked("deepseek-v3", "vllm", [range(32)], Layout(tp=1, dp_attn=32, ep=32))
    workers, _ = made(given)
    containers = lws_pods(workers["spec"])
    starts = []
    for index in range(1, 4):
        words = pod_words(containers[index], LWS_LEADER_ADDRESS="it-0.it", LWS_WORKER_INDEX=str(index), POD_IP="x")
        starts.append(words[words.index("--data-parallel-start-rank") + 1])
        assert "--headless" in words
    assert starts == ["8", "16", "24"]


def domain(template: dict[str, Any]) -> dict[str, Any] | None:
    affinity = template["spec"]["affinity"]["podAffinity"]
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return required[0] if required else None


def test_a_group_stays_in_the_scale_up_domain_it_is_planned_in() -> None:
    """NVL72: 18 trays of four. Two trays in one domain; and four trays, two in each of two domains."""
    whole = asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8), on="18x4xgb200")
    (workers, _) = made(whole)
    template = workers["spec"]["leaderWorkerTemplate"]
    for part in (template["leaderTemplate"], template["workerTemplate"]):
        term = domain(part)
        assert term is not None
        assert term["topologyKey"] == "accelerator.topograph.run/domain"
        assert term["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/group-key"]
        assert term["labelSelector"]["matchLabels"] == {"leaderworkerset.sigs.k8s.io/name": "it"}
    assert "subGroupPolicy" not in template
    pairs = msgspec.structs.replace(
        whole.cluster, island_size=8, name="pairs", fabric="fat-tree", nics_per_node=4, nic_Bps=5e10
    )
    split = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2))._replace(cluster=pairs)
    (workers, _) = made(split)
    template = workers["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 4
    assert template["subGroupPolicy"] == {"subGroupSize": 2}
    term = domain(template["workerTemplate"])
    assert term is not None
    assert term["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/subgroup-key"]
    # NVLink inside nodes only: nothing wider is needed, near is better.
    plain = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2))
    (workers, _) = made(plain)
    assert domain(workers["spec"]["leaderWorkerTemplate"]["workerTemplate"]) is None


def test_what_pods_cannot_keep_is_refused() -> None:
    bridged = asked("llama-3.3-70b", "vllm", [range(2)], Layout(tp=2), on="8xa40-bridged")
    assert bridged.cluster.island_size == 2
    with pytest.raises(Refused, match="does not say which devices"):
        made(bridged)
    shared = asked("deepseek-v3", "vllm", [range(16)], Layout(tp=4, pp=2, dp_attn=2, ep=8))
    with pytest.raises(Refused, match="several processes on a node"):
        made(shared)
    mpi = asked("llama-3.3-70b", "trtllm", [range(16)], Layout(tp=8, pp=2))
    with pytest.raises(Refused, match="mpirun"):
        made(mpi)
    with pytest.raises(Refused, match="--engine dynamo"):
        made(asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8)), "dynamo")
    one = asked("llama-3.3-70b", "trtllm", [range(8)], Layout(tp=8))
    with pytest.raises(Refused, match="llm-d serves"):
        made(one, "llm-d")
    with pytest.raises(InputError, match="lws, llm-d, dynamo"):
        made(one, "helm")
    with pytest.raises(InputError, match="no image"):
        made(one, cast=Cast("it", ""))


def pools(on: str = "8x8xh100-sxm") -> Asked:
    base = asked("llama-3.3-70b", "vllm", [range(4)], Layout(tp=4), on=on, connector="nixl")
    groups = (
        Group(name="prefill-0", role="prefill", layout=Layout(tp=4), devices=(0, 1, 2, 3)),
        Group(name="prefill-1", role="prefill", layout=Layout(tp=4), devices=(4, 5, 6, 7)),
        Group(name="decode-0", role="decode", layout=Layout(tp=8), devices=tuple(range(8, 16))),
    )
    return base._replace(groups=groups)


def test_pools_as_leader_worker_sets_behind_a_router() -> None:
    prefill, decode, router, service = made(pools())
    assert [(s["metadata"]["name"], s["spec"]["replicas"]) for s in (prefill, decode)] == [
        ("it-prefill", 2), ("it-decode", 1),
    ]  # fmt: skip
    (container,) = router["spec"]["template"]["spec"]["containers"]
    words = pod_words(container)
    assert [words[at + 1] for at, w in enumerate(words) if w == "--prefill"] == [
        "http://it-prefill-0.it-prefill:8000", "http://it-prefill-1.it-prefill:8000",
    ]  # fmt: skip
    assert words[words.index("--decode") + 1] == "http://it-decode-0.it-decode:8000"
    assert service["spec"]["selector"] == {"app": "it-router"}
    env = {e["name"]: e for e in lws_pods(decode["spec"])[0]["env"]}
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    with pytest.raises(InputError, match="router's image"):
        made(pools(), cast=Cast("it", "an/image:1"))


def test_pools_of_llm_d() -> None:
    prefill, decode, pool = made(pools(), "llm-d")
    assert (prefill["kind"], pool["kind"]) == ("Deployment", "InferencePool")
    labels = decode["spec"]["template"]["metadata"]["labels"]
    assert labels["llm-d.ai/role"] == "decode"
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (sidecar,) = decode["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["args"][:3] == ["--port=8000", "--vllm-port=8200", "--connector=nixlv2"]
    words = pod_words(decode["spec"]["template"]["spec"]["containers"][0], POD_IP="x")
    assert words[words.index("--port") + 1] == "8200"
    words = pod_words(prefill["spec"]["template"]["spec"]["containers"][0], POD_IP="x")
    assert words[words.index("--port") + 1] == "8000"


def test_a_dynamo_graph() -> None:
    (graph,) = made(pools(), "dynamo", "dynamo")
    names = {c["name"]: c for c in graph["spec"]["components"]}
    assert {n: c["type"] for n, c in names.items()} == {
        "Frontend": "frontend", "prefill": "prefill", "decode": "decode",
    }  # fmt: skip
    assert names["prefill"]["replicas"] == 2
    main = names["decode"]["podTemplate"]["spec"]["containers"][0]
    assert (main["name"], main["resources"]["limits"]) == ("main", {"nvidia.com/gpu": "8"})
    words = pod_words(main, POD_IP="x")
    assert words[:3] == ["python3", "-m", "dynamo.vllm"]
    assert words[words.index("--disaggregation-mode") + 1] == "decode"
    wide = asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8), on="18x4xgb200")
    (graph,) = made(wide, "dynamo", "dynamo")
    assert graph["spec"]["topologyConstraint"] == {"clusterTopologyName": "topo"}
    worker = graph["spec"]["components"][1]
    assert worker["multinode"] == {"nodeCount": 2}
    assert worker["topologyConstraint"] == {"packDomain": "rack"}
    # What several nodes need to find each other is the operator's.
    assert not {"--nnodes", "--master-addr"} & set(pod_words(worker["podTemplate"]["spec"]["containers"][0]))
    with pytest.raises(InputError, match="cluster-topology"):
        made(wide, "dynamo", "dynamo", Cast("it", "an/image:1"))


def test_settings_files_are_mounted() -> None:
    given = asked("deepseek-v3", "trtllm", [range(8)], Layout(tp=1, dp_attn=8, ep=8))
    config, workers, _ = made(given)
    assert "enable_attention_dp: true" in config["data"]["trtllm.yaml"]
    (container,) = lws_pods(workers["spec"])
    words = pod_words(container, POD_IP="x")
    assert words[words.index("--extra_llm_api_options") + 1] == "/etc/linkwise/trtllm.yaml"
    found = parse_command(words, files={"/etc/linkwise/trtllm.yaml": config["data"]["trtllm.yaml"]})
    assert found.layout == Layout(tp=1, dp_attn=8, ep=8)


def test_neither_kubernetes_nor_the_shell_expands_names() -> None:
    given = asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8))._replace(weights="$(POD_IP) $(touch gone) `id`")
    workers, _ = made(given)
    (container,) = lws_pods(workers["spec"])
    assert pod_words(container, POD_IP="10.0.0.1")[2] == "$(POD_IP) $(touch gone) `id`"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spec", "leaderWorkerTemplate", "restartPolicy"), "Sometimes", "restartPolicy"),
        (("spec", "leaderWorkerTemplate", "size"), 0, "size 0"),
        (("spec", "leaderWorkerTemplate", "bogus"), 1, "bogus"),
        (("metadata", "name"), "Not_A_Name", "metadata.name"),
        (("kind",), "CronJob", "CronJob"),
        (("spec", "replicas"), "two", "replicas"),
    ],
)
def test_a_manifest_that_no_server_would_take_is_refused(path: tuple[str, ...], value: object, said: str) -> None:
    workers, _ = made(asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2)))
    schema.check(workers, where="x")
    at = workers
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(InputError, match=said):
        schema.check(workers, where="x")


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    linkwise = Shell(capsys, tmp_path)
    assert linkwise("plan llama-3.3-70b --on 2x8xh100-sxm --tp 8 --pp 2 --isl 1000 --osl 100 -o p.json").code == 0
    ran = linkwise("launch p.json --kubernetes lws -o k")
    assert ran.code == 0
    found = list(yaml.safe_load_all((tmp_path / "k" / "manifest.yaml").read_text()))
    assert [m["kind"] for m in found] == ["LeaderWorkerSet", "Service"]
    assert found[0]["metadata"]["name"] == "llama-3-3-70b"
    assert linkwise("launch p.json --kubernetes dynamo -o k").code == 2
    assert linkwise("launch p.json --kubernetes dynamo --image a/b:1 -o k").code == 0
    assert linkwise("launch p.json --kubernetes lws --hosts a,b -o k").code == 2
    assert linkwise("launch p.json --image a/b:1 -o d").code == 2
