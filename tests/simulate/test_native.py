"""The loop as machine code: what stands alone is linked and called, what does not is refused, and only whole files that
nobody else could have written are taken."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from linkwise.core.errors import InternalError
from linkwise.simulate import native
from linkwise.simulate.jit import machine_code

CODE = b"\x7fELF code"


def _squared(address: int, most: int) -> int:
    return most * most if address else 0


def _fails(address: int, most: int) -> int:
    if most > 3:
        raise ValueError
    return address


def test_code_is_linked_and_called() -> None:
    code = machine_code(_squared, native.ENTRY)
    assert native._linked(code)(np.zeros(1), -12) == 144


def test_code_that_raises_an_error_does_not_stand_alone_or_says_so() -> None:
    """numba compiles `raise` to a status beside the result; nothing else of it is left in the object file."""
    call = native._linked(machine_code(_fails, native.ENTRY))
    with pytest.raises(InternalError, match="status"):
        call(np.zeros(1), 4)


def test_only_whole_files_of_ones_own_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_folders", lambda: iter([tmp_path]))
    old = tmp_path / "loop-x-1.o"
    native._keep(old.name, b"\x7fELF of other sources")
    native._keep("loop-x-2.o", CODE)
    kept = tmp_path / "loop-x-2.o"
    assert native._kept(kept.name) == CODE
    assert not old.exists()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    assert native._kept(kept.name) is None
    kept.write_bytes(whole)
    kept.chmod(0o666)
    assert native._kept(kept.name) is None
    if os.getuid() == 0:
        kept.chmod(0o644)
        os.chown(kept, 12345, 12345)
        assert native._kept(kept.name) is None


def test_a_whole_file_that_is_no_object_is_not_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first bytes are those of ELF, Mach-O or COFF as their specifications have them."""
    monkeypatch.setattr(native, "_folders", lambda: iter([tmp_path]))
    for code in (b"code", b"", b"\x7fEL", b"#!/bin/sh"):
        native._keep("loop-x-1.o", code)
        assert native._kept("loop-x-1.o") is None
    made = machine_code(_squared, native.ENTRY)
    native._keep("loop-x-1.o", made)
    assert native._kept("loop-x-1.o") == made


def test_a_place_that_cannot_be_written_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(native, "_folders", lambda: iter([tmp_path / "file", tmp_path / "user"]))
    native._keep("loop-x-1.o", CODE)
    assert native._kept("loop-x-1.o") == CODE
    assert (tmp_path / "user" / "loop-x-1.o").is_file()
