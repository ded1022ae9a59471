"""Traces and arrivals: what is read, what is refused by line and field, and streams with the moments they claim."""

import math
from pathlib import Path

import numpy as np
import pytest

from linkwise.core.errors import InputError
from linkwise.workload import traces
from linkwise.workload.arrivals import KINDS, Arrivals, times
from linkwise.workload.lengths import Lengths, tokens

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = '{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}\n'


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_an_azure_trace_starts_at_its_first_arrival(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    found = traces.load(write(tmp_path, text))
    assert found.arrival_s.tolist() == pytest.approx([0.0, 4.314579], abs=1e-6)
    assert (found.input_tokens.tolist(), found.output_tokens.tolist()) == ([374, 396], [44, 109])
    assert found.hash_tokens == 0


def test_a_mooncake_trace_has_milliseconds_and_shared_blocks(tmp_path: Path) -> None:
    text = MOONCAKE % (1000, 1030, 5, "[7, 8, 9]") + MOONCAKE % (1500, 600, 2, "[7, 900]")
    found = traces.load(write(tmp_path, text, "m.jsonl"))
    assert found.arrival_s.tolist() == [0.0, 0.5]
    assert found.hash_tokens == 512
    first = found.hashes[found.first_hash[0] : found.first_hash[1]]
    second = found.hashes[found.first_hash[1] : found.first_hash[2]]
    assert (len(first), len(second), first[0] == second[0], second[1] in first) == (3, 2, True, False)


def test_our_own_columns_in_csv_and_json(tmp_path: Path) -> None:
    csv = traces.load(write(tmp_path, "arrival_s,input_tokens,output_tokens\n0.5,10,2\n\n1.5,20,3\n"))
    line = '{"arrival_s": %s, "input_tokens": %s, "output_tokens": %s}\n'
    json = traces.load(write(tmp_path, line % (0.5, 10, 2) + line % (1.5, 20, 3), "o.jsonl"))
    assert csv.arrival_s.tolist() == json.arrival_s.tolist() == [0.0, 1.0]
    assert csv.input_tokens.tolist() == json.input_tokens.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty file"),
        (" \n\n", "an empty file"),
        (AZURE, "no request"),
        ("a,b,c\n1,2,3\n", "line 1: columns a, b, c"),
        ("arrival_s,input_tokens,output_tokens,input_tokens\n0,1,1,2\n", "line 1: column input_tokens is there twice"),
        (AZURE + "2023-11-16 18:15:46,374\n", "line 2: 2 fields"),
        (AZURE + "yesterday,374,44\n", "line 2: field TIMESTAMP: 'yesterday'"),
        (AZURE + "2023-13-16 18:15:46,374,44\n", "line 2: field TIMESTAMP"),
        (AZURE + "2023-11-16 18:15:46,-3,44\n", "line 2: input length is -3"),
        (AZURE + "2023-11-16 18:15:46,3,0\n", "line 2: output length is 0"),
        (AZURE + "2023-11-16 18:15:46,3.5,1\n", "line 2: field ContextTokens: '3.5'"),
        (AZURE + "2023-11-16 18:15:46,3,1\n\n2023-11-16 18:15:45,3,1\n", "line 4: arrival"),
        (AZURE + "2023-11-16 18:15:46,9000,1\n", "line 2: input length 9,000 and output length 1"),
        (MOONCAKE % (0, 600, 2, "[1]"), "line 1: field hash_ids: 1 blocks of 512 tokens, the prompt has 600 tokens"),
        (MOONCAKE % (0, 512, 2, "[1, 2]"), "line 1: field hash_ids: 2 blocks of 512 tokens, the prompt has 512 tokens"),
        (MOONCAKE % (0, 6, 2, '[], "input_length": 7'), "line 1: field 'input_length' is given twice"),
        (MOONCAKE % (0, 6, 2, '[], "input_\\u006cength": 7'), "line 1: field 'input_length' is given twice"),
        (MOONCAKE % (0, 600, 2, "[1, 1]"), "a block twice"),
        (MOONCAKE % (0, '"x"', 2, "[]"), "line 1: field input_length"),
        (MOONCAKE % (-5, 6, 2, "[]"), "line 1: field timestamp: -0.005"),
        (MOONCAKE % (0, 6, 2, "[]") + "{not json}\n", "line 2: not valid JSON"),
        ('{"timestamp": 3}\n', "line 1: field input_length: missing"),
    ],
)
def test_what_cannot_be_is_refused_by_line_and_field(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        traces.load(write(tmp_path, text), longest=8192)
    assert words in str(refused.value)
    assert "t.csv" in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_arrivals_has_its_rate(kind: str) -> None:
    number, rate = 40_000, 8.0
    at = times(Arrivals(kind=kind, rate_per_s=rate, cv=2.0, burst=4.0, period_s=2.0), number, 11)
    assert np.all(np.diff(at) >= 0)
    assert (
        at.tobytes()
        == times(Arrivals(kind=kind, rate_per_s=rate, cv=2.0, burst=4.0, period_s=2.0), number, 11).tobytes()
    )
    # The time of n arrivals scatters by sqrt(n · index of dispersion) / rate: 1 of Poisson, cv² of Gamma; of the
    # two-state process 1 + 2 var(rate) · mean stay / 2 / rate, with rates 3.2 and 12.8: var 23.04, so 1 + 5.8.
    dispersion = {"even": 0.0, "poisson": 1.0, "gamma": 4.0, "mmpp": 1 + 23.04 * 2 / 8, "diurnal": 1.0}[kind]
    wave = 0.8 * 2.0 / math.pi if kind == "diurnal" else 0.0  # of a period in part
    assert abs(at[-1] - number / rate) < 4 * math.sqrt(number * dispersion) / rate + wave + 1e-3


def test_gaps_of_gamma_arrivals_scatter_as_asked() -> None:
    gaps = np.diff(times(Arrivals(kind="gamma", rate_per_s=1.0, cv=2.0), 100_000, 3))
    # variance cv² = 4; its standard error is var · sqrt((kurtosis + 2) / n), excess kurtosis 6 cv² = 24
    assert abs(gaps.var() - 4) < 4 * 4 * math.sqrt(26 / 100_000)


def test_lengths_have_their_means() -> None:
    uniform = tokens(Lengths(mean=1000, kind="uniform"), 10_000, 1, 1)
    assert (uniform.min() >= 800, uniform.max() <= 1000) == (True, True)
    assert abs(uniform.mean() - 900) < 4 * 201 / math.sqrt(12 * 10_000)  # of 201 equal values
    drawn = tokens(Lengths(mean=1000, kind="lognormal", cv=1.0), 10_000, 1, 1)
    assert abs(drawn.mean() - 1000) < 4 * 1000 / 100
    assert tokens(Lengths(mean=7), 3, 1, 1).tolist() == [7, 7, 7]
