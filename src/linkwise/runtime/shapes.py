"""The shape every tensor of a checkpoint must have, by its name: a wrong file is found before a byte of it is used.

Names as published checkpoints and transformers' `save_pretrained` have them, one tensor per expert.
"""

import re
from collections.abc import Iterator

from linkwise.core.errors import InternalError
from linkwise.runtime.arch import Arch, Heads, Latent

_EXPERT = re.compile(r"experts\.(\d+)\.(\w+)")
_UP, _DOWN = {"gate_proj", "up_proj", "w1", "w3"}, {"down_proj", "w2"}


def moe_module(arch: Arch, layer: int) -> str:
    """The module of a layer's experts and router."""
    return f"model.layers.{layer}." + ("block_sparse_moe" if arch.family == "mixtral" else "mlp")


def expert_names(arch: Arch, layer: int, expert: int) -> tuple[str, str, str]:
    """Gate, up and down of one routed expert."""
    at = f"{moe_module(arch, layer)}.experts.{expert}"
    names = ("w1", "w3", "w2") if arch.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    return f"{at}.{names[0]}.weight", f"{at}.{names[1]}.weight", f"{at}.{names[2]}.weight"


def names(arch: Arch) -> Iterator[str]:
    """All tensors that the model is made of. A tied head is none of its own."""
    yield "model.embed_tokens.weight"
    yield "model.norm.weight"
    if not arch.tied:
        yield "lm_head.weight"
    for layer in range(arch.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight"
        yield f"{at}.post_attention_layernorm.weight"
        yield from (f"{at}.self_attn.{one}" for one in _attention_names(arch.attention))
        yield from _feed_forward_names(arch, layer)


def _attention_names(at: Heads | Latent) -> Iterator[str]:
    norms: tuple[str, ...]
    if isinstance(at, Heads):
        with_bias = {"q_proj": at.qkv_bias, "k_proj": at.qkv_bias, "v_proj": at.qkv_bias, "o_proj": at.out_bias}
        norms = ("q_norm", "k_norm") if at.qk_norm else ()
    elif at.q_rank is None:
        with_bias = {"kv_a_proj_with_mqa": at.bias, "o_proj": at.bias, "q_proj": False, "kv_b_proj": False}
        norms = ("kv_a_layernorm",)
    else:
        with_bias = {"kv_a_proj_with_mqa": at.bias, "o_proj": at.bias, "q_a_proj": at.bias}
        with_bias |= {"q_b_proj": False, "kv_b_proj": False}
        norms = ("kv_a_layernorm", "q_a_layernorm")
    for name, bias in with_bias.items():
        yield f"{name}.weight"
        if bias:
            yield f"{name}.bias"
    yield from (f"{norm}.weight" for norm in norms)


def _feed_forward_names(arch: Arch, layer: int) -> Iterator[str]:
    three = [f"{one}.weight" for one in ("gate_proj", "up_proj", "down_proj")]
    if arch.mlp_bias:
        three += [f"{one}.bias" for one in ("gate_proj", "up_proj", "down_proj")]
    if arch.experts is None or layer not in arch.experts.layers:
        yield from (f"model.layers.{layer}.mlp.{one}" for one in three)
        return
    module = moe_module(arch, layer)
    yield f"{module}.gate.weight"
    if arch.experts.corrected:
        yield f"{module}.gate.e_score_correction_bias"
    for expert in range(arch.experts.count):
        yield from expert_names(arch, layer, expert)
    if arch.experts.shared_intermediate:
        yield from (f"{module}.shared_experts.{one}" for one in three)


def expected(arch: Arch, name: str) -> tuple[int, ...]:
    """A tensor's shape, output features first."""
    if name in {"model.embed_tokens.weight", "lm_head.weight"}:
        return (arch.vocab, arch.hidden)
    words = name.removeprefix("model.").split(".")
    if words[0] == "norm":
        return (arch.hidden,)
    inside = ".".join(words[2:])  # behind layers.N
    if inside.endswith("layernorm.weight") and "self_attn" not in inside:
        return (arch.hidden,)
    shape = _attention(arch, inside) if inside.startswith("self_attn.") else _feed_forward(arch, inside)
    if shape is None:
        raise InternalError(f"no shape is known for {name}")
    return shape[:1] if name.endswith(".bias") else shape


def _attention(arch: Arch, inside: str) -> tuple[int, ...] | None:
    child, hidden, at = inside.split(".")[1], arch.hidden, arch.attention
    if isinstance(at, Heads):
        return {
            "q_proj": (at.heads * at.head_dim, hidden),
            "k_proj": (at.kv_heads * at.head_dim, hidden),
            "v_proj": (at.kv_heads * at.head_dim, hidden),
            "o_proj": (hidden, at.heads * at.head_dim),
            "q_norm": (at.head_dim,),
            "k_norm": (at.head_dim,),
        }.get(child)
    return _latent(at, hidden).get(child)


def _latent(at: Latent, hidden: int) -> dict[str, tuple[int, ...]]:
    queries = at.heads * (at.nope_dim + at.rope_dim)
    return {
        "q_proj": (queries, hidden),
        "q_a_proj": (at.q_rank or 0, hidden),
        "q_a_layernorm": (at.q_rank or 0,),
        "q_b_proj": (queries, at.q_rank or 0),
        "kv_a_proj_with_mqa": (at.kv_rank + at.rope_dim, hidden),
        "kv_a_layernorm": (at.kv_rank,),
        "kv_b_proj": (at.heads * (at.nope_dim + at.v_dim), at.kv_rank),
        "o_proj": (hidden, at.heads * at.v_dim),
    }


def _feed_forward(arch: Arch, inside: str) -> tuple[int, ...] | None:
    experts, inner = arch.experts, arch.intermediate
    words = inside.split(".")
    if experts and words[1] == "gate":
        return (experts.count,) if words[2] == "e_score_correction_bias" else (experts.count, arch.hidden)
    if experts and _EXPERT.search(inside):
        inner = experts.intermediate
    elif experts and "shared_experts" in words:
        inner = experts.shared_intermediate
    child = words[-2]
    return (inner, arch.hidden) if child in _UP else (arch.hidden, inner) if child in _DOWN else None
