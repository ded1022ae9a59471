"""A pickle yields plain values or an InputError, whatever it asks for, in bounded memory and time."""

import pickle
import struct
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.readers import torch_pickle

from linkwise.core.errors import InputError
from linkwise.trace.readers import unpickle

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.tuples(st.text(max_size=4), st.text(max_size=4)),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=6), inner, max_size=6),
    max_leaves=40,
)  # fmt: skip
DUMP = {
    "version": "2.9",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        {"process_group": ("0", "default_pg"), "input_sizes": [[4096, 1, 5120], []], "time_created_ns": 2**60 + 1,
         "duration_ms": 1.5, "state": "completed", "time_discovered_started_ns": None, "retired": True, "rank": -1}
    ] * 3,
}  # fmt: skip


def loads(data: bytes) -> Any:
    return unpickle.loads(data, where="dump")


@given(VALUES)
def test_what_pytorch_writes_comes_back_by_the_fast_road(value: Any) -> None:
    data = torch_pickle.dumps(value)
    assert pickle.loads(data) == value  # noqa: S301 - the writer of these tests is a true pickler
    if data.count(b"}") + data.count(b"]") <= len(data) // 4 + 1024:
        assert loads(data) == value


def test_a_dump_of_pytorch_takes_the_fast_road() -> None:
    data = torch_pickle.dumps(DUMP)
    assert unpickle.is_torch_like(data)
    assert loads(data) == DUMP
    many = {f"name {n}": (f"a {n % 7}", f"name {n}") for n in range(1_000)}  # memo indices beyond one byte
    assert unpickle.is_torch_like(torch_pickle.dumps(many))
    assert loads(torch_pickle.dumps(many)) == many


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("value", [{"a": ((1, 2), (("x",), [(3,)]))}, [({"a": ()},)], {1.5: (None, ()), None: 1}])
def test_both_roads_take_the_same(value: Any, protocol: int, bounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder of many files is read in processes with limits, a few files are not.
    monkeypatch.setattr(unpickle, "limited", lambda: bounded)
    assert listed(loads(pickle.dumps(value, protocol))) == listed(value)


def listed(value: Any) -> Any:
    """The same with lists for tuples: without limits a tuple of containers is one, which no hash goes through."""
    if isinstance(value, dict):
        return {key: listed(inner) for key, inner in value.items()}
    return [listed(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def test_without_limits_no_tuple_holds_another() -> None:
    (value,) = loads(pickle.dumps([((1, 2), ("a",))], 4))
    assert value == [(1, 2), ("a",)]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [DUMP, [], {"a": (1, "x", None)}, {"big": 10**300, "small": -(10**40)}, 1.5, ("a",)])
def test_what_python_writes_comes_back(protocol: int, value: Any) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


class Asks:
    """What an attacker's pickle does: call anything."""

    def __reduce__(self) -> Any:
        return (eval, ("print('ran')",))


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_asks_for_code_is_named_and_refused(protocol: int) -> None:
    with pytest.raises(InputError, match=r"dump: a pickle that asks for '(__builtin__|builtins)\.eval'"):
        loads(pickle.dumps({"entries": [Asks()]}, protocol))


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "'os.system'"),
        (b"(S'true'\nios\nsystem\n.", "'os.system'"),
        (b"\x80\x02X\x01\x00\x00\x00acposix\nsystem\nq\x00.", "'posix.system'"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "'posix.system'"),
        (b"\x80\x02Pan id\n.", "PERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x04\x8f.", "EMPTY_SET"),
        (b"\x80\x05\x96" + struct.pack("<Q", 4) + b"abcd.", "BYTEARRAY8"),
        (b"\x80\x02N2\x86.", "DUP"),
        (b"\x80\x02}}b.", "BUILD"),
    ],
)
def test_opcodes_that_do_more_than_plain_values(data: bytes, asked: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(data)
    assert f"asks for {asked}" in str(caught.value) or f"asks for 'opcode {asked}'" in str(caught.value)


def test_the_loader_refuses_by_itself_too() -> None:
    for data in (b"cos\nsystem\n.", b"\x80\x02Pid\n.", b"\x80\x02NQ."):
        with pytest.raises(InputError, match="asks for"):
            unpickle._Plain(unpickle._buffered(data)).load()


# Each is small and would take gigabytes, for ever, or the process in CPython's unpickler.
def pairs(levels: int) -> bytes:
    """A tuple of two of the tuple below it: 2^levels leaves to hash."""
    steps = [b")q\x000"] + [b"h%ch%c\x86q%c0" % (n, n, n + 1) for n in range(levels)]
    return b"\x80\x02" + b"".join(steps) + b"}h%cNs." % levels


BOMBS = {
    "memo index 2^31": b"\x80\x02N" + b"r" + struct.pack("<I", 2**31) + b".",
    "memo index 2^24": b"\x80\x02N" + b"r" + struct.pack("<I", 2**24) + b".",
    "memo index in text": b"Np99999999999999\n.",
    "bytes of 2^62": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",
    "text of 2^31": b"\x80\x02X" + struct.pack("<I", 2**31) + b".",
    "number of 2^30 bytes": b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b".",
    "key of shared tuples": pairs(60),
    "key of deep tuples": b"\x80\x02}N" + b"\x85" * 2_000_000 + b"Ns.",
    "key of deep pairs": b"\x80\x02}X\x01\x00\x00\x00aq\x00h\x00h\x00\x86" + b"h\x00\x86" * 1_000_000 + b"Ns.",
    "pairs over strings": b"\x80\x02}X\x01\x00\x00\x00aq\x00h\x00h\x00\x86"
    + b"X\x00\x00\x00\x00\x86" * 300_000
    + b"Ns.",
    "empty lists": b"\x80\x02" + b"]" * 30_000_000 + b".",
    "empty dicts": b"\x80\x02" + b"}(" * 15_000_000 + b".",
    "frame of 2^63": b"\x80\x04\x95" + struct.pack("<Q", 2**63 - 1) + b"N.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_do_not_go_off(name: str) -> None:
    """In a process of its own with 1.5 GiB: an explosion is its end, not ours."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 * 2**29,) * 2)\n"
        "from linkwise.trace.readers import unpickle\n"
        "try: print('value:', unpickle.loads(sys.stdin.buffer.read(), where='dump'))\n"
        "except unpickle.InputError as error: print('refused:', error)\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], input=BOMBS[name], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    harmless = name.startswith(("memo", "frame"))  # a number like others where the memo is a dict
    assert done.stdout.startswith(b"value: None" if harmless else b"refused:")
    assert time.monotonic() - began < 30


def test_a_list_within_itself_is_a_value_like_others() -> None:
    for data in (b"\x80\x02]q\x00h\x00a.", b"\x80\x04]\x94h\x00a."):
        value = loads(data)
        assert value[0] is value


def test_too_long() -> None:
    with pytest.raises(InputError, match="expected at most"):
        loads(b"\x80\x02" + b"N0" * (17 * 2**20) + b".")
    with pytest.raises(InputError, match="that PyTorch did not write"):
        loads(b"\x80\x04" + b"N0" * (5 * 2**20) + b".")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for head in (b"", b"\x80\x02", b"\x80\x04"):
        try:
            loads(head + data)
        except InputError as error:
            assert error.where == "dump"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_dumps(data: st.DataObject) -> None:
    for whole in (torch_pickle.dumps(DUMP), pickle.dumps(DUMP, 4)):
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[:at] + data.draw(st.binary(max_size=6)) + whole[at + data.draw(st.integers(0, 6)) :]
        try:
            loads(changed)
        except InputError as error:
            assert error.where == "dump"
