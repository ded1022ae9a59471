"""Worked calculations about bytes on links and the time they take."""

import re
from collections.abc import Callable

from msgspec.structs import replace

from linkwise.core.dtypes import canonical
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Num, Quantity, total, value_of
from linkwise.engine import registry
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Layer, Model, State
from linkwise.plan.batch import decode_batch
from linkwise.plan.collectives import all_gather, all_to_all, bubble
from linkwise.plan.handoff import HandoffOptions, handoff_figures, prefill_seconds
from linkwise.plan.step import step_ops
from linkwise.plan.textbook.base import Figures, Inputs, Worked, cluster, compare, step
from linkwise.plan.time import read_seconds, spans
from linkwise.plan.types import Op
from linkwise.plan.writer import Place

GIVEN = Quantity.given
# Groups of an 8-device node share its island, so the engines' custom kernels apply.
NODE = Place(1, frozenset({"tp", "ep", "stage", "dp_attn", "moe_tp"}))
IN_LAYERS = frozenset({"attn.out", "mlp.out", "moe.out"})


def _calls(ops: list[Op], name: str, source: str) -> Quantity:
    """Calls in a step: one input per role, summed."""
    roles: dict[str, int] = {}
    for op in ops:
        roles[op.role] = roles.get(op.role, 0) + op.repeat
    terms = [GIVEN(f"calls of {role}", count, "calls", source) for role, count in roles.items()]
    return step(name, total(terms), "calls")


def _described(text: str) -> Model | None:
    """A model from words such as "GQA, 32 layers, 8 KV heads, head_dim 128, BF16"; None when it is a name."""
    found = re.search(r"(\d{1,5}) layers, (\d{1,4}) KV heads, head_dim (\d{1,5}), (\w+)", text)
    if not found:
        return None
    layers, heads, dim = (int(found[i]) for i in (1, 2, 3))
    state = State(name="kv", per_token=2 * heads * dim, heads=heads)
    return Model(
        name=text[:80], family="described", source="the words given", hidden=heads * dim, vocab=1, max_len=10**6,
        heads=heads, kv_heads=heads, head_dim=dim, dtype=canonical(found[4], where="model"), tensors=(),
        layers=tuple(Layer(index=i, mixer="full", ffn="dense", states=(state,)) for i in range(layers)),
    )  # fmt: skip


def handoff_rate(i: Inputs) -> Worked:
    model = _described(i.text("model", "llama-3.1-8b")) or i.model("llama-3.1-8b")
    prefix = i.count("prefix_tokens", 4096, "tokens")
    rate = i.number("handoffs_per_s", 20, "1/s")
    node = cluster("2x8xh100-sxm")

    def at(engine: Engine) -> dict[str, Num]:
        return handoff_figures(
            model, node, prompt_tokens=prefix.value, rate_per_s=rate.value, prefill_tp=1, decode_tp=1, engine=engine,
            options=HandoffOptions(prefill_s=1.0), given=GIVEN,
        )  # fmt: skip

    book, real = at(registry.get("textbook")), at(registry.get("vllm"))
    payload = step("payload_bytes_per_s", book["payload_Bps"], "B/s")
    return Worked(
        "", "", {
            "kv_bytes_per_request": step("kv_bytes_per_request", book["kv_bytes"], "B"),
            "payload_bytes_per_s": payload,
            "payload_GiB_per_s": step("payload_GiB_per_s", payload / GIVEN("GiB", 2**30, "B", "2^30"), "GiB/s"),
        },
        {"wire_bytes_per_request": real["link.wire_bytes"], "utilization_of_one_nic": real["utilization"]},
        (compare("bytes of a request on the NIC", book["link.wire_bytes"], real["link.wire_bytes"], "B",
                 "packet and message headers, whole KV blocks"),),
    )  # fmt: skip


def all_gather_boundary(i: Inputs) -> Worked:
    ranks = i.count("ranks", 4, "ranks")
    shard = i.count("shard_bytes", 2**28, "B")
    output = step("output_bytes_per_rank", ranks * shard, "B", "S: the gathered output, on every rank")
    moved = all_gather(output, ranks)
    received = step("new_payload_received_bytes_per_rank", moved.useful_recv, "B", "its own shard is not new")
    return Worked("", "", {"output_bytes_per_rank": output, "new_payload_received_bytes_per_rank": received})


