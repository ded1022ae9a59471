"""What a script's variables, functions and arguments are at one place of it, and after ways that meet again."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linkwise.launch import shell
from linkwise.launch.expand import Reader, Scope, Text, Value, fields, text
from linkwise.launch.shell import Body, Chain, Simple


class State(NamedTuple):
    scope: Scope
    functions: Mapping[str, Body | None]  # None: defined differently by branches
    exported: frozenset[str]


def merge(one: State | None, other: State | None, reader: Reader) -> State | None:
    """After two ways; None stands for one that ends. What they set differently is not known."""
    if one is None or other is None or one is other:
        return one or other
    mine, theirs = one.scope.variables, other.scope.variables
    reader.work.step(len(mine) + len(one.functions))
    made: dict[str, Value] = dict(mine)
    if mine is not theirs:
        for name in mine.keys() | theirs.keys():
            left, right = mine.get(name), theirs.get(name)
            if left is not right and left != right:
                made[name] = _either(name, left, right, reader)
    arguments = one.scope.arguments
    if arguments != other.scope.arguments:
        arguments = (reader.hole("$@", "is set under a condition", splits=True),)
    functions = one.functions
    if functions is not other.functions:
        both = functions.keys() | other.functions.keys()
        functions = {n: functions.get(n) if functions.get(n) == other.functions.get(n) else None for n in both}
    return State(Scope(made, arguments), functions, one.exported | other.exported)


def _either(name: str, left: Value | None, right: Value | None, reader: Reader) -> Text:
    for known in (left, right):
        if isinstance(known, Text) and known.text == f"${name}":
            return known._replace(splits=True)
    values = [v for v in (left, right) if isinstance(v, Text)]
    splits = len(values) < 2 or any(not re.fullmatch(r"[^-\s]\S*", v.text) for v in values)
    reader.unknown[f"${name}"] = "is set under a condition"
    return Text(f"${name}", known=False, splits=splits)


def lost(names: set[str], state: State, why: str, reader: Reader, *, splits: bool = True) -> State:
    """After something that sets these names ("*": all) to what is not known."""
    gone = state.scope.variables.keys() if "*" in names else names
    reader.work.step(len(gone))
    reader.unknown |= {f"${name}": why for name in gone}
    return state._replace(scope=state.scope.assign({n: Text(f"${n}", known=False, splits=splits) for n in gone}))


def assign(word: str, state: State, reader: Reader) -> State:
    """NAME=VALUE, NAME+=VALUE and NAME=(WORDS)."""
    head, _, value = word.partition("=")
    plus, scope = head.endswith("+"), state.scope
    name, index, _ = head.removesuffix("+").partition("[")
    if index:
        return lost({name}, state, "is an array of which one word is set", reader)
    before = scope.variables.get(name)
    made: Value
    if value.startswith("(") and value.endswith(")"):
        listed: list[Text] = [] if not plus or before is None else [before] if isinstance(before, Text) else [*before]
        for part in shell.parse("_ " + re.sub(r"(?m)(^|\s)#.*$|\n", " ", value[1:-1]), reader.work):
            for inner in _simple_words(part):
                listed += fields(inner, scope, reader)[0]
        reader.work.step(len(listed))
        made = tuple(listed)
    else:
        made = text(value, scope, reader)
        if plus:
            made = _added(name, before, made, reader)
        if isinstance(made, Text):
            reader.work.made(made.text)
            made = _named(name, made, reader)
    return state._replace(scope=scope.assign({name: made}))


def _added(name: str, before: Value | None, new: Text, reader: Reader) -> Value:
    """NAME+=VALUE: behind the text there is, of an array behind its first word."""
    if before is None:
        before = reader.hole(f"${name}", "is set nowhere in the file", splits=True)
    first = before if isinstance(before, Text) else (before or (Text(""),))[0]
    made = Text(first.text + new.text, first.known and new.known, first.splits or new.splits)
    return made if isinstance(before, Text) else (made, *before[1:])


def _named(name: str, made: Text, reader: Reader) -> Text:
    """A value that is one unknown, under the variable's own name."""
    own = f"${name}"
    if made.known or made.text == own or not re.fullmatch(r"\$\w+|\$[({]\S*[)}]|`\S*`", made.text):
        return made
    why = f", which {reader.unknown.get(made.text, 'is not known')}" if made.text[1] not in "({" else ""
    reader.unknown[own] = f"is set from {made.text}{why}"
    return made._replace(text=own)


def rearranged(name: str, found: Sequence[Text], state: State) -> State:
    """After `set -- WORDS`, `shift [N]` and `unset NAMES`."""
    words, scope = [w.text for w in found], state.scope
    if name == "unset":
        scope = scope.assign(dict.fromkeys({*words[1:]} & scope.variables.keys(), ()))
    elif name == "shift":
        count = int(words[1]) if len(words) > 1 and re.fullmatch(r"\d{1,3}", words[1]) else 1
        scope = scope._replace(arguments=scope.arguments[count:])
    elif words[1:2] == ["--"] or (len(words) > 1 and not words[1].startswith(("-", "+"))):
        scope = scope._replace(arguments=tuple(found[2:] if words[1] == "--" else found[1:]))
    return state._replace(scope=scope)


def _simple_words(chain: Chain) -> Sequence[str]:
    command = chain.pipes[0][1].parts[0]
    return command.words[1:] if isinstance(command, Simple) else ()
