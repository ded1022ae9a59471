"""What someone already runs, read from its files: Kubernetes manifests, a compose file, or our own deployment.json.

Every container that starts a known engine becomes a command, with the replicas and devices its object asks for. Read
are Deployment, StatefulSet, Job, Pod, LeaderWorkerSet, DynamoGraphDeployment (v1alpha1 and v1beta1) and compose
services; files in ConfigMaps are given to the engine's reader. Nothing is run.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linkwise.core.errors import InputError
from linkwise.core.files import MAX_YAML_BYTES, parse_yaml, read_text
from linkwise.engine import flags
from linkwise.engine.base import Parsed
from linkwise.engine.registry import parse_command
from linkwise.launch import programs, roles
from linkwise.launch.expand import Text, by_kubernetes
from linkwise.launch.walk import REFERS, Launch, launches
from linkwise.launch.work import Work
from linkwise.launch.write import DEPLOYMENT, read
from linkwise.model.types import Model

_MOST_DOCUMENTS = 500
_MOST_REPLICAS = 65_536
_PAIR = 100  # steps of two commands of a container: each is read again beside the other
# Processes of a group that open no door: vLLM's, and SGLang's nodes after the first.
_FOLLOWS = re.compile(r"--headless\b|--node[-_]rank[ =][1-9]")
_OTHERWISE = "Where it is known, give the command that runs with --from-command"
_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu")


class _File(NamedTuple):
    """What all objects of a file share: files in its ConfigMaps, and what reading its scripts took so far."""

    configs: dict[str, str]
    work: Work


class Running(NamedTuple):
    """One command of a deployment. devices: of all pods of a group, as the object asks for them; 0 = not said.
    pool: which of a pair it belongs to, "" = none that is said. launch: how its script came to it. container: which
    starts it. beside: what the same container runs at the same time."""

    name: str
    words: tuple[str, ...]
    replicas: int
    devices: int
    files: dict[str, str]
    where: str
    pool: roles.Pool = ""
    launch: Launch = Launch(())
    container: str = ""
    beside: tuple[tuple[str, ...], ...] = ()

    def parse(self, *, version: str | None = None, model: Model | None = None) -> Parsed:
        """What it runs, all replicas. Raises InputError as the engine's reader, with the object's name, and for what
        the script does not let be known."""
        from msgspec.structs import replace

        if self.launch.refused:
            raise InputError(self.launch.refused, where=self.where, expected="a value that is known", hint=_OTHERWISE)
        try:
            found = parse_command(list(self.words), version=version, model=model, files=self.files)
        except InputError as error:
            place = f"{self.where}: {error.where}" if error.where else self.where
            why = self._unknown(error.message)
            message, hint = (f"{error.message}: {why}", _OTHERWISE) if why else (error.message, error.hint)
            raise InputError(message, where=place, expected=error.expected, hint=hint) from None
        if "$" in found.model and (why := self._unknown(found.model)) and "condition" in why:
            raise InputError(why, where=self.where, expected="a value that is known", hint=_OTHERWISE)
        notes = (*found.notes, *self.launch.notes, *roles.said(self.pool, self.where))
        if over := self._devices(found, version, model):
            notes = (*notes, over)
        return replace(found, replicas=found.replicas * self.replicas, notes=notes)

    def _unknown(self, text: str) -> str:
        """Why what is left as written in a text is not known."""
        found = [written for written in self.launch.unknown if written in text]
        if not found:
            return ""
        written = max(found, key=len)
        return f"{written.lstrip('$') if written[1:].isidentifier() else written} {self.launch.unknown[written]}"

    def _devices(self, found: Parsed, version: str | None, model: Model | None) -> str:
        """What to say where a container asks for other devices than its commands use; nothing where they agree."""
        uses = [found.layout.size * found.replicas]
        if not self.devices or uses[0] == self.devices:
            return ""
        for words in self.beside:
            try:
                other = parse_command(list(words), version=version, model=model, files=self.files)
            except InputError:
                return ""  # what the other uses is said where it is read itself
            uses.append(other.layout.size * other.replicas)
        if sum(uses) == self.devices:
            return ""
        commands = f"its {len(uses)} commands use" if self.beside else "the command uses"
        return f"{self.where}: pods ask for {self.devices} devices, {commands} {sum(uses)}"


def load(path: str | Path) -> tuple[Running, ...]:
    """Every command of a file or of a launch's folder. Raises InputError when it starts no known engine."""
    where = str(path)
    if Path(path).is_dir() or Path(path).name == DEPLOYMENT:
        return _own(path)
    text = read_text(path, max_bytes=MAX_YAML_BYTES)
    if "{{" in text and re.search(r"\{\{-?\s*(\.|if|range|include|with|define)", text):
        raise InputError("a Helm template", where=where, expected="plain manifests", hint="`helm template` renders it")
    documents = _documents(text, where)
    file = _File(_configs(documents), Work())
    found: list[Running] = []
    for number, value in enumerate(documents, 1):
        if isinstance(value, dict):
            found += _commands(value, file, f"{where}: document {number}" if len(documents) > 1 else where)
    if not found:
        raise InputError(
            "no container starts a known engine", where=where,
            expected="vllm serve, sglang.launch_server, trtllm-serve or a Dynamo worker in some container",
        )  # fmt: skip
    return tuple(map(_with_counterpart(found), found))


