"""`linkwise cluster` as people use it, from topology file to plan."""

import json
from pathlib import Path

import pytest
from tests.cluster.machines import square, text, without_nics
from tests.test_cli import Shell

from linkwise.cluster.read import load


@pytest.fixture
def linkwise(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.txt").write_text(text(8, "NV18"))
    (tmp_path / "topology.conf").write_text(
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\nSwitchName=t Switches=s[1-2]\n"
    )
    return Shell(capsys, tmp_path)


def test_a_file_to_a_cluster_to_a_fit_and_a_plan(linkwise: Shell) -> None:
    ran = linkwise("cluster read node.txt --nodes 2 --fabric rail --accelerator h100-sxm -o c.yaml")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("2x8xh100-sxm · 2 nodes of 8 x H100 SXM5 80GB, NVLink islands of 8")
    assert "gpu0  X     NVL" in ran.out
    assert "mlx5_7" in ran.out
    assert "written to c.yaml" in ran.out
    fit = linkwise("fit llama-3.1-405b --on c.yaml")
    assert fit.code == 0
    assert "2 nodes of 8 x H100 SXM5 80GB" in fit.out
    plan = linkwise("plan llama-3.3-70b --on c.yaml --isl 1000 --osl 100")
    assert plan.code == 0
    assert linkwise("cluster lint c.yaml").code == 0


def test_a_gpu_off_nvlink_changes_the_cluster_and_is_a_finding(linkwise: Shell) -> None:
    words = square(8, "NV18")
    for other in range(8):
        words[2][other] = words[other][2] = "X" if other == 2 else "NODE"
    (linkwise.folder / "bad.txt").write_text(without_nics(words))
    read = linkwise("cluster read bad.txt --accelerator b200-sxm -o bad.yaml")
    assert read.code == 0
    assert "islands: gpu0,1,3,4,5,6,7; gpu2" in read.out
    for file in ("bad.txt", "bad.yaml"):
        ran = linkwise(f"cluster lint {file}")
        assert ran.code == 1
        assert "gpu-off-nvlink: gpu2 is off NVLink while 7 others are on it" in ran.out
    assert linkwise("plan llama-3.3-70b --on bad.yaml --isl 1000 --osl 100").code == 0


def test_several_files_and_a_fabric(linkwise: Shell) -> None:
    ran = linkwise("cluster read node.txt topology.conf --accelerator h100-sxm -o c.yaml")
    assert ran.code == 0
    assert "topology.conf names no cables" in ran.out
    assert load(str(linkwise.folder / "c.yaml")).nodes == 4
    ran = linkwise("cluster read topology.conf --accelerator h200-sxm --json")
    assert json.loads(ran.out)["nodes"] == 4


def test_an_accelerator_of_ones_own(linkwise: Shell) -> None:
    first = linkwise("cluster read node.txt --accelerator h100-sxm -o c.yaml")
    assert first.code == 0
    path = linkwise.folder / "c.yaml"
    path.write_text(path.read_text().replace("name: h100-sxm", "name: mine"))
    ran = linkwise("cluster read node.txt --accelerator c.yaml")
    assert ran.code == 0
    assert ran.out.startswith("8xmine ")


def test_lint_exit_codes(linkwise: Shell) -> None:
    (linkwise.folder / "pcie.txt").write_text(without_nics(square(4, "PIX")))
    assert linkwise("cluster lint node.txt").code == 0
    ran = linkwise("cluster lint pcie.txt")
    assert ran.code == 3  # whether the GPUs have NVLink this file cannot tell
    assert "0 things hurt, 1 cannot be told from this file" in ran.out
    assert linkwise("cluster lint pcie.txt --accelerator l40s").code == 0
    assert linkwise("cluster lint pcie.txt --accelerator h20").code == 1
    found = json.loads(linkwise("cluster lint pcie.txt --json").out)
    assert found[0]["rule"] == "view-hides-nvlink"


def test_probe(linkwise: Shell) -> None:
    """Whatever machine this runs on: the screen, the value, and an exit code that says whether it has a GPU."""
    ran, value = linkwise("cluster probe"), json.loads(linkwise("cluster probe --json").out)
    gpus = [part for part in value["parts"] if part["kind"] == "gpu"]
    assert ran.code == (0 if gpus else 1)
    assert ran.out.startswith(f"this machine · {len(gpus)} GPU")
    assert value["format"] == "probe"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cluster read absent.txt", "absent.txt: no such file"),
        ("cluster read .", "not a regular file"),
        ("cluster read node.txt --fabric ring --nodes 2", "--fabric: 'ring'"),
        ("cluster read node.txt topology.conf --fabric rail", "several fabrics"),
        ("cluster read topology.conf", "says nothing of the machines"),
        ("cluster read node.txt --accelerator h999", "unknown accelerator"),
        ("cluster read node.txt --nodes many", "--nodes"),
        ("cluster read node.txt --accelerator h100-sxm -o absent/c.yaml", "cannot be written"),
        ("cluster lint topology.conf", "a fabric, not a machine"),
        ("cluster lint node.txt --accelerator mi300x", "mi300x is given, but"),
        ("cluster read", "Missing argument"),
        ("cluster nothing", "No such command"),
    ],
)
def test_bad_input_is_one_line(linkwise: Shell, line: str, says: str) -> None:
    ran = linkwise(line)
    assert ran.code == 2
    assert says in ran.err
    assert ran.err.startswith("linkwise: error: ")
    assert ran.err.count("\n") == 1


def test_a_hundred_megabytes_are_refused(linkwise: Shell) -> None:
    with open(linkwise.folder / "huge.txt", "wb") as file:
        file.truncate(100 * 10**6)
    for command in ("read", "lint"):
        ran = linkwise(f"cluster {command} huge.txt")
        assert ran.code == 2
        assert "100000000 bytes" in ran.err


def test_help(linkwise: Shell) -> None:
    for command in ("cluster", "cluster read", "cluster probe", "cluster lint"):
        ran = linkwise(f"{command} --help")
        assert ran.code == 0
        assert "Usage" in ran.out
