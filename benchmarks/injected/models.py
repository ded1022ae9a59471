"""Random models that ranks serve: small enough for two cores, made once and kept in a folder."""

from pathlib import Path
from typing import Any

VOCAB = 128
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_EXPERTS = {
    "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": 24,
}  # fmt: skip
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("LlamaConfig", {}),
    "deep": ("LlamaConfig", {"num_hidden_layers": 16, "hidden_size": 128, "intermediate_size": 256}),
    "wide": ("LlamaConfig", {"num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 256}),
    "experts": ("DeepseekV3Config", _EXPERTS),
}
HOT_BIAS = 10.0  # sigmoid scores are below 1: an expert with this is chosen by every token


def model(folder: Path, name: str, hot: tuple[int, ...] = ()) -> Path:
    """The folder of a model of _MODELS, made when it is not there. hot: experts that every token chooses."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    path = folder / "-".join([name, *map(str, hot)])
    if path.exists():
        return path
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config, fields = _MODELS[name]
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**{**_BASE, **fields}))
    for key, value in made.named_buffers():
        if key.endswith("e_score_correction_bias"):
            for expert in hot:
                value[expert] = HOT_BIAS
    made.save_pretrained(path)
    return path
