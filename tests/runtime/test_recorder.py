"""Calls that `Comm` makes become events of their step; a rank that ends inside a call says in which."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from linkwise.core.layout import Layout
from linkwise.dist.groups import Team
from linkwise.runtime.comm import Call, Comm
from linkwise.runtime.recorder import open_recorder
from linkwise.runtime.steps import FILLER, Step
from linkwise.runtime.steps import Row as BatchRow
from linkwise.trace.events import Batch, Event, Head
from linkwise.trace.readers.own import read_folder
from linkwise.trace.writer import Row


def test_a_call_and_a_written_row_have_the_same_places() -> None:
    renamed = {"kind": "op", "axis": "group", "enqueued_ns": "created_ns"}
    assert tuple(renamed.get(name, name) for name in Call._fields) == Row._fields


def test_calls_become_events_of_their_step(tmp_path: Path) -> None:
    comm = Comm({"tp": Team("tp", (2, 3), None, 1)})
    recorder = open_recorder(
        tmp_path, comm, Layout(dp_attn=2, tp=2), 3, rank=3, world=4, unit="r0", host="h", transport="gloo", turn_s=0
    )
    comm.listener = recorder.heard
    rows = (
        BatchRow(5, 8, (1,), False, None, (1,)),
        BatchRow(FILLER, 0, (0, 0), True, None, (0,)),
        BatchRow(6, 0, (4, 5, 6), True, None, (2,)),
    )
    recorder.begin(Step(7, ((), rows)), ((), ("aa", "", "bb")))
    comm.listener(Call("all_reduce", "attn.out", "tp", (2, 3), 0, 64, "float32", -1, 10, 10, 12))
    comm.waiting = "mlp.out"
    recorder.close(comm)
    (rank,) = read_folder(tmp_path).ranks
    assert isinstance(rank.head, Head)
    assert rank.head.groups == {"tp": (2, 3)}
    assert rank.head.shard == {"pp": 0, "cp": 0, "dp_attn": 1, "tp": 1, "dcp": 0, "ep": 0, "moe_tp": 3}
    assert [batch._replace(began_ns=0) for batch in rank.batches] == [Batch(7, 0, ("aa", "bb"), (1, 3))]
    assert next(iter(rank.calls)) == Event(7, "tp", "attn.out", "all_reduce", 0, 64, "float32", -1, 10, 10, 12, "done")
    second = list(rank.calls)[1]
    assert (second.role, second.state, second.step) == ("mlp.out", "started", 7)
    assert rank.unix_ns(rank.batches[0].began_ns) > 1_600_000_000 * 10**9
