"""Serving through lost ranks: 200 requests and 20 faults on two replicas, and the same on a prefill/decode pair.

A rank is killed (SIGKILL), stopped (SIGSTOP) or slowed (SIGSTOP and SIGCONT in turns) at random moments, each time with
requests under way. Asked: no request lost, none answered twice, every text as without a fault. Printed: time from the
signal to a named rank, and from the name to serving again.

    python benchmarks/faults.py [requests faults] [-v]
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

    wrong_name: units that named another rank than the one that was hit; unnamed: that named none.
    busy: faults that met requests under way on the unit that was hit.
    """

    requests: int
    lost: int
    repeated: int
    different: int
    hit: dict[str, int]
    named: list[float]
    again: list[float]
    wrong_name: int
    unnamed: int
    busy: int
    retries: int
    stale: int
    seconds: float

    @property
    def good(self) -> bool:
        return not (self.lost or self.repeated or self.different or self.wrong_name or self.unnamed)


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
            plain = [k.tokens for k in _run(supervisor, prompts, "plain", lambda: None)]
            expected = plain.__getitem__
            say(f"{len(plain)} texts without a fault")
        hitter = _Hitter(units, supervisor, faults, kinds, len(prompts), seed, say)
        began = time.monotonic()
        hitter.start()
        found = _run(supervisor, prompts, "hit", hitter.wait)
        hitter.join()
        if hitter.error is not None:
            raise hitter.error
        seconds = time.monotonic() - began
        _until(lambda: set(supervisor.phases().values()) == {"ready"}, UP_S, lambda: str(supervisor.phases()))
        named, wrong, unnamed = _names(supervisor, hitter.hits)
        supervisor.endings()  # checks the book
        return Outcome(
            requests=len(found),
            lost=sum(not isinstance(k.ends[0], Finished) for k in found),
            repeated=sum(k.repeated > 0 or len(k.ends) != 1 for k in found),
            different=sum(k.tokens != expected(n) for n, k in enumerate(found)),
            hit={kind: sum(h.kind == kind for h in hitter.hits) for kind in kinds},
            named=named,
            again=[r.down_s for r in supervisor.records if r.down_s is not None],
            wrong_name=wrong,
            unnamed=unnamed,
            busy=sum(h.running > 0 for h in hitter.hits),
            retries=supervisor.retries,
            stale=supervisor.stale,
            seconds=seconds,
        )
    finally:
        supervisor.stop()


def _run(supervisor: Supervisor, prompts: Any, name: str, wait: Callable[[], object]) -> list[_Kept]:
    """All requests from the first to the last end. wait: returns when the next one may come."""
    found: dict[str, _Kept] = {}
    for number, (prompt, count) in enumerate(prompts):
        wait()
        kept = found[f"{name}-{number}"] = _Kept()
        supervisor.submit(Job(f"{name}-{number}", prompt, count), kept)
    deadline = time.monotonic() + OVER_S
    for kept in found.values():
        kept.over.wait(max(0.0, deadline - time.monotonic()))
    open_ = [id for id, kept in found.items() if not kept.over.is_set()]
    if open_:
        raise TimeoutError(
            f"{len(open_)} requests have not ended after {OVER_S:g} s ({', '.join(open_[:8])}): units"
            f" {supervisor.phases()}, {supervisor.queued()} requests without a unit, loads {supervisor.loads()}"
        )
    return list(found.values())


class Hit(NamedTuple):
    """A fault injected. running: requests on the unit then. at: time.monotonic()."""

    kind: str
    unit: str
    rank: int
    running: int
    at: float


