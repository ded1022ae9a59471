"""What a benchmark of serving says: one row a run, whatever tool wrote it."""

from typing import Literal

from linkwise.core.schema import Frozen

Statistic = Literal["mean", "median"]


class Groups(Frozen, frozen=True, kw_only=True):
    """Alike groups that only compute prompts, or only decode. tp, dp_attn, ep: degrees of each. tokens: of a step of an
    attention replica at most; seqs: requests of one at most."""

    workers: int = 1
    tp: int = 1
    dp_attn: int = 1
    ep: int = 1
    tokens: int | None = None
    seqs: int | None = None


class Row(Frozen, frozen=True, kw_only=True):
    """One run under one load. None: the file does not say, which is not the same as a default.

    engine: vllm, sglang, trtllm, or the file's own word in lower case; version: of the engine. model: as the file names
    it; gpu likewise. gpus: of the whole deployment; tp, pp, dp_attn, ep: degrees of one serving group (DESIGN §3).
    gemm_quant, moe_quant, kv_dtype: bf16, fp8, fp8_block, nvfp4, int4, ... as the file names them, in lower case.
    isl, osl: tokens of prompt and answer, the mean or the nominal length; fixed_lengths: every request has exactly
    these. speculative: it drafts tokens, so that a step yields more than one; accepted: tokens a step yields on
    average, the one it draws and the drafted ones that are kept; drafted: tokens drafted a step. concurrency: most
    requests in flight, in a closed loop or as a limit; rate_per_s: arrivals, None where all came at once. requests:
    that were completed. ttft_s: to the first token; tpot_s: mean time of a token after the first. statistic: what
    ttft_s and tpot_s are of the requests. prefill, decode: pools of their own, in place of the degrees.
    prefix_hit: share of the prompts' tokens that was found in the prefix cache. source: file and line, entry or field.
    """

    engine: str | None = None
    version: str | None = None
    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp_attn: int | None = None
    ep: int | None = None
    gemm_quant: str | None = None
    moe_quant: str | None = None
    kv_dtype: str | None = None
    isl: float | None = None
    osl: float | None = None
    fixed_lengths: bool | None = None
    prefix_hit: float | None = None
    speculative: bool | None = None
    accepted: float | None = None
    drafted: float | None = None
    concurrency: float | None = None
    rate_per_s: float | None = None
    requests: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    statistic: Statistic = "mean"
    prefill: Groups | None = None
    decode: Groups | None = None
    source: str = ""


class LeftOut(Frozen, frozen=True):
    """A row of a file that is not used. where: file and line or entry; reason: what was found and what is needed."""

    where: str
    reason: str


class Results(Frozen, frozen=True, kw_only=True):
    """Everything a file says: every row of it is in one of the two. format: as what it was read."""

    rows: tuple[Row, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    format: str = ""
