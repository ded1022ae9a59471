"""Launch commands and their reverse: round trips, real commands as people paste them, refusals with names."""

import itertools
import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.engine import registry
from linkwise.engine.base import Options
from linkwise.engine.flags import human_int

ENGINES = ("vllm", "sglang", "trtllm", "linkwise")
POWERS = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def layouts(draw):
    tp, cp, dp = draw(POWERS), draw(st.sampled_from([1, 1, 2])), draw(POWERS)
    stage = tp * cp * dp
    return Layout(
        tp=tp,
        cp=cp,
        dp_attn=dp,
        pp=draw(st.integers(1, 8)),
        dcp=draw(st.sampled_from([d for d in (1, 2, 4, 8, 16) if tp % d == 0])),
        ep=draw(st.sampled_from([e for e in (1, 2, 8, stage) if stage % e == 0])),
        sequence_sharded=draw(st.booleans()),
    )


@given(st.sampled_from(ENGINES), layouts(), st.booleans(), st.booleans())
def test_every_legal_layout_survives_the_round_trip(make, name, layout, experts, mla):
    model = make(experts=256 if experts else 0, mla=mla, heads=256, kv_heads=2)
    engine = registry.get(name)
    if engine.refuses(model, layout, devices_per_node=8) is not None:
        return
    words = engine.command("org/model", layout, Options())
    files = engine.files(layout, Options())
    parsed = engine.parse(words, model=model, files=files)
    assert parsed.layout == layout
    assert parsed.model == "org/model"
    assert parsed.replicas == 1
    assert parsed.ignored == ()
    # The same through text, as a user would paste it.
    assert registry.parse_command(shlex.join(words), model=model, files=files) == parsed


@given(
    st.sampled_from(ENGINES[:3]),  # ours keeps the other options in the plan file it is given
    st.builds(
        Options,
        kv_dtype=st.sampled_from([None, "float8_e4m3"]),
        memory_utilization=st.sampled_from([None, 0.5, 0.95]),
        max_batched_tokens=st.sampled_from([None, 1024, 16384]),
        max_seqs=st.sampled_from([None, 64]),
        max_model_len=st.sampled_from([None, 131072]),
        block_tokens=st.sampled_from([None, 32]),
        mtp_tokens=st.sampled_from([0, 1, 3]),
        eager=st.booleans(),
    ),
)
def test_options_survive_the_round_trip(name, options):
    engine, layout = registry.get(name), Layout(tp=4)
    words = engine.command("m", layout, options)
    assert engine.parse(words, files=engine.files(layout, options)).options == options


EXCHANGES = (None, "all_gather", "all_to_all", "all_to_all_node")
CHOICES = [
    *(Options(moe_exchange=e, dense_whole=on, head_over_tp=on) for e in EXCHANGES for on in (False, True)),
    *(Options(kv_dtype=kv, mtp_tokens=1, eager=True) for kv in ("bfloat16", "float8_e4m3", "float8_e5m2", "fp4_e2m1")),
    Options(lora_count=2),
    Options(weight_dtype="float8_e4m3"),
    Options(weight_dtype="int4"),
]
GRID = [
    Layout(tp=tp, cp=cp, dp_attn=dp, pp=pp, dcp=dcp, ep=ep or tp * cp * dp, sequence_sharded=sharded)
    for tp, cp, dp, pp in itertools.product((1, 2, 8), (1, 2), (1, 2, 8), (1, 3))
    for dcp, ep, sharded in itertools.product((1, 2), (1, 4, 0), (False, True))
    if tp % dcp == 0 and tp * cp * dp % (ep or 1) == 0
]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("experts", "mla"), [(256, True), (60, False), (0, False)])
def test_a_layout_that_is_taken_under_some_options_has_a_command(make, name, experts, mla):
    engine, model = registry.get(name), make(experts=experts, mla=mla, heads=128, kv_heads=2)
    taken = 0
    for options in CHOICES:
        try:
            engine.command("m", Layout(), options)
        except InputError:  # options that no layout helps; all else is for `refuses` to say
            continue
        for layout in GRID:
            if engine.refuses(model, layout, devices_per_node=8, options=options) is not None:
                continue
            taken += 1
            assert engine.command("m", layout, options, nodes=2)
            files = engine.files(layout, options)
            parsed = engine.parse(engine.command("m", layout, options), model=model, files=files)
            assert parsed.layout == layout
            if name != "linkwise":  # its other options are in the plan file
                read, given = (engine.convention_for(model, layout, o) for o in (parsed.options, options))
                assert read == given
    assert taken


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 8 --max-model-len 32k --gpu-memory-utilization=0.95",
        "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor_parallel_size=8 --max_model_len 32000"
        " --gpu-memory-utilization 0.95",
        "python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.3-70B-Instruct \\\n"
        "  --tensor-parallel-size 8 \\\n  --max-model-len 32000 --gpu_memory_utilization 0.95",
        "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 VLLM_USE_V1=1 /opt/venv/bin/vllm serve"
        " 'meta-llama/Llama-3.3-70B-Instruct' -tp=8 --max-model-len 32k --gpu-memory-utilization 0.95 --port 8000 2>&1",
        "docker run --gpus all -v models:/models vllm/vllm-openai:v0.11.0 --model"
        " meta-llama/Llama-3.3-70B-Instruct -tp 8 --max-model-len 32k --gpu-memory-utilization .95",
    ],
)
def test_the_same_vllm_command_written_in_many_ways(text):
    parsed = registry.parse_command(text)
    assert parsed.engine == "vllm"
    assert parsed.model == "meta-llama/Llama-3.3-70B-Instruct"
    assert parsed.layout == Layout(tp=8)
    assert parsed.options.max_model_len == 32_000
    assert parsed.options.memory_utilization == 0.95


