"""What every screen shares: headings, memory in words, and tables rendered without ever being cut.

A screen is a list of lines; a detail is a list of lines and tables. Nothing here reads files or decides anything.
"""

import io
import math
import os
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from linkwise.cluster.types import Cluster
from linkwise.core.dtypes import short
from linkwise.core.printable import printable
from linkwise.core.units import GB, GiB, show_bytes, show_count, show_lack
from linkwise.engine.base import Options, Resolved
from linkwise.model.types import Model
from linkwise.plan.types import Ledger, RankLedger, Shortfall
from linkwise.workload.types import Workload

if TYPE_CHECKING:
    from rich.table import Table

# Wide enough for any table: rows of a file are never folded. Lines of text are, at a width people read.
_FILE_WIDTH = 400
LINE_WIDTH = 120
# Where the words of a labelled line begin.
LABEL = 11


class Verbatim(str):
    """A line that is copied, such as a command: never wrapped."""

    __slots__ = ()


def wrapped(lines: Iterable[str], width: int = LINE_WIDTH) -> str:
    """Lines no wider than `width`, continued under where their words begin. A word is never cut."""
    return "\n".join(_wrap(line, width) for line in lines)


def _wrap(line: str, width: int) -> str:
    verbatim, line = isinstance(line, Verbatim), printable(line)  # names in it come from files others wrote
    if len(line) <= width or verbatim:
        return line
    stripped = line.lstrip()
    indent = len(line) - len(stripped)
    if not indent:
        labelled = line[LABEL - 1] == " " and "  " in line[: LABEL + 1]
        indent = LABEL if labelled or line.startswith("limited by ") else 2
    return textwrap.fill(
        stripped, width, initial_indent=line[: len(line) - len(stripped)], subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def width_of(stream: TextIO) -> int:
    """Columns of a terminal; of anything else, those people read."""
    return max(60, shutil.get_terminal_size((LINE_WIDTH, 24)).columns) if stream.isatty() else LINE_WIDTH


def render(block: "Iterable[str | Table]", stream: TextIO) -> str:
    """Text of lines and tables for a stream: colour only on a terminal that wants it, nothing cut off elsewhere."""
    width = width_of(stream)
    parts: list[str] = []
    for item in block:
        if isinstance(item, str):
            parts.append(_wrap(item, width))
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
        head, justify = Text(printable(name.lstrip(">"))), "right" if name.startswith(">") else "left"
        made.add_column(head, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(printable(str(cell))) for cell in row))  # Text: a name in [brackets] is not markup
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
    return f"{model_line(model)}  on  {cluster_line(cluster)}, {engine}"


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
    """78.2 GB (79.18 GiB x 0.92), or what the engine's share is of where it is not of the device."""
    return f"{rank.budget_bytes / GB:.1f} GB ({_of_what(rank, resolved)})"


def _of_what(rank: RankLedger, resolved: Resolved) -> str:
    size, share = f"{rank.device_bytes / GiB:.2f} GiB", f"{resolved.memory_utilization:g}"
    if any(e.name == "reserve" for e in rank.entries):
        return f"{size}, the whole device; KV gets {share} of what is free after loading and a trial run"
    if not any(e.in_budget for e in rank.entries if e.name == "activations"):
        return f"{size} x {share}, for weights and KV; all else lies beside it"
    return f"{size} x {share}"


def memory_line(ledger: Ledger, resolved: Resolved) -> str:
    """The tightest rank's budget as a sum of states: `budget ... = weights 35.3 + activations 2.1 + KV 39.4`.

    The terms shown add up to the budget shown.
    """
    rank = ledger.ranks[ledger.tightest]
    groups: dict[str, float] = {}
    for entry in rank.entries:
        if entry.place == "device" and entry.in_budget and not entry.name.startswith("kv"):
            name = entry.name.split(".")[0].replace("_", " ")
            groups[name] = groups.get(name, 0) + entry.bytes / GB
    small = [name for name, size in groups.items() if size < 0.05]
    terms = {name: size for name, size in groups.items() if name not in small}
    terms |= {"other": sum(groups[name] for name in small)} if small else {}
    terms["KV"] = rank.kv_bytes / GB
    whole, parts = adding_up(sum(terms.values()), terms, 2)
    shown = " + ".join(f"{name} {size}" for name, size in parts.items() if float(size))
    return f"budget {whole} GB ({_of_what(rank, resolved)}) = {shown}"


def adding_up(whole: float, parts: Mapping[str, float], digits: int) -> tuple[str, dict[str, str]]:
    """A sum and its terms to so many decimals, so that the terms shown add up to the sum shown.

    Largest remainders: every term is rounded down, and those that lost most get a last digit back.
    """
    unit = 10.0**-digits
    total = round(whole / unit)
    floors = {name: math.floor(value / unit) for name, value in parts.items()}
    lost = sorted(parts, key=lambda name: parts[name] / unit - floors[name], reverse=True)
    for name in lost[: max(0, total - sum(floors.values()))]:
        floors[name] += 1
    return f"{total * unit:.{digits}f}", {name: f"{count * unit:.{digits}f}" for name, count in floors.items()}


def times_adding_up(whole: float, parts: Mapping[str, float]) -> tuple[str, dict[str, str]]:
    """Seconds and their terms in the unit of the sum, to four digits of it. Terms too small to show are left out."""
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if whole >= s), (1e-9, "ns"))
    digits = max(0, 3 - math.floor(math.log10(whole / scale))) if whole > 0 else 0
    total, terms = adding_up(whole / scale, {name: value / scale for name, value in parts.items()}, digits)
    return f"{total} {unit}", {name: text for name, text in terms.items() if float(text)}


def capacity_words(ledger: Ledger, workload: Workload, resolved: Resolved) -> str:
    """476,000 tokens, 84 requests of 4,000 + 500 / hybrid stack: 12 requests of ..."""
    lengths = f"{show_count(workload.isl_tokens)} + {show_count(workload.osl_tokens)}"
    requests = f"{show_count(ledger.requests)} requests of {lengths}"
    requests += f" (x {workload.burst:g} kept for bursts)" if workload.burst != 1 else ""
    words = requests if ledger.kv_tokens is None else f"{show_count(ledger.kv_tokens)} tokens, {requests}"
    most = resolved.max_seqs * ledger.layout.dp_attn
    return f"{words} (the engine runs at most {show_count(most)} at once)" if ledger.requests > most else words


def missing(short: Shortfall) -> str:
    """ ": short by 23.3 GB", to the digits of the need and the budget in its reason; "" for what is not bytes."""
    return f": short by {show_lack(short.need, short.have)[2]}" if short.unit == "B" else ""


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
    heads = [f">{rank.rank_class} ({rank_words(rank.ranks)})" for rank in ledger.ranks]
    blocks: list[str | Table] = [table(["state", *heads, ""], rows, title="memory by rank class")]
    if ledger.host:
        blocks.append(
            table(["on the host", ">bytes", ""], [[e.name, show_bytes(e.bytes), e.note] for e in ledger.host])
        )
    if ledger.not_modelled:
        blocks.append("not modelled: " + "; ".join(ledger.not_modelled))
    return blocks


def rank_words(ranks: tuple[int, ...]) -> str:
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
