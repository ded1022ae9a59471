"""A real prefill/decode pair that loses a rank while KV is handed over: the prompt is computed again, exactly once."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks.faults import tiny  # noqa: E402

from linkwise.core.layout import Layout  # noqa: E402
from linkwise.runtime.control import Move, Run  # noqa: E402
from linkwise.runtime.driver import LocalUnit, UnitSpec  # noqa: E402
from linkwise.runtime.group import Group  # noqa: E402
from linkwise.supervise.rules import Rules  # noqa: E402
from linkwise.supervise.supervisor import Placed, Supervisor  # noqa: E402
from linkwise.supervise.types import Fault, Finished, Job, Token  # noqa: E402

PREFILL, DECODE = 0, 1
COUNT = 24
WAIT_S = 240.0


class Pairs:
    """Two pairs of one rank each side. told: every prompt row and every handover that ranks were given, by pair."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        spec = UnitSpec(
            weights=str(folder), layout=Layout(), prefill=Layout(), dtype="float32", threads=1, timeout_s=6.0,
            kv_tokens=1024, block_tokens=4,
        )  # fmt: skip
        self.units = [LocalUnit(name, spec) for name in "ab"]
        self.faults: list[tuple[str, Fault]] = []
        self.told: list[tuple[str, str, tuple[int, ...]]] = []
        self.strike: Callable[[Group], None] | None = None  # at the next handover
        usual = Group.give

        def give(group: Group, ranks: Iterable[int], message: Any) -> None:
            if group.ready and isinstance(message, Run) and PREFILL in ranks:
                for row in message.step.batches[0]:
                    self.told.append((group.spec.name, "prompt", row.tokens))
            if group.ready and isinstance(message, Move):
                self.told.append((group.spec.name, "move", ()))
                if self.strike is not None:
                    strike, self.strike = self.strike, None
                    strike(group)
            usual(group, ranks, message)

        patch.setattr(Group, "give", give)
        rules = Rules(failures=100, backoff_s=0.05, wait_s=WAIT_S)
        self.supervisor = Supervisor(self.units, rules)
        self.supervisor.start()
        self.up()

    def up(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while set(self.supervisor.phases().values()) != {"ready"}:
            assert time.monotonic() < deadline, self.supervisor.phases()
            time.sleep(0.05)

    def answer(self, id: str, prompt: tuple[int, ...]) -> tuple[list[int], list[Any]]:
        """The request's tokens, and everything else its client is told."""
        tokens: list[int] = []
        rest: list[Any] = []
        over = threading.Event()

        def sink(event: Any) -> None:
            if isinstance(event, Token):
                assert event.index == len(tokens)
                tokens.append(event.token)
            else:
                rest.append(event)
                if not isinstance(event, Placed):
                    over.set()

        self.told.clear()
        self.supervisor.submit(Job(id, prompt, COUNT), sink)
        assert over.wait(WAIT_S)
        return tokens, rest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def pairs(folder: Path) -> Iterator[Pairs]:
    with pytest.MonkeyPatch.context() as patch:
        made = Pairs(folder, patch)
        yield made
        made.supervisor.stop()
        assert not made.supervisor.bugs


def _text(folder: Path, prompt: tuple[int, ...]) -> list[int]:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    given = torch.tensor([prompt])
    answer = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=COUNT, do_sample=False, pad_token_id=0
    )
    tokens: list[int] = answer[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize(
    ("rank", "how"), [(DECODE, signal.SIGKILL), (PREFILL, signal.SIGKILL), (DECODE, signal.SIGSTOP)]
)
def test_a_pair_that_is_lost_in_a_handover(pairs: Pairs, folder: Path, rank: int, how: signal.Signals) -> None:
    pairs.up()
    prompt = tuple((7 * i + 13 * rank + 5 * how) % 120 + 1 for i in range(50))
    hit: list[str] = []

    def strike(group: Group) -> None:
        # Stopped before it hears of the handover, so that it is lost in the middle of it and never after.
        pid = group.facts[rank].pid
        os.kill(pid, signal.SIGSTOP)
        hit.append(group.spec.name)
        if how is signal.SIGKILL:
            threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()

    pairs.strike = strike
    before = len(pairs.supervisor.records)
    tokens, rest = pairs.answer(f"{rank}-{how}", prompt)
    assert tokens == _text(folder, prompt)
    (lost,) = hit
    (other,) = {"a", "b"} - {lost}

    first, second, end = rest
    assert (first.unit, first.retry, first.cause) == (lost, 0, None)
    assert (second.unit, second.retry) == (other, 1)
    assert isinstance(end, Finished) and end.reason == "length"
    record = pairs.supervisor.records[before]
    assert (record.unit, record.fault.ranks) == (lost, (rank,)) and second.cause == record.fault
    assert record.fault.kind == ("stopped" if how is signal.SIGSTOP else record.fault.kind)

    # Computed on the pair that was lost, and once more elsewhere, with the token that the client has already.
    assert [(pair, tokens) for pair, what, tokens in pairs.told if what == "prompt"] == [
        (lost, prompt),
        (other, (*prompt, tokens[0])),
    ]
    assert [pair for pair, what, _ in pairs.told if what == "move"] == [lost, other]
