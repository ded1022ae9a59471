"""The worked calculations of the textbook, each as chains a reader can follow by hand, beside the ledger's own figure.

They run through the functions that every plan runs through, under convention `textbook`; what a real engine does on top
stands beside each with its name.

    chains()                                  # ids and titles
    chain("tp_all_reduce_bytes")              # from the catalogue's facts
    chain("pipeline_bubble")                  # print it: inputs, formulas, results
    chain("all_gather_boundary", {"ranks": 8, "shard_bytes": 1024})
"""

from collections.abc import Callable, Mapping
from typing import Any

from linkwise.core.errors import InputError
from linkwise.plan.textbook.base import Inputs, Worked

__all__ = ["Inputs", "Worked", "chain", "chains"]


def _all() -> dict[str, tuple[str, Callable[[Inputs], Worked]]]:
    from linkwise.plan.textbook import choice, memory, traffic

    return traffic.CHAINS | memory.CHAINS | choice.CHAINS


def chains() -> list[tuple[str, str]]:
    """Id and title of every worked calculation."""
    return [(name, title) for name, (title, _) in _all().items()]


def chain(id: str, inputs: Mapping[str, Any] | None = None) -> Worked:
    """One worked calculation, from the catalogue's facts or from `inputs` that replace them.

    Raises InputError for an unknown id, an unknown or unusable input, or one that contradicts the model.
    """
    known = _all()
    if id not in known:
        raise InputError(f"no worked calculation {id!r}"[:100], where="seed", expected="one of " + ", ".join(known))
    title, work = known[id]
    asked = Inputs(id, inputs)
    found = work(asked)
    asked.finish()
    return found._replace(id=id, title=title)
