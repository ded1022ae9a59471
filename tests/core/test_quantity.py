"""Recorded = float = array, and a recorded number never hides a decision (DESIGN §2.2).

Expected values are hand calculations, or Python's own arithmetic on the same expression.
"""

import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.quantity import (
    Quantity,
    ceil_div,
    decay,
    floor,
    maximum,
    minimum,
    named,
    plain,
    power,
    total,
    value_of,
    where,
)

# A tree is a leaf index or (operation, operands); it is evaluated on any of the three kinds of number.
LEAVES = 4
UNARY = {"floor": floor, "neg": operator.neg}
BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "max": maximum,
    "min": minimum,
    "ceil_div": ceil_div,
}


def trees() -> st.SearchStrategy:
    leaf = st.one_of(st.integers(0, LEAVES - 1).map(lambda i: ("leaf", i)), st.integers(1, 9).map(lambda n: ("int", n)))

    def grow(children: st.SearchStrategy) -> st.SearchStrategy:
        return st.one_of(
            st.tuples(st.sampled_from(sorted(UNARY)), children),
            st.tuples(st.sampled_from(sorted(BINARY)), children, children),
            st.tuples(st.just("power"), children, st.integers(0, 2)),
            st.tuples(st.just("where"), children, children, children, children),
            st.tuples(st.just("sum"), st.lists(children, min_size=1, max_size=3)),
            st.tuples(st.just("named"), children),
        )

    return st.recursive(leaf, grow, max_leaves=12)


def evaluate(tree: tuple, leaves: list) -> object:
    op = tree[0]
    if op == "leaf":
        return leaves[tree[1]]
    if op == "int":
        return tree[1]
    if op in UNARY:
        return UNARY[op](evaluate(tree[1], leaves))
    if op == "power":
        return power(evaluate(tree[1], leaves), tree[2])
    if op == "where":
        a, b, yes, no = (evaluate(t, leaves) for t in tree[1:])
        return where(a < b, yes, no)
    if op == "sum":
        return total(evaluate(t, leaves) for t in tree[1])
    if op == "named":
        return named("step", evaluate(tree[1], leaves), "B")
    return BINARY[op](evaluate(tree[1], leaves), evaluate(tree[2], leaves))


numbers = st.one_of(st.integers(1, 2**40), st.floats(0.5, 1e9).map(lambda x: round(x, 3)))


@settings(max_examples=300, deadline=None)
@given(trees(), st.lists(st.tuples(numbers, numbers), min_size=LEAVES, max_size=LEAVES))
def test_recorded_equals_plain_equals_array(tree: tuple, columns: list) -> None:
    def plainly(row: int, kind: type) -> object:
        return evaluate(tree, [kind(column[row]) for column in columns])

    def recorded(row: int, kind: type) -> object:
        return value_of(evaluate(tree, [Quantity.given(f"x{i}", kind(c[row])) for i, c in enumerate(columns)]))

    for kind in (float, as_given):
        try:
            expected = [plainly(row, kind) for row in (0, 1)]
        except (ZeroDivisionError, OverflowError) as error:
            # numpy gives inf where Python raises; the recorded form must raise like the plain one.
            with pytest.raises(type(error)):
                _ = [recorded(row, kind) for row in (0, 1)]
            return
        found = [recorded(row, kind) for row in (0, 1)]
        assert found == expected
        assert [type(f) for f in found] == [type(e) for e in expected]
        if kind is float and largest(tree, columns) < 2**53:  # beyond, Python's integers are exact and doubles are not
            with np.errstate(all="ignore"):
                arrays = np.broadcast_to(evaluate(tree, [np.array(c, dtype=float) for c in columns]), 2)
            assert list(arrays) == expected


def as_given(x: float) -> float:
    return x


def largest(tree: tuple, columns: list) -> float:
    """A bound on every intermediate result; unbounded once a division can have a small divisor."""
    if tree[0] == "leaf":
        return max(float(v) for v in columns[tree[1]])
    if tree[0] == "int":
        return float(tree[1])
    parts = [p for part in tree[1:] for p in (part if isinstance(part, list) else [part]) if type(p) is tuple]
    sizes = [largest(p, columns) for p in parts]
    if tree[0] in {"/", "//", "ceil_div"} and tree[2][0] not in {"leaf", "int"}:
        return math.inf
    if tree[0] in {"/", "//", "ceil_div"}:
        return 2 * max(sizes) + 1  # divisors are at least 0.5
    if tree[0] == "*":
        return max(sizes[0] * sizes[1], *sizes)
    return max(sizes[0], 1.0) ** 2 if tree[0] == "power" else sum(sizes)


@given(st.integers(-(10**18), 10**18), st.integers(1, 10**9))
def test_ceil_div_is_exact_on_integers(a: int, b: int) -> None:
    result = value_of(ceil_div(Quantity.given("a", a), b))
    assert (result - 1) * b < a <= result * b  # the definition of the least integer not below a / b
    assert result == ceil_div(a, b)


def test_array_and_plain_agree_where_a_rounding_jumps() -> None:
    # Exact small integers, so no rounding can excuse a difference. By hand: ceil 17/16 = 2, floor 17/16 = 1.
    tokens = np.array([1, 16, 17, 32])
    assert list(ceil_div(tokens, 16)) == [1, 1, 2, 2] == [ceil_div(int(t), 16) for t in tokens]
    assert list(tokens // 16) == [0, 1, 1, 2]
    assert list(floor(tokens / 16)) == [0, 1, 1, 2] == [floor(int(t) / 16) for t in tokens]
    assert list(where(tokens > 16, tokens, 0)) == [0, 0, 17, 32]
    assert list(maximum(tokens, 16)) == [16, 16, 17, 32]
    assert list(minimum(tokens, 16)) == [1, 16, 16, 16]


def test_a_quantity_never_branches() -> None:
    size = Quantity.given("S", 16, "B")
    with pytest.raises(TypeError, match="does not branch"):
        _ = 1 if size > 8 else 2
    with pytest.raises(TypeError, match="does not branch"):
        _ = max(size, 8)  # Python's max compares and branches
    with pytest.raises(TypeError, match="keeps its chain"):
        float(size)
    assert value_of(where(size > 8, 1, 2)) == 1
    assert value_of(maximum(size, 8)) == 16


def test_a_quantity_given_again_keeps_its_chain() -> None:
    a = Quantity.given("a", 3, "B", "config")
    again = Quantity.given("b", a * 2, "B")
    assert (again.name, again.value, again.op) == ("b", 6, "*")
    assert plain("a", 3, "B") == 3


def test_integers_stay_exact() -> None:
    big = Quantity.given("big", 2**60 + 1)
    assert value_of(big * 3 - 2) == 3 * 2**60 + 1
    assert isinstance(value_of(big // 7), int)


def test_total_of_nothing_and_of_mixed() -> None:
    assert total([]) == 0
    assert total([1, 2.5]) == 3.5
    assert value_of(total([Quantity.given("a", 1), 2, Quantity.given("b", 4)])) == 7


def test_plain_numbers_pass_through_named() -> None:
    assert named("x", 5, "B") == 5
    assert list(named("x", np.array([1, 2]))) == [1, 2]


def test_decay_is_the_same_on_every_kind_of_number() -> None:
    # e^-2 = 0.1353352832366127 (tables).
    for found in (decay(2), decay(np.array([2.0]))[0], decay(Quantity.given("x", 2.0)).value):
        assert found == pytest.approx(0.1353352832366127, rel=1e-15)
