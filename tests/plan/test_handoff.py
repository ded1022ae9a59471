"""The handoff of KV between two groups. Expected values are hand calculations; the seeds' own run in conformance."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.chain import chain_of
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.core.quantity import Quantity, value_of
from linkwise.engine.connectors import connector, connectors
from linkwise.model.types import State
from linkwise.plan.handoff import Handoff, HandoffOptions, handoff, handoff_figures
from linkwise.plan.inventory import inventory, request_bytes, stages
from linkwise.plan.reshard import head_range, pieces

_spec = importlib.util.spec_from_file_location("handmade", Path(__file__).with_name("handmade.py"))
handmade = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(handmade)
HandEngine, cluster, kv, model = handmade.HandEngine, handmade.cluster, handmade.kv, handmade.model

STATED = HandoffOptions(prefill_s=0.4)


def case(**changes):
    base = {
        "model": model(80, kv()), "cluster": cluster(), "prompt_tokens": 8192, "rate_per_s": 20.0, "prefill_tp": 4,
        "decode_tp": 4, "engine": HandEngine(), "options": STATED,
    }  # fmt: skip
    base |= changes
    return base.pop("model"), base.pop("cluster"), base


def run(**changes) -> Handoff:
    it, on, rest = case(**changes)
    return handoff(it, on, **rest)


def test_bytes_of_a_request() -> None:
    # By hand: 2 x 8 heads x 128 x 2 B x 80 layers = 327,680 B a token; x 8,192 = 2,684,354,560 B.
    found = run()
    assert found.bytes_per_token == 327_680
    assert found.kv_bytes == found.crossing_bytes == 2_684_354_560
    # Each of four ranks sends two of eight heads over its own 50 GB/s NIC: 671,088,640 B payload.
    busiest = found.links[0]
    assert busiest.payload_bytes == 671_088_640
    # A block of 16 tokens x 2 heads x 128 x 2 B = 8,192 B is two packets of 4,096 B; 80 x 2 x 512 = 81,920 messages,
    # each with 2 x 82 B + 16 B around it.
    assert sum(f.messages for f in found.flows) == 4 * 81_920
    assert busiest.wire_bytes == 671_088_640 + 81_920 * (2 * 82 + 16)
    assert found.transfer_s == pytest.approx(busiest.wire_bytes / 50e9)
    assert found.utilization == pytest.approx(20 * found.transfer_s)


def test_a_rank_spreads_its_share_over_its_nics() -> None:
    """Sixteen NICs of 25 GB/s on nodes of eight: two a rank, each with half of its 671,088,640 B; the time stays."""
    one, two = run(), run(cluster=msgspec.structs.replace(cluster(), nics_per_node=16, nic_Bps=25e9))
    nics = {link.link: link for link in two.links if link.link.startswith("n0.nic")}
    assert len(nics) == 8
    assert {link.payload_bytes for link in nics.values()} == {671_088_640 / 2}
    assert two.transfer_s == pytest.approx(one.transfer_s)


def test_partial_blocks_travel_whole_unless_told_otherwise() -> None:
    # 17 tokens are two blocks of 16: 32 x 327,680 B.
    assert run(prompt_tokens=17).kv_bytes == 32 * 327_680
    assert run(prompt_tokens=17, options=HandoffOptions(block_tokens=1, prefill_s=1)).kv_bytes == 17 * 327_680


def test_heads_are_recut_between_unequal_degrees() -> None:
    # tp4 holds heads 01 23 45 67, tp2 holds 0123 4567: two senders each.
    down = run(prefill_tp=4, decode_tp=2)
    assert [(f.sender, f.receiver, f.heads) for f in down.flows] == [
        (0, 0, (0, 1)), (1, 0, (2, 3)), (2, 1, (4, 5)), (3, 1, (6, 7)),
    ]  # fmt: skip
    # The receivers' two NICs now carry twice what four did.
    assert down.limiting == "rail0->n1.nic0"
    assert down.links[0].payload_bytes == 2 * 671_088_640
    # tp2 to tp4: a sender's four heads go to two receivers.
    up = run(prefill_tp=2, decode_tp=4)
    assert [(f.sender, f.receiver, f.heads) for f in up.flows] == [
        (0, 0, (0, 1)), (0, 1, (2, 3)), (1, 2, (4, 5)), (1, 3, (6, 7)),
    ]  # fmt: skip


def test_replicated_heads_reach_every_receiver_that_keeps_them() -> None:
    # 4 heads on tp8: every head twice. From tp4, each head is sent to two receivers: twice the bytes cross.
    found = run(model=model(2, kv(heads=4)), prefill_tp=4, decode_tp=8)
    assert found.crossing_bytes == 2 * found.kv_bytes
    assert [(f.sender, f.receiver) for f in found.flows] == [(r // 2, r) for r in range(8)]
    # From tp8 to tp4 one of the two holders sends: nothing is sent twice, and half the senders rest.
    back = run(model=model(2, kv(heads=4)), prefill_tp=8, decode_tp=4)
    assert back.crossing_bytes == back.kv_bytes
    assert [(f.sender, f.receiver) for f in back.flows] == [(2 * r, r) for r in range(4)]
    assert [r.moved_bytes > 0 for r in back.ranks if r.side == "prefill"] == [True, False] * 4


def test_mla_latent_is_whole_on_every_rank() -> None:
    # 576 elements x 2 B x 61 layers = 70,272 B a token (DeepSeek-V3), whole on each of 8 ranks.
    deepseek = model(61, handmade.LATENT)
    copies = run(model=deepseek, prefill_tp=8, decode_tp=8)
    assert copies.bytes_per_token == 70_272
    assert copies.crossing_bytes == 8 * 70_272 * 8192
    one = run(model=deepseek, prefill_tp=8, decode_tp=8, options=HandoffOptions(replicated="one", prefill_s=1))
    assert {f.sender for f in one.flows} == {0}
    assert one.links[0].payload_bytes == 8 * 70_272 * 8192  # all through one NIC
    shares = run(model=deepseek, prefill_tp=8, decode_tp=8, options=HandoffOptions(replicated="shares", prefill_s=1))
    assert shares.crossing_bytes == 70_272 * 8192  # one copy, an eighth over each NIC
    assert shares.links[0].payload_bytes == 70_272 * 8192 / 8
    assert any("gather" in n for n in shares.notes)


def test_windows_and_fixed_states_are_not_divided_by_tokens() -> None:
    # A window of 1,024 of 8,192 tokens and a fixed state of 1,000 elements: no bytes per token exist.
    mixed = model(2, kv(window=1024), State(name="recurrent", per_request=1000, heads=8, dtype="float32"))
    found = run(model=mixed)
    assert found.bytes_per_token is None
    assert found.kv_bytes == 2 * (1024 * 2 * 8 * 128 * 2 + 1000 * 4)
    assert run(model=mixed, prompt_tokens=16_384).kv_bytes == found.kv_bytes


def test_pipelines_of_unequal_depth_meet_layer_by_layer() -> None:
    # 10 layers: pp2 holds 0-4 5-9, pp3 holds 0-3 4-6 7-9 (low stages take the rest).
    found = run(model=model(10, kv()), prefill_tp=1, decode_tp=1, prefill_pp=2, decode_pp=3)
    assert [(f.sender, f.receiver, f.layers) for f in found.flows] == [(0, 0, 4), (0, 1, 1), (1, 1, 2), (1, 2, 3)]


def test_one_nic_when_the_connector_does_not_send_per_rank() -> None:
    found = run(options=HandoffOptions(per_rank=False, prefill_s=1))
    assert found.links[0].payload_bytes == 2_684_354_560
    assert any("one rank per stage" in n for n in found.notes)


def test_shared_nics_add_up() -> None:
    # Two NICs for eight devices: ranks 0-3 share NIC 0.
    found = run(cluster=cluster(nics=2))
    assert found.limiting in {"n0.nic0->rail0", "rail0->n1.nic0"}
    assert found.links[0].payload_bytes == 2_684_354_560


def test_an_oversubscribed_core_limits_what_leaves_its_rail() -> None:
    # Rails: NIC i talks to NIC i without the core. Fat tree: the node's 8 x 50 GB/s share a core of 1/16 = 25 GB/s.
    assert run(cluster=cluster(oversubscription=16)).limiting != "leaf0->core"
    found = run(cluster=cluster(oversubscription=16, fabric="fat-tree"))
    assert found.limiting == "leaf0->core"
    assert found.links[0].spec_Bps == 25e9


def test_pools_on_one_node_use_its_own_links() -> None:
    found = run(cluster=cluster(nodes=1))
    assert {x.kind for x in found.links} == {"nvlink"}
    assert found.links[0].wire_bytes == found.links[0].payload_bytes  # no packet headers inside a node
    assert {x.kind for x in run(cluster=cluster(nodes=1, island=1)).links} == {"pcie"}


def test_link_efficiency_and_headers_do_not_count_twice() -> None:
    # At 92 % the payload's rate is the slower bound: 671,088,640 / 46e9 s; headers alone would cost 2.2 %.
    found = run(cluster=cluster(efficiency=0.92))
    assert found.transfer_s == pytest.approx(671_088_640 / 46e9)


def test_retries_are_a_stated_factor() -> None:
    more = run(options=HandoffOptions(retry_share=0.1, prefill_s=1))
    assert more.links[0].payload_bytes == pytest.approx(1.1 * 671_088_640)


def test_rate_against_the_route() -> None:
    found = run(rate_per_s=20.0)
    assert found.keeps_up
    # M/D/1: rho / (2 (1 - rho)) x service.
    busy = found.utilization
    assert found.wait_s == pytest.approx(busy / (2 * (1 - busy)) * found.transfer_s)
    over = run(rate_per_s=found.max_rate_per_s * 1.01)
    assert not over.keeps_up
    assert over.wait_s is None and over.in_flight_bytes is None
    # The switch's headline does not matter: eight NICs have room, the four in use do not.
    assert over.crossing_bytes * over.rate_per_s < 8 * 50e9


def test_overlap_by_layer_chunk_or_not_at_all() -> None:
    # 10 layers, prefill stated as 1 s. A request-wise connector exposes everything.
    ten = model(10, kv())
    whole = run(model=ten, options=HandoffOptions(prefill_s=1.0))
    assert whole.exposed_s == whole.transfer_s
    # Layer-wise (P2P NCCL): a tenth, since a layer's transfer is shorter than its compute. Copies ride along.
    layered = run(model=ten, options=HandoffOptions(connector="p2p_nccl", prefill_s=1.0))
    assert layered.exposed_s == pytest.approx((layered.transfer_s + layered.copy_s) / 10)
    # When a layer's transfer is longer than its compute, the network is busy from the first layer on.
    fast = run(model=ten, options=HandoffOptions(connector="p2p_nccl", prefill_s=1e-4))
    assert fast.exposed_s == pytest.approx(fast.transfer_s + fast.copy_s - 0.9e-4)
    # SGLang sends each of 8192 / 2048 = 4 chunks when it is done.
    chunked = run(model=ten, engine=HandEngine("sglang", batched=2048), options=HandoffOptions(prefill_s=1.0))
    assert chunked.exposed_s == pytest.approx(chunked.transfer_s / 4)


def test_token_slices_make_many_small_messages() -> None:
    # SGLang cuts head slices token by token: 8,192 tokens x 80 layers x 2 buffers for each of four flows.
    equal = run(engine=HandEngine("sglang", block=1))
    unequal = run(engine=HandEngine("sglang", block=1), decode_tp=2)
    assert unequal.messages == 4 * 8192 * 80 * 2
    assert equal.messages == 4 * 80 * 2  # whole pages merge on a fresh cache


def test_a_serial_receiver_adds_its_senders_up() -> None:
    trt = run(engine=HandEngine("trtllm"), prefill_tp=4, decode_tp=2, options=HandoffOptions(prefill_s=1))
    # Two senders of 671,088,640 B in turn at 50 GB/s.
    assert trt.figures["serial_s"] == pytest.approx(2 * 671_088_640 / 50e9)
    assert trt.copy_s == pytest.approx(2 * 2 * 2 * 671_088_640 / 3.35e12)  # read and write, twice, the receiver's share
    assert any("staging buffer" in n for n in trt.notes)  # 671 MB share, 512 MiB buffer


def test_a_connector_that_needs_equal_tp_says_so() -> None:
    refused = run(decode_tp=2, options=HandoffOptions(connector="p2p_nccl", prefill_s=1))
    assert "equal tp" in refused.refused.reason
    assert "nixl" in refused.refused.change
    assert run(options=HandoffOptions(connector="p2p_nccl", prefill_s=1)).refused is None
    hybrid = model(2, kv(), State(name="recurrent", per_request=64, heads=8))
    assert "recurrent" in run(model=hybrid, decode_tp=2).refused.reason
    assert run(decode_tp=2).refused is None


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": 0},
        {"rate_per_s": 0},
        {"rate_per_s": float("nan")},
        {"prefill_tp": 0},
        {"prefill_tp": 16, "decode_tp": 8},
        {"prefill_pp": 81},
        {"options": HandoffOptions(connector="carrier-pigeon")},
        {"options": HandoffOptions(decode_device=2)},
        {"kv_dtype": "float7"},
        {"engine": HandEngine("tgi")},
    ],
)
def test_bad_input_is_one_clear_error(changes) -> None:
    with pytest.raises(InputError):
        run(**changes)


@pytest.mark.parametrize(("field", "value"), [("retry_share", -1), ("retry_share", float("nan")), ("prefill_s", 0)])
def test_bad_factors_are_refused(field, value) -> None:
    with pytest.raises(InputError, match=field):
        HandoffOptions(**{field: value})


def test_every_figure_has_its_chain() -> None:
    it, on, rest = case()
    recorded = handoff_figures(it, on, **rest, given=Quantity.given)
    plain = run().figures
    assert set(recorded) == set(plain)
    for name, figure in recorded.items():
        assert isinstance(figure, Quantity), name
        assert value_of(figure) == pytest.approx(plain[name], rel=1e-12), name
        assert chain_of(figure).inputs, name
    text = str(chain_of(recorded["transfer_s"]))
    assert "8,192 tokens   [asked for]" in text
    assert "0.0137" in text


def test_it_is_json() -> None:
    found = run()
    assert msgspec.json.decode(msgspec.json.encode(found), type=Handoff) == found


def test_every_connector_names_its_source_and_an_engine() -> None:
    assert {"nixl", "p2p_nccl", "mooncake", "lmcache", "sglang_mooncake", "trtllm"} <= set(connectors())
    assert all(len(c.source) > 20 and c.engines for c in connectors().values())
    assert connector("vllm")[0] == "nixl"


degrees = st.sampled_from([1, 2, 3, 4, 8, 16])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 6, 8]), degrees, degrees, st.integers(1, 3), st.integers(1, 3), st.integers(1, 300),
    st.sampled_from(["one", "copies"]),
)  # fmt: skip
def test_every_receiver_gets_exactly_what_its_ledger_holds(heads, ptp, dtp, ppp, dpp, prompt, replicated) -> None:
    """Sum over flows into a rank = request_bytes of the ledger, for every cut that divides heads evenly."""
    if (heads % dtp and dtp % heads) or (heads % ptp and ptp % heads):
        return
    it = model(6, kv(heads=heads, dim=8), State(name="latent", per_token=7, heads=1, dtype="float32"))
    prefill, decode, engine = Layout(tp=ptp, pp=ppp), Layout(tp=dtp, pp=dpp), HandEngine()
    found = run(
        model=it, cluster=cluster(nodes=2, devices=64), prompt_tokens=prompt, prefill_tp=ptp, decode_tp=dtp,
        prefill_pp=ppp, decode_pp=dpp, options=HandoffOptions(replicated=replicated, prefill_s=1, block_tokens=1),
    )  # fmt: skip
    stock = inventory(it)
    for side, layout in (("prefill", prefill), ("decode", decode)):
        for rank in (r for r in found.ranks if r.side == side):
            stage = stages(it, layout, engine)[rank.rank // layout.tp]
            assert rank.held_bytes == request_bytes(stock, stage, layout, "bfloat16", prompt)
            if side == "decode":
                assert rank.moved_bytes == rank.held_bytes
    # What leaves is what arrives.
    assert sum(r.moved_bytes for r in found.ranks) == 2 * found.crossing_bytes


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 16), degrees, degrees, st.sampled_from(["one", "copies", "shares"]))
def test_cuts_cover_every_head_once_per_receiver(heads, ptp, dtp, replicated) -> None:
    it = model(1, kv(heads=heads, dim=2))
    found = pieces(
        inventory(it), Layout(tp=ptp), Layout(tp=dtp), HandEngine(), replicated=replicated, per_rank=True
    )  # fmt: skip
    for piece in found:  # nobody sends or receives a head it does not keep
        for tp, rank in ((ptp, piece.sender), (dtp, piece.receiver)):
            first, end = head_range(heads, tp, rank)
            assert first <= piece.first < piece.end <= end
    for head in range(heads):
        receivers = [r for r in range(dtp) if head_range(heads, dtp, r)[0] <= head < head_range(heads, dtp, r)[1]]
        arrived = {r: sum(p.share for p in found if p.receiver == r and p.first <= head < p.end) for r in receivers}
        if replicated == "shares" and (ptp > heads or dtp > heads):
            assert sum(arrived.values()) == 1  # one copy crosses in all
        else:
            assert set(arrived.values()) == {1}


@given(st.integers(1, 64), st.integers(1, 64))
def test_head_ranges_cover_all_heads(heads, tp) -> None:
    held = [head_range(heads, tp, r) for r in range(tp)]
    assert sorted({h for a, b in held for h in range(a, b)}) == list(range(heads))
    if tp <= heads:
        assert sum(b - a for a, b in held) == heads
