"""A trace against the plan, on records whose sizes are worked out by hand."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.small import LLAMA

import linkwise
from linkwise.cluster.detail import NodeDetail
from linkwise.cluster.presets import shorthand
from linkwise.measure.lab.counters import LinkCount
from linkwise.measure.lab.run import LabResult
from linkwise.model.read import from_config
from linkwise.plan.traffic import traffic
from linkwise.report.page.observed import compare
from linkwise.report.page.types import Comparison
from linkwise.trace.calls import of_events
from linkwise.trace.events import Anchor, Batch, Event, Head, RankTrace, Trace
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence, gather

# Hidden 256 and 1,024 words in bfloat16, 4 layers; steps of 3 and of 1 tokens. Every row draws one.
ROW, LOGITS = 256 * 2, 1024 * 2
STEPS = ((2, 1), (1,))


@pytest.fixture(scope="module")
def plan() -> linkwise.Plan:
    model = from_config(LLAMA, name="small", source="hand-made")
    found = linkwise.plan(model, on="1x2xh100-sxm", engine="linkwise", tp=2, isl=8, osl=8)
    assert isinstance(found, linkwise.Plan)
    return found


def record(rank: int, *, roles: bool = True, batches: bool = True, scale: int = 1) -> RankTrace:
    """A rank of two that did what the plan says. scale: times the bytes of each MLP's call."""
    events, sequence = [], 0
    for step, tokens in enumerate(STEPS):
        calls = [("embed", "all_reduce", sum(tokens) * ROW)]
        calls += [
            ("attn.out", "all_reduce", sum(tokens) * ROW),
            ("mlp.out", "all_reduce", sum(tokens) * ROW * scale),
        ] * 4
        calls += [("logits", "all_gather", len(tokens) * LOGITS)]
        for role, op, size in calls:
            at = 1_000_000 + sequence * 1000
            events.append(
                Event(step, "tp", role if roles else "", op, sequence, size, "bfloat16", -1, at, at, at + 500, "done")
            )
            sequence += 1
    made = tuple(Batch(step, 1, tuple("ab"[: len(tokens)]), tokens) for step, tokens in enumerate(STEPS))
    head = Head(rank=rank, world=2, host="box", groups={"tp": (0, 1)}, anchor=Anchor(0, 0))
    return RankTrace(head=head, calls=of_events(events), batches=made if batches else ())


def compared(plan: linkwise.Plan, *ranks: RankTrace, facts: tuple[Fact, ...] = ()) -> Comparison:
    found = compare(Evidence(trace=Trace(ranks=ranks), facts=facts), plan, traffic(plan, "decode").links)
    assert found is not None
    return found


def test_a_run_as_planned(plan: linkwise.Plan) -> None:
    found = compared(plan, record(0), record(1))
    rows = {one.role: one for one in found.ops}
    assert (found.ranks, found.steps, set(rows)) == (2, 2, {"embed", "attn.out", "mlp.out", "logits"})
    # Two ranks; 3 + 1 tokens; four layers.
    assert rows["embed"].planned_bytes == rows["embed"].observed_bytes == 2 * 4 * ROW
    assert rows["mlp.out"].planned_bytes == rows["mlp.out"].observed_bytes == 2 * 4 * 4 * ROW
    assert rows["mlp.out"].planned_calls == rows["mlp.out"].observed_calls == 2 * 2 * 4
    # Two rows drew in the first step, one in the second.
    assert rows["logits"].planned_bytes == rows["logits"].observed_bytes == 2 * 3 * LOGITS
    assert all(one.observed_s == 500e-9 for one in found.ops)
    assert all(one.planned_s and one.planned_s > 0 for one in found.ops)
    assert found.notes == ()


def test_a_difference_is_one_in_its_own_row(plan: linkwise.Plan) -> None:
    rows = {one.role: one for one in compared(plan, record(0), record(1, scale=2)).ops}
    assert rows["mlp.out"].observed_bytes == 1.5 * rows["mlp.out"].planned_bytes  # type: ignore[operator]
    assert rows["attn.out"].observed_bytes == rows["attn.out"].planned_bytes


def test_records_without_roles_or_batches_are_told_by_size(plan: linkwise.Plan) -> None:
    ranks = [record(rank, roles=False, batches=False) for rank in (0, 1)]
    found = compared(plan, *ranks)
    rows = {one.kind: one for one in found.ops}
    # Embedding, attention and MLP reduce the same rows: a call of either is told from logits, not from each other.
    assert rows["all_reduce"].role == "embed, attn.out, mlp.out"
    assert rows["all_gather"].role == "logits"
    assert rows["all_reduce"].observed_calls == 2 * 2 * 9
    assert rows["all_reduce"].observed_bytes == 2 * 4 * 9 * ROW
    assert all(one.planned_calls is None and one.planned_bytes is None for one in found.ops)
    assert all(one.planned_s and one.observed_s == 500e-9 for one in found.ops)
    assert "how many were planned is not known" in found.notes[0]


def test_a_size_that_no_step_has_gets_no_role(plan: linkwise.Plan) -> None:
    """A row and a byte is what no number of tokens makes."""
    rank = record(0, roles=False, batches=False)
    odd = replace(rank, calls=replace(rank.calls, S_bytes=rank.calls.S_bytes + 1))
    assert {(one.role, one.planned_s) for one in compared(plan, odd).ops} == {("", None)}


