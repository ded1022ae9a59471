"""A prompt's KV between prefill and decode: who keeps it, by what both sides' queues did over time.

The queues say on whose side a transfer is. Prefill's queue in flight empties when its worker has sent everything;
decode's transfer queue when everything has arrived. So what stands still on one side only is that side's.
"""

from collections.abc import Iterator
from itertools import groupby

from linkwise.core.units import show_bytes, show_figure
from linkwise.diagnose.case import Case
from linkwise.diagnose.places import lines, one
from linkwise.diagnose.rules import handoff_records
from linkwise.diagnose.series import Engine, engines
from linkwise.diagnose.types import Class, Fault, Finding
from linkwise.trace.facts import Fact

FULL, EMPTY = 0.9, 0.5  # shares of the KV pool in use
FEW = 2  # requests that run where there is nothing to do
LONG_S = 20.0  # a queue that stands still for less may be one long transfer
MANY = 64  # pieces of one transfer that are pieces of a fragmented destination
SLOWER = 10.0  # times, that pieces make a transfer slower and a link that is merely busy does not


def find(case: Case) -> Iterator[Finding]:
    """Stalled and slow handoffs, pools of the wrong size; from our own records also slow senders and owners."""
    all_ = engines(case)
    prefill = [one_ for one_ in all_ if one_.pool == "prefill"]
    decode = [one_ for one_ in all_ if one_.pool == "decode"]
    pieces = list(_pieces(case))
    stalled = list(_stalled(prefill, decode)) if not pieces else []
    yield from pieces
    yield from stalled
    if not (pieces or stalled):
        yield from _full_prefill(prefill, decode)
        yield from _starved(prefill, decode)
    yield from _timeouts(case, bool(pieces or stalled))
    yield from handoff_records.find(case)


def _stuck(all_: list[Engine], queue: str) -> list[Engine]:
    return [e for e in all_ if queue in e.gauges and e.gauges[queue].stuck() and _long(e, queue)]


def _long(engine: Engine, queue: str) -> bool:
    seconds = engine.gauges[queue].seconds
    return seconds == 0 or seconds >= LONG_S


def _idle(engine: Engine) -> bool:
    """Nearly nothing runs and there is room."""
    running = engine.gauges.get("serve.running")
    few = running is not None and running.typical <= max(FEW, 0.1 * max(running.values))
    return few and engine.typical("serve.kv_usage", 0.0) < EMPTY


def _stalled(prefill: list[Engine], decode: list[Engine]) -> Iterator[Finding]:
    taking = [engine for engine in _stuck(decode, "serve.transfer_queue") if _idle(engine)]
    sending = [e for e in _stuck(prefill, "serve.inflight_queue") if e.gauges["serve.inflight_queue"].frozen()]
    free = decode and all(_idle(engine) for engine in decode)
    empty = decode and all(engine.typical("serve.transfer_queue", 0.0) < 1 for engine in decode)
    if taking and sending:
        yield _stall(
            taking + sending,
            [],
            "handoffs stand still on both sides: prefill has them in flight, decode waits for them",
            decided=False,
            would="which transfers prefill's worker holds and since when, and the NIC's counters",
        )
    elif taking:
        yield _stall(
            taking,
            decode,
            "decode side: its transfer queue does not shrink while next to nothing runs there and its KV is nearly"
            " empty: transfers that never end hold its slots, on the side that takes and allocates",
            confidence=0.85 if prefill else 0.7,
        )
    elif sending and (empty or free or not decode):
        yield _stall(
            sending,
            prefill,
            "prefill side: its transfer worker holds requests in flight that never finish, while decode has room and"
            " nothing to take",
            confidence=0.8 if decode else 0.6,
        )


def _stall(
    where: list[Engine],
    pool: list[Engine],
    words: str,
    *,
    confidence: float = 0.5,
    decided: bool = True,
    would: str = "",
) -> Finding:
    """A rank is named when others of its pool speak too and are well: some engines let one rank speak for all."""
    ranks = sorted({engine.rank for engine in where} - {-1})
    single = len(ranks) == 1 and len({engine.rank for engine in pool} - {-1}) > 1
    return Finding(
        class_="handoff_stalled",
        summary=words,
        original_fault=Fault(ranks=tuple(ranks) if single and decided else (), host=one(e.host for e in where)),
        cause="software",
        first_reporter="decode, which looks idle" if where[0].pool == "decode" else "prefill",
        confidence=confidence,
        decided=decided,
        evidence=_told(where),
        would_decide=would,
        next="timeouts of every state of the transfer, not of waiting for it alone; restart the side named here",
        recovery="restart group",
    )


_SHOWN = (
    "serve.transfer_queue", "serve.inflight_queue", "serve.prealloc_queue", "serve.running", "serve.waiting",
    "serve.kv_usage",
)  # fmt: skip


def _told(where: list[Engine]) -> tuple[str, ...]:
    """Each engine's figures from the first to the last, and the line the last was read from."""
    rows = []
    for engine in where[:4]:
        figures = [
            f"{name.removeprefix('serve.')} {show_figure(values[0])} to {show_figure(values[-1])}"
            for name in _SHOWN
            if name in engine.gauges and (values := engine.gauges[name].values)
        ]
        rank = f" rank {engine.rank}" if engine.rank >= 0 else ""
        rows.append(f"{engine.pool or 'engine'}{rank}: {', '.join(figures)}")
        last = [engine.gauges[name].facts[-1] for name in _SHOWN if name in engine.gauges]
        rows += lines(last, 2)
    return tuple(dict.fromkeys(rows))


