"""The calibration file, and what it changes: constants, prediction, placement and link loads alike."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.plan.handmade import cluster

import linkwise
from linkwise.cluster.links import links, measured_share
from linkwise.cluster.presets import shorthand
from linkwise.cluster.types import Cluster, Tier
from linkwise.core.errors import InputError
from linkwise.core.files import dump_yaml
from linkwise.core.layout import Layout
from linkwise.measure.calibration import (
    Calibration,
    KindFit,
    LinkFit,
    Sample,
    TierFit,
    Value,
    apply,
    constants,
    dump,
    load,
    parse,
)
from linkwise.measure.points import calibrate
from linkwise.plan.collective_time import collective_time
from linkwise.plan.placement import place
from linkwise.plan.time import group_span
from linkwise.plan.types import Op
from linkwise.report.measure import calibration as screen


def made(
    c: Cluster, *, link: str = "nvlink", links: dict[str, LinkFit] | None = None, library="nccl 2.27"
) -> Calibration:
    """A calibration of islands: 20 us + 2 us a step, 50 %; all-gather 30 us and 25 %."""
    gather = KindFit(
        base_us=Value(value=30), step_us=Value(value=0), efficiency=Value(value=0.25), residual=0, points=9
    )
    tier = TierFit(
        link=link, base_us=Value(value=20, error=0.5), step_us=Value(value=2, error=0.1), efficiency=Value(value=0.5),
        residual=0.03, points=18, launch_us=15, kinds={"all_gather": gather},
    )  # fmt: skip
    return Calibration(
        made="2026-11-29T21:00Z", library=library, source="by hand", cluster=c.name,
        accelerator=c.accelerator.name, nodes=c.nodes, devices_per_node=c.devices_per_node, ranks=4,
        tiers={"island": tier}, links=links or {},
    )  # fmt: skip


SLOW = LinkFit(Bps=Value(value=45e9, error=1e9), usual_Bps=225e9, latency_us=9)


def test_a_file_and_back() -> None:
    c = cluster(1, 4)
    found = made(c, links={"d1>island0": SLOW})
    text = dump(found)
    assert text.startswith("schema: linkwise.calibration/1\n")
    assert parse(text, where="c.yaml") == found


def test_the_planner_takes_its_figures() -> None:
    """By hand, 4 ranks, 8 MiB: all-reduce 20 + 2 x 6 us + 1.5 S / 225 GB/s; all-gather 30 us + 0.75 S / 112.5 GB/s."""
    c = apply(made(cluster(1, 4)), cluster(1, 4))
    S = 8 * 2**20
    reduce = collective_time("all_reduce", S, 4, 1, c)
    assert reduce.seconds == pytest.approx(32e-6 + 1.5 * S / 225e9)
    assert not reduce.extrapolated
    gather = collective_time("all_gather", S, 4, 1, c)
    assert gather.seconds == pytest.approx(30e-6 + 0.75 * S / 112.5e9)
    # A kind without figures of its own: those of all kinds.
    scatter = collective_time("reduce_scatter", S, 4, 1, c)
    assert scatter.seconds == pytest.approx(26e-6 + 0.75 * S / 225e9)
    # A call that is waited for ends no sooner than its launch: 20 + 15 us, 2 us a step.
    assert collective_time("all_reduce", 8, 4, 1, c, mode="eager").seconds == pytest.approx(47e-6)


def test_the_label_says_what_and_when_and_every_figure_its_source() -> None:
    base = cluster(1, 4).constants
    found = constants(made(cluster(1, 4)), base, "c.yaml")
    assert found.label == "nccl 2.27 on 4 ranks of hand, 2026-11-29T21:00Z"
    assert "18 calls" in found.sources["latency_us.nccl.island"]
    assert "c.yaml" in found.sources["link_efficiency.nvlink"]
    assert found.latency("eager", Tier.ISLAND) == (35.0, 2.0)
    assert found.hbm_efficiency == base.hbm_efficiency, "what was not measured stays"


def test_another_library_takes_the_librarys_place_under_its_own_name_too() -> None:
    found = constants(made(cluster(1, 4), library="gloo (torch 2)"), cluster(1, 4).constants)
    assert found.latency_us["gloo.island"] == found.latency_us["nccl.island"] == (20.0, 2.0)
    assert "gloo is this machine's library" in found.sources["latency_us.nccl.island"]


def degraded(devices: int = 4) -> Cluster:
    c = cluster(1, devices)
    return apply(made(c, links={"d1>island0": SLOW}), c)


def test_one_slow_link_slows_the_groups_that_cross_it() -> None:
    """45 of 225 GB/s: a fifth for every group with device 1, all for the others."""
    c = degraded()
    assert measured_share(c, (0, 1, 2, 3)) == pytest.approx(0.2)
    assert measured_share(c, (0, 2, 3)) == 1.0
    assert group_span((0, 1), c).share == pytest.approx(0.2)
    (one,) = [link for link in links(c) if (link.src, link.dst) == ("d1", "island0")]
    assert (one.effective_Bps, one.spec_Bps) == (45e9, 450e9)
    assert "measured" in one.source


def test_one_slow_link_changes_the_placement() -> None:
    """Two ranks on four devices: naive order takes devices 0 and 1, the slow one among them."""
    op = Op(
        kind="all_reduce", role="mlp.out", group="tp", size=2, S_bytes=2**24, repeat=10, stage=0, dtype="bfloat16",
        tokens=1, algorithm="ring", useful_recv_bytes=2**23, wire_sent_bytes=2**24, wire_recv_bytes=2**24,
    )  # fmt: skip
    healthy = place(Layout(tp=2), cluster(1, 4), {"decode": (op,)}, {"decode": 1.0}, replicas=1)
    assert healthy.rank_grid == ((0, 1),)
    found = place(Layout(tp=2), degraded(), {"decode": (op,)}, {"decode": 1.0}, replicas=1)
    assert 1 not in found.rank_grid[0]
    # 16 MiB over 45 instead of 225 GB/s, beside 24 us of latency (20 + 2 x 2 us).
    assert found.naive_seconds == pytest.approx(10 * (24e-6 + 2**24 / 45e9))
    assert found.seconds == pytest.approx(10 * (24e-6 + 2**24 / 225e9))


def test_a_slow_nic_counts_for_its_group_between_nodes_only() -> None:
    c = cluster(2, 4)
    slow = replace(c, constants=replace(c.constants, link_Bps={"n1.nic2>rail2": 10e9}))
    assert measured_share(slow, (2, 6)) == pytest.approx(0.2)  # 10 of 50 GB/s
    assert measured_share(slow, (1, 5)) == 1.0
    assert measured_share(slow, (4, 5, 6, 7)) == 1.0
    assert measured_share(slow, tuple(range(8))) == pytest.approx(0.2)


def test_inside_a_node_a_slow_port_counts_as_far_as_it_is_slower_than_the_nics() -> None:
    """A ring over two nodes of four pools four NICs of 50 GB/s: a port of 100 GB/s halves it, one of 300 does not."""
    c = cluster(2, 4)
    for rate, share in ((100e9, 0.5), (300e9, 1.0)):
        slow = replace(c, constants=replace(c.constants, link_Bps={"d1>island0": rate}))
        assert measured_share(slow, tuple(range(8))) == pytest.approx(min(share, 1.0))


def test_plan_and_fit_take_the_file(tmp_path: Path) -> None:
    c = shorthand("4xh100-sxm")
    path = tmp_path / "c.yaml"
    path.write_text(dump(made(c, link="nvlink4", links={"d3>island0": SLOW})))
    settings = {"isl": 1000, "osl": 100, "tp": 2}
    plain = linkwise.plan("llama-3.1-8b", on=c, **settings)
    found = linkwise.plan("llama-3.1-8b", on=c, calibration=str(path), **settings)
    assert found.calibration == plain.calibration + "; links: nccl 2.27 on 4 ranks of 4xh100-sxm, 2026-11-29T21:00Z"
    assert plain.calibration == plain.step_calibration.label, "the links are the catalogue's"
    assert found.cluster.constants.link_Bps == {"d3>island0": 45e9}, "the plan file carries it"
    loads = linkwise.traffic(found).links
    assert {load.effective_Bps for load in loads if load.name == "d3>island0"} <= {45e9}
    fits = linkwise.fit("llama-3.1-8b", on=c, calibration=str(path), tp=2)
    assert found.calibration.endswith(fits.cluster.constants.label)
    again = tmp_path / "plan.json"
    linkwise.save(found, again)
    assert linkwise.load(again) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "linkwise.plan/1"}, "field schema: 'linkwise.plan/1'; expected linkwise.calibration/1"),
        ({"tiers": {"galaxy": "{}"}}, "tiers"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"ranks": "many"}, "field ranks"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    lines = {"schema": "linkwise.calibration/1", "made": "now", "library": "nccl", "source": "x", "cluster": "c"}
    lines |= {"accelerator": "hand", "nodes": 1, "devices_per_node": 4, "ranks": 4, "tiers": "{}"} | change
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in lines.items()))
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_figures_that_cannot_be_are_refused() -> None:
    good = dump(made(cluster(1, 4), links={"d1>island0": SLOW}))
    for before, after, words in (
        ("efficiency: {value: 0.5,", "efficiency: {value: 1.5,", "efficiency is 1.5"),
        ("base_us: {value: 20,", "base_us: {value: -1,", "base_us is -1"),
        ("Bps: {value: 45000000000.0,", "Bps: {value: 0,", "Bps is 0"),
        ("all_gather:", "all_shout:", "unknown kind 'all_shout'"),
        ("island:", "galaxy:", "unknown tier"),
    ):
        assert before in good
        with pytest.raises(InputError, match=words):
            parse(good.replace(before, after, 1), where="c.yaml")


def raw(call: dict[str, object]) -> dict[str, object]:
    """A calibration as a file has it, with one call and one tier."""
    tier = {
        "link": "nvlink", "base_us": {"value": 20}, "step_us": None, "efficiency": {"value": 0.5, "error": 0.1},
        "residual": 0.03, "points": 9, "outliers": 1,
    }  # fmt: skip
    link = {"Bps": {"value": 45e9, "error": 1e9}, "usual_Bps": 225e9, "latency_us": 9}
    return {
        "schema": "linkwise.calibration/1", "made": "2026-11-29T21:00Z", "library": "nccl", "source": "x",
        "cluster": "c", "accelerator": "hand", "nodes": 1, "devices_per_node": 4, "ranks": 4,
        "tiers": {"island": tier}, "links": {"d1>island0": link}, "samples": [call] if call else [], "hosts": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("library", "", "c.yaml: library is ''; expected a name such as nccl"),
        ("library", " ", "c.yaml: library is ' '"),
        ("made", "now", "c.yaml: made is 'now'; expected a date such as 2026-11-29T21:00Z"),
        ("made", "", "c.yaml: made is ''"),
        ("made", "2026-13-29T21:00Z", "c.yaml: made is '2026-13-29T21:00Z'"),
        ("tiers", {}, "c.yaml: tiers is empty"),
        ("tiers.island.efficiency.value", 1e-300, "c.yaml: tiers.island: efficiency is 1e-300; expected 1e-09 to 1"),
        ("tiers.island.efficiency.error", -0.1, "c.yaml: tiers.island: efficiency.error is -0.1"),
        ("tiers.island.base_us.value", float("nan"), "c.yaml: tiers.island: base_us is nan"),
        ("tiers.island.launch_us", -1, "c.yaml: tiers.island: launch_us is -1"),
        ("tiers.island.outliers", 10, "c.yaml: tiers.island: outliers is 10; expected 0 to points, 9"),
        ("links.d1>island0.Bps.value", 2.3e12, "c.yaml: links.d1>island0: Bps is 2.3e+12; expected 0 to 10 x"),
        ("links.d1>island0.Bps.error", -1, "c.yaml: links.d1>island0: Bps.error is -1"),
        ("links.d1>island0.usual_Bps", -1, "c.yaml: links.d1>island0: usual_Bps is -1"),
        ("links.d1>island0.latency_us", -1, "c.yaml: links.d1>island0: latency_us is -1"),
        ("links.d1>island0.latency_us", 1e300, "c.yaml: links.d1>island0: latency_us is 1e+300"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused_by_file_and_field(path: str, value: object, message: str) -> None:
    document = raw({})
    assert parse(dump_yaml(document), where="c.yaml").library == "nccl"
    *folders, last = path.split(".")
    inner: dict[str, object] = document
    for folder in folders:
        inner = inner[folder]  # type: ignore[assignment]
    inner[last] = value
    with pytest.raises(InputError) as caught:
        parse(dump_yaml(document), where="c.yaml")
    assert message in str(caught.value)


def test_figures_that_the_calls_in_the_file_contradict_are_refused() -> None:
    """All-reduce of four over 450 GB/s: 14 us + 1.5 S / 300 GB/s. A base of 1 ms gives 70 times what small calls took,
    a tenth of a per mille of the rate thousands of times what large ones took. One disturbed call changes nothing."""
    c = cluster(1, 4)
    calls = tuple(
        Sample(
            kind="all_reduce", group="island", tier="island", ranks=4, nodes=1, S_bytes=S,
            seconds=14e-6 + 1.5 * S / 300e9,
        )
        for S in (2**10, 2**13, 2**16, 2**19, 2**22, 2**25)
    )  # fmt: skip
    good = calibrate(c, (replace(calls[0], seconds=1e-3), *calls[1:]), library="nccl", source="by hand", ranks=4)
    assert apply(good, c, "c.yaml").constants.label == good.label
    island = good.tiers["island"]
    one = island.kinds["all_reduce"]
    slow = {"base_us": Value(value=1000)}
    bad = (
        (replace(island, kinds={}, **slow), "tiers.island: its figures give", "the smaller of its own calls"),
        (replace(island, kinds={}, efficiency=Value(value=1e-4)), "tiers.island: its figures give", "of its own calls"),
        (replace(island, kinds={"all_reduce": replace(one, **slow)}), "tiers.island.kinds.all_reduce: its", "smaller"),
    )
    for tier, where, words in bad:
        with pytest.raises(InputError) as caught:
            apply(replace(good, tiers={"island": tier}), c, "c.yaml")
        assert f"c.yaml: {where}" in str(caught.value)
        assert words in str(caught.value)


def test_a_link_above_its_spec_is_refused() -> None:
    """450 GB/s by the datasheet."""
    c = cluster(1, 4)
    fast = made(c, links={"d1>island0": replace(SLOW, Bps=Value(value=900e9))})
    with pytest.raises(InputError, match=r"c.yaml: links.d1>island0: Bps is 9e\+11|900000000000"):
        apply(fast, c, "c.yaml")


def test_a_launch_that_was_not_measured_costs_what_the_catalogue_says() -> None:
    """Eight ranks of an island, 1 KiB, launched one by one: 35.1 + 14 x 0.6 us by the catalogue, whatever device time
    was measured; where the launch was measured, base + launch + steps."""
    c = shorthand("8xh100-sxm")
    unsaid = made(c, link="nvlink4")
    unsaid = replace(unsaid, tiers={"island": replace(unsaid.tiers["island"], launch_us=0, kinds={})})
    plain, there = c.constants, apply(unsaid, c).constants
    assert there.latency("eager", Tier.ISLAND) == plain.latency("eager", Tier.ISLAND) == (35.1, 0.6)
    changed = replace(c, constants=there)
    assert collective_time("all_reduce", 1024, 8, 1, changed, "custom", "eager").seconds == pytest.approx(43.5e-6)
    assert not any(key.startswith("eager.island.") for key in there.latency_us.keys() - plain.latency_us.keys())
    said = replace(unsaid, tiers={"island": replace(unsaid.tiers["island"], launch_us=15)})
    assert apply(said, c).constants.latency("eager", Tier.ISLAND) == (35.0, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "c.yaml: nodes is 0; expected 1 to"),
        ({"ranks": 5}, "c.yaml: ranks is 5; expected 1 to nodes x devices_per_node, 4"),
        ({"ranks": 2, "hosts": ["a"]}, "c.yaml: hosts names 1; expected 2, one a rank"),
        ({"seconds": -5}, "c.yaml: samples[0]: seconds is -5; expected above 1e-09 and below 10000"),
        ({"seconds": 1e-12}, "c.yaml: samples[0]: seconds is 1e-12; expected above 1e-09"),
        ({"S_bytes": -1}, "c.yaml: samples[0]: S_bytes is -1"),
        ({"ranks_of": 8}, "c.yaml: samples[0]: ranks is 8; expected 2 to the calibration's ranks, 4"),
        ({"nodes_of": 2}, "c.yaml: samples[0]: nodes is 2; expected 1 to 1, of 1 nodes and 2 ranks"),
        ({"groups": 0}, "c.yaml: samples[0]: groups is 0"),
        ({"tier": "galaxy"}, "c.yaml: samples[0]: tier is 'galaxy'; expected island, node, cluster"),
    ],
)
def test_measurements_that_cannot_have_been_made_are_refused(change: dict[str, object], message: str) -> None:
    call = {
        "kind": "all_reduce",
        "group": "tp",
        "tier": "island",
        "ranks": 2,
        "nodes": 1,
        "S_bytes": 8,
        "seconds": 1e-5,
    }
    document = raw(call)
    assert len(parse(dump_yaml(document), where="c.yaml").samples) == 1
    for name, value in change.items():
        field = name.removesuffix("_of")
        (call if name.endswith("_of") or field not in document else document)[field] = value
    with pytest.raises(InputError) as caught:
        parse(dump_yaml(document), where="c.yaml")
    assert message in str(caught.value)


def test_one_size_of_group_says_that_base_and_steps_are_together() -> None:
    """A file without a figure a step: latency is the base at every size, and the plan's cluster says so."""
    c = cluster(1, 4)
    calls = tuple(
        Sample(kind="all_reduce", group="island", tier="island", ranks=4, nodes=1, S_bytes=S, seconds=14e-6 + S / 1e11)
        for S in (2**10, 2**15, 2**20, 2**25)
    )
    found = calibrate(c, calls, library="nccl", source="by hand", ranks=4)
    assert found.tiers["island"].step_us is None
    assert "step_us: null" in dump(found)
    assert parse(dump(found), where="c.yaml") == found
    assert "groups of 4 ranks alone" in found.notes[-1]
    there = apply(found, c, "c.yaml")
    assert there.notes[-1].startswith("calibration (c.yaml): island: measured in groups of 4 ranks alone;")
    assert there.constants.latency("nccl", Tier.ISLAND) == (pytest.approx(14, rel=1e-4), 0.0)
    assert "one group size" in there.constants.sources["latency_us.nccl.island"]
    (line,) = [each for each in screen(found) if "all kinds" in each]
    assert "us a step" not in line
    assert " us at 4 ranks, " in line
    assert "one group size: latency is base and steps together" in found.notes[-1]


def test_a_calibration_of_other_hardware_is_refused() -> None:
    c = cluster(1, 4)
    other = replace(c, accelerator=replace(c.accelerator, name="other"))
    with pytest.raises(InputError, match="c.yaml: accelerator: measured on hand; expected a calibration of other"):
        apply(made(c), other, "c.yaml")
    with pytest.raises(InputError, match=r"c.yaml: tiers.island.link: tier island is pcie; expected nvlink"):
        apply(made(c, link="pcie"), c, "c.yaml")
    with pytest.raises(InputError, match="single links were measured on 1 nodes of 4"):
        apply(made(c, links={"d1>island0": SLOW}), cluster(2, 4))
    with pytest.raises(InputError, match="c.yaml: links: link_Bps: no link 'd9>island0'"):
        apply(made(c, links={"d9>island0": SLOW}), c, "c.yaml")
    assert apply(made(c), cluster(2, 4)).constants.label.startswith("nccl"), "kinds of link hold on a larger cluster"
