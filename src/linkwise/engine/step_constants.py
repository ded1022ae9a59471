"""What a step of an engine takes beyond bytes and FLOPs: the named constants of plan/time.py, and a file of them.

A calibration is fitted to results of serving (simulate/calibrate) and replaces values, never a formula. Without one the
constants are a roofline's: those of the cluster, the same for every engine.
"""

import math
from functools import lru_cache

from linkwise.cluster.types import Cluster, Constants
from linkwise.core.errors import InputError
from linkwise.core.identity import ById
from linkwise.core.schema import Frozen
from linkwise.engine.versions import version_key

STEP_CALIBRATION_SCHEMA = "linkwise.step-calibration/1"
_FAR = 0.4  # an error of a logarithm from which on it is told as a factor
Z80 = 1.2815515655446004  # half-width of an 80 % interval in standard deviations of a normal


class StepConstants(Frozen, frozen=True, kw_only=True):
    """Constants of one step, as floats. Defaults change nothing: every byte and FLOP at the datasheet's rate.

    A part of a stage (weights that are read together) takes (read^p + compute^p)^(1/p), p = `sharpness`: the longer of
    the two for a large p, more than it where they are alike. read = bytes / (HBM x efficiency).

    step_us: scheduler, sampling, input preparation. layer_us: device time of a layer that no byte or FLOP explains;
    moe_, shared_, mla_, linear_, qk_norm_: more of it in layers with experts, shared experts beside them, latent
    attention, a linear mixer, norms of queries and keys; block_fp8_: where weights are FP8 with a scale a block;
    dequant_: in layers with experts of 4-bit weights the device has no units for; dp_: in layers with experts that
    several attention replicas share: waiting for the slowest of them, laying out who gets which token.
    hbm_efficiency, expert_hbm_, dequant_hbm_: of the HBM rate, for weights, experts, and experts of such 4-bit weights.
    bf16_, fp8_, fp4_efficiency: of the datasheet's FLOPs by dtype; times block_fp8_efficiency for block scales, times
    expert_efficiency for experts, and grouped_efficiency where a direct exchange brought their tokens;
    dequant_efficiency: of the 16-bit rate, for weights that are unpacked to it.
    expert_rows: rows an expert that is touched at all is filled up to, beside those it computes. expert_evenness: how
    alike experts are picked: the shape of a gamma distribution of their chances; inf = all alike.
    kv_efficiency: of the HBM rate, for cached state; attention_efficiency: of the activations' FLOPs. kv_sharpness: as
    sharpness, of reading the cache and attending to it (1: one after the other).
    collective_us: more latency of a call; collective_share: times its catalogue time.
    prompt_step_us, prompt_layer_us, prompt_moe_layer_us, ...: more of a step that holds a prompt, which no captured
    graph covers; prompt_token_us: of each prompt token.
    request_us: from the client to the queue; request_each_us, request_token_us: of the one thread that takes requests
    in, each and for each token of its prompt.
    """

    step_us: float = 0.0
    layer_us: float = 0.0
    moe_layer_us: float = 0.0
    shared_layer_us: float = 0.0
    mla_layer_us: float = 0.0
    linear_layer_us: float = 0.0
    qk_norm_layer_us: float = 0.0
    block_fp8_layer_us: float = 0.0
    dequant_layer_us: float = 0.0
    dp_layer_us: float = 0.0
    hbm_efficiency: float = 1.0
    expert_hbm_efficiency: float = 1.0
    dequant_hbm_efficiency: float = 1.0
    bf16_efficiency: float = 1.0
    fp8_efficiency: float = 1.0
    fp4_efficiency: float = 1.0
    block_fp8_efficiency: float = 1.0
    expert_efficiency: float = 1.0
    grouped_efficiency: float = 1.0
    dequant_efficiency: float = 1.0
    expert_rows: float = 0.0
    expert_evenness: float = math.inf
    sharpness: float = math.inf
    kv_efficiency: float = 1.0
    attention_efficiency: float = 1.0
    kv_sharpness: float = math.inf
    collective_us: float = 0.0
    collective_share: float = 1.0
    prompt_step_us: float = 0.0
    prompt_layer_us: float = 0.0
    prompt_moe_layer_us: float = 0.0
    prompt_mla_layer_us: float = 0.0
    prompt_linear_layer_us: float = 0.0
    prompt_token_us: float = 0.0
    request_us: float = 0.0
    request_each_us: float = 0.0
    request_token_us: float = 0.0
    label: str = ""
    sources: dict[str, str] = {}

    def source(self, name: str) -> str:
        """What a constant rests on."""
        return self.sources.get(name, self.label)


NAMES = tuple(name for name in StepConstants.__struct_fields__ if name not in {"label", "sources"})
# What one version of an engine does faster or slower than another as a whole.
OVERHEADS = tuple(n for n in NAMES if n.endswith(("layer_us", "step_us")) and not n.startswith("prompt"))
_LIMITS = {"us": (0.0, 1e7), "efficiency": (1e-3, 4.0), "sharpness": (1.0, math.inf), "share": (0.0, 100.0)}
_LIMITS |= {"rows": (0.0, 1e5), "evenness": (1e-3, math.inf)}


class Constant(Frozen, frozen=True, kw_only=True):
    """One constant. error: standard error of its logarithm (0.1 = 10 %); None where it was set, not fitted.

    source: what it rests on. assumed: whether no row of the engine tells of it: what hangs on it is as open as it is.
    """

    value: float
    unit: str
    source: str
    error: float | None = None
    assumed: bool = False


