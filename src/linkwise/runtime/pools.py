"""The ranks of a unit that run the same steps: one group, or one that computes prompts and one that decodes."""

from collections.abc import Callable
from dataclasses import dataclass, field

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, coordinates
from linkwise.runtime.control import UnitSpec
from linkwise.runtime.scheduler import Scheduler


@dataclass
class Open:
    """A step under way: ranks that have not drawn yet, and what the others drew."""

    waiting: set[int]
    drawn: dict[tuple[int, int], int] = field(default_factory=dict)


class Pool:
    """Ranks that run the same steps. first: number of its first rank in the unit."""

    def __init__(self, layout: Layout, first: int, scheduler: Scheduler) -> None:
        self.layout, self.first, self.scheduler = layout, first, scheduler
        self.ranks = range(first, first + layout.size)
        self.open: dict[int, Open] = {}
        places = {rank: coordinates(layout, rank - first) for rank in self.ranks}
        self.replica = {rank: place["dp_attn"] for rank, place in places.items()}
        last = layout.pp - 1
        self.samplers = {rank for rank, place in places.items() if place["pp"] == last and place["tp"] == 0}

    @property
    def stages(self) -> list[tuple[int, ...]]:
        size = self.layout.stage_size
        return [tuple(range(first, first + size)) for first in range(self.first, self.ranks.stop, size)]


def check_pools(spec: UnitSpec) -> None:
    """Raises InputError for two groups that could not hand over."""
    if spec.prefill is None:
        return
    for layout in (spec.prefill, spec.layout):
        if layout.cp * layout.dcp * layout.dp_attn > 1:
            raise InputError(
                f"pools with {layout}", where="layout", expected="tp and pp alone in groups that hand over"
            )
    if spec.layers:
        # Which rank has which layers is cut evenly where the handover is ordered.
        raise InputError(
            f"stages of {', '.join(map(str, spec.layers[:16]))} layers in groups that hand over",
            where="layers",
            expected="none given: pools have stages of even length",
        )


def pools_of(spec: UnitSpec, make: Callable[[Layout, bool], Scheduler]) -> list[Pool]:
    """The unit's groups: one, or the prefill group and then the decode group. Raises InputError."""
    check_pools(spec)
    if spec.prefill is None:
        return [Pool(spec.layout, 0, make(spec.layout, False))]
    return [
        Pool(spec.prefill, 0, make(spec.prefill, True)),
        Pool(spec.layout, spec.prefill.size, make(spec.layout, False)),
    ]
