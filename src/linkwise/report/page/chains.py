"""The chains of all figures in one book, so that what they share is written once."""

from collections.abc import Mapping, Sequence

from linkwise.core.chain import Chain, Step, chain_of, show
from linkwise.core.quantity import Num, Quantity, value_of
from linkwise.plan.explain import beside, subject
from linkwise.plan.figures import figures
from linkwise.plan.types import Plan
from linkwise.report.page.types import Book, Figure, Taught


class Writer:
    """Collects chains; equal words, steps and chains get one place each."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {"": 0}
        self._steps: dict[tuple[int, int, int, int, str, str], int] = {}
        self._chains: dict[tuple[int, ...], int] = {}

    def chain(self, found: Chain) -> int:
        """The place of a chain."""
        places = tuple(map(self._step, (*found.inputs, *found.steps)))
        return self._chains.setdefault(places, len(self._chains))

    def book(self) -> Book:
        """All that was collected."""
        return Book(words=tuple(self._words), steps=tuple(self._steps), chains=tuple(self._chains))

    def _step(self, step: Step) -> int:
        # As `str(chain)` prints it: the numbers only where they say something new.
        numbers = "" if step.numbers in {step.formula, show(step.value)} else step.numbers
        word = self._word
        row = (word(step.name), word(step.formula), word(step.source), word(step.note), str(step), numbers)
        return self._steps.setdefault(row, len(self._steps))

    def _word(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))


def book_figures(plan: Plan, batches: tuple[int, ...], writer: Writer) -> tuple[Figure, ...]:
    """Every figure of the plan at every batch, with its chain in the writer's book."""
    about = subject(plan)
    columns: list[dict[str, Num]] = [figures(about._replace(batch=batch), Quantity.given) for batch in batches]
    paths = dict.fromkeys(path for column in columns for path in column)
    return tuple(_figure(path, [column.get(path) for column in columns], writer) for path in paths)


def book_chains(prefix: str, chains: Mapping[str, Chain], writer: Writer) -> tuple[Figure, ...]:
    """Figures of something else than the plan, which have no batch; their paths get a prefix."""
    return tuple(
        Figure(
            path=prefix + path, unit=one.result.unit, values=(_plain(one.result.value),), chains=(writer.chain(one),)
        )
        for path, one in chains.items()
    )


def book_textbook(plan: Plan, writer: Writer) -> dict[str, Taught]:
    """Every figure that the textbook has too, with its chain in the writer's book."""
    return {
        path: Taught(
            value=_plain(one.chain.result.value), chain=writer.chain(one.chain), differences=one.differences
        )
        for step in ("prefill", "decode", "mixed")
        for path, one in beside(plan, step).items()
    }  # fmt: skip


def _figure(path: str, numbers: Sequence[Num | None], writer: Writer) -> Figure:
    found = [None if number is None else _chain(path, number) for number in numbers]
    values = tuple(None if one is None else _plain(one.result.value) for one in found)
    chains = tuple(-1 if one is None else writer.chain(one) for one in found)
    same = len(set(values)) == 1 and len(set(chains)) == 1
    return Figure(
        path=path,
        unit=next(one.result.unit for one in found if one is not None),
        values=values[:1] if same else values,
        chains=chains[:1] if same else chains,
    )


def _chain(path: str, number: Num) -> Chain:
    # A count of the op list is a plain number: `explain` says so in the same words.
    if not isinstance(number, Quantity):
        number = Quantity.given(path, number, "", "a count of the step's op list")
    return chain_of(number)


def _plain(number: Num) -> int | float:
    value = value_of(number)
    return value if isinstance(value, int) else float(value)
