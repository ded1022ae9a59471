"""Constants of a step from kernels measured one by one: rates of memory and of arithmetic.

Each table is held against the same formula that a step uses (plan/step_work.py), with one more constant that is thrown
away: what a kernel takes before it does anything, which a step counts by layers. What no kernel shows, the engine's own
time and gaps between kernels, stays what it was.
"""

import datetime
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from linkwise.cluster.types import Accelerator
from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.engine.step_constants import Constant, StepCalibration
from linkwise.simulate.calibrate.kernel_tables import Found, Table
from linkwise.simulate.calibrate.priors import FIXED, PRIORS, Prior, unit_of
from linkwise.simulate.tables import Floats

CACHE_BYTES = 64e6  # less stays in the device's L2 between runs of a benchmark: it would not be read from memory
LONG = 1_024  # tokens of a prompt from which on attention computes
FEWEST = 50  # rows a constant is fitted to
SIGMA = 0.1  # of log(predicted / measured) where the loss turns from square to linear
COUNT = 50.0  # rows a table counts as: those of alike shapes are off alike
LAUNCH = Prior(10.0, 1.0, 0.0)  # us of a kernel that is not its bytes or FLOPs
_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}  # a weight with its scales
_KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
_PEAK = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}
_RATE = {"bfloat16": "bf16_efficiency", "fp8": "fp8_efficiency", "nvfp4": "fp4_efficiency"}


class Part(Frozen, frozen=True, kw_only=True):
    """What one table said. constants: value by name. off: median |predicted / measured - 1| of its rows. rows: used, of
    how many. why: a table that was not used."""

    table: str
    version: str
    constants: dict[str, float] = {}
    launch_us: float = 0.0
    rows: int = 0
    of: int = 0
    off: float = 0.0
    why: str = ""


class Outcome(Frozen, frozen=True, kw_only=True):
    """What kernels came to: the parts of each table, and the calibration they make of the one there was."""

    base: str
    parts: tuple[Part, ...]
    calibration: StepCalibration


def from_kernels(found: Found, gpu: Accelerator, base: StepCalibration) -> Outcome:
    """A calibration with the constants that kernels show replaced. Raises InputError where no table shows any."""
    tables = {table.name: table for table in found.tables}
    parts = [Part(table=table, version="", why=why) for table, why in found.left_out]
    if "gemm_perf" in tables:
        for dtype in _BYTES:
            parts.append(_gemm(tables["gemm_perf"], gpu, dtype, parts))
    if "moe_perf" in tables:
        parts.append(_experts(tables["moe_perf"], gpu, parts, base.constants["expert_rows"].value))
    if "context_attention_perf" in tables:
        parts.append(_prompts(tables["context_attention_perf"], gpu))
    if "generation_attention_perf" in tables:
        parts.append(_decode(tables["generation_attention_perf"], gpu, parts))
    used = [part for part in parts if part.constants]
    if not used:
        raise InputError(
            "; ".join(f"{part.table}: {part.why}" for part in parts), where="kernels", expected=f"{FEWEST} rows or more"
        )
    constants = dict(base.constants)
    for part in used:
        for name, value in part.constants.items():
            source = f"{found.source}, {part.rows} rows of {part.table} with {base.engine} {part.version} on {gpu.name}"
            constants[name] = Constant(
                value=float(f"{value:.4g}"), unit=unit_of(name), source=source, error=float(f"{part.off:.2g}")
            )
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")
    made = replace(
        base, label=f"{base.engine} kernels on {gpu.name}, {today}", made=today,
        source=f"{found.source}; the rest: {base.label}", constants=constants,
        # No run was measured with these constants together: intervals are those of what was left out of the base's fit.
        spreads=replace(base.spreads, tpot=base.spreads.tpot_outside, ttft=base.spreads.ttft_outside),
    )  # fmt: skip
    return Outcome(base=base.label, parts=tuple(parts), calibration=made)


