"""A model folder's tensors, read slice by slice: config.json with safetensors weights in one file or in shards.

Headers are checked before anything is mapped (places.py). Reading a slice touches the pages of that slice alone.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from linkwise.core.errors import InputError
from linkwise.runtime.weights.places import DTYPES, Place, places, stored_dtype

Cut = tuple[int, int] | None


class Source:
    """The tensors of one folder by name. Made by `open_source`.

    fields: config.json. dtype: what the config says weights and activations are in, else what most bytes are stored in.
    """

    def __init__(self, folder: Path, fields: dict[str, Any], tensors: dict[str, Place]) -> None:
        self.folder, self.fields = folder, fields
        self._tensors = tensors
        self._open: dict[Path, Any] = {}
        self.dtype = stored_dtype(fields, tensors, folder)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors, sorted."""
        return tuple(sorted(self._tensors))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's whole shape. Raises InputError when the folder has no such tensor."""
        return self._place(name).shape

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a tensor that is missing or has another shape, naming the tensor and its file."""
        place = self._place(name)
        if place.shape != shape:
            raise InputError(
                f"tensor {name!r} has shape {list(place.shape)}",
                where=str(place.file),
                expected=str(list(shape)),
                hint="The config may be another model's",
            )

    def read(self, name: str, *cuts: Cut) -> torch.Tensor:
        """A tensor or a slice of it, in the stored dtype, as memory of its own.

        cuts: (first, end) by dimension, None = all of it; those left out are whole. Raises InputError for a missing
        tensor, a cut outside it, a dtype that is not float32, float16 or bfloat16, and a file that cannot be read.
        """
        place = self._place(name)
        where = str(place.file)
        if place.code not in DTYPES:
            raise InputError(f"tensor {name!r} is stored as {place.code}", where=where, expected=", ".join(DTYPES))
        if len(cuts) > len(place.shape):
            raise InputError(f"tensor {name!r} has {len(place.shape)} dimensions, cut in {len(cuts)}", where=where)
        for cut, extent in zip(cuts, place.shape, strict=False):
            if cut is not None and not 0 <= cut[0] <= cut[1] <= extent:
                raise InputError(f"tensor {name!r} of shape {list(place.shape)} has no slice {cut}", where=where)
        wanted = tuple(slice(None) if cut is None else slice(*cut) for cut in cuts)
        try:
            if place.file not in self._open:
                self._open[place.file] = safe_open(place.file, framework="pt")
            part = self._open[place.file].get_slice(name)[wanted or ...]
        except (SafetensorError, OSError, RuntimeError) as error:
            raise InputError(f"tensor {name!r} cannot be read: {error}", where=where) from None
        # What get_slice gives may still be the file's pages: a copy stays valid whatever happens to the file.
        return part.clone(memory_format=torch.contiguous_format)

    def close(self) -> None:
        """Let go of the files; what was read stays."""
        self._open.clear()

    def _place(self, name: str) -> Place:
        try:
            return self._tensors[name]
        except KeyError:
            raise InputError(
                f"tensor {name!r} is missing",
                where=str(self.folder),
                expected=f"one of the {len(self._tensors)} tensors of its safetensors files",
            ) from None


def open_source(folder: str | Path) -> Source:
    """The tensors of a folder; see `places`, which says what is refused. Reads all headers, no weights."""
    folder = Path(folder)
    return Source(folder, *places(folder))
