"""Access control on a bridge and lanes that are missing are told; a slow idle link is no fault."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import mutated, never_raises, one, pick, read, recognises

from linkwise.trace.readers import lspci

DETAILED = """\
00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge (prog-if 00 [Normal decode])
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
00:03.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge (prog-if 00 [Normal decode])
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x4 (downgraded)
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
1b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x8 (downgraded)
3b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16
5c:00.1 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tLnkSta:\tSpeed 32GT/s, Width x16
"""
LISTING = """00:00.0 Host bridge [0600]: Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller [8086:29c0]
00:01.0 VGA compatible controller [0300]: Red Hat, Inc. Virtio GPU [1af4:1050] (rev 01)
0001:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)
0005:00:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:1af1] (rev a1)
00:1f.2 SATA controller [0106]: Intel Corporation 82801IR [8086:2922] (rev 02)
0101:00:00.0 Infiniband controller [0207]: Mellanox Technologies MT28908 Family [15b3:101c]
"""


def test_access_control(tmp_path: Path) -> None:
    reading = read(tmp_path, lspci, DETAILED)
    acs = {f.device: (f.label("value"), f.label("bits"), f.value) for f in pick(reading, "setting", "pcie_acs")}
    assert acs == {
        "0000:00:01.1": ("on", "SrcValid,ReqRedir,CmpltRedir,UpstreamFwd", 1),
        "0000:00:03.1": ("off", "", 0),
    }


def test_links(tmp_path: Path) -> None:
    reading = read(tmp_path, lspci, DETAILED)
    # The bridge at 00:03.1 may lead to a card of four lanes: only ends count.
    narrow = one(reading, "device", "pcie_downgraded")
    assert (narrow.device, narrow.label("speed"), narrow.label("width")) == ("0000:1b:00", "8GT/s", "x8")
    assert (narrow.label("what"), narrow.label("capable")) == ("speed,width", "32GT/s x16")
    assert one(reading, "notice", "pcie_speed_low").device == "0000:3b:00"


def test_listing(tmp_path: Path) -> None:
    reading = read(tmp_path, lspci, LISTING)
    places = [(f.name, f.device) for f in pick(reading, "place") if f.device]
    assert places == [("gpu", "0001:00:00"), ("nvswitch", "0005:00:00"), ("nic", "0101:00:00")]
    counts = {f.name: (f.value, f.label("vendor")) for f in pick(reading, "place") if not f.device}
    assert counts == {"gpus": (1, "NVIDIA"), "nvswitches": (1, "NVIDIA"), "nics": (1, "Mellanox")}


def test_hidden_capabilities_are_said(tmp_path: Path) -> None:
    text = "00:01.1 PCI bridge: AMD Bridge (prog-if 00 [Normal decode])\n\tCapabilities: <access denied>\n"
    assert any("root" in note for note in read(tmp_path, lspci, text).notes)


def test_not_recognised(tmp_path: Path) -> None:
    assert not recognises(tmp_path, lspci, "a line\nanother\n00:01.0 VGA compatible controller: x\n")


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated(DETAILED), mutated(LISTING)))
def test_only_refuses(data: bytes) -> None:
    never_raises(lspci, data, "lspci.txt")
