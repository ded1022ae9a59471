"""Bad input ends in one clear line with where, what and what was expected, exit code 2, no traceback, nothing written.

Every case is what a person could really type or point at. Run in this process: what is asserted is what `main` prints.
"""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.small import LLAMA

import linkwise
from linkwise.cli import main
from linkwise.core.errors import InputError

Run = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line that must be refused; returns its one line."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        code = main([str(w) for w in words])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert out == ""
        assert err.startswith("linkwise: error: ")
        assert err.count("\n") == 1, "one line"
        assert "Traceback" not in err
        assert sorted(tmp_path.rglob("*")) == before, "nothing written"
        return err.removeprefix("linkwise: error: ").strip()

    return run


def _folder(path: Path, content: str | None) -> Path:
    path.mkdir(parents=True)
    if content is not None:
        (path / "config.json").write_text(content)
    return path


def _model(path: Path, **changes: object) -> Path:
    return _folder(path, json.dumps(LLAMA | changes))


@pytest.mark.parametrize("command", ["fit", "plan"])
@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        (
            ["--tp", "4", "--pp", "4"],
            "layout: pp 4 x tp 4 = 16 ranks do not pack into a node of 8 devices; expected 1, 2, 4, 8",
        ),
        (["--tp", "3"], "layout: tp 3 does not pack into a node of 8 devices; expected 1, 2, 4, 8"),
        (["--tp", "0"], "layout: tp is 0; expected 1..65536"),
        (["--pp", "-2"], "layout: pp is -2; expected 1..65536"),
        (["--tp", "4", "--dcp", "3"], "layout: no layout has tp 4, dcp 3; expected dcp that divides tp"),
    ],
)
def test_wrong_degree_products(refused: Run, command: str, degrees: list[str], message: str) -> None:
    assert refused(command, "llama-3.1-8b", "--on", "8xh100-sxm", *degrees).startswith(message)


