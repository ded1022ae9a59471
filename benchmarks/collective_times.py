"""Collective times against the shared measurements: per class the rows, the median error with the catalogue's
constants, and that of each machine's rows under constants fitted without the machine.

`--rows` lists every row: predicted with its error, or the reason why it is not. `--fit` prints the constants that a fit
to all rows gives (what the catalogue rounds). Takes about five minutes.
Usage: python benchmarks/collective_times.py [--rows] [--fit]
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from math import log
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.conformance import collective_rows as R

from linkwise.cluster import presets
from linkwise.cluster.types import Constants

# Links with figures of their own, by the knob of their latency per step; others take those of a relative.
LINKS = {
    "nvlink4": "nvlink", "nvlink5": "nvlink5", "pcie": "pcie", "nic": "nic", "efa1": "efa1", "efa2": "efa",
    "slingshot": "slingshot",
}  # fmt: skip
NICS = ("nic", "efa1", "efa2", "slingshot")
KERNELS = (
    "custom", "custom-two-shot", "symm-mem", "multimem", "nccl-symmetric", "nccl-symmetric-gather", "trtllm-one-shot",
    "trtllm-two-shot",
)  # fmt: skip
RING_BASE_US = 6.6  # NCCL's own base latency of a ring under LL; what remains is per step
STEPS = 40  # most rounds of a fit
PULL = 0.03  # how much, in rows, a knob is held to the value it has without any row

# What a fit may turn, and what each is without any measurement: a figure of NCCL's own table (DeepEP's of its own), the
# name of the knob of the nearest relative, or None: nothing is known then. No figure here comes from the measurements.
Knobs = dict[str, float]
PRIOR: dict[str, float | str | None] = {
    "step.nvlink": 0.6, "step.nvlink5": "step.nvlink", "step.pcie": 2.5,
    "step.nic": 5.0, "step.efa": "step.nic", "step.efa1": "step.efa", "step.slingshot": "step.nic",
    "peer.nvlink": 0.6, "peer.pcie": 2.5, "peer.nic": 0.67,
    "latency.ll128": 1.9 / 0.6, "latency.simple": 3.4 / 0.6, "latency.ll128.nic": 8.5 / 5, "latency.simple.nic": 14 / 5,
    "share.ll": 0.38, "share.ll128": 0.92, "share.ll.nic": 1 / 3.8, "share.ll128.nic": 120 / 128,
    "share.simple.nvlink4": 1.0, "share.simple.nvlink5": "share.simple.nvlink4",
    "nvls.nvlink4": 25.0, "nvls.nvlink5": "nvls.nvlink4", "nvls.nvlink5-multi": "nvls.nvlink5",
    "share.nvls.nvlink4": 0.85, "share.nvls.nvlink5": 0.74, "share.nvls.nvlink5-multi": "share.nvls.nvlink5",
    "deepep": None, "share.deepep": 0.9, "tcpxo": None, "post": None, "eager.nccl": None, "eager.trtllm": "eager.nccl",
    "link.nic": None, "link.efa": "link.nic", "link.efa1": "link.efa", "link.slingshot": "link.nic",
    "link.xgmi": 48 / 64, "link.pcie-host": None, "copy": None,
}  # fmt: skip
PRIOR |= {f"{a}{k}.nvlink4": None for k in KERNELS for a in ("", "share.")}
PRIOR |= {f"{a}{k}.nvlink5": f"{a}{k}.nvlink4" for k in KERNELS for a in ("", "share.")}


def _first(name: str) -> float:
    """Where the search for a knob begins; round, and without weight in the fit."""
    prior = PRIOR[name]
    if prior is None:
        return 0.5 if name.startswith(("share", "link", "copy")) else 10.0
    return _first(prior) if isinstance(prior, str) else prior


def constants(k: Knobs) -> Constants:
    """The catalogue's constants with every figure of collective times set from the knobs."""
    latency: dict[str, tuple[float, float]] = {}
    share = {"nccl": k["share.ll"], "nccl-ll128": k["share.ll128"], "copy": k["copy"]}
    share |= {"nccl.nic": k["share.ll.nic"], "nccl-ll128.nic": k["share.ll128.nic"]}
    for link, step in LINKS.items():
        over = ".nic" if link in NICS else ""
        protocols = {"nccl": 1.0, "nccl-ll128": k[f"latency.ll128{over}"], "nccl-simple": k[f"latency.simple{over}"]}
        for line, factor in protocols.items():
            if line != "nccl-ll128" or link != "pcie":  # NCCL has no LL128 there
                latency[f"{line}.{link}"] = (RING_BASE_US * factor, k[f"step.{step}"] * factor)
    for link, peer in (("nvlink4", "nvlink"), ("pcie", "pcie")):
        latency[f"nccl-p2p.{link}"] = (RING_BASE_US, k[f"peer.{peer}"])
    for link in NICS:
        latency[f"nccl-p2p.{link}"] = (RING_BASE_US + k[f"step.{LINKS[link]}"], k["peer.nic"])
    for link in ("nvlink4", "nvlink5", "nvlink5-multi"):
        latency[f"nccl-nvls.{link}"] = (k[f"nvls.{link}"], 0.0)
        share[f"nccl-nvls.{link}"] = k[f"share.nvls.{link}"]
    for link in ("nvlink4", "nvlink5"):
        share[f"nccl-simple.{link}"] = k[f"share.simple.{link}"]
        for kernel in KERNELS:
            latency[f"{kernel}.{link}"] = (k[f"{kernel}.{link}"], 0.0)
            share[f"{kernel}.{link}"] = k[f"share.{kernel}.{link}"]
    for link in ("nvlink4", "nvlink5", "nic"):
        for line in ("deepep", "deepep-low-latency"):
            latency[f"{line}.{link}"] = (k["deepep"], 0.0)
    share |= {"deepep": k["share.deepep"]}
    latency |= {"transfer.nic": (0.0, 0.0), "transfer.tcpxo": (k["tcpxo"], 0.0), "copy.pcie": (10.0, 0.0)}
    latency |= {"transfer-eager.cluster": (k["post"], 0.0), "nccl-eager.island": (k["eager.nccl"], 0.0)}
    latency |= {f"trtllm-{shot}-shot-eager.island": (k["eager.trtllm"], 0.0) for shot in ("one", "two")}
    share |= {"efa1": k["link.efa1"], "efa2": k["link.efa"]}
    share |= {link: k[f"link.{link}"] for link in ("nic", "slingshot", "xgmi", "pcie-host")}
    usual = presets.constants()
    return msgspec.structs.replace(
        usual, latency_us=usual.latency_us | latency, link_efficiency=usual.link_efficiency | share
    )


