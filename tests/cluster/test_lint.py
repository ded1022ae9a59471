"""Each rule on the smallest file that breaks it, and on one that does not. Real files: tests/conformance."""

import msgspec
import pytest
from tests.cluster.machines import machine, matrix, square, text, without_nics

from linkwise.cluster import presets
from linkwise.cluster.combine import combine
from linkwise.cluster.fabrics import FabricSpec
from linkwise.cluster.lint import Finding, lint
from linkwise.cluster.topology import Machine, Part, PathClass, Wire


def rules(found: tuple[Finding, ...]) -> list[str]:
    return [finding.rule for finding in found]


def test_a_good_machine() -> None:
    assert lint(machine(text(8, "NV18"))) == ()
    assert (
        lint(combine([machine(text(8, "NV18"))], nodes=2, accelerator="h100-sxm", fabric=FabricSpec(kind="rail"))) == ()
    )
    assert lint(presets.shorthand("2x8xh100-sxm")) == ()


def linked(totals: list[int]) -> Machine:
    """GPUs with so many links each into one switch."""
    parts = [Part(id=f"gpu{n}", kind="gpu", index=n) for n in range(len(totals))]
    wires = [Wire(a=f"gpu{n}", b="nvswitch0", kind="nvlink", count=c) for n, c in enumerate(totals) if c]
    parts.append(Part(id="nvswitch0", kind="switch"))
    return Machine(format="nccl_xml", source="t.xml", parts=tuple(parts), wires=tuple(wires))


def test_a_missing_link_record() -> None:
    (found,) = lint(linked([18] * 7 + [17]))
    assert (found.rule, found.what) == ("missing-link-record", "gpu7 has fewer links than the others")
    assert found.evidence == "gpu7: 17 links; others: 18"


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        ("NV18", "PHB", "missing-link-record"),
        ("PHB", "NV18", "missing-link-record"),
        ("NV18", "NV17", "missing-link-record"),
        ("PIX", "SYS", "ends-disagree"),
    ],
)
def test_two_rows_that_say_different_of_a_pair(one: str, other: str, rule: str) -> None:
    source = f"\tGPU0\tGPU1\nGPU0\t X \t{one}\nGPU1\t{other}\t X \n"
    name = "l40s" if rule == "ends-disagree" else "h100-sxm"
    (found,) = (f for f in lint(machine(source), presets.accelerator(name)) if f.rule != "peer-across-sockets")
    assert found.rule == rule
    assert found.sure
    assert found.evidence == f"line 2: GPU0 says {one} of GPU1, line 3 says {other}: the worse is taken"
    whole = combine([machine(source)], accelerator=name)
    assert any(found.evidence in note for note in whole.notes)
    assert rule in rules(lint(whole))


def test_amd_gpus_that_say_different_of_each_other() -> None:
    table = "=== Link Type between two GPUs ===\n  GPU0 GPU1\nGPU0 0 XGMI\nGPU1 PCIE 0\n"
    found = [f for f in lint(machine(table)) if f.rule == "missing-link-record"]
    assert [f.evidence for f in found] == ["line 3: GPU0 says XGMI of GPU1, which says PCIE: PCIE is taken"]


def test_half_the_gpus_with_fewer_links_is_how_it_is_built() -> None:
    assert lint(linked([7, 6] * 4)) == ()


def test_a_gpu_without_a_record_is_off_nvlink() -> None:
    (found,) = lint(linked([18] * 7 + [0]))
    assert (found.rule, found.evidence) == ("gpu-off-nvlink", "no link record of gpu7")


def test_a_full_mesh_with_one_pair_missing() -> None:
    parts = tuple(Part(id=f"gpu{n}", kind="gpu", index=n) for n in range(8))
    pairs = [(a, b) for a in range(8) for b in range(a) if (a, b) != (5, 0)]
    wires = tuple(Wire(a=f"gpu{b}", b=f"gpu{a}", kind="xgmi") for a, b in pairs)
    (found,) = lint(Machine(format="rccl", source="t", parts=parts, wires=wires))
    assert found.what == "gpu0, gpu5 has fewer links than the others"


