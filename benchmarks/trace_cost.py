"""What a rank's trace costs: nanoseconds per event times events per step over the step time; under 2 % is asked.

First one process alone: what an event costs the step (appending), and the thread that writes it (encoding, file). Then
two real ranks over gloo, tp2, a Llama of random weights with SmolLM2-135M's shapes (`--layers`, fewer by default):
decode steps in blocks, traced and untraced in turn, so that drifts of the machine fall on both; the difference is shown
with its 95 % interval. The second includes what the writing thread takes from the step.
"""

# ruff: noqa: PLC0415 - torch is an extra: without it the script says so and ends well

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ASKED = 0.02
EVENTS = 20_000
BLOCK, WARM = 10, 10
HIDDEN, INNER, HEADS, KV_HEADS, VOCAB = 576, 1536, 8, 2, 8192  # 9 and 3 heads do not divide over two ranks


def main() -> int:
    words = argparse.ArgumentParser()
    words.add_argument("--layers", type=int, default=12)
    words.add_argument("--blocks", type=int, default=40, help="pairs of blocks of 10 steps")
    words.add_argument("--folder", help=argparse.SUPPRESS)
    asked = words.parse_args()
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("safetensors") is None:
        print("trace cost: not run, PyTorch or safetensors is not installed (pip install linkwise[run])")
        return 0
    if asked.folder:
        return rank(Path(asked.folder), asked.blocks)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hear_ns, write_ns, size = alone(folder / "alone")
        print(f"one event: {hear_ns:5.0f} ns in the step, {write_ns:5.0f} ns in the writing thread, {size:.0f} bytes")
        model(folder / "model", asked.layers)
        start(folder, asked.blocks)
        found = json.loads((folder / "result.json").read_text())
    each, events = found["off_s"], found["events"]
    share = (hear_ns + write_ns) * 1e-9 * events / each
    low, high = found["low"], found["high"]
    print(
        f"two ranks, tp2, {asked.layers} layers, one decode row: {each * 1e3:.2f} ms a step, {events:.0f} events a step"
    )
    print(f"ns x events / step time      {share:7.2%}   {'under' if share < ASKED else 'NOT UNDER'} {ASKED:.0%}")
    print(
        f"traced against untraced      {found['mean']:+7.2%}   95 % interval {low:+.2%} .. {high:+.2%},"
        f" {found['pairs']} pairs of {BLOCK} steps, interleaved"
    )
    return 0 if share < ASKED else 1


def alone(folder: Path) -> tuple[float, float, float]:
    """ns per event in the step and in the writing thread, and bytes per event: calls that do nothing."""
    import torch

    from linkwise.core.layout import Layout
    from linkwise.dist.groups import Team
    from linkwise.runtime.comm import Comm
    from linkwise.runtime.recorder import open_recorder

    team, tensor = Team("tp", (0, 1), None, 0), torch.zeros(HIDDEN)
    comm = Comm({"tp": team})

    def calls() -> float:
        began = time.process_time_ns()  # what other processes take from the machine is not the trace's cost
        for _ in range(EVENTS):
            comm._do("all_reduce", "attn.out", team, tensor, int)
        return (time.process_time_ns() - began) / EVENTS

    recorder = open_recorder(folder, comm, Layout(tp=2), 0, rank=0, world=2, events=EVENTS, turn_s=0)
    heard, quiet, written = [], [], []
    for _ in range(9):
        comm.listener = comm.entered = None
        quiet.append(calls())
        comm.listener, comm.entered = recorder.heard, recorder.entered
        heard.append(calls())
        began = time.process_time_ns()
        recorder.writer.flush()
        written.append((time.process_time_ns() - began) / EVENTS)
    size = recorder.writer.path.stat().st_size / (9 * EVENTS)
    recorder.close()
    return statistics.median(heard) - statistics.median(quiet), statistics.median(written), size


