"""A replica down between a prefill and a decode pool: worked out by hand, and conservation over random faults."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from linkwise.simulate.rules import Fault, Pool, Rules, Run, Transfer
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.workload.requests import requests


def load(arrivals, inputs=10, outputs=1):
    number = len(arrivals)
    columns = (np.broadcast_to(np.asarray(x, np.int64), number).copy() for x in (inputs, outputs))
    return requests(np.asarray(arrivals, float), *columns)


def pools(replicas=(1, 1)):
    rules = Rules(prefix_cache=False)
    return [Pool(rules, constant(1.0), replicas[0], "prefill"), Pool(rules, constant(1.0), replicas[1], "decode")]


def test_a_decode_replica_that_dies():
    # Prompt until 1 s, moved until 2 s, tokens at 3 s and 4 s; the replica dies at 4.5 s and is back at 6 s. The prompt
    # and its two tokens are computed again by 5.5 s, offered at 6 s, moved until 7 s: the last two tokens at 8 and 9 s.
    fault = Fault(kind="down", replica=1, start_s=4.5, end_s=6.0)
    found = simulate(pools(), load([0.0], 10, 4), Run(faults=(fault,), transfer=Transfer(base_s=1.0)))
    assert found.requests["first"].tolist() == [3.0]
    assert found.requests["end"].tolist() == [9.0]
    assert found.summary.recomputed_tokens == 12


def test_a_prefill_replica_that_dies_in_a_transfer():
    # Dies at 1.5 s, in the transfer; back at 3 s: prompt by 4 s, moved by 5 s, tokens at 6 s and 7 s.
    fault = Fault(kind="down", replica=0, start_s=1.5, end_s=3.0)
    found = simulate(pools(), load([0.0], 10, 2), Run(faults=(fault,), transfer=Transfer(base_s=1.0)))
    assert found.requests["end"].tolist() == [7.0]


def test_a_decode_replica_that_dies_in_a_transfer_leaves_the_kv_where_it_is():
    # Two decode replicas, 1 and 2; the transfer to the first is cut at 1.5 s. The sender's route is
    # taken until it would have ended: to the other from 2 s to 3 s, tokens at 4 s and 5 s.
    fault = Fault(kind="down", replica=1, start_s=1.5, end_s=50.0)
    found = simulate(pools((1, 2)), load([0.0], 10, 2), Run(faults=(fault,), transfer=Transfer(base_s=1.0)))
    assert found.requests["end"].tolist() == [5.0]
    assert found.summary.recomputed_tokens == 0


def test_the_rule_drop_loses_what_the_decode_replica_served():
    fault = Fault(kind="down", replica=1, start_s=4.5, end_s=6.0)
    run = Run(faults=(fault,), recovery="drop", transfer=Transfer(base_s=1.0))
    assert simulate(pools(), load([0.0], 10, 4), run).summary.lost == 1


@st.composite
def worlds(draw):
    number = draw(st.integers(1, 40))
    inputs, outputs = ([draw(st.integers(1, 60)) for _ in range(number)] for _ in range(2))
    gaps = [draw(st.sampled_from([0.0, 0.5, 3.0])) for _ in range(number)]
    block = draw(st.sampled_from([4, 16]))
    hashes = None
    if draw(st.booleans()):
        hashes = [[100 * draw(st.integers(0, 2)) + k for k in range(-(-x // 8))] for x in inputs]
    these = requests(np.cumsum(gaps), np.array(inputs), np.array(outputs), hashes, 8 if hashes else 0)
    counts = draw(st.integers(1, 2)), draw(st.integers(1, 2))

    def rules():
        return Rules(
            max_seqs=draw(st.integers(1, 8)), slots=draw(st.integers(1, 2)), lanes=draw(st.integers(1, 2)),
            block_tokens=block, kv_blocks=-(-130 // block) + 16 + draw(st.integers(0, 10)),
            budget=draw(st.sampled_from([8, 4096])),
        )  # fmt: skip

    made = [Pool(rules(), constant(1.0), counts[0], "prefill"), Pool(rules(), constant(0.7), counts[1], "decode")]
    starts = [draw(st.sampled_from([0.0, 1.5, 7.0, 20.3])) for _ in range(draw(st.integers(0, 3)))]
    faults = tuple(
        Fault(
            kind="down", replica=draw(st.integers(0, sum(counts) - 1)), start_s=start,
            end_s=start + draw(st.sampled_from([0.3, 2.5, 9.0])),
        )
        for start in starts
    )  # fmt: skip
    run = Run(
        seed=draw(st.integers(0, 9)), users=draw(st.sampled_from([0, 0, 3])), faults=faults,
        router=draw(st.sampled_from(["random", "round-robin", "least"])),
        recovery=draw(st.sampled_from(["elsewhere", "drop", "stay"])), max_waiting=draw(st.sampled_from([0, 0, 2])),
        transfer=Transfer(
            base_s=draw(st.sampled_from([0.0, 0.4])), token_s=0.01, fail=draw(st.sampled_from([0.0, 0.3])), tries=2
        ),
    )  # fmt: skip
    return made, these, run


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_nothing_appears_and_nothing_is_lost_between_pools(case):
    made, these, run = case
    found = simulate(made, these, run)
    figures, every, w = found.summary, found.requests, found.world
    assert figures.served + figures.refused + figures.lost + figures.unmoved == these.number
    done = every[every["status"] == 1]
    assert np.all(done["first"] >= done["moved"])
    assert np.all(done["end"] >= done["first"])
    assert figures.in_system_s == pytest.approx(float((every["end"] - every["arrival"]).sum()), rel=1e-9, abs=1e-9)
    g = w.g[0]
    kept = 0
    for number, pool in enumerate(made):
        lanes = w.lane[w.replica["pool"][w.lane["replica"]] == number]
        assert np.all(lanes["free"] + lanes["cached"] == pool.rules.kv_blocks)
        kept += int(lanes["cached"].sum())
    assert g["taken"] == g["given"] + g["evicted"] + kept
    for field in ("running", "waiting", "hands", "readies"):
        assert np.all(w.lane[field] == 0), field
    assert np.all(w.replica["outstanding"] == 0)
    assert np.all(every["blocks"] == 0)
    assert int(done["output"].sum()) <= figures.decode_tokens
    again = simulate(made, these, run).requests
    assert again.tobytes() == every.tobytes()


def test_what_decode_preempted_is_not_overtaken_for_ever() -> None:
    """Equal requests whose answers outgrow the decode side's blocks: who gives its blocks up is first in line for them.
    Were prompts that arrive given them first, the tenth request would stay 15 s, where the median is 8 s."""
    blocks = Rules(max_seqs=16, block_tokens=4, kv_blocks=32, prefix_cache=False)
    first = Pool(Rules(max_seqs=1, prefix_cache=False), constant(0.5), role="prefill")
    second = Pool(blocks, constant(0.25), role="decode")
    found = simulate([first, second], load(np.arange(30) * 1.0, 8, 24), Run())
    stay = found.requests["end"] - found.requests["arrival"]
    assert found.summary.preemptions > 10
    assert stay.max() < 1.5 * np.median(stay)
