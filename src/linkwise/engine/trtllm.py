"""TensorRT-LLM: what it refuses, how it cuts a pipeline, its flags, its settings file and their reverse.

`--tp_size` counts all ranks of a stage. Attention data parallelism is all or nothing, and is set in a YAML file.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from linkwise.core.errors import InputError
from linkwise.core.files import parse_yaml_object
from linkwise.core.layout import Layout
from linkwise.engine import rules
from linkwise.engine.base import Convention, Options, Parsed, Refusal
from linkwise.engine.fact_engine import (
    FactEngine,
    check_stages,
    degree,
    flag_words,
    kv_dtype,
    kv_word,
    model_name,
    one_replica,
)
from linkwise.engine.flags import Words, positive, read, unused, without_program
from linkwise.model.types import Model

SETTINGS = "trtllm.yaml"
_KV_WORDS = {"float8_e4m3": "fp8", "float4_e2m1": "nvfp4", "bfloat16": "auto"}
_PROGRAMS = (("trtllm-serve", "serve"), ("trtllm-serve",), ("-m", "tensorrt_llm.commands.serve"))


class Trtllm(FactEngine):
    """TensorRT-LLM at one version."""

    def refusals(self, model: Model, layout: Layout, per_node: int, options: Options) -> Iterator[Refusal | None]:
        yield rules.stages(model, layout)
        yield rules.only_moe(model, layout, dense_dp="attention data parallelism of dense models is not modelled")
        if layout.sequence_sharded:
            yield Refusal(reason="TensorRT-LLM has no sequence-sharded layout", ways=({"sequence_sharded": 0},))
        if layout.cp > 1 or layout.dcp > 1:
            yield Refusal(
                reason="context parallelism of TensorRT-LLM (helix, star, ulysses) is not modelled",
                ways=({"cp": 1, "dcp": 1},),
            )
        if layout.dp_attn > 1 and layout.tp > 1:
            yield Refusal(
                reason=f"dp_attn {layout.dp_attn} with tp {layout.tp}: attention is data parallel over all ranks of a"
                " stage or over none",
                change=f"dp_attn {layout.stage_size} with tp 1",
                ways=({"dp_attn": layout.stage_size, "tp": 1}, {"dp_attn": 1}),
            )
        yield rules.heads(model, layout)
        # The head is padded to a multiple of the ranks, so the vocabulary always divides.
        yield rules.divides(model, layout, self.convention, vocab_pad=layout.stage_size)
        yield rules.experts(model, layout, even=True)
        yield rules.fp8_blocks(model, layout, self.convention)

    def convention_for(self, model: Model, layout: Layout, options: Options) -> Convention:
        # No flag: tokens go straight to their experts where its NVLink all-to-all runs (racks of Grace and Blackwell).
        if options.moe_exchange != "all_to_all":
            return self.convention
        return msgspec.structs.replace(self.convention, moe_exchange="all_to_all")

    def stage_layers(self, layers: int, pp: int) -> tuple[int, ...]:
        """The remainder goes to the first stages. Source: tensorrt_llm/mapping.py pp_layers."""
        check_stages(layers, pp)
        return rules.even_partition(layers, pp)

    def files(self, layout: Layout, options: Options) -> dict[str, str]:
        """The settings file, where the layout or the options need more than flags."""
        lines = []
        if layout.dp_attn > 1:
            lines.append("enable_attention_dp: true")
        word = kv_word(options.kv_dtype, _KV_WORDS, "trtllm-serve")
        if word or options.block_tokens:
            lines.append("kv_cache_config:")
            lines += [f"  dtype: {word}"] if word else []
            lines += [f"  tokens_per_block: {options.block_tokens}"] if options.block_tokens else []
        if options.mtp_tokens:
            lines += ["speculative_config:", "  decoding_type: MTP"]
            lines.append(f"  num_nextn_predict_layers: {options.mtp_tokens}")
        if options.eager:
            lines.append("cuda_graph_config: null")
        return {SETTINGS: "\n".join(lines) + "\n"} if lines else {}

    def command(self, model: str, layout: Layout, options: Options, *, replicas: int = 1, nodes: int = 1) -> list[str]:
        one_replica(replicas, "trtllm-serve")
        for name, unset in (("dtype", None), ("weight_dtype", None), ("lora_count", 0), ("moe_exchange", None)):
            if getattr(options, name) != unset:
                raise InputError(
                    f"{name} is {getattr(options, name)!r}",
                    where="trtllm-serve",
                    expected="the default: no flag sets it",
                )
        flags = {
            "--tp_size": degree(layout.stage_size),
            "--pp_size": degree(layout.pp),
            "--ep_size": degree(layout.ep),
            "--max_batch_size": options.max_seqs,
            "--max_num_tokens": options.max_batched_tokens,
            "--max_seq_len": options.max_model_len,
            "--kv_cache_free_gpu_memory_fraction": options.memory_utilization,
            "--gpus_per_node": -(-layout.size // nodes) if nodes > 1 else None,
            "--extra_llm_api_options": SETTINGS if self.files(layout, options) else None,
        }
        launcher = ["mpirun", "-n", str(layout.size), "--hostfile", "HOSTFILE", "trtllm-llmapi-launch"]
        return [*(launcher if nodes > 1 else ()), "trtllm-serve", model, *flag_words(flags)]

    def node_notes(self, layout: Layout, nodes: int) -> tuple[str, ...]:
        if nodes == 1:
            return ()
        each = -(-layout.size // nodes)
        return (
            "start the command once, on any node: mpirun (or srun with one task for each GPU) starts all ranks",
            f"HOSTFILE lists the {nodes} nodes with {each} slots each",
        )

    def parse(
        self, arguments: list[str], *, model: Model | None = None, files: Mapping[str, str] | None = None
    ) -> Parsed:
        where = "trtllm-serve"
        words = read(without_program(arguments, _PROGRAMS), self.facts.flags, where=where)
        notes, ignored = list(words.notes), list(words.ignored)
        settings = _settings(words, files or {}, notes)
        top = {key: settings.pop(key, None) for key in _SETTINGS_KEYS}
        cache = _section(top["kv_cache_config"], f"{where}: kv_cache_config")
        speculative = _section(top["speculative_config"], f"{where}: speculative_config")
        _refuse(settings, cache, speculative, where)
        eager = "cuda_graph_config" in settings and settings.pop("cuda_graph_config") is None
        for name, config, used in (
            ("kv_cache_config", cache, ("dtype", "free_gpu_memory_fraction", "tokens_per_block")),
            ("speculative_config", speculative, ("decoding_type", "num_nextn_predict_layers", "max_draft_len")),
            ("", settings, ()),
        ):
            ignored += [f"{word.lstrip('.')} (settings file)" for word in unused(name, config, used)] if config else []

        def chosen(flag: str, *keys: str, config: Mapping[str, Any] = top) -> Any:
            # The settings file overwrites the flags.
            written = next((config[key] for key in keys if config.get(key) is not None), None)
            given = words.take(flag)
            if written is not None and given is not None and written != given:
                notes.append(f"the settings file's {keys[0]} {written} overrides the flag's {given}")
            return given if written is None else written

        ranks = positive(chosen("tp", "tensor_parallel_size"), "tp_size", where)
        if positive(chosen("cp", "context_parallel_size"), "cp_size", where) > 1:
            raise InputError("context parallelism of TensorRT-LLM is not modelled", where=where, expected="--cp_size 1")
        ep = _expert_degree(chosen("ep", "moe_expert_parallel_size"), top["moe_tensor_parallel_size"], ranks, where)
        over = ranks if top["enable_attention_dp"] else 1
        mtp = speculative.get("num_nextn_predict_layers", speculative.get("max_draft_len", 1))
        options = Options(
            kv_dtype=kv_dtype(str(chosen("kv_dtype", "dtype", config=cache) or "auto"), where),
            memory_utilization=chosen("memory_utilization", "free_gpu_memory_fraction", config=cache),
            max_batched_tokens=chosen("max_batched_tokens", "max_num_tokens"),
            max_seqs=chosen("max_seqs", "max_batch_size"),
            max_model_len=chosen("max_model_len", "max_seq_len"),
            block_tokens=cache.get("tokens_per_block"),
            mtp_tokens=positive(mtp, "draft tokens", where) if speculative else 0,
            eager=eager,
        )
        return Parsed(
            engine=self.name,
            model=model_name(words, where),
            layout=Layout(
                tp=ranks // over,
                pp=positive(chosen("pp", "pipeline_parallel_size"), "pp_size", where),
                dp_attn=over,
                ep=ep,
            ),
            options=options,
            ignored=tuple(ignored),
            notes=tuple(notes),
        )


_SETTINGS_KEYS = (
    "enable_attention_dp",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "moe_expert_parallel_size",
    "moe_tensor_parallel_size",
    "kv_cache_config",
    "speculative_config",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
)


def _loaded(words: Words, files: Mapping[str, str]) -> dict[str, Any]:
    path = words.take("extra")
    text = None if path is None else files.get(path, files.get(path.rsplit("/", 1)[-1]))
    return {} if text is None else parse_yaml_object(text, where=str(path))


def _settings(words: Words, files: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """The settings file as a mapping; a note when the command names one that was not given."""
    path = words.take("extra")
    if path is not None and path not in files and path.rsplit("/", 1)[-1] not in files:
        notes.append(
            f"{path} was not read: it may set attention data parallelism, the KV dtype and more; what is shown holds"
            " for the flags alone"
        )
    return dict(_loaded(words, files))


def _section(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"is {value!r}"[:120], where=where, expected="a mapping")
    return value


def _refuse(settings: dict[str, Any], cache: dict[str, Any], speculative: dict[str, Any], where: str) -> None:
    method = speculative.get("decoding_type", "MTP")
    if method != "MTP":
        raise InputError(f"decoding_type {method!r} is not modelled"[:120], where=where, expected="MTP")
    if cache.get("max_tokens") is not None:
        raise InputError("kv_cache_config.max_tokens", where=where, hint="It caps the KV pool being planned: remove it")
    if settings.get("moe_cluster_parallel_size") not in {None, 1}:
        raise InputError("expert clusters are not modelled", where=where, hint="Use moe_expert_parallel_size")


def _expert_degree(ep: int | None, moe_tp: int | None, ranks: int, where: str) -> int:
    """The expert degree from either of the two that multiply to the stage's ranks."""
    if ep is None and moe_tp is None:
        return 1
    found = positive(ep, "ep_size", where) if ep is not None else ranks // positive(moe_tp, "moe tp", where)
    if moe_tp is not None and found * moe_tp != ranks:
        raise InputError(
            f"moe_expert_parallel_size {found} x moe_tensor_parallel_size {moe_tp}",
            where=where,
            expected=f"= tp {ranks}",
        )
    return found
