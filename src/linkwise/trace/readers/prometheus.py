"""Metrics in the Prometheus and OpenMetrics text formats: of engines, routers, GPU and host exporters.

One scrape, or several in one file: a line `# scrape <unix time>` before each, or simply one after the other, where a
series that comes again begins the next. Histograms become means. prometheus-client has a parser, but is no part of the
base install.
"""

import math
import os
import re
from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.printable import clipped, printable
from linkwise.trace.facts import Fact, Kind, quoted
from linkwise.trace.readers import prometheus_names as names
from linkwise.trace.readers.base import Reading, Source
from linkwise.trace.readers.kernel_log import XIDS
from linkwise.trace.readers.prometheus_lines import NAME, Sample, figure, sample, unix_ns
from linkwise.trace.readers.shared import bus_id

FORMAT = "Prometheus metrics"

MAX_FACTS = 200_000
MAX_SERIES = 100_000  # of one scrape
_METRICS = "metrics of vLLM, SGLang, TensorRT-LLM, Dynamo, linkwise, DCGM, node_exporter, cAdvisor or XPUTimer"

_TYPE = re.compile(
    r"^# TYPE [a-zA-Z_:][\w:]* (?:counter|gauge|histogram|summary|untyped|unknown|info|stateset|gaugehistogram)\s*$",
    re.MULTILINE,
)
_KNOWN = re.compile(
    r"^(?:vllm:|sglang:|linkwise:|trtllm_|dynamo_|DCGM_FI_|XPU_TIMER_|node_netstat_)\w+[{ ]", re.MULTILINE
)
_SCRAPE = re.compile(r"# scrape (\d{9,19}(?:\.\d{1,9})?)\s*$")
_ENDS = ("_bucket", "_created", "_info")


_TOOK, _MOVED = "vllm_nixl_xfer_time_seconds", "vllm_nixl_bytes_transferred"

Labels = tuple[tuple[str, str], ...]


class Place(NamedTuple):
    """Whose a figure is, by its labels. identity: those of them that tell it; pool: the label for it, if any."""

    labels: dict[str, str]
    rank: int
    host: str
    device: str
    identity: Labels
    pool: Labels


class Mean(NamedTuple):
    """A histogram's sum or count with the place its fact will have."""

    sum: float
    number: float
    sample: Sample
    rule: names.Rule


def recognises(source: Source) -> bool:
    """Lines of `# TYPE name type`, or samples of metrics that are known."""
    text = source.text
    return bool(_TYPE.search(text) or _KNOWN.search(text))


def read(source: Source) -> Reading:
    """Facts of all scrapes. Raises InputError when no metric is one that a diagnosis asks for."""
    return _Reading(source).all()


