"""The compiler of the event loop: numba, which `linkwise[simulate]` brings. Only compiled modules import this one."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from linkwise.core.errors import InputError

try:
    import numba
except ImportError:
    raise InputError(
        "numba is not installed, and the event loop is compiled by it",
        where="simulate",
        expected="numba",
        hint="pip install 'linkwise[simulate]' brings it",
    ) from None

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """A part of the loop: compiled where the loop that calls it is."""
    # Division by zero gives infinity, as in numpy: no check in the loop. No fastmath: results are the same everywhere.
    return cast(
        F, numba.njit(error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    )


def kept(function: F) -> F:
    """The loop itself: compiled once, kept on disk for later processes.

    numba keeps by the source of one file alone. The loop is made of several, so it is made inside a function that is
    given `sources()`: what a function closes over is part of the key it is kept under.
    """
    return cast(F, numba.njit(error_model="numpy", cache=True, _nrt=False)(function))


def sources() -> str:
    """A name of the code the loop is made of: every module beside this one, so that none can be forgotten."""
    digest = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()[:16]
