"""What the forward pass needs of a config.json, beyond the sizes the planner reads.

Field meanings as in Hugging Face transformers, whose modelling code is the numerical reference.
"""

from collections.abc import Mapping
from typing import Any, Literal

from linkwise.core.errors import InputError, NotUnderstood
from linkwise.core.schema import Frozen
from linkwise.engine.own import FAMILIES

MAX_COUNT, MAX_NUMBER = 1 << 31, 1e12  # of what a config says
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_MOE = frozenset({"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"})


class Rope(Frozen, frozen=True, kw_only=True):
    """Rotary positions. dim: rotated elements of a head. interleaved: pairs are (0, 1), (2, 3), ... as DeepSeek stores
    them; else (0, dim/2), ... scaling: the config's rope_scaling as it stands; empty = none."""

    theta: float
    dim: int
    interleaved: bool = False
    scaling: dict[str, Any] = {}
    max_positions: int = 0


class Heads(Frozen, frozen=True, kw_only=True):
    """Grouped-query attention. window: keys a query sees at most, itself included; None = all."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    window: int | None = None


class Latent(Frozen, frozen=True, kw_only=True):
    """Multi-head latent attention. q_rank None: queries are projected directly."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False


class Experts(Frozen, frozen=True, kw_only=True):
    """Routed and shared experts. layers: which layers have them.

    scoring: of router logits. normalise: chosen weights are divided by their sum. scale: factor on the weights.
    groups, top_groups: 1, 1 = no grouping; group_score: by which groups are ranked. corrected: scores are ranked (not
    weighted) after adding e_score_correction_bias. shared_intermediate: width of all shared experts together, 0 = none.
    """

    count: int
    top_k: int
    intermediate: int
    layers: tuple[int, ...]
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    corrected: bool = False
    shared_intermediate: int = 0


class Arch(Frozen, frozen=True, kw_only=True):
    """One decoder-only model. attention: of every layer. experts None: every layer's MLP is dense.

    dtype: of weights and activations (core.dtypes name). eos: token ids that end a text.
    """

    family: str
    vocab: int
    hidden: int
    layers: int
    intermediate: int
    eps: float
    tied: bool
    dtype: str
    max_len: int
    rope: Rope
    attention: Heads | Latent
    experts: Experts | None = None
    mlp_bias: bool = False
    eos: tuple[int, ...] = ()


