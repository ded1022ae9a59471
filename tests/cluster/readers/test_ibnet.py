"""ibnetdiscover's output. The small fabrics are written for these tests, in the form of the ibnetdiscover(8) manual."""

import pytest

from linkwise.cluster.readers import ibnet, parse
from linkwise.cluster.topology import Fabric, Port
from linkwise.core.errors import InputError

TWO_RAILS = """
#
# Topology file: generated on Mon Jan  5 10:00:00 2026
#
vendid=0x2c9
devid=0xd2f2
sysimgguid=0xa1
switchguid=0xa1(a1)
Switch	64 "S-00000000000000a1"		# "MF0;leaf-1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]	"H-00000000000000b1"[1](b1) 		# "node1 mlx5_0" lid 11 4xNDR
[2]	"H-00000000000000b3"[1](b3) 		# "node2 mlx5_0" lid 13 4xNDR
[33]	"S-00000000000000a3"[1]		# "MF0;spine-1:MQM9700/U1" lid 3 4xNDR

Switch	64 "S-00000000000000a2"		# "MF0;leaf-2:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[1]	"H-00000000000000b2"[1](b2) 		# "node1 mlx5_1" lid 12 4xNDR
[2]	"H-00000000000000b4"[1](b4) 		# "node2 mlx5_1" lid 14 4xHDR
[33]	"S-00000000000000a3"[2]		# "MF0;spine-1:MQM9700/U1" lid 3 4xNDR
[34]	"S-00000000000000a3"[3]		# "MF0;spine-1:MQM9700/U1" lid 3 4xNDR
[65]	"H-00000000000000c1"[1](c1) 		# "Mellanox Technologies Aggregation Node" lid 40 4xNDR

Switch	64 "S-00000000000000a3"		# "MF0;spine-1:MQM9700/U1" enhanced port 0 lid 3 lmc 0
[1]	"S-00000000000000a1"[33]		# "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
[2]	"S-00000000000000a2"[33]		# "MF0;leaf-2:MQM9700/U1" lid 2 4xNDR
[3]	"S-00000000000000a2"[34]		# "MF0;leaf-2:MQM9700/U1" lid 2 4xNDR

caguid=0xb1
Ca	1 "H-00000000000000b1"		# "node1 mlx5_0"
[1](b1) 	"S-00000000000000a1"[1]		# lid 11 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR

Ca	1 "H-00000000000000b2"		# "node1 mlx5_1"
[1](b2) 	"S-00000000000000a2"[1]		# lid 12 lmc 0 "MF0;leaf-2:MQM9700/U1" lid 2 4xNDR

Ca	1 "H-00000000000000b3"		# "node2 mlx5_0"
[1](b3) 	"S-00000000000000a1"[2]		# lid 13 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR

Ca	1 "H-00000000000000b4"		# "node2 mlx5_1"
[1](b4) 	"S-00000000000000a2"[2]		# lid 14 lmc 0 "MF0;leaf-2:MQM9700/U1" lid 2 4xHDR

Ca	1 "H-00000000000000c1"		# "Mellanox Technologies Aggregation Node"
[1](c1) 	"S-00000000000000a2"[65]		# lid 40 lmc 0 "MF0;leaf-2:MQM9700/U1" lid 2 4xNDR
"""
NDR, HDR = 50e9, 25e9  # 4 lanes of 100 and of 50 Gb/s, in bytes/s


def read(text: str) -> Fabric:
    found = parse(text, where="net.txt")
    assert isinstance(found, Fabric)
    return found


def test_hosts_switches_tiers_and_speeds() -> None:
    found = read(TWO_RAILS.replace('Switch	64 "S-00000000000000a2"', 'Switch	65 "S-00000000000000a2"'))
    assert found.format == "ibnetdiscover"
    assert found.hosts == ("node1", "node2")
    assert found.switches == {"leaf-1": 1, "leaf-2": 1, "spine-1": 2}
    assert set(found.ports) == {
        Port(a="node1", b="leaf-1", spec_Bps=NDR),
        Port(a="node2", b="leaf-1", spec_Bps=NDR),
        Port(a="node1", b="leaf-2", spec_Bps=NDR),
        Port(a="node2", b="leaf-2", spec_Bps=HDR),
        Port(a="leaf-1", b="spine-1", spec_Bps=NDR),
        Port(a="leaf-2", b="spine-1", spec_Bps=2 * NDR, count=2),
    }
    assert found.notes == ("1 aggregation nodes inside switches are left out",)


def test_a_port_beyond_the_switch_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"line 19: port 65 of 'S-00000000000000a2'.*1\.\.64"):
        read(TWO_RAILS)


SWITCH = 'Switch 8 "S1"\n[1] "H1"[1]\n'
CARD = 'Ca 1 "H1" # "n1 HCA-1"\n[1] "S1"[1]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SWITCH, r"line 2: port 1 of 'S1' leads to 'H1', which has no record"),
        (SWITCH + 'Ca 1 "H1" # "n1 HCA-1"\n', "line 3: 'n1 HCA-1' has no connected port"),
        (SWITCH + CARD + CARD, "line 5: 'H1' a second time"),
        (
            SWITCH + 'Ca 2 "H1"\n[1] "S1"[1]\n[2] "S1"[1]\n',
            "line 5: port 2 of 'H1' leads to port 1 of 'S1', which leads",
        ),
        (SWITCH + "what is this\n" + CARD, "line 3: 'what is this' is no line of ibnetdiscover"),
        ('Switch 8 "S1"\n[1] "H1"[1]\n[1] "H1"[1]\n' + CARD, "line 3: port 1 of 'S1' a second time"),
    ],
)
def test_cut_or_wrong(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(text)


def test_a_cable_written_at_one_end_is_kept_and_said() -> None:
    text = 'Switch 8 "S1"\n[1] "H1"[1]\n[2] "S2"[1]\n\nSwitch 8 "S2"\n[5] "H2"[1]\n\n' + CARD
    found = read(text + 'Ca 1 "H2" # "n2 HCA-1"\n[1] "S2"[5]\n')
    assert Port(a="S1", b="S2") in found.ports
    assert found.notes == ("1 cables stand at one of their ends only",)


def test_switches_of_one_name_keep_their_ids() -> None:
    same = '# "MF0;leaf:Q/U1"'
    text = f'Switch 8 "S1" {same}\n[1] "H1"[1]\n[2] "S2"[2]\n\nSwitch 8 "S2" {same}\n[2] "S1"[2]\n\n'
    assert read(text + CARD).switches == {"S1": 1, "S2": 2}


def test_what_it_recognises() -> None:
    assert ibnet.recognises(TWO_RAILS)
    assert not ibnet.recognises("SwitchName=s1 Nodes=n[1-2]")
