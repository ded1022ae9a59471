"""Storage types by name, and how many bits an element takes."""

from linkwise.core.errors import InputError

BITS: dict[str, int] = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "int16": 16,
    "float8_e4m3": 8,
    "float8_e5m2": 8,
    "float8_e8m0": 8,
    "int8": 8,
    "uint8": 8,
    "float4_e2m1": 4,
    "int4": 4,
    "int32": 32,
    "int64": 64,
}

# The dtypes a model runs in; what a checkpoint stores in one of them is not quantised.
PLAIN = ("float32", "bfloat16", "float16")

# What people and configs write for the same thing.
ALIASES: dict[str, str] = {
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
    "fp4": "float4_e2m1",
}


def canonical(name: str, *, where: str = "") -> str:
    """The canonical name of a dtype written in any usual way."""
    plain = name.strip().lower().removeprefix("torch.")
    plain = ALIASES.get(plain, plain)
    if plain not in BITS:
        known = ", ".join(sorted(BITS | ALIASES))
        raise InputError(f"unknown dtype {name!r}", where=where, expected=f"one of {known}")
    return plain


def nbytes(elements: int, dtype: str) -> int:
    """Bytes of `elements` packed elements of a canonical dtype (4-bit types pack two a byte)."""
    return -(-elements * BITS[dtype] // 8)


SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3": "fp8", "float4_e2m1": "fp4"}


def short(dtype: str) -> str:
    """The name people say: bf16, fp8, ..."""
    return SHORT.get(dtype, dtype)