class _Config:
    """A config.json's fields, typed as they are asked for."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def count(self, name: str, otherwise: int | None = None, *, least: int = 1) -> int:
        value = self.fields.get(name)
        value = otherwise if value is None else value
        if type(value) is not int or not least <= value <= MAX_COUNT:
            raise InputError(
                f"{name} is {value!r}"[:80], where=self.where, expected=f"a whole number from {least} to {MAX_COUNT}"
            )
        return value

    def number(self, name: str, otherwise: float | None, *, above: float | None = None) -> float:
        """above: what the number must be greater than. otherwise None: it must be there."""
        value: Any = self.fields.get(name)
        value = otherwise if value is None else value
        bad = isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_NUMBER
        if bad or (above is not None and value <= above):
            least = f"above {above:g} and below {MAX_NUMBER:g}" if above is not None else f"within {MAX_NUMBER:g}"
            raise InputError(f"{name} is {value!r}"[:80], where=self.where, expected=f"a number {least}")
        return float(value)

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self.fields.get(name)
        value = otherwise if value is None else value
        if not isinstance(value, bool):
            raise InputError(f"{name} is {value!r}"[:80], where=self.where, expected="true or false")
        return value


def check_family(fields: Mapping[str, Any], where: str) -> str:
    """The family of a config.json. Raises NotUnderstood for one that the runtime does not run."""
    family = str(fields.get("model_type"))[:40]
    if family not in FAMILIES:
        raise NotUnderstood(f"model_type {family!r}", where=where, expected="one of " + ", ".join(FAMILIES))
    return family


def read_arch(fields: Mapping[str, Any], *, where: str, dtype: str) -> Arch:
    """The architecture a config.json describes. dtype: of weights and activations.

    Raises NotUnderstood for a family or a feature the runtime does not run, InputError for a malformed field.
    """
    family = check_family(fields, where)
    if fields.get("quantization_config"):
        raise NotUnderstood("quantization_config", where=where, expected="weights in bfloat16, float16 or float32")
    if fields.get("hidden_act", "silu") != "silu":
        raise NotUnderstood(f"hidden_act {fields['hidden_act']!r}"[:80], where=where, expected="silu")
    config = _Config(fields, where)
    mla = family.startswith("deepseek")
    attention = _latent(config) if mla else _heads(config, family)
    return Arch(
        family=family,
        vocab=config.count("vocab_size"),
        hidden=config.count("hidden_size"),
        layers=config.count("num_hidden_layers"),
        intermediate=config.count("intermediate_size"),
        eps=config.number("rms_norm_eps", 1e-6, above=0.0),
        tied=config.flag("tie_word_embeddings", False),
        dtype=dtype,
        max_len=config.count("max_position_embeddings", 2048),
        rope=_rope(config, attention),
        attention=attention,
        experts=_experts(config, family) if family in _MOE else None,
        mlp_bias=config.flag("mlp_bias", False),
        eos=_eos(fields.get("eos_token_id")),
    )


def _eos(value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids[:64] if type(i) is int and i >= 0)


def _heads(config: _Config, family: str) -> Heads:
    heads = config.count("num_attention_heads")
    qwen = family in {"qwen2", "qwen3", "qwen3_moe"}
    sliding = config.fields.get("sliding_window")
    # Qwen configs carry a window that is off unless they say so.
    used = sliding is not None and (not qwen or config.flag("use_sliding_window", False))
    if used and qwen:
        raise NotUnderstood("use_sliding_window", where=config.where, expected="full attention in every layer")
    bias = config.flag("attention_bias", False)
    return Heads(
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_dim=config.count("head_dim", config.count("hidden_size") // heads),
        qkv_bias=True if family == "qwen2" else bias,
        out_bias=bias,
        qk_norm=family in {"qwen3", "qwen3_moe"},
        window=config.count("sliding_window") if used else None,
    )


def _latent(config: _Config) -> Latent:
    q_rank = config.fields.get("q_lora_rank")
    return Latent(
        heads=config.count("num_attention_heads"),
        q_rank=None if q_rank is None else config.count("q_lora_rank"),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        v_dim=config.count("v_head_dim"),
        bias=config.flag("attention_bias", False),
    )


def _rope(config: _Config, attention: Heads | Latent) -> Rope:
    # transformers 5 writes rope_parameters, with theta inside; earlier ones rope_scaling and rope_theta.
    found = [one for name in ("rope_parameters", "rope_scaling") if (one := _rope_fields(config, name))]
    given = found[0] if found else {"rope_type": "default"}
    if len(found) > 1 and found[0] != found[1]:
        # transformers lets rope_scaling win, silently; who wrote both meant one of them.
        name = next(name for name in sorted({*found[0], *found[1]}) if found[0].get(name) != found[1].get(name))
        raise InputError(
            f"rope_parameters and rope_scaling disagree: {name} {found[0].get(name)!r} and {found[1].get(name)!r}"[
                :200
            ],
            where=config.where,
            expected="one of them, or both the same",
        )
    inner, kind = _Config(given, f"{config.where}: rope_parameters"), given["rope_type"]
    if config.number("partial_rotary_factor", inner.number("partial_rotary_factor", 1.0)) != 1.0:
        raise NotUnderstood("partial_rotary_factor", where=config.where, expected="1")
    longest = config.count("max_position_embeddings", 2048)
    _check_scaling(inner, kind, longest)
    latent = isinstance(attention, Latent)
    dim = attention.rope_dim if latent else attention.head_dim  # type: ignore[union-attr]
    if dim % 2:
        raise InputError(f"{dim} rotated elements of a head", where=config.where, expected="an even number")
    return Rope(
        # Frequencies are powers of it; yarn divides by its logarithm.
        theta=inner.number("rope_theta", _theta(config), above=1.0 if kind == "yarn" else 0.0),
        dim=dim,
        interleaved=latent and config.flag("rope_interleave", True),
        scaling={} if kind == "default" else given,
        max_positions=longest,
    )


def _theta(config: _Config) -> float:
    return config.number("rope_theta", 10_000.0, above=0.0)


def _rope_fields(config: _Config, name: str) -> dict[str, Any]:
    """One of the two objects, with its type by today's name and theta inside; empty where there is none."""
    given = config.fields.get(name)
    if given is None or given == {}:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"{name} is no object", where=config.where)
    kinds = [given[key] for key in ("rope_type", "type") if given.get(key) is not None]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _ROPE_TYPES:
            raise NotUnderstood(
                f"rope_type {str(kind)[:40]!r}", where=f"{config.where}: {name}",
                expected="default, linear, llama3 or yarn",
            )  # fmt: skip
    if len(set(kinds)) > 1:
        raise InputError(
            f"rope_type {kinds[0]!r} and type {kinds[1]!r}", where=f"{config.where}: {name}", expected="one of them"
        )
    nested = next((key for key, value in given.items() if isinstance(value, Mapping)), None)
    if nested is not None:
        raise NotUnderstood(
            f"{nested[:40]!r} in {name}", where=config.where, expected="the same rotation in every layer"
        )
    plain = {key: value for key, value in given.items() if key != "type" and value is not None}
    return {"rope_theta": _theta(config), **plain, "rope_type": kinds[0] if kinds else "default"}


