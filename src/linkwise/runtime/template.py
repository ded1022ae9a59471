"""A chat template: Jinja out of a model folder, run in a sandbox with a budget.

The names and options are those transformers gives templates. The sandbox keeps it from reaching anything but its
messages; the budget ends endless loops and endless text.
"""

import datetime
import json
import sys
from types import FrameType
from typing import Any

from linkwise.core.errors import InputError

MAX_TEMPLATE = 2**20
MAX_TEXT = 2**24
MAX_LINES = 500_000  # template lines run for one conversation: well under a second
_FILE = "<template>"  # what Jinja calls code made from text


class _Spent(Exception):
    """The template used up its budget."""


class Template:
    """A compiled chat template. words: bos_token and the like, by name. Raises InputError when it does not compile."""

    def __init__(self, text: str, words: dict[str, str], where: str) -> None:
        self.where, self._words = where, words
        if len(text) > MAX_TEMPLATE:
            raise InputError(
                f"a chat template of {len(text)} characters", where=where, expected=f"at most {MAX_TEMPLATE}"
            )
        try:
            from jinja2 import TemplateError
        except ImportError:
            raise InputError("the package jinja2 is not installed", expected="pip install linkwise[run]") from None
        environment = _environment()
        try:
            self._template = environment.from_string(text)
        except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(
                f"the chat template is malformed: {error}", where=where, expected="a Jinja template"
            ) from None

    def render(self, **values: Any) -> str:
        """The text for these values. Raises InputError when the template refuses them, fails or exceeds its budget."""
        parts: list[str] = []
        size = 0
        before = sys.gettrace()
        sys.settrace(_budget(MAX_LINES))
        try:
            for part in self._template.generate(**self._words, **values):
                size += len(part)
                if size > MAX_TEXT:
                    raise _Spent(f"more than {MAX_TEXT} characters")
                parts.append(part)
        except Exception as error:  # noqa: BLE001 - whatever a template does is the template's error
            reason = str(error) or type(error).__name__
            raise InputError(f"the chat template refuses: {reason}", where=self.where) from None
        finally:
            sys.settrace(before)
        return "".join(parts)


def _budget(lines: int) -> Any:
    """A trace function that ends the template after so many of its lines: loops are the only thing it can spend."""
    left = lines

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Spent(f"more than {lines} steps")
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename == _FILE else None

    return call


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the model wrote, for training: here its body alone."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        """The sandbox, in which no operator makes a large value of a small one."""

        intercepted_binops = frozenset({"*", "**", "+", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(v) if hasattr(v, "__len__") else abs(v) for v in (left, right)]
            size = sizes[0] + sizes[1] if operator == "+" else sizes[0] * sizes[1]
            if size > MAX_TEXT or operator == "**" or (operator == "%" and isinstance(left, str)):
                raise _Spent(f"{operator} of large values or of text")
            return super().call_binop(context, operator, left, right)

    def refuse(message: object) -> None:
        raise TemplateError(str(message))

    def to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own escapes HTML, which is no part of a prompt.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment
