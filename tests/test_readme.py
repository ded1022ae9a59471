"""What README shows is what the commands print: a session stale by one digit fails here."""

import re
from pathlib import Path

import pytest

from linkwise.cli import main

README = Path(__file__).parents[1] / "README.md"


def sessions() -> list[tuple[str, str]]:
    """(command line, output) of every fenced block that begins with a prompt."""
    return re.findall(
        r"^```\n\$ linkwise ([^\n]*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_readme_shows_real_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shown = sessions()
    assert [line.split()[0] for line, _ in shown] == ["plan", "explain"]
    for line, output in shown:
        assert main(line.split()) == 0
        assert capsys.readouterr().out == output, f"README is stale: linkwise {line}"
