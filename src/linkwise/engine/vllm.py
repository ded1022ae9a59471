"""vLLM: what it refuses, how it cuts a pipeline, its flags and their reverse.

Data parallelism multiplies ranks. For a model with experts it is one group whose attention is replicated (dp_attn) and
whose experts span all its ranks; for a dense model the replicas share nothing.
"""

import json
from collections.abc import Iterator, Mapping

import msgspec

from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import rules
from linkwise.engine.base import Convention, Options, Parsed, Refusal, Resolved
from linkwise.engine.fact_engine import (
    FactEngine,
    check_stages,
    degree,
    flag_words,
    kv_dtype,
    kv_word,
    model_name,
    numbered,
    one_replica,
    online_quantization,
    read_dtype,
    read_quantization,
)
from linkwise.engine.flags import Words, positive, read, unused, without_program
from linkwise.model.types import Model

# Steps without chunked prefill take whole prompts; V0 switches chunking on above this length, with steps of 512 tokens.
# Source: vllm issue 10517 (20k and 29k profiled whole, 35k profiled in chunks).
_V0_UNCHUNKED_TOKENS = 32_768
_V0_CHUNK_TOKENS = 512
_KV_WORDS = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float8_e4m3": "fp8",
    "float8_e5m2": "fp8_e5m2",
    "float4_e2m1": "nvfp4",
}
# Both spellings of sequence-sharded tensor parallelism among the compiler's passes.
_SEQUENCE = ("pass_config.enable_sp", "pass_config.enable_sequence_parallelism")
_PROGRAMS = (
    ("vllm", "serve"),
    ("-m", "vllm.entrypoints.openai.api_server"),
    ("-m", "vllm.entrypoints.api_server"),
    ("-m", "vllm.entrypoints.cli.main", "serve"),
)
_GATHERING = {"allgather_reducescatter", "naive"}
_EXCHANGES = {
    "all_to_all": "deepep_low_latency",
    "all_to_all_node": "deepep_high_throughput",
    "all_gather": "allgather_reducescatter",
}


def _exchange(backend: str | None) -> str | None:
    """What an all2all backend does, as `Convention.moe_exchange` says it."""
    if backend is None:
        return None
    if backend in _GATHERING:
        return "all_gather"
    return "all_to_all_node" if backend == "deepep_high_throughput" else "all_to_all"


