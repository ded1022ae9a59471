"""Configurations and tiny random weights for the real engine: shapes of real families, written here."""

import json
from pathlib import Path
from typing import Any

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 28672,
    "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
SPARSE: dict[str, Any] = MLA | {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_head_dim": 128,
    "index_n_heads": 64, "index_topk": 2048,
}  # fmt: skip
# Heads of 80 do not take vLLM's attention by AMX tiles, which ends with an illegal instruction on some processors.
TINY: dict[str, Any] = DENSE | {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 80,
    "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 2048,
}  # fmt: skip
TINY_MOE: dict[str, Any] = MOE | {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 80,
    "intermediate_size": 512, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 1024, "max_position_embeddings": 2048,
}  # fmt: skip
TINY_OF_SIX = TINY | {
    "hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 384,
    "vocab_size": 1152,
}  # fmt: skip
TINY_MLA: dict[str, Any] = MLA | {
    "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 512, "moe_intermediate_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 96, "vocab_size": 1024,
    "max_position_embeddings": 2048,
}  # fmt: skip


def folder(path: Path, config: dict[str, Any]) -> Path:
    """A model's folder without weights."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def tiny(path: Path, config: dict[str, Any] | None = None, seed: int = 0) -> Path:
    """A folder with random weights and a tokenizer of single bytes and numbered words."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    made = folder(path, config or TINY)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(made), dtype=torch.bfloat16)
    model.save_pretrained(made)
    (made / "config.json").write_text(json.dumps(config or TINY))
    words = {str(n): n for n in range((config or TINY)["vocab_size"])}
    marks = {"unk_token": "0", "bos_token": "1", "eos_token": "2"}
    tokenizer = Tokenizer(WordLevel(words, unk_token=marks["unk_token"]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(made)
    return made
