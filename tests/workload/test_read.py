"""Workloads from options and files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.workload.read import dump, from_options, load, parse
from linkwise.workload.types import Targets, Workload

HEAD = "schema: linkwise.workload/1\n"

positive = st.floats(1e-6, 1e5)
workloads = st.builds(
    Workload,
    isl_tokens=st.integers(1, 10**8),
    osl_tokens=st.integers(1, 10**8),
    rate_per_s=st.none() | positive,
    concurrency=st.none() | st.integers(1, 10**7),
    prefix_hit=st.floats(0, 0.999),
    burst=st.floats(1, 100),
    targets=st.builds(Targets, ttft_s=st.none() | positive, tpot_s=st.none() | positive),
)


def test_options_as_typed() -> None:
    workload = from_options(isl=1024, osl=128, rate="90/min", concurrency=32, ttft="1s", tpot="40ms", prefix_hit=0.5)
    assert (workload.isl_tokens, workload.osl_tokens, workload.total_tokens) == (1024, 128, 1152)
    assert workload.rate_per_s == pytest.approx(1.5)
    assert (workload.concurrency, workload.prefix_hit) == (32, 0.5)
    assert workload.targets == Targets(ttft_s=1.0, tpot_s=0.04)


def test_nothing_given_is_the_default() -> None:
    assert from_options() == Workload()


def test_options_win_over_a_file() -> None:
    base = parse(HEAD + "isl_tokens: 100\nrate: 6/s\ntargets: {ttft: 2s, tpot: 50ms}", where="w.yaml")
    workload = from_options(base=base, osl=7, ttft="1s")
    assert (workload.isl_tokens, workload.osl_tokens, workload.rate_per_s) == (100, 7, 6.0)
    assert workload.targets == Targets(ttft_s=1.0, tpot_s=0.05)


@given(workloads)
def test_round_trip(workload: Workload) -> None:
    assert parse(dump(workload), where="w.yaml") == workload


def test_load_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(HEAD + "osl_tokens: 3\n")
    assert load(str(path)) == Workload(osl_tokens=3)
    with pytest.raises(InputError, match="no such file"):
        load(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("isl: 5", "isl"),
        ("isl_tokens: 0", "isl_tokens is 0"),
        ("isl_tokens: -1", "1..100000000"),
        ("isl_tokens: 1.5", "isl_tokens"),
        ("rate: 6", "rate"),
        ("rate: '6'", "6/s"),
        ("rate: 6/s\nrate_per_s: 6", "both given"),
        ("rate_per_s: .nan", "rate_per_s is nan"),
        ("rate_per_s: .inf", "rate_per_s is inf"),
        ("concurrency: 0", "concurrency is 0"),
        ("prefix_hit: 1", "prefix_hit"),
        ("prefix_hit: .nan", "prefix_hit is nan"),
        ("burst: 0.5", "burst is 0.5"),
        ("targets: {ttft: 40}", "ttft"),
        ("targets: {ttft: '40'}", "40ms"),
        ("targets: {tpot: 40ms, tpot_s: 1}", "both given"),
        ("targets: {p99: 1s}", "p99"),
        ("targets: {ttft_s: -1}", "ttft_s is -1"),
    ],
)
def test_refusals_name_file_and_field(body: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(HEAD + body, where="w.yaml")
    assert str(caught.value).startswith("w.yaml")
    assert says in str(caught.value)


def test_the_schema_is_required() -> None:
    with pytest.raises(InputError, match=r"linkwise\.workload/1"):
        parse("isl_tokens: 1", where="w.yaml")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"isl": 0}, "isl_tokens"),
        ({"osl": 10**9}, "osl_tokens"),
        ({"rate": "6"}, "6/s"),
        ({"rate": "-1/s"}, "positive"),
        ({"ttft": "40"}, "unit"),
        ({"tpot": "0ms"}, "positive"),
        ({"concurrency": -1}, "concurrency"),
        ({"prefix_hit": 1.0}, "prefix_hit"),
        ({"burst": float("nan")}, "burst"),
    ],
)
def test_bad_options(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_options(**options)  # type: ignore[arg-type]
