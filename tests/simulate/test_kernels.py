"""Constants from tables of kernels, made here by the formula of constants that must come back."""

import itertools

import pytest

from linkwise import api_calibrate, plan
from linkwise.cli import main
from linkwise.cluster.read import load as cluster
from linkwise.core.errors import InputError
from linkwise.engine import step_calibrations
from linkwise.simulate.calibrate import kernel_tables
from linkwise.simulate.calibrate.kernels import from_kernels

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow reads the tables")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow reads the tables")


HBM, BF16, FP8 = 3.35e12, 989e12, 1979e12  # H100 SXM, datasheet
LAUNCH_S = 8e-6
SIZES = (4096, 8192, 16384, 32768)
ROWS = (1, 16, 128, 512, 2048, 16384)


def gemm(folder, *, hbm=0.8, rate=0.7, fp8=0.5, version="0.24.0", gpu="h100_sxm", **more):
    """m x n x k in two dtypes: (read^2.5 + compute^2.5)^0.4 + launch."""
    columns = {name: [] for name in ("m", "n", "k", "gemm_dtype", "latency")}
    for dtype, size, peak in (("bfloat16", 2, BF16 * rate), ("fp8", 1, FP8 * fp8)):
        for m, n, k in itertools.product(ROWS, SIZES, SIZES):
            read, compute = n * k * size / (HBM * hbm), 2 * m * n * k / peak
            seconds = (read**2.5 + compute**2.5) ** 0.4 + LAUNCH_S
            for name, value in zip(columns, (m, n, k, dtype, 1e3 * seconds), strict=True):
                columns[name].append(value)
    return _written(folder, "gemm", "gemm_perf", columns | more, version, gpu)


def _written(folder, kind, name, columns, version="0.24.0", gpu="h100_sxm"):
    place = folder / gpu / kind / "vllm" / version
    place.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), place / f"{name}.parquet")
    return place / f"{name}.parquet"


def made(folder, version="0.24"):
    found = kernel_tables.find(str(folder), "h100-sxm", "vllm", version)
    return from_kernels(found, cluster("1xh100-sxm").accelerator, step_calibrations.shipped("vllm"))


def test_rates_of_matrices_come_back(tmp_path):
    gemm(tmp_path)
    outcome = made(tmp_path)
    constants = outcome.calibration.constants
    assert constants["hbm_efficiency"].value == pytest.approx(0.8, rel=0.01)
    assert constants["bf16_efficiency"].value == pytest.approx(0.7, rel=0.01)
    assert constants["fp8_efficiency"].value == pytest.approx(0.5, rel=0.02)
    assert outcome.parts[0].launch_us == pytest.approx(8, rel=0.2)
    assert "gemm_perf bfloat16" in constants["hbm_efficiency"].source


def test_what_kernels_do_not_show_stays_and_intervals_widen(tmp_path):
    gemm(tmp_path)
    before, after = step_calibrations.shipped("vllm"), made(tmp_path).calibration
    for name in ("step_us", "layer_us", "collective_us", "expert_rows"):
        assert after.constants[name] == before.constants[name]
    assert after.spreads.tpot == before.spreads.tpot_outside
    assert after.range == before.range
    assert step_calibrations.parse(step_calibrations.dump(after), where="dumped") == after


def test_attention_comes_back(tmp_path):
    """Prompts: 4 x B x S^2 / 2 x heads x d FLOPs at 40 % of the peak. One new token: its cached bytes at 60 % of HBM
    and 4 x B x S x heads x d FLOPs at the same 40 %."""
    prompt = [(b, s, h) for b in (1, 4, 16) for s in (1024, 2048, 4096, 8192, 16384) for h in (8, 16, 32, 64)]
    _written(tmp_path, "attention", "context_attention_perf", {
        "batch_size": [b for b, _, _ in prompt], "isl": [s for _, s, _ in prompt], "num_heads": [h for *_, h in prompt],
        "head_dim": [128] * len(prompt), "window_size": [0] * len(prompt), "step": [0] * len(prompt),
        "attn_dtype": ["bfloat16"] * len(prompt), "kv_cache_dtype": ["bfloat16"] * len(prompt),
        "latency": [1e3 * (4 * b * s * s / 2 * h * 128 / (0.4 * BF16) + LAUNCH_S) for b, s, h in prompt],
    })  # fmt: skip
    decode = [(b, s, h) for b in (16, 64, 128, 256) for s in (4095, 8191, 16383, 32767) for h in (8, 16, 32, 64)]
    _written(tmp_path, "attention", "generation_attention_perf", {
        "batch_size": [b for b, _, _ in decode], "isl": [1] * len(decode), "step": [s for _, s, _ in decode],
        "num_heads": [h for *_, h in decode], "num_key_value_heads": [8] * len(decode),
        "head_dim": [128] * len(decode), "window_size": [0] * len(decode),
        "attn_dtype": ["bfloat16"] * len(decode), "kv_cache_dtype": ["fp8"] * len(decode),
        "latency": [
            1e3 * (2 * b * (s + 1) * 8 * 128 / (0.6 * HBM) + 4 * b * (s + 1) * h * 128 / (0.4 * BF16) + LAUNCH_S)
            for b, s, h in decode
        ],
    })  # fmt: skip
    constants = made(tmp_path).calibration.constants
    assert constants["attention_efficiency"].value == pytest.approx(0.4, rel=0.02)
    assert constants["kv_efficiency"].value == pytest.approx(0.6, rel=0.02)


