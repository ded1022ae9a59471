"""Plan files that cannot be true are refused, naming the field."""

import pytest
from msgspec.structs import replace

from linkwise.cluster.read import load as cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.model.read import load as model
from linkwise.plan.build import plan
from linkwise.plan.sound import check
from linkwise.workload.types import Workload

DEGREES = {"tp": 2, "pp": 2, "cp": 1, "dp_attn": 1}


@pytest.fixture(scope="module")
def made():
    what, where = model("llama-3.1-8b"), cluster("8xh100-sxm")
    return plan(what, where, registry.get("vllm"), Options(), Workload(concurrency=4), fixed=DEGREES)


def test_a_plan_of_ours_is_sound(made):
    check(made, "plan.json")


def op(made, **changes):
    return {"decode": (replace(made.decode[0], **changes), *made.decode[1:])}


def rank(made, **changes):
    first, *others = made.ledger.ranks
    return {"ledger": replace(made.ledger, ranks=(replace(first, **changes), *others))}


def test_a_ledger_that_does_not_add_up_is_told_with_what_it_makes(made):
    # What is left for KV over the bytes of a block of 16 tokens, whole blocks, by hand from the plan's own entries.
    one = made.ledger.ranks[0]
    spent = sum(e.bytes for e in one.entries if e.in_budget and e.place == "device" and not e.name.startswith("kv"))
    tokens = (one.budget_bytes - spent) // (one.bytes_per_token * 16) * 16
    with pytest.raises(InputError, match=f"{tokens:,}, as its parts make it"):
        check(replace(made, **rank(made, kv_tokens=10 * tokens)), "plan.json")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda p: {"rank_grid": (p.rank_grid[0][:3], *p.rank_grid[1:])}, "rank_grid"),
        (lambda p: {"rank_grid": tuple(p.rank_grid[0] for _ in p.rank_grid)}, "rank_grid"),
        (lambda p: {"rank_grid": ((0, 1, 2, 99), *p.rank_grid[1:])}, "rank_grid"),
        (lambda p: {"chosen": replace(p.chosen, point=replace(p.chosen.point, batch=0))}, "batch"),
        (lambda p: {"chosen": replace(p.chosen, point=replace(p.chosen.point, tpot_s=float("nan")))}, "tpot_s"),
        (lambda p: {"chosen": replace(p.chosen, layout=Layout(tp=4))}, r"chosen\.layout"),
        (lambda p: {"ledger": replace(p.ledger, tightest=99)}, "tightest"),
        (lambda p: {"ledger": replace(p.ledger, ranks=())}, "tightest"),
        (lambda p: {"ledger": replace(p.ledger, kv_tokens=10 * p.ledger.kv_tokens)}, r"ledger\.kv_tokens"),
        (lambda p: {"ledger": replace(p.ledger, requests=0)}, r"ledger\.requests"),
        (lambda p: {"chosen": replace(p.chosen, requests=1)}, r"chosen\.requests"),
        (lambda p: {"chosen": replace(p.chosen, kv_tokens=1)}, r"chosen\.kv_tokens"),
        (lambda p: rank(p, kv_tokens=2 * p.ledger.ranks[0].kv_tokens), r"ledger\.ranks\[0\]\.kv_tokens"),
        (lambda p: rank(p, requests=p.ledger.ranks[0].requests + 1), r"ledger\.ranks\[0\]\.requests"),
        (lambda p: rank(p, kv_bytes=p.ledger.ranks[0].kv_bytes + 1), r"ledger\.ranks\[0\]\.budget_bytes"),
        (lambda p: {"step_calibration": replace(p.step_calibration, constants={})}, r"step_calibration\.constants"),
        (lambda p: op(p, stage=5), r"decode\[0\]\.stage"),
        (lambda p: op(p, size=7), r"decode\[0\]\.group"),
        (lambda p: op(p, group="galaxy"), r"decode\[0\]\.group"),
        (lambda p: op(p, kind="shout"), r"decode\[0\]\.kind"),
        (lambda p: op(p, S_bytes=-5), "S_bytes"),
        (lambda p: op(p, S_bytes=1e300), "S_bytes"),
        (lambda p: op(p, S_bytes="x"), "S_bytes"),
        (lambda p: op(p, sizes=(1, 2, 3)), "sizes"),
    ],
)
def test_a_contradiction_is_named(made, change, field):
    with pytest.raises(InputError, match=field):
        check(replace(made, **change(made)), "plan.json")
