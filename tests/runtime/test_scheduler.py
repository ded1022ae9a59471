"""The scheduler against a model that notices wrong blocks, over random requests, sizes, cancellations and layouts."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.fake_model import Memory, text

from linkwise.core.layout import Layout
from linkwise.runtime.blocks import Blocks, chained
from linkwise.runtime.scheduler import Limits, Phase, Scheduler
from linkwise.runtime.steps import FILLER, Step, batch_rows
from linkwise.supervise.types import Event, Finished, Job, Token


class Bench:
    """A scheduler with its model: steps are run when they are made, and completed later, in order."""

    def __init__(self, layout: Layout | None = None, *, check: bool = True, **sizes: int) -> None:
        usual = {"kv_tokens": 64, "block_tokens": 4, "max_batched_tokens": 16, "max_seqs": 4, "max_len": 1000}
        self.limits = Limits(layout or Layout(), **(usual | sizes))
        self.scheduler = Scheduler(self.limits)
        self.memories = [Memory(self.limits.span) for _ in self.scheduler.pools]
        self.open: list[tuple[Step, dict[tuple[int, int], int]]] = []
        self.events: list[Event] = []
        self.steps: list[Step] = []
        self.check = check

    def launch(self) -> bool:
        step = self.scheduler.schedule()
        if step is None:
            return False
        self.steps.append(step)
        drawn = {
            (replica, row): token
            for replica, batch in enumerate(step.batches)
            for row, token in self.memories[replica].run(batch).items()
        }
        self.open.append((step, drawn))
        if self.check:
            self.verify(step)
        return True

    def finish(self) -> None:
        step, drawn = self.open.pop(0)
        self.events += self.scheduler.complete(step.number, drawn)
        self.conserved()

    def drain(self, most: int = 2000) -> None:
        for _ in range(most):
            while self.launch():
                pass
            if not self.open:
                return
            self.finish()
        raise AssertionError("it does not come to an end")

    def verify(self, step: Step) -> None:
        cp = self.limits.layout.cp
        assert len({batch_rows(batch, cp) for batch in step.batches}) == 1
        for batch in step.batches:
            kinds = [row.prompt for row in batch]
            assert kinds == sorted(kinds)
            assert sum(len(row.tokens) for row in batch if row.request != FILLER) <= self.limits.max_batched_tokens
        under_way = [
            row.request for step, _ in self.open for batch in step.batches for row in batch if row.request != FILLER
        ]
        assert max(Counter(under_way).values()) == 1

    def conserved(self) -> None:
        for replica, pool in enumerate(self.scheduler.pools):
            owned = Counter(block for r in self.scheduler.running[replica] for block in r.blocks)
            assert pool.used == len(owned)
            assert pool.used + pool.free == pool.count - 1
            assert all(pool._owners[block] == owners for block, owners in owned.items())

    def said(self, id: str) -> list[int]:
        tokens = [event for event in self.events if isinstance(event, Token) and event.id == id]
        assert [event.index for event in tokens] == list(range(len(tokens)))
        return [event.token for event in tokens]

    def ends(self, id: str) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Finished) and event.id == id]


def job(id: str, prompt: list[int], tokens: int = 5, stop: frozenset[int] = frozenset()) -> Job:
    return Job(id, tuple(prompt), tokens, stop_ids=stop)


LAYOUTS = (
    Layout(),
    Layout(pp=2),
    Layout(pp=3),
    Layout(dp_attn=2),
    Layout(dp_attn=3, pp=2),
    Layout(cp=2),
    Layout(cp=2, dp_attn=2),
    Layout(tp=4, dcp=2),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), layout=st.sampled_from(LAYOUTS))
def test_every_request_gets_exactly_its_text(seed: int, layout: Layout) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secrets
    block = rng.choice((1, 2, 4))
    replicas, span = layout.dp_attn, block * layout.cp * layout.dcp
    blocks = rng.randint(3, 24)
    bench = Bench(
        layout,
        kv_tokens=blocks * span * replicas,
        block_tokens=block,
        max_batched_tokens=rng.randint(4, 40),
        max_seqs=rng.randint(1, 6),
    )
    shared = [rng.randrange(64) for _ in range(20)]
    wanted: dict[str, tuple[list[int], int]] = {}
    cancelled: set[str] = set()
    arrivals = [str(i) for i in range(rng.randint(1, 14))]
    while arrivals or bench.open or bench.scheduler.open:
        doing = rng.random()
        if arrivals and doing < 0.4:
            id = arrivals.pop()
            most = bench.limits.max_len
            prompt = [*shared[: rng.randint(0, min(20, most - 2))], rng.randrange(64)]
            wanted[id] = prompt, rng.randint(1, 12)
            bench.scheduler.add(job(id, prompt, wanted[id][1]), urgent=rng.random() < 0.1)
        elif doing < 0.45 and bench.scheduler.open:
            id = rng.choice(bench.scheduler.open)
            cancelled.add(id)
            bench.events += bench.scheduler.cancel(id)
            bench.conserved()
        elif doing < 0.75:
            bench.launch()
        elif bench.open:
            bench.finish()
        elif not bench.launch() and not arrivals:
            raise AssertionError(f"stuck with {bench.scheduler.open}")
    for id, (prompt, tokens) in wanted.items():
        room = bench.limits.max_len - len(prompt)
        right = text(prompt, min(tokens, room))
        assert len(bench.ends(id)) == 1
        if id in cancelled:
            assert bench.ends(id) == ["cancelled"]
            assert bench.said(id) == right[: len(bench.said(id))]
        else:
            assert bench.said(id) == right
    assert all(pool.used == 0 for pool in bench.scheduler.pools)


def test_prompts_are_chunked_behind_decodes() -> None:
    bench = Bench(max_batched_tokens=8)
    bench.scheduler.add(job("a", [1, 2, 3], 20))
    bench.launch()
    bench.finish()
    bench.scheduler.add(job("b", list(range(20)), 2))
    bench.launch()
    batch = bench.steps[-1].batches[0]
    assert [(row.prompt, len(row.tokens), row.draw is None) for row in batch] == [(False, 1, False), (True, 7, True)]
    bench.drain()
    assert bench.said("b") == text(list(range(20)), 2)


def test_a_prefix_is_computed_once_and_the_last_token_always() -> None:
    bench = Bench()
    prompt = list(range(12))
    for id in ("a", "b"):
        bench.scheduler.add(job(id, prompt, 3))
        bench.drain()
    assert bench.scheduler.load.prefix_hit_tokens == 8  # of three blocks of 4 the last holds the last token
    first = [row for step in bench.steps for row in step.batches[0] if row.prompt]
    assert [(row.start, len(row.tokens)) for row in first] == [(0, 12), (8, 4)]
    assert bench.said("a") == bench.said("b") == text(prompt, 3)


def test_out_of_blocks_the_latest_gives_way() -> None:
    bench = Bench(kv_tokens=16, max_batched_tokens=16)
    bench.scheduler.add(job("first", [1] * 6, 8))
    bench.scheduler.add(job("second", [2] * 6, 8))
    bench.drain()
    assert bench.scheduler.load.preemptions > 0
    ends = [event.id for event in bench.events if isinstance(event, Finished)]
    assert ends == ["first", "second"]
    assert bench.said("second") == text([2] * 6, 8)


def test_a_stop_token_ends_the_text_and_is_none_of_it() -> None:
    right = text([5, 6], 6)
    stop = right[3]
    bench = Bench()
    bench.scheduler.add(job("a", [5, 6], 50, frozenset({stop})))
    bench.drain()
    assert bench.said("a") == right[: right.index(stop)]
    assert bench.ends("a") == ["stop"]


def test_cancelling_frees_blocks_while_a_step_is_under_way() -> None:
    bench = Bench()
    bench.scheduler.add(job("a", [1] * 10, 9))
    bench.launch()
    assert bench.scheduler.load.kv_used_tokens == 12
    assert bench.scheduler.cancel("a") == [Finished("a", "cancelled")]
    assert bench.scheduler.load.kv_used_tokens == 0
    bench.finish()
    assert bench.said("a") == []
    assert bench.scheduler.cancel("a") == []


def test_stages_of_a_pipeline_each_get_their_part_of_the_decodes() -> None:
    bench = Bench(Layout(pp=2), kv_tokens=400, max_seqs=8, max_batched_tokens=64)
    for i in range(6):
        bench.scheduler.add(job(str(i), [i], 6))
    bench.launch()
    bench.finish()
    assert bench.launch() and bench.launch() and not bench.launch()
    assert [len(step.batches[0]) for step in bench.steps[-2:]] == [3, 3]


def test_an_urgent_request_goes_first_and_past_the_limit() -> None:
    bench = Bench(max_seqs=1)
    bench.scheduler.add(job("long", [1], 50))
    bench.launch()
    bench.finish()
    bench.scheduler.add(job("probe", [0], 1), urgent=True)
    bench.launch()
    bench.finish()
    assert bench.ends("probe") == ["length"]
    assert bench.scheduler.load.generated_tokens == 2  # a probe is no traffic


def test_a_request_ends_where_the_blocks_end() -> None:
    bench = Bench(kv_tokens=12)
    bench.scheduler.add(job("a", [1, 2, 3], 100))
    bench.drain()
    assert len(bench.said("a")) == 9
    assert bench.ends("a") == ["length"]


def test_requests_go_to_the_replica_with_the_fewest() -> None:
    bench = Bench(Layout(dp_attn=2), kv_tokens=200)
    for i in range(4):
        bench.scheduler.add(job(str(i), [i], 4))
    bench.launch()
    assert [len(running) for running in bench.scheduler.running] == [2, 2]


def test_a_handover_moves_a_request_and_its_blocks() -> None:
    limits = Limits(Layout(), kv_tokens=16, block_tokens=4, max_batched_tokens=32, max_seqs=4, max_len=100)
    source, target = Scheduler(limits, prefill_only=True), Scheduler(limits)
    source.add(job("a", [1] * 6, 3))
    step = source.schedule()
    assert step is not None
    events = source.complete(step.number, {(0, 0): 9})
    request = source.leaving[0]
    assert events == [Token("a", 9, 0)] and request.phase is Phase.HANDOVER
    blocks = target.reserve(request)
    assert blocks is not None and len(blocks) == 2
    request.busy = True
    source.leave(request)
    own = target.adopt(request, blocks)
    assert own.phase is Phase.DECODE and source.load.kv_used_tokens == 0 and source.open == []
    step = target.schedule()
    assert step is not None
    row = step.batches[0][0]
    assert (row.start, row.tokens, row.prompt, row.blocks) == (6, (9,), False, tuple(blocks))
    assert target.complete(step.number, {(0, 0): 4}) == [Token("a", 4, 1)]


def test_cancelled_in_a_handover_blocks_stay_until_it_is_over() -> None:
    limits = Limits(Layout(), kv_tokens=16, block_tokens=4, max_batched_tokens=32, max_seqs=4, max_len=100)
    source = Scheduler(limits, prefill_only=True)
    source.add(job("a", [1] * 6, 3))
    step = source.schedule()
    assert step is not None
    source.complete(step.number, {(0, 0): 9})
    request = source.leaving[0]
    request.busy = True
    assert source.cancel("a") == [Finished("a", "cancelled")]
    assert source.load.kv_used_tokens == 8
    source.leave(request)
    assert source.load.kv_used_tokens == 0


def test_free_blocks_keep_their_contents_until_the_oldest_is_needed() -> None:
    pool = Blocks(4)
    keys = chained(list(range(12)), 4)
    blocks = pool.take(3)
    for block, key in zip(blocks, keys, strict=True):
        pool.name(block, key)
    pool.leave(blocks)
    assert pool.find(keys) == blocks and pool.free == 3
    pool.leave(pool.take(1))
    assert pool.find(keys) == blocks[:2]  # the end of a text goes before its beginning


@pytest.mark.parametrize("known", [0, 1, 2])
def test_keys_depend_on_all_before(known: int) -> None:
    keys = chained([1, 2, 3, 4, 5, 6, 7], 2)
    assert len(keys) == 3
    assert chained([1, 2, 3, 4, 5, 6, 7], 2, keys[:known]) == keys
    assert chained([9, 2, 3, 4], 2)[1] != keys[1]


def test_blocks_cost_nothing_before_they_are_used() -> None:
    blocks = Blocks(10**12)
    taken = blocks.take(3)
    assert taken == [1, 2, 3] and (blocks.used, blocks.free) == (3, 10**12 - 4)
    blocks.name(1, b"a")
    blocks.leave(taken)
    assert blocks.used == 0
    assert blocks.find([b"a"]) == [1]
    assert blocks.take(3) == [2, 3, 4]  # those without a name, then fresh ones; what has a name stays


def test_named_blocks_go_oldest_first_when_no_other_is_left() -> None:
    blocks = Blocks(4)
    for block, key in zip(blocks.take(3), (b"a", b"b", b"c"), strict=True):
        blocks.name(block, key)
    blocks.leave([1])
    blocks.leave([2, 3])  # backwards: 3 goes before 2
    blocks.share([1])
    assert blocks.free == 2
    assert blocks.take(1) == [3] and blocks.find([b"c"]) == []
    blocks.leave([1, 3])
    assert blocks.take(3) == [3, 2, 1] and blocks.free == 0