def test_experts_come_back(tmp_path):
    """8 of 256 experts a token, E (1 - (1 - 8/256)^T) touched, at 70 % of HBM; rows filled up as serving has it."""
    gemm(tmp_path)
    filled = step_calibrations.shipped("vllm").constants["expert_rows"].value
    shapes = [
        (t, h, i, tp)
        for t in (1, 8, 64, 512, 4096, 16384)
        for h in (4096, 7168)
        for i in (2048, 4096)
        for tp in (1, 2, 4)
    ]
    times = []
    for t, h, i, tp in shapes:
        touched, weight = 256 * (1 - (1 - 8 / 256) ** t), 3 * h * i / tp * 2
        read = touched * weight / (0.7 * HBM)
        compute = (t * 8 + filled * touched) * 2 * 3 * h * i / tp / (BF16 * 0.7 * 0.45)
        times.append(1e3 * ((read**2.5 + compute**2.5) ** 0.4 + LAUNCH_S))
    n = len(shapes)
    _written(tmp_path, "moe", "moe_perf", {
        "num_tokens": [s[0] for s in shapes], "hidden_size": [s[1] for s in shapes],
        "inter_size": [s[2] for s in shapes],
        "topk": [8] * n, "num_experts": [256] * n, "moe_tp_size": [s[3] for s in shapes], "moe_ep_size": [1] * n,
        "moe_dtype": ["bfloat16"] * n, "distribution": ["balanced"] * n, "latency": times,
    })  # fmt: skip
    constants = made(tmp_path).calibration.constants
    assert constants["expert_hbm_efficiency"].value == pytest.approx(0.7, rel=0.03)
    assert constants["expert_efficiency"].value == pytest.approx(0.45, rel=0.03)


@pytest.mark.parametrize(("asked", "taken"), [("0.24", "0.24.0"), ("0.23.1", "0.22.0"), ("0.10", "0.19.0")])
def test_the_newest_version_that_is_not_newer(tmp_path, asked, taken):
    for version in ("0.19.0", "0.22.0", "0.24.0"):
        gemm(tmp_path, version=version)
    (table,) = kernel_tables.find(str(tmp_path), "h100-sxm", "vllm", asked).tables
    assert table.version == taken


def test_a_table_that_cannot_be_read_is_named_and_the_rest_is_used(tmp_path):
    gemm(tmp_path)
    broken = _written(tmp_path, "moe", "moe_perf", {"num_tokens": [1]})
    assert any("no column" in part.why for part in made(tmp_path).parts)
    broken.write_bytes(b"PAR1 and nothing that follows from it")
    assert any("not a readable parquet file" in part.why for part in made(tmp_path).parts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_numbers_that_are_none(tmp_path, value):
    gemm(tmp_path, latency=[value] * (2 * len(ROWS) * len(SIZES) ** 2))
    with pytest.raises(InputError, match="latency has cells that are no number"):
        made(tmp_path)


def test_words_where_numbers_belong(tmp_path):
    gemm(tmp_path, m=["many"] * (2 * len(ROWS) * len(SIZES) ** 2))
    with pytest.raises(InputError, match=r"gemm_perf\.parquet"):
        made(tmp_path)


def test_too_few_rows_are_said(tmp_path):
    _written(tmp_path, "gemm", "gemm_perf",
             {"m": [1], "n": [16384], "k": [16384], "gemm_dtype": ["bfloat16"], "latency": [0.2]})  # fmt: skip
    with pytest.raises(InputError, match="1 of 1 rows show it, 50 are needed"):
        made(tmp_path)


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        api_calibrate.kernels(str(tmp_path / "none"), engine="vllm", on="1xh100-sxm")
    with pytest.raises(InputError, match="no table of vllm on h100-sxm"):
        api_calibrate.kernels(str(tmp_path), engine="vllm", on="1xh100-sxm")
    with pytest.raises(InputError, match="--engine: missing"):
        api_calibrate.kernels(str(tmp_path), engine="", on="1xh100-sxm")
    with pytest.raises(InputError, match="no constants of its own"):
        api_calibrate.kernels(str(tmp_path), engine="textbook", on="1xh100-sxm")


def test_a_plan_takes_the_file_and_the_command_writes_it(tmp_path):
    """One request of an 8B model in bfloat16: reading 15 GB of weights is most of its step, so 45 % instead of 90 % of
    the datasheet's rate adds 15.0 GB x (1 / 0.45 - 1 / 0.9) / 3.35 TB/s = 5.0 ms to a token, less what the
    prior pulls."""
    times = {}
    for name, hbm in (("slow", 0.45), ("fast", 0.9)):
        gemm(tmp_path / name, hbm=hbm)
        file = tmp_path / f"{name}.yaml"
        words = ["--kernels", str(tmp_path / name), "--engine", "vllm==0.24", "--on", "1xh100-sxm", "-o", str(file)]
        assert main(["calibrate", *words]) == 0
        made = plan(
            "llama-3.1-8b", "1xh100-sxm", engine="vllm==0.24", calibration=str(file), isl=128, osl=128, concurrency=1
        )
        times[name] = made.figures["decode.step_s"]
    assert times["slow"] - times["fast"] == pytest.approx(5.0e-3, rel=0.1)


def test_nothing_to_fit_to(capsys):
    assert main(["calibrate"]) == 2
    assert "files of results, or --kernels" in capsys.readouterr().err
