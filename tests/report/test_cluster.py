"""The screens of `cluster read`."""

import pytest
from tests.cluster.machines import machine, text

from linkwise.cluster.combine import combine
from linkwise.report.cluster import _columns, _near, cluster


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_matrix_fits_its_screen(width, monkeypatch) -> None:
    """Eight GPUs and eight NICs do not fit 80 columns beside each other: the rest of the columns stands below."""
    found = combine([machine(text(8, "NV18"))], accelerator="h100-sxm")
    monkeypatch.setattr("linkwise.report.cluster.width_of", lambda _: width)
    rows = [line for line in cluster(found) if line.startswith(("gpu", "      "))]
    assert max(map(len, rows)) <= width
    for gpu in range(8):
        mine = " ".join(line for line in rows if line.startswith(f"gpu{gpu}"))
        # Seven peers over NVLink, itself, its own NIC and seven on the way to others.
        assert [mine.split().count(word) for word in ("NVL", "X", "PIX", "SYS")] == [7, 1, 1, 7]


def test_rows_that_fit_are_one_block() -> None:
    assert _columns([["", "a"], ["x", "yy"]], 80) == ["   a", "x  yy"]
    assert _columns([["", "aa", "bb"], ["x", "1", "2"]], 6) == ["   aa", "x  1", "   bb", "x  2"]


def test_many_nics_are_named_in_short() -> None:
    assert _near(["mlx5_0", "mlx5_1"]) == "mlx5_0, mlx5_1"
    assert _near([f"mlx5_{n}" for n in range(8)]) == "mlx5_0, ... (8)"
    assert _near([]) == "-"
