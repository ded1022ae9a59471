"""What the calls answer: the values of plan/ with a repr a person reads, as files that come back byte for byte."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from linkwise import doors
from linkwise.core.errors import InputError
from linkwise.core.files import FilePath, read_bytes, write_bytes
from linkwise.core.schema import FIT_SCHEMA, HANDOFF_SCHEMA, NOPLAN_SCHEMA, PLAN_SCHEMA, decode_json, encode_json
from linkwise.plan import traffic_types, types
from linkwise.plan.handoff_pair import Pair

# A plan holds every tensor of its model and every op of its step: a megabyte for the largest. Reading the most, with
# its check for fields given twice, takes two seconds.
MAX_PLAN_BYTES = 64 * 2**20


class Fit(types.Fit, frozen=True, kw_only=True):
    """The answer of `fit`: plan/types.py says what it holds. Its repr is the command's first screen."""

    def __repr__(self) -> str:
        from linkwise.report.fit import screen
        from linkwise.report.text import wrapped

        return wrapped(screen(self))


class Plan(types.Plan, frozen=True, kw_only=True):
    """The answer of `plan`: plan/types.py says what it holds. Its repr is the command's first screen."""

    @property
    def feasible(self) -> bool:
        """True: this is a plan. `NoPlan` says False; neither value is false by itself."""
        return True

    def __repr__(self) -> str:
        from linkwise.report.plan import screen
        from linkwise.report.text import wrapped

        return wrapped(screen(self))


class Handoff(Pair, frozen=True, kw_only=True):
    """The answer of `handoff`: plan/handoff_pair.py says what it holds. Its repr is the command's first screen."""

    schema: str = HANDOFF_SCHEMA

    @property
    def holds(self) -> bool:
        """The whole answer: the connector does it, the route keeps up, and the pools serve the rate."""
        return self.keeps_up and self.refused is None and not self.unserved

    def __repr__(self) -> str:
        from linkwise.report.handoff import screen
        from linkwise.report.text import wrapped

        return wrapped(screen(self))


class Traffic(traffic_types.Traffic, frozen=True, kw_only=True):
    """The answer of `traffic`: plan/traffic_types.py says what it holds. Its repr is the command's picture."""

    def __repr__(self) -> str:
        from linkwise.report.traffic import summary

        return "\n".join(summary(self))


class _Head(msgspec.Struct, frozen=True):
    """What says which kind of file it is."""

    schema: str = ""


class NoPlan(types.NoPlan, frozen=True, kw_only=True):
    """What `plan` answers when no layout is feasible. Its repr is the command's first screen."""

    @property
    def feasible(self) -> bool:
        """False: no layout is feasible."""
        return False

    def __repr__(self) -> str:
        from linkwise.report.plan import no_plan
        from linkwise.report.text import wrapped

        return wrapped(no_plan(self))


S = TypeVar("S", bound=msgspec.Struct)


def as_kind(kind: type[S], value: msgspec.Struct) -> S:
    """The same value with a repr: fields are shared, nothing is copied."""
    return kind(**{f: getattr(value, f) for f in value.__struct_fields__})


_KINDS: dict[str, type[Plan] | type[NoPlan] | type[Fit] | type[Handoff]] = {
    PLAN_SCHEMA: Plan,
    NOPLAN_SCHEMA: NoPlan,
    FIT_SCHEMA: Fit,
    HANDOFF_SCHEMA: Handoff,
}


def load(path: FilePath) -> Plan | NoPlan | Fit | Handoff:
    """A plan, a refusal to plan, a fit or a handoff read back from its file, validated."""
    where = doors.path(path)
    text = read_bytes(where, max_bytes=MAX_PLAN_BYTES)
    ours = f"a file written by linkwise plan -o ({PLAN_SCHEMA}), or by fit, plan or handoff with --json"
    if not text.lstrip().startswith(b"{"):  # YAML (a cluster, a calibration), a table, an empty file
        raise InputError("not a JSON object", where=where, expected=ours)
    schema = decode_json(text, _Head, where=where).schema
    kind = _KINDS.get(schema)
    if kind is None:
        raise InputError(f"schema {schema[:80]!r}", where=where, expected=ours)
    value = decode_json(text, kind, where=where)
    doors.saved(value, where)
    return value


def save(value: msgspec.Struct, path: FilePath, *, private: bool = False) -> None:
    """Write a value as JSON; the file is complete or unchanged. private: a file that only the user may read."""
    doors.of_type(value, msgspec.Struct, "value", "a plan, a fit or a handoff")
    write_bytes(doors.path(path), encode_json(value), mode=0o600 if private else 0o666, regular=private)


def plan_of(value: "FilePath | types.Plan") -> types.Plan:
    """The plan, or the one in a file. Raises InputError for anything else."""
    found = load(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(found, types.Plan):
        kinds = {types.NoPlan: "a refusal to plan", types.Fit: "a fit", Handoff: "a handoff, which goes beside one"}
        said = next(
            (f"is no plan but {words}" for kind, words in kinds.items() if isinstance(found, kind)), "is no plan"
        )
        raise InputError(said, where=called(value, "value"), expected="a plan, as linkwise plan -o FILE writes it")
    return found


def called(value: object, otherwise: str) -> str:
    """The name of a file; of a value, the word given."""
    return Path(value).name if isinstance(value, str | os.PathLike) else otherwise
