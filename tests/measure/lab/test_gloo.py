"""gloo's variants: who sends how much to whom, by hand, and against what the kernel counted for real collectives."""

import pytest
from tests.measure.lab import needs
from tests.plan import handmade

from linkwise.measure.lab import wiring
from linkwise.measure.lab.compare import byte_error, predicted_bytes, predicted_seconds, run_exercises
from linkwise.measure.lab.exercise import Exercise
from linkwise.plan.algorithms import Call, Send
from linkwise.plan.flows import sends

S = 1200
FOUR = handmade.cluster(nodes=4, devices=1)


def sent(kind: str, algorithm: str, devices: tuple[int, ...] = (0, 1, 2, 3), **call: int) -> set[Send]:
    return set(sends(kind, FOUR, devices, Call(S, **call), algorithm))


def test_rings_go_opposite_ways() -> None:
    # Four ranks: all-reduce 2 x 1200 x 3/4 = 1800 to the rank before, all-gather 900 to the rank after.
    assert sent("all_reduce", "gloo_ring") == {Send(0, 3, 1800), Send(1, 0, 1800), Send(2, 1, 1800), Send(3, 2, 1800)}
    assert sent("all_gather", "gloo_ring") == {Send(0, 1, 900), Send(1, 2, 900), Send(2, 3, 900), Send(3, 0, 900)}


def test_a_reduce_scatter_is_a_whole_all_reduce() -> None:
    assert sent("reduce_scatter", "gloo_all_reduce", (0, 1)) == {Send(0, 1, S), Send(1, 0, S)}  # S, not S/2
    assert sent("reduce_scatter", "gloo_all_reduce") == sent("all_reduce", "gloo_ring")


def test_a_broadcast_is_a_binomial_tree() -> None:
    assert sent("broadcast", "gloo_tree") == {Send(0, 1, S), Send(0, 2, S), Send(1, 3, S)}
    assert sent("broadcast", "gloo_tree", root=2) == {Send(2, 3, S), Send(2, 0, S), Send(3, 1, S)}


def test_seconds_by_hand() -> None:
    # Two nodes, NIC 25 MB/s. 8948 x 1000 bytes: a thousand frames of 9014 and, for the other direction's thousand, 500
    # empty segments of 66.
    two = handmade.cluster(nodes=2, devices=1)
    built = wiring(two, scale=25e6 / 50e9)
    frames = (9014 * 1000 + 66 * 500) / 25e6
    size = 8948 * 1000
    one = Exercise(kind="all_reduce", S_bytes=size, groups=((0, 1),), calls=2)
    assert predicted_seconds(two, built, one) == pytest.approx((2 * frames, 2 * frames))
    exchange = Exercise(kind="all_to_all", S_bytes=2 * size, groups=((0, 1),))
    assert predicted_seconds(two, built, exchange) == pytest.approx((frames, 2 * frames))  # gloo's race
    first = Exercise(kind="all_to_all", S_bytes=2 * size, groups=((0, 1),), receives_first=True)
    assert predicted_seconds(two, built, first) == pytest.approx((frames, frames))
    raw = predicted_bytes(two, built, exchange, framing=False)
    assert raw["d0>n0.nic0"] == raw["rail0>n1.nic0"] == size


TOPOLOGIES = {
    "two nodes": handmade.cluster(nodes=2, devices=1, fabric="fat-tree"),
    "four nodes behind an oversubscribed spine": handmade.cluster(
        nodes=4, devices=1, fabric="fat-tree", oversubscription=2.0
    ),
    "two rails": handmade.cluster(nodes=2, devices=2),
}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")


@needs.lab
@needs.torch
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_kernel_counts_what_is_predicted(name: str) -> None:
    """Every link within 2 %, for 1 MiB, with headers and acknowledgements counted and without."""
    cluster = TOPOLOGIES[name]
    built, last = wiring(cluster), cluster.size - 1
    whole = (tuple(range(cluster.size)),)
    asked = [
        Exercise(kind=kind, S_bytes=2**20, groups=((0, last),) if kind == "send_recv" else whole, repeats=3)
        for kind in KINDS
    ]
    asked.append(Exercise(kind="all_to_all", S_bytes=2**20, groups=whole, repeats=3, receives_first=True))
    if name == "two rails":
        asked.append(Exercise(kind="all_reduce", S_bytes=2**20, groups=((0, 2), (1, 3)), repeats=3))
    for done in run_exercises(built, tuple(asked), timeout_s=240):
        framed, raw = byte_error(cluster, built, done), byte_error(cluster, built, done, framing=False)
        assert framed[0] <= 0.02, (done.exercise, framed)
        assert raw[0] <= 0.02, (done.exercise, raw)
