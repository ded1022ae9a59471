"""What the tests of launch share."""

from pathlib import Path

import pytest
from tests.test_cli import Shell


@pytest.fixture
def linkwise(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, tmp_path)
