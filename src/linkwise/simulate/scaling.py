"""Scaling rules: how many replicas a rule wants, given what it looks at. Pure; simulate/autoscale.py acts on it.

A rule with a target wants ceil(what all replicas hold / target), within its tolerance what there is; the windows are
those of Kubernetes' HorizontalPodAutoscaler: up to the least wanted in the last `up_window_s`, down to the most wanted
in the last `down_window_s`. A schedule wants what its clock says.
"""

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.files import parse_yaml_object, read_text
from linkwise.core.schema import Frozen, convert
from linkwise.core.units import parse_time

SCALING_SCHEMA = "linkwise.scaling/1"
# Kubernetes' own: controller-manager flags and HPAScalingRules.stabilizationWindowSeconds.
EVERY_S, UP_WINDOW_S, DOWN_WINDOW_S, TOLERANCE = 15.0, 0.0, 300.0, 0.1
DAY_S = 86_400.0
MAX_FILE_BYTES, MAX_RULES, MAX_REPLICAS = 2**20, 64, 100_000
MEASURES = ("outstanding", "kv", "waiting")


class Rule(Frozen, frozen=True, kw_only=True):
    """measure: "outstanding" or "waiting" requests a replica, "kv" (share of its blocks in use), "schedule" or "fixed".

    target: of the measure, per replica. most: 0 = as many as the devices hold. start: replicas up at the beginning, 0 =
    `least`. schedule: (second of the period, replicas), ascending.
    """

    name: str
    measure: str
    target: float = 0.0
    least: int = 1
    most: int = 0
    start: int = 0
    every_s: float = EVERY_S
    up_window_s: float = UP_WINDOW_S
    down_window_s: float = DOWN_WINDOW_S
    tolerance: float = TOLERANCE
    schedule: tuple[tuple[float, int], ...] = ()
    period_s: float = DAY_S

    def __post_init__(self) -> None:
        where = f"rule {self.name[:40]!r}"
        if self.measure in MEASURES:
            if not 0 < self.target <= (1 if self.measure == "kv" else 1e9):  # NaN is refused as well
                limit = "above 0, at most 1" if self.measure == "kv" else "above 0"
                raise InputError(f"target {self.measure} is {self.target:g}", where=where, expected=limit)
        elif self.measure == "schedule":
            at = [second for second, _ in self.schedule]
            if not at or at != sorted(set(at)) or not 0 <= at[0] <= at[-1] < self.period_s:
                raise InputError("schedule", where=where, expected="times in order, inside its period")
            if not all(1 <= count <= MAX_REPLICAS for _, count in self.schedule):
                raise InputError("schedule", where=where, expected=f"1..{MAX_REPLICAS} replicas at each time")
        elif self.measure != "fixed":
            known = ", ".join((*MEASURES, "schedule", "fixed"))
            raise InputError(f"measure is {self.measure[:40]!r}", where=where, expected="one of " + known)
        for field, value, low, high in (
            ("min", self.least, 1, MAX_REPLICAS), ("max", self.most, 0, MAX_REPLICAS),
            ("start", self.start, 0, MAX_REPLICAS), ("every", self.every_s, 0.1, 1e5),
            ("up_window", self.up_window_s, 0, 1e5), ("down_window", self.down_window_s, 0, 1e5),
            ("tolerance", self.tolerance, 0, 10), ("period", self.period_s, 1, 1e8),
        ):  # fmt: skip
            if not low <= value <= high:
                raise InputError(f"{field} is {value:g}", where=where, expected=f"{low:g}..{high:g}")
        if self.most and self.most < max(self.least, self.start):
            raise InputError(
                f"max {self.most} is below min {self.least} or start {self.start}", where=where, expected="min <= max"
            )


class Measured(NamedTuple):
    """What a rule may look at: sums over all replicas. kv: of their shares in use. waiting: in queues, or unrouted."""

    outstanding: float
    waiting: float
    kv: float


