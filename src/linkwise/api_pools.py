"""The commands that make an offer of separate pools: a plan file of each, both simulated, handed over and started.

They are made of the words a plan was asked for with, so that they run as they stand.
"""

import math
import os
import shlex
from typing import Any

from linkwise import settings as _settings
from linkwise.cluster.types import Cluster
from linkwise.engine.base import Engine
from linkwise.model.types import Model
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.plan.handoff_pair import plain
from linkwise.settings import Settings
from linkwise.workload.types import Workload

# What of a load shapes a plan without one: a pool does not carry the rate inside the targets on its own.
_LENGTHS = {"isl": "isl_tokens", "osl": "osl_tokens", "prefix_hit": "prefix_hit", "burst": "burst"}
_LOAD = {"workload", "rate", "concurrency", "ttft", "tpot", *_LENGTHS}

Given = dict[str, Any]


def commands(
    found: Frontier, workload: Workload, model: object, on: object, prefill_on: object, settings: Settings, today: Given
) -> tuple[str, ...]:
    """Lines to type for the choice, where it is one of separate pools; nothing for another.

    model, on, prefill_on, settings: as they were given. today: engine, from_command, from_manifest, from_running.
    """
    one = found.offers[found.choice] if found.choice is not None else None
    if one is None or one.prefill_layout is None:
        return ()
    kept: Given = {n: v for n, v in settings.items() if n not in _LOAD and n not in _settings.DEGREES}
    kept |= _lengths(workload)
    asked = _options({name: _word(value) for name, value in today.items()})
    pools = [
        ["linkwise", "plan", *([_word(model)] if model is not None else []), "--on", _word(where), *asked,
         *_options({**kept, **layout.degrees()}), "--replicas", str(groups), "-o", f"{name}.json"]
        for name, where, layout, groups in (
            ("prefill", prefill_on or on, one.prefill_layout, one.prefill_groups),
            ("decode", on, one.layout, one.groups),
        )
    ]  # fmt: skip
    files = ["decode.json", "--prefill", "prefill.json"]
    together = ["linkwise", "simulate", *files, *_load(one, workload)]
    rate = {"rate": f"{_served(one):.10g}/s"} | _targets(workload)
    handed = ["linkwise", "handoff", *files, *_options(rate), "-o", "pair.json"]
    started = [["linkwise", "launch", "pair.json", "-o", "pools"]] if _starts(one, prefill_on) else []
    return tuple(map(shlex.join, (*pools, together, handed, *started)))


def _starts(one: Offer, prefill_on: object) -> bool:
    """Whether `launch` takes such pools."""
    sides = (one.layout, one.prefill_layout or one.layout)
    return prefill_on is None and all(map(plain, sides))


def _served(one: Offer) -> float:
    """The rate asked for; at full load four digits of what is served, and no more than that."""
    if one.for_rate_per_s is not None:
        return one.for_rate_per_s
    digit = 10.0 ** (math.floor(math.log10(one.rate_per_s)) - 3)
    return math.floor(one.rate_per_s / digit * (1 + 1e-12)) * digit


def _lengths(workload: Workload) -> Given:
    """Lengths, and what of a load is not as usual."""
    usual = Workload()
    values = {name: getattr(workload, field) for name, field in _LENGTHS.items()}
    return {n: v for n, v in values.items() if n in ("isl", "osl") or v != getattr(usual, _LENGTHS[n])}


def _load(one: Offer, workload: Workload) -> list[str]:
    """The rate the offer is for, or the users of a closed loop: Little's law, requests in both pools."""
    users = max(1, round(one.rate_per_s * (one.ttft_s + one.tpot_s * workload.osl_tokens)))
    rate = one.for_rate_per_s
    return _options(({"rate": f"{rate:g}/s"} if rate is not None else {"concurrency": users}) | _targets(workload))


def _targets(workload: Workload) -> Given:
    of = workload.targets
    values = {"ttft": of.ttft_s, "tpot": of.tpot_s}
    return {name: f"{1e3 * value:g}ms" for name, value in values.items() if value is not None}


def _options(values: Given) -> list[str]:
    """Values as options; None, "" and False are not said."""
    found: list[str] = []
    for name, value in values.items():
        if value is None or value is False or value == "":
            continue
        found += [f"--{name.replace('_', '-')}", *(() if value is True else (_word(value),))]
    return found


def _word(value: object) -> str:
    """What a person types for a value."""
    if isinstance(value, Model | Cluster):
        return value.name
    if isinstance(value, Engine):
        return f"{value.name}@{value.version}"
    return os.fspath(value) if isinstance(value, os.PathLike) else "" if value is None else str(value)
