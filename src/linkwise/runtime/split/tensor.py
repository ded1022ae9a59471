"""Tensor parallelism: what a rank takes of every weight, and how blocks that are split over `tp` are entered and left.

Column: output features are divided, each rank computes its own. Row: input features are divided, each rank gets a
partial sum of all outputs. A block is a column matmul followed by a row matmul, so that ranks meet once, at its end.
The vocabulary is divided by rows, in the embedding and in the head. Shares follow engine/sharding.py to the byte.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, coordinates
from linkwise.engine.sharding import ways
from linkwise.runtime.arch import Arch
from linkwise.runtime.comm import Comm
from linkwise.runtime.linear import columns, linear
from linkwise.runtime.shapes import expected

VOCAB_PAD = 64


class Readable(Protocol):
    """A checkpoint, as runtime/weights/source.py opens it."""

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, *cuts: tuple[int, int] | None) -> torch.Tensor: ...


class Weights:
    """What one rank takes of a checkpoint. bytes: of everything taken so far, padding included.

    arch: where given, every tensor's shape is checked against it before a byte is read. Every method raises InputError
    when the tensor is missing, has another shape, or does not divide over the ranks of the axis.
    """

    def __init__(
        self,
        source: Readable,
        layout: Layout,
        rank: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        arch: Arch | None = None,
    ) -> None:
        self.source, self.layout, self.rank, self.arch = source, layout, rank, arch
        self.dtype, self.device = dtype, torch.device(device)
        self.bytes = 0
        self.places = coordinates(layout, rank)
        # The stage is a grid of ep x moe_tp: a rank's place in it is its number inside the stage.
        self.places["stage"] = rank % layout.stage_size

    def __contains__(self, name: str) -> bool:
        return name in self.source

    def whole(self, name: str, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """All of a tensor. dtype: where it is not the model's."""
        self._shape(name)
        return self._taken(self.source.read(name), dtype)

    def column(self, name: str, axis: str = "tp", units: int = 0) -> torch.Tensor:
        """This rank's output features (dimension 0). units: indivisible pieces of them, such as heads; 0 = features."""
        return self._taken(self.source.read(name, self._cut(name, self._shape(name)[0], axis, units)))

    def row(self, name: str, axis: str = "tp") -> torch.Tensor:
        """This rank's input features (the last dimension)."""
        shape = self._shape(name)
        whole: list[tuple[int, int] | None] = [None] * (len(shape) - 1)
        return self._taken(self.source.read(name, *whole, self._cut(name, shape[-1], axis, 0)))

    def kv(self, name: str, heads: int) -> torch.Tensor:
        """This tensor rank's key/value heads of dimension 0: divided up to `heads`, then neighbours hold copies."""
        tp, place, each = self.layout.tp, self.places["tp"], self._shape(name)[0] // heads
        if heads % tp and tp % heads:
            raise self._uneven(name, f"{heads} heads", "tp", tp)
        first, number = (place * heads // tp, 1) if tp > heads else (place * (heads // tp), heads // tp)
        return self._taken(self.source.read(name, (first * each, (first + number) * each)))

    def vocab(self, name: str, pad: int = VOCAB_PAD) -> torch.Tensor:
        """This tensor rank's rows of the vocabulary, which is padded with rows of zeros to a multiple of `pad`."""
        rows, *rest = self._shape(name)
        padded = -(-rows // pad) * pad
        first, end = self._cut(name, padded, "tp", 0)
        if end <= rows:
            return self._taken(self.source.read(name, (first, end)))
        out = torch.zeros((end - first, *rest), dtype=self.dtype, device=self.device)
        if first < rows:
            out[: rows - first] = self.source.read(name, (first, rows))
        self.bytes += out.nbytes
        return out

    def same_vocab(self, one: str, other: str) -> bool:
        """Whether two tensors have equal rows where this rank's part of the vocabulary is. Nothing is taken."""
        rows = self._shape(one)[0]
        first, end = self._cut(one, -(-rows // VOCAB_PAD) * VOCAB_PAD, "tp", 0)
        cut = min(first, rows), min(end, rows)
        return self._shape(other)[0] == rows and torch.equal(self.source.read(one, cut), self.source.read(other, cut))

    def columns(self, names: Sequence[str], axis: str = "tp") -> torch.Tensor:
        """Several tensors' output features one after another, so that one matmul computes them all."""
        return torch.cat([self.column(name, axis) for name in names])

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.source:
            raise InputError(f"tensor {name} is missing", where="weights")
        shape = tuple(self.source.shape(name))
        wanted = expected(self.arch, name) if self.arch else shape
        if shape != wanted:
            raise InputError(f"tensor {name} is {list(shape)}", where="weights", expected=f"{list(wanted)}")
        return shape

    def _cut(self, name: str, extent: int, axis: str, units: int) -> tuple[int, int]:
        parts, place, pieces = ways(self.layout, axis), self.places[axis], units or extent
        if pieces % parts or extent % pieces:
            raise self._uneven(name, f"{pieces} {'heads' if units else 'features'}", axis, parts)
        each = extent // parts
        return place * each, (place + 1) * each

    def _uneven(self, name: str, what: str, axis: str, parts: int) -> InputError:
        return InputError(f"{what} over {axis} {parts}", where=f"tensor {name}", expected="an even division")

    def _taken(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = tensor.to(device=self.device, dtype=dtype or self.dtype).contiguous()
        if tensor.untyped_storage().nbytes() > tensor.nbytes:  # a slice must not keep the whole tensor alive
            tensor = tensor.clone()
        self.bytes += tensor.nbytes
        return tensor


class Rows:
    """Hidden rows between blocks that are split over tp: whole on every rank, or 1/tp of them on each.

    Whole: a block's partial sums are all-reduced. Sharded (sequence_sharded): rows are all-gathered before a block and
    its sums reduce-scattered behind it; padded with zeros to a multiple of tp.
    """

    def __init__(self, layout: Layout, comm: Comm) -> None:
        self.comm = comm
        self.sharded = layout.sequence_sharded and layout.tp > 1
        self.tp = layout.tp

    def kept(self, total: int) -> int:
        """Rows a rank keeps of `total`."""
        return -(-total // self.tp) if self.sharded else total

    def shard(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of rows that every rank has."""
        if not self.sharded:
            return x
        each, place = self.kept(x.shape[0]), self.comm.place("tp")
        return pad_rows(x, each * self.tp)[place * each : (place + 1) * each]

    def enter(self, x: torch.Tensor, total: int, role: str) -> torch.Tensor:
        """All `total` rows of what this rank keeps."""
        return self.comm.all_gather("tp", role, x)[:total] if self.sharded else x

    def leave(self, partial: torch.Tensor, role: str) -> torch.Tensor:
        """Sum over tp of all rows, as much of it as this rank keeps."""
        if not self.sharded:
            summed: torch.Tensor = self.comm.all_reduce("tp", role, partial)
            return summed
        rows = self.kept(partial.shape[0]) * self.tp
        scattered: torch.Tensor = self.comm.reduce_scatter("tp", role, pad_rows(partial, rows))
        return scattered


class Embedding:
    """Token ids to hidden rows; each tensor rank knows a part of the vocabulary and gives zeros for the rest."""

    def __init__(self, weight: torch.Tensor, comm: Comm) -> None:
        self.weight, self.comm = weight, comm
        self.first = comm.place("tp") * weight.shape[0]

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T] to rows [T, hidden], whole on every rank."""
        if self.comm.size("tp") == 1:
            return F.embedding(ids, self.weight)
        local = ids - self.first
        known = (local >= 0) & (local < self.weight.shape[0])
        rows = F.embedding(local.where(known, 0), self.weight) * known.unsqueeze(-1)
        summed: torch.Tensor = self.comm.all_reduce("tp", "embed", rows)
        return summed


class Head:
    """Hidden rows to logits; each tensor rank computes a part of the vocabulary, then all have all."""

    def __init__(self, weight: torch.Tensor, vocab: int, comm: Comm) -> None:
        self.weight, self.vocab, self.comm = weight, vocab, comm

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [n, hidden] to logits [n, vocab] in their dtype."""
        if not rows.shape[0]:
            return rows.new_empty((0, self.vocab))
        if self.comm.size("tp") == 1:
            return linear(rows, self.weight)[:, : self.vocab]
        # Vocabulary first: ranks' parts then stand one after another as the gather leaves them.
        logits: torch.Tensor = self.comm.all_gather("tp", "logits", columns(self.weight, rows))
        return logits[: self.vocab].T


def pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x with rows of zeros behind it, `rows` in all."""
    return x if x.shape[0] == rows else F.pad(x, (0, 0, 0, rows - x.shape[0]))
