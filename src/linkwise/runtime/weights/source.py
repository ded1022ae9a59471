"""A model folder's tensors, read slice by slice: config.json with safetensors weights in one file or in shards.

The folder is hostile until checked: headers are validated against the files' sizes before anything is mapped, and no
file outside the folder is opened. Reading a slice touches the pages of that slice alone.
"""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from linkwise.core.dtypes import canonical
from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object
from linkwise.model import headers

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SINGLE = "model.safetensors"

Cut = tuple[int, int] | None


class Source:
    """The tensors of one folder by name. Made by `open_source`.

    fields: config.json. dtype: what the config says weights and activations are in, else what most bytes are stored in.
    """

    def __init__(self, folder: Path, fields: dict[str, Any], tensors: dict[str, "_Place"]) -> None:
        self.folder, self.fields = folder, fields
        self._tensors = tensors
        self._open: dict[Path, Any] = {}
        self.dtype = _dtype(fields, tensors, folder)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors, sorted."""
        return tuple(sorted(self._tensors))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's whole shape. Raises InputError when the folder has no such tensor."""
        return self._place(name).shape

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a tensor that is missing or has another shape, naming the tensor and its file."""
        place = self._place(name)
        if place.shape != shape:
            raise InputError(
                f"tensor {name!r} has shape {list(place.shape)}",
                where=str(place.file),
                expected=str(list(shape)),
                hint="The config may be another model's",
            )

    def read(self, name: str, *cuts: Cut) -> torch.Tensor:
        """A tensor or a slice of it, in the stored dtype, as memory of its own.

        cuts: (first, end) by dimension, None = all of it; those left out are whole. Raises InputError for a missing
        tensor, a cut outside it, a dtype that is not float32, float16 or bfloat16, and a file that cannot be read.
        """
        place = self._place(name)
        where = str(place.file)
        if place.code not in DTYPES:
            raise InputError(f"tensor {name!r} is stored as {place.code}", where=where, expected=", ".join(DTYPES))
        if len(cuts) > len(place.shape):
            raise InputError(f"tensor {name!r} has {len(place.shape)} dimensions, cut in {len(cuts)}", where=where)
        for cut, extent in zip(cuts, place.shape, strict=False):
            if cut is not None and not 0 <= cut[0] <= cut[1] <= extent:
                raise InputError(f"tensor {name!r} of shape {list(place.shape)} has no slice {cut}", where=where)
        wanted = tuple(slice(None) if cut is None else slice(*cut) for cut in cuts)
        try:
            if place.file not in self._open:
                self._open[place.file] = safe_open(place.file, framework="pt")
            part = self._open[place.file].get_slice(name)[wanted or ...]
        except (SafetensorError, OSError, RuntimeError) as error:
            raise InputError(f"tensor {name!r} cannot be read: {error}", where=where) from None
        # What get_slice gives may still be the file's pages: a copy stays valid whatever happens to the file.
        return part.clone(memory_format=torch.contiguous_format)

    def close(self) -> None:
        """Let go of the files; what was read stays."""
        self._open.clear()

    def _place(self, name: str) -> "_Place":
        try:
            return self._tensors[name]
        except KeyError:
            raise InputError(
                f"tensor {name!r} is missing",
                where=str(self.folder),
                expected=f"one of the {len(self._tensors)} tensors of its safetensors files",
            ) from None


class _Place:
    """Where a tensor lies. code: safetensors' name of its dtype."""

    __slots__ = ("bytes", "code", "file", "shape")

    def __init__(self, file: Path, code: str, shape: tuple[int, ...], size: int) -> None:
        self.file, self.code, self.shape, self.bytes = file, code, shape, size


def open_source(folder: str | Path) -> Source:
    """The tensors of a folder with config.json and model.safetensors, or its index and shards.

    Reads all headers, no weights. Raises InputError, naming the file and the tensor, for a missing config, shard or
    indexed tensor, a truncated or damaged file, a tensor in two files, and a file that lies outside the folder.
    """
    folder = Path(folder)
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
    return Source(folder, fields, _tensors(folder, names, indexed))


def _tensors(folder: Path, names: list[str], indexed: dict[str, str]) -> dict[str, _Place]:
    tensors: dict[str, _Place] = {}
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
            tensors[tensor] = _Place(path, code, shape, size)
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


def _dtype(fields: dict[str, Any], tensors: dict[str, _Place], folder: Path) -> str:
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
