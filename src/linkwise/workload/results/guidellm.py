"""GuideLLM's report, benchmarks.json, 0.3 and later: vllm-project/guidellm src/guidellm/benchmark/schemas.

One entry a strategy. What GuideLLM calls time per output token counts the first token as well; ours does not, so that
inter_token_latency_ms, the mean gap between tokens weighted by their number, is taken.
"""

from collections.abc import Iterator

from linkwise.workload.results import names
from linkwise.workload.results.base import Entry, Unusable, as_number
from linkwise.workload.results.types import Row, Statistic

FORMAT = "guidellm"


def recognises(entry: Entry) -> bool:
    """A list of benchmarks with metrics."""
    found = entry.values.get("benchmarks")
    return isinstance(found, list) and any(isinstance(one, dict) and "metrics" in one for one in found)


def split(entry: Entry) -> Iterator[Entry]:
    """An entry for each benchmark, which has the report's own arguments beside its fields."""
    for number, one in enumerate(entry.values["benchmarks"]):
        values = one if isinstance(one, dict) else {}
        yield Entry(f"{entry.where}: benchmarks[{number}]", values | {"report": entry.values})


def rows(entry: Entry) -> Iterator[Row]:
    """One benchmark."""
    metrics = entry.part("metrics")
    strategy = entry.part("config", "strategy")
    if not strategy.values:
        strategy = entry.part("args", "strategy")
    statistic, ttft_s, tpot_s = _times(metrics)
    if ttft_s is None and tpot_s is None:
        raise Unusable("no successful time_to_first_token_ms or inter_token_latency_ms")
    isl = metrics.part("prompt_token_count", "successful")
    osl = metrics.part("output_token_count", "successful")
    requests = metrics.part("request_totals").whole("successful", low=0)
    if requests == 0:
        raise Unusable("field metrics.request_totals.successful: 0, expected 1 or more")
    yield Row(
        model=_model(entry), isl=isl.tokens("mean"), osl=osl.tokens("mean"), fixed_lengths=_fixed(isl, osl),
        concurrency=_concurrency(strategy), rate_per_s=strategy.rate("rate"), requests=requests, ttft_s=ttft_s,
        tpot_s=tpot_s, statistic=statistic, source=entry.where,
        **names.deployment(entry.part("report", "metadata"), tool=True),
    )  # fmt: skip


def _times(metrics: Entry) -> tuple[Statistic, float | None, float | None]:
    parts = [metrics.part(name, "successful") for name in ("time_to_first_token_ms", "inter_token_latency_ms")]
    mean = [part.seconds("mean") for part in parts]
    median = [part.seconds("median") for part in parts]
    return ("median", median[0], median[1]) if mean == [None, None] else ("mean", mean[0], mean[1])


def _concurrency(strategy: Entry) -> float | None:
    """Requests in flight, where the strategy bounds them: one after the other, or so many streams.

    At a rate its max_concurrency, 10,240 unless said otherwise, bounds what the client opens, not what is in flight.
    """
    if strategy.text("type_", "kind") == "synchronous":
        return 1.0
    if strategy.rate("rate") is not None:
        return strategy.number("streams", low=1.0, high=1e7)
    return strategy.number("streams", "max_concurrency", low=1.0, high=1e7)


def _model(entry: Entry) -> str | None:
    for path in (("report", "args"), ("report", "args", "backend_kwargs"), ("config", "backend")):
        if model := entry.part(*path).text("model"):
            return model
    return None


def _fixed(isl: Entry, osl: Entry) -> bool | None:
    spread = [as_number(one.values.get("std_dev")) for one in (isl, osl)]
    return None if None in spread else spread == [0.0, 0.0]