@pytest.mark.parametrize(
    ("option", "value", "field", "expected"),
    [
        ("--utilization", "1.5", "memory_utilization is 1.5", "0.01..1.0"),
        ("--utilization", "nan", "memory_utilization is nan", "0.01..1.0"),
        ("--max-batched-tokens", "-1", "max_batched_tokens is -1", "1..10000000"),
        ("--max-seqs", "0", "max_seqs is 0", "1..1000000"),
        ("--max-model-len", "999999999999", "max_model_len is 999999999999", "1..100000000"),
        ("--block", "0", "block_tokens is 0", "1..65536"),
        ("--mtp", "65", "mtp_tokens is 65", "0..64"),
        ("--skew", "0.5", "moe_skew is 0.5", "1.0..1000.0"),
        ("--microbatches", "0", "microbatches is 0", "1..4096"),
        ("--lora", "8:99999", "lora_rank is 99999", "1..8192"),
        ("--lora", "eight", "'eight'", "adapters and their rank"),
        ("--prefix-cache-tokens", "-5", "prefix_cache_tokens is -5", "0..1000000000"),
        ("--isl", "0", "isl_tokens is 0", "1..100000000"),
        ("--osl", "-3", "osl_tokens is -3", "1..100000000"),
        ("--concurrency", "0", "concurrency is 0", "1..10000000"),
        ("--prefix-hit", "1", "prefix_hit is 1", "0 <= share < 1"),
        ("--burst", "0.5", "burst is 0.5", "1..100"),
        ("--rate", "6", "'6'", "such as 6/s or 90/min"),
        ("--rate", "-6/s", "'-6/s'", "a positive rate"),
        ("--ttft", "1", "'1'", "such as 40ms or 1s"),
        ("--tpot", "fast", "'fast'", "such as 40ms or 1s"),
        ("--kv-dtype", "fp7", "unknown dtype 'fp7'", "one of"),
        ("--weights", "fp7", "fp7", "one of"),
        ("--exchange", "shout", "'shout'", "one of all_to_all, all_to_all_node, all_gather"),
        ("--tp", "two", "'--tp'", "integer"),
        ("--engine", "vlm", "vlm", "vllm"),
        ("--engine", "vllm@newest", "newest", ""),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_field_and_range(
    refused: Run, option: str, value: str, field: str, expected: str
) -> None:
    line = refused("fit", "llama-3.1-8b", "--on", "8xh100-sxm", option, value)
    assert field in line
    assert expected in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2, 3]", "config.json: the top level is a list; expected a JSON object"),
        ('{"model_type": "llama", "hidden_size": ', "config.json: not valid JSON at line 1"),
        ("", "config.json: not valid JSON at line 1"),
        ("{}", "model_type"),
        ('{"model_type": "unheard-of"}', "'unheard-of' is not known"),
        (None, "config.json"),
    ],
    ids=["list", "truncated", "empty", "no fields", "unknown family", "no config"],
)
def test_a_config_that_is_none(refused: Run, tmp_path: Path, content: str | None, message: str) -> None:
    assert message in refused("fit", _folder(tmp_path / "m", content), "--on", "8xh100-sxm")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": -256}, "hidden_size"),
        ({"hidden_size": 10**15}, "hidden_size"),
        ({"num_hidden_layers": "four"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"vocab_size": 1e300}, "vocab_size"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_secret_experts": 8}, "num_secret_experts"),
    ],
)
def test_a_config_field_that_cannot_be_is_named(
    refused: Run, tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    assert field in refused("fit", _model(tmp_path / "m", **changes), "--on", "8xh100-sxm")


def test_a_symlink_loop(refused: Run, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", None)
    (folder / "config.json").symlink_to(folder / "other.json")
    (folder / "other.json").symlink_to(folder / "config.json")
    assert "a loop of symbolic links" in refused("fit", folder, "--on", "8xh100-sxm")


def test_a_header_that_claims_ten_gigabytes(refused: Run, tmp_path: Path) -> None:
    folder = _model(tmp_path / "m")
    with (folder / "model.safetensors").open("wb") as file:
        file.write((10 * 10**9).to_bytes(8, "little"))
        file.truncate(2**20)
    line = refused("fit", folder, "--on", "8xh100-sxm")
    assert "model.safetensors" in line
    assert "10000000000" in line.replace(",", "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../../etc/passwd", "../../etc/passwd: no such file or folder"),
        ("..", "../config.json: no such file"),
        ("meta-llama/../secret", "expected"),
        ("a/b/c", "expected"),
        ("org/..", "expected"),
        ("", "expected"),
        ("no such", "expected"),
    ],
)
def test_a_name_that_is_no_model(refused: Run, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert message in refused("fit", name, "--on", "8xh100-sxm")


CLUSTER = "schema: linkwise.cluster/1\naccelerator: h100-sxm\ndevices_per_node: 8\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLUSTER + "colour: red\n", "colour"),
        (CLUSTER + "nodes: -1\n", "nodes is -1"),
        (CLUSTER + "nodes: many\n", "nodes"),
        (CLUSTER + "nics: {count: 8, Gbps: 1.0e+30}\n", "nic"),
        (CLUSTER + "fabric: {kind: fat-tree, oversubscription: 0}\n", "oversubscription"),
        ("- a\n- b\n", "the top level is a list"),
        ("accelerator: &x h100-sxm\nname: *x\n", "aliases are not accepted"),
        ("schema: linkwise.cluster/99\n", "schema"),
    ],
)
def test_a_cluster_file_that_is_none(refused: Run, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cluster.yaml").write_text(text)
    line = refused("fit", "llama-3.1-8b", "--on", "cluster.yaml")
    assert "cluster" in line
    assert message in line


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("", "expected"),
        ("8", "expected"),
        ("0xh100-sxm", "expected"),
        ("-8xh100-sxm", "expected"),
        ("8xh900", "unknown accelerator 'h900'"),
        ("99999999999xh100-sxm", "expected"),
        ("absent.yaml", "absent.yaml: no such file"),
        ("a/b", "expected"),
    ],
)
def test_a_cluster_name_that_is_none(refused: Run, on: str, message: str) -> None:
    assert message in refused("fit", "llama-3.1-8b", "--on", on)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--on", "8xh100-sxm"], "no model"),
        (["fit", "llama-3.1-8b"], "no cluster"),
        (["fit", "llama-3.1-8b", "--on", "8xh100-sxm", "--colour", "red"], "No such option: --colour"),
        (["plan", "--on", "8xh100-sxm"], "no model"),
        (["plan", "llama-3.1-8b"], "no cluster"),
        (["plan", "--from-command", "rm -rf x", "--on", "8xh100-sxm"], "no engine is started"),
        (["explain", "absent.json", "x"], "absent.json: no such file"),
        (["explain", "fit:"], "no last fit"),
        (["explain", "plan:tpot_s", "x"], "two paths"),
        (["explain", "seed:unheard-of"], "unheard-of"),
        (["compare", "absent.json", "absent.json"], "absent.json: no such file"),
        (["sing"], "No such command 'sing'"),
    ],
)
def test_words_that_make_no_command(refused: Run, words: list[str], message: str) -> None:
    assert message in refused(*words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ("{}", "schema ''"),
        ('{"schema": "linkwise.plan/99"}', "schema 'linkwise.plan/99'"),
        ('{"schema": "linkwise.plan/1"}', "missing required field"),
        ('{"schema": "linkwise.fit/1", "fits": "yes"}', "field"),
    ],
)
def test_a_plan_file_that_is_none(refused: Run, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.json").write_text(text)
    line = refused("explain", "p.json", "tpot_s")
    assert line.startswith("p.json: ")
    assert message in line


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "llama-3.1-8b", "--on", "8xh900", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.rstrip().split("\n")[-1].startswith("linkwise: error: ")


EVIL = "x\x1b[31mRED\x07\u202e\u2066\u200b\x9b"
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _hidden(text: str) -> set[str]:
    return {c for c in text if c != "\n" and unicodedata.category(c) in HIDDEN}


def _evil_folder(tmp_path: Path) -> list[object]:
    return ["fit", _model(tmp_path / EVIL), "--on", "1xh100-sxm"]


def _evil_field(tmp_path: Path) -> list[object]:
    return ["fit", _model(tmp_path / "m", **{f"num_{EVIL}": 3}), "--on", "1xh100-sxm"]


def _evil_label(tmp_path: Path) -> list[object]:
    facts = {"name": EVIL, "label": EVIL, "memory_source": EVIL, "memory_bytes": 80 * 10**9, "nominal_GB": 80}
    facts |= {"hbm_Bps": 3e12, "flops": {"bf16": 9e14}}
    cluster = {"schema": "linkwise.cluster/1", "name": EVIL, "devices_per_node": 1, "accelerator": facts}
    (tmp_path / "k.yaml").write_text(json.dumps(cluster | {"notes": [EVIL], "source": EVIL}))
    return ["fit", "llama-3.1-8b", "--on", tmp_path / "k.yaml"]


def _evil_key(tmp_path: Path) -> list[object]:
    (tmp_path / "k.yaml").write_text(CLUSTER + json.dumps(EVIL) + ": 1\n")
    return ["fit", "llama-3.1-8b", "--on", tmp_path / "k.yaml"]


def _evil_index(tmp_path: Path) -> list[object]:
    folder = _model(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": EVIL, "b": "b"}}))
    (folder / "b").write_text("")
    return ["fit", folder, "--on", "1xh100-sxm"]


def _evil_command(tmp_path: Path) -> list[object]:
    return ["plan", "--on", "1xh100-sxm", "--from-command", f"vllm serve {EVIL} --{EVIL}"]


def _evil_plan(tmp_path: Path) -> list[object]:
    plan = linkwise.plan(str(_model(tmp_path / "m")), on="1xh100-sxm", isl=100, osl=10)
    value = json.loads(msgspec.json.encode(plan))
    value["model"]["name"], value["figures"][EVIL] = EVIL, 1
    value["engine"] = value["engine_version"] = EVIL
    (tmp_path / "p.json").write_text(json.dumps(value))
    return ["explain", tmp_path / "p.json"]


def _evil_paths(tmp_path: Path) -> list[object]:
    fit = linkwise.fit(str(_model(tmp_path / EVIL)), on="1xh100-sxm")
    linkwise.save(msgspec.structs.replace(fit, figures={**fit.figures, EVIL: 1}), tmp_path / "f.json")
    return ["explain", tmp_path / "f.json"]


@pytest.mark.parametrize("more", [[], ["--json"], ["--debug"]], ids=["screen", "json", "debug"])
@pytest.mark.parametrize(
    "words",
    [_evil_folder, _evil_field, _evil_label, _evil_key, _evil_index, _evil_command, _evil_plan, _evil_paths],
)
def test_nothing_a_terminal_would_obey_is_printed(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: Callable[[Path], list[object]],
    more: list[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    line = [*map(str, words(tmp_path)), *more]
    assert main(line) in {0, 1, 2}
    out, err = capsys.readouterr()
    assert not _hidden(out + err)
    quiet = line[0] == "fit" and "--json" in more  # a name that the value does not hold
    assert quiet or r"\x1b" in out + err or r"\u001b" in out + err, "shown, not dropped"


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "x" * 5000, "--on", "8xh100-sxm"],
        ["fit", "llama-3.1-8b", "--on", "8x" + "h" * 5000],
        ["fit", "llama-3.1-8b", "--on", "8xh100-sxm", "--lora", "8" * 5000],
        ["fit", "llama-3.1-8b", "--on", "8xh100-sxm", "--tp", "8" * 5000],
        ["fit", "llama-3.1-8b", "--on", "8xh100-sxm", "--" + "x" * 5000],
        ["explain", "y" * 5000],
    ],
)
def test_an_error_echoes_little_of_what_was_given(
    refused: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(refused(*words)) < 1000


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--engine", "vllm@"),
        ("--engine", "vllm@0"),
        ("--engine", "vllm@0.8.x"),
        ("--engine", "vllm@٠.١"),
        ("--engine", "vllm==0.8.x"),
        ("--lora", "١:٢"),
        ("--tp", "١"),
        ("--tp", "1_0"),
        ("--utilization", "0.٩"),
        ("--rate", "٦/s"),
        ("--on", "٨xh100-sxm"),
    ],
)
def test_numbers_are_ascii_and_versions_are_releases(refused: Run, option: str, value: str) -> None:
    assert (
        "expected" in (line := refused("fit", "llama-3.1-8b", "--on", "8xh100-sxm", option, value)) or "valid" in line
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "llama-3.1-8b", "--on", "8xh100-sxm", "--skew", "2"], "skew given, but llama-3.1-8b has no experts"),
        (["plan", "llama-3.1-8b", "--on", "8xh100-sxm", "--exchange", "all_gather"], "exchange given, but"),
        (
            ["plan", "--on", "8xh100-sxm", "--engine", "sglang@0.5.10", "--from-command", "vllm serve a/b"],
            "engine: sglang, but the command starts vllm",
        ),
        (["explain", "seed:", "nonsense"], "'nonsense' beside 'seed:'"),
    ],
)
def test_words_that_contradict_each_other(refused: Run, words: list[str], message: str) -> None:
    assert message in refused(*words)


