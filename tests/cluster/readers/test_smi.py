"""nvidia-smi topo matrices, written by us in the shapes people paste them. Expected values are read off the matrix."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.cluster import readers
from linkwise.cluster.readers import smi
from linkwise.cluster.topology import Machine, PathClass
from linkwise.core.errors import InputError

TABBED = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tSYS\tPIX\tNODE\t0-15\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tNODE\tPIX\t\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\tSYS\t16-31\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\t X \tNODE
NIC1\tNODE\tPIX\tSYS\tNODE\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: ibp1
"""


def read(text: str) -> Machine:
    machine = readers.parse(text, where="topo.txt")
    assert isinstance(machine, Machine)
    assert machine.format == "smi"
    return machine


def square(names: list[str], word: str) -> str:
    """A matrix with one word everywhere off the diagonal."""
    lines = ["\t" + "\t".join(names)]
    lines += ["\t".join([a, *(" X " if a == b else word for b in names)]) for a in names]
    return "\n".join(lines) + "\n"


def test_a_whole_matrix() -> None:
    machine = read(TABBED)
    assert [(p.id, p.numa, p.model) for p in machine.parts if p.kind != "cpu"] == [
        ("gpu0", 0, ""), ("gpu1", 0, ""), ("gpu2", 1, ""), ("nic0", None, "mlx5_0"), ("nic1", None, "ibp1"),
    ]  # fmt: skip
    assert machine.paths == {
        "gpu0 gpu1": "NVL", "gpu0 gpu2": "SYS", "gpu1 gpu2": "SYS", "gpu0 nic0": "PIX", "gpu0 nic1": "PHB",
        "gpu1 nic0": "PHB", "gpu1 nic1": "PIX", "gpu2 nic0": "SYS", "gpu2 nic1": "SYS",
    }  # fmt: skip
    assert machine.raw == {"gpu0 gpu1": "NV4", "gpu0 nic1": "NODE", "gpu1 nic0": "NODE"}
    assert machine.nvlinks("gpu1", "gpu0") == 4
    assert machine.nvlinks("gpu1", "gpu2") == 0
    assert machine.path("nic1", "gpu1") is PathClass.PIX
    assert machine.affinity == {"gpu0": "0-15", "gpu2": "16-31"}
    assert not machine.partial


