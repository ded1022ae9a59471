"""Memory of each rank class as named states, each with the figure it is."""

from linkwise.plan.types import Entry, Plan, RankLedger
from linkwise.report.page.types import RankMemory, State
from linkwise.report.text import rank_words


def memory(plan: Plan) -> tuple[RankMemory, ...]:
    """Every rank class of a serving group."""
    return tuple(_class(plan, place, rank) for place, rank in enumerate(plan.ledger.ranks))


def _class(plan: Plan, place: int, rank: RankLedger) -> RankMemory:
    # What the engine leaves for KV is one state: the entries named kv say how much of it a request takes.
    held = [e for e in rank.entries if e.place == "device" and e.bytes and not e.name.startswith("kv")]
    first = rank.ranks[0]
    left = State(
        name="left for KV",
        bytes=max(0, rank.kv_bytes),
        note="; ".join(f"{e.name} {e.note}".strip() for e in rank.entries if e.name.startswith("kv") and e.bytes),
        in_budget=True,
        path=f"kv.rank{first}" if f"kv.rank{first}" in plan.figures else "",
    )
    return RankMemory(
        label=rank.rank_class,
        ranks=rank_words(rank.ranks),
        states=(*(_state(plan, first, e) for e in held), left),
        device_bytes=rank.device_bytes,
        budget_bytes=rank.budget_bytes,
        kv_bytes=rank.kv_bytes,
        tightest=place == plan.ledger.tightest,
    )


def _state(plan: Plan, rank: int, entry: Entry) -> State:
    split = [f"sharded over {entry.sharded_over}" if entry.sharded_over else ""]
    split.append(f"replicated over {entry.replicated_over}" if entry.replicated_over else "")
    path = f"{entry.name}.rank{rank}"
    own = plan.figures.get(path) == entry.bytes
    return State(
        name=entry.name,
        bytes=entry.bytes,
        note=" · ".join(word for word in (*split, entry.note) if word),
        in_budget=entry.in_budget,
        path=path if own else "",
    )