def test_a_word_that_is_not_utf_8(refused: Run) -> None:
    assert refused("fit", "m\udcff", "--on", "8xh100-sxm") == r"word 2: 'm\udcff' is not UTF-8; expected text in UTF-8"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "vlm"}, "p.json: field engine: unknown engine 'vlm'"),
        ({"engine_version": "0"}, "p.json: field engine: vllm version '0'"),
        (
            {"layout": {"tp": 65536, "pp": 65536}},
            "p.json: layout: pp 65536 x cp 1 x dp_attn 1 x tp 65536 = 4294967296 ranks",
        ),
        ({"layout": {"tp": 16}}, "p.json: field replicas: 1 x (tp16) on 1 devices"),
        ({"replicas": 10**9}, "p.json: field replicas: 1000000000 x (tp1) on 1 devices"),
        ({"replicas": -1}, "p.json: field replicas: -1 x (tp1)"),
    ],
)
def test_a_plan_file_that_was_changed(refused: Run, tmp_path: Path, change: dict[str, object], message: str) -> None:
    plan = linkwise.plan(str(_model(tmp_path / "m")), on="1xh100-sxm", isl=100, osl=10)
    (tmp_path / "p.json").write_text(json.dumps(json.loads(msgspec.json.encode(plan)) | change))
    assert refused("explain", "p.json", "tpot_s").startswith(message)


def test_a_plan_file_with_a_field_given_twice(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"schema": "linkwise.plan/1", "schema": "linkwise.fit/1"}')
    assert refused("explain", "p.json") == "p.json: field 'schema' is given twice; expected each field once"


def test_an_output_that_is_a_loop_of_links(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "o.json").symlink_to(tmp_path / "o.json")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "linkwise").write_text("no folder, so that nothing is kept beside")
    with pytest.raises(InputError, match="a loop of symbolic links"):
        linkwise.save(linkwise.fit("llama-3.1-8b", on="1xh100-sxm"), "o.json")
    assert (tmp_path / "o.json").is_symlink()
