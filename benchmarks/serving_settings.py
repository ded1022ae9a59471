"""How the engines of the collection's rows were started, as far as the harness's published scripts say it.

Dated rows are of a public nightly benchmark (InferenceX, before InferenceMAX, by SemiAnalysis), whose start scripts and
log of changes are public: benchmarks/*.sh and perf-changelog.yaml of that repository, read 2026-11-30 in versions near
each row's date. A setting is chosen by what a row states beside its times: engine, model, GPU, precision, layout,
lengths, users and date. Undated rows are of another collector, whose settings are not public: there the engine's
defaults hold, but for what NOTES.md and benchmarks/serving_rows.py say.

- Cached tokens were FP8 but for gpt-oss on Hopper, MiniMax before vLLM 0.19 or on Hopper, DeepSeek on H200 by SGLang,
  and Qwen3.5 in 16 bits: the model's own dtype.
- vLLM took 8,192 tokens a step, twice the prompt's for MiniMax on Blackwell since 0.19 (the script for B300, which says
  that it is B200's), and scheduled ahead (asked for before 0.14, its default since).
- TensorRT-LLM never cut prompts. Steps: of Llama the longest request's tokens; of gpt-oss 20,000; of DeepSeek the
  prompt's, the users' and 64 more, from the end of January 2026 on at least 8,192. Prompts gathered (batch_wait_*) for
  Llama at 1k/1k below 8 ranks, and for DeepSeek FP8 at 1k/1k and 64 users or more since 1.2. With attention data
  parallelism prompts are balanced over the ranks, for 60 steps at most (50 for gpt-oss, the engine's default).
- Runs that draft (the scripts named *_mtp) have 3 tokens, 1 with attention data parallelism, 2 on SGLang for DeepSeek.
  TensorRT-LLM 1.1.0rc2.post2 of 14 January 2026 and 1.2.0rc6.post3 are such runs as a whole.
- SGLang read its queue every 10 steps, every 30 from 16 users on; every step on H200. What one step takes of prompts
  is as large as the most tokens of its prompts, so that none is cut.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from linkwise.engine.versions import version_key

FP8 = "float8_e4m3"


class Started(NamedTuple):
    """budget: tokens of a step. seqs: most requests of one; None = the engine's. kv: dtype of cached tokens; None = the
    model's. drafts: tokens. memory: the engine's share of memory; None = its own. rules: what else the engine was told,
    fields of simulate/rules.py."""

    budget: int
    seqs: int | None = None
    kv: str | None = None
    drafts: int = 0
    memory: float | None = None
    rules: dict[str, Any] = {}


def started(row: Mapping[str, str]) -> Started:
    """The settings of a row of silicon.csv."""
    return {"vllm": _vllm, "trtllm": _trtllm, "sglang": _sglang}[row["engine"]](_Row.of(row))


class _Row(NamedTuple):
    """What a row states, as numbers. date: empty where none."""

    model: str
    version: str
    date: str
    hopper: bool
    quant: str
    isl: int
    osl: int
    users: int
    tp: int
    dp: int
    drafts: bool

    @classmethod
    def of(cls, row: Mapping[str, str]) -> "_Row":
        isl, osl, users, tp, dp = (int(float(row[x])) for x in ("isl", "osl", "concurrency", "tp", "dp_attn"))
        gpu = row["gpu"]
        return cls(
            row["model"], row["engine_version"], row["measured"], gpu.startswith("h"),
            row["gemm_quant"], isl, osl, users, tp, dp, row["mtp_suspected"] == "1",
        )  # fmt: skip

    @property
    def short(self) -> bool:
        return self.isl == self.osl == 1024

    @property
    def fp8(self) -> bool:
        return self.quant.startswith("fp8")

    @property
    def deepseek(self) -> bool:
        return "DeepSeek" in self.model


def _vllm(row: _Row) -> Started:
    if not row.date:
        return Started(2048)
    ahead = {"ahead": True}
    if "MiniMax" in row.model:
        if row.hopper:
            return Started(8192, 256, rules=ahead)
        if version_key(row.version) < version_key("0.19"):
            return Started(8192, memory=0.95, rules=ahead)
        return Started(2 * row.isl, kv=FP8, rules=ahead)
    kv = None if "gpt-oss" in row.model and row.hopper else FP8
    return Started(8192, row.users if row.hopper else 512, kv, rules=ahead)


def _trtllm(row: _Row) -> Started:
    least = _up(row.isl + row.users + 64)
    if not row.date:
        return Started(least)
    if "Llama" in row.model:
        longest = row.isl + row.osl + 200
        wait = {"gather": 20, "gather_tokens": int(0.9 * longest)} if row.short and row.tp < 8 else {}
        return Started(longest, kv=FP8, rules=wait)
    if "gpt-oss" in row.model:
        wait = {"hold": 50} if row.dp > 1 else {}
        return Started(20_000, kv=None if row.hopper else FP8, memory=0.85, rules=wait)
    if not row.deepseek:
        return Started(least)
    wait = {"hold": 60} if row.dp > 1 else {}
    memory = 0.75 if row.hopper else 0.8
    if _mtp_run(row):
        drafts, seqs = 1 if row.dp > 1 else 3, max(1, row.users // row.dp)
        return Started(_up((drafts + 1) * seqs + row.isl + 64), seqs, FP8, drafts, memory, wait)
    budget = max(8192, least) if row.date >= "2026-01-26" else least
    if row.fp8 and not row.hopper and row.version.startswith("1.2") and row.short and 64 <= row.users < 256:
        wait |= {"gather": 40, "gather_tokens": int(0.8 * budget)}
    return Started(budget, None, FP8, 0, memory, wait)


def _mtp_run(row: _Row) -> bool:
    return row.drafts or row.date == "2026-01-14" or row.version == "1.2.0rc6.post3"


def _sglang(row: _Row) -> Started:
    if not row.date:
        return Started(8192)
    whole = {"chunked": False}
    polled = whole | {"poll": 10 if row.users < 16 else 30}
    if row.deepseek:
        drafts = 2 if row.drafts else 0
        if row.hopper:
            return Started(32_768, None, None, drafts, 0.82, whole)
        if drafts:
            return Started(16_384, 512, FP8, drafts, 0.82, polled)
        if not row.fp8:
            return Started(16_384, 256, FP8, 0, 0.85, polled)
        if row.tp == 4:
            return Started(8192, 32, FP8, 0, 0.95, whole | {"poll": 10})
        return Started(32_768, 128, FP8, 0, 0.82, polled)
    drafts = 3 if row.drafts else 0
    if row.hopper:
        return Started(16_384, 128, FP8, drafts, 0.8, whole)
    if row.quant == "nvfp4":
        return Started(32_768, max(128, row.users), FP8, drafts, 0.85, whole | {"poll": 30})
    return Started(32_768, 128, FP8 if row.fp8 else None, drafts, 0.82, polled)


def _up(tokens: int) -> int:
    """To the next multiple of 64, as the scripts round."""
    return -(-tokens // 64) * 64
