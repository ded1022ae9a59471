"""Readers of host evidence on real files. Expected values were read off the files by hand (a pager, grep -c)."""

from pathlib import Path

import pytest

from linkwise.core.errors import InputError
from linkwise.trace import readers
from linkwise.trace.facts import Fact
from linkwise.trace.readers import cgroup, engine_log, infiniband, kernel_log, lspci, nvidia_smi, stacks, tcp
from linkwise.trace.readers.base import Reading, Source

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "diagnosis"
COUNTERS = DATA / "device_counters" / "components" / "accelerator" / "nvidia"
PORTS = COUNTERS / "infiniband" / "class" / "testdata" / "sys-class-infiniband-h100.0"
FABRIC = COUNTERS / "fabric-manager" / "testdata"
pytestmark = pytest.mark.skipif(not COUNTERS.is_dir(), reason="the reference data is not beside the repository")

HOST = (infiniband, nvidia_smi, lspci, kernel_log)


def _read(path: Path) -> Reading:
    source = Source(path, where=str(path.relative_to(DATA)))
    (module,) = [one for one in (*HOST, engine_log) if one.recognises(source)]
    reading: Reading = module.read(source)
    return reading


def _facts(path: Path, kind: str) -> list[Fact]:
    return [fact for fact in _read(path).facts if fact.kind == kind]


def test_every_file_is_known_or_empty() -> None:
    files = [path for path in (DATA / "device_counters").rglob("*") if path.is_file()]
    assert len(files) == 493
    for path in files:
        source = Source(path, where=path.name)
        if path.stat().st_size:
            assert _read(path).facts, path
        else:
            with pytest.raises(InputError, match="empty"):
                readers.read(source)


def test_other_formats_are_left_to_their_readers() -> None:
    modules = (*HOST, engine_log, tcp, cgroup, stacks)
    for path in DATA.rglob("*"):
        if path.is_file() and COUNTERS not in path.parents and not path.name.startswith("exc_rank"):
            source = Source(path, where=path.name)
            assert not [one for one in modules if one.recognises(source)], path


def test_ports() -> None:
    ports = PORTS / "mlx5_0" / "ports" / "1"
    (sent,) = _facts(ports / "counters" / "port_xmit_data", "counter")
    assert (sent.name, sent.device) == ("ib.port_xmit_data_bytes", "mlx5_0:1")
    assert sent.value == 230442669431839 * 4
    # 15 is all that four bits hold; 14 of 16 bits is an exact count.
    (overrun,) = _facts(ports / "counters" / "excessive_buffer_overrun_errors", "counter")
    assert (overrun.value, overrun.label("saturated")) == (15, "1")
    (errors,) = _facts(ports / "counters" / "port_rcv_errors", "counter")
    assert (errors.value, errors.label("saturated")) == (14, "")
    (again,) = _facts(ports / "hw_counters" / "roce_adp_retrans", "counter")
    assert (again.name, again.value) == ("ib.roce_adp_retrans", 3)
    (rate,) = _facts(PORTS / "mlx5_bond_0" / "ports" / "1" / "rate", "gauge")
    assert (rate.value, rate.device) == (200, "mlx5_bond_0:1")
    assert not [fact for state in PORTS.glob("*/ports/1/*state") for fact in _facts(state, "network")]
    (nic,) = _facts(PORTS / "mlx5_bond_0" / "hca_type", "place")
    assert (nic.device, nic.label("hca_type")) == ("mlx5_bond_0", "MT41692")


def test_kernel_logs() -> None:
    path = COUNTERS / "xid" / "testdata" / "dmesg-with-xid-119.log"
    xids = _facts(path, "device")
    assert [(fact.name, fact.device, fact.label("process")) for fact in xids] == [
        ("xid.119", "0000:9b:00", "nvidia-smi"),
        ("xid.119", "0000:9b:00", "nvidia-smi"),
        ("xid.119", "0000:9b:00", "nvidia-smi"),
        ("xid.119", "0000:9b:00", "cache_mgr_main"),
        ("xid.119", "0000:9b:00", "gpud"),
    ]
    assert (xids[0].unix_ns, xids[0].label("severity")) == (1_740_327_858 * 10**9, "hardware")
    (gpu,) = _facts(path, "place")
    assert gpu.label("uuid") == "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    crashes = _facts(COUNTERS / "nccl" / "testdata" / "dmesg.decode.iso.log", "exit")
    assert [(f.name, f.value, f.label("pid"), f.label("library")) for f in crashes] == [
        ("segfault", -11, "2536443", "libnccl.so.2")
    ] * 2
    assert crashes[1].unix_ns - crashes[0].unix_ns == 60 * 10**9


def test_fabric_manager() -> None:
    (error,) = _facts(FABRIC / "fabricmanager.log", "device")
    assert (error.name, error.device) == ("sxid.12028", "0000:86:00")
    assert (error.label("port"), error.label("fatal")) == ("61", "0")
    links = _read(FABRIC / "nvidia-smi.nvlink.status.a100").facts
    # Eight GPUs of twelve links of 25 GB/s, none of them off.
    assert [f.value for f in links if f.name == "gpu.nvlink_active"] == [12] * 8
    assert [f.value for f in links if f.name == "gpu.nvlink_GBps"] == [300] * 8
    assert not [f for f in links if f.kind in {"device", "notice"}]


def test_listings() -> None:
    counts = {f.name: f.value for f in _facts(FABRIC / "lspci.nn.a100", "place") if not f.device}
    assert counts == {"gpus": 8, "nvswitches": 6, "nics": 9}  # eight InfiniBand functions and one Ethernet
    counts = {f.name: f.value for f in _facts(FABRIC / "lspci.nn.a10", "place") if not f.device}
    assert counts == {"gpus": 1, "nics": 1}


def test_exceptions_of_ranks() -> None:
    folder = DATA / "flight_recorder_gloo"
    said = {
        (path.parent.name, fact.rank): (fact.name, fact.label("operation") or fact.label("port"))
        for path in sorted(folder.glob("*/exc_rank*.txt"))
        for fact in _facts(path, "error")
    }
    assert said == {
        ("count_mismatch", 0): ("gloo_timeout", "recv"),
        ("count_mismatch", 1): ("gloo_timeout", "recv"),
        ("count_mismatch", 2): ("gloo_timeout", "send"),
        ("count_mismatch", 3): ("gloo_timeout", "send"),
        ("shape_mismatch", 0): ("peer_closed", "26513"),
        ("shape_mismatch", 1): ("peer_closed", "36515"),
        ("shape_mismatch", 2): ("peer_closed", "26513"),
    }
