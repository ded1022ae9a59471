"""Who owns which KV block of one attention replica: shared prefixes by hash, counted references, oldest evicted first.

The memory itself is in runtime/attention/cache.py, on the ranks; here are only numbers of blocks.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from linkwise.runtime.steps import SCRATCH


def chained(tokens: Sequence[int], span: int, known: Sequence[bytes] = ()) -> list[bytes]:
    """Key of every full block of a text: of its own tokens and, through the key before, of all that precede it.

    span: positions a block holds. known: keys of the first blocks, as far as they were made before.
    """
    keys = list(known)
    for first in range(len(keys) * span, len(tokens) - span + 1, span):
        digest = blake2b(keys[-1] if keys else b"", digest_size=16)
        digest.update(array("q", tokens[first : first + span]).tobytes())
        keys.append(digest.digest())
    return keys


class Blocks:
    """The blocks of one attention replica. count: all of them, the scratch block included.

    A block has as many owners as requests that read it. Without an owner it is free, but keeps its contents and its key
    until it is needed, so that a later request with the same beginning finds it.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # Nothing here grows with `count`, which may be huge: only with the blocks that were ever used.
        self._owners: dict[int, int] = {}
        self._blank: list[int] = []  # given back without a name: the last one goes first
        self._fresh = SCRATCH + 1  # this one and those behind it were never used: they go next
        self._kept: OrderedDict[int, None] = OrderedDict()  # free and named: the oldest goes first, when need be
        self._key_of: dict[int, bytes] = {}
        self._of_key: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks without an owner."""
        return len(self._blank) + self.count - self._fresh + len(self._kept)

    @property
    def used(self) -> int:
        """Blocks with an owner."""
        return self.count - 1 - self.free

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks that hold a text's beginning, as far as they are here. They are not owned by asking."""
        found = []
        for key in keys:
            block = self._of_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of some blocks have no owner: sharing them takes these from the free ones."""
        return sum(1 for block in blocks if not self._owners.get(block))

    def share(self, blocks: Sequence[int]) -> None:
        """One more owner for each."""
        for block in blocks:
            self._owners[block] = self._owners.get(block, 0) + 1
            self._kept.pop(block, None)

    def take(self, wanted: int) -> list[int]:
        """Blocks with new contents and one owner. At most `free`."""
        taken = []
        for _ in range(wanted):
            block = self._next()
            self._owners[block] = 1
            taken.append(block)
        return taken

    def _next(self) -> int:
        if self._blank:
            return self._blank.pop()
        if self._fresh < self.count:
            self._fresh += 1
            return self._fresh - 1
        block, _ = self._kept.popitem(last=False)
        del self._of_key[self._key_of.pop(block)]
        return block

    def leave(self, blocks: Sequence[int]) -> None:
        """One owner less for each. A text's last blocks will go first: its beginning is of use to more requests."""
        for block in reversed(blocks):
            self._owners[block] -= 1
            if not self._owners[block]:
                del self._owners[block]
                if block in self._key_of:
                    self._kept[block] = None
                else:
                    self._blank.append(block)

    def name(self, block: int, key: bytes) -> None:
        """A block is full and computed: later requests may share it. The first of two equal ones keeps the name."""
        if key not in self._of_key and block not in self._key_of:
            self._of_key[key], self._key_of[block] = block, key
