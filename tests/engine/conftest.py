"""Small models made by hand: enough structure for an engine's rules, no config files."""

from collections.abc import Callable

import pytest

from linkwise.cluster.types import Accelerator
from linkwise.model.types import Layer, Model, Moe, Split, Tensor

GiB = 2**30


def _tensor(
    role: str, rows: int, columns: int, split: Split, units: int = 0, count: int = 1, fp8: bool = False
) -> Tensor:
    size = rows * columns * count
    blocks = -(-rows // 128) * -(-columns // 128) * count
    return Tensor(
        name=role,
        role=role,
        layer=-1 if role in {"embed", "head"} else 0,
        shape=(rows, columns),
        dtype="float8_e4m3" if fp8 else "bfloat16",
        bytes=size if fp8 else 2 * size,
        scale_bytes=4 * blocks if fp8 else 0,
        count=count,
        split=split,
        units=units,
    )


def build(
    *,
    layers: int = 8,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    vocab: int = 128_256,
    intermediate: int = 14_336,
    experts: int = 0,
    moe_intermediate: int = 2048,
    mla: bool = False,
    fp8: bool = False,
    mixer: str = "",
) -> Model:
    """A model with attention, a dense MLP or experts, embedding and head."""
    kind = mixer or ("mla" if mla else "full")
    head_dim = 128
    tensors = [
        _tensor("embed", vocab, hidden, Split.VOCAB),
        _tensor("head", vocab, hidden, Split.VOCAB),
        _tensor("attn.q", heads * head_dim, hidden, Split.COLUMN, heads, fp8=fp8),
        _tensor("attn.o", hidden, heads * head_dim, Split.ROW, heads, fp8=fp8),
    ]
    if not mla:
        tensors.append(_tensor("attn.k", kv_heads * head_dim, hidden, Split.KV, kv_heads, fp8=fp8))
    if experts:
        for name, split in (("gate", Split.COLUMN), ("down", Split.ROW)):
            shape = (moe_intermediate, hidden) if split is Split.COLUMN else (hidden, moe_intermediate)
            tensors.append(_tensor(f"moe.experts.{name}", *shape, split, count=experts, fp8=fp8))
    else:
        tensors.append(_tensor("mlp.gate", intermediate, hidden, Split.COLUMN, fp8=fp8))
        tensors.append(_tensor("mlp.down", hidden, intermediate, Split.ROW, fp8=fp8))
    moe = Moe(experts=experts, top_k=8, hidden=hidden, intermediate=moe_intermediate) if experts else None
    return Model(
        name="made",
        family="deepseek_v3" if mla else "qwen3_moe" if experts else "llama",
        source="made by hand",
        hidden=hidden,
        vocab=vocab,
        max_len=32_768,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype="bfloat16",
        layers=tuple(Layer(index=i, mixer=kind, ffn="moe" if experts else "dense") for i in range(layers)),
        tensors=tuple(tensors),
        moe=moe,
        mla_latent=576 if mla else 0,
    )


@pytest.fixture(scope="session")
def make() -> Callable[..., Model]:
    return build


@pytest.fixture(scope="session")
def device() -> Callable[..., Accelerator]:
    """An accelerator by memory in GiB and name."""

    def made(gib: float, name: str = "h100", capability: int = 90) -> Accelerator:
        return Accelerator(
            name=name,
            label=name.upper(),
            memory_bytes=round(gib * GiB),
            memory_source="made by hand",
            nominal_GB=round(gib),
            hbm_Bps=3.35e12,
            flops={"bf16": 989e12},
            capability=capability,
        )

    return made
