"""What dtype an engine holds a model in. Expected values: the engines' sources, which the facts name, and arithmetic.

vLLM: config/model.py _resolve_auto_dtype, platforms/cuda.py supported_dtypes. SGLang: configs/model_config.py
_get_and_verify_dtype, model_runner.py. TensorRT-LLM: _torch/model_config.py torch_dtype.
"""

import json
import struct
from pathlib import Path

import pytest
from msgspec.structs import replace

import linkwise
from linkwise.api_task import task_of
from linkwise.cluster import presets
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.held import held
from linkwise.model.read import from_config, load
from linkwise.model.types import Model
from linkwise.plan.step import kv_dtype_of

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
# 2 x 256 x 64 embedding and head; a layer: q, o 64x64, k, v 32x64, 3 x 128x64, two norms; one norm at the end.
ELEMENTS = 2 * 256 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64 + 2 * 64) + 64
H100 = presets.shorthand("1xh100-sxm").accelerator


def model(dtype: str | None, **fields: object) -> Model:
    return from_config({**CONFIG, "torch_dtype": dtype, **fields}, name="tiny", source="test")


def folder(at: Path, stored: str, dtype: str | None = "bfloat16", **stored_as: str) -> Path:
    """A checkpoint of CONFIG with weights stored as `stored`, those whose name ends as a key says as its value."""
    config = {k: v for k, v in {**CONFIG, "torch_dtype": dtype}.items() if v is not None}
    at.mkdir()
    (at / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for tensor in model("bfloat16").tensors:
        code = next((c for suffix, c in stored_as.items() if tensor.name.endswith(suffix)), stored)
        size = tensor.parameters * (4 if code == "F32" else 2)
        header[f"{tensor.name}.weight"] = {"dtype": code, "shape": tensor.shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    (at / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return at


@pytest.mark.parametrize(
    ("engine", "family", "stored", "capability", "runs"),
    [
        ("vllm", "llama", "float32", 90, "bfloat16"),
        ("vllm", "llama", "float16", 90, "float16"),
        ("vllm", "llama", "bfloat16", 90, "bfloat16"),
        ("vllm", "llama", "float32", 75, "float16"),
        ("vllm", "llama", "bfloat16", 70, "float16"),
        ("vllm", "gemma3_text", "float16", 90, "bfloat16"),
        ("vllm==0.8", "llama", "float32", 90, "float16"),
        ("vllm==0.8", "gemma2", "float32", 90, "bfloat16"),
        ("sglang", "llama", "float32", 90, "float16"),
        ("sglang", "gemma3_text", "float32", 90, "bfloat16"),
        ("sglang", "gemma3_text", "float16", 90, "float16"),
        ("sglang", "llama", "bfloat16", 75, "float16"),
        ("trtllm", "llama", "float32", 90, "float32"),
        ("linkwise", "llama", "float32", 90, "float32"),
        ("textbook", "llama", "float32", 90, "float32"),
    ],
)
def test_each_engines_own_choice(engine: str, family: str, stored: str, capability: int, runs: str) -> None:
    device = replace(H100, capability=capability)
    by = registry.get(engine)
    found = by.holds(replace(model(stored), family=family), Options(), device)
    assert found.dtype == runs
    assert found.weight_bytes == ELEMENTS * (4 if runs == "float32" else 2)


def test_files_in_float32_are_loaded_into_the_configs_dtype(tmp_path: Path) -> None:
    stored = load(str(folder(tmp_path / "m", "F32")))
    assert stored.weight_bytes == 4 * ELEMENTS
    for engine in ("vllm", "sglang", "trtllm", "linkwise"):
        found = registry.get(engine).holds(stored, Options(), H100)
        assert (found.dtype, found.weight_bytes) == ("bfloat16", 2 * ELEMENTS)
        assert any("as stored" in note for note in found.notes)


def test_a_config_that_names_no_dtype_has_its_files_most_common_one(tmp_path: Path) -> None:
    stored = load(str(folder(tmp_path / "m", "F16", None, norm="F32")))
    assert stored.dtype == "float16"
    assert any("names no torch_dtype" in note for note in stored.notes)
    stored = load(str(folder(tmp_path / "n", "F32", None)))
    assert registry.get("linkwise").holds(stored, Options()).weight_bytes == 4 * ELEMENTS
    assert registry.get("vllm").holds(stored, Options()).weight_bytes == 2 * ELEMENTS


def test_weights_of_a_dtype_of_their_own_keep_it() -> None:
    """A router's correction stays float32 (vLLM deepseek_v2.py: e_score_correction_bias)."""
    entry = load("deepseek-v3")
    correction = [t for t in held(entry, "float16").tensors if t.role == "moe.router.correction"]
    assert {t.dtype for t in correction} == {"float32"}
    fp8 = [t for t in entry.tensors if t.dtype == "float8_e4m3"]
    assert fp8 == [t for t in held(entry, "float16").tensors if t.dtype == "float8_e4m3"]
    norm = next(t for t in held(entry, "float32").tensors if t.role == "norm.final")
    assert (norm.dtype, norm.bytes) == ("float32", 4 * 7168)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_dtype_chosen_is_planned_printed_and_read_back(engine: str, tmp_path: Path) -> None:
    at = str(folder(tmp_path / "m", "F32", "float32"))
    by = registry.get(engine)
    words = by.command(at, Layout(), Options(dtype="float32"))
    assert words[words.index("--dtype") + 1] == "float32"
    today = registry.parse_command(words)
    assert today.options.dtype == "float32"
    fits = linkwise.fit(on="1xh100-sxm", from_command=" ".join(words))
    assert fits.model.dtype == "float32" and fits.model.weight_bytes == 4 * ELEMENTS
    assert any("bfloat16 rate" in note for note in fits.notes)
    assert kv_dtype_of(fits.model, fits.options) == "float32"  # "auto" is the model's own
    plan = linkwise.plan(at, "1xh100-sxm", engine=engine, dtype="float32")
    assert isinstance(plan, linkwise.Plan)
    assert "--dtype float32" in " ".join(plan.command)
    assert plan.model.weight_bytes == 4 * ELEMENTS


def test_short_words_for_a_dtype_are_read_and_others_refused() -> None:
    for word, dtype in (("half", "float16"), ("float", "float32"), ("auto", None), ("bfloat16", "bfloat16")):
        assert registry.parse_command(f"vllm serve m --dtype {word}").options.dtype == dtype
    with pytest.raises(InputError, match="--dtype fp8"):
        registry.parse_command("vllm serve m --dtype fp8")


def test_what_an_engine_does_not_run_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="the checkpoint's own"):
        registry.get("trtllm").holds(model("float32"), Options(dtype="bfloat16"))
    with pytest.raises(InputError, match="one of bfloat16, float16, float32"):
        registry.get("vllm").holds(model("float32"), Options(dtype="float8_e4m3"))


def test_a_what_if_of_plain_weights_is_what_the_engine_runs() -> None:
    with pytest.raises(InputError, match="bfloat16, which it runs"):
        task_of("llama-3.1-8b", "1xh100-sxm", "vllm", {"weights": "float32"})
    task = task_of("llama-3.1-8b", "1xh100-sxm", "vllm", {"weights": "float32", "dtype": "float32"})
    assert {t.dtype for t in task.model.tensors} == {"float32"}


def test_held_twice_is_held_once() -> None:
    one = model("bfloat16")
    assert held(one, "bfloat16") is one
    assert held(held(one, "float32"), "bfloat16") == one


def test_a_handoff_moves_kv_in_the_dtype_that_runs(tmp_path: Path) -> None:
    """A token's keys and values: 2 layers x 2 x 2 heads x 16, in 2 bytes of bfloat16, or 4 where float32 is chosen."""
    at = folder(tmp_path / "m", "F32", "float32")
    for chosen, size in (({}, 2), ({"dtype": "float32"}, 4)):
        found = linkwise.handoff(at, "2xh100-sxm", prompt=1024, prefill_tp=1, decode_tp=1, rate="1/s", **chosen)
        assert found.kv_bytes == 1024 * 2 * 2 * 2 * 16 * size


def test_a_plan_started_under_another_engine_is_held_as_that_one_does(tmp_path: Path) -> None:
    """vLLM takes float32 down, TensorRT-LLM does not: what a plan keeps of the model says both."""
    stored = load(str(folder(tmp_path / "m", "F32", "float32")))
    first = registry.get("vllm").holds(stored, Options(), H100)
    assert (first.dtype, first.config_dtype) == ("bfloat16", "float32")
    again = registry.get("trtllm").holds(first, Options(), H100)
    assert (again.dtype, again.config_dtype, again.weight_bytes) == ("float32", "", 4 * ELEMENTS)
    assert registry.get("sglang").holds(first, Options(), H100).dtype == "float16"
    plan = linkwise.plan(str(tmp_path / "m"), "1xh100-sxm")
    assert isinstance(plan, linkwise.Plan)
    other = linkwise.launch(plan, engine="trtllm")
    less = next(line for line in other.differs if line.startswith("KV tokens"))
    there, planned = (int(word) for word in less.replace(",", "").split() if word.isdigit())
    assert there < 0.6 * planned  # each token takes twice the bytes
