"""What rows of results say wins over what the user says of all; what nobody says is no evidence.

Expected values: the rows themselves, the words of docs/calibrate.md.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("numba")

from linkwise.cluster import presets
from linkwise.core.errors import InputError
from linkwise.engine.step_calibrations import shipped
from linkwise.plan.interval import outside
from linkwise.simulate.calibrate.made import range_of
from linkwise.simulate.calibrate.own import calibrate
from linkwise.simulate.calibrate.rows import Given, cases_of
from linkwise.simulate.calibrate.steps import run_of
from linkwise.workload.results import Row, read

HEAD = "engine,engine_version,model,gpu,tp,isl,osl,concurrency,tpot_ms"


def row(**changes: object) -> Row:
    usual = {
        "engine": "vllm", "version": "0.18", "model": "llama-3.1-8b", "gpu": "NVIDIA H100 SXM", "tp": 1, "isl": 900,
        "osl": 90, "concurrency": 4, "ttft_s": 0.1, "tpot_s": 0.01, "source": "file: line 2",
    }  # fmt: skip
    return Row(**(usual | changes))


def left(given: Given, **changes: object) -> str:
    """Why a row is left out; "" = it is not."""
    found = cases_of([row(**changes)], given)
    return found.left_out[0].reason if found.left_out else ""


@pytest.mark.parametrize(
    ("version", "given", "reason"),
    [
        ("0.18", "vllm==0.11", "field version: 0.18; expected 0.11, as --engine says"),
        ("0.11.2", "vllm==0.11", ""),
        ("v0.11.0rc1", "vllm==0.11", ""),
        ("0.11.2", "vllm==0.11.0", "field version: 0.11.2; expected 0.11.0, as --engine says"),
        ("0.18", "vllm", ""),
        ("main-2f3a", "vllm==0.11", ""),  # a commit says no release: the user's holds
    ],
)
def test_a_rows_own_version_is_never_replaced(version: str, given: str, reason: str) -> None:
    assert left(Given(engine=given), version=version) == reason


def test_the_version_of_a_run_is_the_rows_then_the_users() -> None:
    rows = [row(), row(version=None), row(version="nightly")]
    found = cases_of(rows, Given(engine="vllm==0.18")).cases
    assert [(c.served.engine.version, c.version_said) for c in found] == [("0.18", True)] * 3
    own = cases_of([row(version="0.11.2"), row(version=None)], Given()).cases
    assert [(c.served.engine.version == "0.11.2", c.version_said) for c in own] == [(True, True), (False, False)]


def test_a_version_nobody_says_extends_no_range() -> None:
    said, unsaid = cases_of([row(version="0.11"), row(version=None)], Given()).cases
    assert range_of([said, unsaid]).versions == ("0.11",)
    assert range_of([unsaid]).versions == ()
    base = shipped("vllm")
    assert base is not None
    usual = run_of(unsaid)
    fitted = calibrate([unsaid._replace(tpot_s=usual.tpot_s, ttft_s=usual.ttft_s)], base, source="made")
    assert fitted.explained == 1
    assert fitted.calibration.range.versions == base.range.versions


def test_a_rows_model_tp_and_gpu_are_never_replaced() -> None:
    asked = Given(model="llama-3.3-70b", tp=4)
    other = left(asked, model="meta-llama/Llama-3.1-8B-Instruct", tp=4)
    assert other == "field model: meta-llama/Llama-3.1-8B-Instruct; expected llama-3.3-70b, as --model says"
    assert left(asked, model="meta-llama/Llama-3.3-70B-Instruct", tp=4) == ""
    assert left(asked, model="our-own-finetune", tp=4) == "", "the user says what that is"
    assert left(Given(tp=2), tp=4, gpus=4) == "field tp: 4; expected 2, as --tp says"
    assert left(Given(tp=4, cluster=presets.shorthand("4xh100-sxm")), tp=4) == ""
    h100 = Given(cluster=presets.shorthand("1xh100-sxm"))
    assert left(h100, gpu="H200") == "field gpu: H200; expected h100-sxm, as --on says"
    assert left(h100, gpu="h100") == ""
    assert left(h100, gpu="our second rack") == "", "the user says what that is"


def test_one_device_is_tp_1() -> None:
    (one,) = cases_of([row(tp=None, gpu=None)], Given(cluster=presets.shorthand("1xh100-sxm"))).cases
    assert one.served.layout.tp == 1
    assert "no tp" in left(Given(cluster=presets.shorthand("2xh100-sxm")), tp=None, gpu=None)


def test_the_first_command_of_the_page_takes_a_tools_file(tmp_path: Path) -> None:
    # `vllm bench serve --save-result` without --metadata: neither engine, nor GPU, nor layout (docs/results.md).
    saved = {
        "date": "20261130-120000", "backend": "openai-chat", "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": 40, "completed": 40, "total_input_tokens": 36_000, "total_output_tokens": 3_600,
        "max_concurrency": 4, "request_rate": "inf", "mean_ttft_ms": 60.0, "mean_tpot_ms": 8.0,
    }  # fmt: skip
    file = tmp_path / "run.json"
    file.write_text(json.dumps(saved))
    page = Path(__file__).parents[2] / "docs" / "calibrate.md"
    words = next(line for line in page.read_text().splitlines() if line.startswith("linkwise calibrate")).split()
    said = {name: words[words.index(name) + 1] for name in ("--engine", "--model", "--on")}
    assert "--tp" not in words
    given = Given(engine=said["--engine"], model=said["--model"], cluster=presets.shorthand(said["--on"]))
    assert not cases_of(read(file).rows, given).left_out


@pytest.mark.parametrize("name", ["guidellm", "aiperf"])
def test_a_tools_own_version_is_not_the_engines(name: str, tmp_path: Path) -> None:
    # GuideLLM: metadata.version is the report's schema (src/guidellm/benchmark/schemas); AIPerf: the export's.
    figure = {"mean": 8.0, "median": 8.0, "std_dev": 0.0, "unit": "ms", "avg": 8.0, "std": 0.0}
    whole = {"successful": figure}
    files = {
        "guidellm": {
            "metadata": {"version": 1, "guidellm_version": "0.5.3"}, "args": {"model": "llama"},
            "benchmarks": [{
                "config": {"strategy": {"type_": "concurrent", "streams": 4}},
                "metrics": {
                    "time_to_first_token_ms": whole, "inter_token_latency_ms": whole, "prompt_token_count": whole,
                    "output_token_count": whole, "request_totals": {"successful": 8},
                },
            }],
        },
        "aiperf": {
            "version": "1.0", "input_config": {"loadgen": {"concurrency": 4}}, "time_to_first_token": figure,
            "inter_token_latency": figure, "request_count": figure, "input_sequence_length": figure,
            "output_sequence_length": figure,
        },
    }  # fmt: skip
    file = tmp_path / "run.json"
    file.write_text(json.dumps(files[name]))
    (one,) = read(file).rows
    assert one.version is None


def test_the_label_extrapolated_stays_where_no_row_says_a_version(tmp_path: Path) -> None:
    from linkwise.api_calibrate import fitted
    from linkwise.engine import registry
    from linkwise.model.read import load
    from linkwise.workload.types import Workload

    table = tmp_path / "results.csv"
    table.write_text(HEAD + "\n" + "vllm,,llama-3.1-8b,h100,1,1000,100,4,9\n" * 2)
    made = fitted(table)[0].calibration
    engine, load_ = registry.get("vllm", "0.1"), Workload(isl_tokens=1000, osl_tokens=100)
    words = outside(made, load("llama-3.1-8b"), presets.shorthand("1xh100-sxm"), engine, load_, 4)
    assert any("vllm 0.1" in one for one in words)
    with pytest.raises(InputError, match=r"line 2.*field version: 0\.18; expected 0\.11"):
        table.write_text(HEAD + "\nvllm,0.18,llama-3.1-8b,h100,1,1000,100,4,9\n")
        fitted(table, engine="vllm==0.11")


def test_every_row_left_out_is_named(tmp_path: Path) -> None:
    from linkwise.api_calibrate import fitted
    from linkwise.core.schema import encode_json
    from linkwise.report.calibrate import screen

    # Lines 2 and 3 can be used; 4 to 12 have no length of answer.
    table = tmp_path / "results.csv"
    used, not_used = "vllm,,llama-3.1-8b,h100,1,1000,100,4,9\n", "vllm,,llama-3.1-8b,h100,1,1000,,4,9\n"
    table.write_text(HEAD + "\n" + 2 * used + 9 * not_used)
    outcome, left_out = fitted(table)
    lines = [f"line {number}" for number in range(4, 13)]
    assert [one["where"].rpartition(": ")[2] for one in json.loads(encode_json(outcome))["rows_not_used"]] == lines
    first = [line for line in screen(outcome, left_out) if isinstance(line, str) and line.startswith("left out")]
    assert first[-1] == "left out   4 more rows; --all names them"
    every = screen(outcome, left_out, every=True)
    said = [line for line in every if isinstance(line, str) and line.startswith("left out")]
    assert all(f"{line}:" in one for line, one in zip(lines, said, strict=True))