@pytest.mark.parametrize(("near", "expected"), [("PIX", []), ("PXB", []), ("PHB", ["no-gpudirect"])])
def test_gpudirect_needs_a_common_switch(near: str, expected: list[str]) -> None:
    assert rules(lint(machine(text(4, "NV6", near=near)))) == expected


def test_every_nic_on_another_socket() -> None:
    found = lint(machine(text(2, "NV18", near="SYS")))
    assert rules(found) == ["nic-other-socket", "no-gpudirect"]
    assert found[0].evidence == "gpu0 nic0 SYS; gpu1 nic0 SYS"


def grace(near: str) -> str:
    """Two GPUs whose own memory is a NUMA node, a NIC each beside their own CPU."""
    nodes = iter(("2", "10"))
    return "\n".join(
        line.removesuffix("N/A") + next(nodes) if line.endswith("N/A") else line
        for line in text(2, "NV18", near=near).split("\n")
    )


def test_beside_grace_a_nic_of_the_gpus_own_cpu_is_read_directly() -> None:
    """NCCL's paths.cc ncclTopoCheckGdr: NCCL_NET_GDR_C2C, 1 by default, lets a P2C path through."""
    assert lint(machine(grace("NODE")), presets.accelerator("gb200")) == ()
    assert lint(machine(grace("NODE"))) == ()
    # A cluster file does not keep its files' notes: its accelerator says it.
    assert lint(combine([machine(grace("NODE"))], accelerator="gb200")) == ()
    for value in (machine(grace("SYS")), combine([machine(grace("SYS"))], accelerator="gb200")):
        (found,) = lint(value)
        assert (found.rule, found.sure) == ("nic-other-socket", False)
        assert "NCCL_TOPO_DUMP_FILE" in found.remedy
    # The same matrix of another accelerator hurts.
    assert rules(lint(machine(text(2, "NV18", near="NODE")), presets.accelerator("h100-sxm"))) == ["no-gpudirect"]


def test_gpudirect_that_a_file_says_is_off() -> None:
    good = machine(text(2, "NV18"))
    off = tuple(msgspec.structs.replace(p, gdr=False) if p.kind == "gpu" else p for p in good.parts)
    (found,) = lint(msgspec.structs.replace(good, parts=off))
    assert (found.rule, found.evidence) == ("no-gpudirect", 'gdr="0" on gpu0, gpu1')


def test_two_gpus_on_one_nic() -> None:
    nics = [["PIX", "SYS"], ["PIX", "SYS"], ["SYS", "PIX"], ["SYS", "PIX"]]
    found = lint(machine(matrix(square(4, "NV6"), nics, ["0", "1", "2", "3"], ["0"] * 4)))
    assert [f.what for f in found] == [
        "gpu0, gpu1 have 1 NIC between them: nic0",
        "gpu2, gpu3 have 1 NIC between them: nic1",
    ]


def test_peer_access_across_sockets() -> None:
    words = [
        ["X", "PIX", "SYS", "SYS"],
        ["PIX", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "PIX"],
        ["SYS", "SYS", "PIX", "X"],
    ]
    l40s = presets.accelerator("l40s")
    (found,) = lint(machine(without_nics(words)), l40s)
    assert found.what == "4 pairs of GPUs reach each other only across sockets"
    assert found.sure
    unknown = lint(machine(without_nics(words)))
    assert [(f.rule, f.sure) for f in unknown] == [("view-hides-nvlink", False), ("peer-across-sockets", False)]


def test_no_peer_access() -> None:
    said = "$ nvidia-smi topo -p2p r\n\tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n"
    found, untold = lint(machine(said))
    assert (untold.rule, untold.sure) == ("no-paths", False)
    assert (found.rule, found.evidence) == ("no-peer-access", "gpu0 gpu1 CNS")


def test_unequal_numa() -> None:
    words = square(4, "NV6")
    found = lint(machine(matrix(words, [], list("0123"), ["0", "0", "0", "1"])))
    assert [f.what for f in found] == ["GPUs are spread 3 + 1 over NUMA nodes"]
    assert lint(machine(matrix(words, [], list("0123"), ["0", "0", "1", "1"]))) == ()