def _pieces(case: Case) -> Iterator[Finding]:
    """Transfers that are slow where they have many pieces, and fast where they have few: the destination's blocks."""
    told = [f for f in case.facts("gauge", "serve.transfer_") if f.name != "serve.transfer_queue"]
    by_line = [{fact.name: fact for fact in group} for _, group in groupby(sorted(told, key=_moment), key=_moment)]
    both = [one_ for one_ in by_line if {"serve.transfer_entries", "serve.transfer_MBps"} <= set(one_)]
    many = [one_ for one_ in both if one_["serve.transfer_entries"].value >= MANY]
    if not many:
        return
    slow = min(many, key=lambda one_: one_["serve.transfer_MBps"].value)
    entries, rate = slow["serve.transfer_entries"].value, slow["serve.transfer_MBps"].value
    fast = max(both, key=lambda one_: one_["serve.transfer_MBps"].value)
    best, few = fast["serve.transfer_MBps"].value, fast["serve.transfer_entries"].value
    if rate <= 0 or best < SLOWER * rate or few * 4 > entries:
        return
    yield Finding(
        class_="handoff_allocation",
        summary=f"allocation on the decode side, not the link: transfers of {show_figure(entries)} pieces move"
        f" {show_bytes(rate * 1e6)}/s, of {show_figure(few)} pieces {show_bytes(best * 1e6)}/s over the same link: the"
        " blocks they go to are fragmented",
        original_fault=Fault(),
        cause="software",
        first_reporter="decode's transfer queue",
        confidence=0.85,
        evidence=(*lines(slow.values(), 3), *lines(fast.values(), 3)),
        next="larger pages, contiguous allocation, or a staging buffer that gathers the pieces",
        recovery="none",
    )


def _moment(fact: Fact) -> tuple[str, int, int]:
    return fact.source, fact.unix_ns, fact.rank


def _full_prefill(prefill: list[Engine], decode: list[Engine]) -> Iterator[Finding]:
    """Prefill is full of KV that nobody takes, while decode, with room, runs nothing."""
    full = [engine for engine in prefill if engine.typical("serve.kv_usage") >= FULL]
    room = [engine for engine in decode if engine.typical("serve.running", 1) == 0 and _idle(engine)]
    if not full or not decode or len(room) < len(decode):
        return
    yield _stall(
        decode + full,
        [],
        "decode side: prefill's KV is full of prompts that nobody fetches, while decode runs nothing and has room: its"
        " loop does not post the receives",
        confidence=0.75,
    )


def _starved(prefill: list[Engine], decode: list[Engine]) -> Iterator[Finding]:
    """A pool with work that waits while the other has none."""
    if not prefill or not decode:
        return
    waits = {id(e): _waiting(e) for e in [*prefill, *decode]}
    full = [e for e in decode if e.typical("serve.kv_usage") >= FULL and waits[id(e)]]
    if full and not any(waits[id(engine)] for engine in prefill):
        yield _small("decode_starved", "decode", full, "its KV is full and requests wait for it")
    behind = [engine for engine in prefill if waits[id(engine)]]
    if behind and all(_under_used(engine) for engine in decode):
        yield _small("prefill_starved", "prefill", behind, "prompts wait for it while decode has room and little to do")


def _waiting(engine: Engine) -> bool:
    """Whether a queue before the engine grows."""
    names = ("serve.waiting", "serve.prealloc_queue") if engine.pool == "decode" else ("serve.waiting",)
    return any(engine.gauges[name].growing(4) for name in names if name in engine.gauges)


def _under_used(engine: Engine) -> bool:
    queued = sum(engine.typical(name, 0) for name in ("serve.waiting", "serve.prealloc_queue", "serve.transfer_queue"))
    return engine.typical("serve.kv_usage", 1.0) < EMPTY and queued < 1


def _small(kind: Class, pool: str, where: list[Engine], words: str) -> Finding:
    return Finding(
        class_=kind,
        summary=f"the {pool} pool is too small for the other: {words}",
        original_fault=Fault(host=one(engine.host for engine in where)),
        cause="configuration",
        first_reporter=pool,
        confidence=0.75,
        evidence=_told(where),
        next=f"linkwise plan with another split of the pools: more {pool}, or fewer of the other",
        recovery="reject",
    )


def _timeouts(case: Case, known: bool) -> Iterator[Finding]:
    """Requests given up between the pools. They say that one side waited, not why the other did not come."""
    found = case.facts("error", "handoff_timeout", "transfer_timeout")
    if not found or known:
        return
    states = ", ".join(dict.fromkeys(fact.label("state") for fact in found if fact.label("state")))
    yield Finding(
        class_="undecided",
        summary=f"{len(found)} handoffs were given up{f' in {states}' if states else ''}: the side that waited says so,"
        " which side did not come is not said",
        first_reporter=f"{found[0].label('pool')} rank {found[0].rank}".strip() if found[0].rank >= 0 else "",
        confidence=0.4,
        decided=False,
        evidence=lines(found),
        would_decide="queues of both pools over time (their logs or metrics): decode without free blocks, a prefill"
        " that is behind, or a connection that was never made",
        next="the log of the other side at the same time",
        recovery="retry elsewhere",
    )
