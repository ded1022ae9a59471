"""A model as a program holds it. Files store weights in any dtype; a program loads them into the one it runs in."""

from msgspec.structs import replace

from linkwise.core.dtypes import PLAIN, nbytes
from linkwise.model.types import Model, Tensor


def held(model: Model, dtype: str) -> Model:
    """The model with activations in `dtype`, and in it every weight that is not quantised, whatever its file has.

    Weights of a dtype of their own (`Tensor.kept`) take that one; quantised ones and their scales stay as stored.
    """
    tensors = tuple(_cast(t, t.kept or dtype) for t in model.tensors)
    if dtype == model.dtype and all(a is b for a, b in zip(tensors, model.tensors, strict=True)):
        return model
    own = model.config_dtype or model.dtype
    return replace(model, dtype=dtype, config_dtype="" if own == dtype else own, tensors=tensors)


def _cast(tensor: Tensor, dtype: str) -> Tensor:
    if tensor.dtype not in PLAIN or tensor.dtype == dtype:
        return tensor
    return replace(tensor, dtype=dtype, bytes=nbytes(tensor.parameters, dtype))
