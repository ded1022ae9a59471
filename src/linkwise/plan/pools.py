"""One kind of group as a pool of it behaves: its prompt time and its decode step by batch size."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from linkwise.cluster.types import Cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.schema import Frozen
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.ledger import ledger
from linkwise.plan.operate import prefill_step, prompt_chunks, replica
from linkwise.plan.time import group_seconds, spans
from linkwise.workload.types import Workload

MAX_BATCH = 65_536

Floats = npt.NDArray[np.float64]
Steps = tuple[tuple[int, float], ...]


class Pool(Frozen, frozen=True, kw_only=True):
    """One kind of group. prefill_s: one prompt from start to end. steps: (batch, seconds of a decode step), ascending.

    prompt_s: group time a prompt takes where prompts overlap (pipeline stages, attention replicas); None = prefill_s.
    ride_s: seconds a prompt adds to the decode steps its chunks ride in; None = prompt_s (it runs alone).
    Between points a step is interpolated, below the first it costs as much as there; the last batch is the most the
    group's memory holds.
    """

    ranks: int
    prefill_s: float
    steps: Steps
    prompt_s: float | None = None
    ride_s: float | None = None
    label: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= 10**6:
            raise InputError(f"ranks is {self.ranks}", where="pool", expected="1..1000000")
        for field in ("prefill_s", "prompt_s", "ride_s"):
            value = getattr(self, field)
            if value is not None and not 0 < value < 1e6:
                raise InputError(f"{field} is {value}", where="pool", expected="above 0, below 1e6 seconds")
        batches = [b for b, _ in self.steps]
        if not batches or batches != sorted(set(batches)) or batches[0] < 1 or batches[-1] > MAX_BATCH:
            raise InputError(f"steps at batches {batches}"[:120], where="pool", expected="ascending batches from 1 up")
        if not all(0 < s < 1e6 for _, s in self.steps):
            raise InputError("a step takes no or endless time", where="pool", expected="above 0, below 1e6 seconds")

    @property
    def prompt(self) -> float:
        return self.prefill_s if self.prompt_s is None else self.prompt_s

    @property
    def ride(self) -> float:
        return self.prompt if self.ride_s is None else self.ride_s

    def table(self) -> tuple[Floats, Floats]:
        """Every batch up to the largest, and its step."""
        return _table(self.steps)

    def grid(self) -> tuple[Floats, Floats]:
        """Every batch up to 128, then every 64th part more, and the points of `steps`; and the steps."""
        return _grid(self.steps)

    def points(self) -> tuple[Floats, Floats]:
        """The batches of `steps`, and the steps."""
        return _points(self.steps)

    def step(self, batch: int) -> float:
        """Seconds of a decode step with `batch` requests."""
        if not 1 <= batch <= self.steps[-1][0]:
            raise InputError(f"batch {batch}", where="pool", expected=f"1..{self.steps[-1][0]}")
        return float(np.interp(batch, [b for b, _ in self.steps], [s for _, s in self.steps]))


# A verdict is asked hundreds of times for the same pools while its break-even is looked for.
@lru_cache(maxsize=512)
def _table(steps: Steps) -> tuple[Floats, Floats]:
    batches = np.arange(1, steps[-1][0] + 1, dtype=float)
    return batches, np.interp(batches, *_points(steps))


@lru_cache(maxsize=512)
def _grid(steps: Steps) -> tuple[Floats, Floats]:
    batches, values = _points(steps)
    far = np.floor(128 * (1 + 1 / 64) ** np.arange(1, 64 * 7))
    wanted = np.unique(np.concatenate([np.arange(1.0, 129.0), far, batches]))
    wanted = wanted[wanted <= batches[-1]]
    return wanted, np.interp(wanted, batches, values)


@lru_cache(maxsize=512)
def _points(steps: Steps) -> tuple[Floats, Floats]:
    batches, values = zip(*steps, strict=True)
    return np.array(batches, float), np.array(values, float)


class Question(Frozen, frozen=True, kw_only=True):
    """What is compared. exposed_s: handoff time prefill does not hide. link_rate_per_s: handoffs/s one group's route
    carries (None = no limit). limiting_link: its name. rate_per_s: the rate the pools are to serve, where one is asked.

    others: further kinds of mixed groups; the one with the most requests/s inside the targets is compared.
    groups: prefill and decode groups where their numbers are given; None = as many as serve most on the devices.
    elsewhere: devices of prefill groups where `devices` are those of the others alone; None = all share `devices`.

    failures_per_device_hour: 419 unexpected interruptions in 54 days of 16,384 devices (Llama 3 herd of models, arXiv
    2407.21783, section 3.3.4). restart_s: a group's way back (stated; measure it).
    """

    devices: int
    output_tokens: int
    mixed: Pool
    prefill: Pool
    decode: Pool
    ttft_s: float | None = None
    tpot_s: float | None = None
    others: tuple[Pool, ...] = ()
    rate_per_s: float | None = None
    groups: tuple[int, int] | None = None
    elsewhere: int | None = None
    exposed_s: float = 0.0
    link_rate_per_s: float | None = None
    limiting_link: str = ""
    failures_per_device_hour: float = 419 / (54 * 24 * 16_384)
    restart_s: float = 300.0

    def __post_init__(self) -> None:
        for field, value, low, high in (
            ("devices", self.devices, 1, 10**6),
            ("output_tokens", self.output_tokens, 1, 10**8),
            ("ttft_s", self.ttft_s, 1e-9, 1e6),
            ("tpot_s", self.tpot_s, 1e-9, 1e6),
            ("exposed_s", self.exposed_s, 0, 1e6),
            ("rate_per_s", self.rate_per_s, 1e-9, 1e9),
            ("elsewhere", self.elsewhere, 1, 10**6),
            ("groups", None if self.groups is None else min(self.groups), 1, 10**6),
            ("groups", None if self.groups is None else max(self.groups), 1, 10**6),
            ("link_rate_per_s", self.link_rate_per_s, 1e-9, 1e9),
            ("failures_per_device_hour", self.failures_per_device_hour, 0, 1),
            ("restart_s", self.restart_s, 0, 1e6),
        ):
            if value is not None and not low <= value <= high:  # NaN is refused as well
                raise InputError(f"{field} is {value}", where="disaggregation", expected=f"{low}..{high}")


def pool_of(
    model: Model, cluster: Cluster, engine: Engine, layout: Layout, workload: Workload, options: Options
) -> Pool:
    """A pool's figures from the plan's time model: what the search ranks layouts by.

    The largest batch is what the ledger's KV holds at the workload's lengths. Raises InputError when the layout does
    not fit.
    """
    memory = ledger(model, cluster, engine, layout, options, workload)
    if memory.shortfall is not None or memory.requests < 1:
        reason = memory.shortfall.reason if memory.shortfall else "no request fits"
        raise InputError(f"{layout} does not fit: {reason}", where="pool", expected="a layout that fits")
    settings = engine.resolve(options, model, cluster.accelerator, layout)
    most = min(memory.requests, settings.max_seqs * layout.dp_attn, MAX_BATCH)
    batches = np.unique(np.append(2 ** np.arange(0, 17), most))
    batches = batches[batches <= most]
    places = spans(layout, cluster)
    at = replica(model, layout, engine, cluster, workload, options, batches, places)
    rounds = np.broadcast_to(at.length.calm, batches.shape)
    # A larger batch is never quicker; cuts of a batch into whole requests per step make ripples.
    rounds = np.maximum.accumulate(rounds)
    alone = group_seconds(
        model, layout, engine, cluster, prefill_step(workload, settings.max_batched_tokens), options, places
    )  # fmt: skip
    chunks = prompt_chunks(workload, settings.max_batched_tokens)[1]
    added = chunks * float(np.max(np.subtract(at.mixed.interval, at.decode.interval))) / layout.dp_attn
    cost = chunks * float(alone.interval) / layout.dp_attn
    return Pool(
        ranks=layout.size,
        prefill_s=float(alone.token) + (chunks - 1) * float(alone.interval),
        prompt_s=cost,
        ride_s=None if engine.batching.policy == "prefill-first" else max(added, 1e-9),
        steps=tuple((int(b), float(s)) for b, s in zip(batches, rounds, strict=True)),
        label=str(layout),
    )
