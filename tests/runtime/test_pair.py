"""A real prefill/decode pair: a probe goes through both sides, and counts for nobody."""

import queue
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.faults import tiny

from linkwise.core.layout import Layout
from linkwise.runtime.driver import LocalUnit, UnitSpec

WAIT_S = 200


def test_a_probe_goes_through_the_decode_side_too(tmp_path: Path) -> None:
    spec = UnitSpec(
        weights=str(tiny(tmp_path)), layout=Layout(), prefill=Layout(), dtype="float32", threads=1, timeout_s=30.0,
        kv_tokens=256, block_tokens=4, observe=True,
    )  # fmt: skip
    unit = LocalUnit("pair", spec)
    states: queue.Queue[Any] = queue.Queue()
    unit.start(lambda state, fault: states.put((state, fault)))
    try:
        assert states.get(timeout=WAIT_S) == ("starting", None)
        assert states.get(timeout=WAIT_S) == ("ready", None)
        answers: queue.Queue[bool] = queue.Queue()
        unit.probe(answers.put)
        assert answers.get(timeout=WAIT_S)
        # A step of the prefill side, the handover, a step of the decode side, whose first rank is 1.
        assert [(one.step is not None, one.first) for one in unit.observed] == [(True, 0), (False, 0), (True, 1)]
        load = unit.load
        assert (load.prompt_tokens, load.generated_tokens, load.kv_used_tokens) == (0, 0, 0)
    finally:
        unit.stop()
