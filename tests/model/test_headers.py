"""Exact bytes from safetensors headers, and files that lie about themselves."""

import json
import os
import struct
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from linkwise.core.errors import InputError
from linkwise.model import headers
from linkwise.model.read import load
from linkwise.model.types import Tensor

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
BITS = {"BF16": 16, "F32": 32, "F8_E4M3": 8, "U8": 8}


def write(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """A safetensors file of zeros, laid out as the format's specification says."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (code, shape) in tensors.items():
        size = prod(shape) * BITS[code] // 8
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(position))


def checkpoint(experts: int = 4) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The weights of CONFIG in FP8, one block scale each."""
    result: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (64, 32)),
        "lm_head.weight": ("BF16", (64, 32)),
        "model.norm.weight": ("BF16", (32,)),
    }
    layer = "model.layers.0."
    for name, size in (("input_layernorm", 32), ("post_attention_layernorm", 32)):
        result[f"{layer}{name}.weight"] = ("BF16", (size,))
    for name in ("q_norm", "k_norm"):
        result[f"{layer}self_attn.{name}.weight"] = ("BF16", (8,))
    linear = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32)}
    linear |= {"self_attn.o_proj": (32, 32)}
    for index in range(experts):
        for name, shape in (("gate_proj", (16, 32)), ("up_proj", (16, 32)), ("down_proj", (32, 16))):
            linear[f"mlp.experts.{index}.{name}"] = shape
    for name, shape in linear.items():
        result[f"{layer}{name}.weight"] = ("F8_E4M3", shape)
        result[f"{layer}{name}.weight_scale_inv"] = ("F32", (1, 1))
    result[f"{layer}mlp.gate.weight"] = ("BF16", (4, 32))
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_bytes_equal_the_files(folder: Path) -> None:
    weights = checkpoint()
    write(folder / "model.safetensors", weights)
    model = load(str(folder))
    assert model.exact_bytes
    assert model.weight_bytes == sum(prod(s) * BITS[c] // 8 for c, s in weights.values())
    (up,) = [t for t in model.tensors if t.role == "moe.experts.up"]
    assert (up.bytes, up.scale_bytes, up.dtype, up.count) == (4 * 16 * 32, 4 * 4, "float8_e4m3", 4)


def test_the_config_alone_gives_the_same_bytes(folder: Path) -> None:
    by_config = load(str(folder))
    write(folder / "model.safetensors", checkpoint())
    by_files = load(str(folder))
    assert not by_config.exact_bytes
    assert {t.name: (t.bytes, t.scale_bytes) for t in by_config.tensors} == {
        t.name: (t.bytes, t.scale_bytes) for t in by_files.tensors
    }


def test_what_the_config_does_not_know_is_kept_and_noted(folder: Path) -> None:
    write(folder / "model.safetensors", checkpoint() | {"model.rotary.inv_freq": ("F32", (4,))})
    model = load(str(folder))
    (extra,) = [t for t in model.tensors if t.role == "other"]
    assert extra.bytes == 16
    assert any("no known role" in note for note in model.notes)


def test_config_and_checkpoint_that_disagree_are_refused(folder: Path) -> None:
    write(folder / "model.safetensors", checkpoint(experts=3))
    with pytest.raises(InputError, match="1536 elements in the checkpoint and 2048 by the config"):
        load(str(folder))
    write(folder / "model.safetensors", {"model.norm.weight": ("BF16", (32,))})
    with pytest.raises(InputError, match="lacks .* weights its config calls for"):
        load(str(folder))


def test_shards_of_an_index_must_all_be_there(folder: Path) -> None:
    items = list(checkpoint().items())
    write(folder / "a.safetensors", dict(items[:9]))
    index = {name: "a.safetensors" if i < 9 else "b.safetensors" for i, (name, _) in enumerate(items)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(InputError, match=r"1 of 2 weight files are missing, first b\.safetensors"):
        load(str(folder))
    write(folder / "b.safetensors", dict(items[9:]))
    assert load(str(folder)).exact_bytes


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "..", ""])
def test_an_index_may_only_name_files_beside_it(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InputError, match="weight_map"):
        load(str(folder))


