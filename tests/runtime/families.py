"""Tiny models of every family, made with transformers: random weights with enough spread that greedy texts vary.

Sizes are chosen so that every layout of the table divides them: 4 heads, 2 KV heads, 8 experts; the model for three
tensor ranks has 6 and 3. `made` writes a model folder and what transformers itself computes from it.
"""

import json
from pathlib import Path
from typing import Any

NEW_TOKENS = 9
# Requests of unequal length, and the chunks their prompts are given in.
CHUNKS = ((7, 6), (5,), (9, 1, 12), (18,))

_BASE: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_THREE = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 190}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_MLA = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 8, "first_k_dense_replace": 1, "n_shared_experts": 2, **_MOE,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 32,
    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama of 6 heads": ("LlamaConfig", {**_THREE, "attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}),
    "mixtral, window 10": ("MixtralConfig", {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 10}),
    "qwen3_moe": (
        "Qwen3MoeConfig", {**_MOE, "head_dim": 8, "num_experts": 6, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "deepseek_v2": ("DeepseekV2Config", {**_MLA, "q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek_v2, grouped": (
        "DeepseekV2Config",
        {
            **_MLA, "q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 1.5, "num_experts_per_tok": 3,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**_MLA, "q_lora_rank": 24, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "rope_parameters": _YARN},
    ),
}  # fmt: skip


def saved(name: str, folder: Path) -> Any:
    """Write a family's model to a folder as transformers saves it; returns the model."""
    import torch
    import transformers

    kind, fields = FAMILIES[name]
    config = getattr(transformers, kind)(**{**_BASE, **fields})
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            drawn = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim > 1:
                scale = 1.0 if "embed" in key else 1.5 * tensor.shape[-1] ** -0.5
                tensor.copy_(drawn * scale)
            else:
                tensor.copy_(drawn * 0.1 + (1.0 if "norm" in key else 0.0))
    model.save_pretrained(folder)
    return model


def made(name: str, folder: Path) -> None:
    """Write a family's model to a folder, with prompts and transformers' own greedy tokens and logits for them.

    reference.json: prompts, tokens. reference.npy: logits [requests, tokens, vocab] in float32, eager.
    """
    import numpy as np
    import torch

    model = saved(name, folder)
    generator = torch.Generator().manual_seed(len(name))
    vocab = model.config.vocab_size
    prompts = [torch.randint(0, vocab, (sum(chunks),), generator=generator).tolist() for chunks in CHUNKS]
    tokens, logits = _greedy(model, prompts)
    (folder / "reference.json").write_text(json.dumps({"prompts": prompts, "tokens": tokens}))
    np.save(folder / "reference.npy", logits.numpy())


def _greedy(model: Any, prompts: list[list[int]]) -> tuple[list[list[int]], Any]:
    """Every token from a whole forward pass of all that precedes it, without a cache: nothing is shared with ours."""
    import torch

    texts = [list(prompt) for prompt in prompts]
    steps = []
    for _ in range(NEW_TOKENS):
        longest = max(map(len, texts))
        # Padding stands behind the texts, where causal attention does not look.
        batch = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        with torch.no_grad():
            everything = model(batch, use_cache=False).logits
        last = torch.stack([everything[row, len(text) - 1] for row, text in enumerate(texts)])
        steps.append(last)
        for text, token in zip(texts, last.argmax(-1).tolist(), strict=True):
            text.append(token)
    new = [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    return new, torch.stack(steps, 1).contiguous()
