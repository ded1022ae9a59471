"""One tree of errors. Each says what was given, what was expected, where, and what to do."""

from linkwise.core.printable import MAX_ECHO, clipped, printable


class LinkwiseError(Exception):
    """Base of every error linkwise raises on purpose. `exit_code` is the command's exit code (DESIGN §3).

    The fields hold what was given as it stands; `str(error)` is one bounded line that is safe to print.
    """

    exit_code = 70

    def __init__(self, message: str, *, where: str = "", expected: str = "", hint: str = "") -> None:
        self.message, self.where, self.expected, self.hint = message, where, expected, hint
        text = clipped(message, 2 * MAX_ECHO)
        if where:
            text = f"{clipped(where)}: {text}"
        if expected:
            text += f"; expected {expected}"
        if hint:
            text += f". {hint}"
        super().__init__(printable(" ".join(clipped(text, 10 * MAX_ECHO).split())))


class InputError(LinkwiseError):
    """Something the user gave is malformed, unknown, absurd or unreadable."""

    exit_code = 2


class NotUnderstood(InputError):
    """A model configuration has fields this version cannot account for: refused, never guessed."""


class Refused(LinkwiseError):
    """The inputs are valid and the answer is no: what was asked for cannot be had, and why."""

    exit_code = 1


class Undecidable(LinkwiseError):
    """The inputs are valid but do not decide the question."""

    exit_code = 3


class OutputError(LinkwiseError):
    """The answer could not be written to standard output: a full disk, a closed stream (EX_IOERR of sysexits)."""

    exit_code = 74


class InternalError(LinkwiseError):
    """A broken invariant of ours: always a bug to report."""