def _gemm(table: Table, gpu: Accelerator, dtype: str, before: Sequence[Part]) -> Part:
    """Matrices of one dtype: m rows times weights of k x n. The rate of memory is that of the plainest, bfloat16."""
    m, n, k = (table.numbers[name] for name in "mnk")
    weight = n * k * _BYTES[dtype]
    mine = table.words["gemm_dtype"] == dtype
    peak = gpu.flops.get(_PEAK[dtype])
    label = f"{table.name} {dtype}"
    if peak is None:
        return Part(table=label, version=table.version, of=int(mine.sum()), why=f"{gpu.name} has no such units")
    rows = mine & (weight >= CACHE_BYTES)
    read, compute = (weight / gpu.hbm_Bps)[rows], (2 * m * n * k / peak)[rows]
    known = ("hbm_efficiency", _RATE.get(dtype, "fp8_efficiency"))
    fit = _fitted(known, lambda x: _norm(read / x[0], compute / x[1]), table.seconds[rows])
    if fit is None:
        return _too_few(label, table, rows, mine)
    reads, computes = map(float, fit.values)
    if dtype == "bfloat16":
        constants = {"hbm_efficiency": reads, "bf16_efficiency": computes}
    elif dtype == "fp8_block":
        whole = _known(before).get("fp8_efficiency")
        if whole is None:
            return Part(table=label, version=table.version, of=int(mine.sum()), why="no rows of fp8 to hold it against")
        constants = {"block_fp8_efficiency": computes / whole}
    else:
        constants = {_RATE[dtype]: computes}
    return _part(label, table, fit, constants, rows, mine)


def _experts(table: Table, gpu: Accelerator, gemm: Sequence[Part], filled: float) -> Part:
    """Experts of one rank, each token taking `topk` of them at random. filled: rows each is filled up to, as serving
    has it: kernels of different dtypes fill them differently, and one figure for all would be none's."""
    n = table.numbers
    dtype = table.words["moe_dtype"]
    mine = (table.words["distribution"] == "balanced") & (n["moe_ep_size"] == 1) & np.isin(dtype, list(_BYTES))
    mine &= np.isin(dtype, [d for d in _BYTES if _PEAK[d] in gpu.flops])
    each = np.array([_BYTES.get(d, 0.0) for d in dtype]) * 3 * n["hidden_size"] * n["inter_size"]
    each = each / np.maximum(1, n["moe_tp_size"])
    chosen = n["topk"] / np.maximum(1, n["num_experts"])
    touched = n["num_experts"] * (1 - (1 - np.minimum(chosen, 1)) ** n["num_tokens"])
    rows = mine & (touched * each >= CACHE_BYTES) & (n["num_experts"] > 1)
    rates = _known(gemm)
    rates["fp8_block_efficiency"] = rates.get("fp8_efficiency", 0.6) * rates.get("block_fp8_efficiency", 1.0)
    speed = np.array([
        gpu.flops.get(_PEAK.get(d, ""), np.inf) * rates.get(_RATE.get(d, "fp8_block_efficiency"), 0.6) for d in dtype
    ])  # fmt: skip
    row_flops = 2 * 3 * n["hidden_size"] * n["inter_size"] / np.maximum(1, n["moe_tp_size"])
    read, row_s = (touched * each / gpu.hbm_Bps)[rows], (row_flops / speed)[rows]
    tokens, busy = (n["num_tokens"] * n["topk"])[rows], touched[rows]
    names = ("expert_hbm_efficiency", "expert_efficiency")
    work = (tokens + filled * busy) * row_s
    fit = _fitted(names, lambda x: _norm(read / x[0], work / x[1]), table.seconds[rows])
    if fit is None:
        return _too_few(table.name, table, rows, mine)
    return _part(table.name, table, fit, dict(zip(names, fit.values, strict=True)), rows, mine)


def _prompts(table: Table, gpu: Accelerator) -> Part:
    """Attention of whole prompts to themselves: half of the square is masked."""
    n = table.numbers
    mine = (table.words["attn_dtype"] == "bfloat16") & (n["window_size"] == 0) & (n["step"] == 0)
    rows = mine & (n["isl"] >= LONG)
    flops = 4 * n["batch_size"] * n["isl"] ** 2 / 2 * n["num_heads"] * n["head_dim"]
    compute = (flops / gpu.flops["bf16"])[rows]
    fit = _fitted(("attention_efficiency",), lambda x: compute / x[0], table.seconds[rows])
    if fit is None:
        return _too_few(table.name, table, rows, mine)
    return _part(table.name, table, fit, {"attention_efficiency": float(fit.values[0])}, rows, mine)


