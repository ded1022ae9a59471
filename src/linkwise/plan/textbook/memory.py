"""Worked calculations about what fits on a device, and what one decision costs."""

from collections.abc import Callable

from msgspec.structs import replace

from linkwise.cluster.types import Cluster
from linkwise.core.dtypes import canonical, short
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Num, Quantity, value_of
from linkwise.core.units import GB, show_bytes
from linkwise.engine import registry
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model, Split
from linkwise.plan.ledger import ledger_figures
from linkwise.plan.textbook.base import Figures, Inputs, Worked, cluster, compare, step
from linkwise.workload.types import Workload

GIVEN = Quantity.given


def simple(model: Model, *, one_byte: bool) -> Model:
    """The textbook's view of a model: any weight divides evenly, and in FP8 every parameter is one byte, no scales."""
    tensors = []
    for t in model.tensors:
        split = {"split": Split.COLUMN, "units": 0} if t.split is Split.NONE else {}
        stored = {"dtype": "float8_e4m3", "bytes": t.parameters, "scale_bytes": 0} if one_byte else {}
        tensors.append(replace(t, **split, **stored))
    return replace(model, tensors=tuple(tensors))


def _node(i: Inputs, on: str, said: str) -> Cluster:
    """A node with the device memory given."""
    i.agrees("node", said)
    node = cluster(on)
    if "device_memory_GiB" in i:
        memory = i.number("device_memory_GiB", 1, "GiB")
        node = replace(
            node, accelerator=replace(node.accelerator, memory_bytes=round(memory.value * 2**30), memory_source="given")
        )
    return node


def _figures(model: Model, node: Cluster, engine: Engine, layout: Layout, options: Options) -> dict[str, Num]:
    return ledger_figures(model, node, engine, layout, options, Workload(), GIVEN)


def _gb(name: str, figure: Num, note: str = "") -> Quantity:
    return step(name, figure / GIVEN("GB", GB, "B", "10^9"), "GB", note)


def _differences(
    book_model: Model, book: dict[str, Num], model: Model, real: dict[str, Num], ranks: int, title: str
) -> tuple[str, ...]:
    """Role by role and entry by entry, what one device holds in the textbook and in the engine's ledger."""
    lines = []
    roles = [key for key in real if key.startswith("weights.") and key.count(".") == 2]
    for key in roles:
        role = key.split(".")[1]
        a, b = value_of(book.get(key, 0)), value_of(real[key])
        if abs(b - a) <= 1e-4 * max(a, 1):
            continue
        whole_a = sum(t.total_bytes for t in book_model.tensors if t.role.split(".")[0] == role)
        whole_b = sum(t.total_bytes for t in model.tensors if t.role.split(".")[0] == role)
        reasons = []
        dtypes = {short(t.dtype) for t in model.tensors if t.role.split(".")[0] == role}
        scales = sum(t.scale_bytes for t in model.tensors if t.role.split(".")[0] == role)
        if abs(whole_b - whole_a) > 1e-4 * whole_a:
            reasons.append(f"stored in {'+'.join(sorted(dtypes))}" + (", with scales" if scales else ""))
        if whole_a and whole_b and b / whole_b > 1.02 * a / whole_a:
            reasons.append(f"a rank holds {b / whole_b:.0%} of it, not {a / whole_a:.0%}: replicated")
        lines.append(compare(f"{title}{role}", a, b, "B", " and ".join(reasons) or "padding and uneven shards"))
    for name, why in (
        ("activations", "peak of a step's activations"),
        ("logits", "sampler and communication buffers"),
        ("runtime", "context, libraries, communicators"),
    ):
        b = value_of(real.get(f"{name}.rank0", 0))
        if b:
            lines.append(compare(f"{title}{name}", 0, b, "B", why))
    return tuple(lines)