def _with_counterpart(found: list[Running]) -> Callable[[Running], Running]:
    """Names speak of pools where both are there, or where the command hands KV over."""
    there = {one.pool or roles.named(one.name) for one in found}

    def settled(one: Running) -> Running:
        by_name = roles.named(one.name)
        if one.pool or not by_name or not (there >= {"prefill", "decode"} or roles.hands_over(one.launch.words)):
            return one
        return one._replace(pool=by_name)

    return settled


def choose(found: tuple[Running, ...], name: str, where: str) -> Running:
    """One command: the one of this name or pool, or the only kind there is. Raises InputError listing them."""
    names = ", ".join(dict.fromkeys(one.name for one in found))
    if name:
        found = tuple(one for one in found if name in {one.name, one.pool})
        if not found:
            raise InputError(f"no command of {name!r}"[:80], where=where, expected=f"FILE:NAME, NAME one of {names}")
    # Replicas differ in ports and addresses; what they run is the same.
    kinds: dict[object, list[Running]] = {}
    for one in found:
        p = one.parse()
        kinds.setdefault((one.pool, p.engine, p.model, p.layout, p.replicas, p.options), []).append(one)
    if len(kinds) == 1:
        (same,) = kinds.values()
        return same[0]._replace(replicas=sum(each.replicas for each in _together(same)))
    if len({one.name for one in found}) == 1:
        pools = sorted({one.pool for one in found} - {""}, reverse=True)
        if len(pools) == 2:
            raise InputError(
                f"a prefill and a decode command in {found[0].name}",
                where=where,
                expected="FILE:prefill or FILE:decode",
            )
        raise InputError(
            f"{len(kinds)} different commands in {found[0].name}", where=where, expected="one",
            hint="Branches of a script are not chosen: give the one that runs with --from-command",
        )  # fmt: skip
    names = ", ".join(dict.fromkeys(one.name for one in found))
    raise InputError(f"{len(kinds)} different commands", where=where, expected=f"FILE:NAME, NAME one of {names}")


def _together(found: Sequence[Running]) -> list[Running]:
    """Those that run at one time: of a script's branches one."""
    kept: list[Running] = []
    for one in found:
        if all(k.container != one.container or not k.container or k.launch.together(one.launch) for k in kept):
            kept.append(one)
    return kept


