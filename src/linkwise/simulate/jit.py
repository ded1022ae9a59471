"""The compiler of the event loop: numba, which `linkwise[simulate]` brings. Only compiled modules import this one."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba

from linkwise.core.errors import InternalError

F = TypeVar("F", bound=Callable[..., Any])
# Division by zero gives infinity, as in numpy: no check in the loop. No fastmath: results are the same everywhere.
_AS_NUMPY = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# What LLVM may call in place of a loop or an intrinsic: every process has them.
_ANYWHERE = {"memset", "memcpy", "memmove"}


def compiled(function: F) -> F:
    """A part of the loop: compiled where the loop that calls it is."""
    return cast(F, numba.njit(**_AS_NUMPY)(function))


def machine_code(function: Callable[[int, int], int], entry: str) -> bytes:
    """An object file with a function of two integers under the name `entry`, for this machine.

    Called as numba calls its own (simulate/native.py). Raises InternalError for code that cannot stand alone: it raises
    errors, or needs more than the C library.
    """
    kind = numba.types.int64(numba.types.int64, numba.types.int64)
    whole = numba.njit(kind, **_AS_NUMPY)(function)
    signature = whole.signatures[0]
    module = llvm.parse_assembly(whole.inspect_llvm(signature))
    made = module.get_function(whole.overloads[signature].fndesc.llvm_func_name)
    outside = {one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if outside - _ANYWHERE or len(list(made.arguments)) != 4:
        raise InternalError(f"the compiled loop needs {', '.join(sorted(outside)) or 'other arguments'}")
    made.name, made.linkage = entry, "external"
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    return cast(bytes, machine.emit_object(module))
