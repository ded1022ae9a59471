"""What supervisor and router cost: a request from `submit` to its unit, and a token from its unit to the sink.

The unit does nothing, so that nothing else is measured.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from linkwise.supervise.rules import Rules
from linkwise.supervise.supervisor import Supervisor
from linkwise.supervise.types import Finished, Job, Load, State, Token

REQUESTS, TOKENS, PROMPT = 2000, 200, 1000


class _Instant:
    """Takes jobs and keeps them."""

    max_tokens = 100_000

    def __init__(self, name: str) -> None:
        self.name, self.state, self.load = name, "stopped", Load(0, 0, 1, 0)
        self.taken: list[tuple[Job, Callable[[Any], None]]] = []

    def start(self, watch: Callable[[State, Any], None]) -> None:
        self.state = "ready"
        watch("ready", None)

    def submit(self, job: Job, sink: Callable[[Any], None]) -> None:
        self.taken.append((job, sink))

    def cancel(self, id: str) -> None: ...

    def probe(self, answer: Callable[[bool], None]) -> None:
        answer(True)

    def stop(self) -> None:
        self.state = "stopped"


def main() -> int:
    units = [_Instant("a"), _Instant("b")]
    supervisor = Supervisor(units, Rules(max_waiting=REQUESTS + 1))  # type: ignore[arg-type]
    supervisor.start()
    while not supervisor.ready:
        time.sleep(0.001)
    jobs = [
        Job(f"r{number}", tuple((number * 7 + i) % 50_000 for i in range(PROMPT)), TOKENS) for number in range(REQUESTS)
    ]
    began = time.process_time()
    for job in jobs:
        supervisor.submit(job, lambda event: None)
    while sum(len(unit.taken) for unit in units) < REQUESTS:
        time.sleep(0.01)
    each = (time.process_time() - began) / REQUESTS
    tokens = []
    for unit in units:
        for job, sink in unit.taken[:50]:
            began = time.process_time()
            for index in range(TOKENS):
                sink(Token(job.id, 1, index))
            tokens.append((time.process_time() - began) / TOKENS)
            sink(Finished(job.id, "length"))
    supervisor.stop()
    print(f"submit to unit, prompt of {PROMPT} tokens: {each * 1e6:.0f} us of processor time per request")
    print(f"unit to sink: {statistics.median(tokens) * 1e6:.1f} us per token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
