"""Bad input ends in one clear line with where, what and what was expected, exit code 2, no traceback, nothing written.

Every case is what a person could really type or point at. Run in this process: what is asserted is what `main` prints.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from linkwise.cli import main

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
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
        (["fit"], "Missing argument"),
        (["fit", "llama-3.1-8b"], "Missing option '--on'"),
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
        ("[]", "expected `object`, got `array`"),
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
