"""The simulator's tables against the plan's own step: the same figure, looked up or asked for."""

import numpy as np
import pytest

from linkwise import api
from linkwise.engine import registry
from linkwise.plan.batch import Batch, Part, decode_batch, mixed_batch, prefill_batch
from linkwise.plan.time import group_seconds
from linkwise.simulate.cost import tables_of
from linkwise.simulate.served import served


def looked_up(tables, rows, mean, chunk, before, *, sampled):
    """Sum over stages of what the loop computes (simulate/schedule.py lane_seconds), in numpy."""
    total = 0.0
    tokens = rows + -(-chunk // tables.cp)
    grid = np.arange(tables.read.shape[1]) * tables.cell
    for stage in range(tables.stages):

        def at(table, x, stage=stage):
            return np.interp(x, grid, table[stage])

        read = rows * at(tables.read, mean + 1) + (at(tables.read, before + chunk) if chunk else 0)
        flop = rows * at(tables.flop, mean + 1) + chunk * at(tables.flop, before + (chunk + 1) / 2)
        work, comm = (tables.work, tables.comm) if rows else (tables.prompt_work, tables.prompt_comm)
        cache = read + flop if tables.kv_adds else max(read, flop)
        compute = work[stage, tokens] + tables.experts[stage, tokens] + tables.head[stage, sampled] + cache
        compute += tables.overhead[stage] + (tables.prompt[stage] + chunk * tables.prompt_token[stage] if chunk else 0)
        total += max(compute, tables.floor[stage]) + comm[stage, tokens] + tables.logits[stage, sampled]
    return total


PLANS = [
    ("llama-3.1-8b", "1xh100-sxm", {}),
    ("llama-3.3-70b", "4xh100-sxm", {"tp": 4}),
    ("llama-3.3-70b", "2x4xh100-sxm", {"tp": 4, "pp": 2}),
    ("llama-3.3-70b", "4xh100-sxm", {"tp": 4, "eager": True}),
    ("deepseek-v3", "2x8xh200-sxm", {"dp_attn": 16, "ep": 16, "tp": 1}),
    ("deepseek-v3", "8xh200-sxm", {"engine": "sglang", "dp_attn": 8, "ep": 8, "tp": 1}),
    ("deepseek-v3", "8xh200-sxm", {"engine": "sglang", "dp_attn": 8, "ep": 8, "tp": 1, "dense_whole": True}),
]


@pytest.mark.parametrize(("model", "on", "settings"), PLANS)
def test_a_step_looked_up_is_the_plan_s_step(model: str, on: str, settings: dict[str, int]) -> None:
    plan = api.plan(model, on, isl=2000, osl=200, **settings)
    assert plan.feasible
    engine = registry.get(plan.engine, plan.engine_version)
    tables = tables_of(served(plan), 8192, budget=4096, sampled=512)

    def asked(batch: Batch) -> float:
        found = group_seconds(plan.model, plan.layout, engine, plan.cluster, batch, plan.options)
        return float(found.token)

    # 1e-11: what is left of sums in another order, and of rounding each table to 40 bits.
    for rows, mean in ((1, 100), (64, 2100), (300, 8000)):
        expected = asked(decode_batch(rows, mean))
        assert looked_up(tables, rows, mean, 0, 0, sampled=rows) == pytest.approx(expected, rel=1e-11)
    for chunk, before in ((512, 0), (4096, 4000)):
        expected = asked(prefill_batch(chunk, before))
        assert looked_up(tables, 0, 0, chunk, before, sampled=1) == pytest.approx(expected, rel=1e-11)
    expected = asked(mixed_batch(1000, 64, 2100, cached=500))
    assert looked_up(tables, 64, 2100, 1000, 500, sampled=65) == pytest.approx(expected, rel=1e-11)


def test_a_window_is_read_to_a_cell_of_the_grid() -> None:
    plan = api.plan("gpt-oss-20b", "1xh100-sxm", isl=2000, osl=200)
    engine = registry.get(plan.engine, plan.engine_version)
    tables = tables_of(served(plan), 16384, budget=1024, sampled=64)
    for mean in (50, 127, 128, 129, 5000):
        batch = Batch("decode", (Part(32, 1, mean),), 32)
        expected = float(group_seconds(plan.model, plan.layout, engine, plan.cluster, batch, plan.options).token)
        # The read of a window bends once: between two points of the grid, 5 tokens apart, it is a line.
        assert looked_up(tables, 32, mean, 0, 0, sampled=32) == pytest.approx(expected, rel=1e-3)
