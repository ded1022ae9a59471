"""Tiny attention layers: transformers' own as reference, and ours fed step by step with the same rows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from linkwise.core.layout import Layout
from linkwise.runtime.arch import Arch, read_arch
from linkwise.runtime.attention.base import build
from linkwise.runtime.attention.cache import Cache
from linkwise.runtime.attention.view import View, view_of
from linkwise.runtime.comm import Comm
from linkwise.runtime.split.tensor import Weights
from linkwise.runtime.steps import FILLER, Row
from linkwise.supervise.types import Sampling

VOCAB, HIDDEN, BLOCK = 128, 32, 4
_SHARED = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 1}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}
_YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "beta_fast": 32, "beta_slow": 1, "mscale": 0.7, "mscale_all_dim": 1.3,
}  # fmt: skip
_MLA = {
    "num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "max_position_embeddings": 256, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 0, "rope_parameters": _YARN,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip

# family: model type, attention and rotary class, and the config.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "Llama", {**_HEADS, "rope_parameters": _LLAMA3}),
    "llama-bias": ("llama", "Llama", {**_HEADS, "attention_bias": True}),
    "llama-mqa": ("llama", "Llama", {**_HEADS, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", "Qwen2", _HEADS),
    "qwen3": ("qwen3", "Qwen3", {**_HEADS, "rms_norm_eps": 1e-3}),
    "mixtral": ("mixtral", "Mixtral", {**_HEADS, "sliding_window": 5, "num_local_experts": 2}),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2", {**_MLA, "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3", {**_MLA, "q_lora_rank": 12, "attention_bias": True}),
    "deepseek_v3-halves": ("deepseek_v3", "DeepseekV3", {**_MLA, "q_lora_rank": 12, "rope_interleave": False}),
}


class Model(NamedTuple):
    """config: transformers'. attention, rotary: its modules. arch: as we read the same config."""

    config: Any
    attention: Any
    rotary: Any
    arch: Arch

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """As a checkpoint names them."""
        return {f"model.layers.0.self_attn.{name}": value for name, value in self.attention.state_dict().items()}

    def alone(self, dtype: torch.dtype = torch.float32) -> "Layer":
        """Our layer on one rank."""
        return Layer(self.arch, self.tensors, Layout(), 0, Comm({}), dtype)


class Source:
    """A checkpoint in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str, *cuts: tuple[int, int] | None) -> torch.Tensor:
        return self.tensors[name][tuple(slice(*cut) if cut else slice(None) for cut in cuts)]


def make(family: str, **changes: Any) -> Model:
    """A layer with random weights, the same for the same arguments."""
    import importlib

    kind, name, fields = FAMILIES[family]
    package = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    config = getattr(package, f"{name}Config")(**{**_SHARED, **fields, **changes}, attn_implementation="eager")
    torch.manual_seed(7)
    attention = getattr(package, f"{name}Attention")(config, 0).eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.5))
    rotary = getattr(package, f"{name}RotaryEmbedding")(config)
    return Model(config, attention, rotary, read_arch(config.to_dict(), where=family, dtype="float32"))


def rows_of(tokens: Any) -> torch.Tensor:
    """Hidden states of token ids: what enters the layer, [n, hidden]."""
    table = torch.randn((VOCAB, HIDDEN), generator=torch.Generator().manual_seed(11))
    return table[torch.as_tensor(tokens)]


def reference(model: Model, tokens: tuple[int, ...]) -> torch.Tensor:
    """What transformers' layer gives for every position of a whole request, [T, hidden]."""
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    x = rows_of(tokens)[None]
    positions = torch.arange(len(tokens))[None]
    window = getattr(model.config, "sliding_window", None)
    make_mask = create_sliding_window_causal_mask if window else create_causal_mask
    mask = make_mask(config=model.config, inputs_embeds=x, attention_mask=None, cache=None, position_ids=positions)
    with torch.inference_mode():
        return model.attention(
            hidden_states=x, position_embeddings=model.rotary(x, positions), attention_mask=mask
        )[0][0]  # fmt: skip


class Request(NamedTuple):
    """tokens: all of them; blocks: enough for them."""

    tokens: tuple[int, ...]
    blocks: tuple[int, ...]


