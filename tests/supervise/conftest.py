"""A supervisor that is up and running, for the tests of this folder."""

from collections.abc import Iterator

import pytest
from tests.supervise.bench import Bench
from tests.supervise.fake import FakeUnit, until

from linkwise.supervise.rules import Rules


@pytest.fixture
def build() -> Iterator[object]:
    made: list[Bench] = []

    def make(*units: FakeUnit, **rules: object) -> Bench:
        given: dict[str, object] = {"backoff_s": 0.01, "backoff_most_s": 0.05, "failures": 1000, **rules}
        bench = Bench(list(units), Rules(**given))  # type: ignore[arg-type]
        made.append(bench)
        assert until(lambda: all(u.state == "ready" for u in units) and bench.supervisor.ready) or any(
            u.refuse_starts for u in units
        )
        until(lambda: set(bench.supervisor.phases().values()) == {"ready"}, 1.0)
        return bench

    yield make
    for bench in made:
        bench.supervisor.stop()
        assert bench.supervisor.bugs == []