def test_vllm_wide_expert_parallel():
    # vLLM docs, expert parallel deployment: ep = tp x dp.
    parsed = registry.parse_command(
        "VLLM_ALL2ALL_BACKEND=deepep_low_latency vllm serve deepseek-ai/DeepSeek-V3-0324 --tensor-parallel-size 1"
        " --data-parallel-size 16 --data-parallel-size-local 8 --enable-expert-parallel --enable-eplb"
        " --data-parallel-address 10.0.0.1 --headless"
    )
    assert parsed.layout == Layout(dp_attn=16, ep=16)
    assert parsed.replicas == 1
    assert parsed.options.moe_exchange == "all_to_all"
    assert "--headless" in parsed.ignored


def test_vllm_data_parallel_depends_on_the_model(make):
    text = "vllm serve m -tp 2 -dp 4"
    assert registry.parse_command(text, model=make()).replicas == 4
    assert registry.parse_command(text, model=make()).layout == Layout(tp=2)
    # vLLM docs: expert layers form a tensor parallel group of DP x TP without expert parallelism.
    assert registry.parse_command(text, model=make(experts=64)).layout == Layout(tp=2, dp_attn=4)
    unsure = registry.parse_command(text)
    assert unsure.replicas == 4
    assert any("independent replicas" in n for n in unsure.notes)


def test_vllm_context_and_other_options():
    parsed = registry.parse_command(
        """vllm serve moonshotai/Kimi-K2-Thinking --tensor-parallel-size 8 --decode-context-parallel-size 8 \\
        --kv-cache-dtype fp8 --max-model-len 1M --max-num-seqs 64 --max-num-batched-tokens 8k --enforce-eager \\
        --block-size 64 --speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 2}' \\
        --enable-lora --max-loras 4 --max-lora-rank 64 --trust-remote-code --no-enable-prefix-caching \\
        --served-model-name kimi k2 --all2all-backend allgather_reducescatter"""
    )
    assert parsed.layout == Layout(tp=8, dcp=8)
    assert parsed.options == Options(
        kv_dtype="float8_e4m3",
        max_model_len=2**20,
        max_seqs=64,
        max_batched_tokens=8000,
        eager=True,
        block_tokens=64,
        mtp_tokens=2,
        lora_count=4,
        lora_rank=64,
        moe_exchange="all_gather",
    )
    assert "--served-model-name kimi k2" in parsed.ignored
    assert "--no-enable-prefix-caching" in parsed.ignored


def test_dotted_json_flags():
    parsed = registry.parse_command(
        "vllm serve m -tp 2 --speculative-config.method mtp --speculative-config.num_speculative_tokens 3"
        " --compilation-config.pass_config.enable_sp true"
    )
    assert parsed.options.mtp_tokens == 3
    assert parsed.layout == Layout(tp=2, sequence_sharded=True)


