"""How far a predicted time can be trusted: inside what its constants were fitted on, or extrapolated and why."""

import math

from linkwise.cluster import known
from linkwise.cluster.types import Cluster
from linkwise.engine.base import Engine
from linkwise.engine.step_constants import Spread, StepCalibration
from linkwise.engine.versions import version_key
from linkwise.model.types import Model
from linkwise.plan.assumed import hangs_on, wider
from linkwise.plan.figures import Subject
from linkwise.plan.trust import Interval, Trust
from linkwise.workload.types import Workload

NEAR = 2.0  # lengths and users this many times beyond the ends of a range still count as inside it


def quantisation_of(model: Model) -> str:
    """The kind of weights a range speaks of."""
    text = model.quantization.lower()
    if text.startswith("fp8 ") and "x" in text:
        return "fp8 block"
    for kind in ("mxfp8", "mxfp4", "nvfp4", "fp8", "int4", "int8"):
        if kind in text or text == {"nvfp4": "float4_e2m1"}.get(kind):
            return kind
    return "none" if text in {"none", "bfloat16", "float16", "float32"} else text.split(" ")[0]


def outside(
    calibration: StepCalibration,
    model: Model,
    cluster: Cluster,
    engine: Engine,
    workload: Workload,
    users: float | None,
) -> tuple[str, ...]:
    """What of a case is outside the range the constants were fitted on, in words. users: at once on a replica."""
    seen = calibration.range
    found = []
    for name, value, these in (
        ("models", model.family, seen.models), ("a GPU", cluster.accelerator.name, seen.gpus),
        ("weights", quantisation_of(model), seen.quantisations),
    ):  # fmt: skip
        if value not in these:
            found.append(f"{name} {value}: fitted on {', '.join(these)}".replace("models", "a model of family"))
    if seen.versions:
        low, high = (version_key(version) for version in (seen.versions[0], seen.versions[-1]))
        if not low[:2] <= version_key(engine.version)[:2] <= high[:2]:
            found.append(f"{engine.name} {engine.version}: fitted on {seen.versions[0]} to {seen.versions[-1]}")
    for name, number, (least, most) in (
        ("prompts", workload.isl_tokens, seen.isl), ("answers", workload.osl_tokens, seen.osl),
        ("users", users, seen.concurrency),
    ):  # fmt: skip
        if number is not None and not least / NEAR <= number <= most * NEAR:
            unit = "at once on a replica" if name == "users" else "tokens"
            found.append(f"{name} of {number:,.0f} {unit}: fitted on {least:,.0f} to {most:,.0f}")
    return tuple(found)


def times_label(engine: Engine, cluster: Cluster) -> str:
    """What times rest on: the engine's calibration, and the cluster's own where its links were measured."""
    links = cluster.constants.label
    if engine.calibration is None:
        return links
    return engine.calibration.label + ("" if links == known.constants().label else f"; links: {links}")


def trust(tpot_s: float, ttft_s: float, about: Subject, users: float | None = None) -> Trust:
    """Intervals of predicted means. They are wider outside the range of the constants, and by what constants that no
    row of the engine tells of may do to them."""
    calibration = about.engine.calibration
    if calibration is None:
        return Trust(tpot=None, ttft=None)
    why = outside(calibration, about.model, about.cluster, about.engine, about.workload, users)
    hangs = hangs_on(about, calibration)
    why += tuple(one.words(about.engine.name) for one in hangs if one.felt)
    spreads = calibration.spreads
    tpot, ttft = (spreads.tpot_outside, spreads.ttft_outside) if why else (spreads.tpot, spreads.ttft)
    tpot, ttft = wider(tpot, [one.tpot for one in hangs]), wider(ttft, [one.ttft for one in hangs])
    return Trust(tpot=around(tpot_s, tpot), ttft=around(ttft_s, ttft), extrapolated=why)


def around(seconds: float, spread: Spread) -> Interval:
    """The interval a spread makes of a predicted time."""
    return Interval(low_s=seconds * math.exp(spread.low), high_s=seconds * math.exp(spread.high))
