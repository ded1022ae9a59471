"""Of a script's conditions and blocks: whether a test holds, and what commands set."""

import re
from collections.abc import Callable, Mapping, Sequence

from linkwise.launch import shell
from linkwise.launch.expand import Text, changed
from linkwise.launch.shell import Body, Function, Loop, Simple, Sum
from linkwise.launch.work import Work

DECLARES = {"export", "declare", "typeset", "local", "readonly"}
READS = {"read", "mapfile", "readarray", "getopts", "let"}
PATTERN = re.compile(r"[*?\[]")
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip


def holds(words: Sequence[Text]) -> bool | None:
    """Whether a test of known words holds; None where that cannot be told."""
    if not all(w.known for w in words):
        return None
    match [w.text for w in words]:
        case []:
            return False
        case ["!", *_]:
            inner = holds(words[1:])
            return None if inner is None else not inner
        case [one]:
            return bool(one)
        case ["-n", one]:
            return bool(one)
        case ["-z", one]:
            return not one
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, operator, right] if operator in _NUMBERS and all(
            re.fullmatch(r"-?(0|[1-9]\d{0,8})", n) for n in (left, right)
        ):
            return _NUMBERS[operator](int(left), int(right))
    return None


def matches(word: Text, written: str, pattern: Text) -> bool | None:
    if written == "*":
        return True
    if not word.known or not pattern.known or PATTERN.search(written) or "\\" in written:
        return None
    return word.text == pattern.text


def _commands(node: object, work: Work, *, functions: bool) -> list[Simple | Sum | Loop]:
    """Every command inside blocks, of functions defined there too or not. Blocks that are not walked count as steps."""
    found: list[Simple | Sum | Loop] = []
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Simple | Sum | Loop):
            found.append(one)
        if isinstance(one, Simple):
            work.words(one.words)
        elif isinstance(one, Sum):
            work.words((one.text,))
        elif isinstance(one, tuple) and (functions or not isinstance(one, Function)):
            work.step(len(one))
            waiting += one
    return found


def sets(body: Body, functions: Mapping[str, Body | None], work: Work) -> set[str]:
    """Names that commands may set; "*": any."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting: list[object] = [body]
    while waiting:
        for command in _commands(waiting.pop(), work, functions=True):
            if isinstance(command, Loop):
                found |= {command.name} - {""}
                continue
            if isinstance(command, Sum):
                found |= changed(command.text)
                continue
            head = command.words[0] if command.words else ""
            if head == "eval":
                return {"*"}
            if head in functions and head not in seen:
                seen.add(head)
                waiting.append(functions[head] or ())
            for word in command.words:
                if match := shell.ASSIGNMENT.match(word):
                    found.add(match[1])
                found |= set(re.findall(r"\$\{([A-Za-z_]\w*):?=", word))
                found |= changed(word) if "$((" in word else set()
                if head in READS | {"printf", "unset"}:
                    found |= set(re.findall(r"^[A-Za-z_]\w*$", word)) - {head}
    return found


def jumps(body: Body, work: Work) -> bool:
    return any(
        isinstance(c, Simple) and c.words[:1] in {("break",), ("continue",), ("return",)}
        for c in _commands(body, work, functions=False)
    )


def waits(body: Body, work: Work) -> bool:
    """Whether a turn of a loop ends what it started before the next."""
    return any(isinstance(c, Simple) and c.words[:1] == ("wait",) for c in _commands(body, work, functions=False))


def local_names(body: Body, work: Work) -> set[str]:
    return {
        re.split(r"[+=]", word)[0]
        for command in _commands(body, work, functions=False)
        if isinstance(command, Simple) and command.words[:1] in {("local",), ("declare",), ("typeset",)}
        for word in command.words[1:]
        if not word.startswith("-")
    }
