"""The worked calculations with inputs of their own; the brief's inputs run in conformance. Expected values are hand
calculations."""

import pytest

from linkwise.core.errors import InputError
from linkwise.core.quantity import Quantity
from linkwise.plan import textbook

IDS = [name for name, _ in textbook.chains()]


def value(worked: textbook.Worked, name: str):
    return worked.expect[name].value


@pytest.mark.parametrize("name", IDS)
def test_each_prints_a_chain_with_every_figure_and_input(name: str) -> None:
    worked = textbook.chain(name)
    text = str(worked)
    assert text.startswith(dict(textbook.chains())[name])
    assert f"seed:{name}" in text
    for key, figure in worked.expect.items():
        assert isinstance(figure, Quantity)
        assert f"\n{key} = " in text, key
        chain = worked.chain(key)
        assert chain.inputs and chain.result.value == figure.value
    for step in worked.chain(next(iter(worked.expect))).inputs:
        assert step.source, step.name  # every input says where it is from


def test_all_gather_of_eight() -> None:
    # 8 ranks x 1,000 B = 8,000 B gathered, of which 7,000 B are new.
    worked = textbook.chain("all_gather_boundary", {"ranks": 8, "shard_bytes": 1000})
    assert value(worked, "output_bytes_per_rank") == 8000
    assert value(worked, "new_payload_received_bytes_per_rank") == 7000


def test_all_reduce_of_two_tokens_on_four_ranks() -> None:
    # S = 2 x 8192 x 2 = 32,768 B; 2 S x 3/4 = 49,152 B a call; 160 calls over 2 tokens = 3,932,160 B a token.
    worked = textbook.chain("tp_all_reduce_bytes", {"tp": 4, "tokens": 2})
    assert value(worked, "message_bytes") == 32_768
    assert value(worked, "ring_sent_bytes_per_call") == 49_152
    assert value(worked, "sent_bytes_per_token_per_gpu") == 3_932_160


def test_what_a_real_engine_reduces_on_top_has_its_own_line() -> None:
    worked = textbook.chain("tp_all_reduce_bytes")
    assert {"embed.sent_bytes", "logits.sent_bytes"} <= set(worked.ledger)
    assert any(line.startswith("embed: vllm adds 1 all_reduce of 16,384 B") for line in worked.differences)
    # Sampled rows x padded vocabulary x 2 B: 128,256 x 2 = 256,512 B gathered.
    assert any(line.startswith("logits: vllm adds 1 all_gather of 256,512 B") for line in worked.differences)
    # Engine facts of the step: 1 + 2 x 80 all-reduces and one all-gather.
    assert textbook.chain("tp_call_count").ledger["calls_tp8"].value == 162


def test_a_handoff_of_a_described_model() -> None:
    # 2 x 10 layers x 4 heads x 64 x 2 B = 10,240 B a token; 100 tokens, twice a second.
    worked = textbook.chain(
        "handoff_rate",
        {"model": "GQA, 10 layers, 4 KV heads, head_dim 64, BF16", "prefix_tokens": 100, "handoffs_per_s": 2},
    )
    assert value(worked, "kv_bytes_per_request") == 1_024_000
    assert value(worked, "payload_bytes_per_s") == 2_048_000
    assert worked.ledger["wire_bytes_per_request"].value > 1_024_000  # headers, and 112 tokens in whole blocks


def test_two_nics_for_four_ranks() -> None:
    # 2,684,354,560 B over 2 x 50 GB/s: 26.8 ms; prefill is what it was.
    worked = textbook.chain("kv_transfer", {"nics": 2})
    assert value(worked, "transfer_ms") == pytest.approx(26.843, abs=1e-3)
    assert value(worked, "transfer_ms_one_nic") == pytest.approx(53.687, abs=1e-3)


