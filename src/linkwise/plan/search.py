"""Every layout the model, the engine and the cluster allow, each with the first resource that does not fit or with the
point it operates at (DESIGN §2.4). Choosing among the feasible ones is choose.py's question."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Any, NamedTuple, Protocol

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.evaluate import Points, outcomes, trial
from linkwise.plan.ledger import ledger
from linkwise.plan.time import Span
from linkwise.plan.types import Candidate, Ledger, Rejection, Shortfall
from linkwise.workload.types import Workload

DEGREES = ("tp", "pp", "cp", "dp_attn", "dcp", "ep")


Order = Callable[[Layout, Ledger], dict[str, Span]]


class Other(Protocol):
    """A process that takes work, such as an executor."""

    def submit(self, work: Callable[..., Any], /, *given: Any) -> "Promised":
        """Work with what it is given."""
        ...


class Promised(Protocol):
    """What such a process was asked for, such as a future."""

    def result(self) -> Any:
        """What the work gives, or the error it raises."""
        ...


class Found(NamedTuple):
    """What a search saw: feasible layouts with their ledgers, rejected ones with reasons."""

    candidates: tuple[Candidate, ...]
    ledgers: tuple[Ledger, ...]
    rejected: tuple[Rejection, ...]
    considered: int


def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


# Groups beyond this many ranks are searched only while nothing smaller is feasible, and never beyond MAX_RANKS: the
# rule prefers small groups, and nothing published has made a larger one worth its size.
USUAL_RANKS = 72
MAX_RANKS = 1024
WORTH = 24  # layouts of one size from which on a second process is worth its messages


def group_sizes(cluster: Cluster) -> list[int]:
    """Group sizes that pack, ascending: parts of a node, or whole nodes."""
    inside = divisors(cluster.devices_per_node)
    most = min(cluster.nodes, max(1, MAX_RANKS // cluster.devices_per_node))
    across = [n for n in range(2, most + 1) if cluster.nodes % n == 0 or n <= 4]
    return inside + [cluster.devices_per_node * n for n in across]


def layouts(model: Model, cluster: Cluster, fixed: dict[str, int]) -> Iterator[Layout]:
    """Every combination of degrees that packs into the cluster, smallest group first; `fixed` degrees are given.

    ep is 1 for dense models. Sequence-sharded tp is a variant the user asks for, not a degree to search.
    """
    unknown = sorted(set(fixed) - {*DEGREES, "sequence_sharded"})
    if unknown:
        raise InputError(f"unknown degree {', '.join(unknown)}", where="layout", expected=", ".join(DEGREES))
    sharded = bool(fixed.get("sequence_sharded", 0))
    sizes = group_sizes(cluster)
    if {"tp", "pp", "cp", "dp_attn"} <= set(fixed):
        product = fixed["tp"] * fixed["pp"] * fixed["cp"] * fixed["dp_attn"]
        sizes = [product] if product <= cluster.size else []
    for size in sizes:
        for pp in _options(fixed, "pp", size):
            for cp in _options(fixed, "cp", size // pp):
                for dp in _options(fixed, "dp_attn", size // pp // cp):
                    tp = size // pp // cp // dp
                    if fixed.get("tp", tp) != tp or pp > len(model.layers):
                        continue
                    for dcp in _options(fixed, "dcp", tp):
                        for ep in _options(fixed, "ep", cp * dp * tp) if model.moe else _options(fixed, "ep", 1):
                            yield Layout(
                                tp=tp, pp=pp, cp=cp, dp_attn=dp, dcp=dcp, ep=ep, sequence_sharded=sharded
                            )  # fmt: skip


def _options(fixed: dict[str, int], name: str, within: int) -> list[int]:
    if name in fixed:
        return [fixed[name]] if fixed[name] >= 1 and within % fixed[name] == 0 else []
    return divisors(within)


def search(
    model: Model,
    cluster: Cluster,
    engine: Engine,
    options: Options,
    workload: Workload,
    fixed: dict[str, int] | None = None,
    replicas: int | None = None,
    order: Order | None = None,
    seen: Callable[[Layout, Points], None] | None = None,
    other: Other | None = None,
) -> Found:
    """Evaluate every layout at twelve batch sizes. replicas: how many to run; None = what rate or cluster ask for.

    order: where a layout's ranks lie when not on devices in order. seen: told of every layout that fits and of its
    batches. other: a process that takes half of the layouts; None = all here.
    """
    candidates: list[Candidate] = []
    ledgers: list[Ledger] = []
    rejected: list[Rejection] = []
    considered = 0
    case = model, cluster, engine, options, workload
    # Groups of the usual sizes at once, as another process knows what it has been sent only as long as it looks.
    for size, some in groupby(layouts(model, cluster, fixed or {}), key=lambda layout: max(layout.size, USUAL_RANKS)):
        if candidates and size > max(USUAL_RANKS, candidates[0].group_size):
            break
        rows = [(layout, _refused(layout, case, replicas)) for layout in some]
        considered += len(rows)
        looks = iter(_looks(case, replicas, [layout for layout, no in rows if no is None], order, other))
        for layout, no in rows:
            one = None if no is not None else next(looks)
            short = no if one is None else one.outcome
            if one is not None and one.points is not None and seen is not None:
                seen(layout, one.points)
            if isinstance(short, Shortfall):
                rejected.append(Rejection(layout=layout, replicas=cluster.size // layout.size, shortfall=short))
            elif one is not None and isinstance(one.outcome, Candidate):
                candidates.append(one.outcome)
                ledgers.append(one.memory)
    return Found(tuple(candidates), tuple(ledgers), tuple(rejected), considered)


_Case = tuple[Model, Cluster, Engine, Options, Workload]


class _Look(NamedTuple):
    """What was found of a layout that the engine takes. points: where it fits, at its batches."""

    memory: Ledger
    outcome: Candidate | Shortfall
    points: Points | None


def _refused(layout: Layout, case: _Case, replicas: int | None) -> Shortfall | None:
    """Why a layout is none here."""
    model, cluster, engine, options, _ = case
    if replicas is not None and replicas > cluster.size // layout.size:
        return _illegal(f"{replicas} replicas of {layout.size} devices are more than {cluster.size} devices", "")
    refusal = engine.refuses(model, layout, devices_per_node=cluster.devices_per_node, options=options)
    return None if refusal is None else _illegal(refusal.reason, refusal.change)


def _looks(
    case: _Case, replicas: int | None, todo: Sequence[Layout], order: Order | None, other: Other | None
) -> list[_Look]:
    """Every layout's outcome, in order; half of them found in another process where there is one and it pays."""
    if other is None or order is not None or len(todo) < WORTH:
        return _looked(case, replicas, todo, order)
    theirs = other.submit(_looked, case, replicas, todo[1::2])
    ours = _looked(case, replicas, todo[0::2])
    return [one for pair in zip_longest(ours, theirs.result()) for one in pair if one is not None]


def _looked(case: _Case, replicas: int | None, todo: Sequence[Layout], order: Order | None = None) -> list[_Look]:
    ledgers = [ledger(*case[:3], layout, *case[3:]) for layout in todo]
    trials = [
        trial(*case, memory.layout, memory, replicas, order(memory.layout, memory) if order else None)
        for memory in ledgers if memory.shortfall is None
    ]  # fmt: skip
    found = iter(outcomes(trials))
    return [_Look(one, one.shortfall, None) if one.shortfall else _Look(one, *next(found)) for one in ledgers]


def _illegal(reason: str, change: str) -> Shortfall:
    return Shortfall(resource="legality", rank=0, need=0, have=0, unit="", reason=reason, change=change)