def start() -> Knobs:
    """Every knob before any measurement."""
    return {name: _first(name) for name in PRIOR}


def _prior(name: str, k: Knobs) -> float | None:
    value = PRIOR[name]
    return k[value] if isinstance(value, str) else value


def readers(cases: Iterable[R.Case], k: Knobs) -> dict[str, list[R.Case]]:
    """Which cases can feel which knob: those whose ways it changes."""
    cases = list(cases)
    usual = [R.offered(one, constants(k))[:2] for one in cases]
    felt = {}
    for name, value in k.items():
        other = constants(k | {name: value * 0.9})
        felt[name] = [one for one, was in zip(cases, usual, strict=True) if R.offered(one, other)[:2] != was]
    return felt


def fit(cases: list[R.Case], k: Knobs, felt: dict[str, list[R.Case]], turn: Iterable[str]) -> Knobs:
    """Robust fit: least sum of |log(predicted / observed)|, one knob at a time. A sweep of many sizes weighs as the
    root of its rows; PULL holds each knob to its prior, which decides alone where no row feels it."""
    size: dict[tuple[str, tuple[str, str, str]], int] = defaultdict(int)
    for one in cases:
        size[one.row.machine, one.label] += 1
    kept = {one.row.number for one in cases}
    rows = {name: [one for one in felt[name] if one.row.number in kept] for name in turn}

    def loss(name: str, trial: Knobs) -> float:
        at = constants(trial)
        prior = _prior(name, trial)
        total = PULL * abs(log(trial[name] / prior)) if prior else 0.0
        total += sum(PULL * abs(log(trial[n] / trial[name])) for n, like in PRIOR.items() if like == name)
        for one in rows[name]:
            total += abs(log(1 + R.outcome(one, at).error)) / size[one.row.machine, one.label] ** 0.5
        return total

    k, width = dict(k), 1.5
    for _ in range(STEPS):
        better = False
        for name in rows:
            best, least = k[name], loss(name, k)
            for value in (k[name] * width, k[name] / width, _prior(name, k)):
                if value is None or (value > 1 and name.startswith(("share", "link", "copy"))):
                    continue
                if (now := loss(name, k | {name: value})) < least - 1e-9:
                    best, least, better = value, now, True
            k[name] = best
        if not better:
            if width < 1.01:
                break
            width = width**0.5
    return k


