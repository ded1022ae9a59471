"""The runtime on two nodes of a lab: bytes on every link, predicted from the plan's ops, against interface counters.

Real ranks of `runtime/stage.py` with random weights, a prompt of 1,024 tokens and a decode step of eight requests, over
real sockets between network namespaces with shaped links. Predicted: every call the plan lists for exactly these steps
(runtime/check.py), as flows of gloo's algorithms (plan/flows.py). Asked: within 2 % on the links that carry the calls.
"""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from linkwise.cluster.read import parse
from linkwise.cluster.types import Cluster
from linkwise.core.files import read_bytes, write_bytes
from linkwise.core.layout import Layout
from linkwise.core.schema import encode_json
from linkwise.engine import registry
from linkwise.measure.lab import missing, run_lab, wiring
from linkwise.measure.lab.compare import predicted_bytes
from linkwise.measure.lab.counters import snapshot
from linkwise.measure.lab.exercise import Exercise
from linkwise.measure.lab.topology import Wiring
from linkwise.model.held import held
from linkwise.model.read import load
from linkwise.runtime.check import expected
from linkwise.runtime.steps import Row, Step
from linkwise.supervise.types import Sampling

ASKED = 0.02
PROMPT, DECODING, BLOCK = 1024, 8, 16
REPEATS = 3
CASES: dict[str, tuple[Layout, int]] = {  # layout, devices a node
    "tp2 over two nodes": (Layout(tp=2), 1),
    "pp2 over two nodes": (Layout(pp=2), 1),
    "cp2 over two nodes": (Layout(cp=2), 1),
    "pp2 x tp2, tp inside": (Layout(pp=2, tp=2), 2),
    "dp_attn2 x ep2": (Layout(dp_attn=2, ep=2), 1),
}
_BODY = (
    "nodes: 2\ndevices_per_node: {0}\nisland_size: {0}\nnics: {{count: {0}, Gbps: 400}}\nfabric: {{kind: fat-tree}}\n"
)


