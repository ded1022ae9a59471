"""The observer's list equals what was called: kinds, groups, sizes counted by hand from the tensors of the calls."""

from pathlib import Path

import pytest
from tests.dist.ranks import last_json, outputs

pytest.importorskip("torch")

CODE = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from linkwise.dist.observer import observe

def pick(*names):
    return next(getattr(dist, n) for n in names if hasattr(dist, n))

def body(session):
    tp = create(session, [Named("tp", (0, 1)), Named("ep", (0, 1))])
    tp, ep = (tp[key].handle for key in tp)
    r = start.rank
    t, half = torch.zeros(8), torch.zeros(8, dtype=torch.bfloat16)
    with observe() as seen:
        dist.all_reduce(half, group=tp)
        dist.all_gather([torch.zeros(8), torch.zeros(8)], t, group=tp)
        pick("all_gather_single", "all_gather_into_tensor")(torch.zeros(16), t, group=tp)
        dist.reduce_scatter(torch.zeros(4), [torch.zeros(4), torch.zeros(4)], group=tp)
        pick("reduce_scatter_single", "reduce_scatter_tensor")(torch.zeros(4), t, group=ep)
        # Uneven: rank 0 sends 3 and 5 elements, rank 1 sends 3 and 5, so each holds 8 to send.
        dist.all_to_all_single(torch.zeros(6 if r == 0 else 10), t, [3, 3] if r == 0 else [5, 5], [3, 5], group=ep)
        dist.all_to_all([torch.zeros(4), torch.zeros(4)], [torch.zeros(4), torch.zeros(4)], group=ep)
        dist.send(t, 1) if r == 0 else dist.recv(t, 0)
        dist.broadcast(t.to(torch.uint8), 1, group=tp)
        dist.gather(t, [torch.zeros(8), torch.zeros(8)] if r == 0 else None, 0, group=tp)
        dist.scatter(t, [torch.zeros(8), torch.zeros(8)] if r == 1 else None, 1, group=tp)
        dist.reduce(t, 1, group=tp)
        dist.barrier(group=tp)
        functional.all_reduce(t, "sum", tp).sum()
        functional.all_gather_tensor(t, 0, ep).sum()
        both = [dist.P2POp(dist.isend, t, 1 - r), dist.P2POp(dist.irecv, torch.zeros(8), 1 - r)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
    dist.all_reduce(t)  # outside the block: not seen
    print(json.dumps(seen))
run(body)
"""

# kind, group, dtype, elements, S in bytes, peer, number in its group; from the calls above, by hand.
SAME = [
    ["all_reduce", "tp", "bfloat16", 8, 16, -1, 0],
    ["all_gather", "tp", "float32", 16, 64, -1, 1],
    ["all_gather", "tp", "float32", 16, 64, -1, 2],
    ["reduce_scatter", "tp", "float32", 8, 32, -1, 3],
    ["reduce_scatter", "ep", "float32", 8, 32, -1, 0],
    ["all_to_all", "ep", "float32", 8, 32, -1, 1],
    ["all_to_all", "ep", "float32", 8, 32, -1, 2],
    [["send", "recv"], "default_pg", "float32", 8, 32, [1, 0], 0],
    ["broadcast", "tp", "uint8", 8, 8, 1, 4],
    ["gather", "tp", "float32", 16, 64, 0, 5],
    ["scatter", "tp", "float32", 16, 64, 1, 6],
    ["reduce", "tp", "float32", 8, 32, 1, 7],
    ["barrier", "tp", "", 0, 0, -1, 8],
    ["all_reduce", "tp", "float32", 8, 32, -1, 9],
    ["all_gather", "ep", "float32", 16, 64, -1, 3],
    ["send", "default_pg", "float32", 8, 32, [1, 0], 1],
    ["recv", "default_pg", "float32", 8, 32, [1, 0], 2],
]


def test_the_list_is_what_was_called(tmp_path: Path) -> None:
    for rank, text in enumerate(outputs(tmp_path, CODE, 2)):
        seen = last_json(text)
        expected = [[x[rank] if isinstance(x, list) else x for x in row] for row in SAME]
        assert [[*row[:2], *row[3:]] for row in seen] == expected
        assert all(row[2] == [0, 1] for row in seen)


LIGHT = """
import torch, torch.distributed as dist
from linkwise.dist.observer import observe

def body(session):
    with observe() as seen:
        dist.all_reduce(torch.zeros(2))
    print(json.dumps([len(seen), "torch._dynamo" in sys.modules]))
run(body)
"""


def test_watching_does_not_load_the_compiler(tmp_path: Path) -> None:
    """That would take seconds of every rank, at its first call."""
    (text,) = outputs(tmp_path, LIGHT, 1)
    assert last_json(text) == [1, False]
