"""Which fault is which trial: at a random rank, at a random time, on each layout in turn."""

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.injected import lab, serve
from benchmarks.injected.models import model

from linkwise.core.layout import Layout
from linkwise.diagnose.types import Findings

TP, PP, EP = Layout(tp=2), Layout(pp=2), Layout(dp_attn=2, ep=2)
TP_EP = Layout(tp=2, ep=2)
HOT = 1  # experts that every token chooses, out of the two it has


class Asked(NamedTuple):
    """What must be named. links: any of them, and none beside them; cause: "" = any."""

    classes: frozenset[str]
    ranks: tuple[int, ...] = ()
    cause: str = ""
    links: frozenset[str] = frozenset()


class Done(NamedTuple):
    """A trial and its answer. seconds: to the findings, from the fault where it ended the ranks, else from the end of
    the record."""

    name: str
    asked: Asked
    findings: Findings
    seconds: float
    ended: str

    @property
    def named(self) -> bool:
        """Whether a finding says what was done, of exactly the ranks or the link it was done to."""
        return any(
            one.decided and one.class_ in self.asked.classes and self._there(one.original_fault)
            and self.asked.cause in {"", one.cause}
            for one in self.findings.findings
        )  # fmt: skip

    @property
    def blamed(self) -> list[str]:
        """Findings about anybody or anything else."""
        return [
            f"{one.class_}: {one.summary}"
            for one in self.findings.findings
            if one.decided
            and not (one.class_ in self.asked.classes and self._there(one.original_fault))
            and not (self.asked.ranks and set(one.original_fault.ranks) == set(self.asked.ranks))
        ]

    def _there(self, fault: Any) -> bool:
        if self.asked.links:
            named = set(fault.link.split(" or "))
            return bool(fault.link) and named <= self.asked.links
        return set(fault.ranks) == set(self.asked.ranks)


Kind = Callable[[Path, int, random.Random], Done]


def _served(name: str, asked: Asked, trial: serve.Trial) -> Done:
    found = serve.run(trial)
    return Done(name, asked, found.findings, found.seconds, found.ended)


def _asked(*classes: str, rank: int = -1, cause: str = "") -> Asked:
    return Asked(frozenset(classes), (rank,) if rank >= 0 else (), cause)


def _words(layout: Layout) -> str:
    return " ".join(f"{axis}{size}" for axis in ("pp", "dp_attn", "tp", "ep") if (size := getattr(layout, axis)) > 1)


def _weights(folder: Path, layout: Layout, hot: tuple[int, ...] = ()) -> Path:
    return model(folder, "experts" if layout.ep > 1 else "dense", hot)


def late(folder: Path, number: int, chance: random.Random) -> Done:
    layout, rank = (TP, PP, EP)[number % 3], chance.randrange(2)
    kind = chance.choice(("late", "late_calls"))
    fault = {"kind": kind, "rank": rank, "step": chance.randrange(2, 30), "seconds": chance.uniform(0.02, 0.05)}
    trial = serve.Trial(_weights(folder, layout), layout, inject=fault, seed=number)
    return _served(f"{_words(layout)}, {kind}", _asked("late_rank", rank=rank, cause="host"), trial)


def starved(folder: Path, number: int, chance: random.Random) -> Done:
    layout, rank = (TP, PP, EP)[number % 3], chance.randrange(2)
    trial = serve.Trial(
        _weights(folder, layout), layout, rank=rank, quota=chance.uniform(0.05, 0.15), seed=number,
        after_s=chance.uniform(0.0, 0.3), tokens=32, timeout_s=20.0,
    )  # fmt: skip
    return _served(_words(layout), _asked("late_rank", "host_contention", rank=rank, cause="contention"), trial)


def _struck(sign: int, kind: str) -> Kind:
    def one(folder: Path, number: int, chance: random.Random) -> Done:
        layout, rank = (TP, PP, EP)[number % 3], chance.randrange(2)
        trial = serve.Trial(
            _weights(folder, layout), layout, rank=rank, signal=sign, after_s=chance.uniform(0.05, 0.8), seed=number,
            requests=10, tokens=300,
        )  # fmt: skip
        return _served(_words(layout), _asked(kind, rank=rank), trial)

    return one


def _once(what: str, kind: str) -> Kind:
    def one(folder: Path, number: int, chance: random.Random) -> Done:
        layout, rank = (TP, TP_EP)[number % 2], chance.randrange(2)
        fault = {"kind": what, "rank": rank, "step": chance.randrange(2, 40), "call": chance.randrange(6)}
        trial = serve.Trial(_weights(folder, layout), layout, inject=fault, tokens=60, seed=number)
        return _served(_words(layout), _asked(kind, rank=rank), trial)

    return one


