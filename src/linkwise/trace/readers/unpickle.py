"""Pickles of strangers: plain containers and scalars, bounded in memory and time, or an InputError.

Two roads, and no name is ever looked up on either. In a process whose memory and processor time the system bounds
(`trace.limits`), a pickle is loaded at C speed: what it costs beyond that ends the process, not the reading of the
rest. Elsewhere only what PyTorch's own pickler writes (protocol 2: dicts, lists, strings, numbers, pairs of strings),
checked opcode by opcode with one regular expression; anything else is interpreted here, slowly, one opcode at a time.

What the check is for, beside code that a pickle would run: CPython's unpickler makes room for a memo of any index a
pickle names (4 bytes can ask for 64 GB), and a dict key of nested tuples is hashed through all of them, which for
shared ones takes for ever and for deep ones overruns the C stack. So no tuple here holds another:
of what is interpreted, one that would is given as a list, which nobody can hash.
"""

import gc
import pickle
import pickletools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from typing import Any, NoReturn

from linkwise.core.errors import InputError
from linkwise.trace.facts import quoted
from linkwise.trace.limits import limited

MAX_PICKLE_BYTES = 32 * 2**20
MAX_INTERPRETED_BYTES = 8 * 2**20  # some 2 us an opcode
MAX_MARKS = 1_000  # open at a time: how deep containers stand in each other
EXPECTED = "a pickle of plain containers and numbers"

# How PyTorch writes, one opcode after the other; memo indices are below 2^20. A string ("X") is no part of it: its
# length is. Four fields of a dict at once, since each turn of the outer loop costs more than what it reads. A lone GET
# is the only one that a run may end with before a string.
_GET = rb"(?:h.|j....)"
_PUT = rb"(?:q.|r..[\x00-\x0f]\x00)"
_END = rb"\x86(?![qr])"  # a pair that is not put into the memo
_NUMBER = rb"K.|M..|J....|\x8a\x08........"
_LIST = rb"\](?:\((?:\]\((?:K.|M..|J....)+e|h.)+e)?"
_FIELD = rb"h.(?:h.(?!X)(?:h." + _END + rb"|" + _END + rb")?|[N\x88\x89]|" + _NUMBER + rb"|" + _LIST + rb")"
_RUN = re.compile(
    rb"(?:" + 4 * _FIELD + rb"|" + _FIELD + rb"|[N\x88\x89(}\]aesu]+|" + _NUMBER + rb"|" + _GET + _GET + _END + rb"|"
    rb"(" + _GET + rb")|" + _PUT + rb"|G........|"
    rb"\x8a(?:\x07.{7}|\x06.{6}|\x05.{5}|\x04.{4}|\x03...|\x02..|\x01.|\x00)){1,4096}",
    re.DOTALL,
)  # fmt: skip
_PUT_ONLY = re.compile(_PUT, re.DOTALL)
_PAIR_END = re.compile(rb"(" + _GET + rb")?" + _END, re.DOTALL)

_SCALARS = frozenset(
    {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG", "FLOAT", "BINFLOAT",
     "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING", "UNICODE", "STRING"}
)  # fmt: skip
_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ERRORS = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, IndexError, KeyError, MemoryError, TypeError,
    ValueError,
)  # fmt: skip


def is_pickle(data: bytes) -> bool:
    """Whether bytes begin as a pickled dict or list does: of protocol 2 and later, of 1 ("}q\\0"), of 0 ("(dp0")."""
    return data[:1] == b"\x80" or data[:2] in {b"}q", b"]q", b"}r", b"]r", b"(d", b"(l"}


def loads(data: bytes, *, where: str) -> Any:
    """The value of a pickle: dicts with plain keys, lists, flat tuples, strings, numbers, None. A tuple of containers
    is a list, or, where the system bounds this process, still a tuple.

    It may hold itself: walk it to a known depth only. Raises InputError, which says what the pickle asked for.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise InputError(f"a pickle of {len(data)} bytes", where=where, expected=f"at most {MAX_PICKLE_BYTES}")
    # An empty container takes one byte here, two in protocol 0, and some 80 in memory.
    if sum(map(data.count, (b"}", b"]", b"\x8f", b"(d", b"(l"))) > len(data) // 4 + 1024:
        raise InputError("a pickle of nearly nothing but empty containers", where=where, expected=EXPECTED)
    try:
        plain = limited() or is_torch_like(data)
        return _Plain(_buffered(data)).load() if plain else _interpreted(data, where)
    except _ERRORS as error:
        if not data.endswith(b".") or isinstance(error, EOFError):  # the opcode that every pickle ends with
            what = f"ends in the middle, after {len(data)} bytes"
            raise InputError(what, where=where, expected="a whole pickle") from None
        raise InputError(f"not a usable pickle ({type(error).__name__})", where=where, expected=EXPECTED) from None


@contextmanager
def no_collection() -> Iterator[None]:
    """For reading what has many containers: the collector would look through all of them again and again."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _buffered(data: bytes) -> BufferedReader:
    """A file that can peek: without that the unpickler reads opcode by opcode, four times as slowly."""
    return BufferedReader(BytesIO(data), 2**20)


