"""YAML clusters: strict, explained, and the same after a round trip."""

from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cluster.strategies import clusters

from linkwise.cluster import presets
from linkwise.cluster.read import dump, load, parse
from linkwise.cluster.types import Accelerator, Cluster
from linkwise.core.errors import InputError

BASE = """
schema: linkwise.cluster/1
accelerator: h100-sxm
devices_per_node: 8
"""


FIELDS = ["nodes", "devices_per_node", "island_size", "nics", "fabric", "constants", "notes", "name", "numa_per_node"]


def parsed(extra: str = "", base: str = BASE) -> Cluster:
    return parse(base + extra, where="mine.yaml")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_round_trip(cluster: Cluster) -> None:
    assert parse(dump(cluster), where="x.yaml") == cluster


@pytest.mark.parametrize("text", ["8xh100-sxm", "4x8xrtx-4090", "2xgb200-nvl72", "4xa40-bridged", "8xmi300x", "1xl4"])
def test_presets_round_trip_through_a_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(dump(load(text)))
    assert load(str(path)) == load(text)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{1,9}x[0-9]{1,9}x[a-z0-9-]{1,12}", fullmatch=True))
def test_shorthand_is_a_cluster_or_an_input_error(text: str) -> None:
    try:
        cluster = presets.shorthand(text)
    except InputError as error:
        assert len(str(error)) < 1000  # a long argument is not echoed whole
        return
    assert 1 <= cluster.size <= 65_536


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.sampled_from(["accelerator", *FIELDS]), JSON)
def test_any_value_in_any_field_is_a_cluster_or_an_input_error(field: str, value: object) -> None:
    document = {"schema": "linkwise.cluster/1", "accelerator": "h100-sxm", "devices_per_node": 8, field: value}
    try:
        cluster = parse(yaml.safe_dump(document), where="mine.yaml")
    except InputError as error:
        assert str(error).startswith("mine.yaml")
        return
    assert cluster.size >= 1


@settings(deadline=None)
@given(st.sampled_from(msgspec.structs.fields(Accelerator)), JSON)
def test_any_accelerator_fact_is_a_cluster_or_an_input_error(fact: msgspec.structs.FieldInfo, value: object) -> None:
    facts = {"name": "h100-sxm", fact.name: value}
    document = {"schema": "linkwise.cluster/1", "accelerator": facts, "devices_per_node": 8}
    try:
        cluster = parse(yaml.safe_dump(document), where="mine.yaml")
    except InputError as error:
        assert str(error).startswith("mine.yaml")
        return
    assert parse(dump(cluster), where="again.yaml") == cluster


def test_a_short_file_is_the_usual_machine() -> None:
    cluster, preset = parsed("nodes: 2\n"), presets.shorthand("2x8xh100-sxm")
    assert cluster.accelerator == preset.accelerator and cluster.constants == preset.constants
    assert (cluster.size, cluster.island_size, cluster.nics_per_node, cluster.nic_Bps) == (16, 8, 8, 50e9)
    assert cluster.fabric == "rail"
    # Whatever the file left to us is said.
    assert any("8 x 400 Gb/s" in note for note in cluster.notes)
    assert any("fabric is not given" in note for note in cluster.notes)


def test_everything_given() -> None:
    cluster = parsed(
        """
name: lab
nodes: 4
island_size: 4
nics: {count: 2, Gbps: 100}
fabric: {kind: fat-tree, oversubscription: 2}
host_memory_bytes: 1.5TB
numa_per_node: 4
"""
    )
    assert (cluster.name, cluster.island_size, cluster.nics_per_node, cluster.nic_Bps) == ("lab", 4, 2, 12.5e9)
    assert (cluster.fabric, cluster.oversubscription, cluster.host_memory_bytes) == ("fat-tree", 2.0, 1_500_000_000_000)
    assert cluster.numa_per_node == 4 and cluster.notes == ()
    assert parsed("nics: {count: 8, GBps: 50}").nic_Bps == 50e9
    assert parsed("nics: none\nisland_size: none").island_size == 1


def test_a_known_accelerator_with_a_fact_replaced() -> None:
    cluster = parsed(
        base="schema: linkwise.cluster/1\ndevices_per_node: 1\naccelerator: {name: h100-sxm, memory_bytes: 60GiB}\n"
    )
    device = cluster.accelerator
    assert device.memory_bytes == 60 * 2**30 and device.memory_source == "given in mine.yaml"
    assert device.hbm_Bps == 3.35e12 and "replaced by mine.yaml: memory_bytes" in device.source


def test_an_accelerator_of_ones_own() -> None:
    # 3.35e12 is text to YAML 1.1; people and JSON write it all the same.
    cluster = parsed(
        base="""
schema: linkwise.cluster/1
devices_per_node: 4
accelerator:
  {name: zx1, memory_bytes: 48GB, hbm_Bps: 1.2e12, flops: {bf16: 300e12}, scaleup_Bps: 100e9, scaleup_kind: zlink}
"""
    )
    device = cluster.accelerator
    assert (device.memory_bytes, device.nominal_GB, device.hbm_Bps) == (48_000_000_000, 48, 1.2e12)
    assert device.source == device.memory_source == "given in mine.yaml"
    assert cluster.island_size == 4