class _Reading:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.facts: list[Fact] = []
        self.odd = self.first_odd = self.dropped = self.full_at = self.number = 0
        self.sides: set[str] = set()
        self.known: dict[str, tuple[str, Sample] | None] = {}  # by a line up to its value; None: not asked for
        self.places: dict[int, Place] = {}  # by the labels' object, which `known` keeps
        self.timed = False
        self.begin(0)
        self.scrape = 0  # its number

    def begin(self, unix_ns: int) -> None:
        """A new scrape."""
        self.unix_ns = unix_ns
        self.seen: set[tuple[str, Labels]] = set()
        self.sums: dict[tuple[str, Labels], Mean] = {}
        self.totals: dict[tuple[str, str, Labels], int] = {}
        self.faults: list[Fact] = []
        self.use: dict[tuple[str, str], str] = {}

    def all(self) -> Reading:
        cut = ""
        try:
            for number, text in self.source.lines():
                self.number = number
                self.take(text)
        except InputError as error:  # a gzip that breaks off, a line without an end
            if not self.facts and not self.seen:
                raise
            cut = f"not readable to its end: {error.message}"
        self.end()
        if not self.facts:
            where = f"{self.source.where}: line {self.first_odd}" if self.first_odd else self.source.where
            raise InputError("no metric that a diagnosis asks for", where=where, expected=_METRICS)
        notes = [cut] if cut else []
        if self.odd:
            notes.append(f"{self.odd} lines were not understood, the first is line {self.first_odd}")
        if self.dropped:
            where = f", from line {self.full_at:,} on," if self.full_at else ""
            beyond = f"{self.dropped:,} figures beyond {MAX_FACTS}{where}"
            notes.append(f"{beyond} are left out: the file holds too many scrapes or series")
        facts = [fact._replace(labels=self.pool(fact)) for fact in self.facts]
        if not self.timed:
            facts, note = self.dated(facts)
            notes.append(note)
        return Reading(facts=tuple(facts), notes=tuple(notes))

    def take(self, text: str) -> None:
        if text.startswith("#"):
            marked = _SCRAPE.match(text[:100])
            if marked:
                self.end()
                self.begin(unix_ns(marked[1]))
            return
        front = text[: text.rfind("}") + 1] or text.partition(" ")[0]
        if front in self.known and "#" not in text:  # all but its value is as it was in an earlier scrape
            before, said = self.known[front], figure(text[len(front) :])
            if before and said is None:
                self.misunderstood()
            elif before and said and math.isfinite(said[0]):
                value, at_ns = said
                self.sample(before[0], before[1]._replace(value=value, unix_ns=at_ns, line=self.number, text=text))
            return
        name = NAME.match(text)
        if name is None:
            if text.strip():
                self.misunderstood()
            return
        short = name[0].replace(":", "_", 1)
        asked = _asked(short) or ("expert" in text and "layer" in text and not short.endswith(_ENDS))
        found = sample(name[0], text, name.end(), self.number) if asked else None
        if asked and found is None:
            self.misunderstood()
            return
        if len(self.known) < MAX_SERIES:
            self.known[front] = (short, found) if found else None
        if found and math.isfinite(found.value):
            self.sample(short, found)

    def misunderstood(self) -> None:
        self.odd += 1
        self.first_odd = self.first_odd or self.number

    def sample(self, short: str, sample: Sample) -> None:
        series = short, tuple(sample.labels.items())
        if series in self.seen:
            self.end()
            self.begin(0)
        if len(self.seen) >= MAX_SERIES:
            self.dropped += 1
            return
        self.seen.add(series)
        self.timed = self.timed or sample.unix_ns > 0 or self.unix_ns > 0
        if short in names.FAULTS:
            self.fault(short, sample)
            return
        for end in ("_sum", "_count"):
            base = short.removesuffix(end)
            rule = _rule(base, sample, names.MEANS) if base != short else None
            if rule:
                self.mean(base, end, sample, rule)
                return
        rule = _rule(short, sample, names.PLAIN) or _rule(short.removesuffix("_total"), sample, names.PLAIN)
        if rule and not sample.labels.get("priority"):
            self.plain(rule, sample)
        elif rule is None and _expert(sample.labels):
            layer, expert = _expert(sample.labels)
            self.add("gauge", "expert.load", sample.value, sample, (("layer", layer), ("expert", expert)))

    def plain(self, rule: names.Rule, sample: Sample) -> None:
        if rule.side and sample.value > 0:
            self.sides.add(rule.side)
        if rule.name == "gpu.utilization_pct":
            self.use[self.place(sample)[2:4]] = f"{sample.value:g}"
        place = self.place(sample)
        labels = place.identity
        # A counter in parts (by how requests ended) is one: their sum.
        key = (rule.name, f"{place.host} {place.device} {place.rank}", labels)
        before = self.totals.get(key) if rule.kind == "counter" else None
        if before is not None:
            self.facts[before] = self.facts[before]._replace(
                value=self.facts[before].value + sample.value * rule.scale
            )  # fmt: skip
            return
        if self.add(rule.kind, rule.name, sample.value * rule.scale, sample, labels, rule.unit):
            self.totals[key] = len(self.facts) - 1

    def mean(self, base: str, end: str, sample: Sample, rule: names.Rule) -> None:
        key = base, tuple(sorted(sample.labels.items()))
        found = self.sums.get(key, Mean(math.nan, math.nan, sample, rule))
        self.sums[key] = found._replace(sum=sample.value) if end == "_sum" else found._replace(number=sample.value)

    def fault(self, short: str, sample: Sample) -> None:
        """Faults wait for the end of the scrape, which knows whether the device was in use."""
        value = int(sample.value) if 0 <= sample.value < 2**53 else 0
        found: list[tuple[Kind, str, dict[str, str]]] = []
        if short == names.XID and value:
            severity, meaning = XIDS.get(value, ("unknown", ""))
            found = [("device", f"xid.{value}", {"severity": severity, "meaning": meaning})]
        elif short in names.THROTTLE:
            found = [("device", f"throttle.{name}", {}) for bit, name in names.REASONS.items() if value & bit]
        elif short == names.UNCORRECTED and value:
            found = [("device", "ecc.uncorrected", {"count": str(value), "scope": "volatile"})]
        elif short == names.REMAP_FAILED and value:
            found = [("device", "ecc.row_remap_failed", {"severity": "hardware"})]
        elif short == names.PORT_STATE and value == 1:
            found = [("network", "ib.port_down", {"state": "DOWN"})]
        uuid = sample.labels.get("UUID", "")
        for kind, name, labels in found:
            pairs = tuple((key, word) for key, word in {**labels, "uuid": _word(uuid)}.items() if word)
            fact = self.fact(kind, name, float(value) if name == "ecc.uncorrected" else 1.0, sample, pairs)
            if len(self.faults) < MAX_FACTS:
                self.faults.append(fact)

    def end(self) -> None:
        """The means and faults of a scrape that is over."""
        for fact in self.faults:
            use = self.use.get((fact.host, fact.device), "")
            more = (("utilization", use),) if use and fact.name.startswith("throttle.") else ()
            self.keep(fact._replace(labels=fact.labels + more))
        for (base, labels), mean in self.sums.items():
            took = self.sums.get((_TOOK, labels)) if base.startswith("vllm_nixl_") else None
            # Figures of the same transfers have one source, so that a rule can lay them side by side.
            sample = took.sample if took else mean.sample
            if not mean.number > 0 or not math.isfinite(mean.sum):
                continue
            about = (*_identity(dict(labels)), ("count", f"{mean.number:.0f}"))
            value = mean.sum / mean.number * mean.rule.scale
            self.add("gauge", mean.rule.name, value, sample, about, mean.rule.unit)
            if base == _MOVED and took and took.sum > 0:
                self.add("gauge", "serve.transfer_MBps", mean.sum / took.sum / 1e6, sample, about, "MB/s")
        if self.seen:
            self.scrape += 1

    def add(self, kind: Kind, name: str, value: float, sample: Sample, labels: Labels, unit: str = "") -> bool:
        return self.keep(self.fact(kind, name, value, sample, labels, unit))

    def fact(self, kind: Kind, name: str, value: float, sample: Sample, labels: Labels, unit: str = "") -> Fact:
        again = (("snapshot", str(self.scrape)),) if self.scrape else ()
        place = self.place(sample)
        return Fact(
            kind, name, value, rank=place.rank, host=place.host, device=place.device,
            unix_ns=sample.unix_ns or self.unix_ns, labels=(*place.pool, *labels, *again),
            text=quoted(sample.text[:2048]), source=f"{self.source.where}: line {sample.line}", unit=unit,
        )  # fmt: skip

    def place(self, sample: Sample) -> Place:
        found = self.places.get(id(sample.labels))
        if found is None or found.labels is not sample.labels:
            labels, pool = sample.labels, sample.labels.get("engine_type", "")
            side = (("pool", pool),) if pool in {"prefill", "decode"} else ()
            found = Place(labels, _rank(labels), _host(labels), _device(labels), _identity(labels), side)
            if len(self.places) < MAX_SERIES:
                self.places[id(labels)] = found
        return found

    def keep(self, fact: Fact) -> bool:
        if len(self.facts) >= MAX_FACTS:
            self.dropped += 1
            self.full_at = self.full_at or self.number
            return False
        self.facts.append(fact)
        return True

    def pool(self, fact: Fact) -> Labels:
        """The labels with the pool, where its queues or the file's name tell it and no label does: every engine has
        all queues, and uses those of its side."""
        if not fact.name.startswith("serve.") or fact.label("pool"):
            return fact.labels
        told = self.sides or {word for word in ("prefill", "decode") if word in self.source.where.lower()}
        return (("pool", next(iter(told))), *fact.labels) if len(told) == 1 else fact.labels

    def dated(self, facts: list[Fact]) -> tuple[list[Fact], str]:
        """The last scrape with the file's own time, which is the time of writing at best."""
        try:
            at = os.stat(self.source.path).st_mtime_ns
        except OSError:
            at = 0
        last = str(self.scrape - 1) if self.scrape > 1 else ""
        dated = [
            fact._replace(unix_ns=max(at, 0), labels=(*fact.labels, ("time", "mtime")))
            if fact.label("snapshot") == last
            else fact
            for fact in facts
        ]
        return dated, "the metrics have no time: that of the file is taken for the last scrape"


