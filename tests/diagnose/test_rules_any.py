"""Whatever facts there are, rules answer: without an exception, and for every abstention with what is missing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.diagnose.case import Case
from linkwise.diagnose.diagnose import diagnose
from linkwise.diagnose.rules import devices, handoff, host, links, monitors, network, stacks
from linkwise.trace.calls import of_events
from linkwise.trace.events import Batch, Event, Head, Mark, RankTrace, Trace
from linkwise.trace.facts import Fact
from linkwise.trace.gather import Evidence

NAMES = {
    "counter": ["ib.symbol_error", "ib.link_downed", "tcp.out_segs", "tcp.retrans_segs", "cpu.nr_periods",
                "cpu.nr_throttled"],
    "gauge": ["serve.running", "serve.waiting", "serve.kv_usage", "serve.transfer_queue", "serve.inflight_queue",
              "serve.transfer_entries", "serve.transfer_MBps", "rank.hang", "ib.port_state"],
    "device": ["xid.79", "xid.31", "xid.43", "throttle.hw_slowdown", "ecc.uncorrected", "nic_health",
               "pcie_downgraded"],
    "network": ["ib.completion.12.129", "ib.completion.4.81", "ib.completion.5", "ib.completion.", "ib.port_down"],
    "transport": ["p2p", "shm", "net.ib", "net.ib.gdr", "net.socket"],
    "place": ["rank", "process", "nic"],
    "watchdog": ["collective_timeout", "heartbeat"],
    "launched": ["all_reduce", "all_gather", "work"],
    "missing": ["unresponsive", "considered_dead", "stopped", "slow"],
    "status": ["ok", "mismatch"],
    "stack": ["all_reduce", "broadcast", "nccl_proxy", "lock", "idle", "compute", "device_wait"],
    "error": ["lock_wait", "handoff_timeout", "engine_watchdog", "nccl_mismatch", "peer_closed"],
    "exit": ["oom", "died", "dead", "segfault"],
    "setting": ["pcie_acs", "NCCL_NET_GDR_LEVEL", "cpu_quota"],
}  # fmt: skip
LABELS = st.dictionaries(
    st.sampled_from(["pool", "pid", "communicator", "comm_rank", "snapshot", "enqueued", "completed", "severity",
                     "caller", "thread", "lock", "value", "engine", "dp", "ranks", "state", "code", "link", "time"]),
    st.sampled_from(["", "0", "1", "7", "prefill", "decode", "hardware", "application", "on", "main", "²", "x" * 200]),
)  # fmt: skip
FACTS = st.sampled_from(sorted(NAMES)).flatmap(
    lambda kind: st.builds(
        Fact,
        st.just(kind),
        st.sampled_from(NAMES[kind]),
        st.sampled_from([0.0, 1.0, 7.0, -9.0, -11.0, 0.95, 4096.0, 1e15, -1e9]),
        rank=st.integers(-1, 4),
        host=st.sampled_from(["", "a", "b"]),
        device=st.sampled_from(["", "0000:41:00", "mlx5_0:1"]),
        unix_ns=st.sampled_from([0, 1, 10**18, 2 * 10**18]),
        labels=LABELS.map(lambda pairs: tuple(pairs.items())),
        source=st.sampled_from(["", "a.log: line 1", "b.log: line 2"]),
    )
)


@settings(deadline=None, max_examples=150)
@given(st.lists(FACTS, max_size=40))
def test_rules_answer_anything(facts: list[Fact]) -> None:
    case = Case(Evidence(facts=tuple(facts)))
    for rule in (devices, handoff, host, links, monitors, network, stacks):
        for finding in rule.find(case):
            assert 0 <= finding.confidence <= 1
            assert finding.summary
            assert finding.evidence
            if not finding.decided:
                assert finding.would_decide
                assert finding.original_fault.ranks == ()


GROUPS = {"tp": (0, 1), "tp2": (2, 3), "all": (0, 1, 2, 3), "pp:0": (0, 2), "far": (3, 9)}
TIMES = st.sampled_from([0, 1, 10**9, 10**9 + 5, 2 * 10**18, 2 * 10**18 + 10**9])
EVENTS = st.builds(
    Event,
    st.integers(-1, 3),
    st.sampled_from([*GROUPS, "unknown", ""]),
    st.sampled_from(["", "attn.out"]),
    st.sampled_from(["all_reduce", "broadcast", "send", "recv", "compute", "wait", "barrier"]),
    st.integers(-1, 6),
    st.sampled_from([0, 64, 2**40]),
    st.sampled_from(["", "float32"]),
    st.sampled_from([-1, 0, 1, 2, 3, 9]),
    TIMES,
    TIMES,
    TIMES,
    st.sampled_from(["done", "started", "scheduled", "failed"]),
)
RECORDS = st.builds(
    lambda rank, host, unit, events, marks, batches, only_open, transport: RankTrace(
        head=Head(
            rank=rank, world=10, host=host, unit=unit, transport=transport,
            groups={name: members for name, members in GROUPS.items() if rank in members},
        ),
        calls=of_events(events), marks=tuple(marks), batches=tuple(batches), only_open=only_open,
    ),
    st.integers(0, 5),
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from(["", "u"]),
    st.lists(EVENTS, max_size=12),
    st.lists(
        st.builds(Mark, st.sampled_from(["tp", "all"]), st.integers(-1, 9), st.integers(-1, 9), st.integers(-1, 9)),
        max_size=2,
    ),
    st.lists(st.builds(Batch, st.integers(0, 3), TIMES, st.just(()), st.just(()), TIMES), max_size=3),
    st.booleans(),
    st.sampled_from(["", "nccl", "gloo"]),
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(RECORDS, max_size=6, unique_by=lambda one: (one.head.unit, one.head.rank)), st.lists(FACTS, max_size=4))
def test_any_records_get_an_answer(records: list[RankTrace], facts: list[Fact]) -> None:
    found = diagnose(Evidence(trace=Trace(ranks=tuple(records)), facts=tuple(facts)))
    assert found.clocks
    for finding in found.findings:
        assert finding.summary
        assert finding.evidence
        assert finding.decided or finding.would_decide
