"""A batch as one rank sees it: which tokens are its hidden rows, where their entries go, which entries they read.

Made once per step; what several layers need is worked out on first use and kept. Positions under cp x dcp: position p
is on cp rank p % cp, as its entry e = p // cp; entry e is on dcp rank e % dcp, as its local entry e // dcp, which is in
block e // dcp // block_tokens of the request. With cp = dcp = 1 all of these are p.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, coordinates
from linkwise.runtime.steps import FILLER, SCRATCH, Row, batch_rows, rank_rows, sampling_cp

Tensor = Any
_Kept = TypeVar("_Kept")


class Sampled(NamedTuple):
    """A batch row whose logits are wanted. hidden: its last token's hidden row; here: whether this rank holds that.

    Where it does not (another cp rank does), hidden is some row, so that all ranks compute equally many logits.
    """

    row: int
    hidden: int
    here: bool


class Prompt(NamedTuple):
    """A prompt's chunk: `hidden` rows of this rank from `first` on, of which `own` are tokens and the rest padding.

    start, end: positions of the whole chunk. table: the request's blocks, int64.
    """

    first: int
    hidden: int
    own: int
    start: int
    end: int
    table: Tensor

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.hidden)


class Reads(NamedTuple):
    """Cache entries that decode rows read, padded to equal number.

    rows: hidden rows (slice or int64), `number` of them. slots: int64 [number x heads x length], rows of the cache seen
    as [slots x heads, width]: heads first, since products run twice as fast on heads that lie in one piece. None: the
    slots are `span`, one request's, without a gap, and are read where they lie. mask: what is added to scores, [number,
    1, 1, length], 0 or -inf in the dtype asked for; None: all are visible.
    """

    rows: Any
    number: int
    length: int
    slots: Tensor | None
    span: slice
    mask: Tensor | None


class View:
    """n: hidden rows on this rank. decode: how many of them, the first ones, are decode tokens.

    tokens, positions: of each hidden row, int64 [n]; padding rows repeat the chunk's last position. sampled: in batch
    order. prompts: in batch order.
    """

    def __init__(self, batch: tuple[Row, ...], layout: Layout, rank: int, block_tokens: int, device: Any) -> None:
        place = coordinates(layout, rank)
        self.cp, self.cp_place = layout.cp, place["cp"]
        self.dcp, self.dcp_place = layout.dcp, place["dcp"]
        self.block_tokens, self.device = block_tokens, device
        self.n = batch_rows(batch, layout.cp)
        self.decode = sum(len(row.tokens) for row in batch if not row.prompt)
        self._kept: dict[Any, Any] = {}
        self._ends: list[int] = []  # of each decode row: positions it sees
        self._blocks: list[tuple[int, ...]] = []  # of each decode row
        tokens: list[int] = []
        positions: list[int] = []
        sampled: list[Sampled] = []
        prompts: list[Prompt] = []
        for number, row in enumerate(batch):
            self._check(row, late=bool(prompts))
            first = len(tokens)
            if row.prompt:
                prompts.append(self._prompt(row, first, tokens, positions))
            else:
                tokens += row.tokens
                positions += range(row.start, row.end)
                self._ends += range(row.start + 1, row.end + 1)
                self._blocks += [self._table(row)] * len(row.tokens)
            if row.draw is not None:
                here = not row.prompt or sampling_cp(row, self.cp) == self.cp_place
                last = prompts[-1].own - 1 if row.prompt else len(row.tokens) - 1
                sampled.append(Sampled(number, first + max(last, 0), here))
        self.sampled, self.prompts = tuple(sampled), tuple(prompts)
        self.tokens = torch.tensor(tokens, dtype=torch.int64, device=device)
        self.positions = torch.tensor(positions, dtype=torch.int64, device=device)
        self._write()

    def once(self, key: Any, make: Callable[[], _Kept]) -> _Kept:
        """What `make` gives, made for the first layer that asks and kept for the others."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[no-any-return]

    @property
    def split(self) -> bool:
        """Whether a request's entries are spread over several ranks."""
        return self.cp * self.dcp > 1

    def local(self, length: int, *, cp_place: int | None = None, dcp_place: int | None = None) -> int:
        """Entries a rank (this one) keeps of a request's first `length` positions."""
        cp_place = self.cp_place if cp_place is None else cp_place
        dcp_place = self.dcp_place if dcp_place is None else dcp_place
        return max(0, -(-(length - cp_place - dcp_place * self.cp) // (self.cp * self.dcp)))

    def slots(self, table: Tensor, entries: Tensor) -> Tensor:
        """Slots in the flat cache of local entries of a request; those beyond its blocks are slots of block 0."""
        blocks = entries // self.block_tokens
        known = blocks < len(table)
        found = table[torch.where(known, blocks, 0)] if len(table) else torch.full_like(blocks, SCRATCH)
        return torch.where(known, found, SCRATCH) * self.block_tokens + entries % self.block_tokens

    def write(self, flat: Tensor, fresh: Tensor) -> None:
        """Put the rows' new entries [n, ...] into a layer's flat cache [blocks * block_tokens, ...]."""
        if self._span is not None:
            flat[self._span] = fresh
        elif self._slots is not None:
            flat[self._slots] = fresh if self._rows is None else fresh[self._rows]

    def reads(self, dtype: Any, window: int | None = None, *, heads: int = 1) -> list[Reads]:
        """What decode rows read of this rank's cache of so many heads.

        window: positions a row sees at most, itself included.
        """
        return self.once(("reads", dtype, window, heads), lambda: self._reads(dtype, window, heads))

    def context(self, prompt: Prompt) -> Any:
        """Slots of a prompt's positions 0 .. end - 1 when nothing is split: a slice if they follow each other."""
        return self.once(("context", prompt.first), lambda: self._context(prompt))

    def mask(self, prompt: Prompt, dtype: Any, window: int | None = None) -> Tensor | None:
        """What is added to the scores of a prompt's rows over positions 0 .. end - 1; None: plainly causal."""
        if prompt.start == 0 and (window is None or prompt.end <= window):
            return None
        return self.once(("mask", prompt.first, dtype, window), lambda: self.hidden(prompt, 0, window).to(dtype))

    def hidden(self, prompt: Prompt, owner: int, window: int | None) -> Tensor:
        """What is added to scores of a prompt's rows over the entries of cp rank `owner`: 0 or -inf, float32 [rows,
        ceil(end / cp)]."""
        keys = torch.arange(-(-prompt.end // self.cp), device=self.device) * self.cp + owner
        rows = self.positions[prompt.rows, None]
        unseen = (keys > rows) | (keys >= prompt.end)
        if window is not None:
            unseen |= keys <= rows - window
        return torch.zeros(unseen.shape, device=self.device).masked_fill_(unseen, -torch.inf)

    def _check(self, row: Row, *, late: bool) -> None:
        if late and not row.prompt:
            raise InputError("a decode row behind a prompt", where="step", expected="decode rows first")
        needed = -(-self.local(row.end, cp_place=0, dcp_place=0) // self.block_tokens)
        if row.request != FILLER and len(row.blocks) < needed:
            raise InputError(
                f"request {row.request} has {len(row.blocks)} KV blocks for {row.end} tokens",
                where="step",
                expected=f"at least {needed} blocks",
            )

    def _table(self, row: Row) -> tuple[int, ...]:
        return () if row.request == FILLER else row.blocks

    def _prompt(self, row: Row, first: int, tokens: list[int], positions: list[int]) -> Prompt:
        count = rank_rows(row, self.cp)
        skip = (self.cp_place - row.start) % self.cp  # tokens of the chunk before this rank's first
        own = range(row.start + skip, row.end, self.cp)
        padding = count - len(own)
        tokens += (*row.tokens[skip :: self.cp], *[row.tokens[-1]] * padding)
        positions += (*own, *[row.end - 1] * padding)
        table = torch.tensor(self._table(row), dtype=torch.int64, device=self.device)
        return Prompt(first, count, len(own), row.start, row.end, table)

    def _write(self) -> None:
        """Hidden rows whose entries this rank keeps, and the slots they go to."""
        rows: list[int] = []
        slots: list[int] = []
        size = self.block_tokens
        ways = self.cp * self.dcp
        mine = self.dcp_place * self.cp + self.cp_place
        for row, (end, blocks) in enumerate(zip(self._ends, self._blocks, strict=True)):
            entry, owner = divmod(end - 1, ways)
            if owner == mine:
                rows.append(row)
                slots.append((blocks[entry // size] if blocks else SCRATCH) * size + entry % size)
        self._rows: Tensor | None = None
        self._slots: Tensor | None = None
        self._span: slice | None = None
        if not self.prompts:
            if len(slots) == self.n == 1:
                self._span = slice(slots[0], slots[0] + 1)
            elif slots:
                self._slots = self._tensor(slots)
                self._rows = None if len(rows) == self.n else self._tensor(rows)
            return
        row_parts, slot_parts = [self._tensor(rows)], [self._tensor(slots)]
        for prompt in self.prompts:
            own = torch.arange(prompt.first, prompt.first + prompt.own, device=self.device)
            entries = self.positions[own] // self.cp
            if self.dcp > 1:
                kept = entries % self.dcp == self.dcp_place
                own, entries = own[kept], entries[kept] // self.dcp
            row_parts.append(own)
            slot_parts.append(self.slots(prompt.table, entries))
        self._slots = torch.cat(slot_parts)
        self._rows = torch.cat(row_parts) if len(self._slots) < self.n else None

    def _context(self, prompt: Prompt) -> Any:
        blocks = prompt.table.tolist()[: -(-prompt.end // self.block_tokens)]
        if blocks and blocks == list(range(blocks[0], blocks[0] + len(blocks))):
            first = blocks[0] * self.block_tokens
            return slice(first, first + prompt.end)
        return self.slots(prompt.table, torch.arange(prompt.end, device=self.device))

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _reads(self, dtype: Any, window: int | None, heads: int) -> list[Reads]:
        if not self.decode:
            return []
        firsts = [0 if window is None else self.local(max(0, end - window)) for end in self._ends]
        lasts = [self.local(end) for end in self._ends]
        if self.decode == 1 and not self.split:
            return [self._one(firsts[0], lasts[0], heads)]
        if self.split:
            return [self._padded(slice(0, self.decode), list(range(self.decode)), firsts, lasts, dtype, heads)]
        return [
            self._padded(rows, numbers, firsts, lasts, dtype, heads)
            for rows, numbers in self._buckets([last - first for first, last in zip(firsts, lasts, strict=True)])
        ]

    def _buckets(self, lengths: list[int]) -> list[tuple[Any, list[int]]]:
        """Rows in groups of like length, so that padding at most doubles what is read."""
        order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        groups: list[list[int]] = []
        for row in order:
            if groups and lengths[row] * 2 >= lengths[groups[-1][0]]:
                groups[-1].append(row)
            else:
                groups.append([row])
        if len(groups) == 1:
            return [(slice(0, len(lengths)), list(range(len(lengths))))]
        return [(self._tensor(sorted(group)), sorted(group)) for group in groups]

    def _one(self, first: int, last: int, heads: int) -> Reads:
        size, blocks = self.block_tokens, self._blocks[0] or (SCRATCH,) * -(-last // self.block_tokens)
        used = blocks[first // size : -(-last // size)]
        start = used[0] * size + first % size
        if used == tuple(range(used[0], used[0] + len(used))):
            return Reads(slice(0, 1), 1, last - first, None, slice(start, start + last - first), None)
        slots = self.slots(self._tensor(list(blocks)), torch.arange(first, last, device=self.device))
        return Reads(slice(0, 1), 1, last - first, _by_head(slots[None], heads), slice(0), None)

    def _padded(
        self, rows: Any, numbers: list[int], firsts: list[int], lasts: list[int], dtype: Any, heads: int
    ) -> Reads:
        size = self.block_tokens
        begin, stop = self._tensor([firsts[i] for i in numbers]), self._tensor([lasts[i] for i in numbers])
        length = max(1, int((stop - begin).max()))
        width = -(-int(stop.max()) // size) + 1
        table = self._tensor(
            [
                block
                for i in numbers
                for block in (*self._blocks[i][:width], *[SCRATCH] * (width - len(self._blocks[i][:width])))
            ]
        ).view(len(numbers), width)
        entries = begin[:, None] + torch.arange(length, device=self.device)
        visible = entries < stop[:, None]
        blocks = table.gather(1, (entries // size).clamp_(max=width - 1))
        slots = torch.where(visible, blocks * size + entries % size, SCRATCH)
        mask = None
        if self.split or not bool(visible.all()):
            mask = torch.zeros(visible.shape, dtype=dtype, device=self.device).masked_fill_(~visible, -torch.inf)
            mask = mask[:, None, None]
        return Reads(rows, len(numbers), length, _by_head(slots, heads), slice(0), mask)


def _by_head(slots: Tensor, heads: int) -> Tensor:
    """Slots [rows, length] of a cache [slots, heads, ...] as rows of the same cache seen as [slots x heads, ...]."""
    if heads == 1:
        return slots.reshape(-1)
    return (slots[:, None] * heads + torch.arange(heads, device=slots.device)[:, None]).reshape(-1)


def view_of(batch: tuple[Row, ...], layout: Layout, rank: int, block_tokens: int, device: Any = "cpu") -> View:
    """What a rank does with its attention replica's batch."""
    return View(batch, layout, rank, block_tokens, device)
