"""A script's words as a shell expands them: variables, defaults, sums of integers, arrays. Nothing is run.

What cannot be known (a command's output, a variable nobody sets) stays as it is written, without blanks, and is named;
the engine's reader then refuses it where it would be a value that matters.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linkwise.core.errors import InputError
from linkwise.launch.work import Work, bounded, few

_MOST_DEEP = 40
_PIECE = 5  # steps of a piece of a word, beside those of its characters
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_KUBERNETES = re.compile(rf"\$\$|\$\(({_NAME})\)")
_TOKEN = re.compile(rf"\s*(?:(\d{{1,9}})|\$?\{{?({_NAME})(?::-(\d{{1,9}}))?\}}?|([-+*/]))")
_CHANGES = re.compile(rf"(?:\+\+|--)\$?({_NAME})|\b({_NAME})\b\s*(?:\+\+|--|[-+*/%&|^]?=(?!=))")
_VARIABLE = re.compile(rf"\$({_NAME}|[0-9@*#?$!-])")
_BRACED = re.compile(rf"\{{(#?)({_NAME}|[0-9]+|[@*#?$!-])(\[[@*0-9]+\])?(?:(:?)([-=+?])(.*))?\}}", re.DOTALL)
_STOPS = {'"': re.compile(r'["\\$`]'), "(": re.compile(r"[()'\"`\\$]"), "{": re.compile(r"[}'\"`\\$]")}
_BLANKS = {" ", "\t", "\n"}
_LITERAL = re.compile(r"[^'\"`\\$]+")
_QUOTED = re.compile(r"[^\"`\\$]+")


class Text(NamedTuple):
    """A variable's text. known: nothing of it is left as written. splits: what it may be is no single word."""

    text: str
    known: bool = True
    splits: bool = False


Value = Text | tuple[Text, ...]  # an array's words; none: unset, too


class Reader:
    """What one reading of a script gathers: why each unknown is, and what reading takes."""

    def __init__(self, work: Work) -> None:
        self.unknown: dict[str, str] = {}
        self.work = work

    def hole(self, written: str, why: str, *, splits: bool = False) -> Text:
        """What stays as it is written, and why."""
        self.unknown.setdefault(written, why)
        return Text(written, known=False, splits=splits)


class Scope(NamedTuple):
    """Variables, and $1 and on, at one place of a script."""

    variables: Mapping[str, Value]
    arguments: tuple[Text, ...] = ()

    def assign(self, values: Mapping[str, Value]) -> "Scope":
        made = {**self.variables, **values}
        few(made)
        return self._replace(variables=made)


def by_kubernetes(text: str, variables: Mapping[str, str], work: Work) -> str:
    """$(NAME) as kubelet expands it in commands and arguments; two signs are one. Raises InputError past the bound."""
    work.step(len(text))

    def found(match: re.Match[str]) -> str:
        piece = "$" if match[1] is None else variables.get(match[1], match[0])
        work.step(len(piece))
        return piece

    return work.made(_KUBERNETES.sub(found, bounded(text)))


def piece_end(text: str, at: int, deep: int = 0) -> int:
    """Where a quoted piece, an escape or a $ expansion that begins here ends."""
    sign, following = text[at], text[at + 1 : at + 2]
    if sign == "'":
        return _find(text, "'", at + 1)
    if sign == "\\":
        return min(at + 2, len(text))
    if sign == '"':
        return _closing(text, at + 1, '"', deep)
    if sign == "`" or (sign == "$" and following == "'"):
        end = re.compile(r"(?:[^\\{0}]|\\.)*{0}".format("`" if sign == "`" else "'"), re.DOTALL)
        match = end.match(text, at + 1 + (sign == "$"))
        if match is None:
            raise _open(text, at)
        return match.end()
    if following == "(":
        return bracket_end(text, at + 1, deep)
    if following == "{":
        return _closing(text, at + 2, "{", deep)
    match = _VARIABLE.match(text, at)
    return match.end() if match else at + 1


