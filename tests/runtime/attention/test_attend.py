"""Softmax in parts: equal to the whole, and without NaN where a part has no keys."""

import pytest

pytest.importorskip("torch")

import torch

from linkwise.runtime.attention import attend


def _whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Textbook: softmax of scores + mask, times values; heads one by one."""
    group = q.shape[1] // k.shape[1]
    heads = [
        (q[:, h] @ k[:, h // group].T * 0.3 + mask).softmax(-1) @ v[:, h // group] for h in range(q.shape[1])
    ]  # fmt: skip
    return torch.stack(heads, 1)


def _some(seed: int = 0) -> tuple[torch.Tensor, ...]:
    make = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(*shape, generator=make) for shape in ((5, 6, 8), (9, 2, 8), (9, 2, 4)))
    mask = torch.zeros(5, 9).masked_fill_(torch.arange(9) > torch.arange(4, 9)[:, None], -torch.inf)
    return q, k, v, mask


def test_a_prompt_at_once_and_in_parts() -> None:
    q, k, v, mask = _some()
    wanted = _whole(q, k, v, mask)
    torch.testing.assert_close(attend.over_prompt(q, k, v, 0.3, mask), wanted)
    causal = torch.zeros(5, 5).masked_fill_(torch.ones(5, 5).triu(1) > 0, -torch.inf)
    torch.testing.assert_close(attend.over_prompt(q, k[:5], v[:5], 0.3, None), _whole(q, k[:5], v[:5], causal))
    # Every third key to one rank; the last ones are seen by no row of the first part.
    parts = [attend.part_of_prompt(q, k[i::3], v[i::3], 0.3, mask[:, i::3]) for i in range(3)]
    joined = attend.join(attend.join(parts[0], parts[1]), parts[2])
    torch.testing.assert_close(joined.out, wanted)


def test_rows_of_a_part_are_worked_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, mask = _some()
    whole = attend.part_of_prompt(q, k, v, 0.3, mask)
    monkeypatch.setattr(attend, "_SCORES", 2 * 6 * 9)
    for one, other in zip(whole, attend.part_of_prompt(q, k, v, 0.3, mask), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_part_that_sees_nothing_adds_nothing() -> None:
    q, k, v, mask = _some()
    part = attend.part_of_prompt(q, k[:3], v[:3], 0.3, mask[:, :3] - torch.inf)
    assert bool((part.lse == -torch.inf).all()) and bool((part.out == 0).all())
    whole = attend.part_of_prompt(q, k, v, 0.3, mask)
    for one, other in ((part, whole), (whole, part)):
        joined = attend.join(one, other)
        torch.testing.assert_close(joined.out, whole.out)
        torch.testing.assert_close(joined.lse, whole.lse)
    both = attend.join(part, part)
    assert bool((both.out == 0).all()) and bool((both.lse == -torch.inf).all())


def test_decode_rows_of_several_requests() -> None:
    """Each row has keys of its own; one has fewer, one has none here."""
    make = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(*shape, generator=make) for shape in ((3, 6, 8), (3, 2, 7, 8), (3, 2, 7, 8)))
    mask = torch.zeros(3, 1, 1, 7)
    mask[1, ..., 4:] = -torch.inf
    out = attend.over_decode(q, k, v, 0.3, mask)
    for row, seen in ((0, 7), (1, 4)):
        keys, values = k[row, :, :seen].transpose(0, 1), v[row, :, :seen].transpose(0, 1)
        wanted = _whole(q[row : row + 1], keys, values, torch.zeros(1, seen))[0]
        torch.testing.assert_close(out[row], wanted)
        torch.testing.assert_close(attend.part_of_decode(q, k, v, 0.3, mask).out[row], wanted)
    mask[2] = -torch.inf
    part = attend.part_of_decode(q, k, v, 0.3, mask)
    assert bool((part.lse[2] == -torch.inf).all()) and bool((part.out[2] == 0).all())