def _own(path: str | Path) -> tuple[Running, ...]:
    made = read(path)
    found = []
    for group in made.groups:
        process = next(
            p for p in made.processes if p.group == group.name and p.command[0] not in {"ray", "mpirun", "srun"}
        )
        found.append(
            Running(
                name=group.role if group.role != "both" else group.name, words=programs.dynamo(list(process.command)),
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


def _commands(value: dict[str, Any], file: _File, where: str) -> Iterator[Running]:
    kind, spec = value.get("kind"), value.get("spec")
    meta = value.get("metadata") if isinstance(value.get("metadata"), dict) else {}
    name = str((meta or {}).get("name", kind))[:120]
    if kind is None and isinstance(value.get("services"), dict):
        yield from _compose(value["services"], file, where)
        return
    if not isinstance(spec, dict):
        return
    here = f"{where}: {kind} {name}"
    if kind == "LeaderWorkerSet":
        template = spec.get("leaderWorkerTemplate")
        if isinstance(template, dict):
            size = _count(template.get("size", 1), f"{here}: size")
            pod = template.get("leaderTemplate") or template.get("workerTemplate")
            yield from _pod(pod, name, _count(spec.get("replicas", 1), here), size, file, here)
    elif kind == "DynamoGraphDeployment":
        yield from _graph(spec, file, here)
    elif kind == "Pod":
        yield from _pod({"spec": spec}, name, 1, 1, file, here)
    elif isinstance(spec.get("template"), dict):
        yield from _pod(spec["template"], name, _count(spec.get("replicas", 1), here), 1, file, here)


def _graph(spec: dict[str, Any], file: _File, where: str) -> Iterator[Running]:
    """Components of a Dynamo graph: with pod templates (v1beta1), or services with a main container (v1alpha1)."""
    listed = spec.get("components")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict):
            name = str(one.get("name", ""))[:63]
            size = _nodes(one, where)
            yield from _pod(
                one.get("podTemplate"), name, _count(one.get("replicas", 1), where), size, file, f"{where}: {name}",
                _told(one),
            )  # fmt: skip
    services = spec.get("services")
    for name, one in services.items() if isinstance(services, dict) else ():
        extra = one.get("extraPodSpec") if isinstance(one, dict) else None
        main = extra.get("mainContainer") if isinstance(extra, dict) else None
        if isinstance(main, dict):
            limits = one.get("resources") if isinstance(one.get("resources"), dict) else {}
            container = {**main, "resources": limits, "env": one.get("envs", main.get("env", []))}
            pod = {"spec": {"containers": [container]}}
            yield from _pod(
                pod, str(name)[:63], _count(one.get("replicas", 1), where), _nodes(one, where), file,
                f"{where}: {name}", _told(one),
            )  # fmt: skip


def _told(component: Mapping[str, Any]) -> list[str]:
    """The pool that a component of a graph is typed as: `type` (v1beta1), `subComponentType` (v1alpha1)."""
    return [str(component.get(key, "")) for key in ("type", "componentType", "subComponentType")]


def _nodes(one: dict[str, Any], where: str) -> int:
    multi = one.get("multinode")
    return _count(multi.get("nodeCount", 1), f"{where}: nodeCount") if isinstance(multi, dict) else 1


def _pod(
    template: Any, name: str, replicas: int, size: int, file: _File, where: str, told: Sequence[str] = ()
) -> Iterator[Running]:
    spec = template.get("spec") if isinstance(template, dict) else None
    meta = template.get("metadata") if isinstance(template, dict) else None
    labels = meta.get("labels") if isinstance(meta, dict) else None
    told = (
        [*told, *(str(v) for k, v in labels.items() if str(k).endswith("role"))] if isinstance(labels, dict) else told
    )
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for number, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, dict):
            started = _started(container, size, where, file.work)
            devices = _devices(container, where) * size if started else 0
            made = Running(name, (), replicas, devices, file.configs, where, container=f"{where} {number}")
            yield from _each(made, started, told)


def _each(made: Running, started: Sequence[Launch], told: Sequence[str]) -> Iterator[Running]:
    """A container's commands, each with those that run beside it."""
    for at, one in enumerate(started):
        others = [o for n, o in enumerate(started) if n != at and (one.together(o) if n > at else o.together(one))]
        yield made._replace(
            words=programs.dynamo(one.words), pool=roles.pool(one.words, *told), launch=one,
            beside=tuple(programs.dynamo(o.words) for o in others),
        )  # fmt: skip