def bracket_end(text: str, at: int, deep: int = 0) -> int:
    """Where (...) ends, the bracket included."""
    return _closing(text, at + 1, "(", deep)


def _closing(text: str, at: int, kind: str, deep: int) -> int:
    start, brackets = at, 1
    if deep > _MOST_DEEP:
        raise _open(text, at)
    while match := _STOPS[kind].search(text, at):
        sign, at = match[0], match.start()
        if sign in {'"', "}"} and sign == kind.replace("{", "}"):
            return at + 1
        if sign in "()":
            brackets += 1 if sign == "(" else -1
            if brackets > _MOST_DEEP:
                raise InputError(f"brackets in more than {_MOST_DEEP} brackets", where="script", expected="fewer")
            at += 1
            if not brackets:
                return at
        else:
            at = piece_end(text, at, deep + 1)
    raise _open(text, start)


def _find(text: str, sign: str, at: int) -> int:
    found = text.find(sign, at)
    if found < 0:
        raise _open(text, at - 1)
    return found + 1


def _open(text: str, at: int) -> InputError:
    return InputError(f"not a command: {text[at : at + 40]!r}", where="script", expected="balanced quotes")


def bare(written: str) -> str:
    """What of a word stands outside quotes and expansions: there a shell sees patterns and lists."""
    found, at = [], 0
    while at < len(written):
        plain = _LITERAL.match(written, at)
        found.append(plain[0] if plain else "")
        at = plain.end() if plain else piece_end(written, at)
    return "".join(found)


def fields(written: str, scope: Scope, reader: Reader) -> tuple[list[Text], Scope]:
    """The words that one word as written becomes, and the variables after it (${NAME:=VALUE} sets one)."""
    reader.work.words((written,))
    words: list[list[Text]] = []
    joins = False  # the next piece goes on with the last word
    for pieces, quoted in _pieces(written, scope, reader, split=True):
        for number, piece in enumerate(pieces):
            parts = [piece] if quoted else _split(piece)
            joins &= number == 0 and (quoted or piece.text[:1] not in _BLANKS)
            for part in parts:
                if not joins:
                    words.append([])
                words[-1].append(part._replace(splits=part.splits and not quoted))
                joins = False
            joins = (quoted or piece.text[-1:] not in _BLANKS) if parts else joins
    found = [_joined(word, reader) for word in words]
    return found, _assigned(written, scope, reader)


def text(written: str, scope: Scope, reader: Reader) -> Text:
    """A word as one text, as in an assignment: nothing is split."""
    reader.work.words((written,))
    found = [piece for pieces, _ in _pieces(written, scope, reader, split=False) for piece in pieces]
    return _joined(found, reader)


def document(written: str, scope: Scope, reader: Reader) -> str:
    """A here-document's text, in which quotes are signs as any other."""
    reader.work.step(len(written))
    made = [p for pieces, _ in _inner(written, scope, reader, split=False) for p in pieces]
    return reader.work.made("".join(piece.text for piece in made))


def _joined(pieces: Sequence[Text], reader: Reader) -> Text:
    found = Text(
        "".join(p.text for p in pieces), all(p.known for p in pieces), any(p.splits for p in pieces)
    )  # fmt: skip
    reader.work.made(found.text)
    return found


def _split(piece: Text) -> list[Text]:
    return [piece._replace(text=part) for part in re.split(r"[ \t\n]+", piece.text) if part]


_Pieces = list[tuple[list[Text], bool]]


def _pieces(written: str, scope: Scope, reader: Reader, *, split: bool, deep: int = 0) -> _Pieces:
    """Pieces of a word: the words each becomes, and whether it stands in quotes."""
    found: _Pieces = []
    at = 0
    while at < len(written):
        if plain := _LITERAL.match(written, at):
            found.append(([Text(plain[0])], True))
            at = plain.end()
            continue
        end = piece_end(written, at)
        piece, at = written[at:end], end
        if piece[0] == "'":
            found.append(([Text(piece[1:-1])], True))
        elif piece[0] == "\\":
            found.append(([Text("" if piece[1:] in {"\n", "\r"} else piece[1:])], True))
        elif piece[0] == '"':
            inner = _inner(piece[1:-1], scope, reader, split=split, deep=deep)
            found += [(words, True) for words, _ in inner] or [([Text("")], True)]
        elif piece.startswith("$'"):
            found.append(([Text(piece[2:-1].replace("\\'", "'").replace("\\n", "\n"))], True))
        else:
            found.append((_value(piece, scope, reader, split=split, quoted=False, deep=deep), False))
    reader.work.step(_PIECE * len(found))
    return found


