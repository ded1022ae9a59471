"""Prefill and decode pools: the pair where the handoff puts it, the rest on whole parts of nodes, a router in front.

Flags as the engines' documents have them: vLLM's NixlConnector usage guide, SGLang's PD disaggregation page,
TensorRT-LLM's disaggregated serving page, vllm-router's README.
"""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.launch.made import asked

import linkwise
from linkwise.answers import Handoff
from linkwise.api_launch import launch, manifest
from linkwise.core.errors import InputError, Refused
from linkwise.core.files import parse_yaml_object
from linkwise.core.layout import Layout
from linkwise.engine.registry import parse_command
from linkwise.launch import registry
from linkwise.launch.types import Deployment, Role
from linkwise.launch.write import write
from linkwise.plan.handoff_types import HandoffOptions


def pools(engine: str, prefill_tp: int, decode_tp: int, on: str = "4x8xh100-sxm") -> Handoff:
    return linkwise.handoff(
        "llama-3.3-70b", on, prompt=4000, prefill_tp=prefill_tp, decode_tp=decode_tp, engine=engine, rate="4/s", osl=300
    )


def sums(made: Deployment, found: Handoff) -> None:
    used = Counter((p.node, d) for p in made.processes for d in p.devices)
    assert set(used.values()) == {1}
    verdict = found.verdict
    assert verdict is not None and verdict.supply is not None and verdict.supply.serves
    supply = verdict.supply
    assert Counter(g.role for g in made.groups) == {"prefill": supply.prefill_needed, "decode": supply.decode_needed}
    assert len(used) == supply.devices_needed
    assert len(used) == sum(g.layout.size for g in made.groups)
    for side in ("prefill", "decode"):
        first = next(g for g in made.groups if g.name == f"{side}-0")
        assert first.devices == tuple(r.device for r in found.ranks if r.side == side)
    for p in made.processes:
        if p.devices:
            layout = next(g.layout for g in made.groups if g.name == p.group)
            assert parse_command(list(p.command), files=made.files).layout == layout


def test_vllm_pools_over_nixl() -> None:
    found = pools("vllm", 4, 8)
    made = launch(found)
    sums(made, found)
    router = made.processes[0]
    assert router.command[:2] == ("vllm-router", "--vllm-pd-disaggregation")
    doors = {"--prefill": "prefill", "--decode": "decode"}
    for flag, role in doors.items():
        named = [router.command[at + 1] for at, word in enumerate(router.command) if word == flag]
        assert named == [p.url for p in made.serving(role)]  # type: ignore[arg-type]
    for p in made.processes[1:]:
        transfer = json.loads(p.command[p.command.index("--kv-transfer-config") + 1])
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[p.role]
        assert transfer == {"kv_connector": "NixlConnector", "kv_role": role}
        assert p.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == p.host
        assert p.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(p.ports["nixl"])
    taken = Counter((p.node, port) for p in made.processes for port in p.ports.values())
    assert set(taken.values()) == {1}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_settings_of_pools_are_written_out(engine: str) -> None:
    found = linkwise.handoff(
        "llama-3.3-70b", "4x8xh100-sxm", prompt=4000, prefill_tp=4, decode_tp=8, engine=engine, rate="4/s", osl=300,
        utilization=0.85, max_batched_tokens=6000, max_seqs=96,
    )  # fmt: skip
    made = launch(found)
    assert made.served.osl_tokens == 300
    for p in made.processes:
        if p.devices:
            options = parse_command(list(p.command), files=made.files).options
            said = (options.memory_utilization, options.max_batched_tokens, options.max_seqs)
            assert said == (0.85, 6000, 96), p.name


def test_a_request_that_a_pool_does_not_hold_is_lowered_and_said() -> None:
    # 70.55e9 parameters in bf16 leave two 80 GB devices (0.92 of them) about 0.33 MB x 9k tokens of KV; the model's
    # own length is 131,072. A prefill group holds the prompt and one token, a decode group the answer as well.
    found = linkwise.handoff(
        "llama-3.3-70b", "2x8xh100-sxm", prompt=8192, prefill_tp=2, decode_tp=2, rate="0.2/s", osl=256
    )
    made = launch(found)
    length = {
        p.role: parse_command(list(p.command)).options.max_model_len for p in made.processes if p.devices
    }  # fmt: skip
    assert length == {"prefill": 8193, "decode": 8448}
    said = [line for line in made.differs if "longest request" in line]
    assert [line.split(":")[0] for line in said] == ["prefill", "decode"]
    assert all("not 131072" in line for line in said)


