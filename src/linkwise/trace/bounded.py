"""A record's two bounded files: the current one grows by whole pieces; when it is full it becomes the earlier one.

A disk that is full takes a part of a piece or none. What was taken of it is given back, and the room it had is enough,
as a rule, to say in one short line that the record ends early; when the disk takes pieces again the line goes.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from linkwise.core.errors import InputError

CUT = b'["cut"]\n'  # the record ends early: the disk took no more


def append_whole(file: int, data: bytes, end: int) -> None:
    """Append to a file that ends at `end` all of the data or nothing. Raises OSError when it cannot be written."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, end)
        raise


def why(error: OSError | InputError) -> str:
    """An error's reason in words."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return error.message


class Bounded:
    """path: the current file, earlier: the one before it, of room_bytes each. beginning: what each file begins with.

    Raises InputError when the first one cannot be made.
    """

    def __init__(self, path: Path, earlier: Path, room_bytes: int, beginning: Callable[[], bytes]) -> None:
        self._path, self._earlier, self._room, self._beginning = path, earlier, room_bytes, beginning
        self._file, self._size, self._marked = self._new(), 0, False

    def put(self, data: bytes) -> str:
        """Append, in another file where this one is full. Returns why nothing of it was written; empty = it was."""
        try:
            if self._size and self._size + len(data) > self._room:
                self.close()
                os.replace(self._path, self._earlier)
                self._size, self._marked = 0, False
            if self._file < 0:
                self._file = self._new()
            if self._marked:
                os.ftruncate(self._file, self._size)
                self._marked = False
            whole = data if self._size else self._beginning() + data
            append_whole(self._file, whole, self._size)
            self._size += len(whole)
        except (OSError, InputError) as error:
            self._mark()
            return why(error)
        return ""

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _mark(self) -> None:
        """Say that the record ends here; a file without its beginning is none."""
        if self._file < 0:
            return
        if not self._size:
            self.close()
            with contextlib.suppress(OSError):
                self._path.unlink()
        elif not self._marked:
            self._marked = True
            with contextlib.suppress(OSError):
                os.write(self._file, CUT)

    def _new(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        try:
            return os.open(self._path, flags, 0o640)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(self._path)) from None
