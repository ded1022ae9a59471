"""The simulator against a real server on this machine: 200 requests replayed, mean TTFT and TPOT within 20 %.

`linkwise serve` with random weights, on one rank and on two (tp2, gloo), tokens streamed over HTTP on localhost. Blocks
in which the server is measured and blocks that are replayed take turns, so that both meet the same machine. Measured:
requests alone and closed loops of 1, 4 and 12 users; the server's trace says for every step what it carried (tokens,
rows that drew, cached tokens) and when the next one began, and a least-squares line through those is the step's time.
What HTTP, tokenising and routing add to a first token, and how much of that the one thread that takes requests in
spends on each, is fitted to the first tokens of requests alone, of 4 and 12 users, and of a stream at 40 % of the rate
that 12 users had. Replayed: Poisson streams of requests of other lengths at 40, 60 and 75 % of it; the simulator is
given their arrivals and lengths, and nothing of theirs is used for a fit. Each seed is a server of its own. Each rank
has one thread: the server and the client compute on the same cores. What others compute meanwhile is counted: a block
waits for a quiet moment, and is run again where they took more than a tenth of a core, until PATIENCE_S are over; then
it is kept as it is, and said. Needs numba and torch, and Linux to know of others.

    python benchmarks/simulate_replay.py [LAYOUT...] [SEEDS]
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]  # as a script it is not in a package

from benchmarks.faults import tiny  # noqa: E402
from benchmarks.quiet import Quiet  # noqa: E402

from linkwise.simulate.rules import Pool, Rules  # noqa: E402
from linkwise.simulate.run import simulate  # noqa: E402
from linkwise.simulate.tables import constant  # noqa: E402
from linkwise.trace.gather import gather  # noqa: E402
from linkwise.workload.requests import requests  # noqa: E402

ASKED, REQUESTS, BLOCKS, SHARES, LIGHT = 0.20, 200, 8, (0.4, 0.6, 0.75), 0.4
SEEDS = 3
PATIENCE_S = float(os.environ.get("REPLAY_PATIENCE_S", "300"))  # of a server
LAYOUTS = ("tp=1", "tp=2")
BUDGET, SEQS, BLOCK, KV, MAX_LEN = 2048, 256, 16, 65_536, 2048
IDLE = 10  # a pause so many times the usual time of a step is no step
USERS = (1, 4, 12)


class Sent(NamedTuple):
    """One request as its client saw it, seconds from the start of the run."""

    at: float
    first: float
    end: float
    input: int
    output: int


class Line(NamedTuple):
    """Seconds of a step: fixed + token x tokens + row x rows that draw + cached x cached tokens of its requests."""

    fixed: float
    token: float
    row: float
    cached: float
    error: float
    steps: int


class Compared(NamedTuple):
    """Mean seconds of a replay: TTFT and TPOT as simulated and as they were."""

    ttft: float
    tpot: float
    real_ttft: float
    real_tpot: float


def main() -> int:
    layouts = [word for word in sys.argv[1:] if "=" in word] or LAYOUTS
    seeds = next((int(word) for word in sys.argv[1:] if word.isdigit()), SEEDS)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        weights = model(Path(folder) / "model")
        for layout in layouts:
            found = [trial(weights, layout, Path(folder) / f"{layout.replace('=', '')}-{n}", n) for n in range(seeds)]
            for share in SHARES:
                missed += said(layout, share, [one[share] for one in found])
    return 1 if missed else 0


def trial(weights: Path, layout: str, folder: Path, seed: int) -> dict[float, Compared]:
    """One server: what was replayed at each share of the rate, beside the same simulated."""
    port = free_port()
    before = os.getloadavg()[0]
    server = start(weights, layout, port, folder)
    try:
        ready(server, port)
        quiet = Quiet(server.pid, time.monotonic() + PATIENCE_S)
        alone, loops, blocks, spans = asyncio.run(turns(port, seed, quiet))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    line = fitted(folder, spans)
    each_alone = [[one._replace(at=0.0, first=one.first - one.at, end=one.end - one.at)] for one in alone]
    request, each = front(line, each_alone + loops)
    print(
        f"{layout}, seed {seed}: a step takes {line.fixed * 1e3:.2f} ms + {line.token * 1e6:.1f} us a token +"
        f" {line.row * 1e6:.0f} us a row + {line.cached * 1e9:.0f} ns a cached token (r.m.s. error"
        f" {line.error * 1e3:.2f} ms over {line.steps:,} steps); {request * 1e3:.1f} ms beside, and"
        f" {each * 1e3:.1f} ms one request after the other; load {before:.1f} before,"
        f" {os.getloadavg()[0]:.1f} after; {quiet.said()}",
        flush=True,
    )
    return {share: compared(line, runs, request, each) for share, runs in blocks.items()}


def compared(line: Line, runs: list[list[Sent]], request: float, each: float) -> Compared:
    """Replays of one rate as one: every request counts as much."""
    sent = [one for run in runs for one in run]
    seen = np.array([simulated(line, run, request, each) for run in runs])
    ttft, tpot = (float(x) for x in np.array([len(run) for run in runs]) / len(sent) @ seen)
    real_ttft = float(np.mean([x.first - x.at for x in sent]))
    return Compared(ttft, tpot, real_ttft, float(np.mean([(x.end - x.first) / (x.output - 1) for x in sent])))


def model(folder: Path) -> Path:
    """A random Llama whose steps take milliseconds on a CPU."""
    return tiny(folder, hidden=192, intermediate=512, layers=4, heads=8, max_len=MAX_LEN)


def start(weights: Path, layout: str, port: int, trace: Path) -> subprocess.Popen[bytes]:
    linkwise = str(Path(sys.executable).with_name("linkwise"))
    words = [
        linkwise, "serve", "--weights", str(weights), "--layout", layout, "--port", str(port), "--trace", str(trace),
        "--kv-tokens", str(KV), "--max-batched-tokens", str(BUDGET), "--max-seqs", str(SEQS), "--backend", "gloo",
    ]  # fmt: skip
    # One thread a rank: two ranks, the server and the client share this machine.
    return subprocess.Popen(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended: {server.stderr.read().decode()[-500:] if server.stderr else ''}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as one:
                one.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if b" 200 " in one.recv(100):
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the server is not ready")


async def one_request(port: int, zero: float, inputs: int, outputs: int, draw: np.random.Generator) -> Sent:
    """One streamed completion over a connection of its own: when it was sent, its first and its last token."""
    prompt = "".join(map(chr, draw.integers(33, 127, inputs)))
    body = json.dumps(
        {"model": "model", "prompt": prompt, "max_tokens": outputs, "ignore_eos": True, "temperature": 0,
         "stream": True}
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    at = time.perf_counter() - zero
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    first = end = 0.0
    text = 0
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event["error"])[:200])
        new = len(event["choices"][0].get("text") or "") if event.get("choices") else 0
        if new:
            end = time.perf_counter() - zero
            first, text = first or end, text + new
    writer.close()
    if not first:
        raise RuntimeError("no token came")
    return Sent(at, first, end, inputs, outputs)


async def turns(
    port: int, seed: int, quiet: Quiet
) -> tuple[list[Sent], list[list[Sent]], dict[float, list[list[Sent]]], list[tuple[int, int]]]:
    """Requests alone, users at once, replays by their share of the rate, and when the server was measured (ns of the
    monotonic clock)."""
    draw = np.random.default_rng(seed)
    for _ in range(5):  # it warms up
        await one_request(port, time.perf_counter(), 50, 5, draw)
    alone: list[Sent] = []
    loops: list[list[Sent]] = []
    blocks: dict[float, list[list[Sent]]] = {share: [] for share in SHARES}
    spans = []
    for _ in range(BLOCKS):
        found, together, rate, span = await quiet.run(lambda: measured(port, draw))
        spans.append(span)
        alone += found
        loops += together
        for share, runs in blocks.items():
            runs.append(await quiet.run(lambda at=rate * share: replayed(port, at, REQUESTS // BLOCKS, draw)))  # type: ignore[misc]
    return alone, loops, blocks, spans


async def measured(port: int, draw: np.random.Generator) -> tuple[list[Sent], list[list[Sent]], float, tuple[int, int]]:
    """Requests alone, then users at once; the requests/s of the most of them; when that was."""
    started, alone, together, rate = time.monotonic_ns(), [], [], 0.0
    for _ in range(3):
        alone.append(await one_request(port, time.perf_counter(), int(draw.integers(20, 401)), 4, draw))
    for users in USERS:
        began = time.perf_counter()
        sizes = [(int(draw.integers(20, 401)), int(draw.integers(8, 33))) for _ in range(users)]
        together.append(list(await asyncio.gather(*(one_request(port, began, *size, draw) for size in sizes))))
        rate = users / (time.perf_counter() - began)
    together.append(await replayed(port, rate * LIGHT, 12, draw, (20, 401), (8, 33)))
    return alone, together, rate, (started, time.monotonic_ns())


async def replayed(
    port: int, rate: float, number: int, draw: np.random.Generator, inputs: tuple[int, int] = (40, 351),
    outputs: tuple[int, int] = (10, 31),
) -> list[Sent]:  # fmt: skip
    """A Poisson stream of requests, whatever becomes of those before."""
    zero, at, tasks = time.perf_counter(), 0.0, []
    for _ in range(number):
        at += float(draw.exponential(1 / rate))
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - zero)))
        size = int(draw.integers(*inputs)), int(draw.integers(*outputs))
        tasks.append(asyncio.create_task(one_request(port, zero, *size, draw)))
    return list(await asyncio.gather(*tasks))


def fitted(trace: Path, spans: list[tuple[int, int]]) -> Line:
    """The step's time from the trace of rank 0: what each step carried, against when the next one began.

    spans: when the server was measured; steps outside are left out.
    """
    record = next(x for x in gather((str(trace),)).trace.ranks if x.batches)
    cached: dict[str, int] = {}
    features, begins, ends = [], [], []
    for batch in record.batches:
        tokens = rows = before = 0
        for key, new in zip(batch.requests, batch.tokens, strict=True):
            known = cached.get(key, 0)
            tokens, rows, before = tokens + new, rows + 1, before + known + new
            cached[key] = known + new
        features.append((1.0, tokens, rows, before))
        begins.append(batch.began_ns)
        ends.append(batch.ended_ns)
    period, pause = np.diff(begins) / 1e9, (np.array(begins[1:]) - np.array(ends[:-1])) / 1e9
    at = np.array(begins[:-1])
    busy = (pause < IDLE * np.median(pause)) & np.any([(at >= a) & (at < b) for a, b in spans], axis=0)
    table, seconds = np.array(features[:-1], float)[busy], period[busy]
    keep = [0, 1, 2, 3]
    while True:
        found, *_ = np.linalg.lstsq(table[:, keep], seconds, rcond=None)
        if (found >= 0).all():
            break
        keep.pop(int(np.argmin(found)))  # a cost below nothing: the others carry it
    whole = np.zeros(4)
    whole[keep] = found
    error = float(np.sqrt(np.mean((table @ whole - seconds) ** 2)))
    return Line(*map(float, whole), error, len(seconds))


def front(line: Line, runs: list[list[Sent]]) -> tuple[float, float]:
    """Seconds beside a first token's step, and seconds that requests spend one after the other: what explains the first
    tokens of several runs best, each run as one."""
    real = np.array([np.mean([x.first - x.at for x in run]) for run in runs])

    def off(pair: tuple[float, float]) -> float:
        found = np.array([simulated(line, run, *pair)[0] for run in runs])
        return float(np.mean(np.log(found / real) ** 2))

    most = float(np.median(real))
    at, width = (most / 2, most / 2), most / 2
    for _ in range(4):  # a grid around the best, four times as fine each time
        steps = np.linspace(-width, width, 5)
        tried = [(max(0.0, at[0] + a), max(0.0, at[1] + b)) for a in steps for b in steps]
        at, width = min(tried, key=off), width / 2
    return at


def simulated(line: Line, sent: list[Sent], request: float, each: float) -> tuple[float, float]:
    """Mean TTFT and TPOT the simulator gives these requests, seconds. request, each: of taking one in, beside others
    and one after the other."""
    read = line.cached * np.arange(MAX_LEN + 2.0)[None, :]
    tables = constant(line.fixed, tokens=BUDGET, per_token=line.token)._replace(
        head=line.row * np.arange(SEQS + 2.0)[None, :], logits=np.zeros((1, SEQS + 2)), read=read,
        flop=np.zeros_like(read), context=np.zeros_like(read), cell=1.0,
    )  # fmt: skip
    rules = Rules(
        budget=BUDGET, max_seqs=SEQS, block_tokens=BLOCK, kv_blocks=KV // BLOCK, prefix_cache=False, front_s=request,
        front_each_s=each,
    )  # fmt: skip
    order = sorted(sent)
    load = requests(
        np.array([x.at for x in order]), np.array([x.input for x in order]), np.array([x.output for x in order])
    )
    found: Any = simulate([Pool(rules, tables)], load).summary
    return float(found.ttft.mean), float(found.tpot.mean)


def said(layout: str, share: float, found: list[Compared]) -> int:
    """A line for each figure, of all seeds as one and of each; how many figures are missed."""
    missed = 0
    for name, place in (("TTFT", 0), ("TPOT", 1)):
        pairs = [(one[place], one[place + 2]) for one in found]
        predicted, seen = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
        off = predicted / seen - 1
        apart = ", ".join(f"{a / b - 1:+.0%}" for a, b in pairs)
        missed += abs(off) > ASKED
        print(
            f"  {layout} at {share:.0%}, mean {name} of {len(found)} x {REQUESTS} requests, ms: simulated"
            f" {predicted * 1e3:7.2f}  real {seen * 1e3:7.2f}  {off:+.0%} (by seed {apart})  asked {ASKED:.0%}"
            f" {'MISSED' if abs(off) > ASKED else 'met'}",
            flush=True,
        )
    return missed


if __name__ == "__main__":
    sys.exit(main())
