"""The numerical oracle: every family under many layouts on up to four ranks, against transformers in float32.

Run as a script this file is one of the four ranks; `table` makes the models, starts the ranks once and collects what
they found. Steps are made here by hand, so that only the ranks' own code is under test: prompts in chunks, requests of
unequal length that start at different steps, decoding beside prefill, filler rows where attention replicas differ.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.runtime.families import CHUNKS, NEW_TOKENS, made
from tests.runtime.observed import Watch

from linkwise.core.layout import Layout
from linkwise.runtime.steps import FILLER, SCRATCH, Row, Step, batch_rows, sampling_cp
from linkwise.supervise.types import Sampling

RANKS = 4
BLOCK_TOKENS = 4  # small, so that requests take several blocks
BLOCKS_EACH = 8  # a request's, in the order 3, 2, 1, ...: no request's blocks lie in a row
TOLERANCE = 1e-4

DENSE = {
    "tp1": {}, "tp2": {"tp": 2}, "tp4": {"tp": 4}, "pp2": {"pp": 2, "layers": [3, 1]},
    "pp3 (1, 2, 1)": {"pp": 3, "layers": [1, 2, 1]}, "pp2 x tp2": {"pp": 2, "tp": 2}, "cp2": {"cp": 2},
    "cp4": {"cp": 4}, "cp2 x tp2": {"cp": 2, "tp": 2}, "tp4, dcp2": {"tp": 4, "dcp": 2},
    "tp2, sharded rows": {"tp": 2, "sequence_sharded": True},
    "pp2 x tp2, sharded rows": {"pp": 2, "tp": 2, "sequence_sharded": True}, "pp2 x cp2": {"pp": 2, "cp": 2},
}  # fmt: skip
EXPERTS = {
    "tp1": {}, "tp2": {"tp": 2}, "pp2 x tp2": {"pp": 2, "tp": 2}, "tp2, ep2": {"tp": 2, "ep": 2},
    "tp4, ep4": {"tp": 4, "ep": 4}, "tp4, ep2": {"tp": 4, "ep": 2}, "dp_attn2": {"dp_attn": 2},
    "dp_attn2, ep2": {"dp_attn": 2, "ep": 2}, "dp_attn2 x tp2": {"dp_attn": 2, "tp": 2},
    "dp_attn2 x tp2, ep4": {"dp_attn": 2, "tp": 2, "ep": 4}, "dp_attn2 x tp2, ep2": {"dp_attn": 2, "tp": 2, "ep": 2},
    "dp_attn4, ep4": {"dp_attn": 4, "ep": 4}, "tp2, ep2, sharded rows": {"tp": 2, "ep": 2, "sequence_sharded": True},
    "pp2 x dp_attn2, ep2": {"pp": 2, "dp_attn": 2, "ep": 2}, "cp2": {"cp": 2}, "cp2, ep2": {"cp": 2, "ep": 2},
    "cp2 x tp2, ep4": {"cp": 2, "tp": 2, "ep": 4}, "cp2 x tp2, ep2": {"cp": 2, "tp": 2, "ep": 2},
    "cp2 x dp_attn2, ep4": {"cp": 2, "dp_attn": 2, "ep": 4},
}  # fmt: skip
LATENT = {
    "tp2, dcp2": {"tp": 2, "dcp": 2}, "tp4, dcp4, ep4": {"tp": 4, "dcp": 4, "ep": 4}, "cp4, ep4": {"cp": 4, "ep": 4},
    "cp2 x tp2, dcp2": {"cp": 2, "tp": 2, "dcp": 2},
    "dp_attn2 x tp2, dcp2, ep4": {"dp_attn": 2, "tp": 2, "dcp": 2, "ep": 4},
}  # fmt: skip
THREE = {"tp3": {"tp": 3}, "tp3, sharded rows": {"tp": 3, "sequence_sharded": True}}
_ALL = {
    "llama": DENSE, "llama of 6 heads": {**THREE, "tp1": DENSE["tp1"], "pp2 x cp2": DENSE["pp2 x cp2"]}, "qwen2": DENSE,
    "qwen3": DENSE, "mixtral": EXPERTS,
    "mixtral, window 10": {name: EXPERTS[name] for name in ("tp1", "tp2", "dp_attn2, ep2", "pp2 x tp2")},
    "qwen3_moe": {**EXPERTS, "tp4, dcp2, ep4": {"tp": 4, "dcp": 2, "ep": 4}},
    "deepseek_v2": {**EXPERTS, **LATENT}, "deepseek_v2, grouped": {**EXPERTS, **LATENT},
    "deepseek_v3": {**EXPERTS, **LATENT},
}  # fmt: skip


class Case(NamedTuple):
    """A family under a layout. layers: of each stage; None = as even as can be."""

    family: str
    name: str
    layout: Layout
    layers: tuple[int, ...] | None


class Result(NamedTuple):
    """difference: largest absolute one of any logit of any step; tokens: greedy tokens that were compared.

    calls: how many the plan lists for all ranks and steps; unplanned: the first that was not made so, or memory that is
    not as the ledger has it, in words.
    """

    family: str
    name: str
    difference: float
    tokens: int
    equal: bool
    error: str = ""
    calls: int = 0
    unplanned: str = ""


def _case(family: str, name: str, fields: dict[str, Any]) -> Case:
    degrees = {key: value for key, value in fields.items() if key != "layers"}
    return Case(family, name, Layout(**degrees), tuple(fields["layers"]) if "layers" in fields else None)


CASES = [_case(family, name, fields) for family, layouts in _ALL.items() for name, fields in layouts.items()]


def _some(every: int = 3) -> list[Case]:
    """A third of the cases: another third of the layouts for each family, and every layout with some family."""
    families = list(_ALL)
    place = {(case.family, case.name): list(_ALL[case.family]).index(case.name) for case in CASES}
    drawn = {case for case in CASES if (place[case.family, case.name] - families.index(case.family)) % every == 0}
    met = {case.name for case in drawn}
    for case in CASES:
        if case.name not in met:
            drawn.add(case)
            met.add(case.name)
    return [case for case in CASES if case in drawn]


# What `make test` runs; the benchmark runs all.
TESTED = _some()


def table(cases: list[Case] = CASES, *, timeout_s: float = 900.0, keep: Path | None = None) -> list[Result]:
    """Every case's result, in their order. keep: a folder where models are kept, and found the next time.

    Raises RuntimeError when a rank fails or hangs.
    """
    from linkwise.dist.launch import _environment, _serving

    with tempfile.TemporaryDirectory() as name, _serving() as port:
        folder = keep or Path(name)
        for family in dict.fromkeys(case.family for case in cases):
            if not (folder / family / "reference.npy").exists():
                (folder / family).mkdir()
                made(family, folder / family)
        wanted = [CASES.index(case) for case in cases]
        (folder / "cases.json").write_text(json.dumps(wanted))
        environments = [_environment(rank, RANKS, port) | {"OMP_NUM_THREADS": "1"} for rank in range(RANKS)]
        with open(folder / "said", "w+") as said:
            ranks = [
                subprocess.Popen([sys.executable, __file__, str(folder)], env=environment, stdout=said, stderr=said)
                for environment in environments
            ]
            try:
                codes = [rank.wait(timeout=timeout_s) for rank in ranks]
            except subprocess.TimeoutExpired:
                codes = [-1]
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
            said.seek(0)
            if any(codes):
                raise RuntimeError(said.read()[-8000:])
        return [Result(*fields) for fields in json.loads((folder / "results.json").read_text())]


class Asked(NamedTuple):
    """One request of the plan of steps. blocks: on its attention replica."""

    number: int
    replica: int
    prompt: list[int]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]


def asked(prompts: list[list[int]], layout: Layout) -> list[Asked]:
    """The requests, dealt out to attention replicas in turn."""
    found = []
    for number, prompt in enumerate(prompts):
        first = 1 + number * BLOCKS_EACH
        blocks = tuple(reversed(range(first, first + BLOCKS_EACH)))
        found.append(Asked(number, number % layout.dp_attn, prompt, CHUNKS[number], blocks))
    return found


def steps(requests: list[Asked], layout: Layout, drawn: list[list[int]]) -> Iterator[Step]:
    """Steps until every request has its tokens; `drawn` is filled by the caller between them.

    Request i starts at step i // 2, one chunk a step.
    """
    done = [0] * len(requests)  # tokens of each whose keys and values are kept
    for number in range(100):
        decode: list[list[Row]] = [[] for _ in range(layout.dp_attn)]
        prompts: list[list[Row]] = [[] for _ in range(layout.dp_attn)]
        for one in requests:
            start, new = done[one.number], drawn[one.number]
            if len(new) == NEW_TOKENS or number < one.number // 2:
                continue
            if new:
                decode[one.replica].append(Row(one.number, start, (new[-1],), False, Sampling(), one.blocks))
                done[one.number] += 1
                continue
            ends = [sum(one.chunks[: i + 1]) for i in range(len(one.chunks))]
            end = next(e for e in ends if e > start)
            how = Sampling() if end == len(one.prompt) else None
            prompts[one.replica].append(Row(one.number, start, tuple(one.prompt[start:end]), True, how, one.blocks))
            done[one.number] = end
        batches = [(*first, *then) for first, then in zip(decode, prompts, strict=True)]
        longest = max(batch_rows(batch, layout.cp) for batch in batches)
        if not longest:
            return
        yield Step(number, tuple(_filled(batch, longest, layout.cp) for batch in batches))


def _filled(batch: tuple[Row, ...], rows: int, cp: int) -> tuple[Row, ...]:
    missing = rows - batch_rows(batch, cp)
    if not missing:
        return batch
    return (*batch, Row(FILLER, 0, (0,) * (missing * cp), True, None, (SCRATCH,)))


def main(folder: Path) -> None:
    """One rank."""
    import torch

    from linkwise.dist.groups import axis_groups, create, join
    from linkwise.dist.launch import from_environment

    start = from_environment(os.environ)
    assert start is not None
    torch.set_num_threads(1)
    wanted = [CASES[number] for number in json.loads((folder / "cases.json").read_text())]
    results: dict[Case, Result] = {}
    with join(start, backend="gloo", timeout_s=60.0) as session:
        for layout in dict.fromkeys(case.layout for case in wanted):
            teams = create(session, axis_groups(layout))
            by_axis = {named.axis: team for named, team in teams.items()}
            for case in wanted:
                if case.layout == layout:
                    session.watch.at(f"{case.family}, {case.name}")
                    began = time.monotonic()
                    results[case] = _one(case, session, by_axis, folder / case.family)
                    if start.rank == 0 and os.environ.get("ORACLE_SHOWS"):
                        print(*results[case], f"{time.monotonic() - began:.2f} s", flush=True)
    if start.rank == 0:
        (folder / "results.json").write_text(json.dumps([results[case] for case in wanted]))


def _one(case: Case, session: Any, teams: dict[str, Any], folder: Path) -> Result:
    """One case; every rank knows the result."""
    import numpy as np
    import torch
    import torch.distributed as dist

    from linkwise.runtime.arch import read_arch
    from linkwise.runtime.comm import Comm
    from linkwise.runtime.stage import Stage
    from linkwise.runtime.weights.source import open_source

    reference = json.loads((folder / "reference.json").read_text())
    logits = torch.from_numpy(np.load(folder / "reference.npy"))
    layout, rank = case.layout, session.start.rank
    requests = asked(reference["prompts"], layout)
    stage = None
    if rank < layout.size:
        source = open_source(folder)
        stage = Stage(
            read_arch(source.fields, where="config.json", dtype=source.dtype), layout, rank, Comm(teams), source,
            kv_blocks=1 + BLOCKS_EACH * len(requests), block_tokens=BLOCK_TOKENS, layers=case.layers,
        )  # fmt: skip
    drawn: list[list[int]] = [[] for _ in requests]
    watch = Watch(folder, layout, case.layers, stage, session)
    worst, equal = 0.0, True
    for step in steps(requests, layout, drawn):
        found = torch.zeros((2, len(requests)), dtype=torch.float64)
        with watch.step(step):
            if stage is not None:
                _run(stage, step, requests, drawn, logits, found)
        dist.all_reduce(found)
        for number, (token, difference) in enumerate(found.T.tolist()):
            if token:
                wanted = reference["tokens"][number][len(drawn[number])]
                # After a wrong token the texts part, and logits cannot be compared any more.
                worst = max(worst, float("inf") if math.isnan(difference) else difference) if equal else worst
                equal = equal and token - 1 == wanted
                drawn[number].append(int(token) - 1)
    if stage is not None:
        stage.drain()
    lines, unplanned = watch.result(f"{case.family}, {case.name}")
    calls = sum(line.planned_calls for line in lines)
    return Result(case.family, case.name, worst, sum(map(len, drawn)), equal, "", calls, unplanned)


def _run(stage: Any, step: Step, requests: list[Asked], drawn: list[list[int]], logits: Any, found: Any) -> None:
    """This rank's part of a step; found [2, requests] gets token + 1 and the difference of those it draws."""
    batch = step.batches[stage.place["dp_attn"]]
    view = stage._view(batch)
    ours = stage._forward(view)
    if ours is None:
        return
    assert ours.shape == (len(view.sampled), logits.shape[-1])
    # All tensor ranks have the logits, and all must have the same: the last one's are compared, the first one draws.
    for row, one in enumerate(view.sampled):
        number = batch[one.row].request
        draws = stage.place["cp"] == sampling_cp(batch[one.row], stage.layout.cp)
        if draws and stage.place["tp"] == 0:
            found[0, number] = ours[row].argmax() + 1
        if draws and stage.place["tp"] == stage.layout.tp - 1:
            found[1, number] = (ours[row] - logits[number, len(drawn[number])]).abs().max()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