def test_gate_and_up_stored_as_one(tmp_path: Path) -> None:
    """gpt-oss fuses gate and up of all experts: blocks of 4-bit pairs, a scale byte per 32, bfloat16 biases."""
    config = CONFIG | {"model_type": "gpt_oss", "intermediate_size": 32, "num_local_experts": 4, "sliding_window": 8}
    config |= {"quantization_config": {"quant_method": "mxfp4"}, "num_experts": None, "moe_intermediate_size": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    by_config = load(str(tmp_path))
    weights = {
        f"{t.name}{'' if t.name.endswith(('.bias', '.sinks')) else '.weight'}": ("BF16", t.shape)
        for t in by_config.tensors
        if not t.is_expert
    }
    experts = "model.layers.0.mlp.experts."
    for name, rows in (("gate_up_proj", 64), ("down_proj", 32)):
        weights[f"{experts}{name}_blocks"] = ("U8", (4, rows, 1, 16))
        weights[f"{experts}{name}_scales"] = ("U8", (4, rows, 1))
        weights[f"{experts}{name}_bias"] = ("BF16", (4, rows))
    write(tmp_path / "model.safetensors", weights)
    by_files = load(str(tmp_path))
    assert by_files.exact_bytes
    assert by_files.weight_bytes == sum(prod(s) * BITS[c] // 8 for c, s in weights.values())
    assert by_files.tensors == by_config.tensors


def raw(header: bytes, data: int = 0, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(data)


def entry(**changes: Any) -> bytes:
    return json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01\x02", "shorter than a safetensors header"),
        (raw(b"{}", length=10 * 10**9), "claims a header of 10000000000 bytes"),
        (raw(b"{}", length=2**63), "claims a header"),
        (raw(b"[]"), "the header is no object"),
        (raw(b"{not json"), "not valid JSON"),
        (raw(b"\xff\xfe"), "not valid JSON"),
        (raw(b"[" * 50_000), "not valid JSON"),
        (raw(entry(), 4), "lies at 0..8 of 4 data bytes"),
        (raw(entry(), 9), "end at 8 of 9"),
        (raw(entry(shape=[3]), 8), "do not hold shape"),
        (raw(entry(shape=[10**30]), 8), "malformed shape.*at most 281474976710656"),
        (raw(entry(shape=[-2]), 8), "malformed"),
        (raw(entry(shape=[True, 2]), 8), "malformed"),
        (raw(entry(data_offsets=[8, 0]), 8), "lies at 8..0"),
        (raw(entry(dtype="F7"), 8), "dtype 'F7'"),
        (raw(entry(dtype=["F32"]), 8), "dtype"),
        (raw(b'{"w": 3}'), "is no object"),
    ],
)
def test_lying_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        headers.read_header(path)


def test_tensors_must_tile_the_data(tmp_path: Path) -> None:
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw(json.dumps({"a": one, "b": one}).encode(), 8))
    with pytest.raises(InputError, match="overlap or leave a hole"):
        headers.read_header(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(("make", "message"), [(_loop, "loop of symbolic links"), (_fifo, "not a regular file")])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_loops_and_pipes_are_refused(tmp_path: Path, make: Callable[[Path], None], message: str, name: str) -> None:
    if name != "config.json":
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    make(tmp_path / name)
    with pytest.raises(InputError, match=message):
        load(str(tmp_path))


def test_a_folder_that_is_a_loop_is_refused(tmp_path: Path) -> None:
    _loop(tmp_path / "model")
    with pytest.raises(InputError, match="loop of symbolic links"):
        load(str(tmp_path / "model"))


def _with(name: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    weights = checkpoint()
    assert prod(weights[name][1]) == prod(shape), "as many elements: only the shape differs"
    return weights | {name: (weights[name][0], shape)}


@pytest.mark.parametrize(
    ("name", "shape", "own"),
    [
        ("model.layers.0.mlp.experts.2.down_proj.weight", (16, 32), r"\[16, 32\].*\[32, 16\] by the config"),
        ("model.layers.0.self_attn.k_proj.weight", (512,), r"\[512\].*\[16, 32\] by the config"),
        ("model.embed_tokens.weight", (32, 64), r"\[32, 64\].*\[64, 32\] by the config"),
        ("model.norm.weight", (4, 8), r"\[4, 8\].*\[32\] by the config"),
    ],
)
def test_shapes_are_the_configs(folder: Path, name: str, shape: tuple[int, ...], own: str) -> None:
    write(folder / "model.safetensors", _with(name, shape))
    with pytest.raises(InputError, match=own):
        load(str(folder))


@pytest.mark.parametrize("stored", [(4, 32, 32), (4, 32, 16 * 2)])
def test_experts_in_one_tensor_may_keep_inputs_first(folder: Path, stored: tuple[int, ...]) -> None:
    weights = {n: v for n, v in checkpoint().items() if ".experts." not in n}
    layer = "model.layers.0.mlp.experts."
    # Llama 4's form: all experts, inputs, then gate and up side by side; down by inputs too.
    weights |= {f"{layer}gate_up_proj": ("BF16", stored), f"{layer}down_proj": ("BF16", (4, 16, 32))}
    write(folder / "model.safetensors", weights)
    assert load(str(folder)).exact_bytes
    weights[f"{layer}down_proj"] = ("BF16", (4, 8, 64))
    write(folder / "model.safetensors", weights)
    with pytest.raises(InputError, match=r"down_proj has shape \[4, 8, 64\]"):
        load(str(folder))


@pytest.mark.parametrize(
    ("shape", "fits"), [((16, 4), True), ((2, 32), True), ((32, 2), True), ((8, 8), False), ((64,), False)]
)
def test_packed_words_lie_along_one_side(shape: tuple[int, ...], fits: bool) -> None:
    """int4 [16, 32] in int32 words of eight: [16, 4] (compressed-tensors), [2, 32] (outputs), [32, 2] (AWQ)."""
    own = Tensor(name="w", role="attn.k", layer=0, shape=(16, 32), dtype="int4", bytes=256)
    found = headers.Stored(bytes=256, elements=64, shapes={(shape, 32)})
    if fits:
        assert headers.exact((own,), {"w": found}, "folder")[0][0].bytes == 256
    else:
        with pytest.raises(InputError, match="w has shape"):
            headers.exact((own,), {"w": found}, "folder")


def test_an_index_names_what_its_files_hold(folder: Path) -> None:
    write(folder / "a.safetensors", checkpoint())
    names = {f"of.another.model.{i}": "a.safetensors" for i in range(3)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(
        InputError, match=r"names tensor 'of\.another\.model\.0' in a\.safetensors, which does not hold"
    ):
        load(str(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (raw(entry(shape=[int("9" * 4000)] * 1000), 8), "an integer of 4000 digits"),
        (raw(entry(shape=[2**48 + 1]), 8), "malformed shape"),
        (raw(entry(shape=[2**47] * 17), 8), "malformed shape"),
        (raw(entry(shape=[2] + [1] * 16), 8), "at most 16 extents"),
        (raw(b'{"w": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 8]}}', 8), "given twice"),
        (raw(b"{}" + b" " * headers.MAX_HEADER_BYTES), "claims a header of 67108866 bytes"),
        (
            raw(b"{" + b",".join(b'"%d":0' % i for i in range(400_001)) + b"}"),
            "400001 tensors; expected at most 400000",
        ),
    ],
    ids=["digits", "extent", "rank", "ones", "twice", "bytes", "tensors"],
)
def test_what_would_take_unbounded_time_is_refused_early(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    start = time.monotonic()
    with pytest.raises(InputError, match=message):
        headers.read_header(path)
    assert time.monotonic() - start < 5


PHI: dict[str, Any] = {
    "model_type": "phi3",
    "torch_dtype": "bfloat16",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": None,
    "max_position_embeddings": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def fused(qkv_rows: int = 64) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The weights of PHI in FP8: query (32), key and value (16 each) are one tensor, gate and up (48 each) another."""
    layer = "model.layers.0."
    result: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (64, 32)),
        "lm_head.weight": ("BF16", (64, 32)),
        "model.norm.weight": ("BF16", (32,)),
        f"{layer}input_layernorm.weight": ("BF16", (32,)),
        f"{layer}post_attention_layernorm.weight": ("BF16", (32,)),
    }
    for name, rows, columns in (
        ("self_attn.qkv_proj", qkv_rows, 32),
        ("self_attn.o_proj", 32, 32),
        ("mlp.gate_up_proj", 96, 32),
        ("mlp.down_proj", 32, 48),
    ):
        result[f"{layer}{name}.weight"] = ("F8_E4M3", (rows, columns))
        result[f"{layer}{name}.weight_scale_inv"] = ("F32", (1, 1))
    return result


def _phi(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    (folder / "config.json").write_text(json.dumps(PHI))
    write(folder / "model.safetensors", tensors)
    return folder


def test_weights_of_one_stored_tensor_share_its_bytes(tmp_path: Path) -> None:
    model = load(str(_phi(tmp_path, fused())))
    assert not model.notes
    by_role = {t.role: t for t in model.tensors}
    assert [by_role[f"attn.{part}"].bytes for part in "qkv"] == [32 * 32, 16 * 32, 16 * 32]
    assert [by_role[f"mlp.{part}"].bytes for part in ("gate", "up")] == [48 * 32, 48 * 32]
    # The one scale of four bytes is divided with the rows and adds up to itself.
    assert sum(by_role[f"attn.{part}"].scale_bytes for part in "qkv") == 4
    assert model.weight_bytes == 2 * (2 * 64 * 32 + 3 * 32) + (64 + 32 + 96) * 32 + 32 * 48 + 4 * 4


def test_a_fused_tensor_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="qkv_proj"):
        load(str(_phi(tmp_path, fused(qkv_rows=80))))


def test_an_index_without_files_is_held_against_the_config(folder: Path) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    held = load(str(folder)).weight_bytes
    for said, noted in ((held + held // 200, False), (2 * held, True)):
        (folder / headers.INDEX).write_text(json.dumps({"metadata": {"total_size": said}, "weight_map": {"a": "b"}}))
        found = load(str(folder))
        assert (found.exact_bytes, found.weight_bytes) == (False, held)
        assert any(f"says {said:,} bytes, the config gives {held:,}" in note for note in found.notes) is noted


def test_an_index_that_says_another_size_is_noted(folder: Path) -> None:
    held = load(str(folder)).weight_bytes  # by the config
    write(folder / "a.safetensors", checkpoint())
    names = dict.fromkeys(checkpoint(), "a.safetensors")
    for said, noted in ((held, False), (5, True), ("5", False)):
        (folder / headers.INDEX).write_text(json.dumps({"metadata": {"total_size": said}, "weight_map": names}))
        found = load(str(folder))
        assert (found.exact_bytes, found.weight_bytes) == (True, held)
        assert any(f"says 5 bytes, the files hold {held:,}" in note for note in found.notes) is noted