def _started(container: Mapping[str, Any], size: int, where: str, work: Work) -> list[Launch]:
    """The engines a container starts: its own command, those of its script, or its image's with its arguments."""
    try:
        variables = _variables(container, work) | {"LWS_GROUP_SIZE": Text(str(size)), "LWS_WORKER_INDEX": Text("0")}
        plain = {n: v.text for n, v in variables.items() if v.known}
        command = [by_kubernetes(str(w), plain, work) for w in _listed(container.get("command"))]
        arguments = [by_kubernetes(str(w), plain, work) for w in _listed(container.get("args"))]
        given = programs.script(programs.program([*command, *arguments]))
        found = _doors(launches(given, variables, work), work) if given is not None else []
    except InputError as error:
        raise InputError(error.message, where=f"{where}: {error.where}", expected=error.expected) from None
    if given is not None:
        return found
    unknown = {f"$({n})": f"{n} {REFERS}" for n, v in variables.items() if not v.known}
    told = [f"{n}={v}" for n, v in plain.items() if n.startswith(("VLLM_", "SGLANG_"))]
    words = [*command, *arguments]
    if programs.starts(words):
        return [Launch((*told, *words), unknown)]
    if not command and programs.image(str(container.get("image", ""))):
        return [Launch((*told, str(container["image"]), *arguments), unknown)]
    return []


def _doors(found: Sequence[Launch], work: Work) -> list[Launch]:
    """The different engines that a script starts; of a group's processes, in branches by index, those that answer."""
    answering = [one for one in found if not _FOLLOWS.search(" ".join(one.words))] or list(found)
    doors = list({one.words: one for one in reversed(answering)}.values())[::-1]
    work.step(_PAIR * len(doors) ** 2)
    return doors


def _variables(container: Mapping[str, Any], work: Work) -> dict[str, Text]:
    """A container's environment; what refers to something else is not known."""
    found: dict[str, Text] = {}
    listed = container.get("env", container.get("environment"))
    if isinstance(listed, dict):
        return {str(k): Text(str(v)) for k, v in listed.items() if isinstance(v, str | int | float)}
    known: dict[str, str] = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("value"), str | int):
            name = str(one.get("name"))
            known[name] = by_kubernetes(str(one["value"]), known, work)
            found[name] = Text(known[name])
        elif isinstance(one, dict) and isinstance(one.get("valueFrom"), dict):
            name = str(one.get("name"))
            known.pop(name, None)
            found[name] = Text(f"${name}", known=False)
        elif isinstance(one, str) and "=" in one:
            found[one.partition("=")[0]] = Text(one.partition("=")[2])
    return found


def _devices(container: Mapping[str, Any], where: str) -> int:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    for key in _GPUS:
        if isinstance(limits, dict) and key in limits:
            return _count(limits[key], f"{where}: {key}", least=0)
    return 0


def _compose(services: dict[str, Any], file: _File, where: str) -> Iterator[Running]:
    for name, one in services.items():
        if not isinstance(one, dict):
            continue
        entry, command = _shell_words(one.get("entrypoint")), _shell_words(one.get("command"))
        container = {"image": one.get("image"), "env": one.get("environment"), "command": entry, "args": command}
        if not entry and command[:1] and (programs.starts(command) or programs.script(programs.program(command))):
            container |= {"command": command, "args": []}
        deploy = one.get("deploy") if isinstance(one.get("deploy"), dict) else {}
        here = f"{where}: service {name}"[:200]
        if started := _started(container, 1, here, file.work):
            replicas = _count((deploy or {}).get("replicas", 1), f"{where}: {name}")
            made = Running(str(name)[:63], (), replicas, 0, file.configs, here, container=here)
            yield from _each(made, started, ())


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
