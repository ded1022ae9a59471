"""What someone already runs, read from its files: Kubernetes manifests, a compose file, or our own deployment.json.

Every container that starts a known engine becomes a command, with the replicas and devices its object asks for. Read
are Deployment, StatefulSet, Job, Pod, LeaderWorkerSet, DynamoGraphDeployment (v1alpha1 and v1beta1) and compose
services; files in ConfigMaps are given to the engine's reader. Nothing is run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.files import MAX_YAML_BYTES, parse_yaml, read_text
from linkwise.engine import flags
from linkwise.engine.base import Parsed
from linkwise.engine.registry import parse_command
from linkwise.launch import roles, shell
from linkwise.launch.expand import by_kubernetes, by_shell, with_arguments
from linkwise.launch.write import DEPLOYMENT, read
from linkwise.model.types import Model

_MOST_DOCUMENTS = 500
_MOST_REPLICAS = 65_536
_MOST_SHELLS = 3  # one in another
# Processes of a group that open no door: vLLM's, and SGLang's nodes after the first.
_FOLLOWS = re.compile(r"--headless\b|--node[-_]rank[ =][1-9]")
_LAUNCHES = re.compile(
    r"(^|[\s/])((vllm|sglang) serve|trtllm-serve(?! disaggregated)|-m (vllm\.entrypoints|sglang\.launch_server)\S*)"
    r"(\s|$)"
)
_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
# Dynamo's workers take the engine's flags beside their own (components/src/dynamo): the program it stands for, and
# their own flags with and without a value.
_DYNAMO = {"dynamo.vllm": ["vllm", "serve"], "dynamo.sglang": ["sglang", "serve"]}
_DYNAMO_VALUES = {"--disaggregation-mode", "--namespace", "--endpoint", "--connector", "--discovery-backend"}
_DYNAMO_SWITCHES = {"--is-prefill-worker", "--is-decode-worker", "--use-vllm-tokenizer", "--enable-multimodal"}


class Running(NamedTuple):
    """One command of a deployment. devices: of all pods of a group, as the object asks for them; 0 = not said.
    pool: which of a pair it belongs to, "" = none that is said."""

    name: str
    words: tuple[str, ...]
    replicas: int
    devices: int
    files: dict[str, str]
    where: str
    pool: roles.Pool = ""

    def parse(self, *, version: str | None = None, model: Model | None = None) -> Parsed:
        """What it runs, all replicas. Raises InputError as the engine's reader, with the object's name."""
        from msgspec.structs import replace

        try:
            found = parse_command(list(self.words), version=version, model=model, files=self.files)
        except InputError as error:
            place = f"{self.where}: {error.where}" if error.where else self.where
            raise InputError(error.message, where=place, expected=error.expected, hint=error.hint) from None
        notes = (*found.notes, *roles.said(self.pool, self.where))
        uses = found.layout.size * found.replicas
        if self.devices and uses != self.devices:
            notes = (*notes, f"{self.where}: pods ask for {self.devices} devices, the command uses {uses}")
        return replace(found, replicas=found.replicas * self.replicas, notes=notes)


def load(path: str | Path) -> tuple[Running, ...]:
    """Every command of a file or of a launch's folder. Raises InputError when it starts no known engine."""
    where = str(path)
    if Path(path).is_dir() or Path(path).name == DEPLOYMENT:
        return _own(path)
    text = read_text(path, max_bytes=MAX_YAML_BYTES)
    if "{{" in text and re.search(r"\{\{-?\s*(\.|if|range|include|with|define)", text):
        raise InputError("a Helm template", where=where, expected="plain manifests", hint="`helm template` renders it")
    documents = _documents(text, where)
    configs = _configs(documents)
    found: list[Running] = []
    for number, value in enumerate(documents, 1):
        if isinstance(value, dict):
            found += _commands(value, configs, f"{where}: document {number}" if len(documents) > 1 else where)
    if not found:
        raise InputError(
            "no container starts a known engine", where=where,
            expected="vllm serve, sglang.launch_server, trtllm-serve or a Dynamo worker in some container",
        )  # fmt: skip
    return tuple(found)


def choose(found: tuple[Running, ...], name: str, where: str) -> Running:
    """One command: the one of this name or pool, or the only kind there is. Raises InputError listing them."""
    if name:
        found = tuple(one for one in found if name in {one.name, one.pool})
    # Replicas differ in ports and addresses; what they run is the same.
    kinds = {
        (one.pool, p.engine, p.model, p.layout, p.replicas, p.options): one for one in found for p in [one.parse()]
    }
    if len(kinds) == 1:
        (one,) = kinds.values()
        return one._replace(replicas=sum(each.replicas for each in found))
    names = dict.fromkeys(one.name for one in found)
    if len(names) == 1 and len(kinds) > 1:
        raise InputError(
            f"{len(kinds)} different commands in {next(iter(names))}", where=where, expected="one",
            hint="Branches of a script are not chosen: give the one that runs with --from-command",
        )  # fmt: skip
    raise InputError(
        f"{len(kinds)} different commands" if kinds else f"no command of {name!r}"[:80], where=where,
        expected="FILE:NAME, NAME one of " + (", ".join(names) or "its objects"),
    )  # fmt: skip


