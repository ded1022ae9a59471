"""What README shows is what the commands print. `python tests/test_readme.py` writes what they print now."""

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

import pytest

from linkwise.cli import main

README = Path(__file__).parents[1] / "README.md"
# A fenced block that begins with a prompt: the command line and its output.
SESSION = re.compile(r"^```\n\$ linkwise ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_shows_real_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shown = SESSION.findall(README.read_text(encoding="utf-8"))
    assert [line.split()[0] for line, _ in shown] == ["plan", "explain"]
    for line, output in shown:
        assert main(line.split()) == 0
        assert capsys.readouterr().out == output, f"README is stale, run python tests/test_readme.py: linkwise {line}"


def _printed(match: re.Match[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(match[1].split())
    return f"```\n$ linkwise {match[1]}\n{out.getvalue()}```"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["XDG_CACHE_HOME"] = folder
        README.write_text(SESSION.sub(_printed, README.read_text(encoding="utf-8")), encoding="utf-8")
