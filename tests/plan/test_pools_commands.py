"""The lines of a choice of separate pools run as they stand, and make those very pools.

Expected values: the offer itself (layouts, counts, throughput), whose agreement with the simulator docs/plan.md states.
"""

import json
import shlex
from pathlib import Path

import pytest
from tests.test_cli import Shell

pytest.importorskip("numba")

from msgspec.structs import replace

import linkwise as package
from linkwise.api_pools import commands
from linkwise.core.layout import Layout
from linkwise.plan.frontier_types import Frontier, Offer
from linkwise.report.frontier import choice, instead, lines
from linkwise.workload.types import Targets, Workload


@pytest.fixture
def linkwise(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, tmp_path)


LOAD = "plan llama-3.3-70b --on 2x8xh100-sxm --isl 4000 --osl 500 --ttft 1s --tpot 30ms --price 2.5 --pareto"


def typed(text: str) -> list[list[str]]:
    """The commands under `pools`, as a shell splits them."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("pools      linkwise plan"))
    found = []
    for line in lines[first:]:
        if not line[11:].startswith("linkwise "):
            break
        found.append(shlex.split(line[11:])[1:])
    return found


def chosen(shell: Shell, words: str) -> tuple[Offer, list[list[str]]]:
    (shell.folder / "asked.json").write_text(shell(f"{words} --json").out)  # also where no one kind of group does
    front = package.load(shell.folder / "asked.json").frontier
    assert front is not None and front.choice is not None
    return front.offers[front.choice], typed(shell(words).out)


def same_answer(one: Offer, path: Path) -> None:
    """What a handoff says of two plan files is what the plan said of its choice; four digits of a rate at full load."""
    pair = package.load(path)
    said = pair.supply
    assert said is not None and said.serves
    assert pair.groups == (one.prefill_layout, one.layout)
    assert (said.prefill_groups, said.decode_groups) == (one.prefill_groups, one.groups)
    near = 1e-9 if one.for_rate_per_s else 3e-3
    assert said.rate_per_s == pytest.approx(one.rate_per_s, rel=near)
    assert said.ttft_s == pytest.approx(one.ttft_s, rel=near)
    assert said.tpot_s == pytest.approx(one.tpot_s, rel=near)
    assert said.starving == one.starving
    assert (pair.limiting, pair.exposed_s) == (one.limiting_link, pytest.approx(one.exposed_s))
    assert said.most_per_s >= one.rate_per_s * (1 - 1e-9)


@pytest.mark.parametrize("rate", ["", " --rate 6/s"])
def test_the_lines_make_the_pools_and_serve_what_was_offered(linkwise: Shell, rate: str) -> None:
    one, lines = chosen(linkwise, LOAD + rate)
    assert one.prefill_layout is not None, "the case has separate pools as its choice"
    assert [line[0] for line in lines] == ["plan", "plan", "simulate", "handoff", "launch"]
    for line in lines[:2]:
        assert linkwise(shlex.join(line)).code == 0
    prefill, decode = (package.load(linkwise.folder / f"{name}.json") for name in ("prefill", "decode"))
    assert (prefill.layout, prefill.replicas) == (one.prefill_layout, one.prefill_groups)
    assert (decode.layout, decode.replicas) == (one.layout, one.groups)
    assert prefill.workload.isl_tokens == decode.workload.isl_tokens == 4000
    value = json.loads(linkwise(shlex.join([*lines[2], "--json"])).out)
    assert [p["replicas"] for p in value["pools"]] == [one.prefill_groups, one.groups]
    assert not value["saturated"]
    if rate:  # all of it is served, inside the targets on average
        assert value["rate_per_s"] == pytest.approx(6.0, rel=0.1)
        assert value["tpot"]["mean"] <= 0.03
    else:  # users of a closed loop: the offer was simulated too, and stands beside it
        assert value["rate_per_s"] == pytest.approx(one.simulated_rate_per_s, rel=0.1)
        assert value["rate_per_s"] == pytest.approx(one.rate_per_s, rel=0.1)
        assert value["tpot"]["mean"] == pytest.approx(one.simulated_tpot_s, rel=0.1)
    handed = linkwise(shlex.join(lines[3]))
    assert handed.code == 0, handed.out + handed.err  # the pools that were chosen serve what they were chosen for
    same_answer(one, linkwise.folder / "pair.json")
    started = linkwise(shlex.join(lines[4]))
    assert started.code == 0, started.out + started.err
    # What was written to start them says the same once it is read back.
    for name in ("prefill", "decode"):
        again = (
            f"plan --on 2x8xh100-sxm --from-manifest pools/deployment.json:{name} --isl 4000 --osl 500 -o {name}.json"
        )
        assert linkwise(again).code == 0
    assert linkwise(shlex.join(lines[3])).code == 0
    same_answer(one, linkwise.folder / "pair.json")


OTHERS = {
    "attention replicas": "deepseek-v3 --on 4x8xh200-sxm --isl 4000 --osl 500 --ttft 2s --tpot 50ms --rate 10/s",
    "two clusters": "llama-3.3-70b --on 8xh200-sxm --prefill-on 2x8xl40s --isl 4000 --osl 500 --ttft 4s --tpot 15ms"
    " --price h200-sxm=3,l40s=0.5",
    "two clusters at a rate": "llama-3.3-70b --on 8xh200-sxm --prefill-on 2x8xl40s --isl 4000 --osl 500 --ttft 4s"
    " --tpot 15ms --price h200-sxm=3,l40s=0.5 --rate 1/s",
}


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
def test_a_handoff_of_the_plan_files_says_what_the_plan_says(linkwise: Shell, words: str) -> None:
    one, lines = chosen(linkwise, f"plan {words} --pareto")
    assert one.prefill_layout is not None, "the case has separate pools as its choice"
    assert [line[0] for line in lines] == ["plan", "plan", "simulate", "handoff"]
    for line in (*lines[:2], lines[3]):
        ran = linkwise(shlex.join(line))
        assert ran.code == 0, ran.out + ran.err
    same_answer(one, linkwise.folder / "pair.json")
    refused = linkwise("launch pair.json -o pools")
    assert refused.code == 1
    assert "pools of tp and pp alone, on one cluster" in refused.err
    pair = package.load(linkwise.folder / "pair.json")
    assert "transfer_s" in linkwise("explain pair.json transfer_s").out
    assert (pair.verdict is None) == ("--prefill-on" in words)


def test_settings_and_other_devices_are_carried_over(linkwise: Shell) -> None:
    one = Offer(
        mode="separate", layout=Layout(tp=2), groups=2, batch=8, devices=6, tpot_s=0.01, ttft_s=1.0, rate_per_s=5.0,
        tokens_per_s_per_device=1.0, meets=True, prefill_layout=Layout(tp=1), prefill_groups=2, prefill_on="2xl40s",
    )  # fmt: skip
    front = Frontier(offers=(one,), choice=0, tried=1, devices=6)
    given = {"kv_dtype": "fp8", "eager": True, "utilization": 0.85, "tp": 4, "rate": "5/s", "tpot": "9ms"}
    load = Workload(isl_tokens=2000, osl_tokens=100, burst=2.0, targets=Targets(ttft_s=2.5))
    today = {"engine": "vllm@0.18", "from_command": "", "from_manifest": "", "from_running": ""}
    model, on = "llama-3.1-8b", "4xh100-sxm"
    lines = commands(front, load, model, on, "2xl40s", given, today)
    same = "--engine vllm@0.18 --kv-dtype fp8 --eager --utilization 0.85 --isl 2000 --osl 100 --burst 2.0"
    pp, ones = "--pp 1 --cp 1 --dp-attn 1", "--dcp 1 --ep 1"
    assert lines == (
        f"linkwise plan {model} --on 2xl40s {same} {pp} --tp 1 {ones} --replicas 2 -o prefill.json",
        f"linkwise plan {model} --on {on} {same} {pp} --tp 2 {ones} --replicas 2 -o decode.json",
        # 5/s x (1 s + 100 x 10 ms) = 10 users.
        "linkwise simulate decode.json --prefill prefill.json --concurrency 10 --ttft 2500ms",
        "linkwise handoff decode.json --prefill prefill.json --rate 5/s --ttft 2500ms -o pair.json",
    )
    for line in lines[:2]:
        assert linkwise(line.removeprefix("linkwise ")).code == 0
    assert package.load(linkwise.folder / "decode.json").options.memory_utilization == 0.85
    assert package.load(linkwise.folder / "prefill.json").layout == Layout(tp=1)
    # On one cluster such pools are started, too; those with attention replicas are not.
    assert commands(front, load, model, on, None, given, today)[3:] == (
        lines[3],
        "linkwise launch pair.json -o pools",
    )
    other = Frontier(offers=(replace(one, layout=Layout(tp=1, dp_attn=2)),), choice=0, tried=1, devices=6)
    assert len(commands(other, load, model, on, None, given, today)) == 4
    said = " ".join(instead(replace(other, commands=lines)))
    assert "no command starts these: launch takes pools of tp and pp alone, on one cluster" in said
    mixed = Frontier(offers=(replace(one, prefill_layout=None),), choice=0, tried=1, devices=6)
    assert commands(mixed, load, model, on, None, given, today) == ()


@pytest.mark.parametrize("better", [True, False])
def test_a_screen_has_the_lines_once(better: bool) -> None:
    """Beside a plan that they beat the lines follow the choice; beside one as good they are the front's alone."""
    pair = Offer(
        mode="separate", layout=Layout(tp=4), groups=1, batch=12, devices=10, tpot_s=0.02, ttft_s=1.0, rate_per_s=2.0,
        tokens_per_s_per_device=60.0, meets=True, prefill_layout=Layout(tp=2), prefill_groups=3, for_rate_per_s=2.0,
    )  # fmt: skip
    plan = replace(
        pair, mode="mixed", layout=Layout(tp=8), groups=2, devices=16, prefill_layout=None, prefill_groups=0,
        tokens_per_s_per_device=37.5 if better else 60.0,
    )  # fmt: skip
    made = ("linkwise plan a -o prefill.json", "linkwise launch pair.json -o pools")
    found = Frontier(offers=(pair,), choice=0, tried=2, devices=16, own=plan, commands=made)
    assert [f"pools      {made[0]}" in screen for screen in (choice(found), lines(found))] == [better, not better]
    none = replace(found, own=None)
    assert [f"pools      {made[0]}" in screen for screen in (instead(none), choice(none), lines(none))] == [
        True, False, False,
    ]  # fmt: skip