def model(folder: Path, layers: int) -> None:
    """A Llama of random weights."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "max_position_embeddings": 4096, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    head = HIDDEN // HEADS
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(layers):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
                "self_attn.v_proj": (KV_HEADS * head, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
                "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
            }.items()
        }  # fmt: skip
    torch.manual_seed(0)
    save_file({f"{n}.weight": torch.randn(s) * 0.02 for n, s in shapes.items()}, folder / "model.safetensors")


def start(folder: Path, blocks: int) -> None:
    """Two ranks on this machine; rank 0 leaves result.json."""
    from linkwise.dist.launch import LOCALHOST, serve

    store = serve(LOCALHOST, 0)
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": LOCALHOST, "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1",
           "TORCHELASTIC_USE_AGENT_STORE": "True", "LINKWISE_LAUNCHED": "1"}  # fmt: skip
    words = [sys.executable, __file__, "--folder", str(folder), "--blocks", str(blocks)]
    ranks = [subprocess.Popen(words, env=os.environ | own | {"RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(2)]
    try:
        codes = [one.wait(600) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
    if any(codes):
        raise SystemExit(f"the ranks ended with {codes}")


def rank(folder: Path, blocks: int) -> int:
    import torch

    from linkwise.core.layout import Layout
    from linkwise.dist.groups import axis_groups, create, join
    from linkwise.dist.launch import from_environment
    from linkwise.runtime.arch import read_arch
    from linkwise.runtime.comm import Comm
    from linkwise.runtime.recorder import open_recorder
    from linkwise.runtime.stage import Stage
    from linkwise.runtime.steps import Row, Step
    from linkwise.runtime.weights.source import open_source
    from linkwise.supervise.types import Sampling
    from linkwise.trace.readers.own import read_folder

    torch.set_num_threads(1)
    layout, begin = Layout(tp=2), from_environment(os.environ)
    if begin is None:
        raise SystemExit("no rank")
    with join(begin, backend="gloo", timeout_s=120) as session:
        source = open_source(folder / "model")
        teams = {team.axis: team for team in create(session, axis_groups(layout, axes=("tp",))).values()}
        comm = Comm(teams)
        arch = read_arch(source.fields, where="model", dtype="float32")
        stage = Stage(arch, layout, begin.rank, comm, source, kv_blocks=130, block_tokens=16, dtype=torch.float32)
        made: Any = open_recorder(folder / "trace", comm, layout, begin.rank, rank=begin.rank, world=2)
        number, times = 0, {True: [], False: []}

        def block(traced: bool) -> float:
            nonlocal number
            comm.listener, comm.entered = (made.heard, made.entered) if traced else (None, None)
            began = time.perf_counter()
            for _ in range(BLOCK):
                row = Row(1, number % 1024, (number % VOCAB,), False, Sampling(), tuple(range(1, 66)))
                step = Step(number, ((row,),))
                if traced:
                    made.begin(step, (("0123456789abcdef",),))
                stage.run(step)
                number += 1
            return (time.perf_counter() - began) / BLOCK

        for _ in range(WARM):
            block(True)
            block(False)
        calls = comm.calls
        # ABBA: whatever grows with time (the context does) falls on both alike.
        for pair in range(blocks):
            for traced in (True, False) if pair % 2 else (False, True):
                times[traced].append(block(traced))
        events = (comm.calls - calls) / (2 * blocks * BLOCK)
        made.close()
        seen = sum(batch.step >= 0 for batch in read_folder(folder / "trace").ranks[begin.rank].batches)
        if seen != (WARM + blocks) * BLOCK:
            raise SystemExit(f"{seen} steps in the trace")
        if begin.rank == 0:
            gains = [on / off - 1 for on, off in zip(times[True], times[False], strict=True)]
            mean, half = statistics.fmean(gains), 1.96 * statistics.stdev(gains) / len(gains) ** 0.5
            result = {"off_s": statistics.median(times[False]), "events": events, "mean": mean, "low": mean - half,
                      "high": mean + half, "pairs": len(gains)}  # fmt: skip
            (folder / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