def fit_405b(i: Inputs) -> Worked:
    model = i.model("llama-3.1-405b")
    share = i.number("gpu_memory_utilization", 0.92)
    node = _node(i, "8xh100-sxm", "8 x H100 SXM 80GB")
    options, layout = Options(memory_utilization=share.value), Layout(tp=8)
    book, vllm = registry.get("textbook"), registry.get("vllm")
    plain, small = simple(model, one_byte=False), simple(model, one_byte=True)
    bf16, fp8 = (_figures(m, node, book, layout, options) for m in (plain, small))
    budget = bf16["budget.rank0"]
    expect: Figures = {}
    for name, m, found in (("bf16", model, bf16), ("fp8", small, fp8)):
        parameters = GIVEN("parameters", m.parameters, "parameters", m.source)
        width = GIVEN(f"{name}_bytes", m.weight_bytes // m.parameters, "B/parameter", f"{name}, every parameter alike")
        expect[f"{name}_weights_GB"] = _gb(f"{name}_weights_GB", parameters * width)
        expect[f"{name}_per_gpu_GB"] = _gb(
            f"{name}_per_gpu_GB", found["weights.rank0"], "every weight divided by the ranks"
        )
        expect[f"{name}_fits"] = step(f"{name}_fits", found["weights.rank0"] <= found["budget.rank0"])
    expect["budget_per_gpu_GB"] = _gb("budget_per_gpu_GB", budget)
    expect["left_per_gpu_GB"] = _gb("left_per_gpu_GB", fp8["kv.rank0"], "for KV and workspace, FP8")
    stored = i.model("llama-3.1-405b", weight_dtype="fp8")
    real = _figures(stored, node, vllm, layout, options)
    ledger: Figures = {
        "fp8_weights_GB": _gb("plan fp8_weights_GB", GIVEN("stored", stored.weight_bytes, "B", stored.source)),
        "fp8_per_gpu_GB": _gb("plan fp8_per_gpu_GB", real["weights.rank0"]),
        "left_per_gpu_GB": _gb("plan left_per_gpu_GB", real["kv.rank0"], "for KV alone"),
    }
    two = _figures(model, replace(node, nodes=2, fabric="rail"), vllm, Layout(tp=8, pp=2), options)
    left = min(value_of(v) for k, v in two.items() if k.startswith("kv.rank"))
    note = (
        f"BF16 needs a second node: pp2 x tp8 leaves {show_bytes(left)} a device for KV with tp inside each node; tp 16"
        " fits as well, with every all-reduce on the slower link"
    )
    return Worked("", "", expect, ledger, _differences(small, fp8, stored, real, 8, "fp8 "), notes=(note,))


def mla_dp_attention(i: Inputs) -> Worked:
    model = i.model("deepseek-v3")
    if not model.is_mla or model.moe is None:
        raise InputError(f"{model.name} has no MLA latent or no experts", where=i.where, expected="an MLA MoE model")
    share = i.number("gpu_memory_utilization", 0.92)
    node = _node(i, "8xh200-sxm", "8 x H200 SXM")
    kv_dtype = canonical(i.text("kv_dtype", "bf16"), where=i.where)
    options = Options(memory_utilization=share.value, kv_dtype=kv_dtype)
    small = simple(model, one_byte=True)
    served = sum(t.bytes for t in small.tensors if not t.role.startswith("mtp"))
    i.agrees("weights", f"fp8 {served / GB:.1f} GB")
    book, vllm = registry.get("textbook"), registry.get("vllm")
    tp, dp = Layout(tp=8), Layout(dp_attn=8, ep=8)
    at_tp, at_dp = (_figures(small, node, book, layout, options) for layout in (tp, dp))
    tokens_tp = step("tp8_tokens_per_node", at_tp["kv_tokens"], "tokens", "every rank keeps the latent of every token")
    tokens_dp = step("dp_attn_tokens_per_node", at_dp["kv_tokens"], "tokens", "each rank keeps its own requests'")
    expect: Figures = {
        "kv_bytes_per_token": step("kv_bytes_per_token", at_tp["bytes_per_token.rank0"], "B"),
        "budget_per_gpu_GB": _gb("budget_per_gpu_GB", at_tp["budget.rank0"]),
        "tp8_weights_per_gpu_GB": _gb("tp8_weights_per_gpu_GB", at_tp["weights.rank0"]),
        "tp8_kv_per_gpu_GB": _gb("tp8_kv_per_gpu_GB", at_tp["kv.rank0"]),
        "tp8_tokens_per_node": tokens_tp,
        "attention_weights_GB": _gb("attention_weights_GB", at_dp["weights.attn.rank0"], "whole on every rank"),
        "dp_attn_weights_per_gpu_GB": _gb("dp_attn_weights_per_gpu_GB", at_dp["weights.rank0"]),
        "dp_attn_kv_per_gpu_GB": _gb("dp_attn_kv_per_gpu_GB", at_dp["kv.rank0"]),
        "dp_attn_tokens_per_node": tokens_dp,
        "gain": step("gain", tokens_dp / tokens_tp, "", "below 8 by the replicated attention weights"),
    }
    ledger: Figures = {}
    lines: tuple[str, ...] = ()
    for name, layout, found in (("tp8", tp, at_tp), ("dp_attn", dp, at_dp)):
        real = _figures(model, node, vllm, layout, options)
        ledger[f"{name}_weights_per_gpu_GB"] = _gb(f"plan {name}_weights_per_gpu_GB", real["weights.rank0"])
        ledger[f"{name}_tokens_per_node"] = step(f"plan {name}_tokens_per_node", real["kv_tokens"], "tokens")
        lines += _differences(small, found, model, real, 8, f"{name} ")
    ledger["gain"] = step("plan gain", ledger["dp_attn_tokens_per_node"] / ledger["tp8_tokens_per_node"])
    return Worked("", "", expect, ledger, lines)


CHAINS: dict[str, tuple[str, Callable[[Inputs], Worked]]] = {
    "fit_405b": ("Does a 405B model fit on one node of eight 80 GB devices?", fit_405b),
    "mla_dp_attention": ("KV room of an MLA model: attention tensor parallel or data parallel", mla_dp_attention),
}