def _inner(written: str, scope: Scope, reader: Reader, *, split: bool, deep: int = 0) -> _Pieces:
    """Pieces of what stands in double quotes."""
    found: _Pieces = []
    at = 0
    while at < len(written):
        if plain := _QUOTED.match(written, at):
            found.append(([Text(plain[0])], True))
            at = plain.end()
        elif written[at] == '"':
            found.append(([Text('"')], True))
            at += 1
        elif written[at] == "\\":
            sign = written[at + 1 : at + 2]
            kept = {"\n": "", "$": "$", "`": "`", '"': '"', "\\": "\\"}.get(sign, "\\" + sign)
            found.append(([Text(kept)], True))
            at += 2
        else:
            end = piece_end(written, at)
            found.append((_value(written[at:end], scope, reader, split=split, quoted=True, deep=deep), True))
            at = end
    reader.work.step(_PIECE * len(found))
    return found


def _value(piece: str, scope: Scope, reader: Reader, *, split: bool, quoted: bool, deep: int) -> list[Text]:
    """What a $ expansion stands for: one text, or an array's or "$@"'s words."""
    if deep > _MOST_DEEP:
        raise _open(piece, 0)
    if piece == "$":
        return [Text("$")]
    if piece.startswith("$((") and piece.endswith("))"):
        made = total(piece[3:-2], scope)
        return [Text(str(made)) if made is not None else reader.hole(_short(piece), "is a sum of what is not known")]
    if piece[0] == "`" or piece.startswith("$("):
        return [reader.hole(_short(piece), "is what a command prints")]
    match = _BRACED.fullmatch(piece, 1) if piece[1] == "{" else _VARIABLE.fullmatch(piece)
    if match is None:
        return [reader.hole(_short(piece), "is not read: the shell makes it of a variable")]
    if piece[1] != "{":
        return _variable(match[1], None, piece, scope, reader, split=split, quoted=quoted)
    counted, name, index, colon, sign, default = match.groups()
    if counted:
        return [_length(piece, name, index, scope, reader)]
    values = _named(name, index, scope)
    empty = _unset(name, scope) or values is None or (bool(colon) and not any(v.text for v in values))
    if sign == "+" and empty:
        return [Text("")]
    if sign == "+" and values is not None and not all(v.known for v in values):
        return [reader.hole(_short(piece), f"depends on {name}, which is not known", splits=True)]
    if sign == "+" or (sign in {"-", "="} and empty):
        reader.work.step(len(default))
        inner = _inner if quoted else _pieces
        return _default(inner(default, scope, reader, split=split, deep=deep + 1), quoted=quoted)
    return _variable(name, index, piece, scope, reader, split=split, quoted=quoted)


def _default(pieces: _Pieces, *, quoted: bool) -> list[Text]:
    """A default's pieces as one text: `_value` gives words, which stand apart."""
    texts = [piece for words, _ in pieces for piece in words]
    return [Text("".join(t.text for t in texts), all(t.known for t in texts), any(t.splits for t in texts))]


def _length(piece: str, name: str, index: str | None, scope: Scope, reader: Reader) -> Text:
    values = _named(name, index, scope) or ()
    many = index in {"[@]", "[*]"} or name in {"@", "*"}
    if (not values and not many) or not all(v.known for v in values):
        return reader.hole(_short(piece), f"depends on {name}, which is not known")
    return Text(str(len(values) if many else len(values[0].text)))


