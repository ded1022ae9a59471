"""A rank without torch that never misbehaves by itself: faults come from outside."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.runtime.fake_rank import FakeHome, FakeRank

from linkwise.runtime.control import Begin
from linkwise.runtime.worker import main


class _Rank(FakeRank):
    def _misbehave(self, token: int) -> None:
        pass


class _Home(FakeHome):
    @contextmanager
    def build(self, begin: Begin) -> Iterator[FakeRank]:
        yield _Rank(begin, self.rank)


if __name__ == "__main__":
    raise SystemExit(main(_Home))
