"""The runtime's steps on two nodes of a lab: interface counters against the plan's op list."""

import pytest
from benchmarks import lab_runtime
from tests.measure.lab import needs


@needs.lab
@needs.torch
def test_bytes_on_every_link_are_the_plans():
    error, link, wanted, counted = lab_runtime.run("pp2 over two nodes")
    assert error <= 0.02, f"{link}: predicted {wanted:.0f} B, counted {counted:.0f} B"
    # By hand: hidden 512 in float32; a prompt of 1,024 tokens and a decode step of 8 go to the next stage once each, in
    # frames of 9,014 bytes that hold 8,948.
    assert wanted == pytest.approx((1024 + 8) * 512 * 4 * 9014 / 8948, rel=1e-3)
