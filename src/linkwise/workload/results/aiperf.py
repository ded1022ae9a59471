"""AIPerf's and GenAI-Perf's aggregated export as JSON: profile_export_aiperf.json, profile_export_genai_perf.json.

After ai-dynamo/aiperf docs/tutorials/working-with-profile-exports.md and triton-inference-server/perf_analyzer
genai-perf/genai_perf/export_data/json_exporter.py: each figure is {unit, avg, p50, ..., std}; older exports have their
numbers as text. input_config is nested in the first and flat in the second.
"""

import re
from collections.abc import Iterator
from typing import Any

from linkwise.workload.results import names
from linkwise.workload.results.base import Entry, Unusable, usable
from linkwise.workload.results.types import Row

FORMAT = "aiperf or genai-perf JSON"

_OPTION = re.compile(r"--(concurrency|request-rate)[ =]+(\d{1,9}(?:\.\d{1,6})?)(?![\d,.])")
SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def recognises(entry: Entry) -> bool:
    """Figures as objects with a unit, and the run's configuration."""
    return isinstance(entry.values.get("input_config"), dict) and any(
        entry.part(name).given("unit") for name in ("time_to_first_token", "request_latency", "inter_token_latency")
    )


def rows(entry: Entry) -> Iterator[Row]:
    """One run."""
    config, load = entry.part("input_config"), entry.part("input_config", "loadgen")
    if entry.flag("was_cancelled"):  # its last requests are cut off, and those that finished are the fast ones
        raise Unusable("field was_cancelled: true, expected a run that went on to its end")
    isl, osl = entry.part("input_sequence_length"), entry.part("output_sequence_length")
    model = entry.part("input_config", "endpoint").text("model_names") or config.text("model", "model_names")
    stated = load if load.values else config
    if not stated.given("concurrency", "request_rate"):
        stated = _typed(config)
    said = names.deployment(entry, tool=True)
    said["engine"] = said["engine"] or _engine(config)
    yield usable(
        Row(
            model=model, isl=isl.tokens("avg"), osl=osl.tokens("avg"), fixed_lengths=_fixed(isl, osl),
            concurrency=stated.number("concurrency", low=1.0, high=1e7), rate_per_s=stated.rate("request_rate"),
            requests=entry.part("request_count").whole("avg", low=0), ttft_s=_time(entry, "time_to_first_token"),
            tpot_s=_time(entry, "inter_token_latency"), source=entry.where, **_drafting(entry), **said,
        )
    )  # fmt: skip


def _typed(config: Entry) -> Entry:
    """The load as it was asked for on the command line, which newer versions keep when they move their settings."""
    command = config.values.get("cli_command")
    said = dict(_OPTION.findall(command[:10_000])) if isinstance(command, str) else {}
    return Entry(config.where, {name.replace("-", "_"): value for name, value in said.items()})


def _time(entry: Entry, name: str) -> float | None:
    part = entry.part(name)
    if not part.given("avg"):
        return None
    unit = part.text("unit") or ""
    if unit not in SECONDS:
        raise Unusable(f"field {name}.unit: {unit!r}, expected one of {', '.join(SECONDS)}")
    return part.seconds("avg", scale=SECONDS[unit])


def _drafting(entry: Entry) -> dict[str, Any]:
    """Newer versions count drafts where the server reports them: AIPerf's metrics reference, spec_decode_*."""
    names_of = ("spec_decode_token_weighted_acceptance_length", "spec_decode_acceptance_length")
    found = [entry.part(name).number("avg", low=0.0, high=names.MAX_DRAFTED + 1) for name in names_of]
    steps, tokens = (entry.part(name).number("avg") for name in ("total_spec_decode_steps", "total_draft_tokens"))
    accepted = found[0] or found[1]
    drafted = tokens / steps if steps and tokens else None
    return {"speculative": True if accepted or drafted else None, "accepted": accepted, "drafted": drafted}


def _fixed(isl: Entry, osl: Entry) -> bool | None:
    """Whether lengths do not vary at all."""
    spread = [one.number("std") for one in (isl, osl)]
    return None if None in spread else spread == [0.0, 0.0]


def _engine(config: Entry) -> str | None:
    """GenAI-Perf's backend, an enum of the services that it asks by their own protocol."""
    backend = (config.text("backend") or "").rpartition(".")[2].lower()
    return names.engine(backend) if backend in {"vllm", "tensorrtllm", "sglang"} else None
