"""What reading the scripts of one file may take: bounds on hostile files, counted in steps and not in seconds."""

from collections.abc import Sequence, Sized

from linkwise.core.errors import InputError

MAX_CHARS = 100_000
MOST_STEPS = 5_000_000
_WORD = 10  # steps of a word, however short
_MOST_NAMES = 500


class Work:
    """What reading takes, of all scripts of a file together: a step is a character that is read or made, and what
    takes longer counts as several. Steps are the same on every machine."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > MOST_STEPS:
            raise InputError(
                f"reading the file's scripts takes more than {MOST_STEPS} steps",
                where="script", expected="scripts that start engines",
            )  # fmt: skip

    def words(self, words: Sequence[str]) -> None:
        self.step(sum(map(len, words)) + _WORD * len(words))

    def made(self, text: str) -> str:
        self.step(len(text))
        if len(text) > 2 * MAX_CHARS:
            raise InputError(
                "variables become too long", where="script", expected=f"at most {2 * MAX_CHARS} characters"
            )
        return text


def few(names: Sized) -> None:
    """Raises InputError for more variables or functions than a script has: each way through it holds all of them."""
    if len(names) > _MOST_NAMES:
        raise InputError("too many variables or functions", where="script", expected=f"at most {_MOST_NAMES}")


def bounded(text: str) -> str:
    """The text. Raises InputError when it is longer than a script may be."""
    if len(text) > MAX_CHARS:
        raise InputError(f"{len(text)} characters", where="script", expected=f"at most {MAX_CHARS}")
    return text
