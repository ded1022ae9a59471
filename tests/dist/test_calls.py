"""Every kind of call moves what it says: S as counted by hand, seen by the observer, on three ranks."""

from pathlib import Path

import pytest
from tests.dist.ranks import last_json, outputs

pytest.importorskip("torch")

CODE = """
from linkwise.core.errors import InputError
from linkwise.dist.calls import KINDS, prepare
from linkwise.dist.observer import observe

def body(session):
    (team,) = create(session, [Named("ep", (0, 1, 2))]).values()
    found = {}
    for kind in KINDS:
        call = prepare(session, team, kind, 100, "bfloat16")
        with observe() as seen:
            call.run()
        found[kind] = [call.elements, call.S_bytes, call.dtype, sorted({(s.kind, s.S_bytes) for s in seen})]
    for name, back in (("there", 1), ("back", -1)):
        call = prepare(session, team, "all_to_all", 120, "float32", (back * 80, back * 20, back * 20))
        with observe() as seen:
            call.run()
        found[name] = [call.elements, seen[0].S_bytes]
    found["fp8"] = prepare(session, team, "all_to_all", 99, "float8_e4m3")[1:]
    refused = []
    for kind, size, dtype in (("shout", 8, "float32"), ("all_reduce", 0, "float32"), ("all_reduce", 8, "fp7"),
                              ("all_reduce", 8, "float8_e4m3")):
        try:
            prepare(session, team, kind, size, dtype)
        except InputError as error:
            refused.append(str(error))
    print(json.dumps([found, refused]))
run(body)
"""


def test_every_kind_moves_what_it_says(tmp_path: Path) -> None:
    for rank, text in enumerate(outputs(tmp_path, CODE, 3)):
        found, refused = last_json(text)
        # 100 bytes are 50 elements of two bytes; where each of three ranks has a share, 17 elements each.
        for kind in ("all_reduce", "broadcast"):
            assert found[kind] == [50, 100, "bfloat16", [[kind, 100]]]
        assert found["send_recv"] == [50, 100, "bfloat16", [["recv", 100], ["send", 100]]], "a ring of three"
        for kind in ("all_gather", "reduce_scatter", "all_to_all", "gather"):
            assert found[kind] == [51, 102, "bfloat16", [[kind, 102]]]
        # 80, 20 and 20 bytes to members 0, 1 and 2; back from them: every rank returns its own share three times.
        assert found["there"] == [30, 120]
        assert found["back"] == ([60, 240] if rank == 0 else [15, 60])
        assert found["fp8"] == [99, 99, "uint8"], "what is only moved travels as bytes"
        assert [words.split(":")[0] for words in refused] == ["collective", "all_reduce", "all_reduce", "all_reduce"]
