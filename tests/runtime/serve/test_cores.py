"""How many cores each rank computes on."""

import os
from types import SimpleNamespace

import pytest

from linkwise.cli_serve import _threads


@pytest.mark.parametrize(
    ("cores", "replicas", "ranks", "said", "threads"),
    [
        (2, 1, 1, None, 1),  # one of two is the server's own
        (8, 1, 2, None, 3),
        (8, 2, 2, None, 1),
        (1, 1, 1, None, 1),
        (8, 1, 2, "8", 0),  # as the environment has it
    ],
)
def test_ranks_share_the_cores_but_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, replicas: int, ranks: int, said: str | None, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    what, asked = SimpleNamespace(replicas=replicas), SimpleNamespace(spec=SimpleNamespace(ranks=ranks))
    assert _threads(what, asked) == threads