def test_a_group_of_another_size_was_not_planned(plan: linkwise.Plan) -> None:
    ranks = [replace(r, head=replace(r.head, world=4)) for r in (record(0), record(1))]
    found = compared(plan, *ranks)
    assert all(one.planned_calls is None for one in found.ops)
    assert found.notes[0].startswith("2 records of groups that are none of tp2")


def test_no_calls_are_no_comparison(plan: linkwise.Plan) -> None:
    assert compare(Evidence(), plan, ()) is None


def test_sizes_that_a_trace_does_not_tell_are_not_made_up() -> None:
    model = from_config(LLAMA, name="small", source="hand-made")
    plan = linkwise.plan(model, on="1x2xh100-sxm", engine="linkwise", cp=2, tp=1, isl=8, osl=8)
    assert isinstance(plan, linkwise.Plan)
    rows = {one.role: one for one in compared(plan, record(0)).ops}
    context = [one for one in rows.values() if one.role.startswith("cp.") and one.planned_calls]
    assert context
    assert any(one.planned_bytes is None for one in context)


@pytest.fixture(scope="module")
def two(plan: linkwise.Plan) -> linkwise.Plan:
    """tp2 over two nodes of one device."""
    cluster = replace(shorthand("2x1xh100-sxm"), nics_per_node=1, detail=NodeDetail(nic_names=("mlx5_0",)))
    found = linkwise.plan(plan.model, on=cluster, engine="linkwise", tp=2, isl=8, osl=8)
    assert isinstance(found, linkwise.Plan)
    return found


# By hand: in a ring of two each rank sends S an all-reduce, half of S an all-gather; 4 tokens in all, 3 rows drew.
SENT = (1 + 4 + 4) * 4 * ROW + 3 * LOGITS / 2


def test_counters_of_a_nic_against_its_link(two: linkwise.Plan, tmp_path) -> None:
    """Counters as Linux has them, in words of 4 bytes, in a folder a host and a look."""
    for look, words in (("before", 1000), ("after", 9000)):
        folder = tmp_path / look / "box0" / "sys/class/infiniband/mlx5_0/ports/1/counters"
        folder.mkdir(parents=True)
        (folder / "port_xmit_data").write_text(f"{words}\n")
    facts = gather([tmp_path], processes=0).facts
    ranks = [replace(r, head=replace(r.head, host=f"box{i}")) for i, r in enumerate((record(0), record(1)))]
    (link,) = compared(two, *ranks, facts=facts).links
    assert (link.observed_bytes, link.links) == (8000 * 4, "n0.nic0>rail0")
    assert link.planned_bytes == pytest.approx(SENT)


@pytest.mark.parametrize("devices", [2, 3])
def test_counters_of_nics_that_no_file_names_are_summed_by_node(
    plan: linkwise.Plan, tmp_path: Path, devices: int
) -> None:
    cluster = replace(shorthand("2x1xh100-sxm"), nics_per_node=2, detail=None)
    two = linkwise.plan(plan.model, on=cluster, engine="linkwise", tp=2, isl=8, osl=8)
    assert isinstance(two, linkwise.Plan)
    for look, words in (("before", 1000), ("after", 9000)):
        for device in range(devices):
            folder = tmp_path / look / "box1" / f"sys/class/infiniband/mlx5_{device}/ports/1/counters"
            folder.mkdir(parents=True)
            (folder / "port_rcv_data").write_text(f"{words}\n")
    facts = gather([tmp_path], processes=0).facts
    ranks = [replace(r, head=replace(r.head, host=f"box{i}")) for i, r in enumerate((record(0), record(1)))]
    found = compared(two, *ranks, facts=facts)
    if devices != 2:  # one of them may be of a storage network
        assert found.links == ()
        assert found.notes == ("3 RDMA counters of box1, which has 2 NICs by the plan: not compared",)
        return
    (link,) = found.links
    assert (link.observed_bytes, link.counter) == (2 * 8000 * 4, "box1: 2 RDMA devices, port_rcv_data_bytes")
    # What rank 0 sends on the ring of two is what rank 1 receives, over both NICs together.
    assert link.planned_bytes == pytest.approx(SENT)
    assert found.notes == ()


def test_links_of_a_lab(two: linkwise.Plan) -> None:
    counts = (("n0.nic0", "rail0", 50_000), ("rail0", "n0.nic0", 0), ("d0", "n0.host", 0))
    lab = LabResult(
        scale=1.0,
        ranks=(),
        links=tuple(LinkCount(src=a, dst=b, rate_Bps=1.0, bytes=n, packets=1) for a, b, n in counts),
        seconds=1.0,
    )
    evidence = Evidence(trace=Trace(ranks=(record(0), record(1))))
    found = compare(evidence, two, traffic(two, "decode").links, lab)
    assert found is not None
    assert [(one.links, one.observed_bytes) for one in found.links] == [("n0.nic0>rail0", 50_000), ("rail0>n0.nic0", 0)]
    assert all(one.planned_bytes == pytest.approx(SENT) for one in found.links)
