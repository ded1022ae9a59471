"""A shell with a plan in its folder, for tests of commands."""

from pathlib import Path

import pytest
from tests.test_cli import Shell


@pytest.fixture
def linkwise(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """`linkwise` in a folder of its own, after the module's PLAN has been run there; that writes p.json."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shell = Shell(capsys, tmp_path)
    assert shell(request.module.PLAN).code == 0
    return shell