def steps(layout: Layout) -> tuple[Step, ...]:
    """A prompt and a decode step, the same requests on every attention replica."""
    per = BLOCK * layout.cp * layout.dcp
    prompt_blocks = -(-PROMPT // per)
    prompt = Row(0, 0, tuple(i % 500 for i in range(PROMPT)), True, Sampling(), tuple(range(1, prompt_blocks + 1)))
    rows = tuple(Row(1 + i, 0, (i,), False, Sampling(), (prompt_blocks + 1 + i,)) for i in range(DECODING))
    return tuple(Step(number, (batch,) * layout.dp_attn) for number, batch in enumerate(((prompt,), rows)))


def saved(folder: Path, layout: Layout) -> Path:
    """A random model of some 20 million parameters, with experts where the layout asks for them."""
    import torch  # noqa: PLC0415 - only who makes a model needs these
    import transformers  # noqa: PLC0415

    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096,
    }  # fmt: skip
    if layout.ep > 1:
        config = transformers.MixtralConfig(**fields, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    else:
        config = transformers.LlamaConfig(**fields)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def rank_main(folder: str, words: str, result: str) -> int:
    """One rank in the lab: REPEATS times the steps; rank 0 writes what every link carried in one."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from linkwise.dist.groups import axis_groups, barrier, create, join  # noqa: PLC0415
    from linkwise.dist.launch import from_environment  # noqa: PLC0415
    from linkwise.runtime.arch import read_arch  # noqa: PLC0415
    from linkwise.runtime.comm import Comm  # noqa: PLC0415
    from linkwise.runtime.stage import Stage  # noqa: PLC0415
    from linkwise.runtime.weights.source import open_source  # noqa: PLC0415

    torch.set_num_threads(1)
    layout = msgspec.json.decode(words, type=Layout)
    start = from_environment(os.environ)
    assert start is not None  # noqa: S101 - the lab says so
    source = open_source(Path(folder))
    arch = read_arch(source.fields, where=folder, dtype="float32")
    with join(start, backend="gloo", timeout_s=120) as session:
        teams = create(session, axis_groups(layout))
        comm = Comm({named.axis: team for named, team in teams.items()})
        stage = Stage(arch, layout, start.rank, comm, source, kv_blocks=PROMPT // BLOCK + DECODING + 4)
        for step in steps(layout):  # connects
            stage.run(step)
        barrier(session)
        before = snapshot() if start.rank == 0 else {}
        for _ in range(REPEATS):
            for step in steps(layout):
                stage.run(step)
        stage.drain()
        barrier(session)
        if start.rank == 0:
            after = snapshot()
            write_bytes(
                result, encode_json({link: (now[0] - before[link][0]) / REPEATS for link, now in after.items()})
            )
        dist.barrier()
    return 0


def planned(folder: Path, layout: Layout, cluster: Cluster, built: Wiring) -> dict[str, float]:
    """Bytes by `src>dst` that the plan's calls of the steps put on the links, as interfaces count them."""
    model, engine = held(load(str(folder)), "float32"), registry.get("linkwise")
    calls: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
    for step in steps(layout):
        for rank in range(layout.size):
            for call in expected(model, layout, engine, step, rank):
                if call.kind == "send":
                    calls["send_recv", call.S_bytes, (rank, call.peer)] += 1
                elif call.kind != "recv" and rank == call.members[0]:
                    calls[call.kind, call.S_bytes, call.members] += 1
    found: Counter[str] = Counter()
    for (kind, size, members), count in calls.items():
        found.update(predicted_bytes(cluster, built, Exercise(kind=kind, S_bytes=size, groups=(members,), calls=count)))
    return dict(found)


def run(name: str) -> tuple[float, str, float, float]:
    """(largest relative error, its link, predicted, counted) over links that carry at least a tenth of the busiest."""
    layout, per_node = CASES[name]
    cluster = parse(f"schema: linkwise.cluster/1\naccelerator: h100-sxm\n{_BODY.format(per_node)}", where=name)
    built = wiring(cluster)
    with tempfile.TemporaryDirectory(prefix="linkwise-lab-") as keep:
        folder, result, said = saved(Path(keep, "model"), layout), Path(keep, "result.json"), Path(keep, "said.txt")
        words = (sys.executable, "-P", "-W", "ignore", __file__, "--rank", str(folder), encode_json(layout).decode(),
                 str(result))  # fmt: skip
        with said.open("wb") as sink:
            done = run_lab(built, words, timeout_s=400, stdout=sink, stderr=sink)
        if not done.ok:
            raise SystemExit(f"{name}: {said.read_text(errors='replace')[-2000:]}")
        counted = msgspec.json.decode(read_bytes(result), type=dict[str, float])
        wanted = planned(folder, layout, cluster, built)
    most = max(wanted.values())
    worst = max(
        (link for link, size in wanted.items() if size >= most / 10),
        key=lambda link: abs(counted.get(link, 0.0) - wanted[link]) / wanted[link],
    )
    error = abs(counted.get(worst, 0.0) - wanted[worst]) / wanted[worst]
    return error, worst, wanted[worst], counted.get(worst, 0.0)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--rank"]:
        code = rank_main(*arguments[1:])
        sys.stdout.flush()
        os._exit(code)  # gloo's threads may outlive the group
    lacks = missing()
    if lacks:
        print(f"not run, this machine lacks {lacks}")
        return 0
    missed = 0
    for name in arguments or CASES:
        error, link, wanted, counted = run(name)
        missed |= error > ASKED
        print(
            f"{name:<24} worst link {link:<16} predicted {wanted / 1e6:9.3f} MB  counted {counted / 1e6:9.3f} MB"
            f"  {error:.2%} (asked {ASKED:.0%})",
            flush=True,
        )
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