def test_step_times_follow_their_inputs() -> None:
    # 100 GB over 4 x 1 TB/s = 25 ms, over 8 = 12.5 ms; 100 calls of 20 us = 2 ms: gain 27 / 14.5.
    worked = textbook.chain(
        "tp8_step_time", {"weights_bytes": 100e9, "hbm_Bps": 1e12, "all_reduce_us": 20, "calls": 100}
    )  # fmt: skip
    assert value(worked, "tp4_step_ms") == pytest.approx(27)
    assert value(worked, "tp8_step_ms") == pytest.approx(14.5)
    assert value(worked, "gain") == pytest.approx(27 / 14.5)


def test_fp8_differences_are_named_role_by_role() -> None:
    worked = textbook.chain("fit_405b")
    lines = "\n".join(worked.differences)
    # 128,256 x 16,384 parameters over 8 ranks: 262.7 MB at one byte, 525.3 MB as the ledger keeps them.
    assert "fp8 embed: textbook 262.7 MB, ledger 525.3 MB: stored in bf16" in lines
    assert "fp8 head: textbook 262.7 MB, ledger 525.3 MB: stored in bf16" in lines
    assert "runtime" in lines and "activations" in lines
    # Embedding and head once more a byte each: 405.85 + 4.20 GB, and the norms.
    assert worked.ledger["fp8_weights_GB"].value == pytest.approx(405.853 + 2 * 2.101, abs=0.02)
    assert worked.ledger["left_per_gpu_GB"].value < worked.expect["left_per_gpu_GB"].value
    assert any("second node" in note for note in worked.notes)


def test_device_memory_is_an_input() -> None:
    # 100 GiB x 0.5 = 53.687 GB: FP8 still fits, with 3 GB left.
    worked = textbook.chain("fit_405b", {"device_memory_GiB": 100, "gpu_memory_utilization": 0.5})
    assert value(worked, "budget_per_gpu_GB") == pytest.approx(53.687, abs=1e-3)
    assert value(worked, "fp8_fits") is True
    assert value(worked, "bf16_fits") is False


def test_what_dp_attention_really_replicates_is_named() -> None:
    worked = textbook.chain("mla_dp_attention")
    lines = "\n".join(worked.differences)
    assert "dp_attn embed" in lines and "dp_attn mlp" in lines and "replicated" in lines
    assert worked.ledger["gain"].value < worked.expect["gain"].value
    assert worked.ledger["dp_attn_weights_per_gpu_GB"].value > worked.expect["dp_attn_weights_per_gpu_GB"].value


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("no_such", None, "no worked calculation"),
        ("all_gather_boundary", {"rank": 4}, "unknown input rank"),
        ("all_gather_boundary", {"ranks": 0}, "above 0"),
        ("all_gather_boundary", {"ranks": 2.5}, "whole number"),
        ("all_gather_boundary", {"ranks": True}, "above 0"),
        ("all_gather_boundary", {"ranks": float("nan")}, "above 0"),
        ("all_gather_boundary", {"ranks": "4"}, "above 0"),
        ("tp_all_reduce_bytes", {"layers": 81}, "as the model or formula has it"),
        ("tp_all_reduce_bytes", {"dtype": "fp8"}, "as the model or formula has it"),
        ("tp_all_reduce_bytes", {"tp": 1}, "one rank sends nothing"),
        ("tp8_step_time", {"batch": 2}, "as the model or formula has it"),
        ("moe_all_to_all", {"model": "llama-3.3-70b"}, "no experts"),
        ("mla_dp_attention", {"model": "llama-3.3-70b"}, "no MLA"),
        ("pipeline_bubble", {"formula": "p/m"}, "as the model or formula has it"),
        ("two_tp4_over_tp8", {"nodes": 1, "gpus_per_node": 1}, "fits no layout"),
    ],
)
def test_bad_inputs_are_one_clear_error(name, inputs, said) -> None:
    with pytest.raises(InputError, match=said):
        textbook.chain(name, inputs)


def test_an_unknown_figure_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="payload_GiB_per_s"):
        textbook.chain("handoff_rate").chain("nothing")
    assert textbook.chain("fit_405b").chain("ledger.fp8_per_gpu_GB").result.name == "plan fp8_per_gpu_GB"
