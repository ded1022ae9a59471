"""A shell script taken apart: commands, and what stands around them. Words stay as they are written; nothing is run."""

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from linkwise.core.errors import InputError
from linkwise.launch.expand import bracket_end, piece_end
from linkwise.launch.work import Work, bounded

_MOST_DEEP = 40
_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\[ \t]*\r?\n)+)"
    r"|(?P<comment>#[^\n]*)"
    r"|(?P<redirect>(?:\d|&)?>(?!\()[>|]?(?:&\d?-?)?|\d?<<<|\d?<<-?|\d?<(?!\()>?(?:&\d?-?)?)"
    r"|(?P<end>;;&|;;|;&|&&|\|\||\|&|[;&|)\n])"
)
_GOES_ON = re.compile(r"\\[ \t]*\r?\n")  # a line, also where blanks slipped in behind the sign
_PLAIN = re.compile(r"(?:[^\s;&|()<>'\"`\\$]|[<>](?=\())+")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGNMENT = re.compile(rf"({_NAME})(\[[^\]]{{1,80}}\])?(\+?)=")
_INPUTS: dict[str, Literal["", "document", "string"]] = {"document": "document", "string": "string", "literal": ""}
_OPENING = {"then", "do", "else", "elif", "fi", "done", "esac", "}", "in"}


class Simple(NamedTuple):
    """Words as written. stdin: a here-document's or here-string's text; quotes: how that is expanded, "" = not."""

    words: tuple[str, ...]
    stdin: str | None = None
    quotes: Literal["", "document", "string"] = ""


class Test(NamedTuple):
    """What stands in [[ ]]; plain: words alone, no && and no brackets."""

    words: tuple[str, ...]
    plain: bool


class Sum(NamedTuple):
    """(( EXPRESSION ))"""

    text: str


class Group(NamedTuple):
    """{ } or, in a shell of its own, ( )."""

    body: "Body"
    own: bool


class If(NamedTuple):
    """arms: test and body; the else has no test."""

    arms: "tuple[tuple[Body | None, Body], ...]"


class Loop(NamedTuple):
    """for (test is None) or while and until. words: None in `for x; do` and `for ((`."""

    name: str
    words: tuple[str, ...] | None
    test: "Body | None"
    until: bool
    body: "Body"


class Case(NamedTuple):
    word: str
    arms: "tuple[tuple[tuple[str, ...], Body], ...]"


class Function(NamedTuple):
    name: str
    body: "Body"


class Pipe(NamedTuple):
    parts: "tuple[Command, ...]"
    negated: bool


class Chain(NamedTuple):
    """Pipes joined by && and ||; the first's joint is "&&"."""

    pipes: tuple[tuple[str, Pipe], ...]
    background: bool


Command = Simple | Test | Sum | Group | If | Loop | Case | Function
Body = tuple[Chain, ...]


class _Token(NamedTuple):
    kind: str  # word, end, open (a bracket), sum; of standard input: document, string, literal
    text: str


def parse(text: str, work: Work) -> Body:
    """A script's commands in order. Raises InputError for quotes or blocks that do not close, and too much text."""
    work.step(len(text))
    reading = _Reading(_tokens(bounded(text)))
    found = reading.body(frozenset())
    if reading.at < len(reading.tokens):
        raise _wrong(f"{reading.tokens[reading.at].text!r} opens nowhere")
    return found


def _wrong(message: str) -> InputError:
    return InputError(message[:200], where="script", expected="a shell script with balanced quotes and blocks")


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    waiting: list[tuple[str, bool, bool]] = []  # here-documents: their end, tabs stripped, taken literally
    target, at = "", 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is not None and not (match["redirect"] is None and match["end"] is None):
            at = match.end()
            if match["redirect"] is not None:
                target = "" if re.search(r"&(\d|-)$", match["redirect"]) else match["redirect"].lstrip("0123456789")
                continue
            found.append(_Token("end", match["end"]))
            if match["end"] == "\n":
                for end, tabs, literal in waiting:
                    body, at = _document(text, at, end, tabs)
                    found.insert(len(found) - 1, _Token("literal" if literal else "document", body))
                waiting.clear()
        elif match is not None:
            at = match.end()
        elif text.startswith("((", at):
            stop = bracket_end(text, at)
            a_sum = text.endswith("))", at + 2, stop)
            found.append(_Token("sum", text[at + 2 : stop - 2]) if a_sum else _Token("open", "("))
            at = stop if a_sum else at + 1
        elif text[at] == "(":
            found.append(_Token("open", "("))
            at += 1
        else:
            start, at = at, _word_end(text, at)
            word = text[start:at]
            if target.startswith("<<<"):
                found.append(_Token("string", word))
            elif target.startswith("<<"):
                waiting.append((re.sub(r"['\"\\]", "", word), target == "<<-", bool(re.search(r"['\"\\]", word))))
            elif not target:
                found.append(_Token("word", word))
            target = ""
    return found