# (request, new tokens, whether they are a prompt's)
Plan = tuple[tuple[tuple[int, int, bool], ...], ...]

REQUESTS = {
    0: Request(tuple(range(1, 24)), (3, 4, 5, 6, 7, 8)),  # blocks in a row
    1: Request(tuple(range(40, 57)), (12, 2, 20, 9, 1)),
    2: Request((90, 91, 92, 93, 94), (15, 10)),
    3: Request(tuple(range(100, 121)), (11, 13, 14, 16, 17, 19)),
}
# Chunked prompts of unequal length, decode beside them, a request that comes late, a chunk of one token, decode alone.
STEPS: Plan = (
    ((0, 7, True),),
    ((0, 1, False), (1, 9, True), (2, 2, True)),
    ((0, 1, False), (1, 5, True), (2, 1, True), (3, 10, True)),
    ((0, 1, False), (1, 1, False), (2, 1, False), (3, 1, True)),
    ((0, 1, False), (1, 1, False), (2, 1, False), (3, 1, False)),
    ((0, 1, False), (1, 1, False), (3, 1, False)),
    ((3, 8, True),),
    ((0, 11, True),),
)
ALONE: Plan = tuple(((1, 3 if step == 0 else 1, step == 0),) for step in range(15)) + tuple(
    ((0, 5 if step == 0 else 1, step == 0),) for step in range(19)
)


def batches(plan: Plan, *, filler: bool = False) -> list[tuple[Row, ...]]:
    """The rows of each step. filler: a decode row of nobody in front, and a prompt of nobody behind other prompts."""
    known = dict.fromkeys(REQUESTS, 0)
    result = []
    for step in plan:
        rows = [Row(FILLER, 0, (0,), False, None, ())] if filler else []
        for number, new, prompt in step:
            request, start = REQUESTS[number], known[number]
            draw = Sampling() if start + new == len(request.tokens) or not prompt else None
            rows.append(Row(number, start, request.tokens[start : start + new], prompt, draw, request.blocks))
            known[number] = start + new
        if filler and rows[-1].prompt:
            rows.append(Row(FILLER, 0, (0, 0, 0), True, None, ()))
        result.append(tuple(rows))
    return result


class Layer:
    """Our layer on one rank."""

    def __init__(
        self,
        arch: Arch,
        tensors: Mapping[str, torch.Tensor],
        layout: Layout,
        rank: int,
        comm: Comm,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.layout, self.rank, self.comm, self.dtype = layout, rank, comm, dtype
        weights = Weights(Source(tensors), layout, rank, dtype=dtype, arch=arch)
        self.cache = Cache(arch, layout, 1, 24, BLOCK, dtype=dtype)
        self.attention = build(arch, weights, 0, comm, self.cache.layers[0])

    def step(self, batch: tuple[Row, ...]) -> tuple[View, torch.Tensor]:
        """The view, and the rows after the tensor group's sum."""
        view = view_of(batch, self.layout, self.rank, BLOCK)
        with torch.inference_mode():
            out = self.attention(rows_of(view.tokens).to(self.dtype), view)
            return view, self.comm.all_reduce("tp", "attn.out", out)


def run(layer: Layer, steps: list[tuple[Row, ...]]) -> dict[tuple[int, int], torch.Tensor]:
    """Rows by (request, position) that this rank had; padding is left out."""
    found = {}
    for batch in steps:
        view, out = layer.step(batch)
        assert out.shape == (view.n, HIDDEN)
        assert bool(out.isfinite().all())
        prompts = list(view.prompts)
        row = 0
        for entry in batch:
            if entry.prompt:
                prompt = prompts.pop(0)
                row, own, count = prompt.first, prompt.own, prompt.hidden
            else:
                own = count = len(entry.tokens)
            for i in range(own):
                if entry.request != FILLER:
                    found[entry.request, int(view.positions[row + i])] = out[row + i].clone()
            row += count
    return found


def farthest(found: Mapping[tuple[int, int], torch.Tensor], model: Model) -> float:
    """Largest difference of rows from transformers'."""
    wanted = {number: reference(model, request.tokens) for number, request in REQUESTS.items()}
    return max(float((row - wanted[number][position]).abs().max()) for (number, position), row in found.items())
