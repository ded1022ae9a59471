"""Ports' counters come under one name whatever printed them, and a full counter says so."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import JUNE_NS, mutated, never_raises, one, pick, read, recognises, values

from linkwise.core.errors import InputError
from linkwise.trace.readers import infiniband

PORT = "sys/class/infiniband/mlx5_0/ports/1"

IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.41.1000
\tHardware version: 0
\tNode GUID: 0xa088c20300e3c4ee
\tSystem image GUID: 0xa088c20300e3c4ee
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 12
\t\tLink layer: InfiniBand
CA 'mlx5_7'
\tCA type: MT4129
\tPort 1:
\t\tState: Down
\t\tPhysical state: Polling
\t\tRate: 10
\t\tLink layer: InfiniBand
"""
DEVINFO = """hca_id:\tmlx5_2
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.41.1000
\tboard_id:\t\t\tMT_0000000838
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tEthernet
"""
PERFQUERY = """# Port extended counters: Lid 134 port 1 (CapMask: 0x5A00 CapMask2: 0x0000000)
PortSelect:......................1
CounterSelect:...................0x0000
PortXmitData:....................1000
PortRcvData:.....................2000
PortXmitPkts:....................30
SymbolErrorCounter:..............65535
LinkDownedCounter:...............2
"""
ETHTOOL = """NIC statistics:
     rx_packets: 100
     rx0_packets: 60
     rx_discards_phy: 7
     rx_prio3_pause: 148213
     rx_prio3_buf_discard: 0
     tx_cache_reuse: 5
     np_cnp_sent: 9
"""
RDMA = """link mlx5_0/1 rx_write_requests 38 out_of_sequence 4 packet_seq_err 0
link mlx5_1/1 state DOWN physical_state DISABLED netdev ens2
"""


def test_words_of_four_bytes(tmp_path: Path) -> None:
    fact = one(
        read(tmp_path, infiniband, "230442669431839\n", f"{PORT}/counters/port_xmit_data"),
        "counter", "ib.port_xmit_data_bytes",
    )  # fmt: skip
    assert fact.value == 4 * 230442669431839
    assert (fact.device, fact.unit, fact.unix_ns, fact.label("time")) == ("mlx5_0:1", "bytes", JUNE_NS, "mtime")
    assert fact.label("saturated") == ""


@pytest.mark.parametrize(
    ("name", "value", "full"),
    [
        ("symbol_error", 65535, True),  # 16 bits
        ("symbol_error", 65534, False),
        ("excessive_buffer_overrun_errors", 15, True),  # 4 bits
        ("link_downed", 255, True),  # 8 bits
        ("port_rcv_packets", 2**32 - 1, True),
        ("port_rcv_packets", 65535, False),
    ],
)
def test_a_full_counter_stands_still(tmp_path: Path, name: str, value: int, full: bool) -> None:
    fact = one(read(tmp_path, infiniband, f"{value}\n", f"{PORT}/counters/{name}"), "counter", f"ib.{name}")
    assert (fact.value, fact.label("saturated")) == (value, "1" if full else "")


def test_state_and_identity(tmp_path: Path) -> None:
    up = read(tmp_path, infiniband, "4: ACTIVE\n", f"{PORT}/state")
    assert values(up, "gauge") == {"ib.port_state": 1}
    assert not pick(up, "network")
    down = read(tmp_path, infiniband, "1: DOWN\n", f"{PORT}/state")
    assert one(down, "network", "ib.port_down").device == "mlx5_0:1"
    assert one(down, "network", "ib.port_down").label("state") == "DOWN"
    polling = read(tmp_path, infiniband, "2: Polling\n", f"{PORT}/phys_state")
    assert one(polling, "network", "ib.port_down").label("phys_state") == "Polling"
    rate = one(read(tmp_path, infiniband, "400 Gb/sec (4X NDR)\n", f"{PORT}/rate"), "gauge", "ib.rate_gbps")
    assert (rate.value, rate.label("lanes"), rate.label("speed")) == (400, "4X", "NDR")
    board = one(read(tmp_path, infiniband, "MT_0000000838\n", "sys/class/infiniband/mlx5_0/board_id"), "place", "nic")
    assert (board.device, board.label("board_id")) == ("mlx5_0", "MT_0000000838")


def test_a_folder_names_the_host(tmp_path: Path) -> None:
    fact = one(
        read(tmp_path, infiniband, "3", f"gpu-node-07/{PORT}/hw_counters/out_of_sequence"),
        "counter",
        "ib.out_of_sequence",
    )
    assert (fact.host, fact.value) == ("gpu-node-07", 3)


def test_ibstat_and_devinfo(tmp_path: Path) -> None:
    reading = read(tmp_path, infiniband, IBSTAT)
    states = [(f.name, f.device, f.value) for f in pick(reading, "gauge")]
    assert ("ib.port_state", "mlx5_0:1", 1) in states
    assert ("ib.rate_gbps", "mlx5_0:1", 400) in states
    assert {(f.device, f.labels[0][0]) for f in pick(reading, "network")} == {
        ("mlx5_7:1", "state"),
        ("mlx5_7:1", "phys_state"),
    }
    assert one(read(tmp_path, infiniband, DEVINFO), "network", "ib.port_down").device == "mlx5_2:1"


def test_perfquery_ethtool_rdma(tmp_path: Path) -> None:
    reading = read(tmp_path, infiniband, PERFQUERY, "perfquery-mlx5_3.txt")
    # 1,000 and 2,000 words of four bytes.
    assert values(reading, "counter") == {
        "ib.port_xmit_data_bytes": 4000, "ib.port_rcv_data_bytes": 8000, "ib.port_xmit_packets": 30,
        "ib.symbol_error": 65535, "ib.link_downed": 2,
    }  # fmt: skip
    assert {f.device for f in reading.facts} == {"mlx5_3:1"}
    assert one(reading, "counter", "ib.symbol_error").label("saturated") == "1"
    reading = read(tmp_path, infiniband, ETHTOOL, "ethtool-S-ens1f0.txt")
    assert values(reading, "counter") == {
        "net.rx_packets": 100, "net.rx_discards_phy": 7, "net.rx_prio3_pause": 148213, "net.rx_prio3_buf_discard": 0,
        "net.np_cnp_sent": 9,
    }  # fmt: skip
    reading = read(tmp_path, infiniband, RDMA)
    assert values(reading, "counter") == {"ib.rx_write_requests": 38, "ib.out_of_sequence": 4, "ib.packet_seq_err": 0}
    assert {f.device for f in pick(reading, "network")} == {"mlx5_1:1"}


def test_refused_and_not_recognised(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'many' as the counter symbol_error.*whole number"):
        read(tmp_path, infiniband, "many\n", f"{PORT}/counters/symbol_error")
    assert not recognises(tmp_path, infiniband, "3\n", "counters/symbol_error")
    assert not recognises(tmp_path, infiniband, "3\n", "eth0/board_id")
    assert not recognises(tmp_path, infiniband, "a log\nof lines\n")


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.binary(max_size=200), mutated(IBSTAT), mutated(PERFQUERY), mutated(RDMA + ETHTOOL + DEVINFO)))
def test_only_refuses(data: bytes) -> None:
    never_raises(infiniband, data, "evidence.txt")
    never_raises(infiniband, data, f"{PORT}/counters/symbol_error")
    never_raises(infiniband, data, f"{PORT}/rate")