def _word_end(text: str, at: int) -> int:
    start = at
    while at < len(text):
        if plain := _PLAIN.match(text, at):
            at = plain.end()
            if text.startswith("(", at) and (
                text[at - 1] in "<>" or (text[at - 1] == "=" and ASSIGNMENT.fullmatch(text, start, at))
            ):
                at = bracket_end(text, at)
        elif text[at] in "'\"`$\\" and (text.startswith("\\\n", at) or not _GOES_ON.match(text, at)):
            at = piece_end(text, at)
        else:
            break
    if at == start:
        raise _wrong(f"not a command: {text[at : at + 40]!r}")
    return at


def _document(text: str, at: int, end: str, tabs: bool) -> tuple[str, int]:
    """A here-document's text and where the script goes on: behind the line of its end, or the script's end."""
    lines: list[str] = []
    while at < len(text):
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        line, at = text[at:stop], stop + 1
        line = line.lstrip("\t") if tabs else line
        if line.rstrip("\r") == end:
            break
        lines.append(line + "\n")
    return "".join(lines), min(at, len(text))


class _Reading:
    """Tokens read from left to right, one function a construct."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens, self.at, self.deep = tokens, 0, 0

    def peek(self, kind: str = "word", ahead: int = 0) -> str:
        """The next token's text when it is of this kind, else nothing."""
        at = self.at + ahead
        return self.tokens[at].text if at < len(self.tokens) and self.tokens[at].kind == kind else ""

    def take(self, text: str, kind: str = "word") -> None:
        if self.peek(kind) != text:
            raise _wrong(f"no {text!r} where a block needs it")
        self.at += 1

    def blank(self, also: str = "\n") -> None:
        while self.peek("end") and self.peek("end") in also:
            self.at += 1

    def deeper(self) -> None:
        self.deep += 1
        if self.deep > _MOST_DEEP:
            raise _wrong(f"blocks in more than {_MOST_DEEP} blocks")

    def body(self, stop: frozenset[str]) -> Body:
        self.deeper()
        found: list[Chain] = []
        while True:
            self.blank("\n;")
            if self.at >= len(self.tokens) or self.peek() in stop or self.peek("end") in {")", ";;", ";&", ";;&"}:
                break
            found.append(self.chain())
        self.deep -= 1
        return tuple(found)

    def chain(self) -> Chain:
        pipes = [("&&", self.pipe())]
        while (joint := self.peek("end")) in {"&&", "||"}:
            self.at += 1
            self.blank()
            pipes.append((joint, self.pipe()))
        background = self.peek("end") == "&"
        self.at += background or self.peek("end") in {";", "\n"}
        return Chain(tuple(pipes), background)

    def pipe(self) -> Pipe:
        negated = False
        while self.peek() in {"!", "time"}:
            negated ^= self.peek() == "!"
            self.at += 1
        parts = [self.command()]
        while self.peek("end") in {"|", "|&"}:
            self.at += 1
            self.blank()
            parts.append(self.command())
        return Pipe(tuple(parts), negated)

    def command(self) -> Command:
        found = self.block()
        if found is None:
            return self.simple()
        while self.at < len(self.tokens) and self.tokens[self.at].kind in _INPUTS:
            self.at += 1
        return found

    def block(self) -> Command | None:
        word = self.peek()
        if self.peek("open"):
            self.at += 1
            inner = self.body(frozenset())
            self.take(")", "end")
            return Group(inner, own=True)
        if self.at < len(self.tokens) and self.tokens[self.at].kind == "sum":
            self.at += 1
            return Sum(self.tokens[self.at - 1].text)
        if word == "function" or (self.peek("open", 1) and self.peek("end", 2) == ")"):
            return self.function()
        readers: dict[str, Callable[[str], Command]] = {
            "{": self.group, "if": self.branches, "while": self.loop, "until": self.loop, "for": self.each,
            "select": self.each, "case": self.case, "[[": self.test,
        }  # fmt: skip
        reader = readers.get(word)
        if reader is None and word in _OPENING - {"in"}:
            raise _wrong(f"{word!r} opens nowhere")
        if reader is None:
            return None
        self.at += 1
        return reader(word)

    def function(self) -> Function:
        self.at += self.peek() == "function"
        name = self.peek()
        self.at += 1
        if self.peek("open"):
            self.at += 1
            self.take(")", "end")
        self.blank()
        self.deeper()
        inner = self.command()
        self.deep -= 1
        return Function(name, (Chain((("&&", Pipe((inner,), negated=False)),), background=False),))

    def group(self, _: str) -> Group:
        inner = self.body(frozenset({"}"}))
        self.take("}")
        return Group(inner, own=False)

    def branches(self, _: str) -> If:
        arms: list[tuple[Body | None, Body]] = []
        test: Body | None = self.body(frozenset({"then"}))
        while True:
            if test is not None:
                self.take("then")
            arms.append((test, self.body(frozenset({"elif", "else", "fi"}))))
            closing = self.peek()
            if closing == "fi" or test is None:
                self.take("fi")
                return If(tuple(arms))
            if not closing:
                raise _wrong("no 'fi' where a block needs it")
            self.at += 1
            test = self.body(frozenset({"then"})) if closing == "elif" else None

    def loop(self, word: str) -> Loop:
        test = self.body(frozenset({"do"}))
        return Loop("", None, test, word == "until", self.done())

    def each(self, _: str) -> Loop:
        name = self.peek()
        self.at += 1
        self.blank()
        words: list[str] | None = None
        if self.peek() == "in":
            self.at += 1
            words = []
            while word := self.peek():
                words.append(word)
                self.at += 1
        self.blank("\n;")
        return Loop(name, None if words is None else tuple(words), None, until=False, body=self.done())

    def done(self) -> Body:
        self.take("do")
        body = self.body(frozenset({"done"}))
        self.take("done")
        return body

    def case(self, _: str) -> Case:
        word = self.peek()
        self.at += 1
        self.blank()
        self.take("in")
        arms: list[tuple[tuple[str, ...], Body]] = []
        while True:
            self.blank()
            if self.peek() == "esac":
                self.at += 1
                return Case(word, tuple(arms))
            self.at += self.peek("open") == "("
            patterns = [self.peek()]
            self.at += 1
            while self.peek("end") == "|":
                patterns.append(self.peek(ahead=1))
                self.at += 2
            self.take(")", "end")
            arms.append((tuple(patterns), self.body(frozenset({"esac"}))))
            if self.peek("end") in {";&", ";;&"}:
                raise _wrong(f"{self.peek('end')} of a case is not read")
            self.at += self.peek("end") == ";;"

    def test(self, _: str) -> Test:
        words: list[str] = []
        plain = True
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token == ("word", "]]"):
                return Test(tuple(words), plain)
            words.append(token.text)
            plain &= token.kind == "word"
        raise _wrong("no ']]' where a block needs it")

    def simple(self) -> Simple:
        words: list[str] = []
        stdin: str | None = None
        quotes: Literal["", "document", "string"] = ""
        while self.at < len(self.tokens) and (token := self.tokens[self.at]).kind in {"word", *_INPUTS}:
            if token.kind == "word":
                words.append(token.text)
            else:
                stdin, quotes = token.text, _INPUTS[token.kind]
            self.at += 1
        if not words and stdin is None and self.at < len(self.tokens) and self.tokens[self.at].kind in {"open", "sum"}:
            raise _wrong(f"not a command: {self.tokens[self.at].text!r}")
        if self.at < len(self.tokens) and self.tokens[self.at].kind in {"open", "sum"}:
            raise _wrong(f"{' '.join(words)[:80]!r} goes on with a bracket")
        return Simple(tuple(words), stdin, quotes)
