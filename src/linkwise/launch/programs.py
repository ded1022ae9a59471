"""Which program a command's words start: what stands before it (env, numactl, an init) and whether it is an engine."""

import re
from collections.abc import Sequence
from typing import NamedTuple

ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_PYTHON = re.compile(r"python(\d[\d.]*)?")
_MODULES = re.compile(r"vllm\.entrypoints\.\S+|sglang\.launch_server|tensorrt_llm\.commands\.serve")
_IMAGE = re.compile(r"(?:.*/)?(vllm(-openai[^/:@]*)?|sglang)([:@].*)?")
# Dynamo's workers take the engine's flags beside their own (components/src/dynamo): the program it stands for, and
# their own flags with and without a value.
_DYNAMO = {"dynamo.vllm": ["vllm", "serve"], "dynamo.sglang": ["sglang", "serve"]}
_DYNAMO_VALUES = {"--disaggregation-mode", "--namespace", "--endpoint", "--connector", "--discovery-backend"}
_DYNAMO_SWITCHES = {"--is-prefill-worker", "--is-decode-worker", "--use-vllm-tokenizer", "--enable-multimodal"}
# Programs that start the one behind them: their options that take a word of their own, and how many words they take
# before the program. Read: --help of coreutils and util-linux, dumb-init(1). Unverified: numactl, tini, sudo, gosu.
_BEFORE: dict[str, tuple[frozenset[str], int]] = {
    "exec": (frozenset({"-a"}), 0),
    "command": (frozenset(), 0),
    "builtin": (frozenset(), 0),
    "env": (frozenset({"-u", "--unset", "-C", "--chdir"}), 0),
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "time": (frozenset({"-f", "-o", "--format", "--output"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "ionice": (frozenset({"-c", "-n", "--class", "--classdata"}), 0),
    "chrt": (frozenset(), 1),
    "taskset": (frozenset(), 1),
    "stdbuf": (frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}), 0),
    "timeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1),
    "numactl": (
        frozenset(
            {
                "-i",
                "-p",
                "-P",
                "-m",
                "-N",
                "-C",
                "-w",
                "--interleave",
                "--preferred",
                "--preferred-many",
                "--membind",
                "--cpunodebind",
                "--physcpubind",
                "--weighted-interleave",
            }
        ),
        0,
    ),
    "tini": (frozenset({"-p", "-e"}), 0),
    "docker-init": (frozenset({"-p", "-e"}), 0),
    "dumb-init": (frozenset({"-r", "--rewrite"}), 0),
    "catatonit": (frozenset(), 0),
    "gosu": (frozenset(), 1),
    "su-exec": (frozenset(), 1),
    "sudo": (frozenset({"-u", "-g", "--user", "--group", "-D", "-C"}), 0),
    "trtllm-llmapi-launch": (frozenset(), 0),
    "nvidia_entrypoint.sh": (frozenset(), 0),
}
# Programs whose own words are too many to tell apart: an engine is looked for among the words behind them.
_AROUND = re.compile(
    r"mpirun|mpiexec|srun|nsys|ncu|docker|podman|uv|poetry|conda|micromamba|opentelemetry-instrument|ddtrace-run|rocprof\S*"
)


def program(words: Sequence[str]) -> list[str]:
    """The words from the program on that is really started: without NAME=VALUE, env, exec, numactl, tini and others."""
    rest, at = list(words), 0
    while at < len(rest):
        head = rest[at]
        name = head.rsplit("/", 1)[-1]
        if ENVIRONMENT.fullmatch(head):
            at += 1
        elif " " in head and re.fullmatch(r"\S*env( \S+)+", head):
            rest[at : at + 1] = head.split()[1:]  # "/usr/bin/env bash" is written as one word, too
        elif name not in _BEFORE:
            break
        else:
            values, own = _BEFORE[name]
            at += 1
            while at < len(rest) and rest[at].startswith("-") and len(rest[at]) > 1:
                at += 1 + (rest[at] in values)
                if rest[at - 1 : at] == ["--"]:
                    break
            at += own
    return rest[at:]


def starts(words: Sequence[str]) -> bool:
    """Whether a command's words start an engine, rather than install it, wait for it, end it or write of it."""
    return _engine(program(words))


def _engine(words: Sequence[str]) -> bool:
    if not words:
        return False
    name, following = words[0].rsplit("/", 1)[-1], words[1] if len(words) > 1 else ""
    if name in {"vllm", "sglang"}:
        return following == "serve"
    if name == "trtllm-serve":
        return following != "disaggregated"  # what stands before two pools
    if _PYTHON.fullmatch(name):
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] != "-m":
            at += 2 if words[at] in {"-W", "-X"} else 1
        named = words[at + 1] if words[at : at + 1] == ["-m"] and at + 1 < len(words) else ""
        script = words[at : at + 1] and words[at].rsplit("/", 1)[-1] in {"vllm", "sglang", "trtllm-serve"}
        return bool(_MODULES.fullmatch(named)) or named in _DYNAMO or bool(script and _engine(words[at:]))
    if _AROUND.fullmatch(name):
        return any(
            _engine(words[at:]) or (" " not in word and image(word) and "/" in word)
            for at, word in enumerate(words[1:], 1)
            if word.rsplit("/", 1)[-1].startswith(("vllm", "sglang", "trtllm", "python"))
        )
    return False


def image(name: str) -> bool:
    """Whether a container's image starts an engine by itself."""
    return bool(_IMAGE.fullmatch(name))


def dynamo(words: Sequence[str]) -> tuple[str, ...]:
    """A Dynamo worker's words as those of the engine it runs."""
    for at in range(len(words) - 1):
        if words[at] == "-m" and words[at + 1] in _DYNAMO:
            kept, skip = [], False
            for word in words[at + 2 :]:
                name = word.partition("=")[0]
                if not skip and name not in _DYNAMO_VALUES and name not in _DYNAMO_SWITCHES:
                    kept.append(word)
                skip = not skip and word in _DYNAMO_VALUES
            environment = [w for w in words[:at] if ENVIRONMENT.fullmatch(w)]
            return (*environment, *_DYNAMO[words[at + 1]], *kept)
    return tuple(words)


class Script(NamedTuple):
    """What a shell is given to run. arguments: $1 and on, which `$@` stands for."""

    text: str
    arguments: tuple[str, ...]


_TAKES_VALUE = re.compile(r"[-+][a-zA-Z]*[oO]")  # set -o NAME and shopt -O NAME, alone or last in a bundle


def script(words: Sequence[str], stdin: str | None = None) -> Script | None:
    """The script in a shell's words, as in `bash -lc SCRIPT NAME ARGUMENTS`, or on its input; None for other words.

    What stands before the shell is taken away first (`program`).
    """
    if not words or words[0].rsplit("/", 1)[-1] not in _SHELLS:
        return None
    from_words = from_input = False
    at = 1
    while at < len(words) and words[at][:1] in {"-", "+"} and len(words[at]) > 1:
        word = words[at]
        if word == "--":
            at += 1
            break
        from_words |= re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word) is not None
        from_input |= re.fullmatch(r"-[a-zA-Z]*s[a-zA-Z]*", word) is not None
        at += 2 if _TAKES_VALUE.fullmatch(word) or word in {"--rcfile", "--init-file"} else 1
    if from_words:
        return Script(words[at], tuple(words[at + 2 :])) if at < len(words) else None
    if stdin is not None and (from_input or at >= len(words) or words[at] == "-"):
        return Script(stdin, tuple(words[at:]))
    return None
