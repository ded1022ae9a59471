"""Models known by name, offline: architecture facts in `facts/*.yaml`, fed to the same readers as a config.json.

An entry states the fields a config of its family would, `like` another entry with changes, and where they come from.
"""

import difflib
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from linkwise.core.errors import InputError, InternalError
from linkwise.core.files import parse_yaml_object
from linkwise.core.schema import Frozen, convert


class Entry(Frozen, frozen=True, kw_only=True):
    """A known model. name: its short name. hub: its id on the hub. also: ids of other weights of the same architecture,
    and other short names. source: where the facts come from. config: as config.json would have it."""

    name: str
    hub: str
    also: tuple[str, ...]
    source: str
    config: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it answers to, lower case."""
        return tuple(self._served)

    def served(self, name: str) -> str:
        """The hub id of the weights that one of its names stands for: an id is its own, whatever shares its shape."""
        return self._served[name.strip().lower()]

    @property
    def _served(self) -> dict[str, str]:
        """The hub id behind each name; a short name is the entry's own, an id's last part is that id's."""
        found = {name.lower(): self.hub for name in (self.name, *(n for n in self.also if "/" not in n))}
        for one in (self.hub, *(n for n in self.also if "/" in n)):
            for name in (one.lower(), one.split("/")[1].lower()):
                found.setdefault(name, one)
        return found


class _Written(Frozen, frozen=True, kw_only=True):
    """An entry as written in a facts file. `config` changes what `like` has; null is a config's null."""

    hub: str = ""
    also: tuple[str, ...] = ()
    source: str = ""
    like: str = ""
    config: dict[str, Any] = {}


@cache
def _load() -> tuple[MappingProxyType[str, Entry], MappingProxyType[str, str]]:
    written: dict[str, _Written] = {}
    folder = resources.files("linkwise.model") / "facts"
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".yaml"):
            continue
        content = parse_yaml_object(file.read_text(encoding="utf-8"), where=f"catalogue {file.name}")
        for name, value in convert(content, dict[str, _Written], where=f"catalogue {file.name}").items():
            if name in written:
                raise InternalError(f"{name} is in the catalogue twice")
            written[name] = value
    models = {name: _resolve(name, written) for name in written if not name.startswith("_")}
    names: dict[str, str] = {}
    for entry in models.values():
        for name in entry.names:
            if names.setdefault(name, entry.name) != entry.name:
                raise InternalError(f"the catalogue gives {name} to {names[name]} and {entry.name}")
    return MappingProxyType(models), MappingProxyType(names)


def _resolve(name: str, written: dict[str, _Written], depth: int = 0) -> Entry:
    own = written.get(name)
    if own is None or depth > 8:
        raise InternalError(f"the catalogue has no base {name}")
    config: dict[str, Any] = {}
    source = own.source
    if own.like:
        base = _resolve(own.like, written, depth + 1)
        config, source = dict(base.config), own.source or base.source
    config |= own.config
    return Entry(
        name=name,
        hub=own.hub,
        also=own.also,
        source=source,
        config=config,
    )


def entries() -> tuple[Entry, ...]:
    """Every model known by name, by name."""
    return tuple(sorted(_load()[0].values(), key=lambda e: e.name))


def find(name: str) -> Entry | None:
    """The entry of a short name or hub id, whatever its case; None when it is not known."""
    models, names = _load()
    found = names.get(name.strip().lower())
    return models[found] if found else None


def near(name: str, count: int = 3) -> list[str]:
    """Known names like the one given, best first."""
    plain = name.strip().lower()
    names = _load()[1]
    hits = difflib.get_close_matches(plain, names, n=2 * count, cutoff=0.5)
    hits += difflib.get_close_matches(plain.rpartition("/")[2], names, n=2 * count, cutoff=0.5)
    return list(dict.fromkeys(names[h] for h in hits))[:count]


def unknown(name: str, reason: str = "") -> InputError:
    """The error for a name nobody knows: what is like it, and how to give a folder instead."""
    like = near(name)
    hint = f"Known and similar: {', '.join(like)}. " if like else ""
    return InputError(
        reason or f"no model {name[:120]!r} is known",
        where="model",
        expected="a folder with config.json, a config.json, a catalogue name, or a hub id",
        hint=hint + "Give the folder that holds its config.json",
    )
