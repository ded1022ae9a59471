"""What hurts in real machines, written down by hand from their files: the rule, and the parts it must name."""

import pytest
from tests.conformance.roles import ABSENT, DATA

from linkwise.cluster import presets
from linkwise.cluster.lint import Finding, lint
from linkwise.cluster.readers import read
from linkwise.cluster.topology import Machine

FILES = DATA / "topology"
pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason=ABSENT)

ALL8 = tuple(f"gpu{n}" for n in range(8))
SHARED_BY_PAIRS = [("shared-nic", (f"gpu{n}", f"gpu{n + 1}")) for n in (0, 2, 4, 6)]

# File: findings as (rule, parts named), those of which the file makes sure; then the unsure ones.
EXPECTED: dict[str, tuple[list[tuple[str, tuple[str, ...]]], list[str]]] = {
    # GPU2's row has NODE and SYS where all others have NV18; GPU6 and GPU7's rows are cut, so their NUMA is not known.
    "smi_topo/b200_8gpu_gpu2_off_nvlink_partial.txt": (
        [("gpu-off-nvlink", ("gpu2",)), ("peer-across-sockets", ("gpu2",))],
        ["cut"],  # rows GPU6 and GPU7
    ),
    # GPU0/1 PXB to NIC1, GPU2/3 to NIC0, GPU4/5 to NIC5, GPU6/7 to NIC2; everything else SYS.
    "smi_topo/a100_8gpu_nccl1435_gpu_rows_nic_shared.txt": (SHARED_BY_PAIRS, []),
    # Two GPUs PIX to each card; pairs without NVLink are joined by the mesh.
    "smi_topo/dgx1v_8gpu_hybrid_cube_mesh_4nic.txt": (SHARED_BY_PAIRS, []),
    # Bridged pairs on two sockets: 4 x 4 pairs SYS; columns left out, written as "...".
    "smi_topo/a40_8gpu_nv4_bridge_pairs_dual_socket.txt": ([("peer-across-sockets", ("16 pairs",))], ["cut"]),
    # NIC0..3 NODE from GPU0/1, NIC4 alone NODE from GPU2/3; 2 x 2 pairs SYS; no NV#.
    "smi_topo/pcie_4gpu_dual_epyc_no_nvlink_5nic.txt": (
        [("shared-nic", ("gpu2", "gpu3", "nic4")), ("no-gpudirect", ("gpu0", "gpu1", "gpu2", "gpu3"))],
        ["view-hides-nvlink", "peer-across-sockets"],
    ),
    # Four GPUs on NUMA 0, two on NUMA 1.
    "smi_topo/pcie_6gpu_4plus2_dual_socket.txt": (
        [("unequal-numa", ("4 + 2",))],
        ["view-hides-nvlink", "peer-across-sockets"],
    ),
    "smi_topo/pcie_8gpu_6plus2_phb_node_sys_preamble.txt": (
        [("unequal-numa", ("6 + 2",))],
        ["view-hides-nvlink", "peer-across-sockets"],
    ),
    # One mlx4 under the switch of GPU0..2, PHB from GPU3..6.
    "smi_topo/pcie_7gpu_two_switches_mlx4.txt": (
        [("shared-nic", ALL8[:7]), ("no-gpudirect", ("gpu3", "gpu4", "gpu5", "gpu6"))],
        ["view-hides-nvlink"],
    ),
    # mlx5_0 is SYS from all four.
    "smi_topo/v100_4gpu_mixed_nv1_nv2_nic_sys.txt": (
        [("nic-other-socket", ALL8[:4]), ("no-gpudirect", ALL8[:4])],
        [],
    ),
    # GPU2 and GPU3: NUMA 1 with an empty CPU list; three NICs NODE from all four.
    "smi_topo/a100_4gpu_nv4_restricted_cpuset.txt": (
        [("shared-nic", ALL8[:4]), ("no-gpudirect", ALL8[:4]), ("no-local-cpu", ("gpu2", "gpu3"))],
        [],
    ),
    "smi_topo/v100_4gpu_nv2_c4140_1nic.txt": ([("shared-nic", ALL8[:4]), ("no-gpudirect", ALL8[:4])], []),
    # A PCIe view: whether the GPUs have NVLink it does not say.
    "smi_topo/topo_mp_h20_8gpu_pcie_only_view.txt": ([], ["view-hides-nvlink", "peer-across-sockets"]),
    # GPUs with memory of their own on the NUMA list (Grace): SYS is what nvidia-smi calls everything there, and a NIC
    # of the GPU's own CPU is read directly over C2C (NCCL_NET_GDR_C2C, on by default since NCCL 2.27).
    "smi_topo/gb200_sglang11208_partial_numa_lists.txt": ([], ["cut", "nic-other-socket"]),
    # Every GPU's nvlink record has the GPU itself as its target; one NIC on NUMA 0, gdr="0"; every pair SYS.
    "nccl_xml/ncv4-topo.xml": (
        [
            *(("missing-link-record", (f"gpu{n}",)) for n in range(4)),
            ("nic-other-socket", ("gpu1", "gpu2", "gpu3")),
            ("no-gpudirect", ("nic0",)),
            ("peer-across-sockets", ("6 pairs",)),
        ],
        [],
    ),
    # NIC under the second socket's switch with GPU4..7; gdr="0" on every GPU; no NVLink.
    "nccl_xml/panlichen_topo.xml": (
        [
            ("shared-nic", ("gpu4", "gpu5", "gpu6", "gpu7")),
            ("nic-other-socket", ("gpu0", "gpu1", "gpu2", "gpu3")),
            ("no-gpudirect", ALL8),
            ("peer-across-sockets", ("16 pairs",)),
        ],
        [],
    ),
    # A static file without <gpu>: two GPUs a NIC are stated, NVLink is not.
    "nccl_xml/p4d-24xl-topo.xml": (SHARED_BY_PAIRS, ["view-hides-nvlink", "peer-across-sockets"]),
    # Nothing hurts: one NIC a GPU at PIX or PXB, NVLink between all, as many GPUs on each socket.
    "smi_topo/hgx_h20_8nic_pix.txt": ([], []),
    "smi_topo/h100_4gpu_nv6_direct_mesh_4nic_npsX.txt": ([], []),
    "smi_topo/fixture_h100_mlx5cols_no_nic_rows.txt": ([], []),
    "smi_topo/stas_h100_8gpu_nv18.txt": ([], []),
    "rccl_xml/topo_8p_940.xml": ([], []),
}


