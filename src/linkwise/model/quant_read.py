"""From a `quantization_config` or `hf_quant_config.json` to a `Quantization`."""

from dataclasses import replace
from typing import Any

from linkwise.core.errors import InputError
from linkwise.model import quant
from linkwise.model.matching import compile_names, generic
from linkwise.model.quant import Quantization, Scheme, bounded, refuse

_UNSUPPORTED = {
    "bitsandbytes": "bitsandbytes stores its 4- and 8-bit states in forms that depend on the loading library",
}


def parse(config: Any, hf_quant: Any, *, where: str, dtype: str, fp8_scale_dtype: str = "float32") -> Quantization:
    """The quantisation of a checkpoint.

    config: `quantization_config` of config.json or None. hf_quant: the content of hf_quant_config.json or None, which
    wins where both describe the weights, unless config.json says `quant_method: fp8` (then ModelOpt's lists only name
    exceptions to an FP8 checkpoint, as in NVIDIA's DeepSeek-V4). dtype: the model's, for scales stored in it.
    """
    own = _object(config, f"{where}: quantization_config")
    extra = _object(hf_quant, f"{where}: hf_quant_config")
    inner = _object(extra.get("quantization"), f"{where}: hf_quant_config: quantization")
    method = own.get("quant_method")
    if method is not None and not isinstance(method, str):
        raise InputError(f"quant_method is {method!r}"[:200], where=f"{where}: quantization_config")
    if own and method not in (None, "modelopt", "modelopt_fp4"):
        result = _by_method(str(method), own, where, dtype, fp8_scale_dtype)
    elif inner:
        result = _modelopt(inner, f"{where}: hf_quant_config")
    elif own:
        result = _modelopt(own, f"{where}: quantization_config")
    else:
        return Quantization()
    kv = _kv_dtype(own, where) or _kv_dtype(inner, where)
    return replace(result, kv_dtype=kv or "auto")


def _object(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"is a {type(value).__name__}", where=where, expected="an object")
    return value


def _kv_dtype(config: dict[str, Any], where: str) -> str | None:
    """`kv_cache_quant_algo: FP8`, `kv_cache_scheme: FP8` or `{num_bits: 8, type: float}`."""
    algo, scheme = config.get("kv_cache_quant_algo"), config.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        algo = "FP8" if (scheme.get("num_bits"), scheme.get("type")) == (8, "float") else repr(scheme)[:80]
    value = algo or scheme
    if value is None:
        return None
    known = {"FP8": "float8_e4m3", "INT8": "int8", "NVFP4": "float4_e2m1"}
    if not isinstance(value, str) or value not in known:
        raise refuse(f"KV cache quantisation {value!r}"[:200], where, hint="known for KV: " + ", ".join(known))
    return known[value]


def _by_method(method: str, own: dict[str, Any], where: str, dtype: str, fp8_scale_dtype: str) -> Quantization:
    where = f"{where}: quantization_config"
    if method in _UNSUPPORTED:
        raise refuse(f"quant_method {method!r} cannot be counted: {_UNSUPPORTED[method]}", where)
    if method == "fp8":
        return _fp8(own, where, fp8_scale_dtype)
    if method == "mxfp4":
        skip = compile_names(own.get("modules_to_not_convert"), where=where, suffix=True)
        return Quantization("mxfp4 experts", quant.MXFP4, skip=skip, experts_only=True)
    if method == "compressed-tensors":
        return _compressed(own, where, dtype)
    if method in ("awq", "gptq"):
        return _words(method, own, where)
    if method == "fbgemm_fp8":
        scheme = Scheme(name="fp8 per row", dtype="float8_e4m3", block=(1, 0))
        skip = compile_names(own.get("modules_to_not_convert"), where=where, suffix=True)
        return Quantization(scheme.name, scheme, skip=skip)
    raise refuse(f"quant_method {method!r} is not known", where)