def test_a_pool_that_does_not_fit_is_refused() -> None:
    found = linkwise.handoff("llama-3.3-70b", "2x8xh100-sxm", prompt=32_000, prefill_tp=2, decode_tp=4, rate="0.2/s")
    with pytest.raises(Refused, match="prefill group, tp2"):
        launch(found)


def test_vllm_pools_over_mooncake_tell_the_router_their_bootstrap_ports() -> None:
    # vllm-router, router_args.py: --prefill URL [BOOTSTRAP_PORT]; vllm/envs.py: VLLM_MOONCAKE_BOOTSTRAP_PORT, 8998.
    found = linkwise.handoff(
        "llama-3.3-70b", "2x8xh100-sxm", prompt=4000, prefill_tp=2, decode_tp=2, rate="4/s", osl=20,
        factors=HandoffOptions(connector="mooncake"),
    )  # fmt: skip
    made = launch(found)
    prefill = made.serving("prefill")
    assert len(prefill) > 1
    words = made.processes[0].command
    pairs = [words[at + 1 : at + 3] for at, word in enumerate(words) if word == "--prefill"]
    assert pairs == [(p.url, p.environment["VLLM_MOONCAKE_BOOTSTRAP_PORT"]) for p in prefill]
    taken = Counter((p.node, port) for p in made.processes for port in p.ports.values())
    assert set(taken.values()) == {1}
    text, pods = manifest(found, "lws", router_image="r:1")
    assert any(said.startswith("4/s take ") for said in pods.notes)
    router = next(one for one in yaml.safe_load_all(text) if one["metadata"]["name"].endswith("-router"))
    (script,) = router["spec"]["template"]["spec"]["containers"][0]["args"]
    leader = yaml.safe_load_all(text)
    pods = next(one for one in leader if one["metadata"]["name"].endswith("-prefill"))
    environment = pods["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["env"]
    port = next(e["value"] for e in environment if e["name"] == "VLLM_MOONCAKE_BOOTSTRAP_PORT")
    assert script.count(f":8000 {port}") == script.count("--prefill") == len(prefill)
    with pytest.raises(Refused, match="our router does not speak to vllm pools over mooncake"):
        launch(found, router="linkwise")


def test_before_vllm_0_32_nixl_has_one_role() -> None:
    made = launch(pools("vllm@0.30", 4, 8))
    assert all('"kv_role": "kv_both"' in " ".join(p.command) for p in made.processes[1:])


@pytest.mark.parametrize(
    ("name", "role", "layout", "said"),
    [
        ("llama-3.3-70b", "prefill", Layout(tp=16, dcp=2), "whole on each rank"),
        ("deepseek-v3", "decode", Layout(tp=8, dcp=4), "whole on each rank"),
        ("deepseek-v3", "decode", Layout(tp=8, dcp=8), ""),
        ("deepseek-v3.2", "decode", Layout(tp=4, cp=2), "to them"),
        ("deepseek-v3.2", "prefill", Layout(tp=1, cp=8), ""),
    ],
)
def test_kv_that_nixl_does_not_move(name: str, role: Role, layout: Layout, said: str) -> None:
    # vllm/config/vllm.py: "A NIXL side is either fully replicated or fully DCP-sharded; MLA only."
    given = asked(name, "vllm", [range(layout.size)], layout, connector="nixl")
    refusal = registry.get("vllm").refuses(given, msgspec.structs.replace(given.groups[0], role=role))
    reason = refusal.reason if refusal else ""
    assert said in reason
    assert bool(said) == bool(reason)


def test_sglang_pools_over_mooncake() -> None:
    found = pools("sglang", 4, 4)
    made = launch(found)
    sums(made, found)
    prefill = made.serving("prefill")
    assert all("--disaggregation-mode prefill" in " ".join(p.command) for p in prefill)
    words = made.processes[0].command
    assert words[3] == "--pd-disaggregation"
    pairs = [words[at + 1 : at + 3] for at, word in enumerate(words) if word == "--prefill"]
    assert pairs == [(p.url, str(p.ports["bootstrap"])) for p in prefill]


def test_trtllm_pools_behind_its_disaggregated_server(tmp_path: Path) -> None:
    found = pools("trtllm", 4, 8)
    made = launch(found)
    sums(made, found)
    context = parse_yaml_object(made.files["prefill.yaml"], where="prefill.yaml")
    assert context["disable_overlap_scheduler"] is True
    assert context["cache_transceiver_config"] == {"backend": "DEFAULT", "max_tokens_in_buffer": 4000}
    front = parse_yaml_object(made.files["trtllm-front.yaml"], where="front")
    assert front["context_servers"]["num_instances"] == len(front["context_servers"]["urls"])
    assert front["generation_servers"]["urls"] == [p.url.removeprefix("http://") for p in made.serving("decode")]
    # Addresses that are not known yet are filled into files as into commands.
    write(made, tmp_path / "d")
    script = tmp_path / "d" / "processes" / "router.sh"
    script.write_text(script.read_text().replace("exec trtllm-serve", "true"))
    (tmp_path / "d" / "hosts.env").write_text("HOST_0=n0\nHOST_1=n1\nHOST_2=n2\nHOST_3=n3\n")
    subprocess.run(["bash", str(script)], check=True)
    text = (tmp_path / "d" / "trtllm-front.yaml").read_text()
    assert parse_yaml_object(text, where="front")["generation_servers"]["urls"] == ["n1:8100"]


def test_dynamo_workers_say_their_role() -> None:
    made = launch(pools("vllm", 4, 8), engine="dynamo")
    modes = Counter(p.command[p.command.index("--disaggregation-mode") + 1] for p in made.processes if p.devices)
    assert modes == Counter(g.role for g in made.groups)
    assert made.processes[0].command[:3] == ("python3", "-m", "dynamo.frontend")


def test_pools_that_cannot_be_written_are_refused() -> None:
    found = pools("vllm", 4, 8)
    with pytest.raises(Refused, match="pools planned for vllm with nixl"):
        launch(found, engine="sglang")
    with pytest.raises(Refused, match="connector p2p_nccl is not written"):
        launch(msgspec.structs.replace(found, connector="p2p_nccl"))
    unequal = linkwise.handoff(
        "llama-3.3-70b", "4x8xh100-sxm", prompt=4000, prefill_tp=4, decode_tp=8, engine="vllm", rate="4/s",
        factors=HandoffOptions(connector="p2p_nccl"),
    )  # fmt: skip
    with pytest.raises(Refused, match="needs equal tp"):
        launch(unequal)
    moved = msgspec.structs.replace(found, ranks=tuple(msgspec.structs.replace(r, device=0) for r in found.ranks))
    with pytest.raises(InputError, match="ranks of decode"):
        launch(moved)


_LINE = re.compile(
    r"pools +serve the rate: [0-9.]+/s take (\d+) x prefill tp(\d+) \+ (\d+) x decode tp(\d+): (\d+) of 32 "
)


@pytest.mark.parametrize(
    ("engine", "prefill_tp", "decode_tp"),
    [
        ("vllm", 2, 4),
        ("vllm", 4, 2),
        ("vllm", 8, 2),
        ("vllm", 2, 2),
        ("sglang", 4, 4),
        ("sglang", 8, 4),
        ("sglang", 4, 8),
    ],
)
@pytest.mark.parametrize("rate", ["0.9/s", "6/s"])
def test_the_groups_that_the_handoff_says_are_those_in_the_files(
    engine: str, prefill_tp: int, decode_tp: int, rate: str
) -> None:
    found = linkwise.handoff(
        "llama-3.3-70b", "4x8xh100-sxm", prompt=4000, prefill_tp=prefill_tp, decode_tp=decode_tp, engine=engine,
        rate=rate, osl=500, ttft="1s", tpot="30ms",
    )  # fmt: skip
    line = _LINE.search(" ".join(repr(found).split()))
    made = launch(found)
    used = {(p.node, d) for p in made.processes for d in p.devices}
    if line is None:  # the devices do not carry the rate: all that they hold, and it is said
        assert found.unserved
        assert any(said.startswith("the pools do not serve the rate") for said in made.notes)
        return
    groups = Counter((g.role, g.layout.tp) for g in made.groups)
    assert groups == {("prefill", int(line[2])): int(line[1]), ("decode", int(line[4])): int(line[3])}
    assert len(used) == int(line[5]) == int(line[1]) * int(line[2]) + int(line[3]) * int(line[4])
    assert any(f"; the other {32 - len(used)} are left unused" in said for said in made.notes) == (len(used) < 32)
