"""Exact bytes from safetensors headers, read without touching the weights.

A safetensors file is 8 bytes of header length (little endian), a JSON header `{name: {dtype, shape, data_offsets}}` and
the data. Everything is checked against the file's size: a header can claim anything.
"""

import os
import re
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from linkwise.core.dtypes import BITS, PLAIN
from linkwise.core.errors import InputError
from linkwise.core.files import open_regular, parse_json, read_json_object
from linkwise.model.matching import generic
from linkwise.model.types import Tensor

# The format allows headers of 100 MB. The largest published checkpoints (a trillion parameters in 384 experts a layer,
# each expert's weight packed beside its scales and shape) have 0.21 million tensors, 35 MB of headers over all their
# files and an index of 25 MB: about twice that is the bound, for one file and for all together, so that reading what
# a hostile one claims stays within seconds.
MAX_HEADER_BYTES = 64 * 2**20
MAX_TENSORS = 400_000
MAX_FILES = 10_000
# PyTorch counts elements in 63 bits and no published tensor has more than 6 extents.
MAX_RANK = 16
MAX_EXTENT = 2**48
INDEX = "model.safetensors.index.json"

# safetensors code -> (bits, our dtype; "" for words that pack something else).
_CODES: dict[str, tuple[int, str]] = {
    "F32": (32, "float32"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "F8_E4M3": (8, "float8_e4m3"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E8M0": (8, "float8_e8m0"),
    "F4": (4, "float4_e2m1"),
    "I8": (8, ""),
    "U8": (8, ""),
    "I16": (16, ""),
    "I32": (32, ""),
    "I64": (64, ""),
    "F64": (64, ""),
    "U16": (16, ""),
    "U32": (32, ""),
    "U64": (64, ""),
    "BOOL": (8, ""),
}
# What a quantised weight keeps beside its elements, by the end of its name.
_SCALES = re.compile(
    r"(\.(weight_scale(_inv|_2)?|weight_shape|weight_zero_point|weight_global_scale|input_global_scale|input_scale"
    r"|[kqv]_scale|qzeros|scales|g_idx|scale)|_scales|_scale_inv|_scale)$"
)
_ELEMENTS = re.compile(r"(\.(weight|weight_packed|qweight)|_blocks)$")
_VISION = re.compile(r"vision|visual|mm_projector|multi_modal|image_|patch_")


@dataclass
class Stored:
    """What a checkpoint holds of one module (all its experts together): bytes, elements, dtype."""

    bytes: int = 0
    scale_bytes: int = 0
    elements: int = 0
    dtype: str = ""
    # (shape, bits of a stored word) of each tensor of elements.
    shapes: set[tuple[tuple[int, ...], int]] = field(default_factory=set)


@dataclass(frozen=True)
class Checkpoint:
    """The safetensors files of a folder. named: tensor -> file name, where an index says so. total_bytes: of all
    tensors by the index; None where it does not say."""

    files: tuple[Path, ...] = ()
    named: dict[str, str] = field(default_factory=dict)
    total_bytes: int | None = None

    def against(self, stored: dict[str, Stored], expected: int) -> tuple[str, ...]:
        """A note where the index says another size than the files hold, or without files than the config gives.

        stored: what the files hold. expected: bytes by the config, which an index may miss by a little (buffers that
        are stored beside weights).
        """
        said, held = self.total_bytes, sum(one.bytes + one.scale_bytes for one in stored.values())
        if said is None or (said == held if stored else abs(said - expected) <= 0.01 * expected):
            return ()
        if stored:
            return (f"{INDEX} says {said:,} bytes, the files hold {held:,}: the files count",)
        return (f"{INDEX} says {said:,} bytes, the config gives {expected:,}: the config counts",)


def find(folder: Path) -> Checkpoint:
    """The safetensors files of a folder: those its index names, or all there are. No files when none is there."""
    index = folder / INDEX
    if not os.path.lexists(index):
        files = sorted(folder.glob("*.safetensors"))
        _at_most(len(files), MAX_FILES, "weight files", str(folder))
        return Checkpoint(tuple(files))
    content = read_json_object(index, max_bytes=MAX_HEADER_BYTES)
    names, metadata = content.get("weight_map"), content.get("metadata")
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise InputError("weight_map is not an object of file names", where=str(index))
    _at_most(len(names), MAX_TENSORS, "tensors", str(index))
    wanted = sorted(set(names.values()))
    _at_most(len(wanted), MAX_FILES, "weight files", str(index))
    for name in wanted:
        if Path(name).name != name or name in ("", ".", ".."):
            raise InputError(f"weight_map names {name!r}"[:200], where=str(index), expected="plain file names")
    present = tuple(folder / name for name in wanted if os.path.lexists(folder / name))
    if present and len(present) < len(wanted):
        raise InputError(
            f"{len(wanted) - len(present)} of {len(wanted)} weight files are missing, first "
            f"{next(n for n in wanted if not os.path.lexists(folder / n))}",
            where=str(folder),
            expected="all files of the index, or none",
        )
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Checkpoint(present, names, int(total) if isinstance(total, int | float) and 0 <= total < 2**63 else None)


def _at_most(count: int, most: int, what: str, where: str) -> None:
    if count > most:
        raise InputError(f"{count} {what}", where=where, expected=f"at most {most}")


def read_header(path: Path, most_bytes: int = MAX_HEADER_BYTES) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Name -> (safetensors dtype code, shape, bytes) of one file, checked against its size.

    most_bytes: what is left of MAX_HEADER_BYTES after the checkpoint's other files.
    """
    where = str(path)
    with open_regular(path) as (file, size):
        head = file.read(8)
        if len(head) < 8:
            raise InputError("shorter than a safetensors header", where=where)
        (length,) = struct.unpack("<Q", head)
        if length > most_bytes or length > size - 8:
            raise InputError(
                f"claims a header of {length} bytes in a file of {size}",
                where=where,
                expected=f"inside the file, and at most {MAX_HEADER_BYTES} with those of the other files",
            )
        text = file.read(length)
    if len(text) < length:
        raise InputError("ends inside its header", where=where)
    header = parse_json(text, where=f"{where}: header")
    if not isinstance(header, dict):
        raise InputError("the header is no object", where=where)
    header.pop("__metadata__", None)
    _at_most(len(header), MAX_TENSORS, "tensors", where)
    result = {name: _entry(name, entry, size - 8 - length, where) for name, entry in header.items()}
    _check_layout(header, size - 8 - length, where)
    return result


def _entry(name: str, entry: Any, room: int, where: str) -> tuple[str, tuple[int, ...], int]:
    problem = f"tensor {name[:80]!r}"
    if not isinstance(entry, dict):
        raise InputError(f"{problem} is no object", where=where)
    code, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(code, str) or code not in _CODES:
        raise InputError(f"{problem} has dtype {code!r}"[:200], where=where, expected="a safetensors dtype")
    if not _whole(shape, MAX_RANK, MAX_EXTENT) or not _whole(offsets, 2, 2**63) or len(offsets) != 2:
        raise InputError(
            f"{problem} has malformed shape or data_offsets",
            where=where,
            expected=f"at most {MAX_RANK} extents of at most {MAX_EXTENT}, and two offsets",
        )
    begin, end = offsets
    if not 0 <= begin <= end <= room:
        raise InputError(
            f"{problem} lies at {begin}..{end} of {room} data bytes",
            where=where,
            expected="offsets inside the file",
            hint="The file may be truncated",
        )
    elements = 1
    for extent in shape:
        elements *= extent
    if -(-elements * _CODES[code][0] // 8) != end - begin:
        raise InputError(f"{problem}: {end - begin} bytes do not hold shape {shape} of {code}"[:300], where=where)
    return code, tuple(shape), end - begin


def _whole(values: Any, longest: int, largest: int) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) <= longest
        and all(type(v) is int and 0 <= v <= largest for v in values)
    )


def _check_layout(header: dict[str, Any], room: int, where: str) -> None:
    """Tensors tile the data: no overlap, no hole (the format's rule)."""
    position = 0
    for begin, end in sorted(tuple(entry["data_offsets"]) for entry in header.values()):
        if begin != position:
            raise InputError(f"tensors overlap or leave a hole at byte {position}", where=where)
        position = end
    if position != room:
        raise InputError(f"tensors end at {position} of {room} data bytes", where=where, hint="The file may be damaged")


def collect(checkpoint: Checkpoint) -> dict[str, Stored]:
    """Module name (experts as one, `.weight` dropped) -> what the files hold of it.

    Raises InputError for what no file may claim, and where the files lack a tensor their index names.
    """
    modules: dict[str, Stored] = defaultdict(Stored)
    seen: dict[str, str] = {}
    left = MAX_HEADER_BYTES
    for path in checkpoint.files:
        header = read_header(path, left)
        left -= os.stat(path).st_size - sum(size for _, _, size in header.values())
        for name, (code, shape, size) in header.items():
            if name in seen:
                raise InputError(f"tensor {name[:80]!r} is in two files", where=str(path))
            seen[name] = path.name
            place = generic(name)
            if _SCALES.search(place):
                module = _SCALES.sub("", place)
                # ModelOpt keeps KV scales under the projections: they belong to no weight's format.
                modules[module].scale_bytes += size
                continue
            stored = modules[_ELEMENTS.sub("", place).replace("_proj_bias", "_proj.bias")]
            bits, dtype = _CODES[code]
            stored.bytes += size
            stored.elements += size * 8 // bits
            stored.dtype = dtype or stored.dtype
            stored.shapes.add((shape, bits))
        _at_most(len(seen), MAX_TENSORS, "tensors", str(path.parent))
    for name, file in checkpoint.named.items():
        if seen.get(name) != file:
            raise InputError(
                f"names tensor {name[:80]!r} in {file}, which does not hold it",
                where=str(checkpoint.files[0].parent / INDEX),
                expected="the index of these files",
            )
    return dict(modules)


def plain_dtype(stored: dict[str, Stored]) -> str:
    """The dtype most bytes of weights that are not quantised are stored in; "" where there are none."""
    totals: Counter[str] = Counter()
    for one in stored.values():
        if one.dtype in PLAIN:
            totals[one.dtype] += one.bytes
    return max(totals, key=lambda dtype: totals[dtype], default="")


def _fused(name: str) -> tuple[str, int]:
    """Where gate and up are stored as one tensor over all experts (gpt-oss, Llama 4): its name and the share of it."""
    for part in ("gate_proj", "up_proj"):
        if f"experts.*.{part}" in name:
            return name.replace(f"experts.*.{part}", "experts.gate_up_proj"), 2
    return name.replace("experts.*.", "experts."), 1


def _check_shapes(tensor: Tensor, found: Stored, height: int, fused: bool, where: str) -> None:
    """Refuse a checkpoint whose shapes are not the config's: as many elements in other places are another model.

    height: outputs of the stored tensor, of which this weight's may be a part. fused: all experts are in one tensor.
    """
    for shape, bits in found.shapes:
        inner = shape
        if fused or (tensor.is_expert and len(shape) > len(tensor.shape) and shape[0] == tensor.count):
            inner = shape[1:]
        rows = (height, *tensor.shape[1:]) if tensor.shape else ()
        forms = [rows]
        if inner is not shape and len(rows) == 2:
            forms.append(rows[::-1])  # all experts in one tensor: gpt-oss and Llama 4 keep inputs first
        ratio, rest = divmod(bits, BITS[tensor.dtype])
        if not found.dtype and (rest or ratio < 1 or (ratio > 1 and BITS[tensor.dtype] > 8)):
            raise InputError(
                f"{tensor.name} is packed into words of {bits} bits in the checkpoint and {tensor.dtype} by the config",
                where=where,
            )
        if not found.dtype and ratio > 1 and len(rows) == 2:
            forms = [f for o, i in (rows, rows[::-1]) for f in ((o, -(-i // ratio)), (-(-o // ratio), i))]
        if not any(_alike(inner, form) for form in forms):
            raise InputError(
                f"{tensor.name} has shape {_say(shape)} in the checkpoint and {_say(forms[0])} by the config",
                where=where,
                hint="The config may be another model's",
            )


def _alike(stored: tuple[int, ...], own: tuple[int, ...]) -> bool:
    """Equal but for extents of 1, and trailing extents kept apart or as one (convolutions, blocks of 4-bit pairs)."""
    a, b = (tuple(extent for extent in shape if extent != 1) for shape in (stored, own))
    if len(a) != len(b) and min(len(a), len(b)) >= 2:
        return a[0] == b[0] and prod(a[1:]) == prod(b[1:])
    return a == b


def _say(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _slice(size: int, begin: int, rows: int, height: int) -> int:
    """Bytes of outputs begin..begin+rows-1 of a tensor of so many; the slices add up to the whole."""
    return size * (begin + rows) // height - size * begin // height if height else size


def exact(tensors: tuple[Tensor, ...], stored: dict[str, Stored], where: str) -> tuple[tuple[Tensor, ...], list[str]]:
    """The tensors with the checkpoint's own bytes, and notes. Weights of one name are slices of one stored tensor.

    Weights of MTP layers the checkpoint lacks are dropped. What it holds beyond the config's weights is kept under the
    role `vision` or `other`, so that the sum is the files'. Raises InputError where config and checkpoint disagree.
    """
    left = dict(stored)
    result: list[Tensor] = []
    missing: list[Tensor] = []
    heights: Counter[str] = Counter()  # outputs of all weights of one name
    taken: Counter[str] = Counter()  # outputs of a stored tensor that earlier weights had
    for tensor in tensors:
        heights[tensor.name] += tensor.shape[0] if tensor.shape else 0
    for tensor in tensors:
        name, height, fused = tensor.name, heights[tensor.name], False
        if name not in stored and tensor.is_expert:
            (name, share), fused = _fused(tensor.name), True
            height *= share
        found = stored.get(name)
        if found is None or not found.bytes:
            missing.append(tensor)
            continue
        left.pop(name, None)
        rows = tensor.shape[0] if tensor.shape else 0
        own = found.elements * rows // height if height else found.elements
        if found.dtype and own != tensor.parameters:
            raise InputError(
                f"{tensor.name} has {own} elements in the checkpoint and {tensor.parameters} by the config", where=where
            )
        _check_shapes(tensor, found, height, fused, where)
        result.append(
            msgspec.structs.replace(
                tensor,
                dtype=found.dtype or tensor.dtype,
                bytes=_slice(found.bytes, taken[name], rows, height),
                scale_bytes=_slice(found.scale_bytes, taken[name], rows, height),
            )
        )
        taken[name] += rows
    notes = []
    mtp = [t for t in missing if t.role.startswith("mtp.")]
    lacking = [t for t in missing if not t.role.startswith("mtp.")]
    if lacking:
        raise InputError(
            f"the checkpoint lacks {len(lacking)} weights its config calls for, first {lacking[0].name}", where=where
        )
    if mtp:
        notes.append(f"the checkpoint holds {len(mtp)} fewer MTP weights than its config announces: not counted")
    for name, rest in left.items():
        role = "vision" if _VISION.search(name) else "other"
        result.append(
            Tensor(
                name=name,
                role=role,
                layer=-1,
                shape=(rest.elements,),
                dtype=rest.dtype or "uint8",
                bytes=rest.bytes,
                scale_bytes=rest.scale_bytes,
            )
        )
    others = [n for n in left if not _VISION.search(n)]
    if others:
        notes.append(f"{len(others)} weights of the checkpoint have no known role, first {others[0]}")
    return tuple(result), notes