@pytest.mark.parametrize(("version", "name"), [("0.12", "enable_sequence_parallelism"), ("0.13", "enable_sp")])
def test_vllm_sequence_sharding_is_written_as_its_version_names_it(make, version, name):
    # vllm PR 16155 brings the pass, PR 29646 (after 0.12.0) renames it.
    engine, layout = registry.get("vllm", version), Layout(tp=4, sequence_sharded=True)
    assert engine.refuses(make(), layout, devices_per_node=8) is None
    words = engine.command("m", layout, Options())
    assert json.loads(words[words.index("--compilation-config") + 1]) == {"pass_config": {name: True}}
    assert engine.parse(words).layout == layout


@pytest.mark.parametrize("version", ["0.32", "0.8.4"])
def test_a_vllm_without_the_pass_refuses_sequence_sharding(make, version):
    # vllm/config/compilation.py of 0.32.0: PassConfig has no such field, and its parser refuses one.
    found = registry.get("vllm", version).refuses(make(), Layout(tp=4, sequence_sharded=True), devices_per_node=8)
    assert found is not None and f"vLLM {version} has no sequence-sharded" in found.reason
    assert found.change == "sequence_sharded off"


def test_an_ellipsis_is_ignored_with_a_note():
    parsed = registry.parse_command("vllm serve my/model -tp 4 ...")
    assert parsed.layout == Layout(tp=4)
    assert "..." in parsed.ignored
    assert any("defaults" in n for n in parsed.notes)


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --dp 16 --enable-dp-attention"
        " --ep 16 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000 --trust-remote-code",
        "sglang serve --model-path deepseek-ai/DeepSeek-R1 --tp-size 16 --dp-size 16 --enable-dp-attention"
        " --moe-a2a-backend deepep --deepep-mode auto",
    ],
)
def test_sglang_divides_tp_by_dp_under_dp_attention(text):
    parsed = registry.parse_command(text)
    assert parsed.engine == "sglang"
    assert parsed.layout == Layout(dp_attn=16, ep=16)
    assert parsed.replicas == 1


def test_sglang_without_dp_attention_multiplies_replicas():
    parsed = registry.parse_command(
        "python -m sglang.launch_server --model-path m --tp 4 --dp 2 --mem-fraction-static 0.8"
    )
    assert parsed.layout == Layout(tp=4)
    assert parsed.replicas == 2
    assert parsed.options.memory_utilization == 0.8


def test_sglang_chunk_counts_all_attention_replicas():
    # server_args.py divides chunked_prefill_size by dp under dp attention.
    parsed = registry.parse_command(
        "sglang serve --model-path m --tp 8 --dp 4 --enable-dp-attention --chunked-prefill-size 32768"
    )
    assert parsed.layout == Layout(tp=2, dp_attn=4)
    assert parsed.options.max_batched_tokens == 8192


def test_sglang_degrees_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match="--tp 8 is not divisible by --dp 3"):
        registry.parse_command("sglang serve --model-path m --tp 8 --dp 3 --enable-dp-attention")


