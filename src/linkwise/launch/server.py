"""What a running server says of itself, as the command that would start it: vLLM and SGLang.

SGLang tells all its arguments (/get_server_info). vLLM tells them in its development mode only (/server_info, with
VLLM_SERVER_DEV_MODE=1); else its metrics say memory share, block size and KV capacity, /v1/models the model and the
longest request, and nothing says the layout: the degrees then have to be given.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from linkwise.core.errors import InputError, Undecidable
from linkwise.core.fetch import Address, Failed, exchange
from linkwise.core.files import parse_json
from linkwise.engine.base import Parsed
from linkwise.engine.registry import get, parse_command
from linkwise.engine.versions import version_key
from linkwise.launch import roles
from linkwise.launch.key import headers
from linkwise.launch.key import read as key_of
from linkwise.launch.types import KEY_VARIABLE
from linkwise.model.types import Model

_MOST_BYTES = 8 * 2**20
_TIMEOUT_S = 10.0
_INFO = re.compile(r"^vllm:cache_config_info\{([^}]{0,4000})\}", re.MULTILINE)
_LABEL = re.compile(r'([a-z_]{1,60})="([^"\\]{0,200})"')

_COUNT = re.compile(r"[0-9]{1,12}")

Get = Callable[[str], bytes | None]


class Told(NamedTuple):
    """The command a server amounts to. whole: it says the layout too. notes: what it says beside.

    kv_tokens: what the KV cache of each of its engines holds; None = not said. version: the server's; "" = not said.
    """

    words: tuple[str, ...]
    whole: bool
    notes: tuple[str, ...]
    kv_tokens: int | None = None
    version: str = ""

    def parse(self, *, version: str | None = None, model: Model | None = None) -> Parsed:
        from msgspec.structs import replace

        found = parse_command(list(self.words), version=version, model=model)
        of_version = _of_version(found.engine, self.version, get(found.engine, version).version)
        notes = (*found.notes, *of_version, *self.notes, *roles.said(roles.pool(self.words), "the server"))
        return replace(found, notes=notes, partial=not self.whole, kv_tokens=self.kv_tokens)


def _of_version(engine: str, served: str, planned: str) -> tuple[str, ...]:
    """What to say where the server is of another version than the facts that are planned with."""
    parts = planned.count(".") + 1
    try:
        same = not served or version_key(served)[:parts] == version_key(planned)[:parts]
    except InputError:  # a build that is no release
        same = False
    return () if same else (
        f"the server is {engine} {served}, the facts are those of {planned}: --engine {engine}@VERSION takes others",
    )  # fmt: skip


def read(url: str, *, degrees: bool, get: Get | None = None) -> Told:
    """degrees: whether the user gives the layout. Raises InputError for what is no such server, Undecidable where the
    layout is not known."""
    fetch = get or _getter(url)
    for known in (_vllm, _sglang):
        found = known(fetch, url)
        if found is not None:
            break
    else:
        raise InputError("no vLLM or SGLang server answers", where=url[:200], expected="/metrics of vLLM, or SGLang's")
    if not found.whole and not degrees:
        raise Undecidable(
            "the server does not say its layout", where=url[:200],
            hint="Give the degrees (--tp 8 ...), or start it with VLLM_SERVER_DEV_MODE=1",
        )  # fmt: skip
    return found


def _getter(url: str) -> Get:
    parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1 or parts.username:
        raise InputError(repr(url[:120]), where="--from-running", expected="http://host:port")
    base = parts.path.rstrip("/")
    secure = parts.scheme == "https"
    address = Address(str(parts.hostname), port or (443 if secure else 80), secure)
    said = headers(key_of(os.environ) if os.environ.get(KEY_VARIABLE) else "")

    def get(path: str) -> bytes | None:
        try:
            status, text = exchange(
                address, "GET", base + path, within_s=_TIMEOUT_S, most_bytes=_MOST_BYTES, headers=said
            )  # fmt: skip
        except Failed as error:
            raise InputError(f"{path}: {error}", where=url[:200], expected="a server that answers") from None
        if status == 401:
            raise InputError(
                f"{path}: the server {'takes another key' if said else 'asks for a key'}", where=url[:200],
                expected=f"its key in {KEY_VARIABLE}",
            )  # fmt: skip
        return text if status == 200 else None

    return get


def _object(text: bytes | None, where: str) -> dict[str, Any]:
    if text is None:
        return {}
    value = parse_json(text, where=where)
    return value if isinstance(value, dict) else {}


def _vllm(get: Get, url: str) -> Told | None:
    metrics = (get("/metrics") or b"").decode(errors="replace")
    infos = [dict(_LABEL.findall(labels)) for labels in _INFO.findall(metrics)]
    if not infos:
        return None
    listed = _object(get("/v1/models"), f"{url}: /v1/models").get("data")
    model = (
        next((m for m in listed if isinstance(m, dict) and not m.get("parent")), {}) if isinstance(listed, list) else {}
    )
    info, notes, tokens = infos[0], [], None
    version = _object(get("/version"), f"{url}: /version").get("version")
    version = _word(version)
    if all(_COUNT.fullmatch(info.get(name, "")) for name in ("num_gpu_blocks", "block_size")):
        tokens = int(info["num_gpu_blocks"]) * int(info["block_size"])
        notes.append(
            f"the server reports room for {tokens} KV tokens in each of {len(infos)} engine{'s' * (len(infos) > 1)}"
        )
    config = _object(get("/server_info?config_format=json"), f"{url}: /server_info").get("vllm_config")
    if isinstance(config, dict):
        return Told(_vllm_words(config), True, tuple(notes), tokens, version)
    words = ["vllm", "serve", _text(model.get("root") or model.get("id"), "model", url)]
    words += _flags({"--max-model-len": model.get("max_model_len")})
    words += _flags(
        {"--gpu-memory-utilization": info.get("gpu_memory_utilization"), "--block-size": info.get("block_size")}
    )
    words += _flags({"--kv-cache-dtype": info.get("cache_dtype")})
    if len(infos) > 1:
        words += ["--data-parallel-size", str(len(infos))]
    return Told(tuple(words), False, tuple(notes), tokens, version)


def _vllm_words(config: Mapping[str, Any]) -> tuple[str, ...]:
    """VllmConfig as flags (vllm/config: ParallelConfig, CacheConfig, SchedulerConfig, ModelConfig)."""

    def part(name: str) -> dict[str, Any]:
        found = config.get(name)
        return found if isinstance(found, dict) else {}

    parallel, cache, schedule, model = (part(f"{name}_config") for name in ("parallel", "cache", "scheduler", "model"))
    passes = part("compilation_config").get("pass_config")
    sharded = isinstance(passes, dict) and bool(passes.get("enable_sp") or passes.get("enable_sequence_parallelism"))
    speculative, lora = part("speculative_config"), part("lora_config")
    words = ["vllm", "serve", _text(model.get("model"), "model", "server_info")]
    words += _flags(
        {
            "--tensor-parallel-size": parallel.get("tensor_parallel_size"),
            "--pipeline-parallel-size": parallel.get("pipeline_parallel_size"),
            "--data-parallel-size": parallel.get("data_parallel_size"),
            "--prefill-context-parallel-size": parallel.get("prefill_context_parallel_size"),
            "--decode-context-parallel-size": parallel.get("decode_context_parallel_size"),
            "--enable-expert-parallel": parallel.get("enable_expert_parallel"),
            "--all2all-backend": parallel.get("all2all_backend") if parallel.get("enable_expert_parallel") else None,
            "--gpu-memory-utilization": cache.get("gpu_memory_utilization"),
            "--block-size": cache.get("block_size"),
            "--kv-cache-dtype": cache.get("cache_dtype"),
            "--max-num-batched-tokens": schedule.get("max_num_batched_tokens"),
            "--max-num-seqs": schedule.get("max_num_seqs"),
            "--max-model-len": model.get("max_model_len"),
            "--enforce-eager": model.get("enforce_eager"),
            "--compilation-config": '{"pass_config": {"enable_sp": true}}' if sharded else None,
            "--enable-lora": bool(lora),
            "--max-loras": lora.get("max_loras"),
            "--max-lora-rank": lora.get("max_lora_rank"),
            "--kv-transfer-config": _transfer(part("kv_transfer_config")),
        }
    )
    if "mtp" in str(speculative.get("method", "")):
        tokens = int(speculative.get("num_speculative_tokens") or 1)
        words += ["--speculative-config", f'{{"method": "mtp", "num_speculative_tokens": {tokens}}}']
    return tuple(words)


def _transfer(config: Mapping[str, Any]) -> str | None:
    """A pool's connector and role, as far as they are words."""
    told = {name: config[name] for name in ("kv_connector", "kv_role") if isinstance(config.get(name), str)}
    return json.dumps(told) if told else None


