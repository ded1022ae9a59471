"""How a family's reader writes a model down: typed access to config fields, and a list of unquantised weights.

A reader takes every field it needs through `Fields`, so that what it did not account for can be named and refused.
"""

import re
from typing import Any

from linkwise.core.dtypes import PLAIN, nbytes
from linkwise.core.errors import InputError, NotUnderstood
from linkwise.model.types import Layer, Moe, Split, Tensor

_MISSING: Any = object()
# A leftover field whose name looks like this can change tensors, states or FLOPs: not accounted for means refused.
_STRUCTURAL = re.compile(
    r"^(num|n|use|enable|add|has|tie|tied|with)_|_(bias|norm|gate)$"
    r"|(^|_)(sizes?|dims?|ranks?|widths?|depths?|layers?|heads?|experts?|blocks?|groups?|kernels?|strides?|freq|patterns?"
    r"|types?|variants?|interval|windows?|chunks?|ratios?|factors?|mult|multipliers?|multiples?|expand|expansion|configs?"
    r"|latent|shared?|sharing|topk|attention|attn|cache|kv|qkv|mlp|ffn|moe|ssm|mamba|linear|sparse|compress\w*)(_|$)"
)
# Known never to change a tensor, a state or a FLOP.
# fmt: off
HARMLESS = frozenset(
    {
        "architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype",
        "use_cache", "_name_or_path", "id2label", "label2id", "bos_token_id", "eos_token_id", "pad_token_id",
        "unk_token_id", "sep_token_id", "decoder_start_token_id", "initializer_range", "attention_dropout",
        "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "rms_norm_eps", "layer_norm_eps",
        "layer_norm_epsilon", "norm_eps", "layernorm_epsilon", "rope_theta", "rope_scaling",
        "rope_parameters", "rope_interleave", "partial_rotary_factor", "rotary_dim", "router_aux_loss_coef",
        "output_router_logits", "aux_loss_alpha", "seq_aux", "pretraining_tp", "ep_size",
        "quantization_config", "num_logits_to_keep", "chunk_size_feed_forward", "num_beams",
        "num_beam_groups", "num_return_sequences", "use_bfloat16", "return_dict", "return_dict_in_generate",
        "output_attentions", "output_hidden_states", "output_scores", "add_cross_attention",
        "_attn_implementation", "_attn_implementation_autoset",
        # Activations, routing scores, scaling and rotary angles: the same weights and caches whatever they say.
        "hidden_act", "hidden_activation", "mamba_hidden_act", "mlp_hidden_act", "activation_func",
        "activation_situ_beta", "activation_situ_linear_beta", "swiglu_alpha", "swiglu_limit", "gate_lower_bound",
        "attention_value_scale", "final_logit_softcapping", "attn_logit_softcapping", "norm_topk_prob",
        "routed_scaling_factor", "moe_router_scaling_factor", "scoring_func", "topk_method", "moe_router_dtype",
        "moe_router_activation_func", "moe_shared_expert_overlap", "router_jitter_noise", "residual_in_fp32",
        "rescale_prenorm_residual", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min",
        "hc_eps", "hc_sinkhorn_iters", "compress_rope_theta", "swa_rope_theta", "indexer_rope_interleave",
        "query_pre_attn_scalar", "logit_scale", "attn_scale", "floor_scale", "attn_temperature_tuning",
        "input_jitter_noise", "original_max_position_embeddings", "cache_implementation",
        "rope_mode", "use_mrope", "initializer_factor", "embedding_dropout", "rope_local_base_freq",
        # Vision: how images become tokens, not what the tower is made of.
        "default_output_length", "image_grid_pinpoints", "image_seq_length", "video_seq_length", "image_placeholder",
        "video_placeholder", "process_image_mode", "vision_feature_layer", "vision_feature_select_strategy",
        "vision_segment_max_frames", "vision_soft_tokens_per_image", "projector_hidden_act", "projector_ln_eps",
        "pos_emb_interpolation_mode", "language_model_only",
        # Generation, tokens and training bookkeeping that older transformers wrote into every config.
        "bad_words_ids", "begin_suppress_tokens", "suppress_tokens", "diversity_penalty", "do_sample",
        "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task",
        "forced_bos_token_id", "forced_eos_token_id", "is_decoder", "is_encoder_decoder", "length_penalty",
        "max_length", "min_length", "no_repeat_ngram_size", "prefix", "problem_type", "remove_invalid_values",
        "repetition_penalty", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
        "tokenizer_class", "top_k", "top_p", "torchscript", "typical_p", "ignore_index", "cross_attention_hidden_size",
        "pruned_heads", "classifier_dropout", "summary_type",
    }
)
# fmt: on
# Numbers of special tokens (image_token_id, boa_token_index, ...).
_TOKEN = re.compile(r"_token_(id|ids|index)$")
_ABSENT: tuple[Any, ...] = (None, [], {}, "")


