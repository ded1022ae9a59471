"""What README and docs show is what the commands print. `python tests/test_readme.py` writes what they print now."""

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

import pytest

from linkwise.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
# A fenced block that begins with a prompt: the command line and its output.
SESSION = re.compile(r"^```\n\$ linkwise ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_real_output(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for line, output in SESSION.findall(page.read_text(encoding="utf-8")):
        assert main(line.split()) in {0, 1}
        assert capsys.readouterr().out == output, f"{page.name} is stale, run python tests/test_readme.py: {line}"


def test_the_readme_shows_a_plan_and_its_chain() -> None:
    shown = SESSION.findall(README.read_text(encoding="utf-8"))
    assert [line.split()[0] for line, _ in shown] == ["plan", "explain"]


def _printed(match: re.Match[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(match[1].split())
    return f"```\n$ linkwise {match[1]}\n{out.getvalue()}```"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["XDG_CACHE_HOME"] = folder
        for page in PAGES:
            page.write_text(SESSION.sub(_printed, page.read_text(encoding="utf-8")), encoding="utf-8")
