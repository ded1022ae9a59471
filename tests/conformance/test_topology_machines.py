"""Every machine file of the reference topologies reads to what a person reads in it (`machine_rows.py`, by hand)."""

import time
from pathlib import Path

import pytest
from tests.conformance import machine_rows as rows

from linkwise.cluster import readers
from linkwise.cluster.combine import combine
from linkwise.cluster.fabrics import FabricSpec
from linkwise.cluster.topology import Machine
from linkwise.core.errors import InputError

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "topology"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the reference data is not beside the repository")

FOLDERS = {
    "smi_topo": rows.SMI,
    "rocm_smi": rows.ROCM,
    "nccl_xml": rows.NCCL,
    "rccl_xml": rows.RCCL,
    "hwloc": rows.HWLOC,
}
CASES = [
    pytest.param(f"{folder}/{name}", row, id=name) for folder, table in FOLDERS.items() for name, row in table.items()
]
GRAPH = "nccl_xml/ncv4-graph.xml"  # a search graph, refused: see its own test
FILES = sorted(
    {str(path.relative_to(DATA)) for folder in FOLDERS for path in (DATA / folder).rglob("*") if path.is_file()}
    - {GRAPH}
)


def _machine(name: str) -> Machine:
    machine = readers.read(DATA / name)
    assert isinstance(machine, Machine)
    return machine


@pytest.mark.parametrize(("name", "row"), CASES)
def test_devices_and_numa_nodes(name: str, row: rows.Row) -> None:
    machine = _machine(name)
    parts = {part.id: part for part in machine.parts}
    assert (len(machine.gpus), len(machine.nics)) == (row.gpus, row.nics)
    assert sum(part.kind == "switch" for part in machine.parts) == row.switches
    assert {device: parts[device].numa for device in row.numa} == row.numa
    assert {device: parts[device].bus for device in row.buses} == row.buses
    assert all(word in parts[device].model for device, word in row.models.items())
    assert {gpu: machine.affinity[gpu] for gpu in row.affinity} == row.affinity
    assert machine.partial is row.partial
    assert any("line " in note for note in machine.notes) or not row.partial


@pytest.mark.parametrize(("name", "row"), CASES)
def test_paths_and_links(name: str, row: rows.Row) -> None:
    machine = _machine(name)
    assert {key: machine.path(*key.split()) for key in row.paths} == row.paths
    assert {key: machine.nvlinks(*key.split()) for key in row.links} == row.links
    assert {key: machine.raw[key] for key in row.raw} == row.raw
    assert {key: machine.peer[key] for key in row.peer} == row.peer


@pytest.mark.parametrize(("name", "row"), CASES)
def test_speeds(name: str, row: rows.Row) -> None:
    machine = _machine(name)
    wires = {frozenset((wire.a, wire.b)): wire for wire in machine.wires}
    parts = {part.id: part for part in machine.parts}
    for key, spec in row.speeds.items():
        found = wires[frozenset(key.split())].spec_Bps
        assert found == (None if spec is None else pytest.approx(spec * 1e9, rel=1e-4)), key
    for key, model in row.nccl.items():
        assert wires[frozenset(key.split())].nccl_Bps == pytest.approx(model * 1e9), key
    for nic, port in row.ports.items():
        assert parts[nic].port_Bps == (None if port is None else pytest.approx(port * 1e9)), nic


def test_a_search_graph_is_refused_for_what_it_is() -> None:
    with pytest.raises(InputError, match="search graph"):
        readers.read(DATA / GRAPH)


@pytest.mark.parametrize("name", FILES)
def test_every_file_reads_soundly_and_fast(name: str) -> None:
    readers.read(DATA / name)  # imports and facts are paid once
    start = time.perf_counter()
    machine = _machine(name)
    assert time.perf_counter() - start < 0.3
    ids = [part.id for part in machine.parts]
    assert len(set(ids)) == len(ids)
    assert {end for wire in machine.wires for end in (wire.a, wire.b)} <= set(ids)
    ends = {part.id for part in (*machine.gpus, *machine.nics)}
    assert all(len(key.split()) == 2 and set(key.split()) <= ends for key in machine.paths)


def test_the_expected_readings_cover_most_files() -> None:
    assert len(CASES) >= 30
    assert {param.values[0] for param in CASES} <= set(FILES)


def test_an_hgx_h100_is_no_tray_of_an_nvlink_domain() -> None:
    """Eight H100 on NV18: their NVLink ends in the machine, so two of them are no domain."""
    machine = readers.read(DATA / "smi_topo/stas_h100_8gpu_nv18.txt")
    assert isinstance(machine, Machine)
    with pytest.raises(InputError, match="h100-sxm has no NVLink between nodes"):
        combine([machine], nodes=2, fabric=FabricSpec(kind="nvl"))
