"""A rank without torch, started as a process: the real worker around the fake model, with calls that wait for others.

Ranks meet in a folder: each appends a byte per call to its file and waits until the others' files are as long. A token
from 40 on in a prompt makes one rank misbehave: see `_misbehave`.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.runtime.fake_model import VOCAB, Memory

from linkwise.core.errors import InputError
from linkwise.core.layout import coordinates
from linkwise.runtime.control import Begin, Move, RankFacts, Run
from linkwise.runtime.worker import main

SLEEP, RAISE, LEAVE, LAG = 40, 44, 48, 52  # + the rank: sleep for long, raise, exit, be late in every step
LONG = 56  # + the rank: compute for half as long again as the time limit, piece by piece
BUSY = 60  # the same on rank 0 in one piece, with nothing but its processor time to show for it
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}


def prepare(folder: Path, **more: object) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | more))
    return folder


class Parted(Exception):
    pass


class FakeHome:
    port = 0

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def parted(self, error: BaseException) -> bool:
        return isinstance(error, Parted)

    @contextmanager
    def build(self, begin: Begin) -> Iterator["FakeRank"]:
        fields = json.loads((Path(begin.spec.weights) / "config.json").read_text())
        if fields.get("missing_on") == self.rank:
            raise InputError("tensor 'x' is missing", where="model.safetensors", expected="all tensors")
        if fields.get("exits_on") == self.rank:
            sys.exit("no such library")
        if fields.get("sleeps_on") == self.rank:
            time.sleep(60)
        yield FakeRank(begin, self.rank)


class FakeRank:
    def __init__(self, begin: Begin, rank: int) -> None:
        spec = begin.spec
        self.place = coordinates(spec.layout, rank)
        self.rank, self.spec = rank, spec
        self.memory = Memory(spec.block_tokens * spec.layout.cp * spec.layout.dcp)
        self.folder = Path(spec.weights) / f"meet-{begin.spec.name}"
        self.folder.mkdir(exist_ok=True)
        self.calls, self.pieces, self.waiting = 0, 0, ""
        self.lag = 0.0
        self.facts = RankFacts(rank=rank, pid=__import__("os").getpid(), host="here", machine="m", device="cpu")

    def progress(self) -> tuple[int, str]:
        return self.calls + self.pieces, self.waiting

    def unwritten(self) -> tuple[int, str]:
        file = Path(self.spec.weights) / "unwritten"  # [events, why]
        return tuple(json.loads(file.read_text())) if file.exists() else (0, "")

    def run(self, message: Run) -> tuple[tuple[tuple[int, int], ...], int, tuple[()]]:
        batch = message.step.batches[self.place["dp_attn"]]
        for token in {token for row in batch if row.prompt for token in row.tokens}:
            self._misbehave(token)
        time.sleep(self.lag)
        began = time.monotonic_ns()
        self._together()
        waited = time.monotonic_ns() - began
        drawn = self.memory.run(batch)
        last = self.place["pp"] == self.spec.layout.pp - 1 and self.place["tp"] == 0
        return tuple(drawn.items()) if last else (), waited, ()

    def move(self, message: Move) -> tuple[()]:
        raise NotImplementedError

    def _misbehave(self, token: int) -> None:
        if token == SLEEP + self.rank:
            time.sleep(600)
        elif token == RAISE + self.rank:
            raise ValueError("out of luck")
        elif token == LEAVE + self.rank:
            sys.stderr.write("fatal: leaving\n")
            sys.stderr.flush()
            __import__("os")._exit(3)
        elif token == LAG + self.rank:
            self.lag = 0.05
        elif token == BUSY and self.rank == 0:
            end = time.monotonic() + 1.5 * self.spec.timeout_s
            while time.monotonic() < end:
                sum(range(1000))
        elif token == LONG + self.rank:
            for _ in range(60):
                time.sleep(self.spec.timeout_s / 40)
                self.pieces += 1

    def _together(self) -> None:
        with (self.folder / str(self.rank)).open("ab") as file:
            file.write(b".")
        self.calls += 1
        self.waiting = "attn.out"
        deadline = time.monotonic() + self.spec.call_s
        others = [self.folder / str(rank) for rank in range(self.spec.layout.size)]
        while not all(other.exists() and other.stat().st_size >= self.calls for other in others):
            if time.monotonic() > deadline:
                raise Parted("a call ran out of time")
            time.sleep(0.001)
        self.waiting = ""


if __name__ == "__main__":
    raise SystemExit(main(FakeHome))