def test_constants_replace_one_figure_and_say_so() -> None:
    constants = parsed("constants: {hbm_efficiency: 0.9, latency_us: {nccl.island: [5, 1]}}").constants
    default = presets.constants()
    assert (constants.hbm_efficiency, constants.latency_us["nccl.island"]) == (0.9, (5.0, 1.0))
    assert constants.latency_us["nccl.node"] == default.latency_us["nccl.node"]
    assert constants.label == "uncalibrated, with hbm_efficiency, latency_us.nccl.island from mine.yaml"
    assert constants.sources["latency_us.nccl.island"] == "given in mine.yaml"
    assert constants.sources["flops_efficiency"] == default.sources["flops_efficiency"]


@pytest.mark.parametrize(
    ("extra", "field", "expected"),
    [
        ("typo: 1", "typo", ""),
        ("nics: {count: 8, Gbps: 400, color: red}", "color", ""),
        ("constants: {speed: 1}", "speed", ""),
        ("nodes: 0", "nodes", "1..65536"),
        ("nodes: -3", "nodes", "1..65536"),
        ("nodes: 10000000", "nodes", "1..65536"),
        ("nodes: 1.5", "nodes", "int"),
        ("nodes: true", "nodes", "int"),
        ("island_size: 0", "island_size", "1..8"),
        ("island_size: 9", "island_size", "1..8"),
        ("nodes: 2\nisland_size: 3", "island_size", "divides"),
        ("island_size: some", "island_size", "none"),
        ("nics: {count: -1, Gbps: 400}", "nics_per_node", "0..1024"),
        ("nics: {count: 8, Gbps: .nan}", "nic_Bps", "0..1e+15"),
        ("nics: {count: 8, Gbps: -400}", "nic_Bps", "0..1e+15"),
        ("nics: {count: 8, Gbps: .inf}", "nic_Bps", "0..1e+15"),
        ("nics: {count: 8}", "nics", "exactly one"),
        ("nics: {count: 8, Gbps: 400, GBps: 50}", "nics", "exactly one"),
        ("nics: fast", "nics", "none"),
        ("nodes: 2\nnics: none", "network", "nics"),
        ("fabric: torus", "fabric", "rail, fat-tree, none"),
        ("fabric: {kind: rail, oversubscription: 0.5}", "oversubscription", "1..1000"),
        ("host_memory_bytes: 12 parsecs", "host_memory_bytes", "24GB"),
        ("numa_per_node: 0", "numa_per_node", "1..1024"),
        ("constants: {hbm_efficiency: 1.2}", "hbm_efficiency", "at most 1"),
        ("constants: {hbm_efficiency: .nan}", "hbm_efficiency", "at most 1"),
        ("constants: {latency_us: {nccl.node: [1]}}", "latency_us", "length 2"),
        ("constants: {latency_us: {nccl.node: [-1, 2]}}", "latency_us.nccl.node", "0..1e+06"),
        ("constants: {latency_us: fast}", "latency_us", "mapping"),
    ],
)
def test_refusals_name_file_field_and_range(extra: str, field: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(extra)
    text = str(caught.value)
    assert text.startswith("mine.yaml")
    assert field in text and expected in text


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ("{memory_bytes: 1}", "accelerator.name"),
        ("{name: zx1}", "memory_bytes"),
        ("{name: h100-sxm, hbm_Bps: 0}", "hbm_Bps is 0"),
        ("{name: h100-sxm, hbm_Bps: -1}", "hbm_Bps is -1"),
        ("{name: h100-sxm, memory_bytes: 1e30}", "memory_bytes"),
        ("{name: h100-sxm, colour: red}", "colour"),
        ("{name: h100-sxm, flops: {}}", "flops is empty"),
        ("{name: h100-sxm, scaleup_kind: ''}", "scaleup_kind"),
        ("[h100-sxm]", "accelerator"),
        ("h1000", "unknown accelerator"),
    ],
)
def test_bad_accelerators(facts: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(base=f"schema: linkwise.cluster/1\ndevices_per_node: 1\naccelerator: {facts}\n")
    assert str(caught.value).startswith("mine.yaml")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema: linkwise.cluster/9\naccelerator: h100\ndevices_per_node: 8", "linkwise.cluster/1"),
        ("accelerator: h100\ndevices_per_node: 8", "schema"),
        ("schema: linkwise.cluster/1\naccelerator: h100", "devices_per_node"),
        ("- 1", "mapping"),
        ("{", "not valid YAML"),
        ("", "mapping"),
    ],
)
def test_files_that_are_not_clusters(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse(text, where="mine.yaml")


@pytest.mark.parametrize("path", ["no/such.yaml", "topology.xml", "./cluster", "plan.json"])
def test_paths_that_are_not_clusters(path: str) -> None:
    with pytest.raises(InputError) as caught:
        load(path)
    assert path in str(caught.value)
