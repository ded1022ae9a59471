"""The chain behind any figure of a plan or a fit, recomputed from the inputs the file embeds."""

import difflib
import math
from typing import NamedTuple

import msgspec

from linkwise.core.chain import Chain, chain_of
from linkwise.core.errors import InputError
from linkwise.core.quantity import Num, Quantity, value_of
from linkwise.engine import registry
from linkwise.plan.engine_of import engine_of
from linkwise.plan.figures import Subject, batches, figures, ops_of, traffic_figures
from linkwise.plan.ledger import ledger_figures
from linkwise.plan.placement import naive_grid
from linkwise.plan.types import Fit, Op, Plan


class Explanation(msgspec.Struct, frozen=True):
    """A figure's chain. beside: the same figure under the textbook convention; differences: what makes them differ."""

    path: str
    chain: Chain
    beside: Chain | None = None
    differences: tuple[str, ...] = ()


def subject(plan: Plan) -> Subject:
    """What a plan's figures are computed from, as its file embeds it."""
    engine = engine_of(plan)
    grid = None if plan.rank_grid == naive_grid(plan.layout, plan.replicas) else plan.rank_grid
    return Subject(
        plan.model,
        plan.cluster,
        engine,
        plan.layout,
        plan.options,
        plan.workload,
        plan.chosen.point.batch,
        plan.replicas,
        grid,
        plan.chosen.point.at_hand,
    )


def paths(value: Plan | Fit) -> list[str]:
    """Every path that can be explained."""
    return sorted(value.figures)


def explain(value: Plan | Fit, path: str) -> Explanation:
    """The chain of one figure. Raises InputError with near matches for an unknown path."""
    if path not in value.figures:
        near = difflib.get_close_matches(path, value.figures, n=4, cutoff=0.4)
        hint = "Near: " + ", ".join(near) if near else "List them with: linkwise explain FILE"
        raise InputError(f"no figure {path!r}", where="explain", expected="a figure of this file", hint=hint)
    if isinstance(value, Fit):
        engine = registry.get(value.engine, value.engine_version)
        found = ledger_figures(
            value.model, value.cluster, engine, value.layout, value.options, value.workload, Quantity.given
        )
        return _checked(Explanation(path, _chain(_known(found, path), path)), value)
    about = subject(value)
    chain = _chain(_known(figures(about, Quantity.given), path), path)
    step = path.split(".", maxsplit=1)[0]
    if step not in {"prefill", "decode", "mixed"} or path not in value.textbook:
        return _checked(Explanation(path, chain), value)
    taught = beside(value, step).get(path)
    if taught is None:
        raise _not_from_inputs(path)
    return _checked(Explanation(path, chain, taught.chain, taught.differences), value)


class Beside(NamedTuple):
    """A figure under the textbook convention, and what makes it differ from the engine's own."""

    chain: Chain
    differences: tuple[str, ...]


def beside(plan: Plan, step: str) -> dict[str, Beside]:
    """Every figure of a step that the textbook has too, by path."""
    about = subject(plan)
    textbook = about._replace(engine=registry.get("textbook"))
    explained = traffic_figures(step, ops_of(textbook, batches(about, Quantity.given)[step], Quantity.given))
    batch = batches(about)[step]
    mine, theirs = ({(o.role, o.kind): o for o in ops_of(s, batch)} for s in (about, textbook))
    return {
        path: Beside(_chain(number, path), _differences(about.engine.name, mine, theirs, path))
        for path, number in explained.items()
        if path in plan.textbook
    }


def _known(found: dict[str, Num], path: str) -> Num:
    if path not in found:
        raise _not_from_inputs(path)
    return found[path]


def _not_from_inputs(path: str) -> InputError:
    return InputError(f"figure {path!r} does not follow from the inputs of this file", where="explain")


def _checked(explanation: Explanation, value: Plan | Fit) -> Explanation:
    """Say so when the file stores another figure than its inputs give: it was edited, or another version wrote it."""
    stored, now = value.figures[explanation.path], explanation.chain.result.value
    if math.isclose(stored, now, rel_tol=1e-9):
        return explanation
    line = f"the file stores {stored:g}; its inputs give {now:g}: it was edited, or written by another version"
    return msgspec.structs.replace(explanation, differences=(line, *explanation.differences))


def _chain(number: object, path: str) -> Chain:
    if not isinstance(number, Quantity):
        number = Quantity.given(path, number, "", "a count of the step's op list")
    return chain_of(number)


Ops = dict[tuple[str, str], Op]  # by role and kind


def _differences(name: str, mine: Ops, theirs: Ops, path: str) -> tuple[str, ...]:
    """Ops one convention has and the other has not, and ops they size differently. name: of the engine."""
    field = path.rsplit(".", maxsplit=1)[-1]
    lines = []
    for key in dict.fromkeys((*mine, *theirs)):
        role, kind = key
        if path.split(".")[1] not in {kind, role.split(".")[0], field}:
            continue
        a, b = mine.get(key), theirs.get(key)
        if a and not b:
            lines.append(f"{role} ({kind} x {a.repeat}): {name} does it, the textbook leaves it out")
        elif b and not a:
            lines.append(f"{role} ({kind} x {b.repeat}): the textbook does it, {name} does not")
        elif a and b and (a.S_bytes, a.repeat, a.algorithm) != (b.S_bytes, b.repeat, b.algorithm):
            lines.append(
                f"{role}: {name} {a.repeat} x {value_of(a.S_bytes):,.0f} B by {a.algorithm}, textbook"
                f" {b.repeat} x {value_of(b.S_bytes):,.0f} B by {b.algorithm}"
            )
    return tuple(lines)