def left_out() -> dict[int, R.Outcome]:
    """Predictable rows under constants fitted without any row of their machine, by row number.

    Every knob the machine's rows feel starts again and is fitted to the other rows; the rest, which the machine tells
    nothing of directly, stays as all rows have it. Where the rows feel a knob that no other row tells, and that has
    neither prior nor relative, there is nothing to predict from: such rows are missing here.
    """
    cases = [one for one in R.cases() if not one.why]
    felt = readers(cases, start())
    everything = fit(cases, start(), felt, PRIOR)
    found: dict[int, R.Outcome] = {}
    for machine in dict.fromkeys(one.row.machine for one in cases):
        numbers = {one.row.number for one in cases if one.row.machine == machine}
        rest = [one for one in cases if one.row.number not in numbers]
        turn = [name for name in PRIOR if any(one.row.number in numbers for one in felt[name])]
        told = {name for name in PRIOR if any(one.row.number not in numbers for one in felt[name])}
        k = everything | {name: _first(name) for name in turn}
        k = fit(rest, k, felt, turn)
        unknown: set[int] = set()
        for name in turn:
            if name in told or isinstance(PRIOR[name], float):
                continue
            like = _relative(name, told)
            if like is None:
                unknown |= {one.row.number for one in felt[name]}
            else:
                k[name] = k[like]
        at = constants(k)
        found |= {one.row.number: R.outcome(one, at) for one in cases if one.row.number in numbers - unknown}
    return found


def _relative(name: str, told: set[str]) -> str | None:
    """The nearest knob of the family that measurements still tell, or that has a prior of its own."""
    up = PRIOR[name]
    while isinstance(up, str):
        if up in told or isinstance(PRIOR[up], float):
            return up
        up = PRIOR[up]
    return next((child for child, like in PRIOR.items() if like == name and child in told), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--fit", action="store_true", help="constants fitted to all rows")
    asked = parser.parse_args()
    if not R.MEASUREMENTS.is_file():
        print(f"collective_times: skipped, {R.ABSENT}")
        return 0
    if asked.fit:
        cases = [one for one in R.cases() if not one.why]
        for name, value in fit(cases, start(), readers(cases, start()), PRIOR).items():
            print(f"{name:36} {value:9.3g}")
        return 0
    known = R.outcomes()
    out = left_out()
    if asked.rows:
        _print_rows({o.case.row.number: o for o in known}, out)
    _print_classes(known, out)
    return 0


def _print_rows(known: dict[int, R.Outcome], out: dict[int, R.Outcome]) -> None:
    for one in R.cases():
        row = one.row
        head = f"{row.number:4} {row.hardware[:44]:44} {row.ranks:3}/{row.nodes:<2} {row.collective[:14]:14}"
        if one.why:
            print(f"{head} {row.implementation[:28]:28} not predictable: {one.why}")
            continue
        o = known[row.number]
        unit, scale = ("GB/s", 1e-9) if one.rate else ("us", 1e6)
        size = "rate" if one.rate else f"{one.size:.0f}"
        way = f"{o.algorithm} {o.protocol}".strip() + (" extrapolated" if o.extrapolated else "")
        print(
            f"{head} {' '.join(one.label):34} {size:>12} measured {one.observed * scale:10.4g} predicted "
            f"{o.predicted * scale:10.4g} {unit:4} {o.error:+6.0%} left out {_error(out.get(row.number))}  {way}"
        )


def _error(o: R.Outcome | None) -> str:
    return f"{o.error:+6.0%}" if o else "     -"


def _print_classes(known: list[R.Outcome], out: dict[int, R.Outcome]) -> None:
    classes: dict[tuple[str, str, str], list[R.Outcome]] = defaultdict(list)
    for o in known:
        classes[o.case.label].append(o)
    print(f"{'':52}{'in sample':>15}  {'left out':>15}\n{'implementation, mode, hardware':40} rows extra.  ", end="")
    print("<16MiB  >=16MiB  <16MiB  >=16MiB rows")
    for label, found in sorted(classes.items()):
        _print_line(" ".join(label), found, out)
    _print_line("all", known, out)
    absent = sum(bool(one.why) for one in R.cases())
    print(f"{len(known)} rows predicted, {absent} not predictable (--rows says why), of {len(R.cases())}")


def _print_line(name: str, found: list[R.Outcome], out: dict[int, R.Outcome]) -> None:
    apart = [out[o.case.row.number] for o in found if o.case.row.number in out]
    cells = (*R.medians(found), *R.medians(apart))
    extra = sum(o.extrapolated for o in found)
    print(f"{name:40} {len(found):4} {extra:5} ", *("      -" if x is None else f"{x:7.1%}" for x in cells), len(apart))


if __name__ == "__main__":
    sys.exit(main())