def found(name: str, accelerator: str = "") -> tuple[Finding, ...]:
    machine = read(FILES / name)
    assert isinstance(machine, Machine)
    return lint(machine, presets.accelerator(accelerator) if accelerator else None)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_hurts(name: str) -> None:
    sure, unsure = EXPECTED[name]
    findings = found(name)
    assert sorted(f.rule for f in findings if f.sure) == sorted(rule for rule, _ in sure)
    assert sorted(f.rule for f in findings if not f.sure) == sorted(unsure)
    for rule, parts in sure:
        texts = [f"{f.what} {f.evidence}" for f in findings if f.rule == rule]
        assert any(all(part in text for part in parts) for text in texts), (rule, parts, texts)
    assert all(f.evidence and f.consequence and f.remedy for f in findings)


def test_the_evidence_is_the_files_own_words() -> None:
    off = next(f for f in found("smi_topo/b200_8gpu_gpu2_off_nvlink_partial.txt") if f.rule == "gpu-off-nvlink")
    assert "gpu2 gpu0 NODE" in off.evidence.replace("gpu0 gpu2", "gpu2 gpu0")
    assert "gpu2 gpu4 SYS" in off.evidence


def test_knowing_the_accelerator_decides() -> None:
    """An H20 has 18 NVLinks, so its PCIe-only view hides them; an L40S has none, so its matrix is complete."""
    hidden = found("smi_topo/topo_mp_h20_8gpu_pcie_only_view.txt", "h20")
    assert [f.rule for f in hidden if f.sure] == ["view-hides-nvlink"]
    assert found("smi_topo/l40s_4gpu_pix_pairs_single_socket.txt", "l40s") == ()
    epyc = found("smi_topo/pcie_4gpu_dual_epyc_no_nvlink_5nic.txt", "l40s")
    assert {f.rule for f in epyc if f.sure} == {"shared-nic", "no-gpudirect", "peer-across-sockets"}
