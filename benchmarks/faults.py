"""Serving through lost ranks: 200 requests and 20 faults on two replicas, and the same on prefill/decode pairs.

A rank is killed (SIGKILL), stopped (SIGSTOP) or slowed (SIGSTOP and SIGCONT in turns) at random moments. Asked: no
request lost, none answered twice, every text as without a fault. Printed: time from the signal to a named rank, and
from the name to serving again.

    python benchmarks/faults.py [requests faults]
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linkwise.core.layout import Layout
from linkwise.runtime.driver import LocalUnit, UnitSpec
from linkwise.supervise.rules import Rules
from linkwise.supervise.supervisor import Placed, Supervisor
from linkwise.supervise.types import Event, Failed, Finished, Job, Token

UP_S = 300.0  # to start, on a busy machine
OVER_S = 1800.0  # for a request, on a machine where every restart takes minutes
PULSE_S = (0.4, 0.05)  # stopped, running
SLOW_S = 6.0  # a slowed rank is left alone after this


class Outcome(NamedTuple):
    """One trial. hit: faults that were injected, by kind; named: seconds from signal to name, of those a unit died of.

    wrong_name: units that named another rank than the one that was hit.
    """

    requests: int
    lost: int
    repeated: int
    different: int
    hit: dict[str, int]
    named: list[float]
    again: list[float]
    wrong_name: int
    retries: int
    stale: int
    seconds: float

    @property
    def good(self) -> bool:
        return not (self.lost or self.repeated or self.different or self.wrong_name)


class _Kept:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: list[Event] = []
        self.repeated = 0
        self.over = threading.Event()

    def __call__(self, event: Event | Placed) -> None:
        if isinstance(event, Token):
            self.repeated += event.index != len(self.tokens) or bool(self.ends)
            self.tokens.append(event.token)
        elif isinstance(event, Finished | Failed):
            self.ends.append(event)
            self.over.set()


def trial(
    units: Sequence[Any],
    prompts: Sequence[tuple[tuple[int, ...], int]],
    expected: Callable[[int], list[int]] | None,
    *,
    faults: int,
    seed: int = 0,
    kinds: Sequence[str] = ("dead", "stopped", "slow"),
    say: Callable[[str], object] = str,
) -> Outcome:
    """Run the prompts (tokens, how many new ones) over real units while ranks are hit.

    expected: the text of prompt i; None: that of a first run without faults.
    """
    rules = Rules(retries=100, failures=10_000, backoff_s=0.05, backoff_most_s=0.5, wait_s=OVER_S, max_waiting=10_000)
    supervisor = Supervisor(units, rules, say)
    supervisor.start()
    try:
        _until(lambda: set(supervisor.phases().values()) == {"ready"}, UP_S, lambda: str(supervisor.phases()))
        say("up")
        if expected is None:
            plain = [k.tokens for k in _run(supervisor, prompts, "plain", pause=lambda: 0.0)]
            expected = plain.__getitem__
            say(f"{len(plain)} texts without a fault")
        chance = random.Random(seed)  # noqa: S311 - which ranks, not a secret
        hits: list[tuple[str, str, int, float]] = []
        over = threading.Event()
        hitter = threading.Thread(target=_hit, args=(units, faults, kinds, chance, hits, over, supervisor, say))
        began = time.monotonic()
        hitter.start()
        # Requests keep coming while ranks are hit, so that every fault meets some.
        found = _run(supervisor, prompts, "hit", pause=lambda: 0.0 if not hitter.is_alive() else chance.uniform(0, 0.5))
        over.set()
        hitter.join()
        seconds = time.monotonic() - began
        _until(lambda: set(supervisor.phases().values()) == {"ready"}, UP_S, lambda: str(supervisor.phases()))
        named, wrong = _names(supervisor, hits)
        supervisor.endings()  # checks the book
        return Outcome(
            requests=len(found),
            lost=sum(not isinstance(k.ends[0], Finished) for k in found),
            repeated=sum(k.repeated > 0 or len(k.ends) != 1 for k in found),
            different=sum(k.tokens != expected(n) for n, k in enumerate(found)),
            hit={kind: sum(h[0] == kind for h in hits) for kind in kinds},
            named=named,
            again=[r.down_s for r in supervisor.records if r.down_s is not None],
            wrong_name=wrong,
            retries=supervisor.retries,
            stale=supervisor.stale,
            seconds=seconds,
        )
    finally:
        supervisor.stop()


def _run(supervisor: Supervisor, prompts: Any, name: str, pause: Callable[[], float]) -> list[_Kept]:
    found = []
    for number, (prompt, count) in enumerate(prompts):
        kept = _Kept()
        supervisor.submit(Job(f"{name}-{number}", prompt, count), kept)
        found.append(kept)
        time.sleep(pause())
    for kept in found:
        if not kept.over.wait(OVER_S):
            raise TimeoutError("a request has not ended")
    return found


def _hit(units: Any, faults: int, kinds: Any, chance: Any, hits: Any, over: Any, supervisor: Any, say: Any) -> None:
    """Hit ranks of units that serve until there were enough faults. One after another: which is which stays clear."""
    while len(hits) < faults:
        unit = chance.choice(units)
        facts = unit.facts
        if unit.state != "ready" or supervisor.phases()[unit.name] != "ready" or not facts:
            time.sleep(0.02)
            continue
        # Deal with requests at hand, not with an idle group; when all requests are over, with an idle one.
        if not over.is_set() and not _waited(lambda unit=unit: unit.load.running > 0, 1.0):
            continue
        time.sleep(chance.uniform(0.0, 0.2))
        fact = chance.choice(facts)
        kind = kinds[len(hits) % len(kinds)]
        before = len(supervisor.records)
        hits.append((kind, unit.name, fact.rank, time.monotonic()))
        try:
            _strike(kind, fact.pid, lambda before=before: len(supervisor.records) > before)
        except ProcessLookupError:  # it was on its way out by itself
            hits.pop()
            continue
        if kind == "slow":
            _waited(lambda before=before: len(supervisor.records) > before, 0.5)
        else:
            _until(lambda before=before: len(supervisor.records) > before, 120.0, lambda: f"{hits[-1]} is never named")
        say(f"fault {len(hits)}: {kind} rank {fact.rank} of {unit.name}")


def _strike(kind: str, pid: int, ended: Callable[[], bool]) -> None:
    if kind == "dead":
        os.kill(pid, signal.SIGKILL)
    elif kind == "stopped":
        os.kill(pid, signal.SIGSTOP)
    else:
        deadline = time.monotonic() + SLOW_S
        try:
            while time.monotonic() < deadline and not ended():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(PULSE_S[0])
                os.kill(pid, signal.SIGCONT)
                time.sleep(PULSE_S[1])
        except ProcessLookupError:  # the group was ended meanwhile
            return


def _names(supervisor: Supervisor, hits: Any) -> tuple[list[float], int]:
    """Seconds from each hit to its record, and how many records name another rank than the one hit."""
    seconds, wrong = [], 0
    records = list(supervisor.records)
    ends = [at for *_, at in hits[1:]] + [float("inf")]
    for (_, unit, rank, at), end in zip(hits, ends, strict=True):
        record = next((r for r in records if r.unit == unit and at <= r.at < end), None)
        if record is None:
            continue  # a slowed rank that nobody had to be told of
        seconds.append(record.at - at)
        wrong += bool(record.fault.ranks) and record.fault.ranks != (rank,)
    return seconds, wrong


def _waited(condition: Callable[[], bool], bound_s: float) -> bool:
    deadline = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _until(condition: Callable[[], bool], bound_s: float, words: Callable[[], str]) -> None:
    if not _waited(condition, bound_s):
        raise TimeoutError(words())


def prompts_of(vocab: int, count: int, seed: int = 7) -> list[tuple[tuple[int, ...], int]]:
    """Random prompts of 4 to 60 tokens, each for 8 to 64 new ones."""
    chance = random.Random(seed)  # noqa: S311 - test data
    return [
        (tuple(chance.randrange(1, vocab) for _ in range(chance.randrange(4, 61))), chance.randrange(8, 65))
        for _ in range(count)
    ]


def tiny(folder: Path) -> Path:
    """A random Llama of a few ten thousand parameters, with a tokenizer of one character per token."""
    import torch  # noqa: PLC0415 - a trial needs none of these
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {chr(33 + i) if i < 94 else f"<{i}>": i for i in range(128)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<127>"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _show(title: str, found: Outcome) -> None:
    def spread(values: list[float]) -> str:
        return f"median {statistics.median(values):.2f} s, worst {max(values):.2f} s" if values else "none"

    kinds = ", ".join(f"{count} {kind}" for kind, count in found.hit.items())
    print(f"{title}: {found.requests} requests, {sum(found.hit.values())} faults ({kinds}), {found.seconds:.0f} s")
    print(f"  lost {found.lost}, repeated {found.repeated}, other text {found.different} (asked: 0, 0, 0)")
    print(f"  signal to name: {spread(found.named)} ({len(found.named)} units lost, {found.wrong_name} named wrongly)")
    print(f"  name to serving again: {spread(found.again)}; {found.retries} retries, {found.stale} stale events")


def _aloud(line: str) -> None:
    print(f"  . {line}", flush=True)


def main() -> int:
    given = [int(word) for word in sys.argv[1:] if word.isdigit()]
    requests, faults = (*given, 200, 20)[:2] if len(given) != 1 else (given[0], 20)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        weights = str(tiny(Path(folder)))
        for title, layouts in (
            ("two replicas, tp2", {"layout": Layout(tp=2)}),
            ("two prefill/decode pairs, tp1 > tp2", {"layout": Layout(tp=2), "prefill": Layout()}),
        ):
            spec = UnitSpec(
                weights=weights, dtype="float32", threads=1, timeout_s=6.0, kv_tokens=16_384, start_s=UP_S, **layouts
            )
            units = [LocalUnit(name, spec) for name in "ab"]
            say = _aloud if "-v" in sys.argv else str
            found = trial(units, prompts_of(128, requests), None, faults=faults, say=say)
            _show(title, found)
            good = good and found.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