class Vllm(FactEngine):
    """vLLM at one version."""

    def refusals(self, model: Model, layout: Layout, per_node: int, options: Options) -> Iterator[Refusal | None]:
        gates = self.facts.gates
        yield rules.stages(model, layout)
        yield rules.only_moe(model, layout, dense_dp="vLLM runs the copies as independent replicas")
        yield _expert_degree(layout)
        yield _prefill_context(model, layout, bool(gates["prefill_context_parallel"]))
        if layout.sequence_sharded and not self._sequence_pass:
            yield Refusal(
                reason=f"vLLM {self.version} has no sequence-sharded tensor parallelism: its compiler has no such pass",
                ways=({"sequence_sharded": 0},),
            )
        yield rules.heads(model, layout)
        yield rules.recurrent_heads(model, layout)
        yield rules.divides(model, layout, self.convention, vocab_pad=self.defaults.vocab_pad)
        # Experts need not divide: a remainder is spread over the first ranks.
        yield rules.experts(model, layout, even=False)
        yield self._decode_context(model, layout)
        yield rules.fp8_blocks(model, layout, self.convention)

    @property
    def _sequence_pass(self) -> str:
        """The compiler pass that shards rows between tensor-parallel blocks; "" where this version has none."""
        return str(self.facts.gates["sequence_pass"])

    def _decode_context(self, model: Model, layout: Layout) -> Refusal | None:
        if layout.dcp > 1 and not self.facts.gates["decode_context_parallel"]:
            return Refusal(reason=f"vLLM {self.version} has no decode context parallelism", ways=({"dcp": 1},))
        return rules.context_shards(model, layout)

    def warnings(self, model: Model, layout: Layout) -> tuple[str, ...]:
        found = list(super().warnings(model, layout))
        if layout.pp > 1:
            found.append(self._pipeline_check(model, layout))
        if layout.cp > 1:
            found.append(
                "prefill context parallelism is recent in vLLM and not offered by every attention backend: try the"
                " layout on your model before relying on it"
            )
        return tuple(found)

    def _pipeline_check(self, model: Model, layout: Layout) -> str:
        way_out = (
            "if it refuses, lower --max-model-len to the length it estimates (a stage really holds"
            f" about 1/{layout.pp} of the layers' KV), or upgrade"
        )
        cause = "compares the KV of all layers, not of one stage's, with one rank's memory (issues 32105, 34076)"
        if not self.facts.gates["pipeline_check_per_stage"]:
            return f"vLLM {self.version} {cause} and may refuse a length that fits: {way_out}"
        kinds = {layer.mixer for layer in model.layers}
        stages = set(self.stage_layers(len(model.layers), layout.pp))
        if len(kinds) > 1 or len(stages) > 1:
            return (
                "vLLM's length check may still refuse stages that differ in layers or layer kinds (issues 34076,"
                f" 43796): {way_out}"
            )
        return (
            f"vLLM 0.14 and 0.15 {cause} and may refuse a length that fits; later releases check per stage: {way_out}"
        )

    def convention_for(self, model: Model, layout: Layout, options: Options) -> Convention:
        changed: dict[str, object] = {}
        if options.moe_exchange:
            changed["moe_exchange"] = options.moe_exchange
        if (options.moe_exchange or "").startswith("all_to_all"):
            # DeepEP: FP8 block-quantised models send FP8 values with a scale for each 128, others their activations.
            if model.quantization.startswith("fp8"):
                changed |= {"dispatch_dtype": "float8_e4m3", "dispatch_scale_block": 128}
            changed["dispatch_header_bytes"] = 16 if options.moe_exchange == "all_to_all" else 0
        if layout.ep > 1 and layout.tp > 1 and layout.dp_attn > 1:
            # Tokens are sharded over tp before the experts, so each rank runs shared experts whole on its own tokens.
            changed["shared_over"] = "none"
        return msgspec.structs.replace(self.convention, **changed)

    def resolve(
        self, options: Options, model: Model, accelerator: Accelerator | None = None, layout: Layout | None = None
    ) -> Resolved:
        found = super().resolve(options, model, accelerator, layout)
        if options.max_batched_tokens is None and self.facts.gates.get("profiles_max_model_len"):
            whole = found.max_model_len <= _V0_UNCHUNKED_TOKENS
            tokens = max(found.max_model_len, found.max_batched_tokens) if whole else _V0_CHUNK_TOKENS
            return msgspec.structs.replace(found, max_batched_tokens=tokens)
        return found

    def stage_layers(self, layers: int, pp: int) -> tuple[int, ...]:
        """The remainder goes to stages counted back from the last but one, so the last stage never has more.

        Source: vllm/distributed/utils.py get_pp_indices; VLLM_PP_LAYER_PARTITION overrides it.
        """
        check_stages(layers, pp)
        counts = [layers // pp] * pp
        for extra in range(layers % pp):
            counts[pp - 2 - extra] += 1
        return tuple(counts)

    def command(self, model: str, layout: Layout, options: Options, *, replicas: int = 1, nodes: int = 1) -> list[str]:
        one_replica(replicas, self.name)
        where = "vllm serve"
        exchange = options.moe_exchange
        if exchange is not None and exchange not in _EXCHANGES:
            raise InputError(f"moe_exchange {exchange!r}", where=where, expected="one of " + ", ".join(_EXCHANGES))
        speculative = {"method": "mtp", "num_speculative_tokens": options.mtp_tokens} if options.mtp_tokens else None
        if layout.sequence_sharded and not self._sequence_pass:
            raise InputError("sequence-sharded rows", where=where, expected=f"a layout that vLLM {self.version} has")
        sequence = {"pass_config": {self._sequence_pass: True}} if layout.sequence_sharded else None
        flags = {
            "--tensor-parallel-size": degree(layout.tp),
            "--pipeline-parallel-size": degree(layout.pp),
            "--data-parallel-size": degree(layout.dp_attn),
            "--prefill-context-parallel-size": degree(layout.cp),
            # vLLM's degree spans the prefill ranks: it counts every shard of a request's KV.
            "--decode-context-parallel-size": degree(layout.dcp * layout.cp),
            "--enable-expert-parallel": layout.ep > 1,
            "--all2all-backend": _EXCHANGES[exchange] if exchange else None,
            "--compilation-config": json.dumps(sequence) if sequence else None,
            "--dtype": options.dtype,
            "--kv-cache-dtype": kv_word(options.kv_dtype, _KV_WORDS, where),
            "--quantization": online_quantization(options, where),
            "--gpu-memory-utilization": options.memory_utilization,
            "--max-num-batched-tokens": options.max_batched_tokens,
            "--max-num-seqs": options.max_seqs,
            "--max-model-len": options.max_model_len,
            "--block-size": options.block_tokens,
            "--enforce-eager": options.eager,
            "--speculative-config": json.dumps(speculative) if speculative else None,
            "--enable-lora": options.lora_count > 0,
            "--max-loras": options.lora_count or None,
            "--max-lora-rank": options.lora_rank if options.lora_count else None,
            **self._across(layout, nodes),
        }
        return ["vllm", "serve", model, *flag_words(flags)]

    def _across(self, layout: Layout, nodes: int) -> dict[str, object]:
        """Flags of a group over several nodes: whole attention replicas on each, or ranks of one replica."""
        if nodes == 1:
            return {}
        if not self.facts.gates["nnodes"]:
            return {"--distributed-executor-backend": "ray"}
        if layout.dp_attn % nodes == 0:
            local = layout.dp_attn // nodes
            return {"--data-parallel-size-local": local, "--data-parallel-address": "HEAD_ADDRESS"}
        return {"--nnodes": nodes, "--node-rank": "NODE_RANK", "--master-addr": "HEAD_ADDRESS"}

    def node_notes(self, layout: Layout, nodes: int) -> tuple[str, ...]:
        if nodes == 1:
            return ()
        if not self.facts.gates["nnodes"]:
            return (f"start a Ray cluster over the {nodes} nodes, then the command on one of them",)
        start, head = numbered(nodes)
        if layout.dp_attn % nodes == 0:
            local = layout.dp_attn // nodes
            others = (
                f"all but the first add --headless --data-parallel-start-rank N, N being {local} x the node's number"
            )
            return (f"start the command on each of the {nodes} nodes: {others}", head)
        return (f"{start}; all but the first add --headless", head)

    def parse(
        self, arguments: list[str], *, model: Model | None = None, files: Mapping[str, str] | None = None
    ) -> Parsed:
        where = "vllm serve"
        words = read(without_program(arguments, _PROGRAMS), self.facts.flags, where=where)
        notes, ignored = list(words.notes), [*words.ignored, *_unread(words)]
        tp, pp, dp, cp = (positive(words.take(k), k, where) for k in ("tp", "pp", "dp", "pcp"))
        dcp = _decode_degree(positive(words.take("dcp"), "dcp", where), cp, where)
        grouped, replicas = self._data_parallel(dp, bool(words.take("ep")), model, notes)
        dp_attn = dp if grouped else 1
        if words.environment.get("VLLM_PP_LAYER_PARTITION"):
            notes.append("VLLM_PP_LAYER_PARTITION is not carried over: stages are cut as vLLM does by itself")
        if words.environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == "0":
            notes.append("CUDA graphs outside the memory budget (..._ESTIMATE_CUDAGRAPHS=0) are planned as inside it")
        sequence = words.take("compilation", {}).get("pass_config", {})
        layout = Layout(
            tp=tp,
            pp=pp,
            cp=cp,
            dp_attn=dp_attn,
            dcp=dcp,
            ep=tp * cp * dp_attn if words.take("ep") else 1,
            sequence_sharded=isinstance(sequence, dict)
            and bool(sequence.get("enable_sp") or sequence.get("enable_sequence_parallelism")),
        )
        if words.take("eplb", {}).get("num_redundant_experts"):
            raise InputError("redundant experts are not modelled", where=where, hint="Remove num_redundant_experts")
        backend = words.take("all2all") or words.environment.get("VLLM_ALL2ALL_BACKEND")
        kind = _exchange(backend)
        if kind is not None and backend != _EXCHANGES[kind]:
            notes.append(f"--all2all-backend {backend} is planned as {_EXCHANGES[kind]}: {kind}")
        options = Options(
            dtype=read_dtype(words, where),
            kv_dtype=kv_dtype(words.take("kv_dtype"), where),
            weight_dtype=read_quantization(words.take("quantization"), notes),
            memory_utilization=words.take("memory_utilization"),
            max_batched_tokens=words.take("max_batched_tokens"),
            max_seqs=words.take("max_seqs"),
            max_model_len=words.take("max_model_len"),
            block_tokens=words.take("block_tokens"),
            mtp_tokens=_mtp_tokens(words.take("speculative"), where),
            # vLLM keeps one adapter resident unless told otherwise, of rank at most 16.
            lora_count=positive(words.take("lora_count"), "max-loras", where) if words.take("lora") else 0,
            lora_rank=words.take("lora_rank") or 16,
            moe_exchange=kind,
            eager=bool(words.take("eager", False)),
        )
        name = model_name(words, where)
        return Parsed(
            engine=self.name,
            model=name,
            layout=layout,
            replicas=replicas,
            options=options,
            ignored=tuple(ignored),
            notes=tuple(notes),
        )

    def _data_parallel(self, dp: int, ep: bool, model: Model | None, notes: list[str]) -> tuple[bool, int]:
        """Whether data parallel ranks form one group, and otherwise how many replicas they are."""
        if dp == 1:
            return False, 1
        if ep or (model is not None and model.moe is not None):
            return True, 1
        if model is None:
            notes.append(
                f"--data-parallel-size {dp} without --enable-expert-parallel is read as {dp} independent replicas, as"
                " of a dense model; one with experts would be a group of attention replicas: say which model it is"
            )
        return False, dp


def _unread(words: Words) -> list[str]:
    """What known flags and variables say beside the parts that are read: named, so that nothing vanishes."""
    speculative = words.take("speculative") or {}
    drafts = ("method", "num_speculative_tokens") if "mtp" in str(speculative.get("method", "")) else ()
    found = [
        *(unused("--speculative-config", speculative, drafts) if speculative else ()),
        *(unused("--compilation-config", words.take("compilation"), _SEQUENCE) if words.take("compilation") else ()),
        *(unused("--eplb-config", words.take("eplb"), ("num_redundant_experts",)) if words.take("eplb") else ()),
    ]
    if words.take("lora_count") and not words.take("lora"):
        found.append(f"--max-loras {words.take('lora_count')}")
    backend, estimate = "VLLM_ALL2ALL_BACKEND", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
    if words.take("all2all") and backend in words.environment:
        found.append(f"{backend}={words.environment[backend]}")
    if words.environment.get(estimate, "0") != "0":
        found.append(f"{estimate}={words.environment[estimate]}")
    return found


def _expert_degree(layout: Layout) -> Refusal | None:
    if layout.ep in {1, layout.stage_size}:
        return None
    return Refusal(
        reason=f"ep {layout.ep}: vLLM's expert parallelism spans all {layout.stage_size} ranks of a stage or is off",
        ways=({"ep": layout.stage_size}, {"ep": 1}),
    )


def _prefill_context(model: Model, layout: Layout, allowed: bool) -> Refusal | None:
    if layout.cp == 1:
        return None
    if not allowed:
        return Refusal(reason=f"cp {layout.cp}: this version has no prefill context parallelism", ways=({"cp": 1},))
    mixers = {layer.mixer for layer in model.layers} - {"none"}
    if not model.mla_latent or mixers != {"sparse"}:
        # Attention backends for grouped heads lack it; MLA's layer has it together with a sharded KV for sparse only.
        return Refusal(
            reason=f"cp {layout.cp}: vLLM shards KV over prefill ranks for sparse latent attention only (DeepSeek-V3.2,"
            " GLM-5)",
            ways=({"cp": 1},),
        )
    if layout.dp_attn > 1:
        return Refusal(
            reason=f"cp {layout.cp} with dp_attn {layout.dp_attn}: vLLM combines prefill context and data parallelism"
            " not yet",
            ways=({"cp": 1}, {"dp_attn": 1}),
        )
    if layout.dcp not in {1, layout.tp}:
        reason = f"dcp {layout.dcp} with cp {layout.cp}: vLLM allows 1 or tp"
        return Refusal(reason=reason, ways=({"dcp": layout.tp}, {"dcp": 1}))
    return None


def _decode_degree(total: int, cp: int, where: str) -> int:
    """Our dcp (shards within a tensor group) from vLLM's, which counts the prefill ranks too."""
    if cp == 1:
        return total
    if total % cp:
        raise InputError(
            f"--prefill-context-parallel-size {cp} with --decode-context-parallel-size {total} keeps a whole KV copy on"
            " each prefill rank, which is not modelled",
            where=where,
            expected=f"--decode-context-parallel-size {cp} or {cp} x tp",
        )
    return total // cp


def _mtp_tokens(config: dict[str, object] | None, where: str) -> int:
    """Draft tokens of the model's own MTP layers; other methods load weights that are not in the model."""
    if not config:
        return 0
    method, tokens = str(config.get("method", "")), config.get("num_speculative_tokens", 1)
    if method in {"ngram", "suffix", "ngram_gpu"}:
        return 0
    if "mtp" not in method:
        raise InputError(
            f"speculative method {method or config.get('model')!r} is not modelled"[:200],
            where=f"{where}: --speculative-config",
            expected="mtp, ngram or suffix",
        )
    if not isinstance(tokens, int):
        raise InputError(f"num_speculative_tokens is {tokens!r}"[:120], where=where, expected="an integer")
    return tokens