def _own(path: str | Path) -> tuple[Running, ...]:
    made = read(path)
    found = []
    for group in made.groups:
        process = next(
            p for p in made.processes if p.group == group.name and p.command[0] not in {"ray", "mpirun", "srun"}
        )
        found.append(
            Running(
                name=group.role if group.role != "both" else group.name, words=_dynamo(list(process.command)),
                replicas=1, devices=len(group.devices), files=made.files, where=f"{path}: {group.name}",
                pool="" if group.role in {"both", "router"} else group.role,  # type: ignore[arg-type]
            )
        )  # fmt: skip
    return tuple(found)


def _documents(text: str, where: str) -> list[Any]:
    parts = re.split(r"^---(?:[ \t].*)?$", text, flags=re.MULTILINE)
    if len(parts) > _MOST_DOCUMENTS:
        raise InputError(f"{len(parts)} documents", where=where, expected=f"at most {_MOST_DOCUMENTS}")
    found: list[Any] = []
    for part in parts:
        if part.strip():
            value = parse_yaml(part, where=where)
            items = value.get("items") if isinstance(value, dict) and value.get("kind") == "List" else None
            found += items if isinstance(items, list) else [value]
    return found


def _configs(documents: list[Any]) -> dict[str, str]:
    """Files in ConfigMaps, by name."""
    found: dict[str, str] = {}
    for value in documents:
        if isinstance(value, dict) and value.get("kind") == "ConfigMap" and isinstance(value.get("data"), dict):
            found |= {str(k): v for k, v in value["data"].items() if isinstance(v, str)}
    return found


def _commands(value: dict[str, Any], files: dict[str, str], where: str) -> Iterator[Running]:
    kind, spec = value.get("kind"), value.get("spec")
    meta = value.get("metadata") if isinstance(value.get("metadata"), dict) else {}
    name = str((meta or {}).get("name", kind))[:120]
    if kind is None and isinstance(value.get("services"), dict):
        yield from _compose(value["services"], files, where)
        return
    if not isinstance(spec, dict):
        return
    here = f"{where}: {kind} {name}"
    if kind == "LeaderWorkerSet":
        template = spec.get("leaderWorkerTemplate")
        if isinstance(template, dict):
            size = _count(template.get("size", 1), f"{here}: size")
            pod = template.get("leaderTemplate") or template.get("workerTemplate")
            yield from _pod(pod, name, _count(spec.get("replicas", 1), here), size, files, here)
    elif kind == "DynamoGraphDeployment":
        yield from _graph(spec, files, here)
    elif kind == "Pod":
        yield from _pod({"spec": spec}, name, 1, 1, files, here)
    elif isinstance(spec.get("template"), dict):
        yield from _pod(spec["template"], name, _count(spec.get("replicas", 1), here), 1, files, here)


def _graph(spec: dict[str, Any], files: dict[str, str], where: str) -> Iterator[Running]:
    """Components of a Dynamo graph: with pod templates (v1beta1), or services with a main container (v1alpha1)."""
    listed = spec.get("components")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict):
            name = str(one.get("name", ""))[:63]
            size = _nodes(one, where)
            yield from _pod(
                one.get("podTemplate"), name, _count(one.get("replicas", 1), where), size, files, f"{where}: {name}"
            )
    services = spec.get("services")
    for name, one in services.items() if isinstance(services, dict) else ():
        extra = one.get("extraPodSpec") if isinstance(one, dict) else None
        main = extra.get("mainContainer") if isinstance(extra, dict) else None
        if isinstance(main, dict):
            limits = one.get("resources") if isinstance(one.get("resources"), dict) else {}
            container = {**main, "resources": limits, "env": one.get("envs", main.get("env", []))}
            pod = {"spec": {"containers": [container]}}
            yield from _pod(
                pod,
                str(name)[:63],
                _count(one.get("replicas", 1), where),
                _nodes(one, where),
                files,
                f"{where}: {name}",
            )


def _nodes(one: dict[str, Any], where: str) -> int:
    multi = one.get("multinode")
    return _count(multi.get("nodeCount", 1), f"{where}: nodeCount") if isinstance(multi, dict) else 1


def _pod(template: Any, name: str, replicas: int, size: int, files: dict[str, str], where: str) -> Iterator[Running]:
    spec = template.get("spec") if isinstance(template, dict) else None
    meta = template.get("metadata") if isinstance(template, dict) else None
    labels = meta.get("labels") if isinstance(meta, dict) else None
    told = [str(v) for k, v in labels.items() if str(k).endswith("role")] if isinstance(labels, dict) else []
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else ():
        if not isinstance(container, dict):
            continue
        for words in _started(container, size, where):
            pool = roles.pool(words, *told, name)
            devices = _devices(container, where) * size
            yield Running(name, _dynamo(words), replicas, devices, files, where, pool)


