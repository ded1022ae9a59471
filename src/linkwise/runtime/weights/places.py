"""Where a model folder's tensors lie: all headers, no weights, and no torch.

The folder is hostile until checked: headers are validated against the files' sizes before anything is mapped, and no
file outside the folder is opened.
"""

import os
from pathlib import Path
from typing import Any

from linkwise.core.dtypes import canonical
from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object
from linkwise.model import headers

SINGLE = "model.safetensors"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Place:
    """Where a tensor lies. code: safetensors' name of its dtype."""

    __slots__ = ("bytes", "code", "file", "shape")

    def __init__(self, file: Path, code: str, shape: tuple[int, ...], size: int) -> None:
        self.file, self.code, self.shape, self.bytes = file, code, shape, size


def places(folder: Path) -> tuple[dict[str, Any], dict[str, Place]]:
    """config.json, and the tensors by name, of a folder with config.json and model.safetensors or index and shards.

    Raises InputError, naming the file and the tensor, for a missing config, shard or
    indexed tensor, a truncated or damaged file, a tensor in two files, and a file that lies outside the folder.
    """
    if not os.path.isdir(folder):
        raise InputError("no such folder", where=str(folder), expected="a folder with config.json and safetensors")
    fields = read_json_object(_inside(folder, "config.json"))
    if os.path.lexists(folder / headers.INDEX):
        _inside(folder, headers.INDEX)
        found = headers.find(folder)
        if not found.files:
            first = next(iter(sorted(set(found.named.values()))), "any file")
            raise InputError(f"the index names {first}, which is missing", where=str(folder / headers.INDEX))
        names, indexed = [path.name for path in found.files], found.named
    else:
        names, indexed = [SINGLE], {}
        if not os.path.lexists(folder / SINGLE):
            raise InputError(
                "no weights",
                where=str(folder),
                expected=f"{SINGLE}, or {headers.INDEX} and its shards",
                hint="`linkwise weights` makes such a folder from a GGUF file",
            )
    return fields, _tensors(folder, names, indexed)


def _tensors(folder: Path, names: list[str], indexed: dict[str, str]) -> dict[str, Place]:
    tensors: dict[str, Place] = {}
    left = headers.MAX_HEADER_BYTES
    for name in names:
        path = _inside(folder, name)
        header = headers.read_header(path, left)
        left -= path.stat().st_size - sum(size for _, _, size in header.values())
        for tensor, (code, shape, size) in header.items():
            if tensor in tensors:
                raise InputError(
                    f"tensor {tensor[:80]!r} is in two files: {tensors[tensor].file.name} and {name}", where=str(folder)
                )
            tensors[tensor] = Place(path, code, shape, size)
        if len(tensors) > headers.MAX_TENSORS:
            raise InputError(f"{len(tensors)} tensors", where=str(folder), expected=f"at most {headers.MAX_TENSORS}")
    files = {name: _inside(folder, name) for name in names}
    for tensor, file in indexed.items():
        if tensor not in tensors or tensors[tensor].file != files[file]:
            raise InputError(
                f"names tensor {tensor[:80]!r} in {file}, which does not hold it",
                where=str(folder / headers.INDEX),
                expected="the index of these files",
            )
    return tensors


def _inside(folder: Path, name: str) -> Path:
    """The real path of a file of the folder.

    A link may lead to the folder itself or, in a snapshot of a Hugging Face cache, to the same repository's blobs.
    """
    path = folder / name
    try:
        root, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path, strict=True))
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise InputError(reason, where=str(path), expected="a regular file of the folder") from None
    cached = root.parent.name == "snapshots" and real.parent == root.parent.parent / "blobs"
    if real.parent != root and not cached:
        raise InputError(f"a link to {real}", where=str(path), expected="a file of the folder itself")
    return real


def stored_dtype(fields: dict[str, Any], tensors: dict[str, Place], folder: Path) -> str:
    """What the config says weights and activations are in, else what most bytes are stored in. Raises InputError."""
    given = fields.get("dtype") or fields.get("torch_dtype")
    where = str(folder / "config.json")
    if isinstance(given, str) and given != "auto":
        name = canonical(given[:80], where=where)
    else:
        total: dict[str, int] = {}
        for place in tensors.values():
            total[place.code] = total.get(place.code, 0) + place.bytes
        code = max(total, key=lambda c: total[c], default="F32")
        name = DTYPES.get(code, code)
    if name not in DTYPES.values():
        raise InputError(f"weights in {name}", where=where, expected="float32, float16 or bfloat16")
    return name
