"""Which layout a fit answers with, and changes that have been run."""

import pytest
from msgspec.structs import replace
from tests.plan import handmade

from linkwise.cluster.read import load as load_cluster
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.units import GB
from linkwise.engine.base import Options
from linkwise.engine.registry import get
from linkwise.model import quant
from linkwise.model.read import load as load_model
from linkwise.plan.fit import fit, preference
from linkwise.plan.ledger import ledger, ledger_figures
from linkwise.workload.types import Workload

LOAD = Workload(isl_tokens=2048, osl_tokens=256)
PLAIN = Options()


def of(model, on, options=PLAIN, load=LOAD, engine="vllm", **rest):
    on = load_cluster(on) if isinstance(on, str) else on
    return fit(load_model(model), on, get(engine), options, load, **rest)


def test_405b_on_one_node_does_not_fit_for_its_weights():
    # 405.9e9 x 2 B / 8 = 101.5 GB a rank against 79.18 GiB x 0.92 = 78.2 GB; halving leaves 78.2 - 51.2 for the rest:
    # FP8 but for embedding and head (2 x 2.1e9 x 2 B / 8) and norms.
    found = of("llama-3.1-405b", "8xh100-sxm")
    short = found.ledger.shortfall
    assert (found.fits, found.layout, short.resource) == (False, Layout(tp=8), "weights")
    assert short.need / GB == pytest.approx(101.5, abs=0.05)
    assert short.have / GB == pytest.approx(78.2, abs=0.05)
    assert found.figures["short.rank0"] / GB == pytest.approx(23.3, abs=0.06)
    assert found.nearest == (
        "fp8 weights fit tp8 with 27.0 GB a rank for KV and workspace",
        "a second node: pp2 x tp8 (tp inside each node)",
    )


def test_the_changes_offered_do_fit():
    model, on, engine = load_model("llama-3.1-405b"), load_cluster("8xh100-sxm"), get("vllm")
    tensors, _ = quant.what_if(model.tensors, "fp8", model.dtype)
    narrow = replace(model, tensors=tensors)
    assert ledger(narrow, on, engine, Layout(tp=8), Options(), LOAD).shortfall is None
    two = load_cluster("2x8xh100-sxm")
    assert ledger(model, two, engine, Layout(tp=8, pp=2), Options(), LOAD).shortfall is None


def test_the_smallest_group_that_fits_is_replicated():
    # 141 GB of bf16 on two devices of 78.2 GB leave room for a few requests; 64 of them need four.
    load = replace(LOAD, concurrency=64)
    on = load_cluster("8xh100-sxm")
    smaller = ledger(load_model("llama-3.1-70b"), on, get("vllm"), Layout(tp=2), Options(), load)
    assert smaller.shortfall.resource == "kv concurrency"
    found = of("llama-3.1-70b", on, load=load)
    assert (found.fits, found.layout, found.replicas) == (True, Layout(tp=4), 2)
    assert found.nearest == ()


def test_tp_stays_inside_a_node_before_it_crosses():
    found = of("deepseek-v3", "2x8xh100-sxm")
    assert (found.fits, found.layout) == (True, Layout(tp=8, pp=2))
    order = sorted([Layout(tp=16), Layout(tp=8, pp=2), Layout(tp=4, pp=4), Layout(tp=8)], key=_key("2x8xh100-sxm"))
    assert order == [Layout(tp=8), Layout(tp=8, pp=2), Layout(tp=4, pp=4), Layout(tp=16)]
    # Bridged pairs: a pipeline of pairs before tp over PCIe.
    pairs = handmade.cluster(nodes=1, devices=4, island=2)
    assert preference(Layout(tp=2, pp=2), pairs) < preference(Layout(tp=4), pairs)


def _key(on):
    cluster = load_cluster(on)
    return lambda layout: preference(layout, cluster)


