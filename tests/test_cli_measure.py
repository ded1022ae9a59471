"""`linkwise measure` and `check` as a user runs them: real ranks over gloo; nothing here rests on how fast they are."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.test_bad_input import LLAMA

import linkwise
from linkwise.cli import main
from linkwise.measure.calibration import load

pytest.importorskip("torch")

MACHINE = """schema: linkwise.cluster/1
name: four of ours
accelerator: h100-sxm
devices_per_node: 4
"""


def run(folder: Path, *words: object, code: int | None = 0) -> str:
    """A command in its own process; its output. code: what it must exit with."""
    done = subprocess.run(
        [sys.executable, "-m", "linkwise", *map(str, words)],
        cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert code is None or done.returncode == code, done.stderr
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    package = str(Path(linkwise.__file__).parents[1])  # the one under test, whatever is installed
    return {**os.environ, "XDG_CACHE_HOME": str(folder), "COLUMNS": "200", "PYTHONPATH": package}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and a machine of four."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "machine.yaml").write_text(MACHINE)
    return tmp_path


def _plan(folder: Path, *words: object) -> None:
    run(folder, "plan", "tiny", "--on", "machine.yaml", "--engine", "linkwise", "--isl", 64, "--osl", 32, *words)


def test_a_calibration_from_two_ranks_and_a_plan_that_takes_it(folder: Path) -> None:
    said = run(folder, "measure", "--on", "machine.yaml", "--ranks", 2, "--sizes", "1KiB:1MiB", "-o", "c.yaml", "--all")
    found = load(str(folder / "c.yaml"))
    assert found.library.startswith("gloo")
    assert (found.cluster, found.accelerator, found.ranks) == ("four of ours", "h100-sxm", 2)
    assert list(found.tiers) == ["island"]
    tier = found.tiers["island"]
    assert (tier.link, tier.points) == ("nvlink4", 7 * 6), "seven kinds, 1 KiB to 1 MiB in factors of four"
    assert tier.base_us.value + tier.step_us.value > 0
    assert {s.S_bytes for s in found.samples} == {2**e for e in (10, 12, 14, 16, 18, 20)}
    assert "gloo moves CPU memory" in said
    assert "reduce_scatter" in said
    _plan(folder, "--tp", 2, "--calibration", "c.yaml", "-o", "plan.json")
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["calibration"] == found.label
    assert plan["cluster"]["constants"]["latency_us"]["nccl.island"] == [tier.base_us.value, tier.step_us.value]


def test_a_rehearsal_makes_the_plans_calls(folder: Path) -> None:
    """Two stages of two ranks: four processes, every op of the step, with the bytes the plan has."""
    _plan(folder, "--tp", 2, "--pp", 2, "-o", "plan.json")
    plan = json.loads((folder / "plan.json").read_text())
    found = json.loads(run(folder, "measure", "--plan", "plan.json", "--json"))
    assert found["schema"] == "linkwise.rehearsal/1"
    assert [(op["role"], op["stage"], op["calls"], op["S_bytes"]) for op in found["ops"]] == [
        (op["role"], op["stage"], op["repeat"], op["S_bytes"]) for op in plan["decode"]
    ]
    assert all(op["as_planned"] for op in found["ops"])
    assert all(op["seen_bytes"] == op["S_bytes"] for op in found["ops"])
    assert all(op["measured_s"] > 0 and op["predicted_s"] > 0 for op in found["ops"])
    assert found["measured_s"] == pytest.approx(sum(op["calls"] * op["measured_s"] for op in found["ops"]))
    assert {op["kind"] for op in found["ops"]} >= {"all_reduce", "send_recv"}


def test_a_pre_flight_looks_at_every_rank_pair_and_group(folder: Path) -> None:
    _plan(folder, "--tp", 2, "-o", "plan.json")
    found = json.loads(run(folder, "check", "--plan", "plan.json", "--ranks", 2, "--json", code=None))
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert all(one["flops"] > 0 and one["memory_Bps"] > 0 for one in found["ranks"])
    assert {(pair["src"], pair["dst"]) for pair in found["pairs"]} == {(0, 1), (1, 0)}
    assert [group["ranks"] for group in found["groups"]] == [[0, 1]]
    assert not any(one["who"].startswith("rank") and "meant to be" in one["words"] for one in found["findings"])


def test_ranks_of_two_nodes_on_one_machine_are_found_out(folder: Path) -> None:
    (folder / "two.yaml").write_text(MACHINE.replace("devices_per_node: 4", "devices_per_node: 1\nnodes: 2"))
    said = run(folder, "check", "--on", "two.yaml", code=1)
    assert "FAULT      nodes 0, 1: ranks laid on 2 nodes run on one machine" in said


def signalled(folder: Path, rank: int, number: int) -> tuple[int, str, list[str]]:
    """A check of three ranks, one of which gets a signal as soon as it is there: exit code, output, lines of errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", "linkwise", "check", "--on", "machine.yaml", "--ranks", "3", "--timeout", "8s"],
        cwd=folder, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        children = started(process, 3)
        chosen = next(pid for pid in children if f"RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(chosen, number)
        out, err = process.communicate(timeout=100)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children), "nothing is left behind"
    return process.returncode, out, [line for line in err.splitlines() if line.startswith("linkwise:")]


