"""A worked decision: what the plan's own search chooses, and what the choice costs."""

from collections.abc import Callable

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Num, Quantity, total, value_of
from linkwise.core.units import show_bytes, show_time
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.plan.batch import decode_batch
from linkwise.plan.build import plan
from linkwise.plan.ledger import ledger
from linkwise.plan.step import step_ops
from linkwise.plan.textbook.base import Figures, Inputs, Worked, cluster, step
from linkwise.plan.time import group_seconds, place_of, spans
from linkwise.plan.types import NoPlan
from linkwise.workload.types import Workload

GIVEN = Quantity.given
# A token id on its way to a replica or back.
TOKEN_BYTES = 4


def two_tp4_over_tp8(i: Inputs) -> Worked:
    model, engine, options = i.model("llama-3.3-70b"), registry.get("vllm"), Options()
    nodes, devices = i.count("nodes", 2, "nodes"), i.count("gpus_per_node", 4, "devices")
    i.text("note", "fast peer links inside a node, slower between")
    on = cluster(f"{nodes.value}x{devices.value}xh100-sxm")
    workload = Workload(isl_tokens=4000, osl_tokens=500)
    chosen = plan(model, on, engine, options, workload)
    if isinstance(chosen, NoPlan):
        raise InputError(
            f"{model.name} fits no layout on {on.name}", where=i.where, expected="devices that hold the model"
        )
    small, wide = chosen.layout, Layout(tp=on.size)
    weights = step("weights_bytes_of_a_copy", GIVEN(
        "weights on one rank", chosen.chosen.weights_bytes_per_rank, "B", "ledger of the chosen layout"
    ) * GIVEN("ranks of a group", small.size, "ranks", f"layout {small}"), "B")  # fmt: skip
    pooled = ledger(model, on, engine, wide, options, workload)
    own_tokens = GIVEN("kv_tokens", chosen.ledger.kv_tokens or 0, "tokens", f"ledger of {small}")
    wide_tokens = GIVEN("kv_tokens of one group", pooled.kv_tokens or 0, "tokens", f"ledger of {wide}")
    copies = GIVEN("replicas", chosen.replicas, "", "plan")

    def sent(layout: Layout) -> Num:
        place = place_of(layout, spans(layout, on), on)
        ops = step_ops(model, layout, engine, decode_batch(1, 1), options, place=place, given=GIVEN)
        return total(op.repeat * op.wire_sent_bytes for op in ops)

    tokens = GIVEN("tokens of a request", workload.total_tokens, "tokens", "the example's prompt and output")
    expect: Figures = {
        "group_size": step("group_size", GIVEN("tp", small.size, "ranks", "the plan's choice")),
        "replicas": step("replicas", copies),
        "second_copy_bytes": step("second_copy_bytes", (copies - 1) * weights, "B", "more than one group would hold"),
        "kv_tokens_of_each_replica": step("kv_tokens_of_each_replica", own_tokens, "tokens"),
        "kv_tokens_of_all": step("kv_tokens_of_all", copies * own_tokens, "tokens", "in separate pools"),
        "kv_tokens_of_one_group": step("kv_tokens_of_one_group", wide_tokens, "tokens", f"{wide} in one pool"),
        "inside_node_bytes_per_token": step("inside_node_bytes_per_token", sent(small), "B", "one rank, one token"),
        "across_nodes_bytes_per_token": step("across_nodes_bytes_per_token", sent(wide), "B", f"{wide}: one rank"),
        "routing_bytes_per_request": step("routing_bytes_per_request", TOKEN_BYTES * tokens, "B", "token ids"),
    }
    places = {layout: spans(layout, on)["tp"].tier.value for layout in (small, wide)}
    times = {
        layout: float(value_of(group_seconds(model, layout, engine, on, decode_batch(1, 4000), options).token))
        for layout in (small, wide)
    }
    value = {name: figure.value for name, figure in expect.items()}
    shows = {
        "a second full sharded copy of the weights": f"{show_bytes(value['second_copy_bytes'])} more than one {wide}",
        "separate KV capacity": f"{chosen.replicas} x {value['kv_tokens_of_each_replica']:,} tokens against"
        f" {value['kv_tokens_of_one_group']:,} in one pool: a request cannot use the other replica's",
        "collective bytes that stay inside a node": f"{show_bytes(value['inside_node_bytes_per_token'])} a token and"
        f" rank over the {places[small]} tier, where {wide} would send"
        f" {show_bytes(value['across_nodes_bytes_per_token'])} over the {places[wide]} tier",
        "only routing traffic between nodes": f"no collective joins the replicas; a request's"
        f" {workload.total_tokens} token ids are {show_bytes(value['routing_bytes_per_request'])}",
    }
    decision = (
        f"keep each {small.tp}-rank tensor group inside one node and run {chosen.replicas} replicas: at batch 1 a"
        f" decode step takes {show_time(times[small])} in {small} and {show_time(times[wide])} in {wide}"
    )
    notes = tuple(
        f"{d.question} {d.answer}. Break-even: {d.break_even}. Measure: {d.measure}" for d in chosen.decisions
    )
    return Worked("", "", expect, decision=decision, shows=shows, notes=notes)


CHAINS: dict[str, tuple[str, Callable[[Inputs], Worked]]] = {
    "two_tp4_over_tp8": ("Two tensor groups of four or one of eight over two nodes?", two_tp4_over_tp8),
}