def _asked(short: str) -> bool:
    """Whether a metric, or the histogram a line is of, is one of ours."""
    if short in names.PLAIN or short in names.FAULTS or short in names.BY_LABEL:
        return True
    base = short.removesuffix("_total")
    if base in names.PLAIN:
        return True
    base = short.removesuffix("_sum") if short.endswith("_sum") else short.removesuffix("_count")
    return base != short and (base in names.MEANS or base in names.BY_LABEL)


def _rule(short: str, sample: Sample, table: dict[str, names.Rule]) -> names.Rule | None:
    """The rule of a metric, by its name or by the label that says which figure it is."""
    by_label = names.BY_LABEL.get(short)
    if by_label:
        return by_label[1].get(sample.labels.get(by_label[0], ""))
    return table.get(short)


def _expert(labels: dict[str, str]) -> tuple[str, ...]:
    """Layer and expert of a figure that has both; () for others."""
    found = [next((labels[k] for k in (f"{of}_id", of, f"{of}_idx") if k in labels), "") for of in ("layer", "expert")]
    return tuple(found) if all(part.isascii() and part.isdigit() and len(part) < 9 for part in found) else ()


def _identity(labels: dict[str, str]) -> Labels:
    """The labels that tell whose a figure is, in order of their names."""
    kept = sorted((key, _word(value)) for key, value in labels.items() if key not in names.PARTS and value)
    return tuple(("model" if key == "model_name" else key, value) for key, value in kept[:32])


def _host(labels: dict[str, str]) -> str:
    found = next((labels[key] for key in names.HOSTS if labels.get(key, "NOT_SET") != "NOT_SET"), "")
    return _word(found or labels.get("instance", "").rpartition(":")[0])


def _device(labels: dict[str, str]) -> str:
    """A GPU by its bus, or its number; a port of a NIC as NIC:port."""
    if "port" in labels and "device" in labels:
        return _word(f"{labels['device']}:{labels['port']}")
    if labels.get("pci_bus_id"):
        return bus_id(labels["pci_bus_id"])
    number = labels.get("gpu", "") or (labels.get("local_rank", "") if "rank" in labels else "")
    return f"gpu{number}" if number.isascii() and number.isdigit() and len(number) < 6 else ""


def _rank(labels: dict[str, str]) -> int:
    rank = labels.get("rank", "")
    return int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 8 and int(rank) < 2**20 else -1


def _word(text: str) -> str:
    return clipped(printable(text))