def _check_scaling(inner: _Config, kind: str, longest: int) -> None:
    """Refuse numbers that give no rotation: each is divided by, or the logarithm of it is taken."""
    if kind == "default":
        return
    length = inner.number("original_max_position_embeddings", longest, above=0.0)
    inner.number("factor", longest / length if kind == "yarn" else None, above=0.0)
    if kind == "llama3":
        low = inner.number("low_freq_factor", None, above=0.0)
        inner.number("high_freq_factor", None, above=low)
    elif kind == "yarn":
        # As in transformers, 0 for one of the betas stands for its default.
        fast, slow = inner.number("beta_fast", 0.0) or 32.0, inner.number("beta_slow", 0.0) or 1.0
        if not 0 < slow <= fast:
            raise InputError(
                f"beta_fast {fast:g}, beta_slow {slow:g}",
                where=inner.where,
                expected="beta_fast from beta_slow on, above 0",
            )
        inner.number("attention_factor", 1.0, above=0.0)
        for name in ("mscale", "mscale_all_dim"):
            if inner.number(name, 0.0) < 0:
                raise InputError(f"{name} is {inner.fields[name]!r}"[:80], where=inner.where, expected="from 0 on")
        inner.flag("truncate", True)


def _experts(config: _Config, family: str) -> Experts:
    layers = config.count("num_hidden_layers")
    if family == "mixtral":
        return Experts(
            count=config.count("num_local_experts"),
            top_k=config.count("num_experts_per_tok"),
            intermediate=config.count("intermediate_size"),
            layers=tuple(range(layers)),
        )
    if family == "qwen3_moe":
        dense, every = config.fields.get("mlp_only_layers") or [], config.count("decoder_sparse_step", 1)
        return Experts(
            count=config.count("num_experts", config.fields.get("num_local_experts")),  # transformers 5 renamed it
            top_k=config.count("num_experts_per_tok"),
            intermediate=config.count("moe_intermediate_size"),
            layers=tuple(i for i in range(layers) if i not in dense and (i + 1) % every == 0),
            normalise=config.flag("norm_topk_prob", False),
        )
    v3 = family == "deepseek_v3"
    method = str(config.fields.get("topk_method", "noaux_tc" if v3 else "greedy"))[:40]
    if method not in ({"noaux_tc"} if v3 else {"greedy", "group_limited_greedy"}):
        raise NotUnderstood(f"topk_method {method!r}", where=config.where)
    grouped = v3 or method == "group_limited_greedy"
    each = config.count("moe_intermediate_size")
    return Experts(
        count=config.count("n_routed_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate=each,
        layers=tuple(
            i for i in range(layers)
            if i >= config.count("first_k_dense_replace", 0, least=0) and i % config.count("moe_layer_freq", 1) == 0
        ),
        scoring="sigmoid" if v3 else "softmax",
        normalise=config.flag("norm_topk_prob", v3),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=config.count("n_group", 1) if grouped else 1,
        top_groups=config.count("topk_group", 1) if grouped else 1,
        group_score="top2" if v3 else "max",
        corrected=v3,
        shared_intermediate=each * config.count("n_shared_experts", 0, least=0),
    )  # fmt: skip
