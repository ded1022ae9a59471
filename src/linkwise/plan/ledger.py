"""Every state of every rank by name, what is left for KV, and the first resource that does not fit (DESIGN §2.3, §2.4).

What is left for KV holds the KV cache and every other per-request state, the blocks kept for shared prefixes, and the
draft layers' cache. Entries whose name starts with `kv` lie inside it; all other entries of the budget add up with it
to the budget.
"""

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout
from linkwise.core.quantity import Given, Num, named, plain, total
from linkwise.engine.base import Engine, Options
from linkwise.model.types import Model
from linkwise.plan.memory import Case, RankFigures, case_of, group_figures, rank_figures
from linkwise.plan.residents import Line, copies, rank_classes, shards
from linkwise.plan.shortfall import first_shortfall
from linkwise.plan.types import Entry, Ledger, RankLedger
from linkwise.workload.types import Workload

NOT_MODELLED = (
    "allocator fragmentation, rotary tables and other small persistent buffers",
    "workspaces of attention and communication kernels beyond the engine's logged runtime memory",
    "activations of a vision encoder and its cache; scan buffers of linear and Mamba layers",
    "page alignment between the layer kinds of a hybrid stack, which may halve its capacity",
    "redundant experts of a load balancer",
)
_HOST = "host memory: tokenizer, scheduler state, pinned buffers"


def ledger(
    model: Model, cluster: Cluster, engine: Engine, layout: Layout, options: Options, workload: Workload
) -> Ledger:
    """Memory of one serving group, rank class by rank class, and the first resource that does not fit.

    workload.concurrency counts the requests of the whole cluster; a group takes its share. Under a pipeline, `requests`
    counts all batches in flight (one a stage unless `microbatches` says otherwise).
    Raises InputError for options that contradict the model.
    """
    case = case_of(model, cluster, engine, layout, options, workload)
    found = [rank_figures(case, who) for who in rank_classes(case.stock, layout, engine)]
    tokens, requests = group_figures(case, found)
    host_bytes = engine.memory.host_bytes
    host = (Entry(name="engine", bytes=host_bytes, place="host", in_budget=False, note="engine facts: memory"),)
    return Ledger(
        layout=layout,
        ranks=tuple(_rank_ledger(case, f) for f in found),
        tightest=_tightest(found),
        host=host if host_bytes else (),
        not_modelled=NOT_MODELLED if host_bytes else (*NOT_MODELLED, _HOST),
        shortfall=first_shortfall(case, found),
        kv_tokens=tokens,
        requests=requests,
        warnings=(*engine.warnings(model, layout), *_length_warning(case, tokens)),
    )


def ledger_figures(
    model: Model,
    cluster: Cluster,
    engine: Engine,
    layout: Layout,
    options: Options,
    workload: Workload,
    given: Given = plain,
) -> dict[str, Num]:
    """Every explainable figure of the ledger by path; `rank{r}` is the first rank of each rank class.

    With `Quantity.given` each value carries its chain; with `plain` the same values are plain numbers.
    """
    case = case_of(model, cluster, engine, layout, options, workload)
    found = [rank_figures(case, who, given) for who in rank_classes(case.stock, layout, engine)]
    figures: dict[str, Num] = {}
    for one in found:
        rank = f"rank{one.who.first}"
        by_role: dict[str, list[Num]] = {}
        for line in one.lines:
            by_role.setdefault(line.role, []).append(line.bytes)
        figures |= {f"weights.{role}.{rank}": total(sizes) for role, sizes in by_role.items()}
        figures |= {
            f"weights.{rank}": one.fixed.weights,
            f"budget.{rank}": one.space.budget,
            f"activations.{rank}": one.peak.forward,
            f"logits.{rank}": one.peak.extra,
            f"workspace.{rank}": named("workspace", one.workspace, "B"),
            f"runtime.{rank}": named("runtime_memory", total((one.fixed.runtime, one.fixed.collective)), "B"),
            f"kv.{rank}": one.space.left,
            f"request.{rank}": one.demand.request,
            f"short.{rank}": one.short,
        }
        if one.demand.per_token is not None:
            source = f"{case.kv_dtype} entries of a token in every layer of this rank"
            figures[f"bytes_per_token.{rank}"] = given("bytes_per_token", one.demand.per_token, "B", source)
    tokens, requests = group_figures(case, found, given)
    if tokens is not None:
        figures["kv_tokens"] = tokens
    figures["requests"] = requests
    return figures


