"""linkwise's own runtime: the reference every op count is checked against. Its flags are the layout's own words."""

from collections.abc import Iterator, Mapping

from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, layout_words, parse_layout
from linkwise.engine import rules
from linkwise.engine.base import Options, Parsed, Refusal, Resolved
from linkwise.engine.fact_engine import FactEngine, check_stages, degree, flag_words, model_name
from linkwise.engine.flags import positive, read, without_program
from linkwise.model.types import Model

_PROGRAMS = (("linkwise", "serve"),)
# model_type of config.json, as the runtime reads it (runtime/arch.py).
FAMILIES = ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3")
_PLAIN = {
    "dtype": "--dtype",
    "max_batched_tokens": "--max-batched-tokens",
    "max_seqs": "--max-seqs",
    "max_model_len": "--max-len",
    "microbatches": "--microbatches",
}


class Linkwise(FactEngine):
    """Our runtime at one version."""

    def refusals(self, model: Model, layout: Layout, per_node: int, options: Options) -> Iterator[Refusal | None]:
        yield _runs(model)
        yield rules.stages(model, layout)
        yield rules.only_moe(model, layout, dense_dp="nothing is shared between the copies")
        yield rules.heads(model, layout)
        yield rules.divides(model, layout, self.convention, vocab_pad=self.defaults.vocab_pad)
        yield rules.experts(model, layout, even=False)
        yield rules.context_shards(model, layout)
        yield _sequence_alone(layout)

    def resolve(
        self, options: Options, model: Model, accelerator: Accelerator | None = None, layout: Layout | None = None
    ) -> Resolved:
        """The settings it would run with. Raises InputError for an option it does not run."""
        if options.mtp_tokens:
            raise InputError(
                f"mtp_tokens is {options.mtp_tokens}",
                where="linkwise",
                expected="0: the runtime does not draft tokens",
            )
        if options.moe_exchange not in {None, self.convention.moe_exchange}:
            raise InputError(
                f"moe_exchange is {options.moe_exchange}",
                where="linkwise",
                expected=f"{self.convention.moe_exchange}, the runtime's only direct exchange",
            )
        return super().resolve(options, model, accelerator, layout)

    def stage_layers(self, layers: int, pp: int) -> tuple[int, ...]:
        """The remainder goes to the first stages: the last one has the head."""
        check_stages(layers, pp)
        return rules.even_partition(layers, pp)

    def command(self, model: str, layout: Layout, options: Options, *, replicas: int = 1, nodes: int = 1) -> list[str]:
        """`linkwise serve` with what it has flags for; the memory settings of a plan travel in the plan file."""
        if options.lora_count:
            raise InputError("adapters are not served by linkwise's own runtime", where="linkwise serve")
        flags: dict[str, object] = {"--weights": model, "--layout": layout_words(layout)}
        flags["--replicas"] = degree(replicas)
        flags |= {flag: getattr(options, name) for name, flag in _PLAIN.items()}
        return ["linkwise", "serve", *flag_words(flags)]

    def together(self, replicas: int, layout: Layout, per_node: int) -> tuple[int, tuple[str, ...]]:
        """All of them where they lie on one node; each node has a server of its own."""
        if layout.size * replicas <= per_node:
            return replicas, ()
        if layout.size > per_node:  # nothing serves a group over nodes, which node_notes says
            return 1, ()
        return 1, (
            f"the command starts one of {replicas} replicas: run it on every node, with --replicas N for the N that"
            " lie there",
        )

    def node_notes(self, layout: Layout, nodes: int) -> tuple[str, ...]:
        if nodes == 1:
            return ()
        return (
            f"serve starts the ranks of one machine: over {nodes} nodes start `linkwise run` on every rank by torchrun"
            " or srun",
        )

    def parse(
        self, arguments: list[str], *, model: Model | None = None, files: Mapping[str, str] | None = None
    ) -> Parsed:
        where = "linkwise serve"
        words = read(without_program(arguments, _PROGRAMS), self.facts.flags, where=where)
        layout = words.take("layout")
        return Parsed(
            engine=self.name,
            model=model_name(words, where),
            layout=parse_layout(layout, where) if layout else Layout(),
            replicas=positive(words.take("replicas"), "replicas", where),
            options=Options(**{name: words.take(name) for name in _PLAIN}),
            ignored=words.ignored,
            notes=words.notes,
        )


def _runs(model: Model) -> Refusal | None:
    """Models it has no forward pass for, whatever the layout."""
    other = "another engine"
    if model.family not in FAMILIES:
        return Refusal(reason=f"a {model.family} model: linkwise runs {', '.join(FAMILIES)}", change=other)
    if model.quantization not in {"none", "bfloat16", "float16", "float32"}:
        return Refusal(
            reason=f"weights in {model.quantization}: linkwise runs bfloat16, float16 and float32", change=other
        )
    return None


def _sequence_alone(layout: Layout) -> Refusal | None:
    """Rows that cp or attention replicas divide are not divided over tp a second time."""
    if not layout.sequence_sharded or layout.cp * layout.dp_attn == 1:
        return None
    name = "cp" if layout.cp > 1 else "dp_attn"
    return Refusal(
        reason=f"sequence_sharded with {name} {getattr(layout, name)}: rows are sharded over tp only where all ranks of"
        " a stage see the same tokens",
        change="sequence_sharded off",
        ways=({"sequence_sharded": 0}, {"cp": 1, "dp_attn": 1}),
    )
