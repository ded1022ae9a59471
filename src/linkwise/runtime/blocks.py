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
        self._owners = [0] * count
        self._free = OrderedDict.fromkeys(block for block in range(count) if block != SCRATCH)  # next to go first
        self._key_of: dict[int, bytes] = {}
        self._of_key: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks without an owner."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks with an owner."""
        return self.count - 1 - len(self._free)

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
        return sum(1 for block in blocks if not self._owners[block])

    def share(self, blocks: Sequence[int]) -> None:
        """One more owner for each."""
        for block in blocks:
            self._owners[block] += 1
            self._free.pop(block, None)

    def take(self, wanted: int) -> list[int]:
        """Blocks with new contents and one owner. At most `free`."""
        taken = []
        for _ in range(wanted):
            block, _ = self._free.popitem(last=False)
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._of_key[key]
            self._owners[block] = 1
            taken.append(block)
        return taken

    def leave(self, blocks: Sequence[int]) -> None:
        """One owner less for each. A text's last blocks will go first: its beginning is of use to more requests."""
        for block in reversed(blocks):
            self._owners[block] -= 1
            if not self._owners[block]:
                self._free[block] = None
                if block not in self._key_of:
                    self._free.move_to_end(block, last=False)

    def name(self, block: int, key: bytes) -> None:
        """A block is full and computed: later requests may share it. The first of two equal ones keeps the name."""
        if key not in self._of_key and block not in self._key_of:
            self._of_key[key], self._key_of[block] = block, key
