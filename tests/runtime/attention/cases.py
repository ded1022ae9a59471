"""Layouts of up to four ranks over gloo: what the ranks run. They do not import transformers, which takes long."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from tests.runtime.attention.layers import STEPS, Layer, batches, run

from linkwise.core.layout import Layout
from linkwise.dist.groups import Session, axis_groups, create
from linkwise.dist.observer import observe
from linkwise.runtime.arch import read_arch
from linkwise.runtime.comm import Comm


class Case(NamedTuple):
    """A family's layer under a layout."""

    family: str
    layout: Layout

    @property
    def name(self) -> str:
        return f"{self.family} {self.layout}"


CASES = {
    case.name: case
    for case in [
        Case("llama-bias", Layout(tp=2)),
        Case("llama", Layout(tp=4)),  # 2 KV heads: each is on two ranks
        Case("llama", Layout(cp=2)),
        Case("qwen2", Layout(cp=2, tp=2)),
        Case("qwen3", Layout(cp=4)),
        Case("mixtral", Layout(cp=2)),
        Case("llama", Layout(tp=4, dcp=2)),
        Case("llama-mqa", Layout(tp=4, dcp=4)),
        Case("llama-mqa", Layout(cp=2, tp=2, dcp=2)),
        Case("deepseek_v2", Layout(tp=2)),
        Case("deepseek_v3", Layout(cp=2)),
        Case("deepseek_v2", Layout(cp=4)),
        Case("deepseek_v3", Layout(tp=2, dcp=2)),
        Case("deepseek_v2", Layout(tp=4, dcp=2)),
        Case("deepseek_v3-halves", Layout(tp=4, dcp=4)),
        Case("deepseek_v3", Layout(cp=2, tp=2, dcp=2)),
    ]
}


def work(session: Session, folder: Path) -> None:
    """One rank: every case, its rows and the calls of every step saved in the folder."""
    torch.set_num_threads(1)
    rank = session.start.rank
    found: dict[str, torch.Tensor] = {}
    calls: dict[str, list[list[Any]]] = {}
    for case in CASES.values():
        teams = create(session, axis_groups(case.layout, axes=("tp", "cp", "dcp")))
        if rank >= case.layout.size:
            continue
        fields = json.loads((folder / f"{case.family}.json").read_text())
        tensors = load_file(folder / f"{case.family}.safetensors")
        arch = read_arch(fields, where=case.family, dtype="float32")
        comm = Comm({named.axis: team for named, team in teams.items()})
        layer = Layer(arch, tensors, case.layout, rank, comm)
        calls[case.name] = []
        for batch in batches(STEPS, filler=True):
            with observe() as seen:
                rows = run(layer, [batch])
            calls[case.name].append([one._asdict() for one in seen])
            found |= {f"{case.name}|{request}|{position}": row for (request, position), row in rows.items()}
        assert comm.calls == sum(map(len, calls[case.name]))
    save_file(found, folder / f"rank{rank}.safetensors")
    (folder / f"rank{rank}.json").write_text(json.dumps(calls))


CODE = """
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.runtime.attention.cases import work
run(lambda session: work(session, Path({folder!r})), timeout_s=200.0)
"""


def code(folder: Path) -> str:
    """What a rank process runs, behind the prelude of tests/dist/ranks.py."""
    root = next(path for path in map(Path, sys.path) if (path / "tests" / "dist" / "ranks.py").is_file())
    return CODE.format(root=str(root.resolve()), folder=str(folder))
