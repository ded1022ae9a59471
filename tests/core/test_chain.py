"""A chain can be followed by hand: each input once with its source, formulas with the brackets they need."""

import ast
import math
import operator
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.chain import chain_of, show
from linkwise.core.quantity import Quantity, ceil_div, decay, floor, maximum, named, power, total, value_of, where

given_ = Quantity.given


def ring(S: Quantity, n: Quantity) -> Quantity:
    return named("sent", 2 * S * (n - 1) / n, "B", note="sanity: below 2 S")


def test_a_chain_reads_by_hand() -> None:
    # By hand: S = 8192 x 1 x 2 = 16,384 B; 2 x 16,384 x 7 / 8 = 28,672 B; 160 calls = 4,587,520 B.
    hidden = given_("hidden", 8192, "elements", "config.json: hidden_size")
    tokens = given_("tokens", 1, "tokens", "workload")
    ranks = given_("n", 8, "ranks", "layout: tp")
    size = named("S", hidden * tokens * 2, "B")
    figure = named("sent_per_token", given_("calls", 160, "calls", "2 x 80 layers") * ring(size, ranks), "B")
    assert str(chain_of(figure)) == "\n".join(
        [
            "calls = 160 calls   [2 x 80 layers]",
            "hidden = 8,192 elements   [config.json: hidden_size]",
            "tokens = 1 tokens   [workload]",
            "n = 8 ranks   [layout: tp]",
            "S = hidden * tokens * 2",
            "    = 8,192 * 1 * 2",
            "    = 16,384 B",
            "sent = 2 * S * (n - 1) / n",
            "    = 2 * 16,384 * (8 - 1) / 8",
            "    = 28,672 B",
            "    (sanity: below 2 S)",
            "sent_per_token = calls * sent",
            "    = 160 * 28,672",
            "    = 4,587,520 B (4.59 MB)",
        ]
    )


def test_an_input_is_listed_once_however_often_it_is_used() -> None:
    a = given_("a", 2, "B", "file")
    chain = chain_of(named("r", a * a + a * given_("a", 2, "B", "file"), "B"))
    assert [(s.name, s.source) for s in chain.inputs] == [("a", "file")]
    assert chain.result.value == 8


def test_names_that_mean_two_things_are_told_apart() -> None:
    first, second = named("S", given_("x", 3) * 2), named("S", given_("x", 5) * 2)
    chain = chain_of(named("both", first + second))
    assert [s.name for s in chain.inputs] == ["x", "x#2"]
    assert [s.name for s in chain.steps] == ["S", "S#2", "both"]
    assert chain.result.formula == "S + S#2"
    assert chain.result.numbers == "6 + 10"


def test_several_figures_share_one_chain() -> None:
    S = named("S", given_("x", 3, "", "file") * 2)
    chain = chain_of(named("a", S + 1), named("b", S + 2))
    assert [s.name for s in chain.inputs] == ["x"]
    assert [s.name for s in chain.steps] == ["S", "a", "b"]


def test_a_term_that_does_not_apply_is_not_shown() -> None:
    x = given_("x", 3)
    assert chain_of(named("r", total([0, x, 0, x * 2]))).result.formula == "x + x * 2"
    assert chain_of(named("r", total([x + 1]) * 2)).result.formula == "(x + 1) * 2"
    assert chain_of(named("r", total([x, given_("zero", 0)]))).result.formula == "x + zero"


def test_a_figure_without_a_name_and_an_input_alone() -> None:
    assert str(chain_of(given_("a", 2, "B") + 1)).splitlines()[-3:] == ["result = a + 1", "    = 2 + 1", "    = 3"]
    assert chain_of(given_("a", 2, "B", "file")).result.name == "a"
    assert chain_of(Quantity(4)).result.value == 4