def _variable(
    name: str, index: str | None, piece: str, scope: Scope, reader: Reader, *, split: bool, quoted: bool
) -> list[Text]:
    values = _named(name, index, scope)
    if values is None:
        return [reader.hole(f"${name}" if name.isidentifier() else piece, "is set nowhere in the file")]
    for value in values:
        reader.work.made(value.text)
    apart = name == "@" or index == "[@]" or (not quoted and (name == "*" or index == "[*]"))
    return list(values) if apart and split else [_joined(_between(values), reader)]


def _between(values: Sequence[Text]) -> list[Text]:
    return [part for number, value in enumerate(values) for part in ([Text(" ")] if number else []) + [value]]


def _named(name: str, index: str | None, scope: Scope) -> tuple[Text, ...] | None:
    """A variable's words, one where it is no array; None where nothing sets it."""
    if name in {"@", "*"}:
        return scope.arguments
    if name == "#":
        return (Text(str(len(scope.arguments))),)
    if name == "0":
        return None
    if name.isdigit():
        return scope.arguments[int(name) - 1 : int(name)] or (Text(""),) if len(name) < 4 else None
    value = scope.variables.get(name)
    words = (value,) if isinstance(value, Text) else value
    if words is None or index in {"[@]", "[*]"}:
        return words
    place = int(index[1:-1][:4]) if index else 0
    return words[place : place + 1] or (Text(""),)


def _unset(name: str, scope: Scope) -> bool:
    return scope.variables.get(name) == () or _named(name, None, scope) is None


def _short(piece: str) -> str:
    """An expansion as a word without blanks: $(nvidia-smi...)."""
    first, blank, _ = piece.partition(" ") if "\n" not in piece else (*re.split(r"\s", piece, maxsplit=1), "")[:3]
    closing = {"`": "`", "(": ")", "{": "}"}.get(piece[1] if piece[0] == "$" else "`", "")
    if piece.startswith("$(("):
        return re.sub(r"\s+", "", piece)[:80]
    return (f"{first}...{closing}" if blank or first != piece else piece)[:80]


def _assigned(written: str, scope: Scope, reader: Reader) -> Scope:
    """The variables after ${NAME:=VALUE} and $((NAME++)) in a word."""
    for name, colon, default in re.findall(rf"\$\{{({_NAME})(:?)=([^{{}}]*)\}}", written):
        values = _named(name, None, scope)
        if _unset(name, scope) or (colon and values and not values[0].text):
            scope = scope.assign({name: text(default, scope, reader)})
    if "$((" in written:
        scope = scope.assign({n: reader.hole(f"${n}", "is changed by a sum") for n in changed(written)})
    return scope


def changed(expression: str) -> set[str]:
    """Names that a sum sets."""
    return {first or second for first, second in _CHANGES.findall(expression)}


def total(expression: str, scope: Scope) -> int | None:
    """An integer expression of numbers, variables and + - * /, products first; None when it is anything else."""
    if len(expression) > 200:
        return None
    terms: list[int] = []
    operator, number, at = "+", True, 0  # a number comes next
    while at < len(expression.rstrip()):
        match = _TOKEN.match(expression, at)
        if match is None or number != (match[4] is None):
            return None
        at, number = match.end(), not number
        if match[4]:
            operator = match[4]
            continue
        value = _integer(match, scope)
        if value is None or (operator == "/" and not value):
            return None
        if operator in "+-":
            terms.append(value if operator == "+" else -value)
        else:  # a shell's division drops what is left over, towards zero
            last = terms.pop()
            terms.append(last * value if operator == "*" else (abs(last) // value) * (1 if last >= 0 else -1))
    return None if number else sum(terms)


def _integer(token: re.Match[str], scope: Scope) -> int | None:
    """A number, or a variable's; none with a leading 0, which a shell reads as octal."""
    value = scope.variables.get(token[2]) if token[2] else Text(token[1])
    unset = value is None or value == Text("")
    digits = (token[3] or "") if unset else value.text if isinstance(value, Text) and value.known else ""
    return int(digits) if re.fullmatch(r"0|[1-9]\d{0,8}", digits) else None
