"""The textbook's engine: a convention to compare with, not a program to launch."""

from collections.abc import Iterator, Mapping

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import rules
from linkwise.engine.base import Options, Parsed, Refusal
from linkwise.engine.fact_engine import FactEngine, check_stages
from linkwise.model.types import Model


class Textbook(FactEngine):
    """Every weight divides by definition; only what has no meaning is refused."""

    def refusals(self, model: Model, layout: Layout, per_node: int, options: Options) -> Iterator[Refusal | None]:
        yield rules.stages(model, layout)
        yield rules.experts(model, layout, even=False)
        yield _experts_exist(model, layout)

    def stage_layers(self, layers: int, pp: int) -> tuple[int, ...]:
        """As even as whole layers allow, the remainder to the first stages."""
        check_stages(layers, pp)
        return rules.even_partition(layers, pp)

    def command(self, model: str, layout: Layout, options: Options, *, replicas: int = 1, nodes: int = 1) -> list[str]:
        raise _not_a_program()

    def parse(
        self, arguments: list[str], *, model: Model | None = None, files: Mapping[str, str] | None = None
    ) -> Parsed:
        raise _not_a_program()


def _experts_exist(model: Model, layout: Layout) -> Refusal | None:
    if model.moe is None and layout.ep > 1:
        return Refusal(reason=f"ep {layout.ep}, but the model has no experts", ways=({"ep": 1},))
    return None


def _not_a_program() -> InputError:
    return InputError(
        "the textbook convention has no launch command",
        where="textbook",
        expected="an engine that runs: vllm, sglang, trtllm or linkwise",
    )