class _Hitter(threading.Thread):
    """Hits ranks of units that serve, until there were enough faults: one after another, so that which is which stays
    clear. Requests come in portions, one per fault, so that every fault meets some.
    """

    def __init__(
        self, units: Any, supervisor: Supervisor, faults: int, kinds: Any, requests: int, seed: int, say: Any
    ) -> None:
        super().__init__(daemon=True)
        self.hits: list[Hit] = []
        self.error: Exception | None = None
        self._units, self._supervisor, self._faults, self._kinds, self._say = units, supervisor, faults, kinds, say
        self._chance = random.Random(seed)  # noqa: S311 - which ranks, not a secret
        self._free = threading.Semaphore(0)
        self._left, self._portion = requests, max(1, requests // (faults + 1))

    def wait(self) -> None:
        """Returns when the next request may come."""
        self._free.acquire()

    def _release(self, count: int) -> None:
        count = min(count, self._left)
        self._left -= count
        if count:
            self._free.release(count)

    def run(self) -> None:
        try:
            while len(self.hits) < self._faults:
                self._one()
        except Exception as error:  # noqa: BLE001 - raised again where the trial waits
            self.error = error
        finally:
            self._release(self._left)

    def _one(self) -> None:
        unit = self._chance.choice(self._units)
        serves = unit.state == "ready" and self._supervisor.phases()[unit.name] == "ready"
        facts = unit.facts
        if not serves or not facts:
            time.sleep(0.02)
            return
        if unit.load.running == 0:
            self._release(self._portion)
            _waited(lambda: unit.load.running > 0, 1.0)
        time.sleep(self._chance.uniform(0.0, 0.2))
        fact = self._chance.choice(facts)
        kind = self._kinds[len(self.hits) % len(self._kinds)]
        before = len(self._supervisor.records)
        hit = Hit(kind, unit.name, fact.rank, unit.load.running, time.monotonic())

        def ended() -> bool:
            return len(self._supervisor.records) > before

        try:
            os.kill(fact.pid, 0)
            self.hits.append(hit)
            _strike(kind, fact.pid, ended)
        except ProcessLookupError:  # it was on its way out by itself
            self.hits = [one for one in self.hits if one is not hit]
            return
        if kind == "slow":
            _waited(ended, 0.5)
        else:
            _until(ended, 120.0, lambda: f"{hit} is never named")
        self._say(f"fault {len(self.hits)}: {kind} rank {fact.rank} of {unit.name}, {hit.running} requests on it")


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


def _names(supervisor: Supervisor, hits: list[Hit]) -> tuple[list[float], int, int]:
    """Seconds from each hit to its record; how many records name another rank than the one hit; how many name none."""
    seconds, wrong, unnamed = [], 0, 0
    records = list(supervisor.records)
    ends = [hit.at for hit in hits[1:]] + [float("inf")]
    for hit, end in zip(hits, ends, strict=True):
        record = next((r for r in records if r.unit == hit.unit and hit.at <= r.at < end), None)
        if record is None:
            continue  # a slowed rank that nobody had to be told of
        seconds.append(record.at - hit.at)
        wrong += bool(record.fault.ranks) and record.fault.ranks != (hit.rank,)
        unnamed += not record.fault.ranks
    return seconds, wrong, unnamed


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


def tiny(
    folder: Path, *, hidden: int = 32, intermediate: int = 64, layers: int = 2, heads: int = 4, max_len: int = 512
) -> Path:
    """A random Llama, of a few ten thousand parameters unless told, with a tokenizer of one character per token."""
    import torch  # noqa: PLC0415 - a trial needs none of these
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=max_len, bos_token_id=None,
        eos_token_id=None,
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
    count = sum(found.hit.values())
    print(
        f"{title}: {found.requests} requests, {count} faults ({kinds}; {found.busy} under load), {found.seconds:.0f} s"
    )
    print(f"  lost {found.lost}, repeated {found.repeated}, other text {found.different} (asked: 0, 0, 0)")
    print(f"  signal to name: {spread(found.named)} ({len(found.named)} units lost)")
    print(f"  ranks named wrongly {found.wrong_name}, not named {found.unnamed} (asked: 0, 0)")
    print(f"  name to serving again: {spread(found.again)}; {found.retries} retries, {found.stale} stale events")


def _aloud(line: str) -> None:
    print(f"  . {line}", flush=True)


def main() -> int:
    given = [int(word) for word in sys.argv[1:] if word.isdigit()]
    requests, faults = (*given, 200, 20)[:2] if len(given) != 1 else (given[0], 20)
    say = _aloud if "-v" in sys.argv else str
    good = True
    with tempfile.TemporaryDirectory() as folder:
        weights = str(tiny(Path(folder)))
        for title, layouts, names in (
            ("two replicas, tp2", {"layout": Layout(tp=2)}, "ab"),
            ("a prefill/decode pair, tp1 > tp1", {"layout": Layout(), "prefill": Layout()}, "p"),
        ):
            spec = UnitSpec(
                weights=weights, dtype="float32", threads=1, timeout_s=6.0, kv_tokens=16_384, start_s=UP_S, **layouts
            )
            units = [LocalUnit(name, spec) for name in names]
            found = trial(units, prompts_of(128, requests), None, faults=faults, say=say)
            _show(title, found)
            good = good and found.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
