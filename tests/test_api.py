"""The commands as Python calls: text or values in, frozen values with a good repr out."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import linkwise
from linkwise.cluster.read import load as read_cluster
from linkwise.cluster.types import Cluster
from linkwise.engine.registry import get
from linkwise.model.read import load as read_model
from linkwise.plan import types
from linkwise.plan.handoff_types import HandoffOptions

SETTINGS = {"isl": 4000, "osl": 500, "ttft": "1s", "tpot": "40ms"}


def test_fit_from_text_and_from_values_is_the_same() -> None:
    by_text = linkwise.fit("llama-3.1-8b", on="1xh100-sxm", max_model_len=8192)
    by_value = linkwise.fit(
        read_model("llama-3.1-8b"), on=read_cluster("1xh100-sxm"), engine=get("vllm"), max_model_len=8192
    )
    assert by_text == by_value
    assert isinstance(by_text, types.Fit)
    assert by_text.fits


def test_a_fit_reads_as_the_first_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from linkwise.cli import main

    monkeypatch.setattr("linkwise.cli_plan.keep", lambda *_: None)
    main(["fit", "llama-3.1-405b", "--on", "8xh100-sxm"])
    assert repr(linkwise.fit("llama-3.1-405b", on="8xh100-sxm")) + "\n" == capsys.readouterr().out


def test_a_plan_survives_its_file_and_explains_itself(tmp_path: Path) -> None:
    plan = linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", rate=3.0, **SETTINGS)
    assert isinstance(plan, linkwise.Plan)
    linkwise.save(plan, tmp_path / "plan.json")
    again = linkwise.load(tmp_path / "plan.json")
    assert again == plan
    assert repr(again) == repr(plan)
    assert "2 replicas of tp4" in repr(plan)
    for path in ("decode.all_reduce.sent_bytes", "tpot_s", "weights.rank0"):
        found = linkwise.explain(again, path)
        assert found.chain.result.value == pytest.approx(plan.figures[path], rel=1e-12)


def test_values_cannot_be_changed() -> None:
    found = linkwise.fit("llama-3.1-8b", on="1xh100-sxm")
    with pytest.raises(AttributeError):
        found.fits = False


def test_no_plan_is_a_value() -> None:
    found = linkwise.plan("llama-3.3-70b", on="4xh100-sxm", tpot="1ms")
    assert isinstance(found, linkwise.NoPlan)
    assert found.nearest.shortfall.resource == "tpot"
    assert "no plan" in repr(found)


def test_compare_takes_values_and_files(tmp_path: Path) -> None:
    a = linkwise.plan("llama-3.1-8b", on="2xh100-sxm", tp=1, pp=1)
    b = linkwise.plan("llama-3.1-8b", on="2xh100-sxm", tp=2)
    linkwise.save(b, tmp_path / "b.json")
    found = linkwise.compare(a, tmp_path / "b.json")
    assert found.names == ("a", "b.json")
    assert "weights" in repr(found)
    assert msgspec.json.encode(found)
    with pytest.raises(linkwise.InputError, match="is no plan"):
        linkwise.compare(a, linkwise.fit("llama-3.1-8b", on="1xh100-sxm"))


def test_handoff(tmp_path: Path) -> None:
    found = linkwise.handoff(
        "llama-3.3-70b", on="2x8xh100-sxm", prompt=8192, rate="20/s", prefill_tp=4, decode_tp=4, tpot="40ms"
    )
    assert found.kv_bytes == 2_684_354_560  # 8,192 tokens x 80 layers x 2 x 8 heads x 128 x 2 B
    assert found.verdict is not None
    assert len(found.verdict.terms) == 5
    change = found.verdict.disaggregated_per_s - found.verdict.mixed_per_s
    assert sum(term.per_s for term in found.verdict.terms) == pytest.approx(change)
    assert "verdict" in repr(found)
    linkwise.save(found, tmp_path / "handoff.json")
    again = linkwise.load(tmp_path / "handoff.json")
    assert again == found
    for path in found.figures:
        assert linkwise.explain(again, path).chain.result.value == pytest.approx(found.figures[path], rel=1e-12), path


def test_a_handoff_whose_decode_group_does_not_fit_has_no_verdict() -> None:
    found = linkwise.handoff("llama-3.3-70b", on="2x8xh100-sxm", prompt=8192, rate=20, prefill_tp=4, decode_tp=1)
    assert found.verdict is None
    assert any(note.startswith("no verdict: tp1 does not fit") for note in found.notes)


def test_a_handoffs_degrees_are_given_by_side() -> None:
    with pytest.raises(linkwise.InputError, match="degrees are given by side"):
        linkwise.handoff("llama-3.3-70b", on="2x8xh100-sxm", prompt=1, rate=1, prefill_tp=4, decode_tp=2, tp=4)


def test_what_is_known() -> None:
    assert "llama-3.3-70b" in {entry.name for entry in linkwise.models()}
    assert "h100-sxm" in {device.name for device in linkwise.hardware()}
    assert {"vllm", "sglang", "trtllm", "linkwise"} <= {engine.name for engine in linkwise.engines()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tpp": 4}, "unknown setting 'tpp'"),
        ({"tp": "4"}, "field tp: expected `int`, got `str`"),
        ({"rate": "fast"}, "'fast' is not a quantity"),
        ({"ttft": -1.0}, "a positive time"),
        ({"rate": float("nan")}, "rate"),
    ],
)
def test_a_wrong_argument_is_an_input_error(settings: dict[str, object], message: str) -> None:
    with pytest.raises(linkwise.InputError, match=message):
        linkwise.fit("llama-3.1-8b", on="1xh100-sxm", **settings)


def test_weights_of_a_resolved_model_cannot_be_imagined() -> None:
    with pytest.raises(linkwise.InputError, match="a Model is already resolved"):
        linkwise.fit(read_model("llama-3.1-8b"), on="1xh100-sxm", weights="fp8")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linkwise.plan("llama-3.1-8b", on="1xh100-sxm", engine=5), "engine: is a int; expected an engine"),
        (lambda: linkwise.fit(5, on="1xh100-sxm"), "model: is a int; expected"),
        (lambda: linkwise.fit("llama-3.1-8b", on=5), "on: is a int; expected"),
        (lambda: linkwise.plan("llama-3.1-8b", on="1xh100-sxm", from_command=5), "from_command: is a int"),
        (lambda: linkwise.explain(None, "x"), "source: is a NoneType; expected"),
        (lambda: linkwise.explain("seed:kv_transfer", 5), "path: is a int"),
        (lambda: linkwise.load(5), "path: is a int; expected a path"),
        (lambda: linkwise.load(b"x"), "path: is a bytes; expected a path"),
        (lambda: linkwise.save(linkwise.fit("llama-3.1-8b", on="1xh100-sxm"), None), "path: is a NoneType"),
        (lambda: linkwise.save(5, "x.json"), "value: is a int; expected a plan"),
        (lambda: linkwise.compare(5, 6), "is no plan"),
        (lambda: _handoff(prefill_tp=2.0), "handoff: field prefill_tp: expected `int`, got `float`"),
        (lambda: _handoff(decode_pp="1"), "handoff: field decode_pp: expected `int`, got `str`"),
        (lambda: _handoff(prompt=True), "handoff: field prompt: expected `int`, got `bool`"),
        (lambda: _handoff(factors=5), "factors: is a int; expected HandoffOptions"),
        (lambda: _handoff(factors=HandoffOptions(connector=5)), "factors: field connector: expected `str`, got `int`"),
        (lambda: linkwise.fit("llama-3.1-8b", on=_cluster(nodes=1.0)), "on: field nodes: expected `int`, got `float`"),
    ],
)
def test_a_value_of_another_type_is_named_at_the_door(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(linkwise.InputError, match=re.escape(message)):
        call()
    assert not list(tmp_path.iterdir()), "nothing written"


def _handoff(**changes: object) -> object:
    given = {"prompt": 8192, "rate": 1.0, "prefill_tp": 4, "decode_tp": 4} | changes
    return linkwise.handoff("llama-3.3-70b", on="2x8xh100-sxm", **given)


def _cluster(**changes: object) -> Cluster:
    return msgspec.structs.replace(read_cluster("1xh100-sxm"), **changes)


def test_every_answer_is_a_file_that_comes_back_byte_for_byte(tmp_path: Path) -> None:
    answers = [
        linkwise.fit("llama-3.1-405b", on="8xh100-sxm"),
        linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", rate=3.0, **SETTINGS),
        linkwise.plan("llama-3.3-70b", on="4xh100-sxm", tpot="1ms"),
        _handoff(),
    ]
    for answer in answers:
        linkwise.save(answer, tmp_path / "a.json")
        once = (tmp_path / "a.json").read_bytes()
        again = linkwise.load(tmp_path / "a.json")
        assert again == answer
        assert type(again) is type(answer)
        linkwise.save(again, tmp_path / "a.json")
        assert (tmp_path / "a.json").read_bytes() == once


def test_there_is_nothing_to_explain_where_there_is_no_plan(tmp_path: Path) -> None:
    found = linkwise.plan("llama-3.3-70b", on="4xh100-sxm", tpot="1ms")
    assert isinstance(found, linkwise.NoPlan)
    linkwise.save(found, tmp_path / "n.json")
    with pytest.raises(linkwise.InputError, match="there is no plan to explain") as caught:
        linkwise.explain(tmp_path / "n.json", "tpot_s")
    assert found.nearest.shortfall.reason[:40] in str(caught.value)


def test_a_command_may_be_given_its_engines_version() -> None:
    command = "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4"
    found = linkwise.plan(on="4xh100-sxm", engine="vllm@0.11.0", from_command=command)
    assert (found.engine, found.engine_version) == ("vllm", "0.11.0")
    command = command.replace("vllm serve", "python -m sglang.launch_server --model-path")
    assert linkwise.plan(on="4xh100-sxm", from_command=command.replace("-tp", "--tp")).engine == "sglang"
