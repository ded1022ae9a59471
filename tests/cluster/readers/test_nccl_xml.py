"""NCCL and RCCL topology XML written by us, and XML meant to hurt. Path classes by NCCL's rules, worked by hand."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.cluster import readers
from linkwise.cluster.readers import nccl_xml, rates, xml
from linkwise.cluster.topology import Machine, Wire
from linkwise.core.errors import InputError

LINK = 'link_speed="32.0 GT/s PCIe" link_width="16"'


def gpu(bus: str, dev: int, inside: str = "", sm: int = 90) -> str:
    record = f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{inside}</gpu>'
    return f'<pci busid="{bus}" class="0x030200" {LINK}>{record}</pci>'


def nic(bus: str, dev: int, speed: int = 400000) -> str:
    net = f'<net name="mlx5_{dev}" dev="{dev}" speed="{speed}" gdr="1"/>'
    return f'<pci busid="{bus}" class="0x020700" {LINK}><nic>{net}</nic></pci>'


def bridge(bus: str, inside: str, ids: str = "") -> str:
    return f'<pci busid="{bus}" class="0x060400" {ids} {LINK}>{inside}</pci>'


def cpu(numa: int, inside: str, more: str = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"') -> str:
    return f'<cpu numaid="{numa}" affinity="0000ffff" {more}>{inside}</cpu>'


def system(*cpus: str) -> str:
    return '<?xml version="1.0"?>\n<!-- ours -->\n<system version="1">\n' + "\n".join(cpus) + "\n</system>\n"


def read(text: str) -> Machine:
    machine = readers.parse(text, where="topo.xml")
    assert isinstance(machine, Machine)
    return machine


def wire(machine: Machine, a: str, b: str) -> Wire:
    return next(w for w in machine.wires if {w.a, w.b} == {a, b})


TREE = system(
    cpu(0, bridge("0000:10:00.0", gpu("0000:11:00.0", 0) + nic("0000:12:00.0", 0)
        + bridge("0000:13:00.0", gpu("0000:14:00.0", 1))) + gpu("0000:20:00.0", 2)),
    cpu(1, bridge("0000:80:00.0", gpu("0000:81:00.0", 3) + nic("0000:82:00.0", 1))),
)  # fmt: skip


def test_path_classes_of_a_tree() -> None:
    assert read(TREE).paths == {
        "gpu0 nic0": "PIX", "gpu0 gpu1": "PXB", "gpu1 nic0": "PXB", "gpu0 gpu2": "PHB", "gpu1 gpu2": "PHB",
        "gpu2 nic0": "PHB", "gpu3 nic1": "PIX", "gpu0 gpu3": "SYS", "gpu1 gpu3": "SYS", "gpu2 gpu3": "SYS",
        "gpu3 nic0": "SYS", "gpu0 nic1": "SYS", "gpu1 nic1": "SYS", "gpu2 nic1": "SYS",
    }  # fmt: skip


def test_speeds_sockets_and_ports() -> None:
    machine = read(TREE)
    # 32 GT/s x 16 lanes x 128/130 / 8; NCCL: 24 Gbit/s a lane; Sapphire Rapids 22 GB/s between sockets; 400 Gbit/s
    assert wire(machine, "gpu0", "pci:0000:10:00.0").spec_Bps == pytest.approx(63.0154e9, rel=1e-6)
    assert wire(machine, "gpu0", "pci:0000:10:00.0").nccl_Bps == 48e9
    assert (wire(machine, "numa0", "numa1").kind, wire(machine, "numa0", "numa1").nccl_Bps) == ("smp", 22e9)
    assert machine.nics[0].port_Bps == 50e9
    assert machine.gpus[0].gdr is True
    assert machine.affinity["gpu3"] == "0-15"


def test_the_two_levels_of_a_broadcom_switch_are_one() -> None:
    ids = 'vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0xa096"'
    halves = bridge("0000:02:00.0", gpu("0000:03:00.0", 0), ids) + bridge("0000:05:00.0", nic("0000:06:00.0", 0), ids)
    assert read(system(cpu(0, bridge("0000:01:00.0", halves, ids)))).paths == {"gpu0 nic0": "PIX"}
    assert read(system(cpu(0, bridge("0000:01:00.0", halves)))).paths == {"gpu0 nic0": "PXB"}


@pytest.mark.parametrize(
    ("sm", "spec", "model"),
    [(60, 20, 18), (70, 25, 20), (80, 25, 20), (86, 14.0625, 12), (90, 25, 20.6), (100, 50, 40.1), (103, 50, 40.1)],
)
def test_nvlink_figures_by_compute_capability(sm: int, spec: float, model: float) -> None:
    a = gpu("0000:11:00.0", 0, '<nvlink target="0000:12:00.0" count="4" tclass="0x030200"/>', sm)
    b = gpu("0000:12:00.0", 1, '<nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>', sm)
    link = wire(read(system(cpu(0, a + b))), "gpu0", "gpu1")
    assert (link.kind, link.count) == ("nvlink", 4)
    assert link.spec_Bps == pytest.approx(4e9 * spec)
    assert link.nccl_Bps == pytest.approx(4e9 * model)


@pytest.mark.parametrize("target", ["fffffff:ffff:ff", "0000:c4:00.0"])
def test_nvswitches_seen_and_hidden(target: str) -> None:
    record = f'<nvlink target="{target}" count="18" tclass="0x068000"/>'
    machine = read(system(cpu(0, gpu("0000:11:00.0", 0, record)), cpu(1, gpu("0000:81:00.0", 1, record))))
    assert [(p.id, p.bus) for p in machine.parts if p.kind == "switch"] == [
        ("nvswitch0", target if target[0] == "0" else "")
    ]
    assert machine.paths["gpu0 gpu1"] == "NVL"
    assert machine.nvlinks("gpu0", "gpu1") == 18
    assert wire(machine, "gpu0", "nvswitch0").nccl_Bps == pytest.approx(18 * 20.6e9)


def test_a_pair_joined_by_one_other_gpu_is_nvb() -> None:
    def ring(bus: str, dev: int, *to: str) -> str:
        return gpu(bus, dev, "".join(f'<nvlink target="{t}" count="1" tclass="0x030200"/>' for t in to), 70)

    machine = read(system(
        cpu(0, ring("0000:11:00.0", 0, "0000:12:00.0") + ring("0000:12:00.0", 1, "0000:11:00.0", "0000:81:00.0")),
        cpu(1, ring("0000:81:00.0", 2, "0000:12:00.0")),
    ))  # fmt: skip
    assert machine.paths == {"gpu0 gpu1": "NVL", "gpu1 gpu2": "NVL", "gpu0 gpu2": "NVB"}


def test_c2c_reaches_a_nic_of_the_same_cpu() -> None:
    c2c = '<c2c bw="44712" count="5"/>'
    machine = read(system(
        cpu(0, gpu("0008:01:00.0", 0, c2c, 100) + nic("0000:03:00.0", 0), 'arch="arm64"'),
        cpu(1, gpu("0018:01:00.0", 1, c2c, 100), 'arch="arm64"'),
    ))  # fmt: skip
    assert machine.paths == {"gpu0 nic0": "P2C", "gpu1 nic0": "SYS", "gpu0 gpu1": "SYS"}
    link = next(w for w in machine.wires if w.kind == "c2c")
    assert (link.a, link.b, link.count, link.spec_Bps) == ("gpu0", "numa0", 5, 223.56e9)  # 44712 MB/s x 5


@pytest.mark.parametrize(
    ("speed", "width", "spec", "model", "noted"),
    [
        ("16.0 GT/s PCIe", "8", 15.7538e9, 12e9, False),
        ("2.5 GT/s", "1", 0.25e9, 0.1875e9, False),
        ("16 GT/s", "0", 31.5077e9, 24e9, True),
        ("16 GT/s", "", 31.5077e9, 24e9, True),
        ("", "0", None, 12e9, True),
        ("Unknown", "16", None, 12e9, True),
        ("999 GT/s", "16", None, 12e9, True),
    ],
)
def test_pcie_strings(speed: str, width: str, spec: float | None, model: float, noted: bool) -> None:
    found = rates.pcie(speed, width)
    assert found[0] == (None if spec is None else pytest.approx(spec, rel=1e-5))
    assert found[1] == pytest.approx(model)
    assert bool(found[2]) is noted


def test_records_that_lead_nowhere_are_dropped_with_a_note() -> None:
    targets = ("0000:11:00.0", "0000:99:00.0")
    records = "".join(f'<nvlink target="{target}" count="2" tclass="0x030200"/>' for target in targets)
    machine = read(system(cpu(0, gpu("0000:11:00.0", 0, records))))
    assert not [w for w in machine.wires if w.kind == "nvlink"]
    assert any("back to itself" in note for note in machine.notes)
    assert any("0000:99:00.0" in note and "not in this file" in note for note in machine.notes)


def test_a_link_only_one_side_lists_is_kept_and_named() -> None:
    a = gpu("0000:11:00.0", 0, '<nvlink target="0000:12:00.0" count="2" tclass="0x030200"/>')
    machine = read(system(cpu(0, a + gpu("0000:12:00.0", 1))))
    assert machine.nvlinks("gpu0", "gpu1") == 2
    assert any("only gpu0 lists" in note for note in machine.notes)


def test_a_bare_pci_file() -> None:
    bare = '<pci busid="0000:11:00.0" class="0x030200"/><pci busid="0000:12:00.0" class="0x020000"/>'
    bare += '<pci busid="0000:13:00.0"/>'
    machine = read(system(f'<cpu numaid="0">{bare}</cpu>'))
    assert [part.id for part in machine.parts] == ["numa0", "pci:0000:13:00.0", "gpu0", "nic0"]
    assert machine.paths == {"gpu0 nic0": "PHB"}
    assert wire(machine, "gpu0", "numa0").spec_Bps is None
    assert any("no <gpu> records" in note for note in machine.notes)


def test_ports_of_one_card_share_its_pci_link() -> None:
    nets = '<nic><net name="a" dev="0"/><net name="b" dev="1"/></nic>'
    card = f'<pci busid="0000:12:00.0" class="0x020700" {LINK}>{nets}</pci>'
    machine = read(system(cpu(0, gpu("0000:11:00.0", 0) + card)))
    assert wire(machine, "nic1", "pci:0000:12:00.0").spec_Bps is None
    assert wire(machine, "pci:0000:12:00.0", "numa0").nccl_Bps == 48e9
    assert machine.paths == {"gpu0 nic0": "PHB", "gpu0 nic1": "PHB"}


def test_hosts_of_a_fused_dump_are_kept_apart() -> None:
    record = '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'
    host = [
        cpu(0, gpu("0008:01:00.0", 0, record) + nic("0000:03:00.0", 0), f'host_hash="0x{n}" arch="arm64"') for n in "ab"
    ]
    machine = read(system(*host))
    assert [part.id for part in machine.parts if part.kind == "cpu"] == ["numa0", "host1.numa0"]
    assert (machine.path("gpu0", "gpu1"), machine.path("gpu0", "nic0"), machine.path("gpu0", "nic1")) == (
        "NVL",
        "PHB",
        "NET",
    )


def test_a_search_graph_is_refused_for_what_it_is() -> None:
    with pytest.raises(InputError, match="search graph"):
        readers.parse('<graphs version="1"><graph id="0"/></graphs>', where="g.xml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TREE[:-60], "line 5: the file ends inside <nic> of line 5: it was cut"),
        (TREE.replace('dev="3"', 'dev="three"'), "line 5: <gpu> dev='three'"),
        (TREE.replace("0000:14:00.0", "somewhere"), "line 4: busid 'somewhere'"),
        (TREE.replace("0000:14:00.0", "0000:11:00.0"), "line 4: PCI address 0000:11:00.0 twice"),
        (TREE.replace('numaid="1"', 'numaid="0"'), "line 5: a second <cpu>"),
        ("<system></system>", "no <cpu>"),
        ("<html></html>", "outermost element is <html>"),
        ("<system><cpu></system>", "line 1: mismatched tag"),
        ("<system>" + "<cpu>" * 100, "line 1: nested deeper than 64"),
        ("<system>" + "<cpu/>" * 200_001 + "</system>", "more than 200000 elements"),
        ("<system>" + " " * xml.MAX_XML_BYTES + "</system>", "characters of XML"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", value)[:24],
)
def test_refusals_name_the_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        readers.parse(text, where="topo.xml")


BOMB = (
    "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9)),
    '<!ENTITY x SYSTEM "file:///etc/hostname">',
    '<!ENTITY % p SYSTEM "http://localhost/x.dtd"> %p;',
)


@pytest.mark.parametrize("declared", BOMB, ids=["billion laughs", "external", "parameter"])
def test_entities_are_refused_before_they_expand(declared: str) -> None:
    text = f'<?xml version="1.0"?><!DOCTYPE system [<!ENTITY l0 "ha">{declared}]><system>&l9;</system>'
    with pytest.raises(InputError, match="no DTD and no entities"):
        readers.parse(text, where="bomb.xml")


def test_an_external_dtd_is_read_over_and_its_entities_refused() -> None:
    start = '<!DOCTYPE system SYSTEM "nowhere.dtd"><system>'
    with pytest.raises(InputError, match="no <cpu>"):
        readers.parse(start + "</system>", where="x.xml")
    with pytest.raises(InputError, match="line 1"):
        readers.parse(start + "&what;</system>", where="x.xml")


def test_a_100_mb_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.xml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(InputError, match=r"big.xml: 104857600 bytes; expected at most"):
        readers.read(path)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_files_give_a_value_or_one_error(data: st.DataObject) -> None:
    text = TREE
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):  # an attribute's value, so that the XML stays whole
            values = [m.span(1) for m in re.finditer(r'="([^"]*)"', text)]
            start, end = data.draw(st.sampled_from(values))
            new = data.draw(st.one_of(st.text("0123456789abcdefx:.-, GT/s", max_size=12), st.just("9" * 400)))
        else:
            start = data.draw(st.integers(0, len(text)))
            end, new = start + data.draw(st.integers(0, 40)), data.draw(st.text(max_size=6))
        text = text[:start] + new + text[end:]
    try:
        machine = nccl_xml.read(text, where="fuzz")
    except InputError as error:
        assert "fuzz" in str(error)
    else:
        assert len({part.id for part in machine.parts}) == len(machine.parts)


def test_an_entity_of_an_external_dtd_is_refused_in_an_attribute_too() -> None:
    head = '<!DOCTYPE system SYSTEM "nowhere.dtd">\n<!-- &fine; here -->'
    body = system(cpu(0, gpu("0000:11:00.0", 0))).partition("-->")[2]
    assert len(read(head + body).gpus) == 1
    with pytest.raises(InputError, match="line 4: an entity that nothing declares, &x"):
        read(head + body.replace('affinity="0000ffff"', 'affinity="&x;"'))
    assert len(read(head + body.replace('dev="0"', 'dev="&#48;" name="&amp;&lt;"')).gpus) == 1


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ('link_width="16"', 'link_width="-16"', "link_width='-16'"),
        ("32.0 GT/s", "-32.0 GT/s", "link_speed='-32.0 GT/s PCIe'"),
        ('count="1"', 'count="-3"', "count='-3'"),
    ],
)
def test_negative_numbers_are_refused(was: str, now: str, says: str) -> None:
    link = '<nvlink target="0000:00:99.0" count="1" tclass="0x030200"/>'  # it leads nowhere, and is judged all the same
    whole = system(cpu(0, gpu("0000:11:00.0", 0, link)))
    assert was in whole
    with pytest.raises(InputError, match=re.escape(says)):
        read(whole.replace(was, now, 1))
