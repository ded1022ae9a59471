"""The benchmark's trial with processes that are real and a model that is not: killed, stopped and slowed ranks."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.faults import prompts_of, trial
from tests.runtime.fake_model import text
from tests.runtime.fake_rank import prepare

from linkwise.core.layout import Layout
from linkwise.runtime.driver import LocalUnit, UnitSpec
from linkwise.runtime.local import Processes

COMMAND = (sys.executable, str(Path(__file__).with_name("steady_rank.py")))


def _launched(meet: Path) -> Callable[[], Processes]:
    def made() -> Processes:
        shutil.rmtree(meet, ignore_errors=True)  # what an earlier life's ranks left there
        return Processes(2, 1, COMMAND)

    return made


def test_no_request_is_lost_or_repeated_when_ranks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    folder = prepare(tmp_path)
    units = []
    for name in "ab":
        spec = UnitSpec(weights=str(folder), layout=Layout(tp=2), kv_tokens=4096, timeout_s=6.0, name=name)
        units.append(LocalUnit(name, spec, launched=_launched(folder / f"meet-{name}")))
    prompts = prompts_of(40, 30)
    pids: set[int] = set()

    def expected(number: int) -> list[int]:
        pids.update(fact.pid for unit in units for fact in unit.facts)
        prompt, count = prompts[number]
        return text(list(prompt), count)

    found = trial(units, prompts, expected, faults=4, kinds=("dead", "stopped"))
    assert found.hit == {"dead": 2, "stopped": 2}
    assert (found.lost, found.repeated, found.different, found.wrong_name) == (0, 0, 0, 0)
    assert len(found.named) == 4
    assert max(found.named) < 10
    assert all(unit.state == "stopped" for unit in units)
    assert pids
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
