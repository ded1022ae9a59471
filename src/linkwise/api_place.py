"""`place` as a Python call: the order of ranks of a plan, or of the plan made for a model and a cluster."""

from typing import TYPE_CHECKING, Unpack

from linkwise.core.errors import InputError
from linkwise.core.files import FilePath
from linkwise.plan import placement_types, types
from linkwise.settings import Settings

if TYPE_CHECKING:
    from linkwise.api import NoPlan
    from linkwise.cluster.types import Cluster
    from linkwise.engine.base import Engine
    from linkwise.model.types import Model


class Placement(placement_types.Placement, frozen=True, kw_only=True):
    """The answer of `place`: plan/placement_types.py says what it holds. Its repr is the command's first screen."""

    def __repr__(self) -> str:
        from linkwise.report.placement import screen

        return "\n".join(screen(self))


def place(
    source: "FilePath | types.Plan | Model",
    on: "FilePath | Cluster" = "",
    *,
    engine: "str | Engine" = "",
    handoff: bool = False,
    **settings: Unpack[Settings],
) -> "Placement | NoPlan":
    """Which device takes which rank, for the least communication time of a step, and how sure that is.

    source: a plan (value or file); or, with `on`, what `plan` takes, engine and settings included: the layout is then
    planned first, and NoPlan says what is short when there is none. handoff: every rank also sends its share of the
    prompt's KV over its NICs, once a request. Bad input raises InputError.
    """
    from linkwise import api
    from linkwise.answers import as_kind, plan_of
    from linkwise.plan.placement import place_plan

    if on == "":
        given = [*settings, *(["engine"] if engine else [])]
        if given:
            raise InputError(
                f"{', '.join(given)} beside a plan", where="place", expected="a model and --on, or a plan alone"
            )
        found: types.Plan | types.NoPlan = plan_of(source)  # type: ignore[arg-type]
    else:
        if isinstance(source, types.Plan):
            raise InputError("a plan and a cluster", where="place", expected="a model and --on, or a plan alone")
        found = api.plan(source, on, engine=engine or "vllm", **settings)
    if isinstance(found, types.NoPlan):
        return as_kind(api.NoPlan, found)
    return as_kind(Placement, place_plan(found, handoff=handoff))
