"""Several ranks: the same rows as one rank and transformers, and exactly the calls the plan lists."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file
from tests.dist.ranks import started
from tests.runtime.attention.cases import CASES, Case, code
from tests.runtime.attention.layers import HIDDEN, REQUESTS, STEPS, batches, farthest, make, run

from linkwise.core.layout import Layout, coordinates
from linkwise.runtime.arch import Arch, Heads
from linkwise.runtime.steps import Row


class Ran(NamedTuple):
    """What the ranks left: rows by case, request and position, and calls by case and step."""

    rows: list[dict[str, Any]]
    calls: list[dict[str, list[list[dict[str, Any]]]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("cases")
    for family in {case.family for case in CASES.values()}:
        model = make(family)
        (folder / f"{family}.json").write_text(json.dumps(model.config.to_dict()))
        save_file(
            {name: tensor.contiguous() for name, tensor in model.tensors.items()}, folder / f"{family}.safetensors"
        )
    with started(folder, code(folder), 4) as processes:
        for process in processes:
            said = process.communicate(timeout=400)[0]
            assert process.returncode == 0, said
    yield Ran(
        [load_file(folder / f"rank{rank}.safetensors") for rank in range(4)],
        [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)],
    )


def _rows(ran: Ran, case: Case, rank: int) -> dict[tuple[int, int], Any]:
    split = [(key.split("|"), row) for key, row in ran.rows[rank].items()]
    return {(int(request), int(position)): row for (name, request, position), row in split if name == case.name}


@pytest.mark.parametrize("name", CASES)
def test_ranks_together_equal_one_rank_and_transformers(ran: Ran, name: str) -> None:
    case, model = CASES[name], make(CASES[name].family)
    one = run(model.alone(), batches(STEPS))
    held: set[tuple[int, int]] = set()
    for rank in range(case.layout.size):
        rows = _rows(ran, case, rank)
        held |= set(rows)
        assert farthest(rows, model) < 1e-5
        assert max(float((row - one[at]).abs().max()) for at, row in rows.items()) < 1e-5
    assert held == {
        (number, position) for number, request in REQUESTS.items() for position in range(len(request.tokens))
    }


Call = tuple[str, str, tuple[int, ...], int, str]  # kind, axis, members, S_bytes, dtype


def _up(value: int, parts: int) -> int:
    return -(-value // parts)


def _expected(
    arch: Arch, layout: Layout, rank: int, batch: tuple[Row, ...], members: dict[str, tuple[int, ...]]
) -> list[Call]:
    """The calls of one layer, counted by hand from the batch."""
    tp, cp, dcp, w = layout.tp, layout.cp, layout.dcp, 4
    at = arch.attention
    if isinstance(at, Heads):
        entry, width, value = 2 * max(1, at.kv_heads // (tp // dcp)) * at.head_dim * w, at.head_dim, at.head_dim
    else:
        entry = (at.kv_rank + at.rope_dim) * w
        width, value = at.kv_rank + at.rope_dim, at.kv_rank
    heads = at.heads // tp
    decode = sum(not row.prompt for row in batch)
    prompts = [row for row in batch if row.prompt]
    calls: list[Call] = []

    def call(kind: str, axis: str, size: int, dtype: str = "float32") -> None:
        calls.append((kind, axis, members[axis], size, dtype))

    if decode and dcp > 1:
        call("all_gather", "dcp", decode * heads * dcp * width * w)
        call("all_gather", "dcp", decode * heads * dcp * dcp * 4)
        call("reduce_scatter", "dcp", decode * heads * dcp * value * w)
    if decode and cp > 1:
        call("all_gather", "cp", decode * heads * cp * 4)
        call("all_reduce", "cp", decode * heads * value * w)
    earlier = sum(_up(_up(row.start, cp), dcp) * dcp for row in prompts if row.start)
    if earlier and dcp > 1:
        call("all_gather", "dcp", earlier * entry)
    if prompts:
        for _ in range(cp - 1):
            size = sum(_up(row.end, cp) for row in prompts) * entry
            call("send", "cp", size)
            call("recv", "cp", size)
    rows = decode + sum(_up(len(row.tokens), cp) for row in prompts)
    if tp > 1:
        call("all_reduce", "tp", rows * HIDDEN * w)
    return calls


@pytest.mark.parametrize("name", CASES)
def test_calls_are_those_of_the_plan(ran: Ran, name: str) -> None:
    case, arch = CASES[name], make(CASES[name].family).arch
    layout = case.layout
    for rank in range(layout.size):
        place = coordinates(layout, rank)
        first = rank - place["tp"]
        group = first + place["tp"] // layout.dcp * layout.dcp
        members = {
            "tp": tuple(range(first, first + layout.tp)),
            "dcp": tuple(range(group, group + layout.dcp)),
            "cp": tuple(c * layout.tp + place["tp"] for c in range(layout.cp)),
        }
        for batch, seen in zip(batches(STEPS, filler=True), ran.calls[rank][name], strict=True):
            found = [(c["kind"], c["group"], tuple(c["members"]), c["S_bytes"], c["dtype"]) for c in seen]
            assert found == _expected(arch, layout, rank, batch, members)
            for c in seen:
                ring = members["cp"]
                if c["kind"] in {"send", "recv"}:
                    step = 1 if c["kind"] == "send" else -1
                    assert c["peer"] == ring[(ring.index(rank) + step) % len(ring)]
