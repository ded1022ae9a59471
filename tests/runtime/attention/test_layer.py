"""One rank against transformers' eager layers in float32: prompts, chunks, decode, and all of them in one batch."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tests.runtime.attention.layers import (
    ALONE,
    FAMILIES,
    REQUESTS,
    STEPS,
    Plan,
    batches,
    farthest,
    make,
    reference,
    run,
)

from linkwise.runtime.steps import Row

PLANS: dict[str, Plan] = {
    "whole prompts": tuple(((number, len(request.tokens), True),) for number, request in REQUESTS.items()),
    "prompts together": (tuple((number, len(request.tokens), True) for number, request in REQUESTS.items()),),
    "one request alone": ALONE,
    "mixed": STEPS,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("plan", PLANS)
def test_a_layer_equals_transformers(family: str, plan: str) -> None:
    model = make(family)
    found = run(model.alone(), batches(PLANS[plan]))
    every = {(number, position) for number in REQUESTS for position in range(len(REQUESTS[number].tokens))}
    assert len(found) == sum(new for step in PLANS[plan] for _, new, _ in step) and set(found) <= every
    assert farthest(found, model) < 1e-5


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3"])
def test_filler_rows_change_nothing(family: str) -> None:
    model = make(family)
    assert farthest(run(model.alone(), batches(STEPS, filler=True)), model) < 1e-5


@pytest.mark.parametrize("family", ["llama", "mixtral", "deepseek_v2"])
def test_a_prefix_that_another_request_computed(family: str) -> None:
    """Two blocks of request 0 begin a second request, beside a decode row of the first."""
    model = make(family)
    layer, first = model.alone(), REQUESTS[0]
    run(layer, [(Row(0, 0, first.tokens[:22], True, None, first.blocks),)])
    other = (*first.tokens[:8], 77, 78, 79)
    found = run(
        layer,
        [
            (
                Row(0, 22, first.tokens[22:], False, None, first.blocks),
                Row(1, 8, other[8:], True, None, (*first.blocks[:2], 12)),
            )
        ],
    )
    wanted = reference(model, other)
    assert set(found) == {(0, 22), (1, 8), (1, 9), (1, 10)}
    for position in (8, 9, 10):
        torch.testing.assert_close(found[1, position], wanted[position], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3"])
def test_bfloat16(family: str) -> None:
    """8 bits of mantissa: within 3 % of float32, by the size of all rows together."""
    model = make(family)
    layer = model.alone(torch.bfloat16)
    found = run(layer, batches(STEPS, filler=True))
    assert {row.dtype for row in found.values()} == {torch.bfloat16}
    wanted = {number: reference(model, request.tokens) for number, request in REQUESTS.items()}
    off = sum(float((row.float() - wanted[n][p]).pow(2).sum()) for (n, p), row in found.items())
    size = sum(float(wanted[n][p].pow(2).sum()) for n, p in found)
    assert off < 0.03**2 * size
