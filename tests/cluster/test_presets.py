"""Accelerators by name and clusters by shorthand. Expected figures: datasheets and the machines' own specifications."""

import pytest

from linkwise.cluster import known, presets
from linkwise.cluster.types import Tier
from linkwise.core.errors import InputError

GiB = 2**30


def test_h100_figures_are_the_datasheets() -> None:
    # NVIDIA H100 SXM5: 3.35 TB/s, 989 dense BF16 TFLOPS, 18 NVLinks of 25 GB/s each way; 79.18 GiB in vLLM's log.
    h100 = presets.accelerator("H100")
    assert h100.name == "h100-sxm"
    assert h100.memory_bytes == round(79.18 * GiB)
    assert h100.driver_memory_bytes == 85_045_477_376
    assert (h100.hbm_Bps, h100.flops["bf16"], h100.flops["fp8"]) == (3.35e12, 989e12, 1979e12)
    assert (h100.scaleup_Bps, h100.scaleup_links, h100.capability) == (18 * 25e9, 18, 90)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("4090", "rtx-4090"),
        ("a100-80", "a100-80gb-sxm"),
        ("h200", "h200-sxm"),
        ("B200", "b200-sxm"),
        ("trn2", "trainium2"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert presets.accelerator(alias).name == name
    assert alias.lower() in presets.aliases(name)


def test_every_accelerator_has_a_source_a_machine_and_a_confidence() -> None:
    listed = presets.hardware()
    assert len(listed) == len({a.name for a in listed}) == 34
    for accelerator in listed:
        assert accelerator.source and accelerator.memory_source and accelerator.confidence in {"V", "K"}
        assert known.node(accelerator.name) is not None
        usual = presets.machines(accelerator, 1, 1)
        assert usual.accelerator == accelerator


def test_pcie_is_the_datasheets_and_ncclss_effective_figure() -> None:
    # PCIe x16 of generation 4 and 5: 31.5 and 63 GB/s; NCCL's topology model uses 24 and 48.
    for name, spec, effective in (("l40s", 31.5e9, 24e9), ("h100-pcie", 63e9, 48e9)):
        cluster = presets.shorthand(f"2x{name}")
        assert cluster.port(Tier.NODE) == ("pcie", spec)
        assert cluster.bandwidth(Tier.NODE) == pytest.approx(effective, rel=1e-3)


def test_geforce_cards_have_no_peer_access_and_say_why() -> None:
    for name in ("3090", "4090", "5090"):
        card = presets.accelerator(name)
        assert not card.p2p
        assert "peer access" in card.note
        assert presets.shorthand(f"2x{name}").port(Tier.NODE)[0] == "pcie-host"


def test_eight_h100() -> None:
    cluster = presets.shorthand("8xh100-sxm")
    assert (cluster.nodes, cluster.devices_per_node, cluster.island_size, cluster.size) == (1, 8, 8, 8)
    assert (cluster.nics_per_node, cluster.nic_Bps) == (8, 50e9)  # 8 x 400 Gb/s
    # NCCL counts 20.6 GB/s for each of 18 links: 370.8.
    assert cluster.bandwidth(Tier.ISLAND) == pytest.approx(370.8e9)


def test_nics_follow_the_devices_used() -> None:
    cluster = presets.shorthand("2x4xh100-sxm")
    assert (cluster.nodes, cluster.nics_per_node, cluster.nic_Bps, cluster.fabric) == (2, 4, 50e9, "rail")
    assert cluster.port(Tier.CLUSTER) == ("nic", 50e9)
    # Two NICs of 200 Gb/s for eight cards: 6.25 GB/s a card.
    assert presets.shorthand("2x8xl40s").port(Tier.CLUSTER) == ("nic", 2 * 25e9 / 8)


def test_a_rack_is_one_island() -> None:
    one, two = presets.shorthand("gb200-nvl72"), presets.shorthand("2xgb200-nvl72")
    assert (one.nodes, one.devices_per_node, one.island_size, one.size) == (18, 4, 72, 72)
    assert (two.nodes, two.island_size, two.size) == (36, 72, 144)
    assert one.tier(tuple(range(72))) is Tier.ISLAND
    assert two.tier((0, 72)) is Tier.CLUSTER
    trays = presets.shorthand("8xgb200")
    assert (trays.nodes, trays.devices_per_node, trays.island_size) == (2, 4, 8)


def test_bridges_only_when_the_name_says_so() -> None:
    plain, bridged = presets.shorthand("4xa100-80gb-pcie"), presets.shorthand("4xa100-80gb-pcie-bridged")
    assert (plain.island_size, plain.accelerator.scaleup_Bps) == (1, 0)
    assert plain.tier((0, 1)) is Tier.NODE
    assert any("bridged" in note for note in plain.notes)
    assert bridged.tier((0, 1)) is Tier.ISLAND and bridged.tier((1, 2)) is Tier.NODE


def test_a_small_group_on_a_mesh_has_only_its_own_links() -> None:
    # MI300X: seven xGMI links of 64 GB/s, one to each peer.
    mi300x, h100 = presets.shorthand("8xmi300x"), presets.shorthand("8xh100")
    assert mi300x.port(Tier.ISLAND, 2) == ("xgmi", 64e9)
    assert mi300x.port(Tier.ISLAND, 8) == mi300x.port(Tier.ISLAND) == ("xgmi", 448e9)
    assert h100.port(Tier.ISLAND, 2) == ("nvlink4", 450e9)


def test_an_assumed_network_is_said() -> None:
    cluster = presets.shorthand("4x8xrtx-4090")
    assert (cluster.size, cluster.nics_per_node, cluster.nic_Bps) == (32, 1, 25e9 / 8)
    assert any("25 Gb/s Ethernet is assumed" in note and "YAML" in note for note in cluster.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8xh10", "h100"),  # near matches
        ("8xnothing-like-it-at-all", "linkwise hardware"),
        ("0xh100", "expected 1..65536"),
        ("-1xh100", "expected 1..65536"),
        ("8x-2xh100", "expected 1..65536"),
        ("65537xh100", "expected 1..65536"),
        ("8x" + "9" * 4000 + "xh100", "expected 1..65536"),
        ("65536x8xh100", "524288 devices"),
        ("h100", "1xh100-sxm"),
        ("16xh100-sxm", "2x8xh100-sxm"),
        ("6xgb200", "multiple of 4"),
        ("2x2xgb200-nvl72", "[RACKSx]"),
        ("2x3xa40-bridged", "straddles"),
        ("", "COUNTxNAME"),
        ("8 * h100", "COUNTxNAME"),
        ("8xh100\x00", "COUNTxNAME"),
    ],
)
def test_refusals_say_what_to_write(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        presets.shorthand(text)
    assert says in str(caught.value)


def test_every_constant_has_its_source() -> None:
    constants = presets.constants()
    assert constants.label == "uncalibrated"
    keys = {f"latency_us.{key}" for key in constants.latency_us}
    keys |= {f"link_efficiency.{kind}" for kind in constants.link_efficiency}
    keys |= {"hbm_efficiency", "flops_efficiency", "kernel_us_per_layer", "step_overhead_us", "host_us_per_layer"}
    assert {key for key, source in constants.sources.items() if source} == keys


def test_every_link_kind_of_every_preset_has_an_efficiency() -> None:
    shares = presets.constants().link_efficiency
    for accelerator in presets.hardware():
        used = {accelerator.scaleup_kind} if accelerator.scaleup_Bps else set()
        used |= {presets.machines(accelerator, 1, 1).host_kind, accelerator.host_link, "nic"}
        assert used <= set(shares)


def test_latency_names_what_exists() -> None:
    constants = presets.constants()
    assert constants.latency("nccl", Tier.DEVICE) == (0.0, 0.0)
    base, step = constants.latency("nccl", Tier.NODE)
    # 8 x RTX 4090, 8 bytes: 42.14 us measured (NVIDIA/nccl#1530); 2(n-1) = 14 steps.
    assert base + 14 * step == pytest.approx(42.14, rel=0.02)
    with pytest.raises(InputError, match=r"custom\.cluster"):
        constants.latency("custom", Tier.CLUSTER)


def test_eager_latency_keeps_the_published_verdict_on_two_pcie_cards() -> None:
    # vllm#732, #367: a 7B BF16 model, batch 1, two PCIe cards: not more than 10 % faster than one. Hand calculation of
    # one decode step: 6.74e9 parameters x 2 B read, 32 layers, 2 all-reduces each, step overhead on top.
    constants = presets.constants()
    base, step = constants.latency("eager", Tier.NODE)
    calls_s = 64 * (base + 2 * step) * 1e-6
    fixed_s = (32 * constants.kernel_us_per_layer + constants.step_overhead_us) * 1e-6
    for name in ("l4", "a10", "rtx-3090", "rtx-4090", "l40s", "a100-80gb-pcie", "h100-pcie"):
        read_s = 13.48e9 / (presets.accelerator(name).hbm_Bps * constants.hbm_efficiency)
        assert (read_s + fixed_s) / (read_s / 2 + fixed_s + calls_s) <= 1.10
