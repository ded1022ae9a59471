"""Products in every form against the same product in float64."""

import pytest

torch = pytest.importorskip("torch")

from linkwise.runtime import linear as module  # noqa: E402
from linkwise.runtime.linear import columns, linear  # noqa: E402

# Of the largest result: what rounding to the dtype, and adding up 700 products in float32, may change.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}
SHAPES = [(5, 3), (960, 576), (3000, 700)]  # the last is wide, and more than one piece


@pytest.fixture(params=[True, False], ids=["narrow types slow", "narrow types fast"])
def cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOW", request.param)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17])
def test_products_are_those_of_float64(dtype: "torch.dtype", rows: int) -> None:
    torch.manual_seed(rows)
    for features, width in SHAPES:
        x, weight = torch.randn(rows, width).to(dtype), torch.randn(features, width).to(dtype)
        bias = torch.randn(features).to(dtype)
        wanted = x.double() @ weight.double().T
        for found, expected in (
            (linear(x, weight), wanted),
            (linear(x, weight, bias), wanted + bias.double()),
            (columns(weight, x), wanted.T),
        ):
            assert found.dtype == dtype and found.shape == expected.shape
            assert (found.double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()
        assert linear(x, weight).is_contiguous()


@pytest.mark.usefixtures("cpu")
def test_no_rows() -> None:
    for dtype in TOLERANCE:
        assert linear(torch.zeros(0, 3, dtype=dtype), torch.zeros(5, 3, dtype=dtype)).shape == (0, 5)


def test_a_piece_is_widened_inside_and_outside_of_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOW", True)
    monkeypatch.setattr(module, "_kept", [])
    x, weight = torch.ones(4, 3, dtype=torch.bfloat16), torch.ones(5, 3, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert linear(x, weight).eq(3).all()
    assert linear(x, weight).eq(3).all()