def test_trtllm_serve_and_its_settings_file():
    text = (
        "trtllm-serve nvidia/DeepSeek-R1-FP4 --backend pytorch --tp_size 8 --ep_size 4 --pp_size 2 --max_batch_size 384"
        " --max_num_tokens 1536 --kv_cache_free_gpu_memory_fraction 0.85 --extra_llm_api_options /etc/extra.yml"
    )
    unread = registry.parse_command(text)
    assert unread.layout == Layout(tp=8, ep=4, pp=2)
    assert any("/etc/extra.yml was not read" in n for n in unread.notes)
    settings = (
        "enable_attention_dp: true\nkv_cache_config:\n  dtype: fp8\nspeculative_config:\n  decoding_type: MTP\n"
        "  num_nextn_predict_layers: 3\nprint_iter_log: true\n"
    )
    read = registry.parse_command(text, files={"extra.yml": settings})
    assert read.layout == Layout(dp_attn=8, ep=4, pp=2)
    assert read.options.kv_dtype == "float8_e4m3"
    assert read.options.mtp_tokens == 3
    assert read.options.memory_utilization == 0.85
    assert (read.options.max_seqs, read.options.max_batched_tokens) == (384, 1536)
    assert "print_iter_log=true (settings file)" in read.ignored


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm serve m --tensor-paralel-size 8", "--tensor-parallel-size"),
        ("sglang serve --model-path m --mem-fracton-static 0.8", "--mem-fraction-static"),
        ("trtllm-serve m --tp_sise 8", "--tp-size"),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest(text, says):
    with pytest.raises(InputError, match=says) as caught:
        registry.parse_command(text)
    assert "unknown flag" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ls -la",
        "vllm bench serve --model m",
        "vllm serve",
        "vllm serve m -tp",
        "vllm serve m -tp eight",
        "vllm serve m -tp 0",
        "vllm serve m -tp 2.5",
        "vllm serve m -tp $TP",
        "vllm serve 'm",
        "vllm serve a b",
        "vllm serve m --cpu-offload-gb 10",
        "vllm serve m --speculative-config {bad",
        'vllm serve m --speculative-config \'{"method": "eagle3", "model": "x"}\'',
        "vllm serve m --kv-cache-dtype turboquant_k8v4",
        "vllm serve m --max-model-len 3X",
        "vllm serve m -pcp 2",
        "vllm serve m --gpu-memory-utilization 9",
        "vllm serve m -tp 4 -dcp 3",
        "sglang serve --tp 8",
        "trtllm-serve m --cp_size 2",
        "linkwise serve --weights m --layout tp=4,ep=3",
        "x" * 200_000,
    ],
)
def test_bad_commands_raise_input_errors(text):
    with pytest.raises(InputError):
        registry.parse_command(text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text):
    for program in ("vllm serve ", "sglang serve ", "trtllm-serve ", "linkwise serve "):
        try:
            parsed = registry.parse_command(program + text)
        except InputError:
            continue
        assert parsed.layout.size >= 1


@pytest.mark.parametrize(
    ("text", "value"),
    # vLLM human_readable_int: lower case decimal, upper case binary, fractions in decimal only.
    [
        ("32768", 32768),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1M", 2**20),
        ("25.6k", 25_600),
        ("1m", 10**6),
        ("auto", None),
    ],
)
def test_sizes_as_vllm_reads_them(text, value):
    assert human_int(text, where="flag") == value


@pytest.mark.parametrize("text", ["1.5M", "k", "-5", "1e5", ""])
def test_sizes_vllm_does_not_read(text):
    with pytest.raises(InputError):
        human_int(text, where="flag")


@pytest.mark.parametrize("name", ["vllm", "trtllm"])
def test_one_command_starts_one_replica(name):
    with pytest.raises(InputError, match="once per replica"):
        registry.get(name).command("m", Layout(), Options(), replicas=2)


def test_what_a_command_cannot_say_is_refused():
    with pytest.raises(InputError, match="checkpoint quantised"):
        registry.get("vllm").command("m", Layout(), Options(weight_dtype="int4"))
    with pytest.raises(InputError, match="no launch command"):
        registry.get("textbook").command("m", Layout(), Options())
    with pytest.raises(InputError, match="no launch command"):
        registry.get("textbook").parse(["m"])


def test_vllm_command_words():
    words = registry.get("vllm").command("m", Layout(tp=2, dp_attn=4, ep=8, pp=2), Options(max_seqs=64))
    assert shlex.join(words) == (
        "vllm serve m --tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 4"
        " --enable-expert-parallel --max-num-seqs 64"
    )


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("vllm serve m --api-key sk-1 sk-2 --seed 3", "--api-key *** *** --seed 3"),
        ("vllm serve m --api-key=sk-1", "--api-key=***"),
        ("sglang serve --model-path m --api_key sk-1", "--api_key ***"),
        ("VLLM_API_KEY=sk-1 NCCL_DEBUG=INFO vllm serve m", "VLLM_API_KEY=*** NCCL_DEBUG=INFO"),
        (
            "docker run --env-file x -e HF_TOKEN=sk-1 image vllm serve m",
            "docker run --env-file x -e image HF_TOKEN=***",
        ),
        ("vllm serve m --tokenizer t | tee --password sk-1", "--tokenizer t | tee --password ***"),
    ],
)
def test_what_has_no_effect_is_kept_without_its_secrets(command: str, shown: str) -> None:
    """It stands on the screen and in the plan's file."""
    assert " ".join(registry.parse_command(command).ignored) == shown