class Fields:
    """A config object and the objects inside it that were read. Readers ask by name; what nobody asked for is named:
    `refuse_leftovers` where it looks structural, `unaccounted` where it does not."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        if not isinstance(values, dict):
            raise InputError(f"is a {type(values).__name__}", where=where, expected="an object")
        self._values, self._where = values, where
        self._read: set[str] = set()
        self._parts: dict[str, Fields] = {}
        self.assumed: list[str] = []

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def states(self, name: str) -> bool:
        """Whether the config writes the field down, even as null: for fields whose absence means something else."""
        return name in self._values

    @property
    def where(self) -> str:
        return self._where

    def assume(self, values: dict[str, Any], source: str) -> None:
        """Fill in what a family's released configs leave to its config class; `assumed` says what was."""
        missing = {name: value for name, value in values.items() if name not in self}
        if missing:
            self._values = {**self._values, **missing}
            words = ", ".join(f"{name} {value}" for name, value in missing.items())
            self.assumed.append(f"left to {source} by the config: {words}")

    def raw(self, name: str, default: Any = _MISSING) -> Any:
        """The value as it stands; null counts as absent. Raises NotUnderstood when required and missing."""
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            if default is _MISSING:
                raise NotUnderstood(f"field {name!r} is missing", where=self._where, expected=f"{name} in the config")
            return default
        return value

    def integer(self, *names: str, default: int | None = None, least: int = 0, most: int = 10**12) -> int:
        """The first of several spellings of an integer, within bounds."""
        for name in names:
            value = self.raw(name, None)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InputError(
                    f"field {name!r} is {value!r}"[:200], where=self._where, expected=f"an integer in {least}..{most}"
                )
            return value
        if default is None:
            raise NotUnderstood(f"field {' or '.join(map(repr, names))} is missing", where=self._where)
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        """The first of several spellings of a boolean."""
        for name in names:
            value = self.raw(name, None)
            if value is None:
                continue
            if not isinstance(value, bool):
                raise InputError(f"field {name!r} is {value!r}"[:200], where=self._where, expected="true or false")
            return value
        return default

    def text(self, name: str, default: str | None = None) -> str:
        """A string field."""
        value = self.raw(name, _MISSING if default is None else default)
        if not isinstance(value, str):
            raise InputError(f"field {name!r} is {value!r}"[:200], where=self._where, expected="a string")
        return value

    def sequence(self, name: str, length: int | None = None, default: Any = _MISSING) -> list[Any]:
        """A list field, of a given length when one is required."""
        value = self.raw(name, default)
        if value is None:
            return []
        if not isinstance(value, list) or (length is not None and len(value) < length):
            expected = "a list" if length is None else f"a list of at least {length}"
            raise InputError(f"field {name!r} is {value!r}"[:200], where=self._where, expected=expected)
        return value

    def section(self, name: str) -> "Fields | None":
        """A nested object, or None when absent."""
        value = self.raw(name, None)
        return None if value is None else self.part(value, name)

    def part(self, value: Any, name: str) -> "Fields":
        """A nested object by its place (`name`, `blocks[3]`): its leftovers count as this object's."""
        if name not in self._parts:
            self._parts[name] = Fields(value, f"{self._where}: {name}")
        return self._parts[name]

    def per_layer(self, layers: int) -> list["Fields"]:
        """`per_layer_config`, as transformers writes it: by layer number, the fields in which that layer differs."""
        changes: list[Fields] = [Fields({}, self._where)] * layers
        listed = self.section("per_layer_config")
        for name, change in listed._values.items() if listed else ():
            index = int(name) if name.isdecimal() and len(name) < 6 else layers
            if index >= layers:
                raise InputError(f"per_layer_config names {name!r}"[:200], where=self._where, expected="layer numbers")
            changes[index] = self.part(change, f"per_layer_config[{index}]")
        self._parts.pop("per_layer_config", None)  # what is in it are not fields but layers
        return changes

    def ignore(self, *names: str) -> None:
        """Say that these fields were considered and do not change what the model is made of."""
        self._read.update(names)

    def leftovers(self) -> list[str]:
        """Structural-looking fields with a value that no reader asked for; those that say false or 0 are off."""
        return sorted(n for n in self._unread() if self._values[n] not in (False, 0) and _STRUCTURAL.search(n))

    def unaccounted(self) -> list[str]:
        """Every other field with a value that no reader asked for and that is not known to be harmless, parts first."""
        inner = [n for part in self._parts.values() for n in part.unaccounted()]
        return [*inner, *sorted(set(self._unread()) - set(self.leftovers()))]

    def _unread(self) -> list[str]:
        return [
            name
            for name, value in self._values.items()
            if name not in self._read and name not in HARMLESS and value not in _ABSENT and not _TOKEN.search(name)
        ]

    def refuse_leftovers(self) -> None:
        """A config with a structural field we do not account for is refused, naming the fields."""
        for part in self._parts.values():
            part.refuse_leftovers()
        names = self.leftovers()
        if names:
            raise NotUnderstood(
                "fields not understood: " + ", ".join(names),
                where=self._where,
                expected="only fields whose effect on weights and caches is known",
                hint="Report the model, or drop the fields if they are unused",
            )