@pytest.mark.parametrize(
    ("build", "formula"),
    [
        (lambda a, b, c: a - (b - c), "a - (b - c)"),
        (lambda a, b, c: (a - b) - c, "a - b - c"),
        (lambda a, b, c: a / (b * c), "a / (b * c)"),
        (lambda a, b, c: a * (b // c), "a * floor(b / c)"),
        (lambda a, b, c: (a + b) // c, "floor((a + b) / c)"),
        (lambda a, b, c: ceil_div(a, b * c), "ceil(a / (b * c))"),
        (lambda a, b, c: a * (b > c), "a * (b > c)"),
        (lambda a, b, c: power(a + b, 2), "(a + b) ** 2"),
        (lambda a, b, c: power(power(a, 2), 2), "(a ** 2) ** 2"),
        (lambda a, b, c: a - total([b, c]), "a - (b + c)"),
        (lambda a, b, c: total([a - b, c * 2]), "a - b + c * 2"),
        (lambda a, b, c: maximum(a, b + c), "max(a, b + c)"),
        (lambda a, b, c: floor(a / b), "floor(a / b)"),
        (lambda a, b, c: c * decay(a / b), "c * exp(-(a / b))"),
        (lambda a, b, c: decay(a), "exp(-a)"),
        (lambda a, b, c: where(a > b, a, b + c), "(a if a > b else b + c)"),
        (lambda a, b, c: -(a + b), "0 - (a + b)"),
    ],
)
def test_brackets_are_where_arithmetic_needs_them(build, formula) -> None:
    a, b, c = (given_(n, v) for n, v in (("a", 7), ("b", 5), ("c", 2)))
    assert chain_of(named("r", build(a, b, c))).result.formula == formula


def floor_div(a, b):
    return a // b


def expressions() -> st.SearchStrategy:
    leaf = st.integers(1, 99).map(lambda n: given_("x", n) if n % 2 else n)
    ops = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        floor_div,
        ceil_div,
        maximum,
        lambda a, b: total([a, b]),
        lambda a, b: a * (a > b),
    ]
    return st.recursive(leaf, lambda c: st.tuples(st.sampled_from(ops), c, c), max_leaves=8)


@settings(max_examples=200, deadline=None)
@given(expressions())
def test_the_numbers_line_computes_to_the_value(tree) -> None:
    """A reader who types the line of numbers into a calculator gets the result, so the brackets are right."""

    def build(t):
        if not isinstance(t, tuple):
            return t
        a, b = build(t[1]), build(t[2])
        # A calculator rounds the rounded quotient of two fractions, Python's // the exact one: whole numbers only.
        fractions = t[0] in (floor_div, ceil_div) and any(isinstance(value_of(x), float) for x in (a, b))
        return a + b if fractions else t[0](a, b)

    try:
        figure = named("r", given_("one", 1) * build(tree))
    except ZeroDivisionError:
        return
    line = chain_of(figure).result.numbers
    line = re.sub(r"(?<=\d),(?=\d{3})", "", line)  # thousands separators; arguments have a space after their comma
    # Numbers are shown to six digits; a difference of two close ones has fewer left.
    assert compute(ast.parse(line, mode="eval").body) == pytest.approx(value_of(figure), rel=1e-4, abs=1e-3)


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
}
FUNCTIONS = {"floor": math.floor, "ceil": math.ceil, "max": max}


def compute(node) -> float:
    """A pocket calculator for a line of numbers."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -compute(node.operand)
    if isinstance(node, ast.Call):
        return FUNCTIONS[node.func.id](*(compute(a) for a in node.args))
    if isinstance(node, ast.Compare):
        return OPERATORS[type(node.ops[0])](compute(node.left), compute(node.comparators[0]))
    return OPERATORS[type(node.op)](compute(node.left), compute(node.right))


def test_a_deep_chain_does_not_recurse() -> None:
    figure = given_("x", 1)
    for i in range(5000):
        figure = named(f"s{i}", figure + 1)
    assert chain_of(figure).result.value == 5001


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (1234567, "1,234,567"),
        (141.1e9, "141,100,000,000"),
        (3.35e12, "3.35e12"),
        (1e-5, "1e-05"),
        (0.0526, "0.0526"),
        (28672.0, "28,672"),
        (0.0, "0"),
    ],
)
def test_show(value, text) -> None:
    assert show(value) == text


def test_results_also_say_the_usual_unit() -> None:
    assert str(chain_of(given_("w", 141_107_412_992, "B")).result) == "141,107,412,992 B (141.1 GB)"
    assert str(chain_of(given_("bw", 50e9, "B/s")).result) == "50,000,000,000 B/s (50.0 GB/s)"
    assert str(chain_of(given_("t", 0.0526, "s")).result) == "0.0526 s (52.6 ms)"
    assert str(chain_of(given_("n", 8, "ranks")).result) == "8 ranks"
