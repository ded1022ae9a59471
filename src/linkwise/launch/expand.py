"""A container's script as the words it would start, without a shell: variables, Kubernetes' own and sums of integers.

Nothing is run. What cannot be known (a command's output, a variable nobody sets) stays as it is written; the engine's
reader then refuses it where it would be a value that matters.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from linkwise.core.errors import InputError

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_KUBERNETES = re.compile(rf"\$\$|\$\(({_NAME})\)")
_SHELL = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(?::?-([^}}]*))?\}})")
_ALL_ARGUMENTS = re.compile(r"\"\$@\"|\$[@*]")
_SUM = re.compile(r"\$\(\(([^()]{1,200})\)\)")
_TOKEN = re.compile(rf"\s*(?:(\d{{1,9}})|\$?\{{?({_NAME})(?::-(\d{{1,9}}))?\}}?|([-+*/]))")
_ASSIGNED = re.compile(
    rf"(?:^|;|&&)[ \t]*(?:export[ \t]+)?({_NAME})=(\"[^\"]*\"|'[^']*'|[^\s;&]*)[ \t]*(?=$|;|&&)", re.MULTILINE
)
_MOST_CHARS = 100_000


def by_kubernetes(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) as kubelet expands it in commands and arguments; two signs are one."""

    def found(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return _bounded(_KUBERNETES, found, text[:_MOST_CHARS])


def with_arguments(script: str, arguments: Sequence[str]) -> str:
    """A script with its arguments in place of "$@"."""
    return _bounded(_ALL_ARGUMENTS, lambda _: shlex.join(arguments), script[:_MOST_CHARS])


def by_shell(script: str, variables: Mapping[str, str]) -> str:
    """$NAME, ${NAME}, ${NAME:-value} and $((sums)) as a shell expands them, the script's own assignments included."""
    known = dict(variables)
    for name, value in _ASSIGNED.findall(script[:_MOST_CHARS]):
        known[name] = _expanded(value.strip("\"'"), known)
    return _expanded(script[:_MOST_CHARS], known)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    text = _SUM.sub(lambda m: str(_sum(m[1], known)) if _sum(m[1], known) is not None else m[0], text)

    def found(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return known.get(name) or (match[3] if match[3] is not None else known.get(name, match[0]))

    return _bounded(_SHELL, found, text)


def _bounded(pattern: re.Pattern[str], found: Callable[[re.Match[str]], str], text: str) -> str:
    """Every match replaced. Raises InputError where that makes far more text than a script has."""
    made = 0

    def counted(match: re.Match[str]) -> str:
        nonlocal made
        value = found(match)
        made += len(value)
        if made > _MOST_CHARS:
            raise InputError("variables become too long", where="script", expected=f"at most {_MOST_CHARS} characters")
        return value

    return pattern.sub(counted, text)


def _sum(text: str, known: Mapping[str, str]) -> int | None:
    """An integer expression of numbers, variables and + - * /, products first; None when it is anything else."""
    terms: list[tuple[int, int]] = []  # (sign, value)
    sign, operator, at = 1, "", 0
    value: int | None = None
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        at = match.end()
        if match[4]:
            if value is None or operator:
                return None
            if match[4] in "+-":
                terms.append((sign, value))
                sign, value, operator = (1 if match[4] == "+" else -1), None, ""
            else:
                operator = match[4]
            continue
        digits = match[1] or known.get(match[2]) or match[3] or ""
        if not re.fullmatch(r"\d{1,9}", digits):
            return None
        number = int(digits)
        if value is None:
            value = number
        elif operator == "*":
            value *= number
        elif operator == "/" and number:
            value //= number
        else:
            return None
        operator = ""
    if value is None or operator:
        return None
    return sum(s * v for s, v in [*terms, (sign, value)])
