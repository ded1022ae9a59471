"""Root-mean-square normalisation, as every family here has it."""

import torch
import torch.nn.functional as F


class Norm:
    """x / rms(x) * weight over the last dimension; the mean is taken in float32 whatever the dtype."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        self._shape = tuple(weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self._shape, self.weight, self.eps)
