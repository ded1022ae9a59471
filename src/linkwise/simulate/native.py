"""The event loop as machine code that needs no compiler: made by numba once, kept on disk, loaded by later processes.

numba's own cache loads all of numba with it, half a second of processor time in which a loop of a few thousand events
would be done a hundred times. The loop takes an address and a number and gives a number, and calls nothing outside
itself, so its object file can be linked by LLVM alone in a hundredth of a second.
"""

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from linkwise.core.errors import InputError, InternalError
from linkwise.core.files import open_regular, read_bytes, write_bytes
from linkwise.simulate.state import Array

ENTRY = "linkwise_event_loop"
MAX_BYTES = 1 << 24
_DIGEST = 32  # bytes of SHA-256 ahead of the code: a file cut short is no code
# What an object file begins with: LLVM brings the process down where it is given anything else. ELF, Mach-O of 64 bits,
# and COFF, which begins with its machine (x86-64, Arm64).
_BEGINS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\x64\x86", b"\x64\xaa")


@lru_cache(maxsize=1)
def loop() -> Callable[[Array, int], int]:
    """Takes the record `state.pointed` wrote and so many events; says why it stopped (state.NOTHING_LEFT, ...).

    Raises InputError without numba.
    """
    made_by = find_spec("numba")
    if made_by is None or made_by.origin is None:
        raise InputError(
            "numba is not installed, and the event loop is compiled by it",
            where="simulate",
            expected="numba",
            hint="pip install 'linkwise[simulate]' brings it",
        )
    machine = _machine(Path(made_by.origin).with_name("_version.py"))
    name = f"loop-{machine}-{_sources()}.o"
    code = _kept(name)
    if code is None:
        from linkwise.simulate.jit import machine_code
        from linkwise.simulate.loop import run

        logging.getLogger("linkwise").warning("linkwise: compiling the event loop, once: about half a minute")
        code = machine_code(run, ENTRY)
        _keep(name, code)
    return _linked(code)


def _linked(code: bytes) -> Callable[[Array, int], int]:
    """The code in this process's memory, as a function."""
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # As numba calls: where the result goes, where a raised error would go, then the arguments; nonzero for an error.
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function = kind(engine.get_function_address(ENTRY))

    def call(g: Array, most: int, alive: object = engine) -> int:  # the code is gone with its engine
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        status = function(ctypes.addressof(result), ctypes.addressof(error), g.ctypes.data, most)
        if status or alive is None:
            raise InternalError(f"the event loop gave up with status {status}")
        return result.value

    return call


def _machine(version: Path) -> str:
    """What made the code and what it was made for, in a few digits."""
    from llvmlite import __version__
    from llvmlite import binding as llvm

    words = __version__, llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return hashlib.sha256(read_bytes(version) + "\n".join(words).encode()).hexdigest()[:12]


def _sources() -> str:
    """A name of the code the loop is made of: every module beside this one, so that none can be forgotten."""
    digest = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()[:16]


def _folders() -> Iterator[Path]:
    """Where Python keeps compiled modules; where that cannot be written, the user's cache."""
    yield Path(__file__).with_name("__pycache__")
    root = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # a user without a home
        yield (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "linkwise"


def _kept(name: str) -> bytes | None:
    """The code kept before, where only its user (or root) could have written it."""
    for folder in _folders():
        try:
            with open_regular(folder / name) as (file, _):
                about, data = os.fstat(file.fileno()), file.read(MAX_BYTES)
        except (OSError, InputError):
            continue
        own = not hasattr(os, "getuid") or (about.st_uid in {0, os.getuid()} and not about.st_mode & 0o022)
        code = data[_DIGEST:]
        if own and hashlib.sha256(code).digest() == data[:_DIGEST] and code.startswith(_BEGINS):
            return code
    return None


def _keep(name: str, code: bytes) -> None:
    """A machine without a writable place compiles it anew in each process."""
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(folder / name, hashlib.sha256(code).digest() + code, mode=0o644, regular=True)
            for old in folder.glob(name.rpartition("-")[0] + "-*.o"):  # of other sources
                if old.name != name:
                    old.unlink(missing_ok=True)
        except (OSError, InputError):
            continue
        return
