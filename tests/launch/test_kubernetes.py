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
from linkwise.launch.kubernetes import pods, registry, schema
from linkwise.launch.kubernetes.pods import Cast
from linkwise.launch.types import Group

CAST = Cast("it", "an/image:1", "a/router:1", "topo")


def made(given: Asked, kind: str = "lws", launcher: str = "", cast: Cast = CAST) -> list[dict[str, Any]]:
    text = registry.manifest(kind, given, launchers.get(launcher or given.engine.name), cast).text
    return list(yaml.safe_load_all(text))


def kubelet(container: dict[str, Any]) -> dict[str, Any]:
    """Arguments as kubelet gives them on: k8s.io/kubernetes third_party/forked/golang/expansion, one sign at a time."""

    def expanded(text: str) -> str:
        made, at = "", 0
        while at < len(text):
            if text[at] == "$" and at + 1 < len(text):
                if text[at + 1] == "$":
                    made, at = made + "$", at + 2
                    continue
                if text[at + 1] == "(" and ")" in text[at:]:
                    end = text.index(")", at)
                    made, at = made + f"<{text[at + 2 : end]}>", end + 1
                    continue
            made, at = made + text[at], at + 1
        return made

    return container | {"args": [expanded(one) for one in container["args"]]}


def pod_words(container: dict[str, Any], **environment: str) -> list[str]:
    """What the container's shell would start, Kubernetes' own expansion done first."""
    (script,) = kubelet(container)["args"]
    text = script.replace("exec ", "printf '%s\\n' ", 1)
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
        made(asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8), on="8xmi300x"), cast=Cast("it", ""))


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
    # The operator adds flags behind the last argument: no shell may stand before it.
    assert main["command"] == ["python3", "-m", "dynamo.vllm"]
    assert main["args"][:2] == ["--model", "models/it"]
    assert main["args"][main["args"].index("--disaggregation-mode") + 1] == "decode"
    assert "annotations" not in names["decode"]["podTemplate"].get("metadata", {})
    wide = asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8), on="18x4xgb200")
    (graph,) = made(wide, "dynamo", "dynamo")
    assert graph["spec"]["topologyConstraint"] == {"clusterTopologyName": "topo"}
    worker = graph["spec"]["components"][1]
    assert worker["multinode"] == {"nodeCount": 2}
    assert worker["topologyConstraint"] == {"packDomain": "rack"}
    # What several nodes need to find each other is the operator's.
    assert not {"--nnodes", "--master-addr"} & set(worker["podTemplate"]["spec"]["containers"][0]["args"])
    assert worker["podTemplate"]["metadata"]["annotations"] == {"nvidia.com/vllm-distributed-executor-backend": "mp"}
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
    name = "$(POD_IP) $$(POD_IP) a$$b $(touch gone) `id` $"
    given = asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8))._replace(weights=name)
    workers, _ = made(given)
    (container,) = lws_pods(workers["spec"])
    assert pod_words(container, POD_IP="10.0.0.1")[2] == name
    (graph,) = made(given, "dynamo", "dynamo")
    main = graph["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]
    assert kubelet(main)["args"][1] == name


def test_the_service_has_a_name_of_its_own() -> None:
    # LeaderWorkerSet's controller makes a headless service with the set's name (CreateHeadlessServiceIfNotExists).
    for given in (asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8)), pools()):
        found = made(given)
        taken = {m["metadata"]["name"] for m in found if m["kind"] == "LeaderWorkerSet"}
        services = [m["metadata"]["name"] for m in found if m["kind"] == "Service"]
        assert services == ["it-front"]
        assert not taken & set(services)


def test_a_pod_is_told_its_own_address_where_it_is_one_of_several() -> None:
    wide = asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2))
    (workers, _) = made(wide)
    own = {"fieldRef": {"fieldPath": "status.podIP"}}
    for container in lws_pods(workers["spec"]):
        environment = {e["name"]: e for e in container["env"]}
        assert environment["VLLM_HOST_IP"]["valueFrom"] == own
        assert "POD_IP" not in environment
    (workers, _) = made(asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8)))
    (container,) = lws_pods(workers["spec"])
    assert [e["name"] for e in container["env"]] == ["HF_TOKEN"]


