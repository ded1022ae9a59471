"""Results of benchmarks in the schemas that the tools write, each named in its reader; the numbers are made up."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.workload import results
from linkwise.workload.results import Results, Row

# vllm/benchmarks/serve.py: result_json of main_async, and of BenchmarkMetrics.
VLLM: dict[str, Any] = {
    "date": "20260714-120000", "endpoint_type": "openai-chat", "backend": "openai-chat", "label": None,
    "model_id": "meta-llama/Llama-3.3-70B-Instruct", "tokenizer_id": "x", "num_prompts": 640, "request_rate": "inf",
    "burstiness": 1.0, "max_concurrency": 64, "duration": 100.0, "completed": 640, "failed": 0,
    "total_input_tokens": 655360, "total_output_tokens": 327680, "request_throughput": 6.4, "output_throughput": 3276.8,
    "mean_ttft_ms": 250.0, "median_ttft_ms": 200.0, "p99_ttft_ms": 900.0, "mean_tpot_ms": 12.5, "median_tpot_ms": 12.0,
    "mean_itl_ms": 12.6,
}  # fmt: skip
# sglang/bench_serving.py: `result` of benchmark().
SGLANG: dict[str, Any] = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": math.inf, "max_concurrency": 16,
    "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 512, "random_range_ratio": 0.8,
    "server_info": {
        "model_path": "deepseek-ai/DeepSeek-V3", "tp_size": 16, "dp_size": 8, "enable_dp_attention": True, "pp_size": 1,
        "ep_size": 16, "quantization": "fp8", "kv_cache_dtype": "auto", "version": "0.5.3",
    },
    "duration": 60.0, "completed": 160, "total_input_tokens": 147456, "total_output_tokens": 73728,
    "total_output_tokens_retokenized": 73700, "mean_e2e_latency_ms": 9000.0, "mean_ttft_ms": 400.0,
    "median_ttft_ms": 300.0, "mean_tpot_ms": 20.0, "median_tpot_ms": 19.0, "mean_itl_ms": 20.1, "concurrency": 15.2,
}  # fmt: skip


def figure(unit: str, avg: float, **more: float) -> dict[str, Any]:
    return {"unit": unit, "avg": avg} | more


# ai-dynamo/aiperf docs/tutorials/working-with-profile-exports.md.
AIPERF: dict[str, Any] = {
    "schema_version": "1.0", "aiperf_version": "0.5.0", "request_latency": figure("ms", 6550.36, p50=5799.9),
    "time_to_first_token": figure("ms", 1588.8, p50=787.54), "inter_token_latency": figure("ms", 51.76, p50=51.98),
    "input_sequence_length": figure("tokens", 550.0, std=0.0),
    "output_sequence_length": figure("tokens", 96.85, std=0.88), "request_count": figure("requests", 200.0),
    "was_cancelled": False,
    "input_config": {
        "endpoint": {"model_names": ["openai/gpt-oss-20b"], "type": "chat", "streaming": True},
        "loadgen": {"concurrency": 100, "request_rate_mode": "concurrency_burst"},
    },
}  # fmt: skip
# triton-inference-server/perf_analyzer genai-perf tests/test_json_exporter.py: numbers as text, a flat input_config.
GENAI: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": "12.2"}, "request_latency": {"unit": "ms", "avg": "5000"},
    "time_to_first_token": {"unit": "ns", "avg": "120000000"}, "inter_token_latency": {"unit": "ms", "avg": "30.35"},
    "input_sequence_length": {"unit": "tokens", "avg": "550.05", "std": "0.34"},
    "output_sequence_length": {"unit": "tokens", "avg": "252.5", "std": "1.0"},
    "input_config": {"model": ["gpt2_vllm"], "backend": "OutputFormat.VLLM", "concurrency": 4, "request_rate": None},
}  # fmt: skip
AIPERF_CSV = """Metric,avg,min,max,p1,p50,p99,std
Request Latency (ms),6550.36,4996.25,9383.37,5523.64,5799.90,9381.63,1171.14
Time to First Token (ms),"1,588.80",382.24,4121.09,403.48,787.54,4119.33,1189.99
Inter Token Latency (ms),51.76,46.81,56.30,50.41,51.98,55.87,1.23
Output Sequence Length (tokens),96.85,91.00,97.00,91.00,97.00,97.00,0.88
Input Sequence Length (tokens),550.00,550.00,550.00,550.00,550.00,550.00,0.00

