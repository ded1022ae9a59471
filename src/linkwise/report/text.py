"""What every screen shares: headings, memory in words, and tables rendered without ever being cut.

A screen is a list of lines; a detail is a list of lines and tables. Nothing here reads files or decides anything.
"""

import io
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from linkwise.cluster.types import Cluster
from linkwise.core.dtypes import short
from linkwise.core.units import GB, GiB, show_bytes, show_count
from linkwise.engine.base import Options, Resolved
from linkwise.model.types import Model
from linkwise.plan.types import Ledger, RankLedger
from linkwise.workload.types import Workload

if TYPE_CHECKING:
    from rich.table import Table

# Wide enough for any table; what is not a terminal wraps for itself.
_FILE_WIDTH = 400


def render(block: "Iterable[str | Table]", stream: TextIO) -> str:
    """Text of lines and tables for a stream: colour only on a terminal that wants it, nothing cut off elsewhere."""
    parts: list[str] = []
    for item in block:
        if isinstance(item, str):
            parts.append(item)
            continue
        from rich.console import Console

        terminal = stream.isatty()
        # no_color alone would leave bold: NO_COLOR and a dumb terminal get no escapes at all.
        plain = not terminal or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        console = Console(
            file=io.StringIO(), force_terminal=not plain, no_color=plain, width=None if terminal else _FILE_WIDTH
        )
        console.print(item)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        parts.append("\n".join(line.rstrip() for line in text.rstrip("\n").split("\n")))
    return "\n".join(parts)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> "Table":
    """A plain table. A column named `>name` is aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, title=title or None, title_justify="left", title_style="bold")
    for name in columns:
        made.add_column(Text(name.lstrip(">")), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))  # Text: a name in [brackets] is not markup
    return made


def model_line(model: Model) -> str:
    """llama-3.1-405b · 405.9 B parameters, bf16, 811.7 GB"""
    stored = model.quantization if model.quantization != "none" else short(model.dtype)
    parts = [f"{model.parameters / 1e9:.1f} B parameters", stored, show_bytes(model.weight_bytes)]
    if model.mtp_layers:
        extra = sum(t.parameters for t in model.tensors if t.role.startswith("mtp"))
        parts[0] += f" ({extra / 1e9:.1f} B of them MTP)"
    return f"{model.name} · {', '.join(parts)}"


def cluster_line(cluster: Cluster) -> str:
    """8 x H100 SXM, one NVLink island / 2 nodes of 4 x H100 SXM, NVLink islands of 4, 4 x 400 Gb/s NICs a node"""
    device = cluster.accelerator
    label = device.label.removeprefix("NVIDIA ").removeprefix("AMD ")
    one_node = f"{cluster.devices_per_node} x {label}"
    count = one_node if cluster.nodes == 1 else f"{cluster.nodes} nodes of {one_node}"
    parts = [count]
    if cluster.island_size > 1:
        kind = "NVLink" if device.scaleup_kind.startswith("nvlink") else device.scaleup_kind
        whole = cluster.island_size >= cluster.size
        parts.append(f"one {kind} island" if whole else f"{kind} islands of {cluster.island_size}")
    elif cluster.devices_per_node > 1:
        parts.append("PCIe only")
    if cluster.nodes > 1 and cluster.nics_per_node:
        parts.append(f"{cluster.nics_per_node} x {cluster.nic_Bps * 8 / 1e9:.0f} Gb/s NICs a node")
    return ", ".join(parts)


def engine_words(engine: str, version: str, options: Options) -> str:
    """vllm 0.32 defaults / vllm 0.32, kv_dtype fp8, eager"""
    plain = Options()
    changed = [n for n in Options.__struct_fields__ if getattr(options, n) != getattr(plain, n)]
    said = [n if getattr(options, n) is True else f"{n} {_word(getattr(options, n))}" for n in changed]
    return f"{engine} {version}" + (", " + ", ".join(said) if said else " defaults")


def _word(value: Any) -> str:
    return short(value) if isinstance(value, str) else f"{value}"


def heading(model: Model, cluster: Cluster, engine: str) -> str:
    """The first line: what is served, on what."""
    left, right = model_line(model), f"{cluster_line(cluster)}, {engine}"
    return f"{left:<64}  {right}"


def workload_line(workload: Workload) -> str:
    """4,000 in + 500 out tokens, 6/s; TTFT at most 1 s, TPOT at most 40 ms"""
    from linkwise.core.units import show_time

    parts = [f"{show_count(workload.isl_tokens)} in + {show_count(workload.osl_tokens)} out tokens"]
    if workload.rate_per_s is not None:
        parts.append(f"{workload.rate_per_s:g} requests/s")
    if workload.concurrency is not None:
        parts.append(f"{show_count(workload.concurrency)} in flight")
    if workload.prefix_hit:
        parts.append(f"{workload.prefix_hit:.0%} of prompts cached")
    targets = workload.targets
    limits = [
        f"{name} at most {show_time(value)}"
        for name, value in (("TTFT", targets.ttft_s), ("TPOT", targets.tpot_s))
        if value is not None
    ]
    return ", ".join(parts) + "; " + (", ".join(limits) or "no latency target")


def budget_words(rank: RankLedger, resolved: Resolved) -> str:
    """78.2 GB (79.18 GiB x 0.92)"""
    size, share = rank.device_bytes / GiB, resolved.memory_utilization
    return f"{rank.budget_bytes / GB:.1f} GB ({size:.2f} GiB x {share:g})"


def memory_line(ledger: Ledger, resolved: Resolved) -> str:
    """The tightest rank's budget as a sum of states: `budget ... = weights 35.3 + activations 2.1 + KV 39.4`."""
    rank = ledger.ranks[ledger.tightest]
    groups: dict[str, int] = {}
    for entry in rank.entries:
        if entry.place == "device" and entry.in_budget and not entry.name.startswith("kv"):
            name = entry.name.split(".")[0].replace("_", " ")
            groups[name] = groups.get(name, 0) + entry.bytes
    terms = [f"{name} {count / GB:.1f}" for name, count in groups.items() if count >= 0.05 * GB]
    rest = sum(count for count in groups.values() if count < 0.05 * GB)
    if rest:
        terms.append(f"other {rest / GB:.2f}")
    terms.append(f"KV {rank.kv_bytes / GB:.1f}")
    return f"budget {budget_words(rank, resolved)} = " + " + ".join(terms)