def test_fixed_degrees_are_kept_and_a_layout_is_judged_alone():
    # 141 GB do not fit one device, so a pipeline takes over.
    found = of("llama-3.1-70b", "8xh100-sxm", fixed={"tp": 1})
    assert (found.fits, found.layout) == (True, Layout(pp=2))
    alone = of("llama-3.1-70b", "8xh100-sxm", layout=Layout())
    assert (alone.layout, alone.fits, alone.tried, alone.replicas) == (Layout(), False, 1, 8)
    assert alone.nearest[0] == "tp2 fits this cluster"


def test_a_layout_the_engine_refuses_keeps_its_reason():
    found = of("llama-3.1-8b", "8xh100-sxm", layout=Layout(tp=8, ep=2))
    assert (found.fits, found.ledger.shortfall.resource) == (False, "legality")
    assert "no experts" in found.ledger.shortfall.reason
    assert found.nearest[0].endswith("fits this cluster")


def test_kv_that_does_not_fit_offers_what_frees_it():
    # Llama-3.1-8B at its full length needs 17.2 GB of KV; an RTX 3090 has 5.4 GB left.
    found = of("llama-3.1-8b", "1xrtx-3090", Options(max_model_len=131_072))
    assert found.ledger.shortfall.resource == "kv"
    assert any(change.startswith("max_model_len") for change in found.nearest)
    # Half the length fits with fp8 KV.
    half = of("llama-3.1-8b", "1xrtx-3090", Options(max_model_len=65_536))
    assert half.nearest[0] == "fp8 KV"
    assert of("llama-3.1-8b", "1xrtx-3090", Options(max_model_len=65_536, kv_dtype="fp8")).fits


def test_an_option_the_engine_does_not_take_is_never_offered():
    # Our own runtime stores KV in the dtype of the activations: fp8 would be refused.
    asked = Options(max_model_len=65_536)
    assert not any("fp8 KV" in change for change in of("llama-3.1-8b", "1xrtx-3090", asked, engine="linkwise").nearest)
    assert "fp8 KV" in of("llama-3.1-8b", "1xrtx-3090", asked).nearest


def test_concurrency_that_does_not_fit_offers_what_does():
    found = of("llama-3.1-8b", "1xh100-sxm", load=replace(LOAD, concurrency=500))
    assert found.ledger.shortfall.resource == "kv concurrency"
    most = next(change for change in found.nearest if change.endswith("requests at once"))
    count = int(most.split(" ")[0].replace(",", ""))
    assert of("llama-3.1-8b", "1xh100-sxm", load=replace(LOAD, concurrency=count)).fits
    assert not of("llama-3.1-8b", "1xh100-sxm", load=replace(LOAD, concurrency=count + 2)).fits


def test_splitting_attention_is_tried_where_only_kv_is_short():
    # One DeepSeek-V3 request of 900,000 tokens needs 63.2 GB of latent: tp 8 has 46.7 GB left, two shards hold it.
    found = of("deepseek-v3", "8xh200-sxm", Options(max_model_len=900_000), fixed={"tp": 8, "pp": 1})
    assert (found.fits, found.layout) == (True, Layout(tp=8, dcp=2))


def test_figures_are_the_ledgers_and_equal_a_second_run():
    found = of("llama-3.1-70b", "8xh100-sxm")
    again = ledger_figures(found.model, found.cluster, get("vllm"), found.layout, found.options, found.workload)
    assert found.figures == again
    assert found.figures["kv_tokens"] == found.ledger.kv_tokens


@pytest.mark.parametrize("rest", [{"layout": Layout(tp=16)}, {"fixed": {"tp": 3, "pp": 5}}, {"fixed": {"nodes": 2}}])
def test_degrees_the_cluster_cannot_hold_are_refused(rest):
    with pytest.raises(InputError, match="layout"):
        of("llama-3.1-70b", "8xh100-sxm", **rest)


def test_weight_dtype_must_be_the_models():
    with pytest.raises(InputError, match="weight_dtype"):
        of("llama-3.1-8b", "1xh100-sxm", Options(weight_dtype="fp8"))
    narrow = load_model("llama-3.1-8b", weight_dtype="fp8")
    assert fit(narrow, load_cluster("1xh100-sxm"), get("vllm"), Options(weight_dtype="fp8"), LOAD).fits
