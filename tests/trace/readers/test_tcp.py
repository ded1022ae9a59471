"""Retransmissions come under one name from every tool, with both ends where a connection is told."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers.host_evidence import JUNE_NS, mutated, never_raises, pick, read, recognises, values

from linkwise.trace.readers import tcp

SNMP = """Ip: Forwarding DefaultTTL InReceives
Ip: 1 64 1000
Tcp: RtoAlgorithm RtoMin MaxConn InSegs OutSegs RetransSegs InErrs OutRsts
Tcp: 1 200 -1 1000 2000 30 0 4
Udp: InDatagrams NoPorts
Udp: 3 4
"""
NETSTAT = """TcpExt: SyncookiesSent TCPTimeouts TCPLostRetransmit ListenDrops TCPPureAcks
TcpExt: 0 7 2 1 99
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
"""
NSTAT = """#kernel
IpInReceives                    1000               0.0
TcpInSegs                       1000               0.0
TcpRetransSegs                  30                 0.0
TcpExtTCPTimeouts               7                  0.0
TcpExtTCPPureAcks               99                 0.0
"""
SENTENCES = """Tcp:
    100 active connection openings
    5 failed connection attempts
    1000 segments received
    2000 segments sent out
    30 segments retransmitted
    0 bad segments received
    4 resets sent
TcpExt:
    3 fast retransmits
    TCPLostRetransmit: 2
    TCPTimeouts: 7
"""
SS = """State  Recv-Q Send-Q Local Address:Port   Peer Address:Port Process
ESTAB  0      36     10.0.0.1:43122       10.0.0.2:29500    users:(("python",pid=4242,fd=31))
\t cubic wscale:7,7 rto:204 rtt:80.1/0.3 ato:40 mss:1448 cwnd:23 bytes_sent:1000 retrans:1/76 lost:1 unacked:3
ESTAB  0      0      [fe80::1]:22         [fe80::2]:5000
\t cubic wscale:7,7 rto:204 rtt:0.3/0.1 mss:1448 cwnd:10
LISTEN 0      128    0.0.0.0:22           0.0.0.0:*
"""
DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 100 10 0 0 0 0 0 0 100 10 0 0 0 0 0 0
  eth0: 5000 50 1 2 0 0 0 0 7000 70 3 4 0 0 0 0
"""  # noqa: E501
LINK = """2: ens1f0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP mode DEFAULT group default qlen 1000
    link/ether a0:88:c2:03:e3:c4 brd ff:ff:ff:ff:ff:ff
    RX:  bytes packets errors dropped  missed   mcast
          5000      50      1       2       0       0
    TX:  bytes packets errors dropped carrier collsns
          7000      70      3       4       0       0
3: ens1f1: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc mq state DOWN mode DEFAULT group default qlen 1000
    RX:  bytes packets errors dropped  missed   mcast
             0       0      0       0       0       0
"""


def test_one_name_from_every_tool(tmp_path: Path) -> None:
    snmp = values(read(tmp_path, tcp, SNMP), "counter")
    assert snmp == {
        "tcp.in_segs": 1000, "tcp.out_segs": 2000, "tcp.retrans_segs": 30, "tcp.in_errs": 0, "tcp.out_rsts": 4,
    }  # fmt: skip
    ext = values(read(tmp_path, tcp, NETSTAT), "counter")
    assert ext == {"tcp.timeouts": 7, "tcp.lost_retransmit": 2, "tcp.listen_drops": 1}
    assert values(read(tmp_path, tcp, NSTAT), "counter") == {
        "tcp.in_segs": 1000, "tcp.retrans_segs": 30, "tcp.timeouts": 7,
    }  # fmt: skip
    spoken = values(read(tmp_path, tcp, SENTENCES), "counter")
    assert spoken.items() >= (snmp | {"tcp.timeouts": 7, "tcp.lost_retransmit": 2, "tcp.fast_retrans": 3}).items()


def test_two_snapshots_of_one_file(tmp_path: Path) -> None:
    later = SNMP.replace(" 30 ", " 45 ")
    facts = pick(read(tmp_path, tcp, SNMP + later), "counter", "tcp.retrans_segs")
    assert [(f.value, f.label("snapshot")) for f in facts] == [(30, ""), (45, "1")]
    assert [f.source for f in facts] == ["evidence.txt: line 4", "evidence.txt: line 10"]
    assert facts[0].unix_ns == JUNE_NS
    assert facts[0].label("time") == "mtime"


def test_a_dump_with_dates_tells_when(tmp_path: Path) -> None:
    later = SNMP.replace(" 30 ", " 45 ")
    text = (
        f"== date ==\n1782000100\n== /proc/net/snmp ==\n{SNMP}== date ==\n1782000110.5\n== /proc/net/snmp ==\n{later}"
    )
    facts = pick(read(tmp_path, tcp, text), "counter", "tcp.retrans_segs")
    assert [(f.value, f.unix_ns) for f in facts] == [(30, 1782000100 * 10**9), (45, 1782000110_500_000_000)]
    assert facts[0].label("time") == ""


def test_connections(tmp_path: Path) -> None:
    lossy, fine = pick(read(tmp_path, tcp, SS), "counter", "tcp.conn_retrans")
    assert (lossy.value, lossy.label("peer"), lossy.label("local")) == (76, "10.0.0.2:29500", "10.0.0.1:43122")
    assert (lossy.label("rtt_ms"), lossy.label("in_flight"), lossy.label("pid")) == ("80.1", "1", "4242")
    assert (fine.value, fine.label("peer")) == (0, "[fe80::2]:5000")


def test_interfaces(tmp_path: Path) -> None:
    dev = {(f.device, f.name): f.value for f in pick(read(tmp_path, tcp, DEV), "counter")}
    assert dev["eth0", "net.rx_dropped"] == 2
    assert dev["eth0", "net.tx_errors"] == 3
    reading = read(tmp_path, tcp, LINK)
    link = {(f.device, f.name): f.value for f in pick(reading, "counter")}
    assert link["ens1f0", "net.rx_dropped"] == 2
    assert link["ens1f0", "net.tx_bytes"] == 7000
    assert [f.device for f in pick(reading, "network", "net.link_down")] == ["ens1f1"]


def test_not_recognised(tmp_path: Path) -> None:
    assert not recognises(tmp_path, tcp, "Tcp: a sentence of a log\n")
    assert not recognises(tmp_path, tcp, "1 2 3\n")


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.binary(max_size=200), mutated(SNMP + NETSTAT), mutated(NSTAT + SENTENCES), mutated(SS + DEV + LINK))
)
def test_only_refuses(data: bytes) -> None:
    never_raises(tcp, data, "evidence.txt")
