"""Probing a machine made of files: a sysfs tree in a folder, and tools that are functions (or small scripts)."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cluster.machines import text

from linkwise.cluster import probe as module
from linkwise.cluster.combine import combine
from linkwise.cluster.probe import probe, run_tool
from linkwise.cluster.topology import PathClass

BRIDGE, GPU, NIC = "0x060400", "0x030200", "0x020700"


class Sysfs:
    """A sysfs tree as Linux lays it out: real folders by PCI path, and links to them by address and by class."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def function(
        self, way: str, kind: str, vendor: str = "0x10de", numa: int = 0, speed: str = "32.0 GT/s PCIe"
    ) -> Path:
        folder = self.root / "devices" / way
        folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "class": kind,
            "vendor": vendor,
            "numa_node": str(numa),
            "max_link_speed": speed,
            "max_link_width": "16",
        }
        for name, value in facts.items():
            (folder / name).write_text(value + "\n")
        (self.root / "bus/pci/devices" / folder.name).symlink_to(folder)
        return folder

    def member(self, group: str, name: str, folder: Path, facts: dict[str, str]) -> None:
        entry = folder / group / name
        for path, value in facts.items():
            (entry / path).parent.mkdir(parents=True, exist_ok=True)
            (entry / path).write_text(value + "\n")
        (entry / "device").symlink_to(folder)
        there = self.root / "class" / group
        there.mkdir(parents=True, exist_ok=True)
        (there / name).symlink_to(entry)


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    """Two sockets: on the first a switch with a GPU and a NIC, and a GPU on the root; on the second one GPU."""
    made = Sysfs(tmp_path / "sys")
    up = "pci0000:00/0000:00:01.0"
    made.function(up, BRIDGE)
    for port in ("0000:01:00.0", "0000:01:00.0/0000:02:01.0", "0000:01:00.0/0000:02:02.0"):
        made.function(f"{up}/{port}", BRIDGE)
    made.function(f"{up}/0000:01:00.0/0000:02:01.0/0000:03:00.0", GPU)
    card = made.function(f"{up}/0000:01:00.0/0000:02:02.0/0000:04:00.0", NIC, vendor="0x15b3")
    made.member("infiniband", "mlx5_0", card, {"ports/1/rate": "400 Gb/sec (4X NDR)"})
    made.member("net", "ib0", card, {"speed": "400000"})
    made.function("pci0000:00/0000:00:02.0", BRIDGE)
    made.function("pci0000:00/0000:00:02.0/0000:05:00.0", GPU)
    made.function("pci0000:80/0000:80:01.0", BRIDGE, numa=1)
    made.function("pci0000:80/0000:80:01.0/0000:81:00.0", GPU, numa=1)
    virtual = made.root / "devices/virtual/net/lo"
    virtual.mkdir(parents=True)
    (made.root / "class/net/lo").symlink_to(virtual)
    for node in (0, 1):
        (made.root / f"devices/system/node/node{node}").mkdir(parents=True)
    return made


def no_tool(_: Sequence[str]) -> str | None:
    return None


def test_a_machine_without_tools_is_its_pci_tree(sysfs: Sysfs) -> None:
    found = probe(sysfs.root, no_tool)
    assert [(g.id, g.bus, g.numa) for g in found.gpus] == [
        ("gpu0", "0000:03:00.0", 0), ("gpu1", "0000:05:00.0", 0), ("gpu2", "0000:81:00.0", 1)
    ]  # fmt: skip
    (nic,) = found.nics
    assert (nic.model, nic.bus, nic.numa, nic.port_Bps) == ("mlx5_0", "0000:04:00.0", 0, 50e9)
    assert found.paths == {
        "gpu0 gpu1": PathClass.PHB,  # two root ports of one host bridge
        "gpu0 gpu2": PathClass.SYS,
        "gpu1 gpu2": PathClass.SYS,
        "gpu0 nic0": PathClass.PXB,  # two downstream ports of one switch: two bridges, no host bridge
        "gpu1 nic0": PathClass.PHB,
        "gpu2 nic0": PathClass.SYS,
    }
    assert [part.id for part in found.parts if part.kind == "cpu"] == ["numa0", "numa1"]
    assert "links between GPUs unknown" in found.notes[-1]


def test_nvidia_smi_is_believed_and_completed(sysfs: Sysfs) -> None:
    def tool(words: Sequence[str]) -> str | None:
        if words[:2] == ("nvidia-smi", "topo"):
            return text(2, "NV18")
        if words[0] == "nvidia-smi":
            return "0, 00000000:03:00.0, NVIDIA H100 80GB HBM3\n1, 00000000:05:00.0, NVIDIA H100 80GB HBM3\n"
        return None

    found = probe(sysfs.root, tool)
    assert [(g.bus, g.model) for g in found.gpus] == [
        ("0000:03:00.0", "NVIDIA H100 80GB HBM3"), ("0000:05:00.0", "NVIDIA H100 80GB HBM3")
    ]  # fmt: skip
    assert (found.nics[0].bus, found.nics[0].port_Bps) == ("0000:04:00.0", 50e9)
    assert (found.nics[1].model, found.nics[1].port_Bps) == ("mlx5_1", None)
    assert found.paths["gpu0 gpu1"] is PathClass.NVL
    assert combine([found]).accelerator.name == "h100-sxm"


def test_a_tool_that_prints_nonsense_is_not_used(sysfs: Sysfs) -> None:
    found = probe(sysfs.root, lambda words: "No devices were found" if words[0] == "nvidia-smi" else None)
    assert len(found.gpus) == 3
    assert found.notes[0].startswith("not used: nvidia-smi topo -m: no topology format recognised")


def test_a_folder_that_is_no_sysfs(tmp_path: Path) -> None:
    found = probe(tmp_path / "absent", no_tool)
    assert (found.gpus, found.nics, found.paths) == ((), (), {})


def test_garbage_in_sysfs(sysfs: Sysfs) -> None:
    for name, value in (("numa_node", "-1"), ("max_link_speed", "Unknown"), ("class", "\xff" * 1000)):
        (sysfs.root / "bus/pci/devices/0000:05:00.0" / name).write_text(value)
    found = probe(sysfs.root, no_tool)
    assert [g.bus for g in found.gpus] == ["0000:03:00.0", "0000:81:00.0"]


def script(folder: Path, body: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("body", "said"),
    [("echo one; echo two >&2", "one\n"), ("exit 3", None), ("echo partial; exit 1", None), ("cat /dev/zero", None)],
)
def test_running_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str | None) -> None:
    script(tmp_path, body)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_tool(("nvidia-smi", "topo", "-m")) == said


@pytest.mark.parametrize("body", ["exec sleep 60", "sleep 60", "sleep 60 & sleep 60"])
def test_a_tool_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    script(tmp_path, body)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    assert run_tool(("nvidia-smi",)) is None


def test_a_tool_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_tool(("nvidia-smi",)) is None
