"""Products of hidden rows with weights, in the form that is fast where they are.

The CPU's own kernels for 16-bit types are made for one row, or for CPUs with instructions for them: elsewhere several
rows take several times as long as in float32. There a piece of the weight at a time is widened, which stays in the
CPU's cache. Sums are float32 either way.
"""

import torch
import torch.nn.functional as F

_PIECE = 1 << 19  # elements of a weight that are widened at a time
_FEW = 3  # from so many rows on it pays
_BATCH = 16  # up to so many rows a product takes as long as reading the weight
_NARROW = frozenset({torch.bfloat16, torch.float16})
_SLOW = torch.backends.cpu.get_cpu_capability() in {"DEFAULT", "NO AVX", "AVX2"}
_kept: list[torch.Tensor] = []  # where pieces are widened: fresh memory costs more than the work


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [n, in] times weight [out, in] transposed, plus bias [out]: [n, out] in x's dtype, in row order."""
    rows = x.shape[0]
    if rows < 2 or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    if rows >= _FEW and _SLOW and x.dtype in _NARROW:
        out = _widened(weight, x).t()
    elif rows <= _BATCH and weight.shape[0] > 2 * weight.shape[1] and x.dtype == torch.float32:
        # Weight first: BLAS then goes through a large one once, and not once per row.
        out = torch.mm(weight, x.t()).t()
    else:
        return F.linear(x, weight, bias)
    return (out if bias is None else out + bias).to(x.dtype).contiguous()


def columns(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same without a bias and transposed, [out, n]: ranks' parts of the output features can be put together."""
    if x.shape[0] >= _FEW and _SLOW and x.dtype in _NARROW and x.device.type == "cpu":
        return _widened(weight, x).to(x.dtype)
    return weight @ x.t() if x.shape[0] > 1 else F.linear(x, weight).t()


def _widened(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[out, n] in float32."""
    features, width = weight.shape
    step = max(1, _PIECE // max(1, width))
    if not _kept or _kept[0].numel() < step * width:
        with torch.inference_mode(False):  # so that it can be written outside of it, too
            _kept[:] = [torch.empty(max(_PIECE, step * width))]
    wide = x.float().t()
    out = torch.empty((features, x.shape[0]))
    for first in range(0, features, step):
        piece = weight[first : first + step]
        torch.mm(_kept[0][: piece.numel()].view(piece.shape).copy_(piece), wide, out=out[first : first + step])
    return out