def _sglang(get: Get, url: str) -> Told | None:
    info = _object(get("/get_server_info") or get("/server_info"), f"{url}: /get_server_info")
    if "tp_size" not in info or "model_path" not in info:
        return None
    words = ["sglang", "serve", "--model-path", _text(info["model_path"], "model_path", url)]
    names = (
        "tp_size", "pp_size", "dp_size", "ep_size", "attn_cp_size", "dcp_size", "enable_dp_attention",
        "moe_a2a_backend", "kv_cache_dtype", "quantization", "mem_fraction_static", "chunked_prefill_size",
        "max_running_requests", "context_length", "page_size", "disable_cuda_graph", "disaggregation_mode",
    )  # fmt: skip
    words += _flags({"--" + name.replace("_", "-"): info.get(name) for name in names})
    tokens = info.get("max_total_num_tokens")  # of each attention replica
    known = tokens if isinstance(tokens, int) else None
    return Told(tuple(words), True, (), known, _word(info.get("version")))


def _flags(values: Mapping[str, Any]) -> list[str]:
    """Flags with plain values; what is null, false or no plain value is left out."""
    words: list[str] = []
    for name, value in values.items():
        if value is True:
            words.append(name)
        elif (
            isinstance(value, int | float | str)
            and value is not False
            and str(value) not in {"", "None", "none", "null"}
        ):
            words += [name, str(value)[:400]]
    return words


def _word(value: Any) -> str:
    return value[:40] if isinstance(value, str) and value.isprintable() else ""


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise InputError(f"{name} is {str(value)[:80]!r}", where=where, expected="a model's name or folder")
    return value[:400]
