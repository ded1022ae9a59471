"""What a command line asks for, as the spec of a unit: a plan or a layout, a folder of weights, sizes that fit here."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object
from linkwise.core.layout import Layout
from linkwise.core.units import show_bytes
from linkwise.dist.groups import MAX_TIMEOUT_S, check_backend, check_timeout
from linkwise.dist.launch import MAX_LOCAL
from linkwise.engine import registry
from linkwise.engine.base import Engine, Options
from linkwise.model.held import held
from linkwise.model.read import from_config, load
from linkwise.model.types import Model
from linkwise.plan.types import Plan
from linkwise.runtime import differs
from linkwise.runtime.arch import check_family, read_arch
from linkwise.runtime.check import planned_memory
from linkwise.runtime.control import UnitSpec
from linkwise.runtime.folder import check_layers, check_used
from linkwise.runtime.pools import check_pools
from linkwise.runtime.room import free_bytes
from linkwise.runtime.same import check_same
from linkwise.runtime.scheduler import Limits
from linkwise.runtime.weights.places import places, stored_dtype

KV_TOKENS = 16_384  # where neither a plan nor the user says
KV_SHARE = 0.25  # of the host's free memory, for the KV of all ranks on it
DTYPES = ("float32", "bfloat16", "float16")


class Asked(NamedTuple):
    """A spec, the planner's view of the same model (in the dtype it runs in), and what should be said about it.

    plan: where there is one. options: those of it that the run is checked against.
    """

    spec: UnitSpec
    model: Model
    engine: Engine
    notes: tuple[str, ...]
    plan: Plan | None = None
    options: Options = Options()


def settle(
    weights: str | Path,
    *,
    plan: Plan | None = None,
    layout: Layout | None = None,
    prefill: Layout | None = None,
    dtype: str = "",
    kv_tokens: int | None = None,
    timeout_s: float = 30.0,
    start_s: float = 300.0,
    layers: Sequence[int] = (),
    microbatches: int | None = None,
    backend: str = "",
    units: int = 1,
    here: int = 0,
    **more: Any,
) -> Asked:
    """The unit that a plan, or a layout, describes on the weights of a folder. more: other fields of UnitSpec.

    layers: of each pipeline stage; empty = the plan's, or as even as can be. microbatches: steps under way at once;
    None = the plan's, or one a stage. units: how many of it this machine runs. here: ranks of it that this machine
    runs, 0 = all.

    Raises InputError for a plan for another model, a layout the model or the runtime does not take, too many ranks.
    """
    check_timeout(timeout_s)
    if not 0 < start_s <= MAX_TIMEOUT_S:
        raise InputError(f"{start_s:g} s", where="--start-timeout", expected=f"up to {MAX_TIMEOUT_S / 3600:g} h")
    check_backend(backend)
    folder = Path(weights)
    where = str(folder / "config.json")
    fields = read_json_object(folder / "config.json")
    if dtype and dtype not in DTYPES:
        raise InputError(f"{dtype[:40]!r}", where="--dtype", expected=", ".join(DTYPES))
    check_family(fields, where)
    if plan is not None:
        dtype = dtype or plan.options.dtype or ""
    stored = from_config(fields, None, name=folder.name, source=str(folder))
    _, tensors = places(folder)  # a damaged or missing file is found here, not by a rank
    dtype = dtype or stored_dtype(fields, tensors, folder)
    arch = read_arch(fields, where=where, dtype=dtype)
    model = held(stored, dtype)
    notes: list[str] = []
    engine = registry.get("linkwise")
    if plan is not None:
        model = _planned_model(plan.model, model, folder, where)
        notes += differs.words(plan, model, engine)
        if plan.replicas > 1:
            notes.append(f"one of the plan's {plan.replicas} replicas is run")
    chosen = layout or (plan.layout if plan is not None else Layout())
    for one in (chosen, *((prefill,) if prefill else ())):
        refusal = engine.refuses(model, one, devices_per_node=max(8, one.size))
        if refusal is not None:
            raise InputError(f"{one}: {refusal.reason}", where="layout", expected="a layout this runtime runs")
    options = plan.options if plan is not None else None
    taken: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("max_batched_tokens", "max_seqs", "block_tokens")
        if options is not None and getattr(options, name) is not None
    }
    if options is not None and options.max_model_len:
        taken["max_len"] = min(options.max_model_len, arch.max_len)
    counts, said = _stages(tuple(layers), plan, chosen, prefill, model, engine)
    notes += said
    spec = UnitSpec(
        weights=str(folder), layout=chosen, prefill=prefill, dtype=dtype, timeout_s=timeout_s, start_s=start_s,
        backend=backend, layers=counts,
        in_flight=microbatches or (options.microbatches if options is not None else None) or 0,
        **(taken | more),
    )  # fmt: skip
    check_pools(spec)
    if spec.ranks > MAX_LOCAL:
        raise InputError(f"{spec.ranks} ranks", where="layout", expected=f"at most {MAX_LOCAL} on this machine")
    check_layers(tensors, fields, arch.layers)
    unused = check_used(tensors, arch)
    notes += [unused] if unused else []
    wanted = kv_tokens or (plan.ledger.kv_tokens if plan is not None else None) or KV_TOKENS
    tokens = _fitting(spec, wanted, kv_tokens is not None, model, engine, notes.append, units, here)
    return Asked(replace(spec, kv_tokens=tokens), model, engine, tuple(notes), plan, differs.kept(plan))


def parse_layers(text: str) -> tuple[int, ...]:
    """Layers of each stage from "6,2". Raises InputError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 7 for part in parts):
        raise InputError(repr(text[:80]), where="--layers", expected="a number for each pipeline stage, such as 6,2")
    return tuple(int(part) for part in parts)