class Advice:
    """A rule at work: what it wants at each look, calmed by its windows."""

    def __init__(self, rule: Rule, most: int) -> None:
        self._rule, self._most = rule, most
        self._wanted: deque[tuple[float, int]] = deque()

    def at(self, now: float, measured: Measured, current: int) -> int:
        """Replicas from now on. current: those that serve or start."""
        rule = self._rule
        wanted = min(max(wants(rule, now, measured, current), rule.least), self._most)
        if rule.measure in ("schedule", "fixed"):
            return wanted
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - max(rule.up_window_s, rule.down_window_s) - 1e-9:
            self._wanted.popleft()
        up = min(count for at, count in self._wanted if at >= now - rule.up_window_s - 1e-9)
        down = max(count for at, count in self._wanted if at >= now - rule.down_window_s - 1e-9)
        return up if up > current else down if down < current else current


def wants(rule: Rule, now: float, measured: Measured, current: int) -> int:
    """What the rule would have at this instant, limits and windows aside."""
    if rule.measure == "fixed":
        return rule.least
    if rule.measure == "schedule":
        clock = now % rule.period_s
        before = [count for at, count in rule.schedule if at <= clock]
        return before[-1] if before else rule.schedule[-1][1]
    total = float(getattr(measured, rule.measure))
    exact = total / rule.target
    if current and abs(exact / current - 1) <= rule.tolerance:
        return current
    return math.ceil(exact - 1e-9)


def references(rules: Sequence[Rule], whole: int) -> tuple[Rule, ...]:
    """Beside the rules: their fewest and their most replicas all the time."""
    least, most = min(rule.least for rule in rules), max(rule.most or whole for rule in rules)
    counts = dict.fromkeys((least, min(most, whole)))
    return tuple(Rule(name=f"{n} all the time", measure="fixed", least=n, most=n) for n in counts)


class _Rule(Frozen, frozen=True, kw_only=True):
    """A rule as written in a file: times as text."""

    name: str = ""
    outstanding: float | None = None
    kv: float | None = None
    waiting: float | None = None
    schedule: dict[str, int] | None = None
    fixed: int | None = None
    min: int = 1
    max: int = 0
    start: int = 0
    every: str = ""
    up_window: str = ""
    down_window: str = ""
    tolerance: float = TOLERANCE
    period: str = ""


class _File(Frozen, frozen=True, kw_only=True):
    schema: str
    rules: list[_Rule]


def load(path: str | Path) -> tuple[Rule, ...]:
    """The rules of a YAML file. Raises InputError naming the file, the rule and the field."""
    where = str(path)
    raw = parse_yaml_object(read_text(path, max_bytes=MAX_FILE_BYTES), where=where)
    if raw.get("schema") != SCALING_SCHEMA:
        raise InputError(f"field schema: {str(raw.get('schema'))[:60]!r}", where=where, expected=SCALING_SCHEMA)
    file = convert(raw, _File, where=where)
    if not 1 <= len(file.rules) <= MAX_RULES:
        raise InputError(f"field rules: {len(file.rules)} rules", where=where, expected=f"1..{MAX_RULES}")
    return tuple(_rule(one, f"{where}: rules[{number}]") for number, one in enumerate(file.rules))