def test_so_many_replicas_as_asked(linkwise: Shell) -> None:
    words = "plan llama-3.1-8b --on 4xh100-sxm --tp 1 --isl 1000 --osl 100"
    ran = linkwise(f"{words} --replicas 3 -o p.json")
    assert ran.code == 0
    assert package.load(linkwise.folder / "p.json").replicas == 3
    note = "1 of 4 devices are not used: another replica of 1 would fit: so many were asked for"
    assert note in " ".join(ran.out.split())
    # With a load: what three carry. 4 tp2 groups are more than the devices.
    assert package.plan("llama-3.1-8b", "4xh100-sxm", tp=1, isl=1000, osl=100, rate="5/s", replicas=3).replicas == 3
    short = linkwise("plan llama-3.1-8b --on 4xh100-sxm --tp 2 --replicas 4")
    assert short.code == 1
    assert "4 replicas of 2 devices are more than 4 devices" in " ".join(short.out.split())
    assert linkwise(f"{words} --replicas 0").code == 2
    assert linkwise(f"{words} --replicas 5").code == 2
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 1 --data-parallel-size 2"
    assert package.plan(on="4xh100-sxm", from_command=command, replicas=3).replicas == 3


def test_where_nothing_fits_nothing_is_said_to_be_shown(linkwise: Shell) -> None:
    ran = linkwise("plan llama-3.1-405b --on 1xl4 --tpot 20ms --pareto")
    assert ran.code == 1
    assert "pareto     no layout fits: nothing to set side by side" in ran.out
    assert "0 of 0" not in ran.out
