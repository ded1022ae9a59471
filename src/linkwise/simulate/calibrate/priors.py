"""What is known of the constants before any result: where they lie, how widely, and how much engines differ in them.

All are positive and taken as logarithms: a spread of 0.3 is a factor of 1.35 either way. Overheads of a layer are a
kernel's time (4.5 us replayed from a graph, 25 us launched by the host) times the kernels a layer of that kind adds;
efficiencies lie where published kernels do. `own` is small: what one engine's rows say is taken to hold for the others
unless many rows say otherwise, since constants pooled like that predict models that no row is of better
(docs/calibrate.md).
"""

from typing import NamedTuple

_REPLAYED, _LAUNCHED = 4.5, 25.0  # us of one kernel


class Prior(NamedTuple):
    """centre: in the constant's unit. spread, own: standard deviations of its logarithm, of all engines' common value
    and of one engine's from it."""

    centre: float
    spread: float
    own: float


PRIORS: dict[str, Prior] = {
    "step_us": Prior(800, 1.0, 0.18),
    "layer_us": Prior(11 * _REPLAYED, 0.3, 0.06),
    "moe_layer_us": Prior(5 * _REPLAYED, 0.5, 0.06),
    "shared_layer_us": Prior(3 * _REPLAYED, 0.5, 0.06),
    "mla_layer_us": Prior(7 * _REPLAYED, 0.5, 0.06),
    "linear_layer_us": Prior(9 * _REPLAYED, 0.5, 0.06),
    "qk_norm_layer_us": Prior(2 * _REPLAYED, 0.5, 0.06),
    "block_fp8_layer_us": Prior(10 * _REPLAYED, 0.5, 0.06),
    "dequant_layer_us": Prior(5 * _REPLAYED, 0.5, 0.06),
    "dp_layer_us": Prior(10 * _REPLAYED, 1.0, 0.3),
    "hbm_efficiency": Prior(0.9, 0.15, 0.018),
    "expert_hbm_efficiency": Prior(0.8, 0.15, 0.018),
    "dequant_hbm_efficiency": Prior(0.7, 0.2, 0.018),
    "bf16_efficiency": Prior(0.7, 0.3, 0.03),
    "fp8_efficiency": Prior(0.65, 0.3, 0.03),
    "fp4_efficiency": Prior(0.6, 0.3, 0.03),
    "block_fp8_efficiency": Prior(0.6, 0.5, 0.03),
    "expert_efficiency": Prior(0.6, 0.3, 0.018),
    "grouped_efficiency": Prior(1.0, 0.1, 0.6),
    "dequant_efficiency": Prior(0.4, 0.5, 0.03),
    "expert_rows": Prior(32, 0.5, 0.018),
    "expert_evenness": Prior(1.5, 1.0, 0.018),
    "kv_efficiency": Prior(0.7, 0.3, 0.03),
    "attention_efficiency": Prior(0.4, 0.5, 0.03),
    "collective_us": Prior(2, 1.0, 0.06),
    "collective_share": Prior(1.0, 0.5, 0.06),
    "prompt_step_us": Prior(1000, 0.7, 0.09),
    "prompt_layer_us": Prior(11 * _LAUNCHED, 0.5, 0.09),
    "prompt_moe_layer_us": Prior(5 * _LAUNCHED, 0.5, 0.09),
    "prompt_mla_layer_us": Prior(7 * _LAUNCHED, 0.7, 0.09),
    "prompt_linear_layer_us": Prior(9 * _LAUNCHED, 0.7, 0.09),
    "prompt_token_us": Prior(0.3, 1.5, 0.06),
    "request_us": Prior(10_000, 1.0, 0.5),
    "request_each_us": Prior(500, 0.4, 0.1),
    "request_token_us": Prior(2, 0.5, 0.1),
}
NAMES = tuple(PRIORS)
# How far constants of engines really lie apart, as logarithms, by kind: what is left between engines of the differences
# that rows of two or more of them tell, beyond the rows' own errors (benchmarks/serving_apart.py, 2026-11-30).
_APART = {"layer_us": 0.66, "efficiency": 0.47}
_APART_ELSE = 0.54
# Not fitted: the norm in which reading and computing of a part add up, and that a cache is read, then attended to.
FIXED = {"sharpness": 2.5, "kv_sharpness": 1.0}
VERSION_SPREAD = 0.3  # of the logarithm of what newer versions' overheads are times of older ones'
UNITS = {"us": "us", "efficiency": "share", "share": "factor", "rows": "rows", "evenness": "", "sharpness": ""}
TPOT_SIGMA, TTFT_SIGMA = 0.06, 0.15  # of log(measured / predicted) where the robust loss turns from square to linear


def apart(name: str) -> float:
    """Standard deviation of the logarithm of a constant between engines."""
    return next((apart for kind, apart in _APART.items() if name.endswith(kind)), _APART_ELSE)


def unit_of(name: str) -> str:
    return UNITS[name.rsplit("_", maxsplit=1)[-1]]
