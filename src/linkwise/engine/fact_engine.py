"""An engine whose figures come from its facts file; subclasses add what needs code."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import msgspec

from linkwise.cluster.types import Accelerator
from linkwise.core import dtypes
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import rules
from linkwise.engine.base import DEFAULT, Defaults, Engine, Options, Refusal, Resolved
from linkwise.engine.facts_io import Facts
from linkwise.engine.flags import Words
from linkwise.model.types import Model

# Options a launch command has no words for: they describe the workload or a what-if, not the engine.
SPLITS = ("dense_whole", "head_over_tp")  # options that an engine has where its gates say so
PLANNING_ONLY = ("prefix_cache_tokens", "moe_skew", "microbatches", "lora_targets")


class FactEngine(Engine):
    """One engine at one version, from its facts. Immutable by convention of the registry, which hands out one each."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.name = facts.engine
        self.version = facts.version
        self.sources = tuple(sorted(set(facts.sources.values())))
        self.memory = facts.memory
        self.convention = facts.convention
        self.batching = facts.batching
        self.defaults = facts.defaults
        self.defaults = self.defaults_for(None)

    def source_of(self, figure: str) -> str:
        """Where a figure such as "defaults.max_seqs" comes from; the section's own source when it has just one."""
        section = figure.partition(".")[0]
        return self.facts.sources.get(figure) or self.facts.sources.get(section) or "unverified"

    def defaults_for(self, accelerator: Accelerator | None, layout: Layout | None = None) -> Defaults:
        facts, found = self.facts, self.facts.defaults
        if accelerator is not None:
            mla = facts.block_tokens_mla_by_capability.get(str(accelerator.capability))
            found = msgspec.structs.replace(found, block_tokens_mla=mla or found.block_tokens_mla)
        large = facts.large_device
        if large is None:
            return found
        if accelerator is not None:
            named = f"{accelerator.name} {accelerator.label}".lower()
            if accelerator.memory_bytes < large.least_bytes or any(n in named for n in large.not_named):
                return found
        return msgspec.structs.replace(found, max_batched_tokens=large.max_batched_tokens, max_seqs=large.max_seqs)

    def resolve(
        self, options: Options, model: Model, accelerator: Accelerator | None = None, layout: Layout | None = None
    ) -> Resolved:
        self.check_kv_dtype(options)
        for name in SPLITS:
            if getattr(options, name) and not self.facts.gates.get(name):
                raise InputError(
                    name, where=f"{self.name} {self.version}", expected="--engine sglang: its options say this"
                )
        return super().resolve(options, model, accelerator, layout)

    def dtype_of(self, model: Model, options: Options, accelerator: Accelerator | None = None) -> str:
        rule, own = self.facts.dtypes, model.config_dtype or model.dtype
        chosen = options.dtype
        if chosen is None:
            auto = next((a for kind, a in rule.families.items() if fnmatchcase(model.family, kind)), {})
            chosen = auto.get(own) or rule.auto.get(own, own)
        elif chosen not in rule.choices:
            known = "one of " + ", ".join(rule.choices) if rule.choices else "the checkpoint's own: no flag sets it"
            raise InputError(f"{chosen} is not run", where=f"{self.name} {self.version}: dtype", expected=known)
        if chosen == "bfloat16" and accelerator is not None and 0 < accelerator.capability < rule.bfloat16_capability:
            chosen = "float16"
        # What is stored without quantising is cast; a what-if of other plain weights would not be what runs.
        if model.quantization in dtypes.PLAIN and model.quantization != chosen:
            raise InputError(
                f"weights in {model.quantization}",
                where=f"{self.name} {self.version}: weights",
                expected=f"{chosen}, which it runs",
                hint=f"Choose dtype {model.quantization} beside it" if model.quantization in rule.choices else "",
            )
        return chosen

    def check_kv_dtype(self, options: Options) -> None:
        """Raises InputError for a KV-cache dtype this engine does not store (`kv_dtypes` in its facts)."""
        if options.kv_dtype in {None, "auto"}:
            return
        where = f"{self.name} {self.version}: KV dtype"
        known: list[str] = self.facts.gates["kv_dtypes"]
        if dtypes.canonical(str(options.kv_dtype), where=where) not in known:
            raise InputError(f"{options.kv_dtype!r} is not stored", where=where, expected="one of " + ", ".join(known))

    def refuses(
        self, model: Model, layout: Layout, *, devices_per_node: int, options: Options = DEFAULT
    ) -> Refusal | None:
        def refuse(at: Layout) -> Refusal | None:
            return rules.first(self.refusals(model, at, devices_per_node, options))

        found = refuse(layout)
        return None if found is None else rules.settle(found, layout, refuse)

    @abstractmethod
    def refusals(self, model: Model, layout: Layout, per_node: int, options: Options) -> Iterator[Refusal | None]:
        """The engine's rules in order, each its refusal or None; evaluated lazily."""

    def warnings(self, model: Model, layout: Layout) -> tuple[str, ...]:
        found = []
        if not self.facts.checked:
            found.append(
                f"{self.name} {self.version} is newer than the facts (those of {self._fact_version}): its defaults and"
                " limits may differ. Check its release notes, or set the options explicitly"
            )
        return tuple(found)

    @property
    def _fact_version(self) -> str:
        from linkwise.engine.facts_io import raw

        return raw(self.name).version