def hot(folder: Path, number: int, chance: random.Random) -> Done:
    rank = chance.randrange(2)
    layout = (EP, TP_EP)[0]
    expert = 4 * rank + chance.randrange(4)
    trial = serve.Trial(
        _weights(folder, layout, (expert,)), layout, seed=number, prompt=(24, 64)[number % 2], requests=4 + number % 5
    )
    return _served(f"{_words(layout)}, expert {expert}", _asked("expert_imbalance", rank=rank), trial)


def fat(folder: Path, number: int, chance: random.Random) -> Done:
    rank = chance.randrange(2)
    more = chance.choice((12, 13))
    layers = (more, 16 - more) if rank == 0 else (16 - more, more)
    trial = serve.Trial(model(folder, "deep"), PP, layers=layers, seed=number, requests=4 + number % 4)
    return _served(f"pp2, layers {layers[0]}+{layers[1]}", _asked("stage_imbalance", rank=rank), trial)


def receiver(folder: Path, number: int, chance: random.Random) -> Done:
    prefill, decode = ((Layout(), Layout()), (Layout(), TP))[number % 2]
    rank = prefill.size + chance.randrange(decode.size)
    fault = {"kind": "receiver", "rank": rank, "seconds": chance.uniform(0.02, 0.06)}
    trial = serve.Trial(_weights(folder, decode), decode, prefill=prefill, inject=fault, requests=12, seed=number)
    return _served(f"1 > {decode.size}", _asked("handoff_stalled", "late_rank", rank=rank), trial)


def small(folder: Path, number: int, chance: random.Random) -> Done:
    prefill, decode = ((Layout(), Layout()), (Layout(), TP))[number % 2]
    ranks = tuple(range(prefill.size, prefill.size + decode.size))
    trial = serve.Trial(
        _weights(folder, decode), decode, prefill=prefill, kv_tokens=chance.choice((224, 256, 288)), requests=20,
        prompt=40, tokens=chance.randrange(80, 120), seed=number,
    )  # fmt: skip
    asked = Asked(frozenset({"decode_starved", "handoff_allocation"}), ranks)
    return _served(f"1 > {decode.size}", asked, trial)


def healthy(folder: Path, number: int, chance: random.Random) -> Done:
    cases = (
        (TP, None), (PP, None), (EP, None), (TP_EP, None), (Layout(), Layout()), (TP, Layout()),
    )  # fmt: skip
    layout, prefill = cases[number % len(cases)]
    trial = serve.Trial(
        _weights(folder, layout), layout, prefill=prefill, noise=True, requests=chance.randrange(3, 10),
        tokens=chance.randrange(30, 120), seed=number,
    )  # fmt: skip
    return _served(f"{_words(layout)}{', behind prefill' if prefill else ''}", Asked(frozenset()), trial)


def _link(what: str) -> Kind:
    sites = [name for name, site in lab.SITES.items() if what in site.cables]

    def one(folder: Path, number: int, chance: random.Random) -> Done:
        name = sites[number % len(sites)]
        site = lab.SITES[name]
        cable = chance.choice(site.cables[what])
        found = lab.run(name, cable, chance.uniform(0.2, 0.35), model(folder, "wide"))
        slow = "-".join(sorted(cable))
        same = next(series for series in site.series if slow in series)
        return Done(f"{name}, {slow}", Asked(frozenset({"slow_link"}), links=same), found.findings, found.seconds, "")

    return one


def healthy_lab(folder: Path, number: int, chance: random.Random) -> Done:
    name = list(lab.SITES)[number % len(lab.SITES)]
    found = lab.run(name, None, 1.0, model(folder, "wide"))
    return Done(f"lab: {name}", Asked(frozenset()), found.findings, found.seconds, "")


KINDS: dict[str, Kind] = {
    "late rank": late,
    "CPU-starved rank": starved,
    "SIGSTOP": _struck(signal.SIGSTOP, "stopped_rank"),
    "SIGKILL": _struck(signal.SIGKILL, "dead_rank"),
    "skipped collective": _once("skip", "skipped_collective"),
    "wrong shape": _once("shape", "size_mismatch"),
    "hot expert": hot,
    "fat stage": fat,
    "slow KV receiver": receiver,
    "decode pool too small": small,
    "slow shared link": _link("shared"),
    "slow NIC": _link("nic"),
    "healthy": healthy,
    "healthy, lab": healthy_lab,
}
LAB = ("slow shared link", "slow NIC", "healthy, lab")
