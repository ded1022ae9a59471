"""What is to be served, made into units: replicas of what `linkwise run` would run, each where the plan puts it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, parse_layout
from linkwise.plan.handoff_types import Handoff
from linkwise.plan.types import Plan
from linkwise.runtime.asked import Asked
from linkwise.runtime.driver import LocalUnit
from linkwise.runtime.places import found
from linkwise.runtime.places import planned as places_of
from linkwise.supervise.rank_map import Found, Mapped, Put
from linkwise.supervise.types import Unit

MAX_REPLICAS = 64


class Wanted(NamedTuple):
    """What `asked.settle` needs, how often, and where. places: of each replica's ranks, in order; none without a plan.

    layout None: the plan's.
    """

    plan: Plan | None
    layout: Layout | None
    prefill: Layout | None
    replicas: int
    places: tuple[tuple[Put, ...], ...] = ()


def wanted(given: Any, *, layout: str, prefill: str, replicas: int | None) -> Wanted:
    """given: a Plan or a Handoff as read from a file; None: the words decide. Degrees beside a file are refused."""
    count = 1 if replicas is None else replicas
    if not 1 <= count <= MAX_REPLICAS:
        raise InputError(f"{count} replicas", where="--replicas", expected=f"1..{MAX_REPLICAS}")
    if given is None:
        one = parse_layout(layout) if layout else None
        return Wanted(None, one, parse_layout(prefill, "--prefill") if prefill else None, count)
    if layout or prefill:
        raise InputError(f"{layout or prefill!r} beside a plan, which has a layout", where="--layout, --prefill")
    if isinstance(given, Handoff):
        return Wanted(None, given.decode, given.prefill, count)
    if not isinstance(given, Plan):
        raise InputError(f"holds a {type(given).__name__}", where="plan", expected="a plan, or a handoff of two pools")
    count = replicas or given.replicas
    places = tuple(places_of(given, number) for number in range(min(count, len(given.rank_grid))))
    return Wanted(given, None, None, count, places)


def build(what: Wanted, asked: Asked, say: Callable[[str], None], *, threads: int, strict_map: bool) -> list[Unit]:
    """One unit per replica. Raises InputError for what no rank could run."""
    if strict_map and len(what.places) < what.replicas:
        raise InputError("no plan says where every rank belongs", where="--strict-map", expected="a plan's replicas")
    units: list[Unit] = []
    for number in range(what.replicas):
        name = f"replica-{number}" if what.prefill is None else f"pair-{number}"
        unit = LocalUnit(name, replace(asked.spec, name=name, threads=threads), say=say)
        places = what.places[number] if number < len(what.places) else None
        accelerator = what.plan.cluster.accelerator.name if what.plan is not None else ""
        units.append(Mapped(unit, places, _where(unit), say, accelerator=accelerator, strict=strict_map))
    return units


def _where(unit: LocalUnit) -> Callable[[], list[Found]]:
    return lambda: found(unit.facts)