def _tightest(found: list[RankFigures]) -> int:
    """The class with room for the fewest requests; where none keeps anything, the one with the least memory left."""
    keeping = [i for i, f in enumerate(found) if f.demand.request]
    if not keeping:
        return min(range(len(found)), key=lambda i: found[i].space.left)
    return min(keeping, key=lambda i: found[i].demand.room / found[i].demand.request)


def _length_warning(case: Case, tokens: int | None) -> tuple[str, ...]:
    """Engines serve a model's full length unless told otherwise and do not start when one such request does not fit."""
    longest = case.settings.max_model_len
    if tokens is None or case.options.max_model_len or case.engine.name == "textbook":
        return ()
    fit = tokens // case.layout.dp_attn
    if not 0 < fit < longest:
        return ()
    return (f"one request of the model's full {longest:,} tokens does not fit ({fit:,} do): set max_model_len",)


def _rank_ledger(case: Case, f: RankFigures) -> RankLedger:
    return RankLedger(
        rank_class=f.who.label,
        ranks=f.who.ranks,
        entries=_entries(case, f),
        device_bytes=case.cluster.accelerator.memory_bytes,
        budget_bytes=f.space.budget,
        kv_bytes=f.space.left,
        bytes_per_token=f.demand.per_token,
        kv_tokens=f.demand.tokens,
        requests=f.demand.requests,
    )


def _entries(case: Case, f: RankFigures) -> tuple[Entry, ...]:
    """The lines of one rank: weights, adapters, working memory, then what lies in the space left for KV."""
    layout, fixed = case.layout, f.fixed
    counted = case.mode != "static"
    result = [
        Entry(
            name=f"weights.{_label(line, f.lines)}",
            bytes=line.bytes,
            sharded_over=shards(line.over, layout),
            replicated_over=copies(line.over, layout),
        )
        for line in f.lines
    ]
    if fixed.adapters:
        result.append(Entry(name="adapters", bytes=fixed.adapters, note="divided as the weights they adapt"))
    batched = f"forward peak of {case.settings.max_batched_tokens:,} batched tokens"
    sampled = f"what sampling {case.settings.max_seqs:,} requests takes beyond it, once the activations are gone"
    graphs_counted = counted and case.engine.memory.graphs_in_budget
    result += [
        Entry(name="activations", bytes=f.peak.forward, in_budget=counted, note=batched),
        Entry(name="logits", bytes=f.peak.extra, in_budget=counted, note=sampled),
        Entry(name="runtime", bytes=fixed.runtime, in_budget=counted, note="context and libraries"),
        Entry(name="collective_buffers", bytes=fixed.collective, in_budget=counted),
        Entry(name="cuda_graphs", bytes=fixed.graphs, in_budget=graphs_counted),
        Entry(name="staging", bytes=0, note="no KV leaves this group"),
    ]
    if case.mode == "free":
        result.append(Entry(name="reserve", bytes=f.space.reserve, note="free memory the engine leaves alone"))
    return (*result, *_request_entries(case, f))


def _label(line: Line, lines: list[Line]) -> str:
    """A role's name; where its weights are divided in several ways, with the way."""
    if sum(other.role == line.role for other in lines) == 1:
        return line.role
    return f"{line.role}.{'x'.join(line.over) or 'replicated'}"


def _request_entries(case: Case, f: RankFigures) -> list[Entry]:
    layout, demand = case.layout, f.demand
    latent = case.stock.model.is_mla
    # Tokens are split over cp and dcp; heads over tp while there are heads (a latent has none to divide).
    axes = {"dp_attn", "dcp"} | (set() if latent else {"tp"})
    copies = {"tp": layout.tp // layout.dcp} if latent else {}
    if case.convention.cp_kv == "split":
        axes |= {"cp"}
    else:
        copies["cp"] = layout.cp
    divided = " x ".join(f"{a} {d}" for a, d in layout.degrees().items() if a in axes and d > 1)
    copied = " x ".join(f"{a} {d}" for a, d in copies.items() if d > 1)
    many = "request" if case.target == 1 else "requests"
    batches = f", {case.in_flight} batches in flight" if case.in_flight > 1 else ""
    note = f"{case.target} {many} of {case.workload.total_tokens:,} tokens on one attention replica{batches}"
    result = [
        Entry(
            name="kv" if name == "kv" else f"kv.{name}",
            bytes=size * case.target,
            sharded_over=divided,
            replicated_over=copied,
            note=note,
        )
        for name, size in demand.states.items()
    ]
    if demand.prefix:
        result.append(Entry(name="kv.prefix_cache", bytes=demand.prefix, note="blocks kept for shared prefixes"))
    return result
