"""Fabric files cut, mangled and huge: a Fabric or one InputError, and quickly."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.readers import test_ibnet, test_kubernetes, test_slurm, test_topograph

from linkwise.cluster.combine import combine
from linkwise.cluster.readers import parse, reader
from linkwise.cluster.topology import Fabric
from linkwise.core.errors import InputError

GOOD = [
    test_ibnet.TWO_RAILS.replace("[65]", "[64]"),
    test_slurm.TREE,
    test_slurm.BLOCKS,
    test_slurm.YAML,
    test_topograph.MODEL,
    test_topograph.graph(),
    *test_kubernetes.FORMS.values(),
]
PIECES = st.sampled_from(["", "0", "-1", "[1-99999999]", '"', "{", "]", ":", "\x00", "\n", "s1", "n1", "&a", "*a", "é"])


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(GOOD), st.data())
def test_mangled(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 40)))
    whole = data.draw(st.booleans())
    changed = text[:at] + data.draw(PIECES) + (text[end:] if whole else "")
    try:
        found = parse(changed, where="t")
    except InputError as error:
        assert str(error).count("\n") == 0
        return
    assert isinstance(found, Fabric)
    assert set(found.domains) == set(dict(found.domains))
    ends = {end for port in found.ports for end in (port.a, port.b)}
    assert ends <= {*found.hosts, *found.switches}
    try:
        assert combine([], fabric=found, accelerator="h100-sxm").nodes == len(found.hosts)
    except InputError:
        return


LONG = 400_000
HUGE = {
    "a word": ("kubernetes", "nvidia.com/gpu.clique" + "a" * LONG),
    "blank lines": ("kubernetes", "nvidia.com/gpu.clique" + "\n" * LONG),
    "slashes": ("kubernetes", "nvidia.com/gpu.clique\n" + "/" * LONG),
    "equals signs": ("kubernetes", "n1 nvidia.com/gpu.clique" + "=" * LONG),
    "spaces": ("slurm", "SwitchName=a" + " " * LONG + "x"),
    "commas": ("slurm", "SwitchName=a Nodes=" + "," * LONG),
    "brackets": ("slurm", "SwitchName=a Nodes=" + "[" * LONG),
    "nested YAML": ("slurm", "- topology: " + "[" * 5000),
    "a chain of switches": (
        "slurm",
        "\n".join(f"SwitchName=s{n} Switches=s{n + 1}" for n in range(20_000)) + "\nSwitchName=s20000 Nodes=n1",
    ),
    "a ring of switches": ("slurm", "\n".join(f"SwitchName=s{n} Switches=s{(n + 1) % 20_000}" for n in range(20_000))),
    "many ranges": ("topograph", "switches: {a: {}}\nblocks:\n- switch: a\n  nodes: [" + "n1," * 100_000 + "]"),
    "ports": ("ibnet", 'Switch 255 "S"\n' + "[" * LONG),
    "quotes": ("ibnet", 'Switch 255 "S"\n[1] ' + '"' * LONG),
    "a comment": ("ibnet", 'Switch 255 "S" # "' + "x" * LONG),
    "nested JSON": ("topograph", '{"compounded_nodes": ' + "[" * LONG),
}


@pytest.mark.parametrize("name", HUGE)
def test_huge(name: str) -> None:
    """Four seconds: reading takes a tenth of one, a quadratic step over so many characters takes minutes."""
    which, text = HUGE[name]
    began = time.process_time()
    try:
        found = reader(which).read(text, where="t")
        assert isinstance(found, Fabric)
    except InputError as error:
        assert len(str(error)) < 1000
    assert time.process_time() - began < 4
