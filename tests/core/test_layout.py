"""The degrees of a group and its rank grid. Expected groups are written by hand from DESIGN §3's rank order."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.core.layout import AXES, Layout, check_product, coordinates, groups

DEGREE = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, cp, dp_attn = draw(DEGREE), draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 4]))
    stage = tp * cp * dp_attn
    dcp = draw(st.sampled_from([d for d in range(1, tp + 1) if tp % d == 0]))
    ep = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    return Layout(tp=tp, cp=cp, dp_attn=dp_attn, pp=draw(DEGREE), dcp=dcp, ep=ep)


def test_rank_order_is_pp_cp_dp_tp_outer_to_inner() -> None:
    layout = Layout(pp=2, dp_attn=2, tp=2)
    assert groups(layout, "tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups(layout, "dp_attn") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert groups(layout, "pp") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert groups(layout, "stage") == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_moe_layers_regrid_a_stage_as_ep_outer_moe_tp_inner() -> None:
    layout = Layout(dp_attn=2, tp=4, ep=4)
    assert layout.moe_tp == 2
    assert groups(layout, "moe_tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups(layout, "ep") == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_dcp_divides_tensor_groups_into_contiguous_parts() -> None:
    assert groups(Layout(tp=4, dcp=2), "dcp") == [(0, 1), (2, 3)]


@given(layouts())
def test_every_axis_partitions_the_ranks(layout: Layout) -> None:
    for axis in AXES:
        ranks = [rank for group in groups(layout, axis) for rank in group]
        assert sorted(ranks) == list(range(layout.size)), axis


@given(layouts(), st.data())
def test_a_rank_is_found_where_its_coordinates_say(layout: Layout, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, layout.size - 1))
    place = coordinates(layout, rank)
    for axis in ("pp", "cp", "dp_attn", "tp", "dcp", "ep", "moe_tp"):
        mine = next(group for group in groups(layout, axis) if rank in group)
        assert mine.index(rank) == place[axis], axis


@given(layouts())
def test_size_is_the_product(layout: Layout) -> None:
    assert layout.size == layout.pp * layout.cp * layout.dp_attn * layout.tp
    assert layout.ep * layout.moe_tp == layout.stage_size
    check_product(layout, layout.size)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tp": 0}, "layout: tp is 0; expected 1..65536"),
        ({"pp": -1}, "layout: pp is -1; expected 1..65536"),
        ({"ep": 10**9}, "layout: ep is 1000000000; expected 1..65536"),
        ({"tp": 4, "dcp": 3}, "layout: dcp 3 does not divide tp 4; expected dcp divides tp"),
        (
            {"tp": 4, "dp_attn": 2, "ep": 3},
            "layout: ep 3 does not divide the stage: cp 1 x dp_attn 2 x tp 4 = 8;"
            " expected ep divides cp x dp_attn x tp",
        ),
    ],
)
def test_degrees_that_make_no_grid_are_refused(degrees: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout(**degrees)
    assert str(caught.value) == message


def test_a_wrong_product_is_printed() -> None:
    with pytest.raises(InputError, match="pp 2 x cp 1 x dp_attn 1 x tp 4 = 8; expected 16 ranks"):
        check_product(Layout(pp=2, tp=4), 16)


@given(layouts())
def test_an_unknown_axis_is_refused(layout: Layout) -> None:
    assume(layout.size > 1)
    with pytest.raises(InputError, match="unknown axis 'dp'"):
        groups(layout, "dp")


@pytest.mark.parametrize(
    ("layout", "shown"),
    [
        (Layout(), "tp1"),
        (Layout(pp=2, tp=8), "pp2 x tp8"),
        (Layout(dp_attn=8, ep=8), "dp_attn8 x tp1 x ep8"),
        (Layout(tp=4, sequence_sharded=True), "tp4 seq-sharded"),
    ],
)
def test_a_layout_reads_outer_to_inner(layout: Layout, shown: str) -> None:
    assert str(layout) == shown


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tp": 2.0}, "tp is 2.0; expected an int"),
        ({"tp": True}, "tp is True; expected an int"),
        ({"ep": "2"}, "ep is '2'; expected an int"),
        ({"sequence_sharded": 1}, "sequence_sharded is 1; expected a bool"),
        ({"tp": 65_536, "pp": 2}, "= 131072 ranks; expected at most 65536 ranks"),
    ],
)
def test_degrees_of_another_type_or_of_too_many_ranks_are_refused(degrees: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Layout(**degrees)  # type: ignore[arg-type]