def _fp8(own: dict[str, Any], where: str, scale_dtype: str) -> Quantization:
    block = own.get("weight_block_size")
    if block is None:
        static = own.get("activation_scheme") == "static"
        base = quant.FP8_TENSOR if static else quant.FP8_TENSOR_DYNAMIC
    elif isinstance(block, list) and len(block) == 2:
        rows, columns = (bounded(side, "weight_block_size", where) for side in block)
        base = quant.fp8_block(rows, columns, scale_dtype)
    else:
        raise InputError(f"weight_block_size is {block!r}"[:200], where=where, expected="[rows, columns]")
    if own.get("quant_algo") == "MIXED_PRECISION":
        # ModelOpt re-stored some modules of an FP8 checkpoint; its ignore list names what it left in FP8.
        return Quantization(f"mixed: {base.name} + named", base, named=_named(own.get("quantized_layers"), where))
    skip = compile_names(own.get("modules_to_not_convert") or own.get("ignored_layers"), where=where, suffix=True)
    return Quantization(base.name, base, skip=skip)


def _modelopt(config: dict[str, Any], where: str) -> Quantization:
    algo = config.get("quant_algo")
    excluded = config.get("exclude_modules") if "exclude_modules" in config else config.get("ignore")
    skip = compile_names(excluded, where=f"{where}: exclude_modules")
    if algo == "MIXED_PRECISION":
        named = _named(config.get("quantized_layers"), where)
        return Quantization("mixed: " + " + ".join(sorted({s.name for s in named.values()})), named=named, skip=skip)
    base = _algorithm(algo, config, where)
    notes: tuple[str, ...] = ()
    if excluded is None:
        notes = (
            "the quantisation config lists no excluded modules: every linear weight but head and routers is taken to "
            f"be stored as {base.name}",
        )
    return Quantization(base.name, base, skip=skip, notes=notes)


def _algorithm(algo: Any, config: dict[str, Any], where: str) -> Scheme:
    """ModelOpt's quant_algo by name, with its group size (16 for NVFP4, 32 for MX formats)."""
    plain = {"FP8": quant.FP8_TENSOR, "MXFP4": quant.MXFP4, "MXFP8": quant.MXFP8}
    if isinstance(algo, str) and algo in plain:
        return plain[algo]
    if algo == "FP8_PB_WO":
        return quant.fp8_block(128, 128)
    if algo in ("NVFP4", "W4A16_NVFP4"):
        group = config.get("group_size")
        if group is None:
            groups = _object(config.get("config_groups"), where)
            weights = [_object(_object(g, where).get("weights"), where) for g in groups.values()]
            group = next((w["group_size"] for w in weights if w.get("group_size")), 16)
        return quant.nvfp4(bounded(group, "group_size", where), inputs=algo == "NVFP4")
    raise refuse(f"quant_algo {algo!r} is not known"[:200], where)


def _named(layers: Any, where: str) -> dict[str, Scheme]:
    """MIXED_PRECISION's quantized_layers: scheme by module, experts of a layer as one."""
    where = f"{where}: quantized_layers"
    result: dict[str, Scheme] = {}
    cache: dict[tuple[Any, Any], Scheme] = {}
    for name, entry in _object(layers, where).items():
        if not isinstance(entry, dict):
            raise InputError(f"entry {name!r} is no object"[:200], where=where)
        key = (entry.get("quant_algo"), entry.get("group_size"))
        try:
            scheme = cache.get(key)
        except TypeError:
            raise InputError(f"entry {name!r} is not understood"[:200], where=where) from None
        if scheme is None:
            scheme = cache[key] = _algorithm(entry.get("quant_algo"), entry, where)
        place = generic(name)
        if result.setdefault(place, scheme) is not scheme:
            raise refuse(f"experts of {place!r} are stored in different formats", where)
    if not result:
        raise InputError("is empty or absent", where=where, expected="an object of modules for MIXED_PRECISION")
    return result


def _compressed(own: dict[str, Any], where: str, dtype: str) -> Quantization:
    groups = _object(own.get("config_groups"), where)
    skip = compile_names(own.get("ignore"), where=f"{where}: ignore", regex=True)
    schemes: list[tuple[Scheme, list[str]]] = []
    for key, value in groups.items():
        group = _object(value, f"{where}: {key}")
        targets = group.get("targets")
        if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
            raise InputError(f"targets is {targets!r}"[:200], where=f"{where}: {key}", expected="a list of names")
        schemes.append((_group(group, str(own.get("format")), f"{where}: {key}", dtype), targets))
    whole = [s for s, targets in schemes if "Linear" in targets]
    if len(schemes) != 1 or len(whole) != 1:
        raise refuse("compressed-tensors with other targets than one group of 'Linear'", where)
    return Quantization(whole[0].name, whole[0], skip=skip)


