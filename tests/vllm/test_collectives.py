"""What vLLM's workers hand to their process groups in a step is the plan's op list: kind, count, bytes. And weights."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.vllm import models
from tests.vllm.observed import NEW_TOKENS, WHERE

import linkwise
from linkwise.answers import Plan
from linkwise.core.layout import Layout
from linkwise.core.quantity import value_of
from linkwise.engine import registry as engines
from linkwise.engine.base import Options
from linkwise.model.read import load
from linkwise.plan.batch import Batch, decode_batch, prefill_batch
from linkwise.plan.step import step_ops

PROMPT = 60
# Some of the CPU build's own kernels end with an illegal instruction; its pipeline stages want a model that was traced.
PLAIN = {"mode": 0, "custom_ops": ["none"]}
TRACED = {"mode": 2, "backend": "eager", "custom_ops": ["none"]}
CASES = {
    "dense tp 2": (models.TINY, Layout(tp=2)),
    "dense tp 3": (models.TINY_OF_SIX, Layout(tp=3)),
    "dense pp 2": (models.TINY, Layout(pp=2)),
    "MoE tp 2": (models.TINY_MOE, Layout(tp=2)),
    "MLA tp 2": (models.TINY_MLA, Layout(tp=2)),
}

Calls = Counter[tuple[str, int]]


def observed(folder: Path, weights: Path, layout: Layout) -> dict[int, list[dict[str, Any]]]:
    """Notes of every rank."""
    folder.mkdir()
    words = {
        "tensor_parallel_size": layout.tp, "pipeline_parallel_size": layout.pp,
        "compilation_config": TRACED if layout.pp > 1 else PLAIN,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.vllm.observed", str(weights), str(folder), str(PROMPT), json.dumps(words)]
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        command, check=False, cwd=root, env=os.environ | {"PYTHONPATH": str(root), WHERE: str(folder)}, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    notes = {int(p.stem): [json.loads(line) for line in p.read_text().splitlines()] for p in folder.glob("*.jsonl")}
    assert len(notes) == layout.size, ran.stdout[-4000:]
    return notes


def steps(notes: list[dict[str, Any]]) -> list[tuple[int, Calls]]:
    """Tokens and calls of each step that computes something. What is under 1 kB between stages is metadata."""
    found: list[tuple[int, Calls]] = []
    for note in notes:
        if note["kind"] == "step":
            found.append((note["tokens"], Counter()))
        elif note["kind"] == "send_tensor_dict":
            found[-1][1].update(("send_recv", size) for size in note["sizes"])
        elif note["kind"] != "weights":
            whole = note["sizes"][0] * (note["group"] if note["kind"] == "all_gather" else 1)
            found[-1][1][note["kind"], whole] += 1
    return [(tokens, calls) for tokens, calls in found if tokens]


def planned(model: Any, layout: Layout, batch: Batch, stage: int) -> Calls:
    calls: Calls = Counter()
    for op in step_ops(model, layout, engines.get("vllm"), batch, Options()):
        if op.stage == stage:
            calls[op.kind, int(value_of(op.S_bytes))] += op.repeat
    return calls


@pytest.mark.parametrize("name", CASES)
def test_collectives_and_weights(tmp_path: Path, name: str) -> None:
    config, layout = CASES[name]
    weights = models.tiny(tmp_path / "weights", config)
    model = load(str(weights))
    notes = observed(tmp_path / "notes", weights, layout)
    batches = [prefill_batch(PROMPT), *(decode_batch(1, PROMPT + n) for n in range(1, NEW_TOKENS))]
    for rank, said in notes.items():
        seen = steps(said)
        assert [tokens for tokens, _ in seen] == [PROMPT, *[1] * (NEW_TOKENS - 1)]
        for (_, calls), batch in zip(seen, batches, strict=True):
            assert calls == planned(model, layout, batch, rank // layout.tp)
    found = linkwise.plan(
        on=f"1x{layout.size}xh100-sxm", engine="vllm@0.32", isl=16, osl=16, concurrency=1,
        from_command=f"vllm serve {weights} -tp {layout.tp} -pp {layout.pp} --max-model-len 512",
    )  # fmt: skip
    assert isinstance(found, Plan)
    held = {rank: ledger.bytes_of("weights") for ledger in found.ledger.ranks for rank in ledger.ranks}
    logged = {rank: note["sizes"][0] for rank, said in notes.items() for note in said if note["kind"] == "weights"}
    print(f"\n{name}: weights {logged}, ledger {held}")
    # Also the bias of DeepSeek's router, which vLLM keeps in float32 where these random checkpoints have bfloat16.
    assert logged == held
    print(f"{name}: {dict(steps(notes[0])[0][1])} of a prefill step of {PROMPT} tokens")
