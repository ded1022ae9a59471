"""Every call and every byte of a case of the oracle's table against the plan's, as the ranks make them.

`Watch` sits beside one rank's run of a case: the observer sees what its process groups did, the plan lists what each
rank should do in the same steps, and rank 0 holds all of it together.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from linkwise.core.layout import Layout
from linkwise.dist.groups import share
from linkwise.dist.observer import Seen, observe
from linkwise.engine import registry
from linkwise.model.held import held
from linkwise.model.read import from_config
from linkwise.runtime.check import Line, Planned, combined, compare, expected, memory_check
from linkwise.runtime.steps import Step


class Watch:
    """One rank beside its run of one case. stage: its runtime.stage.Stage, None on ranks the layout leaves out."""

    def __init__(self, folder: Path, layout: Layout, layers: tuple[int, ...] | None, stage: Any, session: Any) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.model = held(from_config(config, None, name="tiny", source="test"), "float32")
        self.layout, self.layers, self.stage, self.session = layout, layers or (), stage, session
        self.seen: list[list[Seen]] = []
        self.steps: list[Step] = []

    @contextlib.contextmanager
    def step(self, step: Step) -> Iterator[None]:
        """The calls made inside are those of a step."""
        with observe() as seen:
            yield
        self.seen.append(list(seen))
        self.steps.append(step)

    def result(self, name: str) -> tuple[Sequence[Line], str]:
        """On rank 0: lines of the comparison over all ranks and steps, and what differs first in calls, and in memory;
        nothing on the others."""
        stage = self.stage
        mine = [self.seen, 0, 0] if stage is None else [self.seen, stage.weight_bytes, stage.kv_bytes]
        gathered = share(self.session, name, mine)
        if gathered is None:
            return (), ""
        engine, ranks = registry.get("linkwise"), range(self.layout.size)
        refused = engine.refuses(self.model, self.layout, devices_per_node=8)
        parts = []
        for number, step in enumerate(self.steps):
            seen = {rank: [_seen(one) for one in gathered[rank][0][number]] for rank in ranks}
            plan = {rank: self._planned(step, rank) for rank in ranks}
            parts.append(compare(seen, plan))
        whole = combined(parts)
        memory = memory_check(
            self.model, self.layout, engine, weight_bytes=[gathered[rank][1] for rank in ranks],
            kv_bytes=[gathered[rank][2] for rank in ranks], kv_blocks=stage.cache.blocks,
            block_tokens=stage.block_tokens, layers=self.layers,
        )  # fmt: skip
        wrong = [f"refused: {refused.reason}"] if refused else []
        wrong += [whole.difference] if whole.difference else []
        wrong += [str(one) for one in memory if not one.equal]
        return whole.lines, "; ".join(wrong)

    def _planned(self, step: Step, rank: int) -> list[Planned]:
        return expected(self.model, self.layout, registry.get("linkwise"), step, rank, layers=self.layers)


def _seen(fields: list[Any]) -> Seen:
    one = Seen(*fields)
    return one._replace(members=tuple(one.members))
