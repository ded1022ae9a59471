"""A link at fault: the runtime's steps on a lab in which one cable has less bandwidth than the cluster's file says.

python lab.py --rank FOLDER LAYOUT TRACE STEPS      (one rank, started in the lab)
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from linkwise.cluster.read import parse
from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.schema import encode_json

TOKENS, BLOCK, STEPS, VOCAB = 512, 16, 8, 128
FAST = 125e6  # bytes/s of what is no NIC or switch: what two cores can move


class Site(NamedTuple):
    """Where ranks run. cables: those that can be made slow, by what they are; series: cables that carry the same."""

    layout: Layout
    body: str
    cables: dict[str, tuple[tuple[str, str], ...]]
    series: tuple[frozenset[str], ...]


_FOUR = "nodes: {0}\ndevices_per_node: {1}\nisland_size: 1\nnics: {{count: 1, Gbps: 0.2}}\nfabric: {{kind: fat-tree}}\n"


def _own(node: int) -> frozenset[str]:
    """Cables of a node with one device, which all of its traffic crosses."""
    return frozenset({f"d{node}-n{node}.nic0", f"leaf{node}-n{node}.nic0", f"core-leaf{node}"})


SITES: dict[str, Site] = {
    "pp2 x tp2, four nodes": Site(
        Layout(pp=2, tp=2), _FOUR.format(4, 1),
        {"nic": tuple((f"leaf{n}", f"n{n}.nic0") for n in range(4)),
         "shared": tuple(("core", f"leaf{n}") for n in range(4))},
        tuple(map(_own, range(4))),
    ),
    "pp3, three nodes": Site(
        Layout(pp=3), _FOUR.format(3, 1),
        {"nic": (("leaf1", "n1.nic0"),), "shared": (("core", "leaf1"),)},
        (_own(1),),
    ),
    "tp2, two nodes": Site(
        Layout(tp=2), _FOUR.format(2, 1),
        {"shared": (("core", "leaf0"), ("leaf0", "n0.nic0"), ("core", "leaf1"))},
        (_own(0) | _own(1),),
    ),
}  # fmt: skip


def cluster(site: Site) -> Cluster:
    return parse(f"schema: linkwise.cluster/1\naccelerator: h100-sxm\n{site.body}", where="lab")


class Found(NamedTuple):
    findings: Any
    seconds: float
    served_s: float


def run(name: str, cable: tuple[str, str] | None, share: float, model: Path, keep: Path | None = None) -> Found:
    """The steps with a cable at a share of its bandwidth, and what is found with the plan. None: with no such cable."""
    from linkwise import plan  # noqa: PLC0415 - ranks need none of these
    from linkwise.diagnose.diagnose import diagnose  # noqa: PLC0415
    from linkwise.measure.lab import run_lab, wiring  # noqa: PLC0415
    from linkwise.trace.gather import gather  # noqa: PLC0415

    site = SITES[name]
    on = cluster(site)
    degrees = {axis: getattr(site.layout, axis) for axis in ("tp", "pp")}
    planned = plan(str(model), on, engine="linkwise", isl=TOKENS, osl=16, **degrees)
    built = wiring(on, planned.rank_grid[0], scale=1.0)
    cables = []
    for one in built.cables:
        rates = min(one.ab_Bps, FAST), min(one.ba_Bps, FAST)
        slower = share if cable in {(one.a, one.b), (one.b, one.a)} else 1.0
        cables.append(replace(one, ab_Bps=rates[0] * slower, ba_Bps=rates[1] * slower))
    if cable is not None and all(cable not in {(c.a, c.b), (c.b, c.a)} for c in cables):
        raise ValueError(f"no cable {cable}")
    with tempfile.TemporaryDirectory(prefix="linkwise-lab-") as folder:
        trace, said = keep or Path(folder, "trace"), Path(folder, "said.txt")
        words = (sys.executable, "-P", "-W", "ignore", __file__, "--rank", str(model),
                 encode_json(site.layout).decode(), str(trace), str(STEPS))  # fmt: skip
        began = time.monotonic()
        with said.open("wb") as sink:
            done = run_lab(replace(built, cables=tuple(cables)), words, timeout_s=200, stdout=sink, stderr=sink)
        served = time.monotonic() - began
        if not done.ok:
            raise RuntimeError(f"{name}: {said.read_text(errors='replace')[-2000:]}")
        began = time.monotonic()
        found = diagnose(gather([trace], processes=1), planned)
        return Found(found, time.monotonic() - began, served)


def rank_main(folder: str, words: str, trace: str, count: str) -> int:
    """One rank: prompts through the stages, recorded."""
    import torch  # noqa: PLC0415

    from linkwise.dist.groups import axis_groups, barrier, create, join  # noqa: PLC0415
    from linkwise.dist.launch import from_environment  # noqa: PLC0415
    from linkwise.runtime.arch import read_arch  # noqa: PLC0415
    from linkwise.runtime.comm import Comm  # noqa: PLC0415
    from linkwise.runtime.recorder import open_recorder  # noqa: PLC0415
    from linkwise.runtime.stage import Stage  # noqa: PLC0415
    from linkwise.runtime.steps import Row, Step  # noqa: PLC0415
    from linkwise.runtime.weights.source import open_source  # noqa: PLC0415
    from linkwise.supervise.types import Sampling  # noqa: PLC0415

    torch.set_num_threads(1)
    layout = msgspec.json.decode(words, type=Layout)
    start = from_environment(os.environ)
    assert start is not None  # noqa: S101 - the lab says so
    source = open_source(Path(folder))
    arch = read_arch(source.fields, where=folder, dtype="float32")
    with join(start, backend="gloo", timeout_s=120) as session:
        comm = Comm({one.axis: team for one, team in create(session, axis_groups(layout)).items()})
        stage = Stage(arch, layout, start.rank, comm, source, kv_blocks=TOKENS // BLOCK + 4)
        steps = [_step(number, Row, Step, Sampling) for number in range(1 + int(count))]
        stage.run(steps[0])  # connects
        stage.drain()
        barrier(session)
        recorder = open_recorder(
            trace, comm, layout, start.rank, rank=start.rank, world=layout.size, unit="lab",
            layers=(stage.pipeline.layers.start, stage.pipeline.layers.stop),
            host=f"n{os.environ['LINKWISE_NODE']}", device=f"d{os.environ['LINKWISE_DEVICE']}", transport="tcp lab",
        )  # fmt: skip
        comm.listener = recorder.heard
        for step in steps[1:]:
            recorder.begin(step)
            stage.run(step)
            recorder.end()
        stage.drain()
        recorder.close()
        barrier(session)
    return 0


def _step(number: int, row: Any, step: Any, sampling: Any) -> Any:
    blocks = tuple(range(1, TOKENS // BLOCK + 1))
    return step(number, ((row(number, 0, tuple(i % VOCAB for i in range(TOKENS)), True, sampling(), blocks),),))


if __name__ == "__main__":
    code = rank_main(*sys.argv[2:])
    sys.stdout.flush()
    os._exit(code)  # gloo's threads may outlive the group