def _rule(one: _Rule, where: str) -> Rule:
    given = [name for name in (*MEASURES, "schedule", "fixed") if getattr(one, name) is not None]
    if len(given) != 1:
        words = "outstanding, kv, waiting, schedule or fixed"
        raise InputError(f"{' and '.join(given) or 'nothing'} to follow", where=where, expected=f"one of {words}")
    measure = given[0]
    value = getattr(one, measure)
    schedule = tuple(
        sorted((seconds(at, f"{where}: field schedule"), count) for at, count in (one.schedule or {}).items())
    )
    try:
        return Rule(
            name=one.name or (measure if measure == "schedule" else f"{measure} {value:g}"), measure=measure,
            target=value if measure in MEASURES else 0.0, schedule=schedule,
            least=value if measure == "fixed" else one.min, most=value if measure == "fixed" else one.max,
            start=one.start, tolerance=one.tolerance,
            every_s=seconds(one.every, f"{where}: field every", EVERY_S),
            up_window_s=seconds(one.up_window, f"{where}: field up_window", UP_WINDOW_S),
            down_window_s=seconds(one.down_window, f"{where}: field down_window", DOWN_WINDOW_S),
            period_s=seconds(one.period, f"{where}: field period", DAY_S),
        )  # fmt: skip
    except InputError as error:
        raise InputError(error.message, where=f"{where}: {error.where}", expected=error.expected) from None


def typed(
    targets: Mapping[str, float | None], times: str, limits: Mapping[str, Any], calmed: Mapping[str, Any]
) -> list[Rule]:
    """Rules of options: a target by measure, a schedule, and by option's name limits of all and what calms targets.

    Raises InputError for an option that no rule reads: those of a file have their own.
    """
    measures = {name: value for name, value in targets.items() if value is not None}
    for options, read in ((limits, bool(measures) or bool(times)), (calmed, bool(measures))):
        given = [name for name, value in options.items() if value not in (None, "")]
        if given and not read:
            rule = "a rule as an option: --target-outstanding, --target-kv or --target-waiting"
            raise InputError(
                f"{given[0]} without a rule of an option that it is for", where="autoscale",
                expected=rule + (" or --schedule" if options is limits else ""),
                hint="a rule of a file has fields of its own for it",
            )  # fmt: skip
    for name in ("--max", "--start"):  # 0 is for files, where it stands for "not said"
        if limits[name] is not None and limits[name] < 1:
            raise InputError(f"{limits[name]}", where=name, expected="1 or more replicas")
    fields = {
        "least": limits["--min"], "most": limits["--max"], "start": limits["--start"],
        "every_s": parse_time(limits["--every"], where="--every") if limits["--every"] else None,
    }  # fmt: skip
    calm = {
        "up_window_s": seconds(calmed["--up-window"], "--up-window") if calmed["--up-window"] else None,
        "down_window_s": seconds(calmed["--down-window"], "--down-window") if calmed["--down-window"] else None,
        "tolerance": calmed["--tolerance"],
    }
    shared = {name: value for name, value in fields.items() if value is not None}
    more = shared | {name: value for name, value in calm.items() if value is not None}
    found = [Rule(name=f"{name} {value:g}", measure=name, target=value, **more) for name, value in measures.items()]
    if times:
        found.append(Rule(name="schedule", measure="schedule", schedule=schedule(times), **shared))
    return found


def schedule(text: str) -> tuple[tuple[float, int], ...]:
    """Replicas by time as typed: 0h=2,8h=6,19h=3."""
    found = {}
    for part in text.split(","):
        at, equals, count = part.strip().partition("=")
        if not equals or not count.strip().isascii() or not count.strip().isdigit() or len(count) > 9:
            raise InputError(f"{part[:60]!r}", where="--schedule", expected="times and replicas, such as 0h=2,8h=6")
        found[seconds(at.strip(), "--schedule")] = int(count)
    return tuple(sorted(found.items()))


_NOTHING = re.compile(r"0+(\.0*)?(us|ms|s|m|min|h|d)?", re.ASCII)


def seconds(text: str, where: str, otherwise: float = 0.0) -> float:
    """A time that may be nothing: "0", "0s" or "15s"; `otherwise` where none is given."""
    if not text:
        return otherwise
    if _NOTHING.fullmatch(text.strip()):
        return 0.0
    try:
        return parse_time(text, where=where)
    except InputError as error:
        raise InputError(error.message, where=where, expected="a time with a unit, such as 15s, or 0") from None
