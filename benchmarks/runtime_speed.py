"""How fast the runtime is beside transformers: same weights, machine, dtype and threads, in turns, as ratios.

SmolLM2-135M: one stream against `generate`, 16 concurrent requests against `generate` one by one. A random model of its
size: two tensor ranks and two stages beside one rank, one thread each. A tiny model on two ranks: from start to first
token. Asked of two cores with nothing else to do; ratios are medians over turns, so that a busy machine shifts both.

    python benchmarks/runtime_speed.py [single|concurrent|split|start ...] [--threads N] [--turns N] [--dtype NAME]
"""

import argparse
import contextlib
import os
import queue
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from linkwise.core.layout import Layout
from linkwise.runtime.driver import LocalUnit, UnitSpec
from linkwise.runtime.weights import gguf
from linkwise.supervise.types import Finished, Job, Token

PARTS = ("single", "concurrent", "split", "start")
PROMPT, NEW, CONCURRENT = 32, 64, 16
ASKED = {"single": 1.0, "concurrent": 4.0, "start": 10.0}
ONE_BY_ONE = 2  # of the concurrent requests per turn, by transformers: its rate does not depend on how many
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4}
ALIKE = {"hidden_size": 512, "num_hidden_layers": 30, "intermediate_size": 1536, "num_attention_heads": 8}
UP_S = 300.0

Prompts = Sequence[Sequence[int]]


class Ours:
    """A unit that is up. answer: texts of prompts, all submitted at once."""

    def __init__(self, unit: LocalUnit) -> None:
        self.unit, self._number = unit, 0

    def answer(self, prompts: Prompts, new: int = NEW) -> list[list[int]]:
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        texts: dict[str, list[int]] = {}
        for prompt in prompts:
            self._number += 1
            texts[str(self._number)] = []
            self.unit.submit(Job(str(self._number), tuple(prompt), new), events.put)
        left = len(texts)
        while left:
            event = events.get(timeout=UP_S)
            if isinstance(event, Token):
                texts[event.id].append(event.token)
            elif isinstance(event, Finished):
                left -= 1
            else:
                raise RuntimeError(str(event))
        return list(texts.values())

    def cpu_s(self) -> float:
        return time.process_time() + sum(_cpu_s(fact.pid) for fact in self.unit.facts)


def _cpu_s(pid: int) -> float:
    """Processor time of another process, where the system says it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def ours(folder: Path, layout: Layout, dtype: str, threads: int) -> Iterator[Ours]:
    spec = UnitSpec(weights=str(folder), layout=layout, dtype=dtype, kv_tokens=4096, threads=threads)
    unit = LocalUnit("speed", spec)
    states: queue.SimpleQueue[Any] = queue.SimpleQueue()
    unit.start(lambda state, fault: states.put((state, fault)))
    try:
        while (state := states.get(timeout=UP_S))[0] != "ready":
            if state[1]:
                raise RuntimeError(state[1].message)
        yield Ours(unit)
    finally:
        unit.stop()


class Theirs:
    """transformers' greedy `generate`, with the attention it takes by itself."""

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.model.generation_config.eos_token_id = None  # as many tokens as asked for
        self.model.generation_config.pad_token_id = 0

    def answer(self, prompts: Prompts, new: int = NEW) -> list[list[int]]:
        texts = []
        for prompt in prompts:
            ids = torch.tensor([list(prompt)])
            with torch.inference_mode():
                all_ids = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
                )
            texts.append(all_ids[0, len(prompt) :].tolist())
            if len(texts[-1]) != new:
                raise RuntimeError(f"generate ended after {len(texts[-1])} tokens")
        return texts

    def cpu_s(self) -> float:
        return time.process_time()


class Rate(NamedTuple):
    """Tokens per second, and per second of processor time: of this process, where the driver is, and of the ranks."""

    wall: float
    cpu: float


def rate(side: Any, prompts: Prompts) -> tuple[Rate, list[list[int]]]:
    """Over all prompts, from the first submitted to the last finished."""
    cpu, began = side.cpu_s(), time.perf_counter()
    texts = side.answer(prompts)
    tokens = sum(map(len, texts))
    return Rate(tokens / (time.perf_counter() - began), tokens / max(1e-9, side.cpu_s() - cpu)), texts