class _Plain(pickle.Unpickler):
    """The C unpickler, which here neither imports nor looks anything up."""

    def find_class(self, module: str, name: str) -> NoReturn:
        _refuse(f"{module}.{name}", "")

    def persistent_load(self, id: Any) -> NoReturn:
        _refuse("a persistent object", "")


def _refuse(what: str, where: str) -> NoReturn:
    raise InputError(f"a pickle that asks for {quoted(what)!r}", where=where, expected=EXPECTED)


def is_torch_like(data: bytes) -> bool:
    """Every opcode is one of PyTorch's pickler's, with arguments that cost what they look like."""
    at, end = 2, len(data)
    if not data.startswith(b"\x80\x02"):
        return False
    atoms = 0  # how many strings, or values from the memo (never a tuple), were pushed last, one after the other
    while at < end:
        if data[at] == 0x58:  # "X", four bytes of length, UTF-8
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            atoms += 1
            if put := _PUT_ONLY.match(data, at):
                at = put.end()
            pair = _PAIR_END.match(data, at)
            if pair and atoms + bool(pair[1]) >= 2:
                at, atoms = pair.end(), 0
        elif run := _RUN.match(data, at):
            at, atoms = run.end(), int(run.end(1) == run.end())
        else:
            return data[at] == 0x2E
    return False


def _interpreted(data: bytes, where: str) -> Any:
    if len(data) > MAX_INTERPRETED_BYTES:
        what = f"a pickle of {len(data)} bytes that PyTorch did not write"
        raise InputError(what, where=where, expected=f"at most {MAX_INTERPRETED_BYTES}")
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in {"GLOBAL", "INST"}:
            _refuse(str(argument).replace(" ", "."), where)
        if name == "STACK_GLOBAL":
            _refuse(".".join(part for part in machine.stack[-2:] if isinstance(part, str)), where)
        if name == "STOP":
            return machine.stack.pop()
        if not machine.step(name, argument):
            _refuse(f"opcode {name}", where)
    raise EOFError


class _Machine:
    """The stack and memo of a pickle. Raises one of `_ERRORS` for opcodes that do not fit what is on the stack."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # stacks under the marks
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> bool:
        """One opcode; False for one that makes more than plain values."""
        if name in _SCALARS:
            self.stack.append(_VALUES.get(name, argument))
        elif name in {"BINGET", "LONG_BINGET", "GET"}:
            self.stack.append(self.memo[argument])
        elif name in {"BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"}:
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _TAKES:
            items = self.stack[-_TAKES[name] :]
            del self.stack[-_TAKES[name] :]
            self.gather(name, items)
        elif name == "MARK":
            if len(self.below) >= MAX_MARKS:
                raise ValueError
            self.below.append(self.stack)
            self.stack = []
        elif name in {"TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"}:
            items, self.stack = self.stack, self.below.pop()
            self.gather(name, items)
        else:
            return name in {"PROTO", "FRAME"}
        return True

    def gather(self, name: str, items: list[Any]) -> None:
        """Make a container of items, or put them into the one on the stack."""
        if len(items) < _TAKES.get(name, 0):
            raise IndexError
        if name.startswith("TUPLE"):
            flat = not any(isinstance(item, (tuple, list, dict)) for item in items)
            self.stack.append(tuple(items) if flat else items)
        elif name == "LIST":
            self.stack.append(items)
        elif name.startswith("APPEND"):
            _of(list, self.stack[-1]).extend(items)
        else:
            keys = items[::2]
            if not set(map(type, keys)) <= _KEYS:
                raise TypeError
            if name == "DICT":
                self.stack.append({})
            _of(dict, self.stack[-1]).update(zip(keys, items[1::2], strict=True))


_KEYS = {str, int, float, bool, type(None)}
_EMPTY: dict[str, Any] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value
