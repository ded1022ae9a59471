"""What the reference topology files say, written down by hand from the files: the expected readings.

Read from each file by eye, one row a file; nothing here was printed by a reader. Bandwidths are hand arithmetic: PCIe
GT/s x lanes x coding / 8, links x the datasheet's GB/s, Mbit/s / 8000.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """numa: node by device; paths: "a b" -> class (None: the file does not say); links: NVLinks or xGMI of a pair;
    speeds: spec GB/s of the wire between two parts; nccl: NCCL's figure for it; ports: a NIC's GB/s; models: part of a
    device's name; buses; affinity; raw: the file's word; partial: cut."""

    gpus: int
    nics: int
    numa: dict[str, int | None] = field(default_factory=dict)
    paths: dict[str, str | None] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)
    speeds: dict[str, float | None] = field(default_factory=dict)
    nccl: dict[str, float] = field(default_factory=dict)
    ports: dict[str, float | None] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    buses: dict[str, str] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)
    peer: dict[str, str] = field(default_factory=dict)
    switches: int = 0
    partial: bool = False


def numas(*nodes: int | None) -> dict[str, int | None]:
    """NUMA nodes of gpu0, gpu1, ... in order."""
    return {f"gpu{index}": node for index, node in enumerate(nodes)}


SMI = {
    "a100_4gpu_nv4_restricted_cpuset.txt": Row(
        4, 3, numas(0, 0, 1, 1),
        {"gpu0 gpu3": "NVL", "gpu0 nic0": "PHB", "gpu3 nic2": "PHB"}, {"gpu0 gpu3": 4, "gpu1 gpu2": 4},
        raw={"gpu0 nic0": "NODE", "gpu0 gpu3": "NV4"}, models={"nic0": "mlx5_0"}, affinity={"gpu1": "0"},
    ),
    "a100_8gpu_nccl1435_gpu_rows_nic_shared.txt": Row(
        8, 6, numas(3, 3, 1, 1, 7, 7, 5, 5),
        {"gpu0 nic1": "PXB", "gpu2 nic0": "PXB", "gpu5 nic5": "PXB", "gpu6 nic2": "PXB", "gpu0 nic0": "SYS",
         "gpu7 nic4": "SYS"},
        {"gpu0 gpu7": 12, "gpu3 gpu4": 12}, affinity={"gpu2": "8-15,72-79"}, switches=1,
    ),
    "a40_8gpu_nv4_bridge_pairs_dual_socket.txt": Row(
        8, 0, numas(None, None),
        {"gpu0 gpu1": "NVL", "gpu0 gpu2": "PHB", "gpu0 gpu4": "SYS", "gpu6 gpu7": "NVL"},
        {"gpu0 gpu1": 4, "gpu2 gpu3": 4, "gpu0 gpu2": 0}, raw={"gpu0 gpu2": "NODE"}, partial=True,
    ),
    "b200_8gpu_gpu2_off_nvlink_partial.txt": Row(
        8, 12, numas(0, 0, 0, 0, 1, 1, None, None),
        {"gpu0 gpu2": "PHB", "gpu2 gpu4": "SYS", "gpu2 gpu7": "SYS", "gpu6 gpu7": None, "gpu2 nic2": "PXB",
         "gpu4 nic4": "PXB", "gpu0 nic8": "PHB", "gpu5 nic0": "SYS", "gpu6 nic6": None},
        {"gpu0 gpu1": 18, "gpu5 gpu7": 18, "gpu0 gpu2": 0}, switches=1, partial=True,
    ),
    "dgx1v_8gpu_hybrid_cube_mesh_4nic.txt": Row(
        8, 4, numas(*[None] * 8),
        {"gpu0 gpu5": "SYS", "gpu0 nic0": "PIX", "gpu4 nic1": "PIX", "gpu2 nic2": "PIX", "gpu6 nic3": "PIX",
         "gpu0 nic2": "PHB", "gpu0 nic1": "SYS"},
        {"gpu0 gpu1": 1, "gpu0 gpu3": 2, "gpu0 gpu4": 2, "gpu3 gpu7": 1, "gpu5 gpu6": 2, "gpu0 gpu5": 0},
        models={"nic0": "mlx5_0", "nic1": "mlx5_2", "nic2": "mlx5_1", "nic3": "mlx5_3"},
        affinity={"gpu0": "0-19,40-59", "gpu7": "20-39,60-79"},
    ),
    "fixture_ansi_header.txt": Row(
        2, 2, numas(0, 0), {"gpu0 nic0": "PXB", "gpu0 nic1": "PHB", "gpu1 nic1": "PXB"}, {"gpu0 gpu1": 18},
        models={"nic1": "mlx5_1"},
    ),
    "fixture_h100_mlx5cols_no_nic_rows.txt": Row(
        8, 10, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu3 nic3": "PIX", "gpu7 nic7": "PIX", "gpu0 nic1": "SYS", "gpu0 nic8": "PHB", "gpu4 nic8": "SYS",
         "gpu4 nic9": "PHB"},
        {"gpu0 gpu7": 18}, models={"nic9": "mlx5_9"}, switches=1,
    ),
    "fixture_merged_nic_labels.txt": Row(
        2, 5, numas(0, 0),
        {"gpu0 nic0": "PXB", "gpu1 nic1": "PXB", "gpu0 nic28": "SYS", "gpu0 nic29": "SYS", "gpu1 nic30": "SYS"},
        {"gpu0 gpu1": 18}, models={"nic30": "mlx5_30"},
    ),
    "gb200_sglang11208_partial_numa_lists.txt": Row(
        4, 6, numas(0, 0, 1, None), {"gpu0 nic0": "SYS", "gpu2 nic5": "SYS", "gpu3 nic0": None},
        {"gpu0 gpu3": 18, "gpu2 gpu3": 18}, affinity={"gpu2": "72-143"}, switches=1, partial=True,
    ),
    "h100_4gpu_nv6_direct_mesh_4nic_npsX.txt": Row(
        4, 4, numas(3, 1, 7, 5), {"gpu2 nic2": "PIX", "gpu0 nic1": "SYS"}, {"gpu0 gpu1": 6, "gpu2 gpu3": 6},
        affinity={"gpu0": "6,14,22,30"},
    ),
    "hgx_h20_8nic_pix.txt": Row(
        8, 8, numas(0, 0, 0, 0, 1, 1, 1, 1), {"gpu5 nic5": "PIX", "gpu0 nic3": "PHB", "gpu0 nic4": "SYS"},
        {"gpu0 gpu7": 18}, models={"nic7": "mlx5_7"}, affinity={"gpu4": "48-95,144-191"}, switches=1,
    ),
    "l40s_4gpu_pix_pairs_single_socket.txt": Row(
        4, 0, numas(0, 0, 0, 0), {"gpu0 gpu1": "PIX", "gpu0 gpu2": "PHB", "gpu2 gpu3": "PIX"}, {"gpu0 gpu1": 0},
    ),
    "nv8_8gpu_nccl933_interleaved_nics_partial.txt": Row(
        8, 9, numas(0, 0, 0, 0, 1, 1, 1, None),
        {"gpu0 nic2": "PIX", "gpu1 nic4": "PIX", "gpu2 nic6": "PIX", "gpu3 nic8": "PIX", "gpu4 nic1": "PIX",
         "gpu0 nic0": "PHB", "gpu0 nic1": "SYS", "gpu7 nic7": None},
        {"gpu0 gpu7": 8, "gpu6 gpu7": 8}, switches=1, partial=True,
    ),
    "pcie_4gpu_dual_epyc_no_nvlink_5nic.txt": Row(
        4, 5, numas(0, 0, 1, 1),
        {"gpu0 gpu1": "PHB", "gpu0 gpu2": "SYS", "gpu2 nic4": "PHB", "gpu0 nic4": "SYS"},
        {"gpu0 gpu1": 0}, models={"nic0": "roceo12399", "nic4": "rocep181s0f0"},
    ),
    "pcie_6gpu_4plus2_dual_socket.txt": Row(
        6, 0, numas(0, 0, 0, 0, 1, 1),
        {"gpu0 gpu1": "PIX", "gpu1 gpu2": "PHB", "gpu3 gpu4": "SYS", "gpu4 gpu5": "PIX"},
    ),
    "pcie_7gpu_two_switches_mlx4.txt": Row(
        7, 1, numas(*[0] * 7),
        {"gpu0 gpu2": "PIX", "gpu2 gpu3": "PHB", "gpu3 gpu6": "PIX", "gpu0 nic0": "PIX", "gpu6 nic0": "PHB"},
        models={"nic0": "mlx4_0"}, affinity={"gpu0": "0-13,28-41"},
    ),
    "pcie_8gpu_6plus2_phb_node_sys_preamble.txt": Row(
        8, 0, numas(0, 0, 0, 0, 0, 0, 1, 1),
        {"gpu0 gpu1": "PHB", "gpu1 gpu2": "PHB", "gpu5 gpu6": "SYS", "gpu6 gpu7": "PHB"}, raw={"gpu0 gpu1": "NODE"},
    ),
    "stas_2gpu_nv2_and_phb_two_blocks.txt": Row(
        2, 0, numas(None, None), {"gpu0 gpu1": "NVL"}, {"gpu0 gpu1": 2}, affinity={"gpu0": "0-23"},
    ),
    "stas_a100_8gpu_nv12.txt": Row(
        8, 0, numas(0, 0, 0, 0, 1, 1, 1, 1), {}, {"gpu0 gpu7": 12}, affinity={"gpu4": "24-47"}, switches=1,
    ),
    "stas_h100_8gpu_nv18.txt": Row(
        8, 0, numas(0, 0, 0, 0, 1, 1, 1, 1), {}, {"gpu0 gpu7": 18}, affinity={"gpu4": "52-103"}, switches=1,
    ),
    "stas_topo_p2p_matrices.txt": Row(8, 0, {}, {"gpu0 gpu1": None}, peer={"gpu0 gpu7": "OK", "gpu3 gpu4": "OK"}),
    "topo_mp_h20_8gpu_pcie_only_view.txt": Row(
        8, 0, numas(0, 0, 0, 0, 1, 1, 1, 1), {"gpu0 gpu1": "PHB", "gpu0 gpu4": "SYS"}, {"gpu0 gpu1": 0},
    ),
    "v100_4gpu_mixed_nv1_nv2_nic_sys.txt": Row(
        4, 1, numas(None, None), {"gpu0 nic0": "SYS"},
        {"gpu0 gpu1": 1, "gpu0 gpu3": 2, "gpu1 gpu2": 2, "gpu1 gpu3": 1, "gpu2 gpu3": 2},
    ),
    "v100_4gpu_nv2_c4140_1nic.txt": Row(
        4, 1, numas(0, 0, 0, 0), {"gpu0 nic0": "PHB"}, {"gpu0 gpu3": 2}, affinity={"gpu0": "0,2,4,6,8,10"},
        raw={"gpu0 nic0": "NODE"},
    ),
}  # fmt: skip

ROCM = {
    "mi100_2gpu_pcie.txt": Row(2, 0, numas(None, None), {"gpu0 gpu1": None}, raw={"gpu0 gpu1": "PCIE"}),
    "mi100_2hives_of_4_pcie_between_weights_assumed.txt": Row(
        8, 0, numas(0, 0, 0, 0, 1, 1, 1, 1), {"gpu0 gpu3": "NVL", "gpu0 gpu4": "SYS", "gpu4 gpu7": "NVL"},
        {"gpu0 gpu3": 1, "gpu0 gpu4": 0}, raw={"gpu0 gpu4": "PCIE", "gpu0 gpu3": "XGMI"},
    ),
    "mi300a_4apu_xgmi_4numa.txt": Row(4, 0, numas(0, 1, 2, 3), {"gpu0 gpu3": "NVL"}, {"gpu1 gpu2": 1}),
    "mi308x_8gpu_full_xgmi_mesh.txt": Row(
        8, 0, numas(0, 0, 0, 0, 1, 1, 1, 1), {"gpu0 gpu7": "NVL", "gpu3 gpu4": "NVL"}, {"gpu0 gpu7": 1},
    ),
}  # fmt: skip

GEN3, GEN4, GEN5 = 15.754, 31.508, 63.015  # 16 lanes of 8, 16, 32 GT/s at 128b/130b

NCCL = {
    "g5.48xl-topo.xml": Row(0, 0),
    "ncv4-topo.xml": Row(
        4, 1, numas(0, 1, 2, 3), {"gpu0 gpu1": "SYS", "gpu0 nic0": "PHB", "gpu1 nic0": "SYS"},
        {"gpu0 gpu1": 0},  # each GPU's NVLink record names the GPU itself
        speeds={"gpu0 numa0": None}, nccl={"gpu0 numa0": 12.0}, ports={"nic0": 12.5}, models={"nic0": "eth0"},
        buses={"gpu3": "0004:00:00.0", "nic0": ""}, affinity={"gpu0": "0-23", "gpu3": "72-95"},
    ),
    "ndv2-topo.xml": Row(
        8, 1, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 gpu3": "PHB", "gpu0 gpu4": "SYS", "gpu0 nic0": "PHB", "gpu7 nic0": "SYS"},
        speeds={"gpu0 numa0": GEN4}, nccl={"gpu0 numa0": 24.0}, buses={"gpu7": "0008:00:00.0", "nic0": "0101:00:00.0"},
    ),
    "ndv5-topo.xml": Row(
        8, 8, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 nic0": "PIX", "gpu0 gpu1": "PHB", "gpu0 nic1": "PHB", "gpu3 gpu4": "SYS", "gpu7 nic7": "PIX",
         "gpu7 nic0": "SYS"},
        speeds={"gpu0 pci:ffff:ff:01.0": GEN5, "pci:ffff:ff:01.0 numa0": GEN5}, nccl={"gpu0 pci:ffff:ff:01.0": 48.0},
        buses={"gpu3": "0008:00:00.0", "nic3": "0104:00:00.0", "gpu5": "000a:00:00.0"},
    ),
    "p4d-24xl-topo.xml": Row(
        8, 4, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 gpu1": "PIX", "gpu0 gpu2": "PHB", "gpu0 gpu4": "SYS", "gpu0 nic0": "PIX", "gpu7 nic3": "PIX",
         "gpu2 nic0": "PHB", "gpu4 nic0": "SYS"},
        speeds={"gpu0 pci:ffff:ff:01.0": GEN3}, nccl={"nic3 pci:ffff:ff:04.0": 12.0}, affinity={"gpu0": "0-23,48-71"},
        buses={"gpu2": "0000:20:1c.0", "nic2": "0000:90:1b.0"},
    ),
    "p4de-24xl-topo.xml": Row(
        8, 4, numas(0, 0, 0, 0, 1, 1, 1, 1), {"gpu2 gpu3": "PIX", "gpu2 gpu4": "SYS", "gpu6 nic3": "PIX"},
    ),
    "panlichen_topo.xml": Row(
        8, 1, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 gpu3": "PIX", "gpu3 gpu4": "SYS", "gpu4 nic0": "PIX", "gpu0 nic0": "SYS"},
        speeds={"gpu0 pci:0000:0c:00.0": GEN4}, ports={"nic0": 7.0}, models={"nic0": "mlx5_0"},
        buses={"gpu7": "0000:9e:00.0"}, affinity={"gpu0": "0-15,32-47"},
    ),
    "rtpllm_topo_8gpu_cx8_pcie6_switch.xml": Row(
        8, 12, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 nic4": "PXB", "gpu7 nic11": "PXB", "gpu0 gpu1": "PHB", "gpu0 gpu4": "SYS", "gpu0 nic0": "PHB",
         "gpu0 nic5": "PHB", "gpu4 nic0": "SYS"},
        # 64 GT/s x 16 x 242/256 / 8
        speeds={"gpu0 pci:0000:19:00.0": 121.0, "pci:0000:16:00.0 numa0": GEN5, "nic4 pci:0000:16:00.0": 121.0},
        nccl={"gpu0 pci:0000:19:00.0": 96.0}, ports={"nic4": None},
        models={"nic0": "mlx5_2", "nic4": "mlx5_bond_0"}, buses={"nic3": "0000:27:00.0"},
    ),
}  # fmt: skip

RCCL = {
    "topo_8p_rome.xml": Row(
        8, 1, numas(0, 0, 0, 0, 1, 1, 1, 1),
        # 0's neighbours are 1 and 3, those of 5 too; those of 2 are 4 and 6, of 4 are 2 and 7
        {"gpu0 gpu1": "NVL", "gpu0 gpu5": "NVB", "gpu0 gpu2": "PHB", "gpu0 gpu4": "SYS", "gpu4 nic0": "PHB",
         "gpu0 nic0": "SYS"},
        {"gpu0 gpu1": 1, "gpu0 gpu3": 1, "gpu0 gpu2": 0}, speeds={"gpu0 gpu1": 46.0}, nccl={"gpu0 gpu1": 24.0},
        ports={"nic0": 25.0},
    ),
    "topo_8p_rome_n2_1.xml": Row(
        8, 2, numas(0, 1, 1, 1, 2, 2, 3, 3),
        {"gpu0 gpu2": "NVL", "gpu4 nic1": "PHB", "gpu0 nic0": "PHB", "gpu0 nic1": "SYS", "gpu0 gpu6": "SYS"},
        speeds={"nic0 numa0": 2.0}, nccl={"nic0 numa0": 1.5}, ports={"nic0": 0.125, "nic1": 25.0},  # both say dev 0
        models={"nic0": "enp98s0f0", "nic1": "mlx5_0"},
    ),
    "topo_8p6l_6nic.xml": Row(
        8, 6, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 gpu5": "NVB", "gpu2 gpu7": "NVB", "gpu0 gpu7": "NVL", "gpu0 nic0": "PHB", "gpu0 nic3": "SYS"},
        {"gpu0 gpu4": 1, "gpu0 gpu5": 0}, models={"nic5": "mlx5_5"}, buses={"nic5": "0000:da:00.0"},
    ),
    "topo_4p3l_ia.xml": Row(
        8, 1, numas(*[0] * 8),
        {"gpu0 gpu3": "NVL", "gpu0 gpu4": "PHB", "gpu0 nic0": "PXB", "gpu4 nic0": "PHB"}, {"gpu4 gpu7": 1},
        speeds={"gpu0 pci:0000:1b:00.0": GEN4, "pci:0000:1b:00.0 pci:0000:18:00.0": GEN3}, ports={"nic0": 12.5},
    ),
    "topo_8p_90a_1.xml": Row(
        8, 1, numas(3, 3, 1, 1, 0, 0, 0, 0),
        {"gpu0 gpu6": "NVL", "gpu1 gpu2": "NVB", "gpu4 gpu7": "NVB", "gpu0 nic0": "PHB", "gpu2 nic0": "SYS"},
        {"gpu0 gpu1": 1, "gpu0 gpu2": 1, "gpu3 gpu7": 1}, speeds={"gpu0 gpu6": 50.0}, nccl={"gpu0 gpu6": 36.0},
        ports={"nic0": 0.125}, models={"nic0": "bond0"},
    ),
    "topo_8p_pcie_2nic.xml": Row(
        8, 2, numas(*[0] * 8),
        {"gpu0 gpu1": "PXB", "gpu0 gpu4": "PHB", "gpu0 nic0": "PXB", "gpu4 nic1": "PXB", "gpu0 nic1": "PHB"},
        {"gpu0 gpu1": 0},
    ),
    "topo_16p1h.xml": Row(
        16, 8, {"gpu0": 0, "gpu4": 1, "gpu8": 2, "gpu15": 3, "nic6": 3},
        # gpu2's half of the switch (52) and nic0's (49) are one switch to NCCL, but a GPU has a bridge of its own
        {"gpu0 nic0": "PXB", "gpu2 nic0": "PXB", "gpu0 nic2": "SYS", "gpu0 gpu3": "NVB", "gpu0 gpu2": "NVL"},
        {"gpu0 gpu1": 4, "gpu0 gpu4": 2, "gpu0 gpu2": 1, "gpu12 gpu13": 4, "gpu4 gpu12": 1},
        speeds={"gpu0 gpu1": 200.0, "gpu0 pci:0000:4c:00.0": GEN5, "pci:0000:4c:00.0 pci:0000:41:00.0": 15.754},
        nccl={"gpu0 gpu1": 144.0}, models={"nic6": "mlx5_7"},
    ),
    "topo_16p1h_vm.xml": Row(
        16, 8, {"gpu0": 0, "gpu4": 1, "nic1": 0, "nic6": 0, "nic0": 1, "nic7": 3},
        {"gpu0 nic1": "PHB", "gpu0 nic0": "SYS"}, {"gpu0 gpu3": 4, "gpu1 gpu2": 4, "gpu0 gpu4": 2, "gpu0 gpu1": 1},
        buses={"nic1": "c7ca:00:00.0", "gpu15": "ef87:00:00.0"},
    ),
    "topo_8p_ts1_n4.xml": Row(
        8, 2, {**numas(1, 2, 2, 3, 4, 5, 5, 7), "nic0": 0, "nic1": 6},
        {"gpu0 gpu1": "NVL", "gpu1 gpu2": "NVL", "gpu0 gpu2": "NVB", "gpu0 gpu4": "SYS", "gpu0 nic0": "SYS"},
    ),
    "topo_4p2h_2nic.xml": Row(
        8, 2, numas(*[0] * 8),
        {"gpu0 gpu1": "NVL", "gpu0 gpu3": "NVB", "gpu0 gpu4": "PHB", "gpu0 nic0": "PXB", "gpu4 nic1": "PXB"},
    ),
    "topo_collnet_n4.xml": Row(
        8, 4, numas(0, 0, 1, 1, 2, 2, 3, 3),
        {"gpu0 nic0": "PXB", "gpu0 gpu2": "NVL", "gpu0 gpu4": "SYS", "gpu0 nic1": "SYS"}, {"gpu4 gpu7": 1},
        models={"nic3": "mlx5_7"},
    ),
    "topo_8p_rome_4n_2.xml": Row(
        8, 4, {**numas(1, 1, 3, 3, 5, 5, 7, 7), "nic3": 1, "nic0": 7},
        {"gpu0 nic3": "PXB", "gpu6 nic0": "PXB", "gpu0 nic0": "SYS"}, ports={"nic3": 12.5}, models={"nic3": "mlx5_1"},
    ),
    "topo_8p_940.xml": Row(
        8, 8, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 gpu7": "NVL", "gpu0 nic0": "PXB", "gpu0 nic1": "PHB", "gpu0 nic4": "SYS", "gpu7 nic7": "PXB"},
        {"gpu0 gpu7": 1}, speeds={"gpu0 gpu7": 64.0, "gpu0 pci:0000:0a:00.0": GEN5}, nccl={"gpu0 gpu7": 48.0},
        ports={"nic7": 50.0}, models={"gpu0": "gfx942"},
    ),
    "topo_3p_pcie.xml": Row(
        3, 1, numas(0, 1, 1), {"gpu0 nic0": "PHB", "gpu1 gpu2": "PHB", "gpu0 gpu1": "SYS", "gpu1 nic0": "SYS"},
        speeds={"gpu0 pci:0000:21:00.0": GEN5, "pci:0000:21:00.0 numa0": GEN4}, ports={"nic0": 25.0},
    ),
    "topo_4p1h_1.xml": Row(
        4, 2, numas(0, 0, 1, 1),
        {"gpu0 gpu1": "NVL", "gpu0 gpu3": "NVL", "gpu0 gpu2": "NVB", "gpu0 nic0": "PHB", "gpu2 nic0": "SYS",
         "gpu0 nic1": "PHB"},
        ports={"nic0": 1.25}, models={"nic1": "virbr0"}, buses={"nic1": ""}, affinity={"gpu0": "0-13,28-41"},
        speeds={"nic0 numa0": 3.93846},
    ),
    "topo_collnet_n1.xml": Row(
        8, 1, numas(0, 0, 1, 1, 2, 2, 3, 3), {"gpu0 gpu4": "SYS", "gpu4 nic0": "PHB", "gpu6 nic0": "SYS"},
        {"gpu0 gpu3": 1},
    ),
}  # fmt: skip

HWLOC = {
    "16intel64-manyVFs.xml": Row(0, 18, {"nic0": 0, "nic17": 1}, models={"nic2": "usnic_0", "nic0": "eth0"}),
    "40intel64-2g2n4c+pcilocality.xml": Row(0, 5, {"nic0": None}, models={"nic4": "qib0", "nic3": "eth3"}),
    "96em64t-4n4d3ca2co-pci.xml": Row(0, 8, {"nic0": 0, "nic2": 1, "nic7": 3}, models={"nic7": "eth7"}),
    "nvidiaDGX2.xml": Row(
        16, 0, {**numas(*[0] * 8), "gpu8": 1, "gpu15": 1},
        {"gpu0 gpu7": "NVL", "gpu8 gpu15": "NVL", "gpu0 gpu15": "NVL"}, {"gpu0 gpu1": 6, "gpu0 gpu15": 6},
        speeds={"gpu0 nvswitch0": 25.0, "gpu0 pci:0000:32:00.0": GEN3}, switches=12,
        buses={"gpu0": "0000:34:00.0", "gpu15": "0000:e7:00.0", "nvswitch0": "0000:61:00.0"},
        models={"gpu0": "V100-SXM3"}, affinity={"gpu0": "0-1"},
    ),
    "power8gpudistances.xml": Row(
        4, 0, numas(0, 0, 1, 1), {"gpu0 gpu1": "NVL", "gpu0 gpu2": "SYS", "gpu2 gpu3": "NVL"},
        {"gpu0 gpu1": 2, "gpu0 numa0": 2, "gpu0 gpu2": 0}, speeds={"gpu0 gpu1": 40.0},
        buses={"gpu2": "000a:01:00.0"},
    ),
    "nixl_aws/c5n.18xl-topo.xml": Row(0, 2, {"nic0": None}, models={"nic0": "ens5", "nic1": "rdmap0s31"}),
    "nixl_aws/g5.48xl-topo.xml": Row(
        8, 2, numas(None, None), {"gpu0 gpu7": "PHB", "gpu0 nic1": "PHB"}, models={"nic1": "rdmap0s21"},
        buses={"gpu0": "0000:00:16.0"},
    ),
    "nixl_aws/p4d.24xl-topo.xml": Row(
        8, 8, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 gpu1": "PHB", "gpu0 gpu2": "PHB", "gpu0 gpu4": "SYS", "gpu0 nic1": "PHB", "gpu0 nic4": "SYS"},
        models={"nic1": "rdmap16s27", "nic7": "rdmap160s27"}, speeds={"gpu0 numa0": GEN4},
        buses={"gpu0": "0000:10:1c.0", "gpu7": "0000:a0:1d.0"},
    ),
    "nixl_aws/p5.48xl-topo.xml": Row(
        8, 64, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 nic0": "PIX", "gpu0 nic4": "PIX", "gpu0 gpu1": "PHB", "gpu0 nic8": "PHB"},
        models={"nic4": "rdmap79s0", "nic8": "enp88s0", "gpu0": "H100 80GB HBM3"},
        speeds={"gpu0 pci:0000:45:00.0": GEN5, "nic4 pci:0000:45:00.0": GEN3, "pci:0000:45:00.0 numa0": GEN3},
        buses={"gpu0": "0000:53:00.0"},
    ),
    "nixl_aws/p5en.48xl-topo.xml": Row(
        8, 32, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu2 gpu3": "PIX", "gpu4 gpu5": "PIX", "gpu4 gpu6": "PHB", "gpu3 gpu4": "SYS"},
        speeds={"gpu2 pci:0000:5e:00.0": GEN5},
        buses={"gpu2": "0000:72:00.0", "gpu4": "0000:8b:00.0", "gpu7": "0000:a5:00.0"},
    ),
    "nixl_aws/p6-b200.48xl-topo.xml": Row(
        8, 18, numas(0, 0, 0, 0, 1, 1, 1, 1),
        {"gpu0 gpu1": "PIX", "gpu0 gpu2": "PHB", "gpu0 gpu4": "SYS", "gpu0 nic2": "PIX", "gpu4 nic12": "PIX"},
        models={"nic2": "rdmap79s0", "nic12": "ibp115s0f0"}, buses={"gpu5": "0000:76:00.0"},
        speeds={"nic12 pci:0000:67:00.0": 3.93846},
    ),
}  # fmt: skip