def capacity_words(ledger: Ledger, workload: Workload) -> str:
    """476,000 tokens, 84 requests of 4,000 + 500 / hybrid stack: 12 requests of ..."""
    lengths = f"{show_count(workload.isl_tokens)} + {show_count(workload.osl_tokens)}"
    requests = f"{show_count(ledger.requests)} requests of {lengths}"
    return requests if ledger.kv_tokens is None else f"{show_count(ledger.kv_tokens)} tokens, {requests}"


def rank_table(ledger: Ledger) -> "list[str | Table]":
    """Every state of every rank class, one column a class, and what the host holds."""
    names = list(dict.fromkeys(entry.name for rank in ledger.ranks for entry in rank.entries))
    by_rank = [{entry.name: entry for entry in rank.entries} for rank in ledger.ranks]
    rows = []
    for name in names:
        found = [entries.get(name) for entries in by_rank]
        first = next(entry for entry in found if entry)
        if not any(entry and entry.bytes for entry in found):
            continue
        split = " · ".join(
            words
            for words in (
                f"sharded over {first.sharded_over}" if first.sharded_over else "",
                f"replicated over {first.replicated_over}" if first.replicated_over else "",
                "" if first.in_budget else "outside the budget",
                first.note,
            )
            if words
        )
        rows.append([name, *(show_bytes(entry.bytes) if entry else "-" for entry in found), split])
    for label, value in (
        ("budget", [show_bytes(r.budget_bytes) for r in ledger.ranks]),
        ("left for KV", [show_bytes(r.kv_bytes) for r in ledger.ranks]),
        ("KV tokens", ["hybrid" if r.kv_tokens is None else show_count(r.kv_tokens) for r in ledger.ranks]),
        ("requests", [show_count(r.requests) for r in ledger.ranks]),
    ):
        rows.append([label, *value, ""])
    heads = [f">{rank.rank_class} ({_span(rank.ranks)})" for rank in ledger.ranks]
    blocks: list[str | Table] = [table(["state", *heads, ""], rows, title="memory by rank class")]
    if ledger.host:
        blocks.append(
            table(["on the host", ">bytes", ""], [[e.name, show_bytes(e.bytes), e.note] for e in ledger.host])
        )
    if ledger.not_modelled:
        blocks.append("not modelled: " + "; ".join(ledger.not_modelled))
    return blocks


def _span(ranks: tuple[int, ...]) -> str:
    """0-7 / 0, 2, 4"""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    shown = ", ".join(map(str, ranks[:6]))
    return f"ranks {shown}, ..." if len(ranks) > 6 else f"ranks {shown}"


def remarks(*groups: Iterable[str]) -> list[str]:
    """Notes and warnings, each once."""
    return [f"note: {text}" for text in dict.fromkeys(text for group in groups for text in group)]