class Version(Frozen, frozen=True, kw_only=True):
    """What holds of an engine from a version on: its overheads, times so much. capability: on devices of at least this
    compute capability (major*10 + minor), since it was measured on no older one; 0 = on any."""

    since: str
    overheads: float
    capability: int = 0
    source: str = ""
    error: float | None = None


class Range(Frozen, frozen=True, kw_only=True):
    """What the constants were fitted on. Beyond it they are extrapolated.

    models: families (config.json's model_type). gpus: names of cluster/facts. quantisations: as Model.quantization
    begins ("none", "fp8 block", "fp8", "nvfp4", "mxfp4", "int4"). versions: of the engine, lowest and highest; empty
    where rows did not say. Pairs are lowest and highest.
    """

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    quantisations: tuple[str, ...]
    versions: tuple[str, ...]
    isl: tuple[float, float]
    osl: tuple[float, float]
    concurrency: tuple[float, float]
    rows: int


class Spread(Frozen, frozen=True, kw_only=True):
    """The 10th and 90th percentile of log(measured / predicted): an 80 % interval is predicted x exp of them."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -10 <= self.low <= self.high <= 10:
            raise InputError(f"{self.low}..{self.high}", where="spread", expected="-10 <= low <= high <= 10")


class Spreads(Frozen, frozen=True, kw_only=True):
    """Of TPOT and TTFT, inside the range and outside it (from rows of models left out of the fit)."""

    tpot: Spread
    ttft: Spread
    tpot_outside: Spread
    ttft_outside: Spread


class StepCalibration(Frozen, frozen=True, kw_only=True):
    """Constants of an engine's step with their origin. engine: whose. label: printed beside times. made: when."""

    schema: str = STEP_CALIBRATION_SCHEMA
    engine: str
    label: str
    made: str
    source: str
    constants: dict[str, Constant]
    range: Range
    spreads: Spreads
    versions: tuple[Version, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"step calibration {self.label[:60]!r}"
        if self.schema != STEP_CALIBRATION_SCHEMA:
            raise InputError(f"{self.schema[:60]!r}", where=f"{where}: schema", expected=STEP_CALIBRATION_SCHEMA)
        for name, constant in self.constants.items():
            if name not in NAMES:
                raise InputError(f"unknown constant {name[:60]!r}", where=where, expected=", ".join(NAMES))
            low, high = _LIMITS[name.rsplit("_", maxsplit=1)[-1]]
            if not low <= constant.value <= high:  # NaN is refused as well
                raise InputError(f"{constant.value}", where=f"{where}: {name}", expected=f"{low:g}..{high:g}")
            if name == "kv_sharpness" and constant.value not in {1.0, math.inf}:
                raise InputError(f"{constant.value}", where=f"{where}: {name}", expected="1 or .inf")
            if constant.error is not None and not 0 <= constant.error <= 100:
                raise InputError(f"error {constant.error}", where=f"{where}: {name}", expected="0..100")
        for version in self.versions:
            version_key(version.since)
            if not 0.01 <= version.overheads <= 100:
                raise InputError(f"{version.overheads}", where=f"{where}: versions", expected="0.01..100")

    def at(self, version: str, capability: int = 0) -> StepConstants:
        """The constants as floats for a version of the engine on devices of a compute capability; what the file does
        not name changes nothing."""
        values = {name: constant.value for name, constant in self.constants.items()}
        factor = self.factor(version, capability)
        for name in OVERHEADS:
            if name in values:
                values[name] *= factor
        return StepConstants(**values, label=self.label, sources={n: self.words(n) for n in values})

    def words(self, name: str) -> str:
        """Source and standard error of a constant, as a chain prints them."""
        constant = self.constants[name]
        within = ""
        if constant.error is not None:
            far = constant.error > _FAR
            within = (
                f", within {f'a factor of {math.exp(constant.error):.2g}' if far else f'{100 * constant.error:.2g} %'}"
            )
        return f"{self.label}: {constant.source}{within}"

    def factor(self, version: str, capability: int = 0) -> float:
        """What the version's overheads are times of the earliest's."""
        factor, key = 1.0, version_key(version)
        for one in sorted(self.versions, key=lambda v: version_key(v.since)):
            if key >= version_key(one.since) and capability >= one.capability:
                factor = one.overheads
        return factor


def roofline(constants: Constants) -> StepConstants:
    """Without a calibration: the cluster's few figures, the longer of reading and computing."""
    c = constants
    return StepConstants(
        step_us=c.step_overhead_us, layer_us=c.kernel_us_per_layer, hbm_efficiency=c.hbm_efficiency,
        expert_hbm_efficiency=c.hbm_efficiency, dequant_hbm_efficiency=c.hbm_efficiency,
        bf16_efficiency=c.flops_efficiency, fp8_efficiency=c.flops_efficiency, fp4_efficiency=c.flops_efficiency,
        dequant_efficiency=c.flops_efficiency, kv_efficiency=c.hbm_efficiency, attention_efficiency=c.flops_efficiency,
        label=c.label,
    )  # fmt: skip


def step_constants(calibration: StepCalibration | None, version: str, cluster: Cluster) -> StepConstants:
    """The constants a step takes on a cluster: the calibration's, else the cluster's roofline."""
    if calibration is None:
        return _roofline(ById(cluster.constants))
    return _at(ById(calibration), version, cluster.accelerator.capability)


@lru_cache(maxsize=64)
def _roofline(key: ById[Constants]) -> StepConstants:
    return roofline(key.value)


@lru_cache(maxsize=64)
def _at(key: ById[StepCalibration], version: str, capability: int) -> StepConstants:
    return key.value.at(version, capability)
