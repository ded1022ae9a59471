"""What holds of every ledger: shards sum to the whole, entries to the budget, recorded numbers to plain ones."""

import itertools
from functools import cache

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from linkwise.cluster.read import load as load_cluster
from linkwise.core.chain import chain_of
from linkwise.core.layout import Layout, coordinates
from linkwise.core.quantity import Quantity, value_of
from linkwise.engine.base import Convention, Options
from linkwise.engine.registry import get
from linkwise.engine.sharding import shard
from linkwise.model.read import load
from linkwise.model.types import Model, Split, Tensor
from linkwise.plan.inventory import held, inventory
from linkwise.plan.ledger import ledger, ledger_figures
from linkwise.plan.residents import rank_classes
from linkwise.workload.types import Workload

ENGINES = ("vllm", "sglang", "trtllm", "linkwise", "textbook")
MODELS = ("llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "qwen3.5-35b-a3b")

model_of = cache(load)
slow = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


DEGREES = [
    (tp, pp, cp, dp)
    for tp, pp, cp, dp in itertools.product((1, 2, 3, 4, 8), (1, 2, 3, 4), (1, 2), (1, 2, 3, 4, 8))
    if tp * pp * cp * dp <= 32
]


@st.composite
def layouts(draw) -> Layout:
    """Layouts of up to 32 ranks, divisible or not."""
    tp, pp, cp, dp = draw(st.sampled_from(DEGREES))
    stage = tp * cp * dp
    divisors = [d for d in range(1, stage + 1) if stage % d == 0]
    dcp = draw(st.sampled_from([d for d in range(1, tp + 1) if tp % d == 0]))
    return Layout(tp=tp, pp=pp, cp=cp, dp_attn=dp, dcp=dcp, ep=draw(st.sampled_from(divisors)))


@st.composite
def tensors(draw) -> Tensor:
    """A column, row, KV-head or expert weight of random extents."""
    role = draw(st.sampled_from(("attn.q", "mlp.down", "attn.k", "moe.experts.up", "moe.shared.up")))
    split = {"mlp.down": Split.ROW, "attn.k": Split.KV}.get(role, Split.COLUMN)
    pieces = draw(st.integers(1, 40))
    width = draw(st.integers(1, 6))
    shape = (7, pieces * width) if split is Split.ROW else (pieces * width, 7)
    units = pieces if split is Split.KV else draw(st.sampled_from((0, pieces)))
    count = draw(st.integers(1, 40)) if role.startswith("moe.experts") else 1
    elements = shape[0] * shape[1] * count
    return Tensor(
        name="w", role=role, layer=0, shape=shape, dtype="bfloat16", bytes=2 * elements, split=split, units=units,
        count=count,
    )  # fmt: skip


@slow
@given(tensors(), layouts(), st.sampled_from(("tp", "stage", "none")))
def test_shards_sum_to_the_whole_times_the_copies(tensor, layout, over):
    convention = Convention(name="x", mlp_over=over, shared_over=over)
    heads = tensor.units if tensor.split is Split.KV else 0
    # Engines refuse a tp that is neither at most the KV heads nor a multiple of them.
    assume(not heads or layout.tp <= heads or layout.tp % heads == 0)
    elements, parts = 0, []
    for rank in range(layout.stage_size):
        at = coordinates(layout, rank)
        one = shard(tensor, layout, convention, ep_rank=at["ep"], rank=_place(tensor, layout, over, at, rank))
        elements += one.elements
        parts.append(one)
    assert elements == tensor.parameters * parts[0].replicas
    assert sum(p.bytes for p in parts) == tensor.total_bytes * parts[0].replicas
    # The rank the ledger counts holds the most.
    assert max(p.elements for p in parts) == parts[0].elements


def _place(tensor: Tensor, layout: Layout, over: str, at: dict[str, int], rank: int) -> int:
    if tensor.is_expert:
        return at["moe_tp"]
    axis = over if tensor.role.startswith(("mlp", "moe.shared")) else "tp"
    return {"tp": at["tp"], "stage": rank, "none": 0}[axis]


def legal(model: Model, layout: Layout, engine) -> bool:
    return engine.refuses(model, layout, devices_per_node=8) is None


def choices():
    return st.tuples(
        st.sampled_from(MODELS),
        st.sampled_from(ENGINES),
        layouts(),
        st.builds(
            Options,
            max_batched_tokens=st.sampled_from((None, 512, 16_384)),
            kv_dtype=st.sampled_from((None, "fp8")),
            lora_count=st.sampled_from((0, 3)),
            lora_targets=st.just(("attn",)),
            prefix_cache_tokens=st.sampled_from((0, 5000)),
            max_model_len=st.sampled_from((None, 60_000)),
        ),
        st.builds(Workload, concurrency=st.sampled_from((None, 7, 500)), burst=st.sampled_from((1.0, 1.25, 3.0))),
    )


def asked(choice):
    name, engine_name, layout, options, workload = choice
    model, engine = model_of(name), get(engine_name)
    assume(legal(model, layout, engine))
    if engine_name == "linkwise":
        options = replace(options, kv_dtype=None)  # our runtime keeps KV in the dtype of the activations
    return model, load_cluster("4x8xh200-sxm"), engine, layout, options, workload


@slow
@given(choices())
def test_entries_and_kv_add_up_to_the_budget(choice):
    question = asked(choice)
    for rank in ledger(*question).ranks:
        entries = sum(e.bytes for e in rank.entries if e.in_budget and not e.name.startswith("kv"))
        assert entries + rank.kv_bytes == rank.budget_bytes
        names = [e.name for e in rank.entries]
        assert len(names) == len(set(names))


@slow
@given(choices())
def test_recorded_figures_equal_plain_ones(choice):
    question = asked(choice)
    plain, recorded = ledger_figures(*question), ledger_figures(*question, Quantity.given)
    assert {path: value_of(number) for path, number in recorded.items()} == plain
    memory = ledger(*question)
    for path, number in recorded.items():
        if isinstance(number, Quantity):
            assert chain_of(number).result.value == plain[path]
    for rank in memory.ranks:
        first = f"rank{rank.ranks[0]}"
        assert plain[f"weights.{first}"] == rank.bytes_of("weights")
        assert plain[f"kv.{first}"] == rank.kv_bytes
    assert plain["requests"] == memory.requests
    assert (plain[f"short.rank{memory.shortfall.rank}"] > 0) if memory.shortfall else True


@slow
@given(choices())
def test_short_is_positive_exactly_where_something_is_short(choice):
    question = asked(choice)
    memory, figures = ledger(*question), ledger_figures(*question)
    short = [value for path, value in figures.items() if path.startswith("short.")]
    assert any(value > 0 for value in short) == (memory.shortfall is not None)


@slow
@given(st.sampled_from(MODELS), layouts())
def test_rank_classes_partition_the_ranks_and_weights_sum_over_them(name, layout):
    model, engine = model_of(name), get("textbook")
    assume(legal(model, layout, engine))
    stock = inventory(model)
    classes = rank_classes(stock, layout, engine)
    assert sorted(r for one in classes for r in one.ranks) == list(range(layout.size))
    # Expert matrices are held once, whatever the layout (a down projection's bias is whole on every rank).
    matrices = ("moe.experts.gate", "moe.experts.up", "moe.experts.down")
    total = sum(
        len(one.ranks) * h.bytes
        for one in classes
        for h in held(stock, one.stage, layout, engine, ep_rank=one.ep_rank)
        if h.role in matrices
    )
    whole = sum(t.total_bytes for t in model.tensors if t.role in matrices)
    if model.moe is not None and model.moe.intermediate % layout.moe_tp:
        assert total >= whole  # a class counts its widest rank
    else:
        # Scales that do not divide lose less than a byte a tensor and rank.
        assert abs(total - whole) <= layout.size * len(model.tensors)
