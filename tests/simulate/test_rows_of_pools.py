"""Rows of pools of their own, from a table to constants. Expected values: the rows' own words, hand calculation."""

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.engine.step_calibrations import shipped
from linkwise.simulate.calibrate import split
from linkwise.simulate.calibrate.fit import NAMES, Space, grouped, predicted, simulated
from linkwise.simulate.calibrate.made import range_of
from linkwise.simulate.calibrate.own import calibrate
from linkwise.simulate.calibrate.rows import Given, cases_of
from linkwise.workload.results import Groups, Results, Row, read

HEAD = (
    "engine,version,model,gpu,isl,osl,concurrency,ttft_ms,tpot_ms,prefill_num_workers,prefill_tp_size,prefill_pp_size,"
    "prefill_max_num_tokens,decode_workers,decode_tp,decode_attention_dp_size,decode_moe_ep_size,decode_max_batch_size,"
    "disagg"
)
USUAL = "trtllm,1.2,llama-3.1-8b,h100,900,90,40,1000,10,2,1,1,4000,4,2,,,64,2 + 4"


def table(tmp_path: Path, *lines: str) -> Results:
    file = tmp_path / "rows.csv"
    file.write_text("\n".join((HEAD, *lines)) + "\n")
    return read(file)


def test_either_pool_is_read_by_its_columns(tmp_path: Path) -> None:
    (one,) = table(tmp_path, USUAL).rows
    assert one.prefill == Groups(workers=2, tp=1, tokens=4000)
    assert one.decode == Groups(workers=4, tp=2, seqs=64)
    wide = USUAL.replace(",4,2,,,64,", ",1,1,16,16,,")
    assert table(tmp_path, wide).rows[0].decode == Groups(workers=1, tp=1, dp_attn=16, ep=16)


def test_a_row_of_one_pool_says_so(tmp_path: Path) -> None:
    mixed = USUAL.replace("2,1,1,4000,4,2,,,64,2 + 4", ",,,,,,,,,no")
    (one,) = table(tmp_path, mixed).rows
    assert (one.prefill, one.decode) == (None, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (USUAL.replace(",4,2,,,64,", ",4,,,,64,"), "expected prefill_tp and decode_tp"),
        (USUAL.replace("2,1,1,4000,4,2", ",,,,,"), "expected prefill_tp and decode_tp"),
        (USUAL.replace(",2,1,1,4000", ",2,1,2,4000"), "field prefill_pp_size: 2, expected 1"),
        (USUAL.replace(",2,1,1,4000", ",2,0,1,4000"), "field prefill_tp_size: 0, expected 1"),
        (USUAL.replace(",2,1,1,4000", ",1e9,1,1,4000"), "field prefill_num_workers: 1e+09"),
    ],
)
def test_a_pool_that_is_not_said_is_left_out_by_field(tmp_path: Path, line: str, reason: str) -> None:
    found = table(tmp_path, line)
    assert not found.rows
    assert reason in found.left_out[0].reason


def row(**changes: object) -> Row:
    usual = {
        "engine": "trtllm", "version": "1.2", "model": "llama-3.1-8b", "gpu": "H100", "isl": 900, "osl": 90,
        "concurrency": 40, "ttft_s": 1.0, "tpot_s": 0.01, "prefill": Groups(workers=2, tokens=4000),
        "decode": Groups(workers=4, tp=2, seqs=64), "source": "rows.csv: line 2",
    }  # fmt: skip
    return Row(**(usual | changes))


def test_a_row_is_a_run_of_two_pools() -> None:
    (one,) = cases_of([row()], Given()).cases
    assert one.split is not None
    assert (one.split.replicas, one.users, one.isl, one.osl) == ((2, 4), 40, 1000, 100)
    assert (one.served.layout.tp, one.split.served.layout.tp) == (2, 1)
    assert (one.served.options.max_seqs, one.split.served.options.max_batched_tokens) == (64, 4000)
    assert range_of([one]).concurrency == (10, 10), "users a group that decodes"
    # 40 users a cycle of 1 s + 89 x 10 ms (lengths spread, 90 on average), each 0.9 s of decoding, on four groups
    assert split.told(one).rows == pytest.approx(40 / 1.89 * 0.9 / 4)
    # at 8 requests a second the rate is what the row says
    (open_,) = cases_of([row(concurrency=None, rate_per_s=8.0)], Given()).cases
    assert split.told(open_).rows == pytest.approx(8 * 0.9 / 4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ttft_s": None}, "pools of their own; expected both TTFT and TPOT"),
        ({"speculative": True, "accepted": 1.6, "drafted": 1}, "pools of their own that draft tokens"),
        ({"model": "llama-3.3-70b"}, "llama-3.3-70b as tp1 on h100-sxm"),
    ],
)
def test_a_run_that_tells_of_no_step_is_left_out(changes: dict[str, object], reason: str) -> None:
    found = cases_of([row(**changes)], Given())
    assert not found.cases
    assert reason in found.left_out[0].reason


def test_the_layer_that_made_the_rows_comes_back() -> None:
    """Steps take what the shipped constants say with layers twice as long. TTFT is next to nothing, so all users decode
    all the time."""
    base = shipped("trtllm")
    assert base is not None
    values = [base.constants[name].value if name in base.constants else 1.0 for name in NAMES]
    centre = np.log(values) + math.log(2) * np.array([name == "layer_us" for name in NAMES])
    newer = base.versions[-1]
    since, factors = {"trtllm": (newer.since, newer.capability)}, {"trtllm": newer.overheads}
    space = Space(("trtllm",), since, centre, np.ones_like(centre), factors)
    cases = []
    for users in (8, 16, 40, 80, 8, 16, 40, 80):
        (one,) = cases_of([row(concurrency=users, ttft_s=1e-4)], Given()).cases
        step = math.exp(predicted(grouped(simulated([one], space, centre), space), space, centre, 1)[0])
        cases.append(one._replace(tpot_s=step))
    found = calibrate(cases, base, source="made")
    assert found.after.tpot is not None
    assert found.after.tpot < found.before.tpot / 3
    assert found.after.ttft is None
    assert found.verdict == "better"
    assert found.calibration.spreads.ttft == base.spreads.ttft, "steps of prompts are no TTFT"
