"""hwloc XML of versions 1, 2 and 3, written by us. Path classes by NCCL's rules, worked by hand."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.cluster import readers
from linkwise.cluster.readers import hwloc
from linkwise.cluster.topology import Machine
from linkwise.core.errors import InputError

GPU, NIC, NVSWITCH = (
    "0302 [10de:2330] [10de:16c1] a1",
    "0207 [15b3:1021] [15b3:0041] 00",
    "0680 [10de:1ac2] [0000:0000] a1",
)


def pci(bus: str, kind: str, inside: str = "", more: str = "") -> str:
    return (
        f'<object type="PCIDev" pci_busid="{bus}" pci_type="{kind}" pci_link_speed="63.015385" {more}>{inside}</object>'
    )


def bridge(bus: str, inside: str) -> str:
    return (
        f'<object type="Bridge" bridge_type="1-1" pci_busid="{bus}" pci_type="0604 [15b3:197b] [0000:0000] 00" '
        f'pci_link_speed="31.507692">{inside}</object>'
    )


def host(inside: str) -> str:
    return f'<object type="Bridge" bridge_type="0-1" depth="0">{inside}</object>'


def os_device(name: str, kind: int, handle: int = 0) -> str:
    return f'<object type="OSDev" name="{name}" osdev_type="{kind}" gp_index="{handle}"/>'


def package(node: int, inside: str) -> str:
    numa = f'<object type="NUMANode" os_index="{node}" cpuset="0x0000000f" nodeset="0x{1 << node:08x}"/>'
    ids = f'os_index="{node}" gp_index="{900 + node}" nodeset="0x{1 << node:08x}"'
    return f'<object type="Package" {ids}>{numa}{inside}</object>'


def topology(*packages: str, version: str = "2.0", more: str = "") -> str:
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
    machine = f'<object type="Machine" os_index="0" nodeset="0x00000003">{"".join(packages)}</object>'
    return f'{head}<topology version="{version}">\n{machine}\n{more}\n</topology>\n'


def read(text: str) -> Machine:
    machine = readers.parse(text, where="lstopo.xml")
    assert isinstance(machine, Machine)
    assert machine.format == "hwloc"
    return machine


def port(bus: str, kind: str, name: str, os_type: int, handle: int = 0) -> str:
    """A device behind a downstream port of a switch."""
    return bridge(bus.replace(":00.0", ":1f.0"), pci(bus, kind, os_device(name, os_type, handle)))


# Node 0: root port 00:01 > switch 01:00 with two GPUs and a NIC; a GPU on a root port of its own. Node 1: one GPU.
TREE = topology(
    package(0, host(
        bridge("0000:00:01.0", bridge("0000:01:00.0",
            port("0000:11:00.0", GPU, "nvml0", 5) + port("0000:12:00.0", GPU, "nvml1", 5)
            + port("0000:13:00.0", NIC, "mlx5_0", 3)))
        + bridge("0000:00:02.0", pci("0000:20:00.0", GPU, os_device("nvml2", 5))))),
    package(1, host(bridge("0000:80:01.0", pci("0000:81:00.0", GPU, os_device("nvml3", 5))))),
)  # fmt: skip


def test_a_switch_counts_once_and_a_root_port_not_at_all() -> None:
    machine = read(TREE)
    assert machine.paths == {
        "gpu0 gpu1": "PIX", "gpu0 nic0": "PIX", "gpu1 nic0": "PIX", "gpu0 gpu2": "PHB", "gpu1 gpu2": "PHB",
        "gpu2 nic0": "PHB", "gpu0 gpu3": "SYS", "gpu1 gpu3": "SYS", "gpu2 gpu3": "SYS", "gpu3 nic0": "SYS",
    }  # fmt: skip
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 0, 1]
    assert machine.affinity["gpu0"] == "0-3"
    speeds = {(w.a, w.b): w.spec_Bps for w in machine.wires if w.kind == "pcie"}
    assert speeds["gpu0", "pci:0000:01:00.0"] == pytest.approx(63.015385e9)
    assert speeds["pci:0000:01:00.0", "numa0"] == pytest.approx(31.507692e9)
    assert ("gpu2", "numa0") in speeds
    assert [p.id for p in machine.parts if p.kind == "pci"] == ["pci:0000:01:00.0"]


def test_the_drivers_numbers_win_over_the_order_of_the_file() -> None:
    machine = read(TREE.replace("nvml0", "nvmlX").replace("nvml3", "nvml0").replace("nvmlX", "nvml3"))
    assert {gpu.id: gpu.bus for gpu in machine.gpus}["gpu0"] == "0000:81:00.0"


def test_displays_that_do_not_compute_are_no_gpus() -> None:
    display = pci("0000:02:00.0", "0300 [1a03:2000] [1a03:2000] 41", os_device("opencl0d0", 5))
    old_ati = pci("0000:03:00.0", "0300 [1002:515e] [0014:0019] 02", os_device("card0", 1))
    geforce = pci("0000:04:00.0", "0300 [10de:2204] [10de:1454] a1")
    radeon = pci("0000:05:00.0", "0300 [1002:744c] [1002:0e3b] c8", os_device("rsmi0", 5))
    machine = read(topology(package(0, host(display + old_ati + geforce + radeon))))
    assert [gpu.bus for gpu in machine.gpus] == ["0000:04:00.0", "0000:05:00.0"]


def test_os_device_types_are_bits_since_version_3() -> None:
    # 48 = 16 network + 32 OpenFabrics; 0c06 is InfiniBand under the serial bus class
    card = pci("0000:02:00.0", "0c06 [1077:7322] [1077:7322] 02", os_device("qib0", 48))
    assert [nic.model for nic in read(topology(package(0, host(card)), version="3.0")).nics] == ["qib0"]
    assert not read(topology(package(0, host(card)))).nics


def test_nvlinks_from_bandwidths() -> None:
    gpus = "".join(port(f"0000:{n}1:00.0", GPU, f"nvml{n}", 5, 100 + n) for n in range(1, 4))
    switch = pci("0000:51:00.0", NVSWITCH, more='subtype="NVSwitch" gp_index="200"')
    # gpu0-gpu1 two links of 25 GB/s, all three one link into the switch, gpu0 one of 20 GB/s into the CPU
    matrix = "0 50000 0 25000 20000  50000 0 0 25000 0  0 0 0 25000 0  25000 25000 25000 0 0  20000 0 0 0 0"
    more = (
        '<distances2hetero nbobjs="5" kind="25" name="NVLinkBandwidth"><indexes>OSDev:101 OSDev:102 </indexes>'
        f"<indexes>OSDev:103 PCIDev:200 Package:900 </indexes><u64values>{matrix}</u64values></distances2hetero>"
    )
    text = topology(package(0, host(bridge("0000:00:01.0", bridge("0000:01:00.0", gpus))) + host(switch)), more=more)
    machine = read(text.replace("nvml1", "nvml0").replace("nvml2", "nvml1").replace("nvml3", "nvml2"))
    found = {(w.a, w.b): (w.count, w.spec_Bps) for w in machine.wires if w.kind == "nvlink"}
    assert found == {
        ("gpu0", "gpu1"): (2, 50e9), ("gpu0", "nvswitch0"): (1, 25e9), ("gpu1", "nvswitch0"): (1, 25e9),
        ("gpu2", "nvswitch0"): (1, 25e9), ("gpu0", "numa0"): (1, 20e9),
    }  # fmt: skip
    assert (machine.nvlinks("gpu0", "gpu1"), machine.nvlinks("gpu0", "gpu2")) == (3, 1)
    assert machine.path("gpu0", "gpu2") == "NVL"


def test_version_1_without_numa_nodes() -> None:
    text = (
        '<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc.dtd"><topology>'
        '<object type="Machine" os_index="0" cpuset="0x0000000f"><object type="Socket" os_index="0"/>'
        + host(bridge("0000:00:01.0", pci("0000:01:00.0", GPU)))
        + host(bridge("0000:40:01.0", pci("0000:41:00.0", NIC, os_device("ib0", 2))))
        + "</object></topology>"
    )
    machine = read(text)
    assert (machine.paths, machine.gpus[0].numa, machine.nics[0].model) == ({"gpu0 nic0": "PHB"}, None, "ib0")


def test_version_1_with_numa_nodes_around_sockets() -> None:
    def node(number: int, inside: str) -> str:
        ids = f'os_index="{number}" nodeset="0x{1 << number:08x}"'
        return f'<object type="NUMANode" {ids}><object type="Socket"/>{inside}</object>'

    nodes = node(0, host(pci("0000:01:00.0", GPU))) + node(1, host(pci("0000:41:00.0", NIC)))
    machine = read(f'<topology><object type="Machine" nodeset="0x00000003">{nodes}</object></topology>')
    assert (machine.gpus[0].numa, machine.nics[0].numa, machine.paths) == (0, 1, {"gpu0 nic0": "SYS"})


def test_devices_of_several_nodes_keep_their_pair_open() -> None:
    text = topology(package(0, ""), package(1, ""), host(pci("0000:01:00.0", GPU)), host(pci("0000:41:00.0", NIC)))
    machine = read(text)
    assert (machine.paths, machine.gpus[0].numa) == ({}, None)
    assert any("no single NUMA node stated for gpu0, nic0" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TREE[:-80], "line 4: the file ends inside <object> of line 4: it was cut"),
        ("<topology/>", "no <object>"),
        (TREE.replace("0000:12:00.0", "elsewhere"), "line 4: pci_busid 'elsewhere'"),
        (TREE.replace('os_index="1" cpuset', 'os_index="0" cpuset'), "line 4: NUMA node '0'"),
        (
            topology(package(0, ""), more='<distances2 name="NVLinkBandwidth"><indexes>1 2</indexes></distances2>'),
            "0 values",
        ),
    ],
)
def test_refusals_name_the_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        readers.parse(text, where="lstopo.xml")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutated_files_give_a_value_or_one_error(data: st.DataObject) -> None:
    values = [m.span(1) for m in re.finditer(r'="([^"]*)"', TREE)]
    start, end = data.draw(st.sampled_from(values))
    new = data.draw(st.one_of(st.text("0123456789abcdefx:.-,[] ", max_size=12), st.just("9" * 400)))
    text = (TREE[:start] + new + TREE[end:])[: data.draw(st.sampled_from([10**6, len(TREE) // 2]))]
    try:
        machine = hwloc.read(text, where="fuzz")
    except InputError as error:
        assert "fuzz" in str(error)
    else:
        assert len({part.id for part in machine.parts}) == len(machine.parts)
