"""Prometheus metrics: vLLM's names where they mean the same, `linkwise:` for what is ours."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from linkwise.supervise.supervisor import Supervisor
from linkwise.supervise.types import Load

# As vLLM's, so that dashboards and recording rules over buckets work unchanged.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
           160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
              960.0, 1920.0, 7680.0)  # fmt: skip
_KINDS = ("dead", "stopped", "slow", "error", "start", "map")


def _steps(most: int) -> list[int]:
    found: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > most:
                return found or [1]
            found.append(step * scale)
        scale *= 10


class Metrics:
    """One server's metrics, in a registry of their own. Counted in the server's loop."""

    def __init__(self, model: str, longest: int) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        labels = ("model_name",)

        def counter(name: str, help: str, *more: str) -> Counter:
            return Counter(name, help, (*labels, *more), registry=self.registry)

        def histogram(name: str, help: str, buckets: Any) -> Any:
            return Histogram(name, help, labels, buckets=buckets, registry=self.registry).labels(model)

        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens of requests that got a token.").labels(model)
        self._generated = counter("vllm:generation_tokens", "Tokens given out.").labels(model)
        self._success = counter("vllm:request_success", "Requests that ended, by how.", "finished_reason")
        self._refused = counter("linkwise:requests_refused", "Requests answered by an error, by why.", "reason")
        self._first = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT_S)
        self._gap = histogram("vllm:inter_token_latency_seconds", "Between a request's tokens.", _TOKEN_S)
        self._each = histogram(
            "vllm:request_time_per_output_token_seconds", "A request's mean time per token after the first.", _TOKEN_S
        )
        self._whole = histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", _REQUEST_S)
        self._decode = histogram("vllm:request_decode_time_seconds", "First token to last.", _REQUEST_S)
        self._prompts = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _steps(longest))
        self._answers = histogram("vllm:request_generation_tokens", "New tokens of a request.", _steps(longest))
        for reason in ("stop", "length", "abort", "error"):  # a series that is missing cannot be told from zero
            self._success.labels(model, reason)
        for reason in ("full", "down", "timeout", "invalid"):
            self._refused.labels(model, reason)

    def watch(self, supervisor: Supervisor, reading: Callable[[], int], dropped: Callable[[], int]) -> None:
        """Read the supervisor and its units at every scrape. reading: requests that are not yet the supervisor's.
        dropped: spans that could not be written."""
        self.registry.register(_Units(self._model, supervisor, reading, dropped))

    def first(self, prompt_tokens: int, seconds: float) -> None:
        self._prompt.inc(prompt_tokens)
        self._first.observe(seconds)

    def token(self) -> None:
        self._generated.inc()

    def gap(self, seconds: float) -> None:
        self._gap.observe(seconds)

    def finished(self, reason: str, seconds: float, prompt: int, tokens: int, decode_s: float) -> None:
        """reason: stop, length, abort (the client or the service ended it) or error (a lost group)."""
        self._success.labels(self._model, reason).inc()
        if reason not in {"stop", "length"}:
            return
        self._whole.observe(seconds)
        self._decode.observe(decode_s)
        self._prompts.observe(prompt)
        self._answers.observe(tokens)
        if tokens > 1:
            self._each.observe(decode_s / (tokens - 1))

    def refused(self, reason: str) -> None:
        self._refused.labels(self._model, reason).inc()

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))


class _Units:
    """What the supervisor and its units say at the moment of a scrape."""

    def __init__(
        self, model: str, supervisor: Supervisor, reading: Callable[[], int], dropped: Callable[[], int]
    ) -> None:
        self._model, self._supervisor, self._reading, self._dropped = model, supervisor, reading, dropped

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        loads = self._supervisor.loads()
        numbers = {name: str(number) for number, name in enumerate(loads)}

        def gauge(name: str, help: str, value: Callable[[Load], float]) -> Metric:
            family = GaugeMetricFamily(name, help, labels=("model_name", "engine"))
            for unit, load in loads.items():
                family.add_metric((self._model, numbers[unit]), value(load))
            return family

        def counter(name: str, help: str, value: Callable[[Load], float]) -> Metric:
            family = CounterMetricFamily(name, help, labels=("model_name", "engine"))
            for unit, load in loads.items():
                family.add_metric((self._model, numbers[unit]), value(load))
            return family

        yield gauge("vllm:num_requests_running", "Requests in units' batches.", lambda load: load.running)
        yield gauge("vllm:num_requests_waiting", "Requests in units' queues.", lambda load: load.waiting)
        yield gauge("vllm:kv_cache_usage_perc", "Share of the KV tokens in use, 0 to 1.", _usage)
        yield counter("vllm:num_preemptions", "Requests that lost their KV to others.", lambda load: load.preemptions)
        yield counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", lambda load: load.prompt_tokens)
        yield counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the cache.", lambda load: load.prefix_hit_tokens
        )
        yield counter(
            "linkwise:trace_events_dropped", "Events that ranks' traces lack.", lambda load: load.unwritten_events
        )
        yield from self._own()

    def _own(self) -> Iterator[Metric]:
        supervisor, model = self._supervisor, self._model
        up = GaugeMetricFamily("linkwise:unit_ready", "1 while the unit serves.", labels=("model_name", "unit"))
        for unit, phase in supervisor.phases().items():
            up.add_metric((model, unit), float(phase == "ready"))
        yield up
        restarts = CounterMetricFamily("linkwise:unit_restarts", "Restarts.", labels=("model_name", "unit"))
        for unit, count in supervisor.restarts().items():
            restarts.add_metric((model, unit), count)
        yield restarts
        faults = CounterMetricFamily("linkwise:faults", "Lost units, by what ranks did.", labels=("model_name", "kind"))
        for kind in _KINDS:
            faults.add_metric((model, kind), supervisor.faults[kind])
        yield faults
        for name, help, value in (
            ("linkwise:retries", "Requests moved on after a fault.", supervisor.retries),
            ("linkwise:stale_events", "Events of attempts that owned nothing any more.", supervisor.stale),
            ("linkwise:spans_dropped", "Spans that could not be written.", self._dropped()),
            ("linkwise:affine_requests", "Requests routed to a unit that knew their beginning.", supervisor.affine),
        ):
            family: Any = CounterMetricFamily(name, help, labels=("model_name",))
            family.add_metric((model,), value)
            yield family
        queued = GaugeMetricFamily("linkwise:requests_queued", "Requests that no unit has.", labels=("model_name",))
        queued.add_metric((model,), supervisor.queued() + self._reading())
        yield queued
        yield self._times("linkwise:fault_name_seconds", "Last sign of life to a named fault.", False)
        yield self._times("linkwise:fault_down_seconds", "A named fault to serving again.", True)

    def _times(self, name: str, help: str, down: bool) -> Metric:
        family = GaugeMetricFamily(name, help + " Of the last fault of each unit.", labels=("model_name", "unit"))
        last: dict[str, float] = {}
        for record in self._supervisor.records:
            value = record.down_s if down else record.named_s
            if value is not None:
                last[record.unit] = value
        for unit, value in last.items():
            family.add_metric((self._model, unit), value)
        return family


def _usage(load: Load) -> float:
    return load.kv_used_tokens / load.kv_tokens if load.kv_tokens else 0.0
