"""Words a user adds to engine commands: what they may not say, and what they change."""

from collections.abc import Iterable

from linkwise.core.errors import InputError, Refused
from linkwise.launch.base import Asked, Launcher, Ports, engine_words
from linkwise.launch.types import KEY_VARIABLE

WHERE = "--engine-args"
_KEY = f"--with-key, and the key in {KEY_VARIABLE} where the files run"
_TLS = "TLS in front of the port that requests go to: what these files start speaks http with each other"
_OPTIONS = {
    "--port": "--port of launch is the front's, and the servers behind it get theirs",
    "--host": "--hosts of launch names the nodes",
    "--served-model-name": "--name of launch says it",
}


def check(asked: Asked, launcher: Launcher) -> None:
    """Raises InputError for a flag that the files write themselves, or that undoes what they write.

    To be called once the launcher refuses nothing.
    """
    if not asked.extra:
        return
    taken = launcher.own_flags(asked) | _written(asked, launcher)
    for flag in _flags(asked.extra):
        if flag == "--api-key":
            raise InputError("--api-key would put the key into the files", where=WHERE, expected=_KEY)
        if flag.startswith("--ssl-") or flag == "--enable-ssl-refresh":
            raise InputError(f"{flag} is for the servers alone", where=WHERE, expected=_TLS)
        if flag in taken:
            raise InputError(
                f"{flag} is what the files say themselves, for every process its own", where=WHERE,
                expected="flags of the engine that do not say where a process runs, listens or finds the others",
                hint=_OPTIONS.get(flag, ""),
            )  # fmt: skip


def _flags(words: Iterable[str]) -> list[str]:
    """The flags among words, as engines read them: dashes for underscores, without a value or a path into one."""
    names = (word.partition("=")[0].partition(".")[0] for word in words if word.startswith("-"))
    return ["--" + name[2:].replace("_", "-") if name.startswith("--") else name for name in names]


def _written(asked: Asked, launcher: Launcher) -> frozenset[str]:
    """Flags that this launch adds to the engine's own commands."""
    plain, ports, found = asked._replace(extra=()), Ports(), set[str]()
    for group in plain.groups:
        base = set(_flags(engine_words(plain, group)))
        for process in launcher.processes(plain, group, ports):
            found |= set(_flags(process.command)) - base
    return frozenset(found)


def differs(asked: Asked) -> tuple[str, ...]:
    """What the words change of the plan's settings. Raises Refused where that is the layout or the model."""
    if not asked.extra:
        return ()
    said = []
    for role, layout in dict.fromkeys((group.role, group.layout) for group in asked.groups):
        plain = asked.engine.command(asked.weights, layout, asked.options[role])
        before, after = (asked.engine.parse(words, model=asked.model) for words in (plain, [*plain, *asked.extra]))
        if (before.layout, before.replicas) != (after.layout, after.replicas):
            raise Refused(
                f"{' '.join(asked.extra)[:120]} makes {after.replicas} x ({after.layout}) of {layout}",
                where=WHERE, hint="Plan that layout",
            )  # fmt: skip
        if before.model != after.model:
            raise Refused(
                f"{' '.join(asked.extra)[:120]} serves {after.model[:80]}, not {before.model[:80]}", where=WHERE,
                hint="--weights says where the plan's model lies",
            )  # fmt: skip
        for field in before.options.__struct_fields__:
            was, now = getattr(before.options, field), getattr(after.options, field)
            if was != now:
                said.append(f"{field} is {now} by --engine-args, {was} in the plan")
    return tuple(dict.fromkeys(said))
