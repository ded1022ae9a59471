"""How a checkpoint stores its weights: which tensors are quantised, in what format, with how many bytes of scales.

`parse` turns a `quantization_config` (config.json) or `hf_quant_config.json` into a `Quantization`; `apply` re-stores a
draft's linear weights by it. What is linear: every 2-D weight whose role is not an embedding, router, norm, convolution
or bias. Heads, vision towers and MTP's `eh_proj` stay in the model's dtype unless the scheme names them; DeepSeek-V3's
published element counts by dtype fit this exactly (tests/model/test_quant.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from linkwise.core import dtypes
from linkwise.core.errors import InputError, NotUnderstood
from linkwise.core.schema import Frozen
from linkwise.model.matching import Names
from linkwise.model.types import Tensor


class Scheme(Frozen, frozen=True, kw_only=True):
    """One storage format of a linear weight [outputs, inputs].

    block: rows x columns that share a scale; (0, 0) = no block scales, a column extent of 0 = the whole row.
    scalars: float32 scalars beside them (per-tensor weight scale, second-level scale, input scale).
    zero_bits: bits of a zero point per block. granule: bits a packed row is padded to (4-bit formats).
    index_bytes: bytes per input feature (GPTQ's g_idx, int32). tensor_bytes: a fixed extra (int32 shape pairs).
    """

    name: str
    dtype: str
    block: tuple[int, int] = (0, 0)
    scale_dtype: str = "float32"
    scalars: int = 0
    zero_bits: int = 0
    granule: int = 8
    index_bytes: int = 0
    tensor_bytes: int = 0

    def element_bytes(self, rows: int, columns: int) -> int:
        """Bytes of the elements of one [rows, columns] weight."""
        return rows * (-(-columns * dtypes.BITS[self.dtype] // self.granule)) * self.granule // 8

    def fixed_bytes(self, columns: int) -> int:
        """The part of `scale_bytes` that does not grow with the rows."""
        return 4 * self.scalars + self.index_bytes * columns + self.tensor_bytes

    def scale_bytes(self, rows: int, columns: int) -> int:
        """Bytes of scales, zero points and indices of one [rows, columns] weight."""
        total = self.fixed_bytes(columns)
        high, wide = self.block
        if high:
            blocks = -(-rows // high) * (-(-columns // wide) if wide else 1)
            total += dtypes.nbytes(blocks, self.scale_dtype) + -(-blocks * self.zero_bits // 8)
        return total


def fp8_block(rows: int, columns: int, scale_dtype: str = "float32") -> Scheme:
    """DeepSeek's block-scaled FP8: one scale per block.

    `scale_fmt: ue8m0` rounds scales to powers of two; DeepSeek-V3.x still stores them as float32, DeepSeek-V4 as e8m0.
    """
    return Scheme(name=f"fp8 {rows}x{columns}", dtype="float8_e4m3", block=(rows, columns), scale_dtype=scale_dtype)


def nvfp4(group: int = 16, *, inputs: bool = True) -> Scheme:
    """ModelOpt NVFP4: 4-bit floats, an e4m3 scale per group, a float32 scale per tensor (and one for inputs)."""
    return Scheme(
        name="nvfp4" if inputs else "w4a16 nvfp4",
        dtype="float4_e2m1",
        block=(1, group),
        scale_dtype="float8_e4m3",
        scalars=2 if inputs else 1,
    )


# Integers in int32 words, by their bits: engines unpack them and compute in the model's dtype (int8 is multiplied as it
# is).
PACKED = {4: "int4", 8: "uint8"}


def packed(group: int, *, name: str, scale_dtype: str, bits: int = 4, zero_bits: int = 0, **extra: int) -> Scheme:
    """Grouped integers packed into int32 words; group 0 = one group a row."""
    return Scheme(
        name=name,
        dtype=PACKED[bits],
        block=(1, group),
        scale_dtype=scale_dtype,
        zero_bits=zero_bits,
        granule=32,
        **extra,
    )


MXFP4 = Scheme(name="mxfp4", dtype="float4_e2m1", block=(1, 32), scale_dtype="float8_e8m0")
MXFP8 = Scheme(name="mxfp8", dtype="float8_e4m3", block=(1, 32), scale_dtype="float8_e8m0")
FP8_TENSOR = Scheme(name="fp8", dtype="float8_e4m3", scalars=2)
FP8_TENSOR_DYNAMIC = Scheme(name="fp8", dtype="float8_e4m3", scalars=1)

# Schemes a family may prescribe for a role (Draft.role_schemes).
NAMED: dict[str, Scheme] = {"mxfp4": MXFP4, "mxfp8": MXFP8, "nvfp4": nvfp4(), "fp8": FP8_TENSOR_DYNAMIC}

# What-if storage of linear weights (`weight_dtype`), by the names people say.
WHAT_IF: dict[str, Scheme] = {
    "float8_e4m3": FP8_TENSOR_DYNAMIC,
    "int4": packed(128, name="int4 group 128", scale_dtype="float16"),
    "float4_e2m1": nvfp4(),
    "mxfp4": MXFP4,
    "int8": Scheme(name="int8", dtype="int8", block=(1, 0), scale_dtype="float32"),
}
_WHAT_IF_NAMES = {"nvfp4": "float4_e2m1", "w4a16": "int4", "awq": "int4", "gptq": "int4"}


@dataclass(frozen=True)
class Quantization:
    """What a checkpoint's quantisation does to each weight.

    base: scheme of linear weights no list speaks of (None = they stay). named: scheme by module name, which wins.
    skip: modules that stay in the model's dtype. experts_only: base covers routed experts alone.
    head: base covers lm_head too. kv_dtype: dtype the checkpoint was calibrated to keep KV in, or "auto".
    """

    name: str = "none"
    base: Scheme | None = None
    named: dict[str, Scheme] = field(default_factory=dict)
    skip: Names = field(default_factory=Names)
    experts_only: bool = False
    head: bool = False
    kv_dtype: str = "auto"
    notes: tuple[str, ...] = ()

    def scheme(self, tensor: Tensor, role_schemes: dict[str, Scheme | None]) -> Scheme | None:
        """The format a tensor is stored in; None = the model's dtype."""
        if not is_linear(tensor):
            return None
        if self.named:
            name = tensor.name
            while name:
                found = self.named.get(name)
                if found:
                    return found
                name = name.rpartition(".")[0]
        words = tensor.role.split(".")
        if words[0] == "vision" or (words[-1] == "head" and not self.head):
            return None
        if self.skip.match(tensor.name):
            return None
        for prefix, prescribed in role_schemes.items():
            if prefix in tensor.role:
                return prescribed
        if self.experts_only and not tensor.is_expert:
            return None
        return self.base


_NOT_LINEAR = frozenset(("embed", "router", "conv", "decay", "norm", "bias", "sinks", "eh_proj"))


def is_linear(tensor: Tensor) -> bool:
    """Whether a weight is a projection that quantisers touch (a head counts, and is decided apart)."""
    return len(tensor.shape) == 2 and _NOT_LINEAR.isdisjoint(tensor.role.split("."))


def store(tensor: Tensor, scheme: Scheme, *, more: bool = False) -> Tensor:
    """The tensor in another format. more: a further slice of a stored tensor, whose fixed parts the first has."""
    rows, columns = tensor.shape
    scales = scheme.scale_bytes(rows, columns) - (scheme.fixed_bytes(columns) if more else 0)
    return msgspec.structs.replace(
        tensor,
        dtype=scheme.dtype,
        bytes=tensor.count * scheme.element_bytes(rows, columns),
        scale_bytes=tensor.count * scales,
    )


def apply(
    tensors: Iterable[Tensor], quantization: Quantization, role_schemes: dict[str, str] | None = None
) -> tuple[Tensor, ...]:
    """The tensors as the checkpoint stores them."""
    prescribed = {role: NAMED[name] if name else None for role, name in (role_schemes or {}).items()}
    result = []
    seen: set[str] = set()
    for tensor in tensors:
        scheme = quantization.scheme(tensor, prescribed)
        result.append(tensor if scheme is None else store(tensor, scheme, more=tensor.name in seen))
        seen.add(tensor.name)
    return tuple(result)


def what_if(tensors: Iterable[Tensor], weight_dtype: str, dtype: str) -> tuple[tuple[Tensor, ...], str]:
    """The tensors with linear weights re-stored in `weight_dtype`, whatever the checkpoint does, and a note.

    Embedding, head, norms, routers and the vision tower stay in the model's dtype. fp8 is vLLM's online form (one
    scale a tensor); int4 has groups of 128 with float16 scales; nvfp4 and mxfp4 as published checkpoints have them.
    """
    wanted = weight_dtype.strip().lower()
    wanted = _WHAT_IF_NAMES.get(wanted, wanted)
    wanted = dtypes.ALIASES.get(wanted.removeprefix("torch."), wanted)
    scheme = WHAT_IF.get(wanted)
    if scheme is None and wanted in ("bfloat16", "float16", "float32"):
        scheme = Scheme(name=wanted, dtype=wanted)
    if scheme is None:
        raise InputError(
            f"{weight_dtype!r} is no storage of weights known here",
            where="weight_dtype",
            expected="one of fp8, int8, int4, nvfp4, mxfp4, bfloat16, float16, float32",
        )
    plain = Quantization(name=scheme.name, base=scheme)
    note = (
        f"weight_dtype {weight_dtype}: a what-if; linear weights re-stored as {scheme.name} with any scales; "
        f"embedding, head, norms and routers stay as they are ({dtype})"
    )
    return apply(tensors, plain), note


def bounded(value: Any, name: str, where: str, *, most: int = 1_000_000) -> int:
    """A positive integer of a quantisation config."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(f"field {name!r} is {value!r}"[:200], where=where, expected=f"an integer in 1..{most}")
    return value


def refuse(what: str, where: str, hint: str = "") -> NotUnderstood:
    """The error for a format nobody here can count."""
    return NotUnderstood(
        what,
        where=where,
        expected="fp8, modelopt (FP8, NVFP4, W4A16_NVFP4, MXFP4, MXFP8, MIXED_PRECISION), mxfp4, compressed-tensors, "
        "awq, gptq or fbgemm_fp8",
        hint=hint,
    )
