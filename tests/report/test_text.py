"""What every screen shares. Expected words are written by hand."""

import io

import msgspec
import pytest

import linkwise
from linkwise.cluster.read import load
from linkwise.engine.base import Options
from linkwise.report import text
from linkwise.workload.types import Targets, Workload


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_cluster_is_said_as_people_say_it() -> None:
    assert text.cluster_line(load("8xh100-sxm")).startswith("8 x H100 SXM")
    assert text.cluster_line(load("8xh100-sxm")).endswith(", one NVLink island")
    two = text.cluster_line(load("2x4xh100-sxm"))
    assert two.startswith("2 nodes of 4 x H100 SXM")
    assert "NVLink islands of 4" in two
    assert two.endswith("4 x 400 Gb/s NICs a node")
    assert "PCIe only" in text.cluster_line(load("2xrtx-4090"))


def test_a_workload_is_said_with_its_targets() -> None:
    load_ = Workload(isl_tokens=4000, osl_tokens=500, rate_per_s=6.0, targets=Targets(ttft_s=1.0, tpot_s=0.04))
    assert text.workload_line(load_) == (
        "4,000 in + 500 out tokens, 6 requests/s; TTFT at most 1 s, TPOT at most 40 ms"
    )
    assert text.workload_line(Workload(concurrency=1000, prefix_hit=0.5)) == (
        "2,048 in + 256 out tokens, 1,000 in flight, 50% of prompts cached; no latency target"
    )


def test_options_that_differ_from_the_defaults_are_said() -> None:
    assert text.engine_words("vllm", "0.32", Options()) == "vllm 0.32 defaults"
    changed = Options(kv_dtype="float8_e4m3", max_seqs=64, eager=True)
    assert text.engine_words("vllm", "0.32", changed) == "vllm 0.32, kv_dtype fp8, max_seqs 64, eager"


def test_a_table_is_never_cut_outside_a_terminal() -> None:
    wide = "x" * 300
    shown = text.render([text.table(["name", ">bytes"], [[wide, "1"], ["[bold]y[/]", "22"]])], io.StringIO())
    lines = shown.split("\n")
    assert lines[1] == f"{wide}      1"
    assert lines[2].startswith("[bold]y[/]"), "names are no markup"
    assert "\x1b" not in shown
    assert all(line == line.rstrip() for line in lines)


def test_a_terminal_gets_bold_heads_unless_it_wants_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    table = text.table(["name"], [["a"]], title="t")
    assert "\x1b[" in text.render([table], Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in text.render([table], Terminal())


def test_no_color_means_no_escape_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text.render([text.table(["name"], [["a"]])], Terminal())


def test_remarks_are_said_once() -> None:
    assert text.remarks(("a", "b"), ("a",)) == ["note: a", "note: b"]


def test_an_island_smaller_than_a_node_is_said() -> None:
    pairs = msgspec.structs.replace(load("8xh100-sxm"), island_size=2)
    assert "NVLink islands of 2" in text.cluster_line(pairs)


def test_lines_are_wrapped_under_their_words_and_commands_never_are() -> None:
    line = "memory     " + "word " * 40
    folded = text.wrapped([line], 60).split("\n")
    assert all(len(part) <= 60 for part in folded)
    assert all(part.startswith(" " * 11 + "word") for part in folded[1:])
    assert " ".join(" ".join(folded).split()) == " ".join(line.split())
    command = text.Verbatim("run        " + "--flag " * 40)
    assert text.wrapped([command], 60) == command
    assert text.render(["note: " + "word " * 40], io.StringIO()).count("\n") == 1, "files get lines of 120"


def test_terms_shown_add_up_to_the_sum_shown() -> None:
    # 0.4 three times is 1.2: rounded one by one the terms would give 0.
    assert text.adding_up(1.2, {"a": 0.4, "b": 0.4, "c": 0.4}, 0) == ("1", {"a": "1", "b": "0", "c": "0"})
    assert text.times_adding_up(0.02, {"a": 0.0175, "b": 0.0025}) == ("20.00 ms", {"a": "17.50", "b": "2.50"})


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "79.18 GiB x 0.92)"),
        ("trtllm", "79.18 GiB, the whole device; KV gets 0.9 of what is free after loading and a trial run)"),
        ("sglang", "for weights and KV; all else lies beside it)"),
    ],
)
def test_a_budget_says_what_the_share_is_of(engine: str, words: str) -> None:
    assert words in " ".join(repr(linkwise.fit("llama-3.1-8b", on="1xh100-sxm", engine=engine)).split())