def started(process: "subprocess.Popen[str]", count: int) -> list[int]:
    """The ranks a command has started, once all of them are there."""
    children: list[int] = []
    while len(children) < count and process.poll() is None:
        children = [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        time.sleep(0.01)
    # A child has its own environment once it has become another program.
    while any(b"\0RANK=" not in b"\0" + Path(f"/proc/{pid}/environ").read_bytes() for pid in children):
        time.sleep(0.01)
    return children


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_named_in_one_line_and_nothing_is_left_behind(folder: Path, rank: int) -> None:
    code, out, lines = signalled(folder, rank, signal.SIGSTOP)
    assert (code, out) == (1, "")
    # It was stopped while it still imported torch, or later.
    assert len(lines) == 1
    assert f"these did not start: {rank}" in lines[0] or f"rank {rank} " in lines[0]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_killed_while_it_starts_is_named_by_who_started_it(folder: Path, rank: int) -> None:
    code, out, lines = signalled(folder, rank, signal.SIGKILL)
    assert (code, out) == (1, "")
    assert lines == [f"linkwise: error: rank {rank} was ended by SIGKILL before it joined"]


def test_ranks_end_when_the_command_that_started_them_is_killed(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "linkwise", "measure", "--on", "machine.yaml", "--ranks", "2", "--sizes", "1KiB:16MiB"],
        cwd=folder, env=_environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        children = started(process, 2)
        time.sleep(1.0)  # in the middle of whatever
        process.kill()
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


NCCL = """#  Rank  0 Pid 1 on nodea device  0 [0x07] X
#  Rank  1 Pid 2 on nodea device  1 [0x07] X
# all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    20.50    0.05    0.05      0    20.40    0.05    0.05      0
     1048576        262144     float     sum      -1    25.00   41.94   41.94      0    25.00   41.94   41.94      0
    16777216       4194304     float     sum      -1    70.00  239.67  239.67      0    70.00  239.67  239.67      0
   268435456      67108864     float     sum      -1   800.00  335.54  335.54      0   800.00  335.54  335.54      0
"""


def test_nccl_tests_output_becomes_a_calibration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.txt").write_text(NCCL)
    path = folder / "c.yaml"
    assert (
        main(["measure", "--on", str(folder / "machine.yaml"), "--from", str(folder / "run.txt"), "-o", str(path)]) == 0
    )
    assert "all_reduce" in capsys.readouterr().out
    found = load(str(path))
    # By hand: 256 MiB in 780 us beyond latency is 344 of 450 GB/s.
    assert found.tiers["island"].efficiency.value == pytest.approx(344 / 450, rel=0.01)
    assert found.source.startswith("nccl-tests, ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure"], "neither a cluster nor a plan"),
        (["check"], "neither a cluster nor a plan"),
        (["measure", "--on", "machine.yaml", "--ranks", "9"], "--ranks: 9 ranks; expected 2..4"),
        (["measure", "--on", "machine.yaml", "--ranks", "1"], "--ranks: 1 ranks; expected 2..4"),
        (["check", "--on", "machine.yaml", "--timeout", "1s"], "--timeout: 1 s"),
        (["check", "--on", "machine.yaml", "--timeout", "soon"], "--timeout"),
        (["check", "--on", "machine.yaml", "--backend", "mpi"], "--backend: 'mpi'; expected nccl or gloo"),
        (["check", "--on", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["check", "--plan", "nowhere.json"], "nowhere.json: no such file"),
        (["measure", "--on", "machine.yaml", "--sizes", "4"], "--sizes: '4'"),
        (["measure", "--on", "machine.yaml", "--kind", "all_reduce"], "--kind without --from"),
        (["measure", "--on", "machine.yaml", "--step", "decode"], "--step with --on"),
        (["measure", "--on", "machine.yaml", "--calibration", "c.yaml"], "--calibration with --on"),
        (["measure", "--on", "machine.yaml", "--from", "run.txt", "--ranks", "2"], "--ranks with --from"),
        (["measure", "--on", "machine.yaml", "--from", "run.txt", "--timeout", "60s"], "--timeout with --from"),
        (["measure", "--on", "machine.yaml", "--from", "machine.yaml"], "machine.yaml: no table of times"),
        (["measure", "--plan", "plan.json", "--sizes", "1KiB"], "--sizes with --plan without --on"),
        (["measure", "--plan", "plan.json", "-o", "c.yaml"], "--output with --plan without --on"),
        (
            ["plan", "tiny", "--on", "machine.yaml", "--calibration", "machine.yaml"],
            "field schema: 'linkwise.cluster/1'",
        ),
        (["fit", "tiny", "--on", "machine.yaml", "--calibration", "none.yaml"], "none.yaml: no such file"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    before = sorted(folder.rglob("*"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("linkwise: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(folder.rglob("*")) == before


def test_an_environment_that_cannot_be_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["check", "--on", str(folder / "machine.yaml")]) == 2
    assert "MASTER_ADDR is not set" in capsys.readouterr().err


def test_import_and_planning_stay_light(folder: Path) -> None:
    code = "import sys, linkwise.cli, linkwise.measure.calibration; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