def _dense_step(i: Inputs, engine: Engine, model: Model, tp: int, tokens: int) -> list[Op]:
    place = NODE if tp <= 8 else Place()
    return step_ops(
        model, Layout(tp=tp), engine, decode_batch(tokens, 0), Options(), place=place, given=GIVEN
    )  # fmt: skip


def tp_all_reduce_bytes(i: Inputs) -> Worked:
    model = i.model("llama-3.3-70b")
    i.agrees("layers", len(model.layers))
    i.agrees("hidden", model.hidden)
    if canonical(i.text("dtype", model.dtype), where=i.where) != model.dtype:
        i.agrees("dtype", model.dtype)
    tp, tokens = i.count("tp", 8, "ranks"), i.count("tokens", 1, "tokens")
    book = _dense_step(i, registry.get("textbook"), model, tp.value, tokens.value)
    in_layers = [op for op in book if op.role in IN_LAYERS]
    if not in_layers:
        raise InputError(f"tp is {tp.value}", where=i.where, expected="at least 2 ranks: one rank sends nothing")
    first = in_layers[0]
    calls = _calls(in_layers, "all_reduces_per_step_in_layers", "textbook: one after attention, one after the MLP")
    sent = step("ring_sent_bytes_per_call", first.wire_sent_bytes, "B")
    expect: Figures = {
        "all_reduces_per_step_in_layers": calls,
        "message_bytes": step("message_bytes", first.S_bytes, "B", "S: the tensor on each rank"),
        "ring_sent_bytes_per_call": sent,
        "sent_bytes_per_token_per_gpu": step("sent_bytes_per_token_per_gpu", calls * sent / first.tokens, "B"),
    }
    ledger: Figures = {}
    differences = []
    roles = {op.role for op in book}
    for op in _dense_step(i, registry.get("vllm"), model, tp.value, tokens.value):
        ledger[f"{op.role}.sent_bytes"] = step(f"{op.role}.sent_bytes", op.repeat * op.wire_sent_bytes, "B")
        if op.role in IN_LAYERS and op.algorithm != first.algorithm:
            differences.append(f"{op.role}: vllm moves this size by {op.algorithm}, the textbook by {first.algorithm}")
        elif op.role not in roles & IN_LAYERS:
            differences.append(
                f"{op.role}: vllm adds {op.repeat} {op.kind} of {value_of(op.S_bytes):,.0f} B, the textbook none"
            )
    return Worked("", "", expect, ledger, tuple(differences))


def tp_call_count(i: Inputs) -> Worked:
    model = i.model("llama-3.3-70b")
    expect: Figures = {}
    ledger: Figures = {}
    for tp in (4, 8):
        book = [o for o in _dense_step(i, registry.get("textbook"), model, tp, 1) if o.role in IN_LAYERS]
        expect[f"calls_in_layers_tp{tp}"] = _calls(
            book, f"calls_in_layers_tp{tp}", "layers that reduce, whatever tp is"
        )
        real = _dense_step(i, registry.get("vllm"), model, tp, 1)
        ledger[f"calls_tp{tp}"] = _calls(real, f"calls_tp{tp}", "vllm: layers, embedding, logits")
    return Worked("", "", expect, ledger, ("embed, logits: vllm adds one call each, at any tp",))


