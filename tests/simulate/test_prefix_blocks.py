"""What of a prompt is found cached: whole blocks of the engine, as far as a trace says what its hashes cover.

By hand, after vLLM's rule (v1/core/kv_cache_manager.py, get_computed_blocks): all tokens but one at most,
in whole blocks. TensorRT-LLM (batch_manager/kvCacheManager.cpp, addSequence and findMatchingBlock) takes what is shared
of a block as well: all tokens but one at most.
"""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from msgspec.structs import replace

from linkwise import api
from linkwise.core.errors import InputError
from linkwise.plan.types import Plan
from linkwise.simulate.of_plan import rules_of
from linkwise.simulate.rules import Pool, Rules, Run
from linkwise.simulate.run import simulate
from linkwise.simulate.tables import constant
from linkwise.workload import traces
from linkwise.workload.requests import Requests, requests


def load(*prompts: tuple[int, list[int]]) -> Requests:
    """Prompts one after the other, a minute apart, with hashes of 512 tokens."""
    number = len(prompts)
    return requests(
        60.0 * np.arange(number), np.array([p for p, _ in prompts]), np.full(number, 4), [h for _, h in prompts], 512
    )


def cached(these: Requests, block: int = 16, blocks: int = 10_000, *, part: bool = False) -> list[int]:
    rules = Rules(budget=8192, max_seqs=8, block_tokens=block, kv_blocks=blocks, part_blocks=part)
    found = simulate([Pool(rules, constant(0.01, tokens=8192))], these, Run())
    return found.requests["hit"].tolist()


@pytest.mark.parametrize(
    ("tokens", "block", "found"),
    [
        (1400, 16, 1392),  # 2 x 512, and of the 376 left 23 whole blocks of 16: 1,392
        (1400, 64, 1344),  # 21 blocks of 64
        (1400, 1, 1399),  # SGLang's pages of one token: all but the last
        (1536, 16, 1520),  # all 96 blocks are there; the last is computed again, since one token has to be
        (1536, 1, 1535),
        (520, 16, 512),  # of the 8 left no block is whole
        (10, 16, 0),
    ],
)
def test_the_same_prompt_twice(tokens: int, block: int, found: int) -> None:
    names = list(range(-(-tokens // 512)))
    assert cached(load((tokens, names), (tokens, names)), block) == [0, found]


@pytest.mark.parametrize(("tokens", "found"), [(1400, 1399), (1536, 1535), (520, 519), (10, 9)])
def test_the_same_prompt_twice_where_parts_of_blocks_are_copied(tokens: int, found: int) -> None:
    names = list(range(-(-tokens // 512)))
    for block in (16, 32):
        assert cached(load((tokens, names), (tokens, names)), block, part=True) == [0, found]


def test_prompts_that_part_inside_a_block() -> None:
    # Hashes of 16 tokens, three of four the same: 48 tokens, of which a block of 32 is whole.
    these = requests(60.0 * np.arange(2), np.array([64, 64]), np.array([4, 4]), [[1, 2, 3, 4], [1, 2, 3, 5]], 16)
    assert cached(these, 32) == [0, 32]
    assert cached(these, 32, part=True) == [0, 48]


def test_a_copied_part_takes_room_of_its_own() -> None:
    # Blocks of 16: 87 are shared, the one with the last 8 tokens and the answer's 4 is each request's. While the first
    # runs, its 88 and one of the second's fit into 89, not into 88.
    rules = Rules(budget=8192, max_seqs=8, kv_blocks=89, part_blocks=True)
    these = requests(np.array([0.0, 0.02]), np.full(2, 1400), np.full(2, 4), [[1, 2, 3]] * 2, 512)
    for blocks, waits in ((89, False), (88, True)):
        pool = Pool(replace(rules, kv_blocks=blocks), constant(0.01, tokens=8192))
        found = simulate([pool], these, Run()).requests
        assert found["hit"].tolist() == [0, 1399]
        assert (found["start"][1] >= found["end"][0]) == waits


@pytest.mark.parametrize(
    ("model", "engine", "parts"),
    [("llama-3.1-8b", "trtllm", True), ("llama-3.1-8b", "vllm", False), ("qwen3.5-35b-a3b", "trtllm", False)],
)
def test_which_engines_copy_parts_of_blocks(model: str, engine: str, parts: bool) -> None:
    # TensorRT-LLM: enable_partial_reuse defaults to true, and is switched off for stacks with recurrent states.
    plan = api.plan(model, "4xh100-sxm", engine=engine, isl=1000, osl=100, rate="1/s", pareto=False)
    assert isinstance(plan, Plan)
    assert rules_of(plan)[0].part_blocks == parts


def test_where_prompts_part_inside_a_hash_nothing_is_known_of_it() -> None:
    # The second goes on after the first's 1,400 tokens: its third hash is another one.
    these = load((1400, [1, 2, 3]), (2000, [1, 2, 4, 5]))
    assert cached(these) == cached(these, part=True) == [0, 1024]


def test_a_name_of_parts_of_different_lengths_is_no_common_text() -> None:
    # 376 tokens are left of the first and of the third, 276 of the second: the same name says nothing there.
    assert cached(load((1400, [1, 2, 3]), (1300, [1, 2, 3]), (1400, [1, 2, 3]))) == [0, 1024, 1392]


def test_blocks_of_parts_are_evicted_and_counted() -> None:
    # 88 + 1 blocks a prompt (1,404 tokens) in room for 100: the second evicts the first, which is computed anew.
    one, other = (1400, [1, 2, 3]), (1400, [7, 8, 9])
    assert cached(load(one, other, one), blocks=100) == [0, 0, 0]
    # Room for both, whose shared blocks are 87 each.
    assert cached(load(one, other, one), blocks=180) == [0, 0, 1392]


def test_more_hashes_than_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="request 1: field hashes: 2; expected no more blocks than the prompt has"):
        load((1024, [1, 2]), (512, [1, 2]))
    line = '{"timestamp": %d, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}\n'
    (tmp_path / "t.jsonl").write_text(line % 0 + line % 60_000)
    assert cached(traces.load(tmp_path / "t.jsonl")) == [0, 592]  # 512 + 5 whole blocks of the 88 left