def test_a_view_that_hides_nvlink() -> None:
    source = "$ nvidia-smi topo -mp\n" + without_nics(square(4, "NODE"))
    (found,) = lint(machine(source))
    assert (found.rule, found.sure) == ("view-hides-nvlink", True)
    (known,) = lint(machine(without_nics(square(4, "NODE"))), presets.accelerator("h20"))
    assert (known.rule, known.sure) == ("view-hides-nvlink", True)
    assert lint(machine(without_nics(square(4, "NODE"))), presets.accelerator("l40s")) == ()


def test_no_cpu_near_a_gpu() -> None:
    (found,) = lint(machine(matrix(square(4, "NV6"), [], ["0-3", "0-3", "", ""], ["0", "0", "1", "1"])))
    assert (found.rule, found.evidence) == (
        "no-local-cpu",
        "gpu2: NUMA 1, no CPU affinity; gpu3: NUMA 1, no CPU affinity",
    )


def test_a_cluster_file_is_judged_by_the_same_rules() -> None:
    source = text(4, "NV6", near="PHB")
    found = combine([machine(source)], accelerator="h100-sxm", nodes=2, fabric=FabricSpec.parse("fat-tree:2"))
    assert rules(lint(found)) == ["oversubscribed", "no-gpudirect"]


def test_a_preset_that_shares_nics() -> None:
    (found,) = lint(presets.shorthand("2x8xl40s"))
    assert (found.rule, found.evidence) == ("shared-nic", "nics: 2, devices_per_node: 8")


def test_evidence_stays_short_however_many_gpus() -> None:
    count = 64
    parts = tuple(Part(id=f"gpu{n}", kind="gpu", index=n) for n in range(count))
    paths = {f"gpu{a} gpu{b}": PathClass.SYS for b in range(count) for a in range(b)}
    found = lint(Machine(format="nccl_xml", source="t", parts=parts, paths=paths))
    assert rules(found) == ["peer-across-sockets"]
    assert found[0].evidence.endswith(f"{count * (count - 1) // 2 - 8} more")


def test_peer_access_alone_tells_nothing_of_the_links() -> None:
    peers = "\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n"
    (found,) = lint(machine(peers))
    assert (found.rule, found.sure) == ("no-paths", False)
    assert found.evidence == "gpu0 gpu1 OK; no path class anywhere"


def test_a_second_machine_in_the_file_is_not_judged() -> None:
    (found,) = lint(machine(text(8, "NV18") + "\n\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"))
    assert (found.rule, found.sure) == ("matrix-not-read", False)
    assert "another matrix, of 2 devices: not read" in found.evidence


def test_what_a_cut_file_no_longer_says_is_named() -> None:
    """Rows of GPU 2 and 3 are gone: of the six pairs, theirs is the only one no row names."""
    lines = text(4, "NV18").split("\n")
    (found,) = lint(machine("\n".join(lines[:3])))
    assert (found.rule, found.sure) == ("cut", False)
    assert "no path between gpu2, gpu3" in found.what
    assert "no path from gpu2, gpu3 to every NIC" in found.what
    assert "without rows GPU2, GPU3" in found.evidence
    (bare,) = lint(machine(lines[0]))
    assert bare.rule == "cut"
    assert "no path between gpu0, gpu1, gpu2, gpu3" in bare.what
    # What was read is judged all the same.
    words = square(4, "NV18")
    words[0][1] = words[0][2] = words[0][3] = words[1][0] = words[2][0] = words[3][0] = "SYS"
    off = lint(machine("\n".join(without_nics(words).split("\n")[:4])))
    assert [f.rule for f in off if f.sure] == ["gpu-off-nvlink", "peer-across-sockets"]
    assert [f.rule for f in off if not f.sure] == ["cut"]
    # A cluster made of it says the same.
    assert "cut" in rules(lint(combine([machine("\n".join(lines[:3]))], accelerator="h100-sxm")))
