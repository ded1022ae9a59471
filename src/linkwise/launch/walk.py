"""A script walked in its order: what each variable is where an engine is started. Nothing is run.

A condition on known variables chooses its branch. Any other leaves both: what they set differently is not known after
them, and what stays unknown keeps its reason.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.launch import programs, shell
from linkwise.launch.conditions import DECLARES, PATTERN, READS, holds, jumps, local_names, matches, sets, waits
from linkwise.launch.expand import Reader, Scope, Text, Value, bare, changed, document, fields, text
from linkwise.launch.programs import Script
from linkwise.launch.shell import Body, Case, Chain, Command, Function, Group, If, Loop, Pipe, Simple, Sum, Test
from linkwise.launch.state import State, assign, lost, merge, rearranged
from linkwise.launch.work import Work, few

REFERS = "is set by a reference (valueFrom), not by a value"
_MOST_SHELLS = 3  # one in another
_MOST_CALLS = 30
_MOST_DEEP = 80  # blocks, functions and shells in one another
_MOST_TURNS = 64
_COMMAND = 50  # steps of a command, beside those of its words
_SUBSTITUTES = re.compile(r"\$\((?!\()|`")  # a command, whose failure is the assignment's
_LEAVES = {"exit", "return", "break", "continue"}
_SUCCEEDS = DECLARES | {"echo", "printf", "set", "shift", ":", "true", "unset", "trap", "shopt", "umask", "hash"}


class Launch(NamedTuple):
    """A command that starts an engine. unknown: why what is left as written is not known; refused: why it cannot be
    read at all; path: the branch taken at each open choice before it; stays: it goes on beside what follows."""

    words: tuple[str, ...]
    unknown: Mapping[str, str] = {}
    refused: str = ""
    notes: tuple[str, ...] = ()
    path: tuple[tuple[int, int], ...] = ()
    stays: bool = False

    def together(self, later: "Launch") -> bool:
        """Whether both run at one time: not in two branches of one choice, and this one does not have to end first."""
        mine = dict(self.path)
        return self.stays and all(mine.get(choice, arm) == arm for choice, arm in later.path)


class _Place(NamedTuple):
    path: tuple[tuple[int, int], ...] = ()
    stays: bool = False
    repeats: bool = False
    shells: int = 0
    calls: int = 0
    deep: int = 0


# The state where a command succeeds and where it fails; None where it does not come to that.
_Outcome = tuple[State | None, State | None]


def launches(given: Script, variables: Mapping[str, Text], work: Work) -> list[Launch]:
    """Every engine that a script starts, in order. Raises InputError as the parser, and for too many steps."""
    walk = _Walk(work)
    walk.reader.unknown |= {v.text: REFERS for v in variables.values() if not v.known}
    scope = Scope(dict(variables), tuple(map(Text, given.arguments)))
    walk.body(walk.parse(given.text), State(scope, {}, frozenset(variables)), _Place())
    return walk.found


class _Walk:
    def __init__(self, work: Work) -> None:
        self.reader = Reader(work)
        self.found: list[Launch] = []
        self.sourced: list[str] = []
        self.choices = 0
        self.jumps: list[list[State]] = []  # break and continue, by loop
        self.returns: list[list[State]] = []  # by function

    def merge(self, one: State | None, other: State | None) -> State | None:
        return merge(one, other, self.reader)

    def parse(self, text: str) -> Body:
        return shell.parse(text, self.reader.work)

    def body(self, body: Body, state: State | None, place: _Place) -> _Outcome:
        if place.deep > _MOST_DEEP:
            raise InputError(f"blocks in more than {_MOST_DEEP} blocks", where="script", expected="fewer")
        good, bad = state, None
        for chain in body:
            now = self.merge(good, bad)
            if now is None:
                return None, None
            good, bad = self.chain(chain, now, place._replace(deep=place.deep + 1))
        return good, bad

    def chain(self, chain: Chain, state: State, place: _Place) -> _Outcome:
        here = place._replace(stays=place.stays or chain.background)
        good: State | None = state
        bad: State | None = None
        for joint, pipe in chain.pipes:
            if joint == "&&" and good is not None:
                good, failed = self.pipe(pipe, good, here)
                bad = self.merge(bad, failed)
            elif joint == "||" and bad is not None:
                passed, bad = self.pipe(pipe, bad, here)
                good = self.merge(good, passed)
        return (state, None) if chain.background else (good, bad)

    def pipe(self, pipe: Pipe, state: State, place: _Place) -> _Outcome:
        if len(pipe.parts) > 1:
            for part in pipe.parts:
                self.command(part, state, place)
            return state, state
        good, bad = self.command(pipe.parts[0], state, place)
        return (bad, good) if pipe.negated else (good, bad)

    def command(self, command: Command, state: State, place: _Place) -> _Outcome:
        self.reader.work.step(_COMMAND)
        match command:
            case Simple():
                return self.simple(command, state, place)
            case Group():
                good, bad = self.body(command.body, state, place)
                if command.own:
                    return state, state
                return good, bad
            case Function():
                few(state.functions)
                return state._replace(functions={**state.functions, command.name: command.body}), None
            case If():
                return self.branches(command, state, place)
            case Case():
                return self.case(command, state, place)
            case Loop():
                return self.loop(command, state, place)
            case Sum():
                self.reader.work.words((command.text,))
                names = changed(command.text)
                return (after := lost(names, state, "is changed by a sum", self.reader, splits=False)), after
            case Test():
                words = [text(w, state.scope, self.reader) for w in command.words]
                pattern = bool(PATTERN.search(command.words[-1])) if len(words) == 3 else False
                return _by(None if pattern or not command.plain else holds(words), state)

    def branches(self, command: If, state: State, place: _Place) -> _Outcome:
        self.choices += 1
        choice, rest = self.choices, state
        good: State | None = None
        bad: State | None = None
        for number, (test, body) in enumerate(command.arms):
            passed, failed = (rest, None) if test is None else self.body(test, rest, place)
            if passed is not None:
                path = ((choice, number),) if failed is not None or number else ()
                done = self.body(body, passed, place._replace(path=place.path + path))
                good, bad = self.merge(good, done[0]), self.merge(bad, done[1])
            if failed is None:
                return good, bad
            rest = failed
        return self.merge(good, rest), bad

    def case(self, command: Case, state: State, place: _Place) -> _Outcome:
        self.choices += 1
        choice, word = self.choices, text(command.word, state.scope, self.reader)
        good: State | None = None
        bad: State | None = None
        for number, (patterns, body) in enumerate(command.arms):
            found = [matches(word, p, text(p, state.scope, self.reader)) for p in patterns]
            if not any(m is not False for m in found):
                continue
            done = self.body(body, state, place._replace(path=(*place.path, (choice, number))))
            good, bad = self.merge(good, done[0]), self.merge(bad, done[1])
            if True in found:
                return good, bad
        return self.merge(good, state), bad

    def loop(self, command: Loop, state: State, place: _Place) -> _Outcome:
        work = self.reader.work
        words: list[Text] | None = None
        if command.test is None and command.words is not None:
            words = [w for written in command.words for w in self.turns(written, state.scope)]
            if len(words) > _MOST_TURNS or not all(w.known for w in words) or jumps(command.body, work):
                words = None
        if words is not None:
            now: State | None = state
            for word in words:
                if now is not None:
                    now = now._replace(scope=now.scope.assign({command.name: word}))
                    now = self.merge(*self.body(command.body, now, place))
            return now, None
        counted = command.test is None or not waits(command.body, work)
        named = sets(command.body, state.functions, work) | sets(command.test or (), state.functions, work)
        before = lost({command.name} - {""}, state, "is a word of a loop's list", self.reader, splits=False)
        before = lost(named - {command.name}, before, "is set in a loop", self.reader)
        self.jumps.append([])
        good, bad = self.body(command.test, before, place) if command.test is not None else (before, before)
        if command.until:
            good, bad = bad, good
        if good is not None:
            self.body(command.body, good, place._replace(repeats=place.repeats or counted))
        after = bad
        for left in self.jumps.pop():
            after = self.merge(after, left)
        return after, None

    def turns(self, written: str, scope: Scope) -> list[Text]:
        """A word of a loop's list; {1..4} and $(seq 1 4) count."""
        counted = re.fullmatch(r"\{(\d{1,4})\.\.(\d{1,4})\}|\$\(seq (?:(\d{1,4}) )?(\d{1,4})\)", written)
        if counted:
            first, last = (counted[1], counted[2]) if counted[1] else (counted[3] or "1", counted[4])
            return [Text(str(n)) for n in range(int(first), int(last) + 1)]
        unquoted = bare(written)
        if re.search(r"\{[^{}]*(,|\.\.)|^~", unquoted) or PATTERN.search(unquoted):
            return [self.reader.hole("$(files)", "files or a list that the shell makes")]
        return fields(written, scope, self.reader)[0]

    def simple(self, command: Simple, state: State, place: _Place) -> _Outcome:
        at = 0
        while at < len(command.words) and shell.ASSIGNMENT.match(command.words[at]):
            at += 1
        assigned, rest = command.words[:at], command.words[at:]
        found: list[Text] = []
        for word in rest:
            if found and found[0].text in DECLARES and shell.ASSIGNMENT.match(word):
                found.append(Text(word))  # not split, and assigned below
                continue
            more, scope = fields(word, state.scope, self.reader)
            found += more
            state = state._replace(scope=scope)
        if not found:
            for word in assigned:
                state = assign(word, state, self.reader)
            return (state, state) if any(_SUBSTITUTES.search(w) for w in assigned) else (state, None)
        before = [f"{word.partition('=')[0]}={text(word.partition('=')[2], state.scope, self.reader).text}"
                  for word in assigned if "[" not in word.partition("=")[0]]  # fmt: skip
        name = found[0].text
        if name in state.functions:
            return self.call(name, found[1:], state, place)
        known = self.builtin(name, found, rest, state, place)
        if known is not None:
            return known
        return self.run(before, found, command, state, place)

    def run(
        self, before: list[str], found: list[Text], command: Simple, state: State, place: _Place
    ) -> _Outcome:  # fmt: skip
        words = [w.text for w in found]
        started = programs.program(words)
        stdin = command.stdin
        if stdin is not None and command.quotes == "document":
            stdin = document(stdin, state.scope, self.reader)
        elif stdin is not None and command.quotes == "string":
            stdin = text(stdin, state.scope, self.reader).text
        inner = programs.script(started, stdin)
        ends = words[0] == "exec" and len(words) > 1
        if inner is not None and place.shells + 1 < _MOST_SHELLS:
            scope = Scope(
                {n: v for n, v in state.scope.variables.items() if n in state.exported or _open(v)}
                | {n: Text(v) for n, _, v in (w.partition("=") for w in before)},
                tuple(map(Text, inner.arguments)),
            )  # fmt: skip
            now = State(scope, {}, state.exported)
            self.body(self.parse(inner.text), now, place._replace(shells=place.shells + 1))
        elif inner is None and programs.starts(words):
            self.launched(before, found, state, place)
        return (None, None) if ends else (state, state)

    def launched(self, before: list[str], found: list[Text], state: State, place: _Place) -> None:
        words = [w.text for w in found]
        told = {
            f"{n}={v.text}"
            for n, v in state.scope.variables.items()
            if n in state.exported and n.startswith(("VLLM_", "SGLANG_")) and isinstance(v, Text)
        }
        refused = ""
        for word in found:
            if word.splits and not refused:
                name = re.search(r"\$[\w@]+", word.text)
                written = name[0] if name else word.text
                refused = f"{written.lstrip('$')} {self.reader.unknown.get(written, 'is not known')}"
        if place.repeats and place.stays:
            refused = "a loop starts it, and how often is not known"
        # numactl and such stay in front: the engine's reader names them as ignored.
        self.found.append(
            Launch(
                (*sorted(told), *before, *words), self.reader.unknown, refused,
                tuple(f"{name} is not read: what it sets is not known" for name in dict.fromkeys(self.sourced)),
                place.path, place.stays,
            )
        )  # fmt: skip

    def call(self, name: str, arguments: Sequence[Text], state: State, place: _Place) -> _Outcome:
        body = state.functions[name]
        if body is None:
            raise InputError(f"{name}() is defined under a condition", where="script", expected="one definition")
        if place.calls > _MOST_CALLS:
            raise InputError(f"{name}() calls itself", where="script", expected="at most 30 calls in one another")
        self.returns.append([])
        inner = state._replace(scope=state.scope._replace(arguments=tuple(arguments)))
        good, bad = self.body(body, inner, place._replace(calls=place.calls + 1))
        for left in self.returns.pop():
            good, bad = self.merge(good, left), self.merge(bad, left)
        own = local_names(body, self.reader.work)

        def back(end: State | None) -> State | None:
            if end is None:
                return None
            kept = {n: v for n, v in end.scope.variables.items() if n not in own}
            kept |= {n: v for n, v in state.scope.variables.items() if n in own}
            return end._replace(scope=Scope(kept, state.scope.arguments))

        return back(good), back(bad)

    def builtin(
        self, name: str, found: list[Text], written: Sequence[str], state: State, place: _Place
    ) -> _Outcome | None:
        """What a shell's own command does to variables and to what comes after it; None for other programs."""
        words = [w.text for w in found]
        if name in DECLARES:
            return self.declare(name, words, written, state), None
        if name in READS or words[:2] == ["printf", "-v"]:
            names = {words[2]} if name == "printf" else {n for w in words[1:] for n in re.findall(r"[A-Za-z_]\w*", w)}
            after = lost(names, state, "is read while the script runs", self.reader)
            return after, after
        match name:
            case "eval":
                if place.calls > _MOST_CALLS:
                    raise InputError("eval in eval", where="script", expected=f"at most {_MOST_CALLS} in one another")
                return self.body(self.parse(" ".join(words[1:])), state, place._replace(calls=place.calls + 1))
            case "source" | ".":
                if not words[-1].endswith("/activate"):  # a Python environment's
                    self.sourced.append(words[-1][:120])
                return state, state
            case "[" | "test":
                return _by(holds(found[1:-1] if name == "[" and words[-1] == "]" else found[1:]), state)
            case "false":
                return None, state
            case "set" | "shift" | "unset":
                return rearranged(name, found, state), None
        if name in _LEAVES:
            left = self.returns if name == "return" else [] if name == "exit" else self.jumps
            if left:
                left[-1].append(state)
            return None, None
        return (state, None) if name in _SUCCEEDS else None

    def declare(self, name: str, words: Sequence[str], written: Sequence[str], state: State) -> State:
        for word in written[1:]:
            if shell.ASSIGNMENT.match(word):
                state = assign(word, state, self.reader)
            if name == "export" or "-x" in words[1:3]:
                few(state.exported)
                state = state._replace(exported=state.exported | {re.split(r"[+=]", word)[0]})
        return state


def _open(value: Value) -> bool:
    """A text that is not known, and stays so in a shell that does not get it."""
    return isinstance(value, Text) and not value.known


def _by(holds: bool | None, state: State) -> _Outcome:
    return (state if holds is not False else None), (state if holds is not True else None)