def check_stages(layers: int, pp: int) -> None:
    """Raises InputError when a stage would have no layer."""
    if not 1 <= pp <= layers:
        raise InputError(f"{layers} layers in {pp} stages", where="layout", expected=f"pp 1..{layers}")


def one_replica(replicas: int, engine: str) -> None:
    """Raises InputError for engines whose launch command starts a single replica."""
    if replicas != 1:
        raise InputError(
            f"{replicas} replicas in one {engine} command",
            where="command",
            expected="1 replica",
            hint="Start the command once per replica, behind a router",
        )


def numbered(nodes: int) -> tuple[str, ...]:
    """What NODE_RANK and HEAD_ADDRESS of a command stand for."""
    return (
        f"start the command on each of the {nodes} nodes: NODE_RANK is 0 on the first, {nodes - 1} on the last",
        "HEAD_ADDRESS is an address of the first node that all others reach",
    )


def flag_words(pairs: Mapping[str, object]) -> list[str]:
    """Flags with their values: True is a bare flag, None and False are left out."""
    words: list[str] = []
    for name, value in pairs.items():
        if value is None or value is False:
            continue
        words.append(name)
        if value is not True:
            words.append(str(value))
    return words


def degree(value: int) -> int | None:
    """A degree as a flag's value: 1 is every engine's default and not written."""
    return value if value > 1 else None


def kv_dtype(text: str | None, where: str) -> str | None:
    """Canonical KV dtype of an engine's word for it; None for the engine's own choice. Raises InputError if unknown."""
    if text is None or text == "auto":
        return None
    plain = text.lower()
    if plain.startswith(("turboquant", "int4_per", "int8_per", "fp8_per", "nvfp4_4over6", "fp8_inc")):
        raise InputError(f"KV dtype {text!r} is not modelled", where=where, expected="auto, bfloat16, fp8 or nvfp4")
    plain = {"fp8_ds_mla": "fp8", "nvfp4": "fp4", "nvfp4_ds_mla": "fp4", "fp4_e2m1": "fp4"}.get(plain, plain)
    return dtypes.canonical(plain, where=where)


def kv_word(dtype: str | None, words: dict[str, str], where: str) -> str | None:
    """An engine's word for a KV dtype. Raises InputError for one it cannot store."""
    if dtype is None or dtype == "auto":
        return None
    plain = dtypes.canonical(dtype, where=where)
    if plain not in words:
        raise InputError(f"KV dtype {dtype!r}", where=where, expected="one of " + ", ".join(words))
    return words[plain]


def online_quantization(options: Options, where: str) -> str | None:
    """`fp8` where weights are quantised at load; other what-ifs need a checkpoint of their own. Raises InputError."""
    if options.weight_dtype is None:
        return None
    known = options.weight_dtype not in {"nvfp4", "mxfp4"}
    if known and dtypes.canonical(options.weight_dtype, where=where) == "float8_e4m3":
        return "fp8"
    raise InputError(
        f"weight_dtype {options.weight_dtype!r}",
        where=where,
        expected="fp8, the only quantisation done at load",
        hint="Give a checkpoint quantised that way instead",
    )


def read_quantization(text: str | None, notes: list[str]) -> str | None:
    """The what-if weight dtype of a --quantization flag; methods that describe the checkpoint become a note."""
    if text is None:
        return None
    if text == "fp8":
        notes.append(
            "--quantization fp8: unquantised linear weights are stored in FP8; an FP8 checkpoint stays as it is"
        )
        return "float8_e4m3"
    notes.append(f"--quantization {text}: taken from the checkpoint, which must hold such weights")
    return None


def read_dtype(words: Words, where: str) -> str | None:
    """The --dtype flag; None for the engine's own choice. Raises InputError for one that no model runs in."""
    dtype = words.take("dtype")
    if dtype in {None, "auto"}:
        return None
    found = dtypes.ALIASES.get(dtype, dtype)
    if found not in dtypes.PLAIN:
        raise InputError(f"--dtype {dtype}"[:80], where=where, expected="auto, bfloat16, float16 or float32")
    return str(found)


def model_name(words: Words, where: str) -> str:
    """The served model: a flag or the one positional word. Raises InputError without one or with several."""
    named = words.take("model")
    names = [named] if named else []
    names += [w for w in words.positional if w != named]
    if len(names) != 1:
        given = "no model" if not names else "several models or stray words: " + " ".join(names)
        raise InputError(given[:300], where=where, expected="one model name or path")
    return str(names[0])
