"""A lab for real: ranks, counters, ends. Nothing of it may be seen or left outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.measure.lab import needs
from tests.plan import handmade

from linkwise.core.errors import InputError
from linkwise.measure.lab import LabUnavailable, missing, run, run_lab, wiring

pytestmark = needs.lab
RAILS = handmade.cluster(nodes=2, devices=2)
TWO = handmade.cluster(nodes=2, devices=1)


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_a_rank_knows_its_place(tmp_path: Path) -> None:
    names = (
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME "
        "LINKWISE_NODE LINKWISE_DEVICE"
    )
    code = f"import os; print(*(os.environ[n] for n in {names.split()!r}))"
    before = interfaces()
    with (tmp_path / "out").open("wb") as out:
        found = run_lab(wiring(RAILS, (3, 0, 1)), (sys.executable, "-c", code), stdout=out)
    assert found.ok
    assert interfaces() == before
    # Device 3 is on node 1 and has rank 0, so it is the master; 0 and 1 are the first and second rank of node 0.
    assert sorted((tmp_path / "out").read_text().splitlines()) == [
        "[rank 0] 0 3 0 1 0 10.0.0.4 29500 nic1 1 3",
        "[rank 1] 1 3 0 2 1 10.0.0.4 29500 nic0 0 0",
        "[rank 2] 2 3 1 2 1 10.0.0.4 29500 nic1 0 1",
    ]


def test_an_interpreter_this_user_may_not_use_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever user runs the tests, a file that nobody may execute is refused: even root needs one x bit."""
    interpreter = tmp_path / "python3"
    interpreter.write_text("")
    interpreter.chmod(0o600)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(LabUnavailable) as caught:
        run_lab(wiring(TWO, (0, 1)), ("true",))
    assert f"this user may not use {interpreter}" in str(caught.value)


SEND = """
import os, socket, time
if os.environ["RANK"] == "1":
    with socket.create_server((os.environ["MASTER_ADDR"].rsplit(".", 1)[0] + ".4", 5000)) as door:
        caller, _ = door.accept()
        while caller.recv(1 << 20):
            pass
else:
    for _ in range(100):
        try:
            peer = socket.create_connection(("10.0.0.4", 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    peer.sendall(bytes(8948 * 200))
    peer.close()
"""


def test_every_link_counts_what_crossed_it() -> None:
    """200 full segments from device 0 to device 3, which is on another rail: relayed by device 1, nothing elsewhere."""
    found = run_lab(wiring(RAILS, (0, 3)), (sys.executable, "-c", SEND))
    assert found.ok, found.ranks
    counted = {f"{link.src}>{link.dst}": link for link in found.links}
    way = ["d0>island0", "island0>d1", "d1>n0.nic1", "n0.nic1>rail1", "rail1>n1.nic1", "n1.nic1>d3"]
    for link in way:
        # By hand: 200 frames of 9014; opening, closing and looking for the address add a few of at most 74.
        assert 200 * 9014 <= counted[link].bytes <= 200 * 9014 + 12 * 74, link
        assert 200 <= counted[link].packets <= 212
    back = ["d3>island1", "island1>d2", "d2>n1.nic0", "n1.nic0>rail0", "rail0>n0.nic0", "n0.nic0>d0"]
    for link in back:  # empty segments, one for every segment at most
        assert 50 * 66 <= counted[link].bytes <= 212 * 74, link
    others = [link for link in counted if link not in way and link not in back]
    assert sum(counted[link].bytes for link in others) <= 6 * 42 * len(others)  # who has which address


def test_a_link_lets_through_no_more_than_its_rate() -> None:
    found = run_lab(wiring(RAILS, (0, 3), scale=1e-4), (sys.executable, "-c", SEND))
    rail = next(link for link in found.links if (link.src, link.dst) == ("n0.nic1", "rail1"))
    assert rail.rate_Bps == 5e6
    # 1.8 MB at 5 MB/s, less the burst: at least 0.35 s.
    assert found.seconds >= (200 * 9014 - 36056) / 5e6


def test_counters_while_it_runs(tmp_path: Path) -> None:
    code = "from linkwise.measure.lab.counters import snapshot; print(sorted(snapshot()))"
    with (tmp_path / "out").open("wb") as out:
        assert run_lab(wiring(TWO), (sys.executable, "-c", code), stdout=out).ok
    links = sorted(f"{a}>{b}" for a, b in wiring(TWO).rates)
    assert sorted((tmp_path / "out").read_text().splitlines()) == [f"[rank {rank}] {links}" for rank in (0, 1)]


def test_a_rank_that_fails_is_named_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    start = time.monotonic()
    found = run_lab(wiring(TWO), (sys.executable, "-c", code), timeout_s=3)
    assert time.monotonic() - start < 20
    assert not found.ok
    assert [(rank.code, rank.reason) for rank in found.ranks] == [
        (None, "stopped, because rank 1 had failed"), (7, "exit code 7"),
    ]  # fmt: skip


