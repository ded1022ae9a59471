"""The program of a rank with a fault: it patches what it runs, from outside, and is then `linkwise.runtime.rank`.

    python rank.py '{"kind": "late", "rank": 1, "step": 10, "seconds": 0.03, "call": 2}'

step: of the rank's group, from which on the fault is there. call: of a step, where the fault is in one call. mark: a
file that then says when (time.monotonic()).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Fault:
    """One rank's fault, put into what it runs once that is built."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.kind, self.rank, self.step = given["kind"], given["rank"], given.get("step", 0)
        self.seconds, self.call = given.get("seconds", 0.0), given.get("call", 0)
        self.at = -1  # step under way
        self.number = -1  # call of this kind in that step
        self.done = False
        self.mark = given.get("mark", "")

    def put_into(self, built: Any) -> None:
        if built._number != self.rank:
            return
        run = built.run

        def counted(message: Any) -> Any:
            self.at, self.number = message.step.number, -1
            return run(message)

        built.run = counted
        getattr(self, f"_{self.kind}")(built)

    @property
    def there(self) -> bool:
        return self.at >= self.step

    def _late(self, built: Any) -> None:
        """Sleeps in every step."""
        run = built.stage.run

        def slow(step: Any) -> Any:
            if self.there:
                time.sleep(self.seconds)
            return run(step)

        built.stage.run = slow

    def _late_calls(self, built: Any) -> None:
        """Sleeps before every call."""
        do = built.comm._do

        def slow(*words: Any) -> Any:
            if self.there:
                time.sleep(self.seconds)
            return do(*words)

        built.comm._do = slow

    def _once(self, built: Any, instead: Callable[[Any, str, str, Any], Any]) -> None:
        """One all-reduce is another."""
        whole = built.comm.all_reduce

        def once(axis: str, role: str, tensor: Any) -> Any:
            self.number += 1
            if self.done or not self.there or self.number != self.call:
                return whole(axis, role, tensor)
            self.done = True
            if self.mark:
                Path(self.mark).write_text(str(time.monotonic()))
            return instead(whole, axis, role, tensor)

        built.comm.all_reduce = once

    def _skip(self, built: Any) -> None:
        self._once(built, lambda whole, axis, role, tensor: tensor)

    def _shape(self, built: Any) -> None:
        def half(whole: Any, axis: str, role: str, tensor: Any) -> Any:
            flat = tensor.flatten()
            whole(axis, role, flat[: max(1, len(flat) // 2)].clone())
            return tensor

        self._once(built, half)

    def _receiver(self, built: Any) -> None:
        """Takes its time for every layer of KV it receives."""
        from linkwise.runtime.split import handoff  # noqa: PLC0415

        receive = handoff.receive_layer

        def slow(*words: Any) -> None:
            time.sleep(self.seconds)
            receive(*words)

        handoff.receive_layer = slow


def main() -> int:
    from linkwise.runtime import built  # noqa: PLC0415 - torch, with the process's own settings
    from linkwise.runtime.rank import program  # noqa: PLC0415

    fault = Fault(json.loads(sys.argv[1]))
    begin = built.Built.__init__

    def begun(self: Any, *words: Any) -> None:
        begin(self, *words)
        fault.put_into(self)

    built.Built.__init__ = begun  # type: ignore[method-assign]
    return program()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