def _group(group: dict[str, Any], form: str, where: str, dtype: str) -> Scheme:
    """One config group: packed integers, MXFP4, NVFP4, or 8-bit floats and integers."""
    weights = _object(group.get("weights"), where)
    form = str(group.get("format") or form)
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    inputs = _object(group.get("input_activations"), where)
    static_input = bool(inputs) and inputs.get("dynamic") is False
    if form == "mxfp4-pack-quantized":
        return quant.MXFP4
    if form == "nvfp4-pack-quantized":
        return quant.nvfp4(inputs=bool(inputs))
    if form == "pack-quantized" and kind == "int" and type(bits) is int and bits in quant.PACKED:
        zero = 0 if weights.get("symmetric", True) else bits
        # One int32 pair holds the unpacked shape.
        if strategy == "group":
            size = bounded(weights.get("group_size"), "group_size", where)
            name = f"int{bits} group {size}"
            return quant.packed(size, name=name, scale_dtype=dtype, bits=bits, zero_bits=zero, tensor_bytes=8)
        if strategy == "channel":
            name = f"int{bits} per channel"
            return quant.packed(0, name=name, scale_dtype=dtype, bits=bits, zero_bits=zero, tensor_bytes=8)
    if bits == 8 and kind in ("float", "int") and form in ("float-quantized", "int-quantized", "naive-quantized"):
        element = "float8_e4m3" if kind == "float" else "int8"
        name = f"{'fp8' if kind == 'float' else 'int8'} per {strategy}"
        scalars = 1 if static_input else 0
        if strategy == "tensor":
            return Scheme(name=name, dtype=element, block=(0, 0), scalars=scalars + 1)
        if strategy == "channel":
            return Scheme(name=name, dtype=element, block=(1, 0), scale_dtype=dtype, scalars=scalars)
        if strategy == "block":
            structure = weights.get("block_structure")
            if isinstance(structure, list) and len(structure) == 2:
                high, wide = (bounded(side, "block_structure", where) for side in structure)
                return Scheme(name=name, dtype=element, block=(high, wide), scale_dtype=dtype, scalars=scalars)
    raise refuse(f"compressed-tensors format {form!r} with {bits} bits {kind!r} per {strategy!r}"[:200], where)


def _words(method: str, own: dict[str, Any], where: str) -> Quantization:
    """AWQ (4 bits) and GPTQ (4 or 8): packed words, float16 scales and packed zero points per group; GPTQ adds an input
    index, and may leave modules out by regular expression."""
    bits = own.get("bits", own.get("w_bit"))
    if type(bits) is not int or bits not in (quant.PACKED if method == "gptq" else (4,)):
        raise refuse(f"{method} with {bits!r} bits"[:200], where)
    size = own.get("group_size", own.get("q_group_size", 128))
    # group_size -1: one group per output channel.
    group = 0 if size == -1 else bounded(size, "group_size", where)
    scheme = quant.packed(
        group,
        name=f"{method} int{bits} group {size}",
        scale_dtype="float16",
        bits=bits,
        zero_bits=bits,
        index_bytes=4 if method == "gptq" else 0,
    )
    names = own.get("modules_to_not_convert")
    skip = compile_names(_left_out(own.get("dynamic"), names, where), where=where, suffix=True, regex=True)
    return Quantization(scheme.name, scheme, skip=skip, head=own.get("lm_head") is True)


def _left_out(dynamic: Any, names: Any, where: str) -> Any:
    """Modules that stay: the list, and those GPTQModel's `dynamic` excludes ("-:" and a regular expression). Other
    entries there store modules in formats of their own, which are not counted."""
    rules = _object(dynamic, f"{where}: dynamic")
    others = [rule for rule in rules if not rule.startswith("-:")]
    if others:
        raise refuse(f"dynamic stores {others[0]!r} otherwise"[:200], where)
    return [*(names if isinstance(names, list) else []), *(f"re:{rule[2:]}" for rule in rules)] if rules else names
