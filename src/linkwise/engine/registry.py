"""Engines by name and version, and the engine behind a pasted launch command."""

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec.structs import replace

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.engine import facts_io, flags
from linkwise.engine.base import Engine, Parsed
from linkwise.engine.fact_engine import FactEngine
from linkwise.engine.own import Linkwise
from linkwise.engine.sglang import Sglang
from linkwise.engine.textbook import Textbook
from linkwise.engine.trtllm import Trtllm
from linkwise.engine.vllm import Vllm
from linkwise.model.types import Model

_CLASSES: dict[str, type[FactEngine]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "trtllm": Trtllm,
    "linkwise": Linkwise,
    "textbook": Textbook,
}
_ALIASES = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "trt-llm": "trtllm", "trtllm-serve": "trtllm"}
# How each engine is started: the program's file name, or the module after -m.
_PROGRAMS = {"vllm": "vllm", "sglang": "sglang", "trtllm-serve": "trtllm", "linkwise": "linkwise"}
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
    "tensorrt_llm.commands.serve": "trtllm",
}
_IMAGES = {"vllm-openai": "vllm"}
_PYTHON = re.compile(r"python(\d[\d.]*)?")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class Known(Frozen, frozen=True, kw_only=True):
    """One line of `linkwise engines`. convention_supported: compared with the real engine or a published table.

    older: versions whose facts differ, each read as "before this version".
    """

    name: str
    version: str
    about: str
    convention_supported: bool
    older: tuple[str, ...]
    launches: bool
    sources: tuple[str, ...]
    unverified: tuple[str, ...]


def get(name: str, version: str | None = None) -> Engine:
    """An engine by name ("vllm") or name and version ("vllm==0.11" or the argument). Raises InputError if unknown."""
    plain, _, pinned = name.strip().lower().partition("==")
    return _engine(_ALIASES.get(plain, plain), version or pinned or None)


@lru_cache(maxsize=64)
def _engine(name: str, version: str | None) -> Engine:
    facts = facts_io.facts(name, version)
    return _CLASSES[name](facts)


def known() -> list[Known]:
    """Every engine, its version, whether its convention is supported, its sources and the figures without one."""
    result = []
    for name in facts_io.NAMES:
        raw, facts = facts_io.raw(name), facts_io.facts(name)
        result.append(
            Known(
                name=name,
                version=facts.version,
                about=facts.about,
                convention_supported=facts.convention.supported,
                older=tuple(sorted({o.before for o in raw.versions}, key=facts_io.version_key)),
                launches=name != "textbook",
                sources=tuple(f"{figure}: {source}" for figure, source in sorted(facts.sources.items())),
                unverified=tuple(sorted(f for f, source in facts.sources.items() if "unverified" in source)),
            )
        )
    return result


def parse_command(
    text: str | list[str],
    *,
    version: str | None = None,
    model: Model | None = None,
    files: Mapping[str, str] | None = None,
) -> Parsed:
    """What a launch command would run, from its text or its words.

    Wrappers in front (env, docker run, mpirun, numactl) are named as ignored; NAME=value words are the environment.
    Nothing is expanded or run. model, files: see Engine.parse. Raises InputError when no known engine is started, or as
    Engine.parse.
    """
    words = flags.split(text) if isinstance(text, str) else list(text)
    name, start, rest = _program(words)
    environment = [w for w in words[:start] if _ENVIRONMENT.fullmatch(w)]
    wrapper = [w for w in words[:start] if w not in environment and not _PYTHON.fullmatch(w.rsplit("/", 1)[-1])]
    parsed = get(name, version).parse([*environment, *rest], model=model, files=files)
    return replace(parsed, ignored=(flags.concealed(wrapper), *parsed.ignored)) if wrapper else parsed


def _program(words: list[str]) -> tuple[str, int, list[str]]:
    """The engine, where its words start, and the words from there on as its own `parse` takes them."""
    for at, word in enumerate(words):
        base = word.rsplit("/", 1)[-1]
        following = words[at + 1] if at + 1 < len(words) else ""
        if word == "-m" and following in _MODULES:
            return _MODULES[following], at, words[at:]
        if base in _PROGRAMS and (base == "trtllm-serve" or following == "serve"):
            return _PROGRAMS[base], at, [base, *words[at + 1 :]]
        image = base.partition(":")[0].partition("@")[0]
        if image in _IMAGES and "/" in word:
            return _IMAGES[image], at, words[at + 1 :]
    raise InputError(
        "no engine is started: " + (" ".join(words[:8]) or "nothing given")[:200],
        where="command",
        expected="vllm serve, python -m sglang.launch_server, sglang serve, trtllm-serve or linkwise serve",
    )