def tp8_step_time(i: Inputs) -> Worked:
    from linkwise.model.read import load
    from linkwise.plan.time import group_seconds

    model = load("llama-3.3-70b")
    node = cluster("8xh100-sxm")
    weights = i.number("weights_bytes", model.weight_bytes, "B", model.source)
    hbm = i.number("hbm_Bps", node.accelerator.hbm_Bps, "B/s", node.accelerator.label)
    each = i.number("all_reduce_us", 10, "us")
    calls = i.count("calls", 2 * len(model.layers), "calls", "two a layer")
    i.agrees("batch", 1)
    ms = GIVEN("ms", 1000, "ms/s", "unit")
    reduce = step("all_reduce_ms", calls * each / GIVEN("us_per_ms", 1000, "us/ms", "unit"), "ms", "at any tp")
    expect: Figures = {}
    for tp in (4, 8, 16):
        share = weights / GIVEN("tp", tp, "ranks", "layout")
        expect[f"tp{tp}_read_ms"] = step(f"tp{tp}_read_ms", read_seconds(share, hbm) * ms, "ms")
        expect[f"tp{tp}_step_ms"] = step(f"tp{tp}_step_ms", expect[f"tp{tp}_read_ms"] + reduce, "ms")
        expect[f"all_reduce_share_tp{tp}"] = step(f"all_reduce_share_tp{tp}", reduce / expect[f"tp{tp}_step_ms"])
    expect["all_reduce_ms"] = reduce
    expect["gain"] = step(
        "gain", expect["tp4_step_ms"] / expect["tp8_step_ms"], "", "twice the devices, not twice as fast"
    )
    ledger: Figures = {}
    for tp in (4, 8):
        layout = Layout(tp=tp)
        real = group_seconds(
            model, layout, registry.get("vllm"), node, decode_batch(1, 1), Options(), spans(layout, node), given=GIVEN
        )  # fmt: skip
        ledger[f"tp{tp}_step_ms"] = step(f"plan tp{tp}_step_ms", real.token * ms, "ms")
    differences = tuple(
        compare(f"tp{tp} step", expect[f"tp{tp}_step_ms"], ledger[f"tp{tp}_step_ms"], "ms",
                "the plan reads at the efficiency, and reduces at the latency, of its constants, adds logits, host and"
                f" kernel overheads, and reads no embedding ({node.constants.label})")
        for tp in (4, 8)
    )  # fmt: skip
    return Worked("", "", expect, ledger, differences, notes=("roofline: at batch 1 a step reads every weight once",))


def moe_all_to_all(i: Inputs) -> Worked:
    model = i.model("deepseek-v3")
    if model.moe is None:
        raise InputError(f"{model.name} has no experts", where=i.where, expected="a MoE model")
    book, real = registry.get("textbook"), registry.get("vllm")
    i.agrees("moe_layers", sum(layer.ffn == "moe" for layer in model.layers))
    i.agrees("hidden", model.moe.hidden)
    i.agrees("top_k", model.moe.top_k)
    i.agrees("dispatch_bytes_per_value", 1)
    i.agrees("combine_bytes_per_value", 2)
    layout = Layout(dp_attn=8, ep=8)

    def ops(engine: Engine, tokens: int) -> dict[str, Op]:
        found = step_ops(
            model, layout, engine, decode_batch(tokens, 0), Options(), place=NODE, given=GIVEN
        )  # fmt: skip
        return {op.role: op for op in found if op.role.startswith("moe.")}

    one, many = ops(book, 1), ops(book, 256)
    dispatch = step("dispatch_bytes_per_token_per_layer", one["moe.dispatch"].S_bytes, "B")
    combine = step("combine_bytes_per_token_per_layer", one["moe.combine"].S_bytes, "B")
    layers = GIVEN("moe_layers", one["moe.dispatch"].repeat, "layers", model.source)
    per_token = step("bytes_per_token", layers * (dispatch + combine), "B")
    batch = layers * (many["moe.dispatch"].S_bytes + many["moe.combine"].S_bytes)
    moved = all_to_all(dispatch, GIVEN("ep", layout.ep, "ranks", "layout"))
    expect: Figures = {
        "dispatch_bytes_per_token_per_layer": dispatch,
        "combine_bytes_per_token_per_layer": combine,
        "bytes_per_token": per_token,
        "bytes_per_step_batch_256": step("bytes_per_step_batch_256", batch, "B", "all 256 tokens of the step"),
        "share_leaving_gpu_ep8": step("share_leaving_gpu_ep8", moved.sent / dispatch, "", "uniform routing"),
    }
    ledger: Figures = {}
    lines = []
    for role, op in ops(real, 1).items():
        ledger[f"vllm {role} S_bytes"] = step(f"vllm {role}.S", op.S_bytes, "B")
        twin = one.get(role)
        if twin is None:
            lines.append(f"{role}: vllm adds a {op.kind} a layer, the textbook none")
        elif (op.kind, op.dtype) != (twin.kind, twin.dtype) or value_of(op.S_bytes) != value_of(twin.S_bytes):
            lines.append(
                compare(f"{role} a layer", twin.S_bytes, op.S_bytes, "B", f"vllm: {op.kind} in {op.dtype}")
            )  # fmt: skip
    return Worked("", "", expect, ledger, tuple(lines))


