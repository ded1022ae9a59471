"""SGLang: what it refuses, how it cuts a pipeline, its memory rule, its flags and their reverse.

`--tp` counts all ranks of a stage; with attention data parallelism `--dp` divides it, without it multiplies replicas.
"""

from collections.abc import Iterator, Mapping

import msgspec

from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.units import GiB
from linkwise.engine import rules
from linkwise.engine.base import Convention, Defaults, Options, Parsed, Refusal
from linkwise.engine.fact_engine import (
    FactEngine,
    check_stages,
    degree,
    flag_words,
    kv_dtype,
    kv_word,
    model_name,
    numbered,
    online_quantization,
    read_dtype,
    read_quantization,
)
from linkwise.engine.flags import Words, positive, read, without_program
from linkwise.model.types import Model

_MiB = 2**20
_KV_WORDS = {"bfloat16": "bf16", "float8_e4m3": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "float4_e2m1": "fp4_e2m1"}
_EXCHANGES = {"all_to_all": "deepep", "all_gather": "none"}
_DRAFT_FLAGS = {"num-steps": "spec_steps", "eagle-topk": "spec_topk", "num-draft-tokens": "spec_tokens"}
_PROGRAMS = (("sglang", "serve"), ("-m", "sglang.launch_server"))


class Sglang(FactEngine):
    """SGLang at one version."""

    def defaults_for(self, accelerator: Accelerator | None, layout: Layout | None = None) -> Defaults:
        """The chunk follows the device's memory; the static share is what a reserve for activations and graphs leaves.

        Reserve in MiB: 512 + 1.5 per chunked token + 2 per graph batch + 128 per rank of tp x pp, at least 10 GiB on
        devices above 60 GiB; dp attention adds 3 (4.5 above batch 300) x dp per graph batch. Source: server_args.py.
        """
        found = super().defaults_for(accelerator, layout)
        if accelerator is None:
            return found
        size = layout or Layout()
        stage = size.stage_size
        bucket = next(b for b in self.facts.buckets if accelerator.memory_bytes < b.below_bytes)
        batch = bucket.graph_batch[stage >= 4]
        # Under dp attention every replica takes its part of the chunk.
        chunk = max(1, bucket.chunk_tokens // size.dp_attn)
        reserve = 512 + 1.5 * max(chunk, 2048) + 2.0 * batch + stage * size.pp / 8 * 1024
        if size.dp_attn > 1:
            reserve += batch * size.dp_attn * (4.5 if batch > 300 else 3.0)
        memory = accelerator.memory_bytes / _MiB
        if accelerator.memory_bytes > 60 * GiB:
            reserve = max(reserve, 10 * 1024)
        share = round((memory - reserve) / memory, 3)
        return msgspec.structs.replace(found, max_batched_tokens=chunk, memory_utilization=max(0.01, share))

    def convention_for(self, model: Model, layout: Layout, options: Options) -> Convention:
        changed: dict[str, str] = {}
        if options.moe_exchange == "all_to_all":
            # With DeepEP tokens stay where they are, and each rank runs shared experts whole on its own.
            changed |= {"moe_exchange": "all_to_all", "shared_over": "none"}
        if options.dense_whole:
            changed["mlp_over"] = "none"
        if _head_over_tp(layout, options):
            changed["head_over"] = "tp"
        return msgspec.structs.replace(self.convention, **changed) if changed else self.convention

    def refusals(self, model: Model, layout: Layout, per_node: int, options: Options) -> Iterator[Refusal | None]:
        convention = self.convention_for(model, layout, options)
        yield rules.stages(model, layout)
        yield rules.only_moe(model, layout, dense_dp="the gathered dense MLP of SGLang is not modelled")
        yield _all_to_all(model, layout, options)
        if layout.sequence_sharded:
            yield Refusal(reason="SGLang has no sequence-sharded tensor parallelism", ways=({"sequence_sharded": 0},))
        if layout.cp > 1 and layout.dp_attn > 1:
            yield Refusal(
                reason=f"cp {layout.cp} with dp_attn {layout.dp_attn}: SGLang orders these ranks the other way round,"
                " which is not modelled",
                ways=({"cp": 1}, {"dp_attn": 1}),
            )
        yield self._prompts_split(model, layout)
        if layout.dcp > 1 and not model.is_mla:
            yield Refusal(reason=f"dcp {layout.dcp}: SGLang splits the tokens of MLA caches only", ways=({"dcp": 1},))
        yield _nodes(layout, per_node)
        yield rules.heads(model, layout)
        yield rules.divides(model, layout, convention, vocab_pad=self.defaults.vocab_pad)
        yield rules.experts(model, layout, even=True)
        yield rules.fp8_blocks(model, layout, convention)

    def _prompts_split(self, model: Model, layout: Layout) -> Refusal | None:
        """Prompts are split over cp for models whose code does so."""
        if layout.cp == 1:
            return None
        if layout.dcp > 1:
            reason = (
                f"cp {layout.cp} with dcp {layout.dcp}: split prompts over split caches are not modelled for SGLang"
            )
            return Refusal(reason=reason, ways=({"dcp": 1}, {"cp": 1}))
        if model.family in self.facts.gates["prefill_cp"]:
            return None
        if model.is_mla:
            why = "with DeepEP on one node, one prompt at a time, which is not modelled"
        else:
            why = f"of {', '.join(self.facts.gates['prefill_cp'])}, not of {model.family}"
        kind = "prompts of latent attention" if model.is_mla else "prompts"
        return Refusal(reason=f"cp {layout.cp}: SGLang {self.version} splits {kind} {why}", ways=({"cp": 1},))

    def warnings(self, model: Model, layout: Layout) -> tuple[str, ...]:
        found = list(super().warnings(model, layout))
        if layout.cp > 1:
            found.append(
                "cp splits prompts alone: each of its ranks keeps the whole KV cache and makes every decode step."
                " SGLang after 0.5.10 spells the switch --enable-prefill-cp --cp-strategy zigzag"
            )
        if layout.dcp > 1:
            found.append("versions of SGLang take --dcp-size on AMD devices alone, or on NVIDIA's too: try yours")
        return tuple(found)

    def stage_layers(self, layers: int, pp: int) -> tuple[int, ...]:
        """The remainder goes to the last stages; SGLANG_PP_LAYER_PARTITION overrides it. Source: get_pp_indices."""
        check_stages(layers, pp)
        return tuple(reversed(rules.even_partition(layers, pp)))

    def command(self, model: str, layout: Layout, options: Options, *, replicas: int = 1, nodes: int = 1) -> list[str]:
        where = "sglang"
        if replicas > 1 and layout.dp_attn > 1:
            raise InputError(
                f"{replicas} replicas of a group with dp_attn {layout.dp_attn} in one command",
                where=where,
                expected="1 replica",
                hint="Start the command once per replica, behind a router",
            )
        exchange = options.moe_exchange
        if exchange is not None and exchange not in _EXCHANGES:
            raise InputError(f"moe_exchange {exchange!r}", where=where, expected="one of " + ", ".join(_EXCHANGES))
        if exchange == "all_to_all" and layout.ep != layout.stage_size:
            raise InputError(
                f"moe_exchange all_to_all with ep {layout.ep}",
                where=where,
                expected=f"ep {layout.stage_size}: all ranks",
            )
        drafts = options.mtp_tokens
        flags = {
            "--tp-size": degree(layout.stage_size),
            "--pp-size": degree(layout.pp),
            "--dp-size": degree(layout.dp_attn if layout.dp_attn > 1 else replicas),
            "--enable-dp-attention": layout.dp_attn > 1,
            "--attn-cp-size": degree(layout.cp),
            "--enable-prefill-context-parallel": layout.cp > 1,
            "--dcp-size": degree(layout.dcp),
            "--ep-size": degree(layout.ep),
            "--moe-a2a-backend": _EXCHANGES[exchange] if exchange else None,
            "--moe-dense-tp-size": 1 if options.dense_whole else None,
            "--enable-dp-lm-head": _head_over_tp(layout, options),
            "--dtype": options.dtype,
            "--kv-cache-dtype": kv_word(options.kv_dtype, _KV_WORDS, where),
            "--quantization": online_quantization(options, where),
            "--mem-fraction-static": options.memory_utilization,
            # The flag counts the tokens of all attention replicas.
            "--chunked-prefill-size": options.max_batched_tokens and options.max_batched_tokens * layout.dp_attn,
            "--max-running-requests": options.max_seqs,
            "--context-length": options.max_model_len,
            "--page-size": options.block_tokens,
            "--disable-cuda-graph": options.eager,
            "--speculative-algorithm": "NEXTN" if drafts else None,
            "--speculative-num-steps": drafts or None,
            "--speculative-eagle-topk": 1 if drafts else None,
            "--speculative-num-draft-tokens": drafts + 1 if drafts else None,
            "--enable-lora": options.lora_count > 0,
            "--max-loras-per-batch": options.lora_count or None,
            "--max-lora-rank": options.lora_rank if options.lora_count else None,
            "--nnodes": degree(nodes),
            "--node-rank": "NODE_RANK" if nodes > 1 else None,
            "--dist-init-addr": "HEAD_ADDRESS:PORT" if nodes > 1 else None,
        }
        return ["python", "-m", "sglang.launch_server", "--model-path", model, *flag_words(flags)]

    def node_notes(self, layout: Layout, nodes: int) -> tuple[str, ...]:
        return (*numbered(nodes), "PORT is a free port there, the same on all nodes") if nodes > 1 else ()

    def parse(
        self, arguments: list[str], *, model: Model | None = None, files: Mapping[str, str] | None = None
    ) -> Parsed:
        where = "sglang"
        words = read(without_program(arguments, _PROGRAMS), self.facts.flags, where=where)
        ignored = list(words.ignored)
        notes = list(words.notes)
        ranks, pp, dp, cp, dcp = (positive(words.take(k), k, where) for k in ("tp", "pp", "dp", "cp", "dcp"))
        dp_attn = dp if words.take("dp_attention") else 1
        if words.take("dp_attention") and dp == 1:
            ignored.append("--enable-dp-attention")  # one replica: nothing to divide
        if words.take("prefill_cp") and cp == 1:
            ignored.append("--enable-prefill-context-parallel")  # one rank: nothing to split
        elif cp > 1 and not words.take("prefill_cp"):
            raise InputError(
                f"--attn-cp-size {cp} without --enable-prefill-context-parallel", where=where,
                expected="both: without the switch every one of these ranks computes whole prompts",
            )  # fmt: skip
        if ranks % (dp_attn * cp):
            raise InputError(
                f"--tp {ranks} is not divisible by --dp {dp_attn} x context parallel {cp}",
                where=where,
                expected="with --enable-dp-attention, dp (x attn-cp) divides tp: tp counts all ranks of a stage",
            )
        if words.take("redundant_experts"):
            raise InputError("redundant experts are not modelled", where=where, hint="Remove the flag")
        exchange, ep = _experts(words, ranks, notes, where)
        if words.take("dense_tp") not in {None, 1}:
            raise InputError("--moe-dense-tp-size", where=where, expected="1 or absent")
        if words.take("dp_lm_head") and dp_attn == 1:
            raise InputError("--enable-dp-lm-head", where=where, expected="--enable-dp-attention and --dp beside it")
        if "SGLANG_PP_LAYER_PARTITION" in words.environment:
            notes.append("SGLANG_PP_LAYER_PARTITION is not carried over: stages are cut as SGLang does by itself")
        chunk = words.take("max_batched_tokens")
        if chunk is not None and chunk < 1:
            notes.append("--chunked-prefill-size -1 switches chunking off: steps as long as a prompt are not modelled")
            chunk = None
        options = Options(
            dtype=read_dtype(words, where),
            kv_dtype=kv_dtype(words.take("kv_dtype"), where),
            weight_dtype=read_quantization(words.take("quantization"), notes),
            memory_utilization=words.take("memory_utilization"),
            max_batched_tokens=chunk and max(1, chunk // dp_attn),
            max_seqs=words.take("max_seqs"),
            max_model_len=words.take("max_model_len"),
            block_tokens=words.take("block_tokens"),
            mtp_tokens=_mtp_tokens(words, ignored, where),
            lora_count=words.take("lora_count") or (8 if words.take("lora") else 0),
            lora_rank=words.take("lora_rank") or 16,
            moe_exchange=exchange,
            dense_whole=words.take("dense_tp") == 1,
            head_over_tp=bool(words.take("dp_lm_head", False)),
            eager=bool(words.take("eager", False)),
        )
        return Parsed(
            engine=self.name,
            model=model_name(words, where),
            layout=Layout(tp=ranks // (dp_attn * cp), pp=pp, cp=cp, dp_attn=dp_attn, dcp=dcp, ep=ep),
            replicas=1 if dp_attn > 1 else dp,
            options=options,
            ignored=tuple(ignored),
            notes=tuple(notes),
        )


def _all_to_all(model: Model, layout: Layout, options: Options) -> Refusal | None:
    """An all-to-all backend makes the expert degree all ranks of a stage. Source: server_args.py, --moe-a2a-backend."""
    if options.moe_exchange != "all_to_all" or layout.ep == layout.stage_size:
        return None
    if model.moe is None:
        return Refusal(reason="moe_exchange all_to_all, but the model has no experts", change="leave moe_exchange out")
    return Refusal(
        reason=f"ep {layout.ep}: with moe_exchange all_to_all SGLang's expert parallelism spans all"
        f" {layout.stage_size} ranks of a stage",
        ways=({"ep": layout.stage_size},),
    )


def _head_over_tp(layout: Layout, options: Options) -> bool:
    """Whether the head is split over tp alone: SGLang switches that off without attention data parallelism."""
    return options.head_over_tp and layout.dp_attn > 1


def _nodes(layout: Layout, per_node: int) -> Refusal | None:
    """Every node holds the same number of a group's ranks."""

    def even(size: int) -> bool:
        return size % -(-size // per_node) == 0

    if even(layout.size):
        return None
    ways: list[dict[str, int]] = []
    for name in ("pp", "dp_attn", "cp", "tp"):
        degree = getattr(layout, name)
        fits = [d for d in range(1, degree) if even(layout.size // degree * d)]
        ways += [{name: fits[-1]}] if fits else []
    return Refusal(
        reason=f"{layout.size} ranks do not divide over {-(-layout.size // per_node)} nodes of {per_node}",
        ways=tuple(ways),
    )


def _experts(words: Words, ranks: int, notes: list[str], where: str) -> tuple[str | None, int]:
    """How tokens reach experts, and the expert degree: an all-to-all backend makes it all ranks of the stage."""
    ep = positive(words.take("ep"), "ep", where)
    backend = words.take("a2a") or ("deepep" if words.take("deepep") else None)
    if backend in {None, "none"}:
        return ("all_gather" if backend else None), ep
    if ep not in {1, ranks}:
        raise InputError(f"--ep {ep} with --moe-a2a-backend {backend}", where=where, expected=f"--ep {ranks}")
    if ep != ranks:
        notes.append(f"--moe-a2a-backend {backend} makes the expert degree equal to tp: ep {ranks}")
    if backend != "deepep":
        notes.append(f"--moe-a2a-backend {backend} is planned as deepep: each token to its experts' ranks")
    return "all_to_all", ranks


def _mtp_tokens(words: Words, ignored: list[str], where: str) -> int:
    """Draft tokens a step from the model's own MTP layers; what other methods need no memory for is ignored."""
    algorithm = words.take("spec_algorithm")
    if algorithm is None or algorithm.upper() in {"NGRAM", "LOOKAHEAD"}:
        given = {"algorithm": algorithm, **{f: words.take(k) for f, k in _DRAFT_FLAGS.items()}}
        ignored += [f"--speculative-{flag} {value}" for flag, value in given.items() if value is not None]
        return 0
    if algorithm.upper() not in {"NEXTN", "EAGLE"}:
        raise InputError(
            f"speculative algorithm {algorithm!r} is not modelled"[:120], where=where, expected="NEXTN, EAGLE or NGRAM"
        )
    if words.take("spec_topk", 1) != 1:
        raise InputError("draft trees are not modelled", where=where, expected="--speculative-eagle-topk 1")
    steps, tokens = words.take("spec_steps"), words.take("spec_tokens")
    if steps and tokens and tokens != steps + 1:
        raise InputError(
            f"--speculative-num-draft-tokens {tokens} with {steps} steps", where=where, expected=f"{steps + 1}"
        )
    return int(steps or (tokens - 1 if tokens else 1))
