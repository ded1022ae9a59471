"""Where the arrays are: one function an array, from the record that holds their addresses.

The loop is handed one pointer. Handing two dozen arrays from function to function took the compiler minutes, and each
call a hundred moves; what a view costs is a load. `run` keeps the arrays alive while the loop runs.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from linkwise.simulate.state import FAULTS, GLOBAL, LANE, LOG, POOL, REPLICA, REQUEST, SET, SLOT


def _view(name: str, dtype: Any, *sizes: str) -> Any:
    """A function of the record, for compiled code: the array at `<name>_at`, its shape in the fields `sizes`."""
    kind = numba.from_dtype(np.dtype(dtype))
    array = types.Array(kind, len(sizes), "C", aligned=True)
    fields: Any = GLOBAL.fields
    places = [fields[field][1] for field in (f"{name}_at", *sizes)]

    @intrinsic  # type: ignore[untyped-decorator]
    def view(typing: Any, w: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            base = builder.bitcast(arguments[0], ir.IntType(8).as_pointer())

            def load(place: int) -> Any:
                at = builder.gep(base, [ir.Constant(word, place)])
                return builder.load(builder.bitcast(at, word.as_pointer()))

            address, *shape = map(load, places)
            size = context.get_abi_sizeof(context.get_data_type(kind))
            strides = [ir.Constant(word, size)]
            for extent in shape[:0:-1]:
                strides.insert(0, builder.mul(strides[0], extent))
            made = make_array(array)(context, builder)
            data = builder.inttoptr(address, context.get_data_type(kind).as_pointer())
            populate_array(
                made, data=data, shape=shape, strides=strides, itemsize=ir.Constant(word, size), meminfo=None
            )
            return made._getvalue()

        return array(w), code

    return view


@intrinsic  # type: ignore[untyped-decorator]
def record(typing: Any, address: Any) -> Any:
    """The record at an address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return numba.from_dtype(GLOBAL)(address), code


_I4, _I8, _F8 = np.int32, np.int64, np.float64

request = _view("request", REQUEST, "number")
replica = _view("replica", REPLICA, "replicas")
slot = _view("slot", SLOT, "slots")
set = _view("set", SET, "sets")
lane = _view("lane", LANE, "lanes")
pool = _view("pool", POOL, "pools")
fault = _view("fault", FAULTS, "faults")
log_line = _view("log_line", LOG, "log")
rows = _view("rows", _I8, "sets", "width")
left = _view("left", _I4, "sets", "width")
room = _view("room", _I4, "sets", "width")
pre = _view("pre", _I8, "sets", "width")
pre_len = _view("pre_len", _I4, "sets", "width")
stage_free = _view("stage_free", _F8, "replicas", "stages")
first_hash = _view("first_hash", _I8, "number")
hashes = _view("hashes", _I8, "hash_count")
hash_size = _view("hash_size", _I8, "names")
refs = _view("refs", _I4, "lanes", "names")
before = _view("before", _I4, "lanes", "ends")
after = _view("after", _I4, "lanes", "ends")
heap_s = _view("heap_s", _F8, "heap_size")
heap_code = _view("heap_code", _I8, "heap_size")
gaps = _view("gaps", _I8, "bins")
work = _view("work", _F8, "pools", "stages", "tokens")
comm = _view("comm", _F8, "pools", "stages", "tokens")
prompt_work = _view("prompt_work", _F8, "pools", "stages", "tokens")
prompt_comm = _view("prompt_comm", _F8, "pools", "stages", "tokens")
experts = _view("experts", _F8, "pools", "stages", "tokens")
head = _view("head", _F8, "pools", "stages", "sampled")
logits = _view("logits", _F8, "pools", "stages", "sampled")
read = _view("read", _F8, "pools", "stages", "cells")
flop = _view("flop", _F8, "pools", "stages", "cells")
context = _view("context", _F8, "pools", "stages", "cells")
floor = _view("floor", _F8, "pools", "stages")
overhead = _view("overhead", _F8, "pools", "stages")
prompt = _view("prompt", _F8, "pools", "stages")
prompt_token = _view("prompt_token", _F8, "pools", "stages")