class Draft:
    """A model being written down by its family's reader: layers, weights before quantisation, notes."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        # 0 = not set by the reader: model/read.py then takes the usual field names.
        self.hidden = 0
        self.vocab = 0
        self.max_len = 0
        # Role prefix -> name of a storage scheme (quant.NAMED) the family itself prescribes, e.g. DeepSeek-V4's fp4
        # experts, or "" for weights it keeps in the model's dtype; it wins over the config's general scheme, not over
        # one that names the module.
        self.role_schemes: dict[str, str] = {}
        # Storage dtype of block-FP8 scales: float32 in DeepSeek-V3.x and its followers, float8_e8m0 in DeepSeek-V4.
        self.fp8_scale_dtype = "float32"
        self.tensors: list[Tensor] = []
        self.layers: list[Layer] = []
        self.notes: list[str] = []
        self.moe: Moe | None = None
        self.mtp_layers = 0
        self.mla_latent = 0
        self.mla_rope = 0
        self.heads = 0
        self.kv_heads = 0
        self.head_dim = 0
        self.tied = False

    def add(
        self,
        name: str,
        role: str,
        *shape: int,
        layer: int = -1,
        split: Split = Split.NONE,
        units: int = 0,
        count: int = 1,
        dtype: str | None = None,
    ) -> None:
        """One unquantised weight (or `count` equal ones); shape is output features first."""
        elements = count
        for extent in shape:
            elements *= extent
        kind = dtype or self.dtype
        self.tensors.append(
            Tensor(
                name=name,
                role=role,
                layer=layer,
                shape=shape,
                dtype=kind,
                bytes=nbytes(elements, kind),
                count=count,
                split=split,
                units=units,
                kept=kind if dtype in PLAIN else "",
            )
        )
