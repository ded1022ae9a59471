"""A plan whose figures are not those its own inputs give is named, and nothing is timed from it.

Expected values: the plan as it was made, before one field was changed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import linkwise as package
from linkwise.api_simulate import plan_of
from linkwise.core.errors import InputError
from linkwise.plan.agree import agree
from linkwise.plan.sound import check

File = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "p.json"
    made = package.plan(
        "llama-3.3-70b", "2x4xh100-sxm", tp=4, isl=4000, osl=500, rate="3/s", ttft="1s", tpot="40ms", pareto=False
    )
    package.save(made, path)
    return path


@pytest.mark.parametrize(
    ("model", "on", "settings"),
    [
        ("deepseek-v3", "4x8xh200-sxm", {"engine": "sglang"}),
        ("gpt-oss-120b", "8xb200", {"engine": "trtllm", "prefix_hit": 0.3, "rate": "2/s"}),
        ("nemotron-3-nano-30b-a3b", "2xh100-sxm", {"eager": True}),
        ("llama-3.1-8b", "2xl40s", {"engine": "linkwise", "tp": 2}),
        ("deepseek-v3", "2x8xh200-sxm", {"mtp": 1, "pp": 2, "kv_dtype": "fp8"}),
    ],
)
def test_plans_as_they_are_made_agree(model: str, on: str, settings: File, tmp_path: Path) -> None:
    made = package.plan(model, on, isl=2000, osl=200, **settings)
    package.save(made, tmp_path / "p.json")
    assert plan_of(tmp_path / "p.json") == made


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda f: f["model"].update(hidden=4096), "ledger.ranks[0].kv_bytes"),
        (lambda f: f["model"].update(vocab=1000), "field"),
        (lambda f: f["model"].update(layers=f["model"]["layers"][:40]), "ledger.ranks"),
        (lambda f: f["model"].update(tensors=f["model"]["tensors"][:100]), "weights"),
        (lambda f: f["cluster"]["accelerator"].update(hbm_Bps=1e12), "figures"),
        (lambda f: f["workload"].update(osl_tokens=5000), "field"),
        (lambda f: f["options"].update(max_seqs=7), "resolved.max_seqs"),
        (lambda f: f["resolved"].update(max_batched_tokens=64), "resolved.max_batched_tokens"),
        (lambda f: f["options"].update(mtp_tokens=3), "field"),
        (lambda f: f["step_calibration"]["constants"]["layer_us"].update(value=1e4), "figures"),
        (lambda f: f["chosen"]["point"].update(tpot_s=0.001), "chosen.point.tpot_s"),
        (lambda f: f["figures"].update(tpot_s=0.001), "figures.tpot_s"),
        (lambda f: f["chosen"]["point"].update(rate_per_s=9.0), "chosen.point.rate_per_s"),
        (lambda f: f["chosen"].update(max_rate_per_s=99.0), "chosen.max_rate_per_s"),
        (lambda f: f["chosen"].update(replicas=7), "chosen.replicas"),
        (lambda f: f["chosen"].update(group_size=8), "chosen.group_size"),
        (lambda f: f["decode_time"].update(step_s=0.001), "decode_time.step_s"),
        (lambda f: f["prefill_time"].update(comm_s=0.5), "prefill_time.comm_s"),
        (lambda f: f["decode_time"]["parts"].update(mlp=0.5), "decode_time.parts"),
        (lambda f: f["step_calibration"]["spreads"]["tpot_outside"].update(low=0.0, high=0.0), "trust.tpot.low_s"),
        (lambda f: f["trust"]["ttft"].update(high_s=0.5), "trust.ttft.high_s"),
    ],
)
def test_a_changed_field_is_named(saved: Path, tmp_path: Path, change: Callable[[File], None], field: str) -> None:
    file = json.loads(saved.read_text())
    change(file)
    (tmp_path / "edited.json").write_text(json.dumps(file))
    with pytest.raises(InputError, match=r"edited\.json: field") as refused:
        plan_of(tmp_path / "edited.json")
    assert field in str(refused.value)


def test_a_plan_without_its_constants_is_refused_wherever_it_is_read(saved: Path, tmp_path: Path) -> None:
    file = json.loads(saved.read_text())
    file["step_calibration"] = None
    (tmp_path / "edited.json").write_text(json.dumps(file))
    with pytest.raises(InputError, match="field step_calibration: none; expected 'vllm on published points"):
        package.load(tmp_path / "edited.json")
    made = package.load(saved)
    with pytest.raises(InputError, match="field step_calibration: mine; expected 'vllm on published"):
        check(replace(made, step_calibration=replace(made.step_calibration, label="mine")), "p.json")


def test_a_degree_that_was_edited_is_told_from_the_number_of_replicas(saved: Path) -> None:
    made = package.load(saved)
    with pytest.raises(InputError, match=r"a row of 4 devices; expected 3 in each, as many as the ranks of \(tp3\)"):
        check(replace(made, layout=replace(made.layout, tp=3)), "p.json")
    with pytest.raises(InputError, match="rank_grid: 1 rows; expected 2 rows, one a replica"):
        check(replace(made, rank_grid=made.rank_grid[:1]), "p.json")


def test_the_choice_of_a_front_is_one_of_its_offers(saved: Path, tmp_path: Path) -> None:
    file = json.loads(saved.read_text())
    file["frontier"] = {"offers": [], "choice": 99, "tried": 1, "devices": 8}
    (tmp_path / "edited.json").write_text(json.dumps(file))
    with pytest.raises(InputError, match=r"field frontier.choice: 99; expected an index into frontier.offers"):
        package.load(tmp_path / "edited.json")


def test_a_plan_of_another_version_is_let_pass(saved: Path) -> None:
    made = package.load(saved)
    agree(replace(made, version="0.0.1", figures={**made.figures, "tpot_s": 1.0}), "p.json")
