"""Slices of safetensors files against safetensors' own writer and reader; every malformed folder is one InputError."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
st = pytest.importorskip("safetensors.torch")

from linkwise.core.errors import InputError  # noqa: E402
from linkwise.runtime.weights.source import open_source  # noqa: E402

INDEX = "model.safetensors.index.json"


def folder(path: Path, tensors: dict[str, Any], **config: Any) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    st.save_file(tensors, path / "model.safetensors")
    return path


def shards(path: Path, parts: dict[str, dict[str, Any]], weight_map: dict[str, str] | None = None) -> Path:
    (path / "config.json").write_text("{}")
    for name, tensors in parts.items():
        st.save_file(tensors, path / name)
    named = weight_map or {t: name for name, tensors in parts.items() for t in tensors}
    (path / INDEX).write_text(json.dumps({"weight_map": named}))
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_slices_equal_the_saved_tensor(tmp_path: Path, dtype: Any) -> None:
    whole = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    scalar = torch.tensor(3.0, dtype=dtype)
    source = open_source(folder(tmp_path, {"w": whole, "s": scalar}))
    assert "w" in source
    assert "x" not in source
    assert source.names == ("s", "w")
    assert source.shape("w") == (6, 5)
    assert source.dtype == str(dtype)[6:]
    assert torch.equal(source.read("s"), scalar)
    for cuts in [(), ((1, 4),), (None, (2, 5)), ((0, 6), (0, 1)), ((3, 3),), (None, None)]:
        index = tuple(slice(None) if c is None else slice(*c) for c in cuts)
        part = source.read("w", *cuts)
        assert part.dtype == dtype
        assert part.is_contiguous()
        assert torch.equal(part, whole[index])


def test_what_was_read_outlives_the_file(tmp_path: Path) -> None:
    source = open_source(folder(tmp_path, {"w": torch.arange(4096.0)}))
    part = source.read("w")
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.seek(-16384, os.SEEK_END)
        file.write(bytes(16384))
    assert torch.equal(part, torch.arange(4096.0))


def test_only_the_slice_is_read(tmp_path: Path) -> None:
    """A sparse file of 16 GiB: rows and columns of it map few pages, so resident file pages stay small."""
    rows, columns = 2**22, 2048
    size = rows * columns * 2
    header = json.dumps({"w": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    (tmp_path / "config.json").write_text("{}")
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.seek(8 + len(header) + 2 * (columns * (rows - 1) + 7))  # element 7 of the last row
        file.write(struct.pack("<H", 0x3F80))  # 1.0
        file.truncate(8 + len(header) + size)
    source = open_source(tmp_path)
    before = resident()
    part = source.read("w", (rows - 8, rows), (7, 9))
    assert part.tolist() == [[0.0, 0.0]] * 7 + [[1.0, 0.0]]
    assert source.read("w", (0, 4)).shape == (4, columns)
    assert resident() - before < 64 * 2**20


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_shards_read_as_one(tmp_path: Path) -> None:
    a, b = torch.ones(2, 2), torch.zeros(3)
    source = open_source(shards(tmp_path, {"m-1.safetensors": {"a": a}, "m-2.safetensors": {"b": b}}))
    assert torch.equal(source.read("a"), a)
    assert torch.equal(source.read("b", (1, 3)), b[1:])


def test_the_config_names_the_dtype(tmp_path: Path) -> None:
    assert open_source(folder(tmp_path, {"a": torch.ones(2)}, torch_dtype="bfloat16")).dtype == "bfloat16"


def test_a_hugging_face_snapshot_may_link_to_its_own_blobs(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    folder(blobs, {"a": torch.ones(2)})
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(blobs / name)
    assert open_source(snapshot).read("a").tolist() == [1.0, 1.0]


def refused(path: Path, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        open_source(path)
    for word in words:
        assert word in str(caught.value)


def test_reads_that_cannot_be(tmp_path: Path) -> None:
    source = open_source(folder(tmp_path, {"a": torch.ones(2, 3), "i": torch.ones(2, dtype=torch.int64)}))
    for call, words in [
        (lambda: source.read("b"), ("'b' is missing", str(tmp_path))),
        (lambda: source.shape("b"), ("'b' is missing",)),
        (lambda: source.read("a", (0, 3)), ("'a'", "(0, 3)", "model.safetensors")),
        (lambda: source.read("a", (2, 1)), ("'a'",)),
        (lambda: source.read("a", None, None, None), ("2 dimensions",)),
        (lambda: source.read("i"), ("'i'", "I64", "model.safetensors")),
        (lambda: source.expect("a", (3, 2)), ("'a'", "[2, 3]", "[3, 2]", "model.safetensors")),
    ]:
        with pytest.raises(InputError) as caught:
            call()
        for word in words:
            assert word in str(caught.value)
    source.expect("a", (2, 3))


def test_missing_parts(tmp_path: Path) -> None:
    refused(tmp_path / "none", "no such folder")
    refused(tmp_path, "config.json", "no such file")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "no weights", "model.safetensors")
    st.save_file({"a": torch.ones(1)}, tmp_path / "m-1.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}))
    refused(tmp_path, "m-2.safetensors", "missing")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"b": "m-2.safetensors"}}))
    refused(tmp_path, "m-2.safetensors", "missing")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-1.safetensors"}}))
    refused(tmp_path, "'b'", "m-1.safetensors")


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    parts: dict[str, Any] = {f"m-{n}.safetensors": {"a": torch.ones(1), f"b{n}": torch.ones(1)} for n in (1, 2)}
    refused(shards(tmp_path, parts), "'a'", "two files", "m-1.safetensors", "m-2.safetensors")


def test_a_name_twice_in_one_header(tmp_path: Path) -> None:
    entry = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = f"{{{entry},{entry}}}".encode()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    refused(tmp_path, "'a'", "twice", "model.safetensors")


def test_a_truncated_file(tmp_path: Path) -> None:
    folder(tmp_path, {"a": torch.ones(64)})
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-8])
    refused(tmp_path, "'a'", "truncated", "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(data[:20])
    refused(tmp_path, "header", "model.safetensors")


@pytest.mark.parametrize("name", ["../m.safetensors", "/etc/passwd", "sub/m.safetensors", "..", ""])
def test_an_index_that_points_elsewhere(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    (inner / "sub").mkdir(parents=True)
    for place in (tmp_path, inner / "sub"):
        st.save_file({"a": torch.ones(1)}, place / "m.safetensors")
    (inner / "config.json").write_text("{}")
    (inner / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    refused(inner, "plain file names", INDEX)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX])
def test_links_out_of_the_folder(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    folder(inner, {"a": torch.ones(1)})
    (inner / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    os.rename(inner / name, tmp_path / "elsewhere")
    (inner / name).symlink_to("../elsewhere")
    refused(inner, name, "link")


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("config.json")
    refused(tmp_path, "config.json")
    os.unlink(tmp_path / "config.json")
    (tmp_path / "config.json").symlink_to("gone")
    refused(tmp_path, "config.json", "no such file")
    os.unlink(tmp_path / "config.json")
    os.mkfifo(tmp_path / "config.json")
    refused(tmp_path, "config.json", "regular file")


@pytest.mark.parametrize("dtype", ["int64", "nonsense"])
def test_a_dtype_nothing_runs_in(tmp_path: Path, dtype: str) -> None:
    refused(folder(tmp_path, {"a": torch.ones(1)}, dtype=dtype), "config.json", dtype)
