"""What an exercise should put on every link of a lab and how long it should take (plan/flows.py under gloo's variants),
what it really does, and how far apart the two are.
"""

import sys
import tempfile
from pathlib import Path

import msgspec

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.files import read_bytes, write_bytes
from linkwise.core.quantity import value_of
from linkwise.core.schema import encode_json
from linkwise.measure.lab.counters import ACKS, FRAMING
from linkwise.measure.lab.exercise import Done, Exercise
from linkwise.measure.lab.run import run_lab
from linkwise.measure.lab.topology import Wiring
from linkwise.plan.algorithms import Call, gloo
from linkwise.plan.flows import Flow, Roads, flows, link_bytes


def run_exercises(wiring: Wiring, exercises: tuple[Exercise, ...], *, timeout_s: float = 600.0) -> tuple[Done, ...]:
    """Run them in a lab, one after another. Needs torch. Raises LabUnavailable; LinkwiseError when a rank fails."""
    with tempfile.TemporaryDirectory(prefix="linkwise-lab-") as folder:
        calls, result = Path(folder, "calls.json"), Path(folder, "result.json")
        write_bytes(calls, encode_json(exercises))
        words = (sys.executable, "-P", "-W", "ignore", "-m", "linkwise.measure.lab.exercise", str(calls), str(result))
        said = Path(folder, "said.txt")
        with said.open("wb") as sink:
            found = run_lab(wiring, words, timeout_s=timeout_s, stdout=sink, stderr=sink)
        if not found.ok:
            bad = "; ".join(f"rank {rank.rank}: {rank.reason}" for rank in found.ranks if rank.code != 0)
            last = said.read_text(errors="replace")[-2000:]
            raise LinkwiseError(f"{bad}. They said: {last}", where="lab exercises")
        return tuple(msgspec.json.decode(read_bytes(result), type=list[Done]))


def byte_error(cluster: Cluster, wiring: Wiring, done: Done, *, framing: bool = True) -> tuple[float, str]:
    """The largest relative error of a link's bytes, and which link.

    Of a link that carries data: |counted - predicted| / predicted. Of any other (empty segments at most; framing only):
    against the busiest link, so that a byte on a link where none belongs counts as much as one that is missing.
    """
    data = predicted_bytes(cluster, wiring, done.exercise, framing=False)
    predicted = predicted_bytes(cluster, wiring, done.exercise) if framing else data
    most = max(predicted.values(), default=1.0)
    links = done.bytes if framing else data
    errors = (
        (abs(done.bytes[link] - predicted.get(link, 0.0)) / (predicted[link] if link in data else most), link)
        for link in links
    )
    return max(errors, default=(0.0, ""))


def predicted_bytes(cluster: Cluster, wiring: Wiring, exercise: Exercise, *, framing: bool = True) -> dict[str, float]:
    """Bytes by `src>dst` of one repeat, on links that carry any.

    framing: as interfaces count, each full segment of 8948 bytes in a frame of 9014, and an empty one back for every
    second one; else the bytes processes exchange. Segments that carry data the other way need no empty one: up to
    0.4 % less than predicted where two ranks exchange.
    """
    roads, found = Roads(cluster, single=True), _flows(cluster, wiring, exercise)
    carried = {f"{a}>{b}": float(value_of(size)) for (a, b), size in link_bytes(found).items()}
    if framing:
        carried = {link: size * FRAMING for link, size in carried.items()}
        for flow in found:
            for link in roads.ways(flow.dst, flow.src)[0].links:
                name = f"{link.src}>{link.dst}"
                carried[name] = carried.get(name, 0.0) + float(value_of(flow.bytes)) * ACKS
    return carried


def predicted_seconds(cluster: Cluster, wiring: Wiring, exercise: Exercise) -> tuple[float, float]:
    """(least, most) seconds of one repeat: the frames of its busiest link at that link's rate, times gloo's own waits.

    Equal where the link alone decides; where they differ, a race inside gloo does (plan/algorithms/gloo.py, `waits`).
    """
    rates = {f"{a}>{b}": rate for (a, b), rate in wiring.rates.items()}
    carried = predicted_bytes(cluster, wiring, exercise)
    longest = max((size / rates[link] for link, size in carried.items()), default=0.0)
    both = [gloo.waits(exercise.kind, len(ranks)) for ranks in exercise.groups]
    if exercise.receives_first or not both:
        return longest, longest
    return longest * max(least for least, _ in both), longest * max(most for _, most in both)


def _flows(cluster: Cluster, wiring: Wiring, exercise: Exercise) -> list[Flow]:
    name = gloo.NAMES.get(exercise.kind)
    if name is None:
        raise InputError(f"{exercise.kind!r}", where="exercise", expected=", ".join(gloo.NAMES))
    placed = [station.device for station in wiring.ranks]
    roads = Roads(cluster, single=True)
    found = [
        flow
        for ranks in exercise.groups
        for flow in flows(exercise.kind, roads, tuple(placed[r] for r in ranks), Call(exercise.S_bytes), name)
    ]
    return [flow._replace(bytes=flow.bytes * exercise.calls) for flow in found]