def ratio(mine: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Of turns: median, least, most."""
    ratios = [a / b for a, b in zip(mine, others, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


class Prompter:
    """Prompts that never come twice: a kept prefix must help nobody."""

    def __init__(self, vocab: int) -> None:
        self._chance, self._vocab = random.Random(1), vocab  # noqa: S311 - texts, no secret

    def __call__(self, count: int) -> list[list[int]]:
        return [[self._chance.randrange(3, self._vocab) for _ in range(PROMPT)] for _ in range(count)]


def beside_transformers(folder: Path, dtype: str, threads: int, turns: int, parts: Sequence[str]) -> int:
    missed = 0
    fresh = Prompter(49_152)
    theirs = Theirs(folder, dtype, threads)
    with ours(folder, Layout(), dtype, threads) as unit:
        for side in (unit, theirs):
            side.answer(fresh(2), 4)
        for part in (part for part in ("single", "concurrent") if part in parts):
            mine, others, equal = [], [], True
            for turn in range(turns):
                prompts = fresh(1 if part == "single" else CONCURRENT)
                pair = [(mine, unit, prompts), (others, theirs, prompts[:ONE_BY_ONE])]
                texts = []
                for rates, side, given in pair if turn % 2 else reversed(pair):
                    found, said = rate(side, given)
                    rates.append(found)
                    texts.append(said)
                equal = equal and all(a == b for a, b in zip(*texts, strict=False))
            wall, least, most = ratio([r.wall for r in mine], [r.wall for r in others])
            cpu, *_ = ratio([r.cpu for r in mine], [r.cpu for r in others])
            print(
                f"SmolLM2 {dtype}, {threads} thread{'s' * (threads > 1)},"
                f" {'one stream' if part == 'single' else f'{CONCURRENT} at once against one by one'}:"
                f" {statistics.median(r.wall for r in mine):.1f} tokens/s"
                f" against {statistics.median(r.wall for r in others):.1f},"
                f" ratio {wall:.2f} ({least:.2f} to {most:.2f}; by processor time {cpu:.2f}),"
                f" asked {ASKED[part]:g}: {'met' if wall >= ASKED[part] else 'MISSED'};"
                f" texts {'equal' if equal else 'differ'}",
                flush=True,
            )
            missed += wall < ASKED[part] or (dtype == "float32" and not equal)
    return missed


def random_llama(folder: Path, vocab: int, **sizes: int) -> Path:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        num_key_value_heads=sizes["num_attention_heads"] // 2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        **sizes,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def beside_one_rank(folder: Path, turns: int) -> None:
    """One thread per rank. Reported, nothing is asked."""
    random_llama(folder, 49_152, **ALIKE)
    layouts = {"tp1": Layout(), "tp2": Layout(tp=2), "pp2": Layout(pp=2)}
    fresh = Prompter(49_152)
    with contextlib.ExitStack() as stack:
        units = {name: stack.enter_context(ours(folder, at, "float32", 1)) for name, at in layouts.items()}
        for unit in units.values():
            unit.answer(fresh(2), 4)
        for count, name in ((1, "one stream"), (CONCURRENT, f"{CONCURRENT} at once")):
            rates: dict[str, list[float]] = {layout: [] for layout in layouts}
            for _ in range(turns):
                for layout, unit in units.items():
                    rates[layout].append(rate(unit, fresh(count))[0].wall)
            ratios = {layout: statistics.median(found) for layout, found in rates.items()}
            beside = ", ".join(f"{at} {value:.1f} ({value / ratios['tp1']:.2f}x)" for at, value in ratios.items())
            print(f"Llama of SmolLM2's size, float32, one thread a rank, {name}, tokens/s: {beside}")


def start_up(folder: Path, turns: int) -> int:
    random_llama(folder, 128, **TINY)
    walls, cpus = [], []
    for _ in range(turns):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with ours(folder, Layout(pp=2), "float32", 1) as unit:
            unit.answer([[1, 2, 3]], 1)
            walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    wall = statistics.median(walls)
    print(
        f"start to first token, tiny model on 2 ranks: {wall:.2f} s, asked {ASKED['start']:g} s:"
        f" {'met' if wall <= ASKED['start'] else 'MISSED'}; {statistics.median(cpus):.1f} s of processor time"
    )
    return wall > ASKED["start"]


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; left out: all")
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of a rank, and of generate")
    words.add_argument("--turns", type=int, default=5)
    words.add_argument("--dtype", choices=("float32", "bfloat16"), help="left out: both")
    words.add_argument("--weights", type=Path, help="SmolLM2's folder; left out: made anew")
    asked = words.parse_args()
    transformers.utils.logging.disable_progress_bar()
    parts = asked.parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        words.error(f"no such part: {', '.join(unknown)}")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        if {"single", "concurrent"} & set(parts):
            folder = asked.weights or gguf.convert(gguf.smollm2(), Path(name) / "smollm2").folder
            for dtype in (asked.dtype,) if asked.dtype else ("float32", "bfloat16"):
                missed += beside_transformers(folder, dtype, asked.threads, asked.turns, parts)
        if "split" in parts:
            beside_one_rank(Path(name) / "alike", asked.turns)
        if "start" in parts:
            missed += start_up(Path(name) / "tiny", min(asked.turns, 3))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
