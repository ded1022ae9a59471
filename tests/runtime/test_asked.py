"""What a command line asks for, and what is refused before any rank is started."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from linkwise.cli import main
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.runtime.asked import KV_TOKENS, kv_blocks, layout_of, settle

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128, "hidden_size": 32,
    "num_hidden_layers": 4, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_layouts_are_read() -> None:
    assert layout_of("tp=2, pp=2") == Layout(tp=2, pp=2)
    assert layout_of("tp=2,sequence_sharded") == Layout(tp=2, sequence_sharded=True)


@pytest.mark.parametrize("text", ["", "tp", "tp=", "tp=-1", "tp=2,tp=2", "tp=0", "xp=2", "tp=٢", "tp=2,dcp=3"])
def test_layouts_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        layout_of(text)


def test_sizes_are_settled(folder: Path) -> None:
    asked = settle(folder, layout=Layout(tp=2, cp=2), kv_tokens=100)
    assert (asked.spec.ranks, asked.spec.kv_tokens, asked.notes) == (4, 100, ())
    assert kv_blocks(asked.spec, asked.spec.layout) == 1 + 4  # 16 entries of two ranks are a block
    assert settle(folder).spec.kv_tokens == KV_TOKENS


def test_kv_is_capped_by_free_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linkwise.runtime.asked._free_bytes", lambda: 4 * 100 * 1024)
    monkeypatch.setattr("os.path.exists", lambda path: False)
    asked = settle(folder, layout=Layout(pp=2))
    # 512 B a token: 4 layers, keys and values of 2 heads of 8 in float32; 200 tokens are 12 blocks of 16.
    assert asked.spec.kv_tokens == 200 // 16 * 16
    assert "quarter" in asked.notes[0]


@pytest.mark.parametrize(
    "given",
    [
        {"layout": Layout(tp=3)},
        {"layout": Layout(pp=8)},
        {"layout": Layout(tp=2, cp=2, sequence_sharded=True)},
        {"dtype": "int8"},
        {"timeout_s": 0.1},
        {"backend": "mpi"},
        {"layout": Layout(dp_attn=300)},
    ],
)
def test_what_no_rank_could_run_is_refused(folder: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        settle(folder, **given)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["run", *words])
    return code, capsys.readouterr().err


def test_the_command_says_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = ["--weights", str(folder)]
    assert run(capsys, "--prompt", "x")[0] == 2
    assert run(capsys, *weights)[0] == 2
    code, said = run(capsys, *weights, "--prompt", "x", "--layout", "tp=3")
    assert code == 2 and "tp 3" in said
    code, said = run(capsys, "plan.json", *weights, "--prompt", "x", "--layout", "tp=2")
    assert code == 2 and "one of the two" in said


def test_a_plan_for_another_model_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "plan.json")
    assert main(["plan", "llama-3.1-8b", "--on", "1xh100-sxm", "--isl", "100", "--osl", "10", "-o", path]) == 0
    code, said = run(capsys, path, "--weights", str(folder), "--prompt", "x")
    assert code == 2 and "another model" in said


def test_uneven_stages_of_pools_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(InputError, match="stages of 1, 3 layers in groups that hand over") as error:
        settle(folder, layout=Layout(pp=2), prefill=Layout(pp=2), layers=(1, 3))
    assert error.value.where == "layers"
    assert settle(folder, layout=Layout(pp=2), layers=(1, 3)).spec.layers == (1, 3)
