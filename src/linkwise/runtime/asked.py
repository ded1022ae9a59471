"""What a command line asks for, as the spec of a unit: a plan or a layout, a folder of weights, sizes that fit here."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object
from linkwise.core.layout import Layout
from linkwise.dist.groups import check_backend, check_timeout
from linkwise.dist.launch import MAX_LOCAL
from linkwise.engine import registry
from linkwise.engine.base import Engine
from linkwise.model.read import from_config
from linkwise.model.types import Model
from linkwise.plan.types import Plan
from linkwise.runtime.arch import read_arch
from linkwise.runtime.check import planned_memory, run_as
from linkwise.runtime.control import UnitSpec
from linkwise.runtime.pools import check_pools
from linkwise.runtime.scheduler import Limits

KV_TOKENS = 16_384  # where neither a plan nor the user says
KV_SHARE = 0.25  # of the host's free memory, for the KV of all ranks on it
DTYPES = ("float32", "bfloat16", "float16")
_DEGREES = ("pp", "cp", "dp_attn", "tp", "dcp", "ep")


class Asked(NamedTuple):
    """A spec, the planner's view of the same model (in the dtype it runs in), and what should be said about it."""

    spec: UnitSpec
    model: Model
    engine: Engine
    notes: tuple[str, ...]


def layout_of(text: str, where: str = "--layout") -> Layout:
    """A layout from `tp=2,pp=2`; `sequence_sharded` alone is a word of it."""
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name in given:
            raise InputError(f"{name} twice in {text[:80]!r}", where=where, expected="each degree once")
        if name == "sequence_sharded" and not equals:
            given[name] = True
        elif name in _DEGREES and value.isascii() and value.isdigit() and len(value) <= 6:
            given[name] = int(value)
        else:
            raise InputError(
                f"{part.strip()[:40]!r}",
                where=where,
                expected=f"tp=2,pp=2: of {', '.join(_DEGREES)}, and sequence_sharded",
            )
    try:
        return Layout(**given)
    except InputError as error:
        raise InputError(error.message, where=where, expected=error.expected) from None


def settle(
    weights: str | Path,
    *,
    plan: Plan | None = None,
    layout: Layout | None = None,
    prefill: Layout | None = None,
    dtype: str = "",
    kv_tokens: int | None = None,
    timeout_s: float = 30.0,
    backend: str = "",
    **more: Any,
) -> Asked:
    """The unit that a plan, or a layout, describes on the weights of a folder. more: other fields of UnitSpec.

    Raises InputError for a plan for another model, a layout the model or the runtime does not take, too many ranks.
    """
    check_timeout(timeout_s)
    check_backend(backend)
    folder = Path(weights)
    where = str(folder / "config.json")
    fields = read_json_object(folder / "config.json")
    if dtype and dtype not in DTYPES:
        raise InputError(f"{dtype[:40]!r}", where="--dtype", expected=", ".join(DTYPES))
    stored = from_config(fields, None, name=folder.name, source=str(folder))
    arch = read_arch(fields, where=where, dtype=dtype or stored.dtype)
    model = run_as(stored, dtype or stored.dtype)
    notes: list[str] = []
    if plan is not None:
        _same_model(plan.model, model, where)
        if plan.convention != "linkwise":
            notes.append(f"the plan is for {plan.engine}: its layout is run, as this runtime runs it")
        if plan.replicas > 1:
            notes.append(f"one of the plan's {plan.replicas} replicas is run")
    chosen = layout or (plan.layout if plan is not None else Layout())
    engine = registry.get("linkwise")
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
    spec = UnitSpec(
        weights=str(folder), layout=chosen, prefill=prefill, dtype=dtype, timeout_s=timeout_s, backend=backend,
        **(taken | more),
    )  # fmt: skip
    check_pools(spec)
    if spec.ranks > MAX_LOCAL:
        raise InputError(f"{spec.ranks} ranks", where="layout", expected=f"at most {MAX_LOCAL} on this machine")
    wanted = kv_tokens or (plan.ledger.kv_tokens if plan is not None else None) or KV_TOKENS
    tokens = wanted if kv_tokens else _fitting(spec, wanted, model, engine, notes.append)
    return Asked(replace(spec, kv_tokens=tokens), model, engine, tuple(notes))


def kv_blocks(spec: UnitSpec, layout: Layout) -> int:
    """Blocks of each rank's KV cache, the scratch block included."""
    limits = Limits(
        layout, kv_tokens=spec.kv_tokens, block_tokens=spec.block_tokens, max_batched_tokens=spec.max_batched_tokens,
        max_seqs=spec.max_seqs, max_len=1 << 31,
    )  # fmt: skip
    return limits.kv_blocks


def _same_model(planned: Model, model: Model, where: str) -> None:
    """Refuse a plan whose model has other sizes than the weights'."""
    for name in ("family", "hidden", "vocab", "heads", "kv_heads", "head_dim", "mla_latent", "moe"):
        one, other = getattr(planned, name), getattr(model, name)
        if one != other:
            raise InputError(
                f"the plan is for another model: {planned.name} with {name} {one}",
                where=where,
                expected=f"{name} {other}, as the weights have it",
            )
    if len(planned.layers) != len(model.layers):
        raise InputError(
            f"the plan is for another model: {planned.name} with {len(planned.layers)} layers",
            where=where,
            expected=f"{len(model.layers)} layers, as the weights have them",
        )


def _fitting(spec: UnitSpec, wanted: int, model: Model, engine: Engine, note: Callable[[str], None]) -> int:
    """As many tokens as wanted, or as fit in a share of this host's free memory. The plan has counted a GPU's."""
    if spec.backend == "nccl" or (not spec.backend and os.path.exists("/dev/nvidia0")):
        return wanted
    share = int(_free_bytes() * KV_SHARE)
    span = spec.block_tokens * spec.layout.cp * spec.layout.dcp * spec.layout.dp_attn
    block = sum(
        planned_memory(model, layout, engine, rank, 1, spec.block_tokens, layers=spec.layers)[1]
        for layout in (spec.layout, *((spec.prefill,) if spec.prefill else ()))
        for rank in range(layout.size)
    )
    fits = max(1, share // max(1, block)) * span
    if fits < wanted:
        note(f"KV for {fits:,} tokens, not {wanted:,}: a quarter of this machine's free memory")
    return min(fits, wanted)


def _free_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 * 2**30