def _started(container: Mapping[str, Any], size: int, where: str) -> list[list[str]]:
    """The engines a container starts: its own command, those of its script, or its image's with its arguments."""
    variables = _variables(container) | {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0"}
    command = [by_kubernetes(str(w), variables) for w in _listed(container.get("command"))]
    arguments = [by_kubernetes(str(w), variables) for w in _listed(container.get("args"))]
    words = [*command, *arguments]
    given = shell.script(words)
    if given is not None:
        found = _doors(given, variables, where)
    elif not command and container.get("image"):
        found = [[str(container["image"]), *arguments]]
    else:
        found = [words]
    environment = [f"{k}={v}" for k, v in variables.items() if k.startswith(("VLLM_", "SGLANG_"))]
    return [[*environment, *each] for each in found if _starts(_dynamo(each))]


def _doors(given: shell.Script, variables: Mapping[str, str], where: str) -> list[list[str]]:
    """The different engines that a script starts; of a group's processes, in branches by index, those that answer."""
    try:
        found = list(_launched(given, variables, _MOST_SHELLS))
    except InputError as error:
        raise InputError(error.message, where=f"{where}: {error.where}", expected=error.expected) from None
    answering = [words for words in found if not _FOLLOWS.search(" ".join(words))] or found
    return list(map(list, dict.fromkeys(map(tuple, answering))))


def _launched(given: shell.Script, variables: Mapping[str, str], deep: int) -> Iterator[list[str]]:
    """Every command of a script that starts an engine, also in scripts it gives to other shells."""
    text = by_shell(with_arguments(given.text, given.arguments), variables)
    for words in shell.commands(text):
        inner = shell.script(words)
        if inner is not None and deep > 1:
            yield from _launched(inner, variables, deep - 1)
        elif inner is None and _launches(_dynamo(words)):
            yield words


def _dynamo(words: Sequence[str]) -> tuple[str, ...]:
    """A Dynamo worker's words as those of the engine it runs."""
    for at in range(len(words) - 1):
        if words[at] == "-m" and words[at + 1] in _DYNAMO:
            kept, skip = [], False
            for word in words[at + 2 :]:
                if not skip and word not in _DYNAMO_VALUES and word not in _DYNAMO_SWITCHES:
                    kept.append(word)
                skip = not skip and word in _DYNAMO_VALUES
            environment = [w for w in words[:at] if re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", w)]
            return (*environment, *_DYNAMO[words[at + 1]], *kept)
    return tuple(words)


def _starts(words: Sequence[str]) -> bool:
    """Whether a container's words start an engine, by its program or as what its image starts."""
    text = " ".join(words)
    return bool(
        re.search(r"(^|[\s/])(vllm(-openai\S*)?|sglang(\.launch_server)?|trtllm-serve)(\s|$|:|@)|vllm\.entry", text)
    ) and not re.search(r"trtllm-serve disaggregated\b", text)  # what stands before two pools


def _launches(words: Sequence[str]) -> bool:
    """Whether a script's command starts an engine, rather than installs it, waits for it or writes of it."""
    return words[0] not in {"echo", "printf"} and bool(_LAUNCHES.search(" ".join(words)))


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    listed = container.get("env", container.get("environment"))
    if isinstance(listed, dict):
        return {str(k): str(v) for k, v in listed.items() if isinstance(v, str | int | float)}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("value"), str | int):
            found[str(one.get("name"))] = by_kubernetes(str(one["value"]), found)
        elif isinstance(one, str) and "=" in one:
            found[one.partition("=")[0]] = one.partition("=")[2]
    return found


def _devices(container: Mapping[str, Any], where: str) -> int:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    for key in _GPUS:
        if isinstance(limits, dict) and key in limits:
            return _count(limits[key], f"{where}: {key}", least=0)
    return 0


def _compose(services: dict[str, Any], files: dict[str, str], where: str) -> Iterator[Running]:
    for name, one in services.items():
        if not isinstance(one, dict):
            continue
        entry, command = _shell_words(one.get("entrypoint")), _shell_words(one.get("command"))
        container = {"image": one.get("image"), "env": one.get("environment"), "command": entry, "args": command}
        if not entry and command[:1] and _starts((command[0],)):
            container |= {"command": command, "args": []}
        deploy = one.get("deploy") if isinstance(one.get("deploy"), dict) else {}
        here = f"{where}: service {name}"[:200]
        for words in _started(container, 1, here):
            replicas = _count((deploy or {}).get("replicas", 1), f"{where}: {name}")
            pool = roles.pool(words, str(name))
            yield Running(str(name)[:63], _dynamo(words), replicas, 0, files, here, pool)


def _shell_words(value: Any) -> list[str]:
    return flags.split(value) if isinstance(value, str) else [str(w) for w in _listed(value)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any, where: str, *, least: int = 1) -> int:
    """A count a manifest states, as a number or as text."""
    text = str(value)
    if not re.fullmatch(r"[0-9]{1,6}", text) or not least <= int(text) <= _MOST_REPLICAS:
        raise InputError(f"{text[:40]!r}", where=where, expected=f"an integer, {least}..{_MOST_REPLICAS}")
    return int(text)