def _stages(
    given: tuple[int, ...], plan: Plan | None, layout: Layout, prefill: Layout | None, model: Model, engine: Engine
) -> tuple[tuple[int, ...], list[str]]:
    """Layers of each stage, empty = as this runtime cuts them, and what is to be said of them."""
    depth = len(model.layers)
    if given and (len(given) != layout.pp or sum(given) != depth or min(given) < 1):
        raise InputError(
            f"stages of {', '.join(map(str, given[:64]))} layers",
            where="--layers",
            expected=f"{layout.pp} stage{'s' * (layout.pp > 1)} (pp) of at least one layer, {depth} in all",
        )
    if plan is None or layout != plan.layout:
        return given, []
    planned = registry.get(plan.engine).stage_layers(depth, layout.pp)
    if given:
        shown = ", ".join(map(str, planned))
        word = f"stages have {', '.join(map(str, given))} layers, not the plan's {shown}: checked as they run"
        return given, [word] if given != planned else []
    # Where KV is handed over, stages are cut evenly (pools.check_pools).
    return (planned if prefill is None and planned != engine.stage_layers(depth, layout.pp) else ()), []


def kv_blocks(spec: UnitSpec, layout: Layout) -> int:
    """Blocks of each rank's KV cache, the scratch block included."""
    limits = Limits(
        layout, kv_tokens=spec.kv_tokens, block_tokens=spec.block_tokens, max_batched_tokens=spec.max_batched_tokens,
        max_seqs=spec.max_seqs, max_len=1 << 31,
    )  # fmt: skip
    return limits.kv_blocks


def _planned_model(planned: Model, model: Model, folder: Path, where: str) -> Model:
    """The plan's own model in the dtype that runs, which its ops are checked with. Refused: another one's."""
    # Bytes from headers are compared with bytes from headers, those from shapes with those from shapes.
    stored = held(load(str(folder)), model.dtype) if planned.exact_bytes else model
    planned = held(planned, model.dtype)
    check_same(planned, stored, where)
    return planned


class _Need(NamedTuple):
    """Bytes on this machine: of weights, and of one block of KV on each rank, which holds `span` tokens."""

    weights: int
    block: int
    span: int


def _need(spec: UnitSpec, model: Model, engine: Engine, units: int, here: int) -> _Need:
    weights = block = 0
    for layout in (spec.layout, *((spec.prefill,) if spec.prefill else ())):
        for rank in range(layout.size):
            held, kept = planned_memory(model, layout, engine, rank, 1, spec.block_tokens, layers=spec.layers)
            weights, block = weights + held, block + kept
    span = spec.block_tokens * spec.layout.cp * spec.layout.dcp * spec.layout.dp_attn
    share = here or spec.ranks
    return _Need(weights * units * share // spec.ranks, block * units * share // spec.ranks, span)


def _fitting(
    spec: UnitSpec, wanted: int, given: bool, model: Model, engine: Engine, note: Callable[[str], None],
    units: int, here: int,
) -> int:  # fmt: skip
    """As many tokens as wanted, or as fit in a share of this host's free memory. The plan has counted a GPU's.

    Raises InputError for a given number, or weights, that this machine has no room for: before any rank is started.
    """
    if spec.backend == "nccl" or (not spec.backend and os.path.exists("/dev/nvidia0")):
        return wanted
    free, need = free_bytes(), _need(spec, model, engine, units, here)
    fits = wanted
    if not given:
        fits = min(wanted, max(1, int(free * KV_SHARE) // max(1, need.block)) * need.span)
        if fits < wanted:
            note(f"KV for {fits:,} tokens, not {wanted:,}: a quarter of this machine's free memory")
    kv = _kv_bytes(replace(spec, kv_tokens=fits), model, engine) * units * (here or spec.ranks) // spec.ranks
    if need.weights + kv > free:
        raise InputError(
            f"{fits:,} tokens of KV need {show_bytes(kv)} and weights {show_bytes(need.weights)} over the ranks here",
            where="--kv-tokens" if given else "memory",
            expected=f"at most {show_bytes(free)}, which this machine has free",
        )
    return fits


def _kv_bytes(spec: UnitSpec, model: Model, engine: Engine) -> int:
    """Bytes of all ranks' KV caches in one unit."""
    return sum(
        planned_memory(
            model, layout, engine, rank, kv_blocks(spec, layout), spec.block_tokens, layers=spec.layers
        )[1]
        for layout in (spec.layout, *((spec.prefill,) if spec.prefill else ()))
        for rank in range(layout.size)
    )  # fmt: skip
