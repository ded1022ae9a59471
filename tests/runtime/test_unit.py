"""A real unit, two ranks with torch: texts as transformers gives them, what ranks report, and a rank that is killed."""

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from linkwise.core.layout import Layout  # noqa: E402
from linkwise.runtime.driver import LocalUnit, UnitSpec  # noqa: E402
from linkwise.supervise.types import Failed, Finished, Job, Sampling, Token  # noqa: E402

PROMPTS = [[(7 * i + 3 * j) % 120 for j in range(3 + 5 * i)] for i in range(6)]
WAIT_S = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=32, num_hidden_layers=2, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tiny")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def unit(folder: Path) -> Iterator[LocalUnit]:
    # Few blocks and short chunks, so that requests are cut, wait and give way.
    spec = UnitSpec(
        weights=str(folder), layout=Layout(pp=2), dtype="float32", kv_tokens=96, block_tokens=4,
        max_batched_tokens=16, max_seqs=4, timeout_s=60.0, threads=1,
    )  # fmt: skip
    one = LocalUnit("real", spec)
    states: queue.Queue[Any] = queue.Queue()
    one.start(lambda state, fault: states.put((state, fault)))
    assert states.get(timeout=WAIT_S) == ("starting", None)
    assert states.get(timeout=WAIT_S) == ("ready", None)
    one.states = states  # type: ignore[attr-defined]
    yield one
    one.stop()


def answers(unit: LocalUnit, jobs: list[Job]) -> dict[str, list[int]]:
    events: queue.Queue[Any] = queue.Queue()
    for job in jobs:
        unit.submit(job, events.put)
    found: dict[str, list[int]] = {job.id: [] for job in jobs}
    left = len(jobs)
    while left:
        event = events.get(timeout=WAIT_S)
        if isinstance(event, Token):
            found[event.id].append(event.token)
        else:
            assert isinstance(event, Finished), event
            left -= 1
    return found


def test_texts_are_those_of_transformers(unit: LocalUnit, folder: Path) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = answers(unit, [Job(str(i), tuple(prompt), 12) for i, prompt in enumerate(PROMPTS)])
    for i, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            whole = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=12,
                min_new_tokens=12, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        assert found[str(i)] == whole[0, len(prompt) :].tolist()


def test_a_seed_draws_the_same_alone_and_in_company(unit: LocalUnit) -> None:
    how = Sampling(1.5, 0.9, 11)
    alone = answers(unit, [Job("a", (5, 6, 7), 10, how)])["a"]
    company = answers(unit, [Job("a", (5, 6, 7), 10, how), *(Job(str(i), tuple(p), 9) for i, p in enumerate(PROMPTS))])
    assert company["a"] == alone
    assert answers(unit, [Job("a", (5, 6, 7), 10, how._replace(seed=12))])["a"] != alone


def test_ranks_say_where_they_are_and_what_they_hold(unit: LocalUnit) -> None:
    facts = unit.facts
    assert [fact.rank for fact in facts] == [0, 1]
    assert {fact.backend for fact in facts} == {"gloo"} and {fact.device for fact in facts} == {"cpu"}
    assert all(fact.cores and fact.host and fact.machine for fact in facts)
    # 25 blocks of 4 entries, one layer, keys and values of 2 heads of 8 in float32.
    assert {fact.kv_bytes for fact in facts} == {25 * 4 * 2 * 2 * 8 * 4}


def test_zz_a_killed_rank_is_named_and_nobody_is_left(unit: LocalUnit) -> None:
    """Last: it ends the unit."""
    events: queue.Queue[Any] = queue.Queue()
    unit.submit(Job("a", (1, 2, 3), 80), events.put)
    assert isinstance(events.get(timeout=WAIT_S), Token)
    pids = [fact.pid for fact in unit.facts]
    os.kill(pids[1], signal.SIGKILL)
    state, fault = unit.states.get(timeout=WAIT_S)  # type: ignore[attr-defined]
    assert state == "failed" and (fault.ranks, fault.kind) == ((1,), "dead")
    while isinstance(event := events.get(timeout=WAIT_S), Token):
        continue
    assert event == Failed("a", fault)
    unit.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