@pytest.mark.parametrize(
    "text",
    [
        TABBED.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\x1b[0m\tGPU1"),
        TABBED.replace("\n", "\r\n"),
        "Thu Jan 1\nGPU topology of the new box, GPU0 first:\n```\n" + TABBED + "```\n",
        TABBED.replace("NIC1\tCPU", "NIC1\nCPU"),
        TABBED.replace("NUMA ID", "NUMA\n ID"),
        TABBED.replace("\tNODE\tPIX\t\t0", "\tNODE\nPIX\t\t0").replace("\t\t0\t\tN/A\nGPU2", "\t\t0\t\tN/A\nGPU2"),
    ],
    ids=["ansi", "crlf", "preamble", "wrapped header", "wrapped in a column name", "wrapped row"],
)
def test_the_same_matrix_in_other_clothes(text: str) -> None:
    assert read(text).paths == read(TABBED).paths


def test_spaces_instead_of_tabs() -> None:
    assert read(TABBED.expandtabs(8)).paths == read(TABBED).paths


@pytest.mark.parametrize(
    ("written", "node"), [("0", 0), ("N/A", None), ("0-3", 0), ("0,3-9", 0), ("1,19-25", 1), ("", None)]
)
def test_numa_lists(written: str, node: int | None) -> None:
    machine = read(f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t{written}\t\tN/A\n")
    assert machine.parts[0].numa == node
    assert any("first is taken" in note for note in machine.notes) is (written in ("0-3", "0,3-9", "1,19-25"))


def test_merged_labels_with_a_cell_each() -> None:
    machine = read("\tGPU0\tNIC9\tNIC10NIC11\nGPU0\t X \tPIX\tPXB\tSYS\n")
    assert machine.paths == {"gpu0 nic9": "PIX", "gpu0 nic10": "PXB", "gpu0 nic11": "SYS"}


def test_merged_labels_over_one_cell_are_noted() -> None:
    machine = read("\tGPU0\tNIC9\tNIC10NIC11\nGPU0\t X \tPIX\tPXB\n")
    assert machine.paths == {"gpu0 nic9": "PIX", "gpu0 nic10": "PXB", "gpu0 nic11": "PXB"}
    assert any("NIC10 and NIC11 run together" in note for note in machine.notes)


def test_pairs_that_need_more_links_than_a_gpu_has_share_a_switch() -> None:
    # 3 x NV12 a GPU is 36 links, more than the 18 of any GPU without NVSwitch
    machine = read(square(["GPU0", "GPU1", "GPU2", "GPU3"], "NV12"))
    assert [part.id for part in machine.parts if part.kind == "switch"] == ["nvswitch0"]
    assert {(w.a, w.b, w.count) for w in machine.wires} == {(f"gpu{n}", "nvswitch0", 12) for n in range(4)}
    assert machine.nvlinks("gpu0", "gpu3") == 12


def test_pairs_a_gpu_has_links_for_are_direct() -> None:
    machine = read(square(["GPU0", "GPU1", "GPU2", "GPU3"], "NV4"))  # 3 x 4 = 12
    assert len(machine.wires) == 6
    assert machine.nvlinks("gpu0", "gpu3") == 4
    assert not [part for part in machine.parts if part.kind == "switch"]


def test_a_missing_row_costs_only_pairs_among_missing_rows() -> None:
    whole = square(["GPU0", "GPU1", "GPU2", "GPU3"], "PIX")
    machine = read("\n".join(whole.splitlines()[:3]))
    assert machine.partial
    assert set(machine.paths) == {"gpu0 gpu1", "gpu0 gpu2", "gpu0 gpu3", "gpu1 gpu2", "gpu1 gpu3"}
    assert any("line 3" in note and "GPU2, GPU3" in note for note in machine.notes)


def test_a_cut_row_is_noted_with_its_line() -> None:
    machine = read("\tGPU0\tGPU1\tNIC0\nGPU0\t X \tSYS\tPIX\nGPU1\tSYS\n")
    assert machine.partial
    assert machine.paths == {"gpu0 gpu1": "SYS", "gpu0 nic0": "PIX"}
    assert any("line 3" in note and "1 of 3" in note for note in machine.notes)


def test_ends_that_disagree_take_the_worse() -> None:
    machine = read("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tSYS\t X \n")
    assert machine.paths == {"gpu0 gpu1": "SYS"}
    assert not machine.wires
    assert any("line 2" in note and "line 3" in note for note in machine.notes)


def test_peer_matrix_joins_the_matrix_of_the_same_gpus() -> None:
    peer = square(["GPU0", "GPU1"], "CNS")
    machine = read(square(["GPU0", "GPU1"], "PHB") + "\n$ nvidia-smi topo -p2p r\n" + peer)
    assert (machine.paths, machine.peer) == ({"gpu0 gpu1": "PHB"}, {"gpu0 gpu1": "CNS"})


def test_a_matrix_of_another_machine_is_not_mixed_in() -> None:
    machine = read(square(["GPU0", "GPU1"], "NV2") + "\nand the other one\n\n" + square(["GPU0", "GPU1"], "PHB"))
    assert machine.paths == {"gpu0 gpu1": "NVL"}
    assert any("line 7" in note and "not read" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\tPIX\tPIX\n", "line 2: row GPU0 has 4 cells under 2 columns"),
        ("\tGPU0\tGPU0\nGPU0\t X \tPIX\n", "line 1: column GPU0 twice"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU0\t X \tPIX\n", "line 3: row GPU0 twice"),
        ("\tGPU0\tGPU1\nGPU7\tPIX\tPIX\n", "line 2: row GPU7 has no column"),
        (square([f"GPU{n}" for n in range(600)], "PIX"), "600 GPUs and NICs"),
        ("No devices were found\n", "no topology format recognised"),
        ("", "empty"),
    ],
)
def test_refusals_name_the_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        readers.parse(text, where="topo.txt")


BAD = ["NV99999999999", "NV999", "NV65", "NV0", "NV-3", "NV01", "NV", "NV#", "nv4", "FOO", "-5", "5"]


PLACES = [(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)]
# An empty cell is seen between two tabs; at the end of a row, or without tabs, the row is short: cut, and noted.
CASES = [(word, place, sep) for word in BAD for place in PLACES for sep in ("\t", "  ")]
CASES += [("", place, "\t") for place in PLACES if place != (1, 2)]


@pytest.mark.parametrize(("word", "place", "sep"), CASES)
def test_a_cell_that_is_none_is_named(word: str, place: tuple[int, int], sep: str) -> None:
    rows = [["X" if a == b else "NV6" for b in range(3)] for a in range(3)]
    rows[place[0]][place[1]] = word
    text = sep.join(["", "GPU0", "GPU1", "GPU2"]) + "\n"
    text += "".join(sep.join([f"GPU{n}", *row]) + "\n" for n, row in enumerate(rows)) + "\nLegend:\n"
    with pytest.raises(InputError) as refused:
        readers.parse(text, where="topo.txt")
    said = f"topo.txt: line {place[0] + 2}: row GPU{place[0]}, column GPU{place[1]}: {word!r}; expected X, NV1..NV64"
    assert said in str(refused.value)


def test_a_cell_of_a_nic_that_is_none_is_named() -> None:
    with pytest.raises(InputError, match="line 5: row NIC0, column GPU1: 'NODEX'"):
        read(TABBED.replace("NIC0\tPIX\tNODE", "NIC0\tPIX\tNODEX"))


@pytest.mark.parametrize("end", ["N", "NO", "PH", "NV", ""])
def test_a_file_cut_inside_its_last_word_is_cut_not_wrong(end: str) -> None:
    machine = read(f"\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPHB\tPIX\nGPU1\tPHB\t X \t{end}")
    assert machine.partial
    assert machine.paths == {"gpu0 gpu1": "PHB", "gpu0 gpu2": "PIX"}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_matrices_give_a_value_or_one_error(data: st.DataObject) -> None:
    text = TABBED
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 60))
        new = data.draw(
            st.one_of(st.text(max_size=8), st.sampled_from(["\tGPU0\n", "NV999", "\x1b[", "X X X", "GPU1GPU2"]))
        )
        text = text[:at] + new + text[at + cut :]
    try:
        machine = smi.read(text, where="fuzz")
    except InputError as error:
        assert "fuzz" in str(error)
    else:
        assert {part.id for part in machine.gpus} >= {key.split()[0] for key in machine.paths}