def test_a_rank_that_does_not_end_is_named() -> None:
    code = "import os, time; os.environ['RANK'] == '1' or time.sleep(60)"
    found = run_lab(wiring(TWO), (sys.executable, "-c", code), timeout_s=2)
    assert [(rank.device, rank.code, rank.reason) for rank in found.ranks] == [
        (0, None, "still running after 2 s"), (1, 0, ""),
    ]  # fmt: skip


def test_without_root_it_is_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.os, "geteuid", lambda: 1000)
    if lack := missing():
        pytest.skip(f"no user namespaces on this machine: {lack}")
    assert "--user" in run._unshare()
    assert run_lab(wiring(RAILS, (0, 3)), (sys.executable, "-c", SEND)).ok


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare: not here' >&2; exit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(LabUnavailable, match="missing here: veth pairs in new namespaces.*not here") as caught:
        run_lab(wiring(TWO), ("true",))
    assert caught.value.exit_code == 2


def test_a_kernel_that_refuses_a_step_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tc").write_text("#!/bin/sh\necho 'Specified qdisc kind is unknown.' >&2; exit 2\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(LabUnavailable, match="cannot be built: tc tbf.*Specified qdisc kind is unknown"):
        run_lab(wiring(TWO), ("true",))


@pytest.mark.parametrize("command", [(), ("no-such-command-of-ours",)])
def test_a_command_that_does_not_exist(command: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="a command that can be run"):
        run_lab(wiring(TWO), command)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), 1e9])
def test_a_timeout_that_is_none(timeout_s: float) -> None:
    with pytest.raises(InputError, match="lab timeout"):
        run_lab(wiring(TWO), ("true",), timeout_s=timeout_s)


def processes(mark: str) -> list[int]:
    """Processes that have a word among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if mark.encode() in words.split(b"\0"):
            found.append(int(entry.name))
    return found


OWNER = """
import sys
from tests.plan import handmade
from linkwise.measure.lab import run_lab, wiring
code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
run_lab(wiring(handmade.cluster(nodes=2, devices=2)), (sys.executable, "-c", code, sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_owner_is_killed(number: signal.Signals) -> None:
    """Ranks that ignore Ctrl-C, an owner that is gone from one instant to the next."""
    mark = f"lab-test-{os.getpid()}-{number.name}"
    before = interfaces()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, mark], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        cwd=Path(__file__).parents[3], start_new_session=True,
    )  # fmt: skip
    try:
        assert owner.stdout is not None
        assert sorted(owner.stdout.readline() for _ in range(4)) == [f"[rank {rank}] up\n" for rank in range(4)]
        assert len(processes(mark)) == 5
        owner.send_signal(number)
        owner.wait(20)
        deadline = time.monotonic() + 15
        while processes(mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes(mark) == []
        assert interfaces() == before
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from linkwise.cli import main

    text = (
        "schema: linkwise.cluster/1\naccelerator: h100-sxm\nnodes: 2\ndevices_per_node: 1\n"
        "nics: {count: 1, Gbps: 400}\nfabric: {kind: rail}\n"
    )
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    code = "import os, sys; print('here'); sys.exit(int(os.environ['RANK']))"
    words = ["lab", str(path), "--scale", "0.0005", "--json", "--", sys.executable, "-c", code]
    assert main(words) == 1
    out, err = capfd.readouterr()
    value = json.loads(out)
    assert [rank["code"] for rank in value["ranks"]] == [0, 1]
    assert value["scale"] == 0.0005
    assert sorted(err.splitlines()) == ["[rank 0] here", "[rank 1] here"]
    assert main(["lab", str(path), "--all", "--timeout", "30s", "--", sys.executable, "-c", "print('here')"]) == 0
    out, _ = capfd.readouterr()
    assert "[rank 1] here" in out
    assert "2 ranks, 2 ended well" in out
    assert "d0>n0.nic0" in out
    for wrong in (["--scale", "1e9"], ["--placement", "0,7"], ["--timeout", "never"], ["--placement", "x"]):
        assert main(["lab", str(path), *wrong, "--", "true"]) == 2
    assert main(["lab", str(path)]) == 2


@pytest.mark.parametrize("generation", [1, 2], ids=["unshare", "process 1"])
def test_a_keeper_that_is_killed_is_said_in_one_line(tmp_path: Path, generation: int) -> None:
    """What keeps the lab is killed while a rank waits: exit code 1, the signal, and no other tool's words."""
    ready = tmp_path / "ready"
    code = f"import time; open({str(ready)!r}, 'a').close(); time.sleep(100)"
    owner = subprocess.Popen(
        [sys.executable, "-m", "linkwise", "lab", "2x1xh100-sxm", "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with owner:
        while not ready.exists() and owner.poll() is None:
            time.sleep(0.02)
        pid = owner.pid
        for _ in range(generation):
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        out, err = owner.communicate(timeout=60)
    assert (owner.returncode, out) == (1, "")
    assert err == "linkwise: error: lab: its keeper was ended by SIGKILL; nothing of the lab is left\n"
