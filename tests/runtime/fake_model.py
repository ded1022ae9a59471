"""A model without weights: it keeps the tokens it is given in KV blocks; the next one follows from all it finds there.

Paging errors change its text. `text` computes the same from the prompt alone.
"""

from linkwise.runtime.steps import FILLER, Row

VOCAB = 64


def following(tokens: list[int]) -> int:
    return sum((place + 1) * (token + 3) for place, token in enumerate(tokens)) % VOCAB


def text(prompt: list[int], tokens: int) -> list[int]:
    known = list(prompt)
    for _ in range(tokens):
        known.append(following(known))
    return known[len(prompt) :]


class Memory:
    """The KV of one attention replica."""

    def __init__(self, span: int) -> None:
        self.span = span
        self.held: dict[int, int] = {}

    def run(self, batch: tuple[Row, ...]) -> dict[int, int]:
        """Token drawn by row."""
        for row in batch:
            if row.request == FILLER:
                assert row.tokens and not row.blocks and row.draw is None and not row.prompt
                continue
            assert len(row.blocks) * self.span >= row.end and 0 not in row.blocks
            for place, token in enumerate(row.tokens, row.start):
                self.held[self._slot(row, place)] = token
        return {
            number: following([self.held[self._slot(row, place)] for place in range(row.end)])
            for number, row in enumerate(batch)
            if row.draw is not None
        }

    def _slot(self, row: Row, place: int) -> int:
        return row.blocks[place // self.span] * self.span + place % self.span