def _decode(table: Table, gpu: Accelerator, parts: Sequence[Part]) -> Part:
    """One new token a request attends to `step` cached ones."""
    n = table.numbers
    kv = table.words["kv_cache_dtype"]
    mine = (n["window_size"] == 0) & np.isin(kv, list(_KV_BYTES))
    cached = n["batch_size"] * (n["step"] + n["isl"]) * n["head_dim"]
    size = 2 * cached * n["num_key_value_heads"] * np.array([_KV_BYTES.get(d, 0.0) for d in kv])
    rows = mine & (size >= CACHE_BYTES)
    efficiency = _known(parts).get("attention_efficiency", 0.5)
    read = (size / gpu.hbm_Bps)[rows]
    compute = (4 * cached * n["num_heads"] / (gpu.flops["bf16"] * efficiency))[rows]
    fit = _fitted(("kv_efficiency",), lambda x: read / x[0] + compute, table.seconds[rows])
    if fit is None:
        return _too_few(table.name, table, rows, mine)
    return _part(table.name, table, fit, {"kv_efficiency": float(fit.values[0])}, rows, mine)


def _known(parts: Sequence[Part]) -> dict[str, float]:
    return {name: value for part in parts for name, value in part.constants.items()}


class _Fit(NamedTuple):
    values: Floats
    launch_us: float
    off: float


def _fitted(names: tuple[str, ...], body: Callable[[Floats], Floats], seconds: Floats) -> _Fit | None:
    """Values of some constants with which body + a launch explains the times best: Gauss-Newton on a robust log error
    and what is known before (priors.py)."""
    if len(seconds) < FEWEST:
        return None
    priors = [*(PRIORS[name] for name in names), LAUNCH]
    centre, tight = np.log([one.centre for one in priors]), np.array([one.spread for one in priors]) ** -2.0
    at, truth, share = centre.copy(), np.log(seconds), COUNT / len(seconds) / SIGMA**2

    def off(x: Floats) -> Floats:
        values = np.exp(x)
        found: Floats = np.log(body(values[:-1]) + values[-1] * 1e-6) - truth
        return found

    for _ in range(40):
        now = off(at)
        slope = np.stack([(off(at + 1e-4 * one) - now) / 1e-4 for one in np.eye(len(at))], axis=1)
        weight = share / np.sqrt(1 + (now / SIGMA) ** 2)
        pull = slope.T @ (weight * now) + (at - centre) * tight
        move = np.clip(-np.linalg.solve(slope.T @ (slope * weight[:, None]) + np.diag(tight), pull), -0.5, 0.5)
        at = at + move
        if float(np.abs(move).max()) < 1e-4:
            break
    values = np.exp(at)
    return _Fit(values[:-1], float(values[-1]), float(np.median(np.abs(np.expm1(off(at))))))


def _norm(read: Floats, compute: Floats) -> Floats:
    p = FIXED["sharpness"]
    found: Floats = (read**p + compute**p) ** (1 / p)
    return found


def _part(
    label: str, table: Table, fit: _Fit, constants: dict[str, float], rows: npt.NDArray[np.bool_],
    mine: npt.NDArray[np.bool_],
) -> Part:  # fmt: skip
    return Part(
        table=label, version=table.version, constants={name: float(value) for name, value in constants.items()},
        launch_us=fit.launch_us, rows=int(rows.sum()), of=int(mine.sum()), off=fit.off,
    )  # fmt: skip


def _too_few(label: str, table: Table, rows: npt.NDArray[np.bool_], mine: npt.NDArray[np.bool_]) -> Part:
    return Part(
        table=label, version=table.version, of=int(mine.sum()),
        why=f"{int(rows.sum())} of {int(mine.sum())} rows show it, {FEWEST} are needed",
    )  # fmt: skip