def test_what_the_cluster_has_to_add_is_said() -> None:
    def said(given: Asked, kind: str = "lws") -> str:
        return "\n".join(registry.manifest(kind, given, launchers.get(given.engine.name), CAST).notes)

    one = said(asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8)))
    assert "requests go to Service it-front" in one
    assert "HF_TOKEN" in one and "RDMA" not in one and "ComputeDomain" not in one
    wide = said(asked("llama-3.3-70b", "vllm", [range(16)], Layout(tp=8, pp=2)))
    assert "RDMA" in wide and "ComputeDomain" not in wide
    assert "ComputeDomain" in said(asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8), on="18x4xgb200"))
    assert "RDMA" in said(pools(), "llm-d")
    at_path = asked("llama-3.3-70b", "vllm", [range(8)], Layout(tp=8))._replace(weights="/models/it")
    assert "no volume is mounted" in said(at_path) and "HF_TOKEN" not in said(at_path)
    (workers, _) = made(at_path)
    assert "env" not in lws_pods(workers["spec"])[0]


@pytest.mark.parametrize(
    ("engine", "version", "around", "image"),
    [
        ("vllm", "0.32", "", "vllm/vllm-openai:v0.32.0"),
        ("trtllm", "1.2", "", "nvcr.io/nvidia/tensorrt-llm/release:1.2.0"),
        ("vllm", "0.16.0", "dynamo", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0.1"),
        ("vllm", "0.32", "dynamo", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.7.0 holds vllm 0.33.0"),
        ("sglang", "0.5.10", "dynamo", "nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.1.1"),
        ("vllm", "0.99", "dynamo", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.7.0 holds vllm 0.33.0"),
    ],
)
def test_images_are_those_their_makers_publish(engine: str, version: str, around: str, image: str) -> None:
    # docs.nvidia.com/dynamo, release artifacts: vLLM 0.16.0 in 1.0.1, 0.33.0 in 1.7.0; SGLang 0.5.10.post1 in 1.1.1.
    given = asked("llama-3.3-70b", engine, [range(8)], Layout(tp=8), version=version)
    written = registry.manifest(around or "lws", given, launchers.get(around or engine), Cast("it", ""))
    assert f"image: {image.split(' ', 1)[0]}\n" in written.text
    assert (image in "\n".join(written.notes)) == (" holds " in image)


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
    probe = found[0]["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]["startupProbe"]
    assert probe["failureThreshold"] * probe.get("periodSeconds", 10) == 3600
    ran = linkwise("launch p.json --kubernetes dynamo -o k")
    # Dynamo's operator says where discovery is (component_common.go), so nothing is left to set.
    assert (ran.code, "ETCD" in ran.err) == (0, False)
    assert linkwise("launch p.json --engine dynamo -o d").code == 0
    assert "note: Dynamo's processes find each other" in linkwise("launch p.json --engine dynamo -o d").err
    assert linkwise("launch p.json --kubernetes dynamo --image a/b:1 -o k").code == 0
    assert linkwise("launch p.json --kubernetes lws --hosts a,b -o k").code == 2
    # The name of the objects is one thing, the model's in the API another.
    assert linkwise("launch p.json --kubernetes lws --name A/B.c --object-name mine -o k").code == 0
    text = " ".join((tmp_path / "k" / "manifest.yaml").read_text().split())
    assert ("name: mine-front" in text, "--served-model-name A/B.c" in text) == (True, True)
    for name, said in (("Mine", "letters, digits and dashes"), ("x" * 41, "at most 40")):
        ran = linkwise(f"launch p.json --kubernetes lws --object-name {name} -o k")
        assert (ran.code, "--object-name" in ran.err, said in ran.err) == (2, True, True)
    ran = linkwise("launch p.json --kubernetes lws --name \N{KATAKANA LETTER MO} -o k")
    assert (ran.code, "--object-name NAME" in ran.err) == (2, True)
    assert linkwise("launch p.json --object-name x -o d").code == 2
    assert linkwise("launch p.json --image a/b:1 -o d").code == 2


def test_names_that_are_cut_stay_apart() -> None:
    long = "an-organisation-of-many-words/a-model-of-many-more-words-8B"
    base, tuned = pods.name_for(long), pods.name_for(f"{long}-Instruct")
    assert base != tuned
    assert {pods.check_name(name)[:33] for name in (base, tuned)} == {"an-organisation-of-many-words-a-m"}
    assert pods.name_for("llama-3.3-70b") == "llama-3-3-70b"
    assert pods.name_for("01-ai/Yi-34B") == "m-01-ai-yi-34b"
