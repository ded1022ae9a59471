"""`vllm bench serve --save-result` (also --append-result, JSON lines): vllm/benchmarks/serve.py.

The file does not say which engine answered, nor how it was laid out, unless `--metadata key=value` put it there.
"""

from collections.abc import Iterator
from typing import Any

from linkwise.workload.results import names
from linkwise.workload.results.base import Entry, Unusable, usable
from linkwise.workload.results.types import Row, Statistic

FORMAT = "vllm bench serve"


def recognises(entry: Entry) -> bool:
    """Its own names of fields, beside means or medians."""
    values = entry.values
    return {"model_id", "num_prompts", "total_input_tokens"} <= values.keys() and (
        "mean_ttft_ms" in values or "median_ttft_ms" in values
    )


def rows(entry: Entry) -> Iterator[Row]:
    """One run."""
    yield served(entry, fixed=_fixed(entry), model=entry.text("model_id"), **layout(entry, entry.text("backend")))


def served(entry: Entry, *, fixed: bool | None, model: str | None, **layout: Any) -> Row:
    """A run in the fields that vLLM's and SGLang's clients share: totals of tokens, mean_*_ms and median_*_ms; of
    drafting what they say, unless `layout` does."""
    requests = entry.whole("completed", low=0)
    if not requests:
        raise Unusable(f"field completed: {requests if requests is not None else 'not there'}, expected 1 or more")
    statistic, ttft_s, tpot_s = times(entry)
    totals = entry.number("total_input_tokens"), entry.number("total_output_tokens")
    mean = Entry(entry.where, {"isl": totals[0] and totals[0] / requests, "osl": totals[1] and totals[1] / requests})
    return usable(
        Row(
            model=model, isl=mean.tokens("isl"), osl=mean.tokens("osl"), fixed_lengths=fixed,
            concurrency=entry.number("max_concurrency", low=1.0, high=1e7), rate_per_s=entry.rate("request_rate"),
            requests=requests, ttft_s=ttft_s, tpot_s=tpot_s, statistic=statistic, source=entry.where,
            **names.drafting(entry) | layout,
        )
    )  # fmt: skip


def times(entry: Entry) -> tuple[Statistic, float | None, float | None]:
    """Mean times in s, or medians where there is no mean of either."""
    mean = entry.seconds("mean_ttft_ms"), entry.seconds("mean_tpot_ms")
    median = entry.seconds("median_ttft_ms"), entry.seconds("median_tpot_ms")
    return ("median", *median) if mean == (None, None) else ("mean", *mean)


def layout(entry: Entry, backend: str | None) -> dict[str, Any]:
    """Engine, hardware and degrees, as far as fields of these names say; an API's name is no engine."""
    said = names.deployment(entry)
    known = said.pop("engine") or (None if backend is None or backend.startswith("openai") else names.engine(backend))
    return said | {"engine": known}


def _fixed(entry: Entry) -> bool | None:
    """Whether all requests are equally long, which only --save-detailed tells."""
    lists = [entry.values.get(name) for name in ("input_lens", "output_lens")]
    if not all(isinstance(one, list) and one for one in lists):
        return None
    return all(isinstance(one, list) and len(set(map(str, one))) == 1 for one in lists)