def kv_transfer(i: Inputs) -> Worked:
    model = i.model("llama-3.3-70b")
    prompt = i.count("prompt_tokens", 8192, "tokens")
    tp = i.count("prefill_tp", 4, "ranks")
    nics = i.count("nics", 4, "NICs")
    node = cluster(f"2x{tp.value}xh100-sxm")
    nic_Bps = i.number("nic_Bps", 50e9, "B/s")
    flops = i.number("flops", node.accelerator.flops["bf16"], "FLOP/s", node.accelerator.label)
    parameters = i.number("params", model.parameters, "parameters", model.source)
    if canonical(i.text("dtype", model.dtype), where=i.where) != model.dtype:
        i.agrees("dtype", model.dtype)
    on = replace(node, nics_per_node=nics.value, nic_Bps=nic_Bps.value, fabric="rail")

    def at(engine: Engine, per_rank: bool | None = None) -> dict[str, Num]:
        return handoff_figures(
            model, on, prompt_tokens=prompt.value, rate_per_s=1, prefill_tp=tp.value, decode_tp=tp.value, engine=engine,
            options=HandoffOptions(per_rank=per_rank), given=GIVEN,
        )  # fmt: skip

    book, alone, real = (
        at(registry.get("textbook")),
        at(registry.get("textbook"), per_rank=False),
        at(registry.get("vllm")),
    )
    ms = GIVEN("ms", 1000, "ms/s", "unit")
    prefill = prefill_seconds(parameters, prompt, flops, tp)
    transfer = step("transfer_ms", book["transfer_s"] * ms, "ms")
    prefill_ms = step("prefill_ms", prefill * ms, "ms")
    expect: Figures = {
        "kv_bytes_per_token": step("kv_bytes_per_token", book["kv_bytes_per_token"], "B"),
        "kv_bytes": step("kv_bytes", book["kv_bytes"], "B"),
        "transfer_ms": transfer,
        "prefill_ms": prefill_ms,
        "transfer_share_of_prefill": step("transfer_share_of_prefill", transfer / prefill_ms),
        "transfer_ms_one_nic": step("transfer_ms_one_nic", alone["transfer_s"] * ms, "ms"),
    }
    ledger: Figures = {
        "transfer_ms": step("plan transfer_ms", real["transfer_s"] * ms, "ms"),
        "prefill_ms": step("plan prefill_ms", real["prefill_s"] * ms, "ms"),
    }
    differences = (
        compare("transfer", transfer, ledger["transfer_ms"], "ms", "link efficiency, packet and message headers"),
        compare("prefill", prefill_ms, ledger["prefill_ms"], "ms",
                "attention FLOPs, share of peak a kernel reaches, all-reduces, overheads"),
    )  # fmt: skip
    note = "all NICs work only where each rank sends its own share; other tp degrees recut heads: linkwise handoff"
    return Worked("", "", expect, ledger, differences, notes=(note,))


def pipeline_bubble(i: Inputs) -> Worked:
    i.agrees("formula", "(p-1)/(m+p-1)")
    expect: Figures = {}
    for p, m in ((4, 4), (4, 16)):
        stages = GIVEN("p", p, "stages", "the example")
        batches = GIVEN("m", m, "microbatches", "the example: in flight")
        expect[f"p{p}_m{m}"] = step(f"p{p}_m{m}", bubble(stages, batches), "", "idle share of a stage")
    note = "capacity and throughput, never lower latency: a token's time is the sum of the stage times"
    return Worked("", "", expect, notes=(note,))


CHAINS: dict[str, tuple[str, Callable[[Inputs], Worked]]] = {
    "handoff_rate": ("Bytes per second a stream of KV handoffs carries", handoff_rate),
    "all_gather_boundary": ("What an all-gather leaves on a rank and what of it is new", all_gather_boundary),
    "tp_all_reduce_bytes": ("All-reduce bytes of one token under tensor parallelism", tp_all_reduce_bytes),
    "tp_call_count": ("More tensor ranks, the same number of calls", tp_call_count),
    "tp8_step_time": ("A decode step at tp 4, 8 and 16: reads shrink, latency stays", tp8_step_time),
    "moe_all_to_all": ("Expert dispatch and combine of one token", moe_all_to_all),
    "kv_transfer": ("KV of one long prompt against the time of its prefill", kv_transfer),
    "pipeline_bubble": ("Idle share of a pipeline", pipeline_bubble),
}
