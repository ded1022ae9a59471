"""rocm-smi --showtopo, in tables written by us."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.cluster import readers
from linkwise.cluster.readers import rocm
from linkwise.cluster.topology import Machine
from linkwise.core.errors import InputError


def table(title: str, rows: list[list[str]]) -> str:
    names = [f"GPU{n}" for n in range(len(rows))]
    lines = [f"====== {title} between two GPUs ======", "       " + "   ".join(names)]
    return "\n".join([*lines, *("   ".join([name, *row]) for name, row in zip(names, rows, strict=True)), "", ""])


KINDS = [
    ["0", "XGMI", "XGMI", "PCIE"],
    ["XGMI", "0", "XGMI", "PCIE"],
    ["XGMI", "XGMI", "0", "PCIE"],
    ["PCIE"] * 3 + ["0"],
]
HOPS = [["0", "1", "2", "2"], ["1", "0", "1", "3"], ["2", "1", "0", "3"], ["2", "3", "3", "0"]]
NUMA = "".join(f"GPU[{n}]\t\t: (Topology) Numa Node: {node}\n" for n, node in enumerate([0, 0, 1, 0]))
WHOLE = table("Hops", HOPS) + table("Link Type", KINDS) + "====== Numa Nodes ======\n" + NUMA


def read(text: str) -> Machine:
    machine = readers.parse(text, where="rocm.txt")
    assert isinstance(machine, Machine)
    assert machine.format == "rocm"
    return machine


def test_link_types_hops_and_numa_nodes() -> None:
    machine = read(WHOLE)
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 1, 0]
    # gpu0-gpu2 is xGMI of two hops: over gpu1. PCIe: two hops on one node, three hops, another node.
    assert machine.paths == {
        "gpu0 gpu1": "NVL", "gpu0 gpu2": "NVB", "gpu1 gpu2": "NVL", "gpu0 gpu3": "PHB", "gpu1 gpu3": "SYS",
        "gpu2 gpu3": "SYS",
    }  # fmt: skip
    assert {(w.a, w.b, w.kind) for w in machine.wires} == {("gpu0", "gpu1", "xgmi"), ("gpu1", "gpu2", "xgmi")}
    assert machine.raw["gpu0 gpu2"] == "XGMI"


def test_bandwidth_becomes_the_wires_speed() -> None:
    text = table("Link Type", [["0", "XGMI"], ["XGMI", "0"]]) + table(
        "Bandwidth", [["N/A", "50000-64000"], ["50000-64000", "N/A"]]
    )
    assert read(text).wires[0].spec_Bps == 64e9


def test_pcie_without_numa_and_hops_is_left_open() -> None:
    machine = read(table("Link Type", [["0", "PCIE"], ["PCIE", "0"]]))
    assert (machine.paths, machine.raw) == ({}, {"gpu0 gpu1": "PCIE"})
    assert any("no path class" in note for note in machine.notes)


def test_a_cut_table_is_partial() -> None:
    machine = read(table("Link Type", KINDS).rsplit("GPU2   XGMI", 1)[0])
    assert machine.partial
    assert any("without rows GPU2, GPU3" in note for note in machine.notes)
    assert "gpu2 gpu3" not in machine.raw


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("== Link Type between two GPUs ==\nnothing\n", "no table of GPUs"),
        (table("Hops", HOPS) * 2, "a second time"),
        ("== Hops between two GPUs ==\nGPU0 GPU1\nGPU0 0 1 1\n", "line 3: 3 cells"),
        ("== Hops between two GPUs ==\nGPU0 GPU1\nGPU5 0 1\n", "line 3: unexpected row GPU5"),
    ],
)
def test_refusals_name_the_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        readers.parse(text, where="rocm.txt")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE)), st.integers(0, 80), st.text(max_size=6), st.integers(0, len(WHOLE)))
def test_mutated_tables_give_a_value_or_one_error(at: int, cut: int, new: str, end: int) -> None:
    text = (WHOLE[:at] + new + WHOLE[at + cut :])[: max(end, 1)]
    try:
        machine = rocm.read(text, where="fuzz")
    except InputError as error:
        assert "fuzz" in str(error)
    else:
        assert len({part.id for part in machine.parts}) == len(machine.parts)