Metric,Value
Benchmark Duration (sec),15.20
Request Count,200.00
Request Throughput (requests/sec),13.16
"""


def spread(mean: float, std_dev: float = 0.0) -> dict[str, Any]:
    return {"successful": {"mean": mean, "median": mean, "std_dev": std_dev, "percentiles": {"p99": mean}}}


# vllm-project/guidellm 0.6: benchmarks[].config.strategy and .metrics, as its GenerativeBenchmark serialises them.
GUIDELLM: dict[str, Any] = {
    "metadata": {"guidellm_version": "0.5.3"},
    "args": {"backend_kwargs": {"model": "deepseek-ai/DeepSeek-R1-0528"}},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 8}},
            "metrics": {
                "request_totals": {"successful": 80, "errored": 2},
                "prompt_token_count": spread(1000.0), "output_token_count": spread(500.0),
                "time_to_first_token_ms": spread(300.0), "time_per_output_token_ms": spread(11.99),
                "inter_token_latency_ms": spread(6.79),
            },
        },
        {
            "config": {"strategy": {"type_": "constant", "rate": 2.5, "max_concurrency": 10240}},
            "metrics": {
                "request_totals": {"successful": 40},
                "prompt_token_count": spread(1000.0, 20.0), "output_token_count": spread(500.0, 9.0),
                "time_to_first_token_ms": {"successful": {"median": 100.0}},
                "inter_token_latency_ms": {"successful": {"median": 5.0}},
            },
        },
        {"config": {"strategy": {"type_": "synchronous"}}, "metrics": {"request_totals": {"successful": 0}}},
    ],
}  # fmt: skip


def read(folder: Path, content: Any, name: str = "results.json") -> Results:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return results.read(path)


def only(found: Results) -> Row:
    assert found.left_out == ()
    (row,) = found.rows
    return row


class TestTools:
    def test_vllm(self, tmp_path: Path) -> None:
        row = only(read(tmp_path, VLLM))
        assert (row.engine, row.model) == (None, "meta-llama/Llama-3.3-70B-Instruct")  # an API's name is no engine
        # 655,360 tokens in and 327,680 out of 640 requests.
        assert (row.isl, row.osl, row.requests, row.concurrency, row.rate_per_s) == (1024, 512, 640, 64, None)
        assert (row.ttft_s, row.tpot_s, row.statistic) == (0.25, 0.0125, "mean")
        assert row.fixed_lengths is None

    def test_vllm_says_more_when_told_to(self, tmp_path: Path) -> None:
        more = {"request_rate": 8, "tp": "4", "gpu": "H100", "engine": "vLLM", "engine_version": "0.19.0"}
        row = only(read(tmp_path, VLLM | more | {"input_lens": [1024] * 3, "output_lens": [512] * 3}))
        assert (row.rate_per_s, row.tp, row.gpu, row.engine, row.version) == (8, 4, "H100", "vllm", "0.19.0")
        assert row.fixed_lengths is True

    def test_medians_alone_are_labelled(self, tmp_path: Path) -> None:
        bare = {name: value for name, value in VLLM.items() if not name.startswith("mean_")}
        row = only(read(tmp_path, bare))
        assert (row.statistic, row.ttft_s, row.tpot_s) == ("median", 0.2, 0.012)

    def test_sglang(self, tmp_path: Path) -> None:
        lines = "\n".join(json.dumps(SGLANG | {"max_concurrency": n}) for n in (16, 32)) + "\n"
        found = read(tmp_path, lines, "results.jsonl")
        assert [row.concurrency for row in found.rows] == [16, 32]
        row = found.rows[0]
        # Its tp_size of 16 counts 8 attention replicas of 2 ranks.
        assert (row.engine, row.version, row.tp, row.dp_attn, row.ep, row.gpus) == ("sglang", "0.5.3", 2, 8, 16, 16)
        assert (row.isl, row.osl, row.fixed_lengths) == (921.6, 460.8, False)
        assert (row.gemm_quant, row.kv_dtype, row.rate_per_s) == ("fp8", None, None)
        assert (row.ttft_s, row.tpot_s) == (0.4, 0.02)
        assert row.source.endswith("line 1")

    def test_aiperf(self, tmp_path: Path) -> None:
        row = only(read(tmp_path, AIPERF))
        assert (row.model, row.concurrency, row.requests) == ("openai/gpt-oss-20b", 100, 200)
        assert (row.isl, row.osl, row.fixed_lengths) == (550, 96.85, False)
        assert (row.ttft_s, row.tpot_s) == pytest.approx((1.5888, 0.05176))

    def test_aiperf_that_keeps_its_settings_elsewhere(self, tmp_path: Path) -> None:
        config = {"cli_command": "aiperf profile -m x --streaming --concurrency 32 --request-rate 2.5 --osl 100"}
        row = only(read(tmp_path, AIPERF | {"input_config": config}))
        assert (row.concurrency, row.rate_per_s) == (32, 2.5)

    def test_genai_perf(self, tmp_path: Path) -> None:
        row = only(read(tmp_path, GENAI))
        assert (row.engine, row.model, row.concurrency) == ("vllm", "gpt2_vllm", 4)
        assert (row.ttft_s, row.tpot_s) == pytest.approx((0.12, 0.03035))

    def test_its_table_says_the_same(self, tmp_path: Path) -> None:
        row = only(read(tmp_path, AIPERF_CSV, "profile_export_aiperf.csv"))
        assert (row.isl, row.osl, row.requests) == (550, 96.85, 200)
        assert (row.ttft_s, row.tpot_s) == pytest.approx((1.5888, 0.05176))

    def test_guidellm(self, tmp_path: Path) -> None:
        found = read(tmp_path, GUIDELLM)
        closed, open_ = found.rows
        assert (closed.model, closed.concurrency, closed.requests) == ("deepseek-ai/DeepSeek-R1-0528", 8, 80)
        assert (closed.isl, closed.osl, closed.fixed_lengths) == (1000, 500, True)
        # Its time per output token counts the first token; the gap between tokens is ours.
        assert (closed.ttft_s, closed.tpot_s) == pytest.approx((0.3, 0.00679))
        # 10,240 is what GuideLLM's client opens at most (its default), not what was in flight.
        assert (open_.concurrency, open_.rate_per_s, open_.statistic) == (None, 2.5, "median")
        assert [one.where.rpartition(": ")[2] for one in found.left_out] == ["benchmarks[2]"]


class TestTables:
    def test_our_own_names(self, tmp_path: Path) -> None:
        text = "engine,model,gpu,tp,isl,osl,concurrency,ttft_s,tpot_s\nvllm,a/b,h100,4,1024,512,8,0.25,0.0125\n"
        row = only(read(tmp_path, text, "x.csv"))
        assert (row.engine, row.tp, row.isl, row.concurrency, row.ttft_s) == ("vllm", 4, 1024, 8, 0.25)

    def test_other_names_of_them(self, tmp_path: Path) -> None:
        text = (
            "id,Backend,Engine Version,model_path,system,gemm_quant_mode,N-GPUs,TP size,dp_attn,mtp_suspected,"
            "fixed_lengths,isl,osl,concurrency,ttft_ms,tpot_ms,anything\n"
            "r1,TensorRT-LLM,1.2,a/b,b200_sxm,NVFP4,8.0,1,8,1,0,8192,1024,64,900,30,?\n"
        )
        row = only(read(tmp_path, text, "x.csv"))
        assert (row.engine, row.version, row.gpu, row.gemm_quant) == ("trtllm", "1.2", "b200_sxm", "nvfp4")
        assert (row.gpus, row.tp, row.dp_attn, row.speculative, row.fixed_lengths) == (8, 1, 8, True, False)
        assert (row.ttft_s, row.tpot_s) == (0.9, 0.03)
        assert row.source.endswith("line 2 (r1)")

    @pytest.mark.parametrize(
        ("said", "concurrency", "rate"),
        [("64", 64, None), ("batch 16", 16, None), ("8/s", None, 8), ("2.5 req/s", None, 2.5), ("rate 2", None, 2)],
    )
    def test_a_column_of_either(self, tmp_path: Path, said: str, concurrency: float | None, rate: float | None) -> None:
        row = only(read(tmp_path, f"concurrency_or_rate,isl,osl,ttft_ms\n{said},9,9,5\n", "x.csv"))
        assert (row.concurrency, row.rate_per_s) == (concurrency, rate)

    def test_a_note_that_says_medians(self, tmp_path: Path) -> None:
        text = "isl,osl,concurrency,ttft_ms,tpot_ms,note\n9,9,8,5,6,medians\n9,9,8,5,6,mean\n"
        assert [row.statistic for row in read(tmp_path, text, "x.csv").rows] == ["median", "mean"]

    @pytest.mark.parametrize(
        ("cells", "reason"),
        [
            ("-1,9,8,5,6", "field isl: -1"),
            ("nan,9,8,5,6", "field isl: nan"),
            ("9,9,8,-5,6", "field ttft_ms: -5"),
            ("9,9,8,inf,6", "field ttft_ms: inf"),
            ("9,9,8,1e300,6", "field ttft_ms: 1e+300"),
            ("9,~10,8,5,6", "field osl: '~10', expected a number"),
            ("9,9,0.5,5,6", "field concurrency: 0.5"),
            ("9,9,8,,", "neither a time to first token"),
            ("9,9,8,5", "4 cells, expected 5"),
        ],
    )
    def test_a_row_that_cannot_be_is_left_out_by_line_and_field(self, tmp_path: Path, cells: str, reason: str) -> None:
        found = read(tmp_path, f"isl,osl,concurrency,ttft_ms,tpot_ms\n9,9,8,5,6\n\n{cells}\n", "x.csv")
        assert len(found.rows) == 1
        (left,) = found.left_out
        assert left.where.endswith("line 4")
        assert left.reason.startswith(reason)

    @pytest.mark.parametrize(("name", "value"), [("dp", "8"), ("cp_size", "2"), ("disagg", "3P9D")])
    def test_what_a_row_has_no_word_for_is_not_dropped_silently(self, tmp_path: Path, name: str, value: str) -> None:
        found = read(tmp_path, f"isl,osl,ttft_ms,{name}\n9,9,5,{value}\n", "x.csv")
        assert found.rows == ()
        assert len(found.left_out) == 1


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "empty"),
            ("  \n", "empty"),
            ("a diary\nof someone\n", "columns"),
            ("isl,osl\n1,2\n", "no column of times"),
            ("isl,isl,ttft_ms\n1,1,2\n", "is there twice"),
            ('{"a": 1}', "no results recognised"),
            ("[]", "no results recognised"),
            ("{" * 5000, "JSON"),
            ("[" * 100_000, "JSON"),
            ('{"a": ' + "9" * 5000 + "}", "digits"),
            ('isl,ttft_ms\n"1,2\n', "not a table"),
        ],
    )
    def test_a_file_without_results(self, tmp_path: Path, text: str, says: str) -> None:
        with pytest.raises(InputError, match=says):
            read(tmp_path, text)

    def test_a_line_that_is_no_json_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="line 2"):
            read(tmp_path, json.dumps(SGLANG) + '\n{"a": \n')

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"mean_ttft_ms": -1}, "field mean_ttft_ms: -1"),
            ({"mean_tpot_ms": math.nan}, "field mean_tpot_ms: nan"),
            ({"mean_ttft_ms": {"a": 1}}, "field mean_ttft_ms"),
            ({"max_concurrency": [64]}, "field max_concurrency"),
            ({"completed": 0}, "field completed: 0"),
            ({"completed": 2.5}, "field completed: 2.5, expected a whole number"),
            ({"total_input_tokens": 1e30}, "field isl"),
            ({"tp": True}, "field tp"),
            ({"model_id": {"x": 1}}, "field model_id: a dict"),
            ({"mean_ttft_ms": 0, "mean_tpot_ms": 0, "median_ttft_ms": 0, "median_tpot_ms": 0}, "neither a time"),
        ],
    )
    def test_a_run_that_cannot_be(self, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
        found = read(tmp_path, VLLM | change)
        assert found.rows == ()
        (left,) = found.left_out
        assert left.reason.startswith(reason)

    @pytest.mark.parametrize(
        ("content", "field"),
        [
            # sglang/srt/server_args.py disaggregation_mode: null, prefill, decode.
            (SGLANG | {"server_info": SGLANG["server_info"] | {"disaggregation_mode": "decode"}},
             "server_info.disaggregation_mode"),
            # What sglang's router says of either pool's servers; bench_serving reads server_info["decode"][0].
            (SGLANG | {"server_info": {"prefill": [SGLANG["server_info"]], "decode": [SGLANG["server_info"]]}},
             "server_info: servers under prefill and decode"),
            (SGLANG | {"pd_separated": True}, "pd_separated"),
            # vllm/config/kv_transfer.py kv_role, as --metadata puts it.
            (VLLM | {"kv_role": "kv_producer"}, "kv_role"),
            (VLLM | {"kv_transfer_config": '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'}, "kv_role"),
            (AIPERF | {"was_cancelled": True}, "was_cancelled"),
        ],
    )  # fmt: skip
    def test_one_of_two_pools_and_a_run_cut_short_are_left_out_by_field(
        self, tmp_path: Path, content: dict[str, Any], field: str
    ) -> None:
        found = read(tmp_path, content)
        assert found.rows == ()
        (left,) = found.left_out
        assert left.reason.startswith(f"field {field}")

    def test_a_server_of_both_phases_is_read(self, tmp_path: Path) -> None:
        for said in ("null", None):
            server = SGLANG["server_info"] | {"disaggregation_mode": said}
            assert len(read(tmp_path, SGLANG | {"server_info": server, "pd_separated": False}).rows) == 1
        assert len(read(tmp_path, VLLM | {"kv_role": "kv_both"}).rows) == 1

    def test_what_is_of_no_known_form_stays_beside_what_is(self, tmp_path: Path) -> None:
        found = read(tmp_path, [VLLM, {"a": 1}, 3])
        assert len(found.rows) == 1
        assert [one.where.rpartition(": ")[2] for one in found.left_out] == ["entry 1", "entry 2"]


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**20), st.floats(), st.text(max_size=5),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (VLLM, (None, None, None)),
        (SGLANG | {"accept_length": None}, (None, None, None)),
        # vllm/benchmarks/serve.py: acceptance length = 1 + accepted / drafts; 3 tokens a draft.
        (VLLM | {"spec_decode_acceptance_rate": 60.0, "spec_decode_acceptance_length": 2.8,
                 "spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_accepted_tokens": 180},
         (True, 2.8, 3.0)),
        (VLLM | {"spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_accepted_tokens": 180},
         (True, 2.8, 3.0)),
        (VLLM | {"spec_decode_acceptance_rate": 60.0}, (True, None, None)),
        # sglang/bench_serving.py accept_length; server_args.py speculative_*.
        (SGLANG | {"accept_length": 2.6}, (True, 2.6, None)),
        (SGLANG | {"accept_length": 2.6, "server_info": SGLANG["server_info"] | {
            "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1}},
         (True, 2.6, 3.0)),
        (SGLANG | {"accept_length": 2.6, "server_info": SGLANG["server_info"] | {
            "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 4}},
         (True, 2.6, None)),
        # ai-dynamo/aiperf docs/metrics_reference.md, speculative decoding: totals of steps and of drafted tokens.
        (AIPERF | {"spec_decode_token_weighted_acceptance_length": figure("ratio", 3.25),
                   "total_spec_decode_steps": figure("count", 16.0), "total_draft_tokens": figure("tokens", 64.0)},
         (True, 3.25, 4.0)),
        ("isl,osl,concurrency,tpot_ms,accept_length,num_speculative_tokens\n100,10,1,5,1.9,2\n", (True, 1.9, 2.0)),
        ("isl,osl,concurrency,tpot_ms,mtp\n100,10,1,5,1\n", (True, None, None)),
        ("isl,osl,concurrency,tpot_ms,mtp\n100,10,1,5,0\n", (False, None, None)),
    ],
)  # fmt: skip
def test_runs_that_draft_tokens_say_so(tmp_path: Path, content: Any, said: tuple[object, ...]) -> None:
    found = only(read(tmp_path, content))
    assert (found.speculative, found.accepted, found.drafted) == said


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([VLLM, SGLANG, AIPERF, GENAI, GUIDELLM]), st.data()
)  # fmt: skip
def test_changed_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any], data: st.DataObject
) -> None:
    changed = json.loads(json.dumps(base))
    for _ in range(3):
        place = changed
        while True:
            key = data.draw(st.sampled_from(sorted(place, key=str) or ["x"]))
            inner = place.get(key)
            if isinstance(inner, dict) and inner and data.draw(st.booleans()):
                place = inner
                continue
            place[key] = data.draw(VALUES)
            break
    path = tmp_path_factory.mktemp("r") / "x.json"
    path.write_text(json.dumps(changed))
    try:
        found = results.read(path)
    except InputError:
        return
    for row in found.rows:
        for time_s in (row.ttft_s, row.tpot_s):
            assert time_s is None or 0 < time_s <= 1e6
        assert row.isl is None or row.isl >= 1


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_any_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("r") / "x.csv"
    path.write_text("isl,osl,ttft_ms,concurrency\n" + text, "utf-8")
    try:
        results.read(path)
    except InputError:
        return
