"""XML from a stranger: bounded in size, depth and elements; no entities, no document type of its own.

expat is driven directly because a refusal should name the line, which a tree built by a library no longer knows. A
reference to an external document type, as hwloc writes one, is read over and never followed.
"""

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from linkwise.core.errors import InputError

MAX_XML_BYTES = 8 * 2**20
MAX_DEPTH = 64
MAX_ELEMENTS = 200_000
_PROLOG = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*>", re.DOTALL)
# Entities beside those of XML itself, outside of what is no text.
_ENTITY = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|&(?!(?:amp|lt|gt|quot|apos|#\w+);)[^;\s]{0,40};?", re.DOTALL
)
_ROOT = re.compile(r"<([A-Za-z_][\w.-]*)")


@dataclass(slots=True)
class Element:
    """A tag with its attributes, children, text directly inside it, and the line it starts on."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    def get(self, name: str, default: str = "") -> str:
        return self.attributes.get(name, default)

    def all(self, tag: str) -> list["Element"]:
        """The direct children of that tag."""
        return [child for child in self.children if child.tag == tag]


def root_tag(text: str) -> str:
    """The name of the outermost element, without reading further; "" when this does not begin as XML does."""
    position = 0
    while match := _PROLOG.match(text, position):
        position = match.end()
    found = _ROOT.match(text, position)
    return found[1] if found else ""


def parse(text: str, *, where: str) -> Element:
    """The tree of a document. Raises InputError with the line for anything that is malformed, cut or hostile."""
    if len(text) > MAX_XML_BYTES:
        raise InputError(f"{len(text)} characters of XML", where=where, expected=f"at most {MAX_XML_BYTES}")
    parser = expat.ParserCreate()
    builder = _Builder(parser, where)
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.EntityDeclHandler = builder.entity
    parser.SkippedEntityHandler = builder.skipped
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise builder.broken(error) from None
    except UnicodeEncodeError:
        raise InputError("holds characters that are no text", where=where, expected="XML in UTF-8") from None
    if builder.external:
        _no_entities(text, where)
    return builder.root


def _no_entities(text: str, where: str) -> None:
    """Refuse entities that an external document type may declare: expat reads one in an attribute as nothing."""
    for match in _ENTITY.finditer(text):
        if match[0].startswith("&"):
            line = text.count("\n", 0, match.start()) + 1
            raise InputError(
                f"line {line}: an entity that nothing declares, {match[0]}",
                where=where,
                expected="no DTD and no entities",
            )


class _Builder:
    """Builds the tree and refuses early."""

    def __init__(self, parser: expat.XMLParserType, where: str) -> None:
        self.parser, self.where = parser, where
        self.open: list[Element] = []
        self.elements = 0
        self.external = False
        self.root = Element("", {}, 0)

    def refuse(self, what: str, expected: str) -> InputError:
        return InputError(f"line {self.parser.CurrentLineNumber}: {what}", where=self.where, expected=expected)

    def broken(self, error: expat.ExpatError) -> InputError:
        reason = expat.errors.messages.get(error.code, "malformed")
        if self.open and reason in ("no element found", "unclosed token"):
            last = self.open[-1]
            reason = f"the file ends inside <{last.tag}> of line {last.line}: it was cut"
        return InputError(f"line {error.lineno}: {reason}", where=self.where, expected="whole, well-formed XML")

    def doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:
        self.external = bool(system or public)
        if internal:
            raise self.refuse("a document type with declarations of its own", "no DTD and no entities")

    def entity(self, *declared: object) -> None:
        raise self.refuse("an entity declaration", "no DTD and no entities")

    def skipped(self, name: str, is_parameter: bool) -> None:
        raise self.refuse(f"an entity that nothing declares, &{name[:40]};", "no DTD and no entities")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise self.refuse(f"more than {MAX_ELEMENTS} elements", "a topology file")
        if len(self.open) >= MAX_DEPTH:
            raise self.refuse(f"nested deeper than {MAX_DEPTH}", "a topology file")
        element = Element(tag, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, tag: str) -> None:
        self.open.pop()

    def data(self, text: str) -> None:
        if self.open:
            self.open[-1].chunks.append(text)  # joined when asked: += would copy all of it for each piece
