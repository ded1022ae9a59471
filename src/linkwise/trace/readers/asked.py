"""Which lines of a log are of what a user asked for, and hence no evidence: a prompt may hold a log.

Engines log a prompt escaped, in one line. Where it has several, each is written with the front of the first (vLLM's
NewLineFormatter), or the text goes on until its quote is closed, whatever its lines look like.
"""

import re
from collections.abc import Iterable, Iterator

from linkwise.trace.readers.shared import MAX_LINE

# Words of which each line holds one that begins or ends such a text.
WORDS = (
    "Received request", "Receive: obj=", " prompt: ",
    "', params", "', sampling_params", '", params', '", sampling_params',
)  # fmt: skip
LINES = 200  # that a text which goes on below its first line can have

_ASKED = re.compile(r"Received request|Receive: obj=|Finish: obj=| request .{0,200} prompt: ")
_QUOTED = re.compile(r"(?:prompt: |text=|content'?\"?: )(['\"])")
_STATEMENT = re.compile(r"\.\w{1,5}:\d{1,6}\]? ?$")  # a front that says which statement of a program wrote the line
# A line that begins by itself: with a date, or with a name that an engine or a launcher puts in front.
_BEGINS = re.compile(
    r"(?:\[|[IWEF])?\d{2,4}[-/ ]?\d\d|[A-Z]{4,8} \d\d-\d\d |\([A-Za-z]\w{0,60}[^)]{0,20} pid=\d|\[(?:rank|RANK )\d|"
    r"\[TRT-LLM\]"
)


def typed(row: str) -> bool:
    """A line that repeats what a user asked for, which may hold anything (vLLM entrypoints/logger.py, SGLang managers/
    tokenizer_manager.py), or what torch's autotuning only tried (torch/_inductor/select_algorithm.py)."""
    return (
        "Received request" in row or "Receive: obj=" in row or "Finish: obj=" in row or "Ignoring this choice" in row
        or (" request " in row and " prompt: " in row)
    )  # fmt: skip


def unasked(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Numbered lines without those of such texts. lines: in order, of which a sieve with WORDS may have left some out.

    A text whose end is there, with the parameters of the request behind it, goes up to that end. Otherwise it goes to
    where its quote is closed or a line begins by itself.
    """
    held: list[tuple[int, str]] = []
    front, quote, until = "", "", 0
    for line, row in lines:
        # Few lines get further than this.
        if not held and not front and not quote and "equest" not in row and "obj=" not in row and "Ignoring" not in row:
            yield line, row
            continue
        if quote and line > until:
            yield from _short(held, quote)
            quote, held = "", []
        if typed(row):
            yield from _short(held, quote)
            held, said = [], _ASKED.search(row)
            front = row[: said.start()] if said and _STATEMENT.search(row, 0, said.start()) else ""
            opened = _QUOTED.search(row, said.end() if said else 0)
            whole = opened is None or len(row) >= MAX_LINE or _closed(row[opened.end() :], opened[1])
            quote, until = ("", 0) if whole or opened is None else (opened[1], line + LINES)
        elif front and row.startswith(front):
            continue
        elif quote and _ends(row, quote):
            quote, held = "", []
        elif quote:
            held.append((line, row))
        else:
            yield line, row
    yield from _short(held, quote)


def _short(held: list[tuple[int, str]], quote: str) -> Iterator[tuple[int, str]]:
    """What is left of lines below a text of which no end was found."""
    for place, (_, row) in enumerate(held):
        if _BEGINS.match(row):
            yield from held[place:]
            return
        if _closed(row, quote):
            yield from held[place + 1 :]
            return


def _ends(row: str, quote: str) -> bool:
    """Whether a line ends a request's text: its quote, then the name of the next field."""
    return re.search(rf"(?<!\\){quote}, (?:params|sampling_params)\b", row) is not None


def _closed(text: str, quote: str) -> bool:
    """Whether a quoted text ends here, with what follows it in a list of fields."""
    return re.search(rf"(?<!\\){quote}(?:[,)]|\s*$)", text) is not None
