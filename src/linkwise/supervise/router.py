"""Which unit takes a request? The one with the least work in tokens, less the prompt tokens it has in its cache.

So a unit that knows the prompt's beginning is chosen only while it is behind the others by no more tokens than that
saves: affinity can never overload a unit. Not thread-safe: the supervisor's lock is around every call.
"""

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

BLOCK = 16  # tokens
MAX_BLOCKS = 256  # of one prompt: the first 4096 tokens
MAX_KNOWN = 65_536  # blocks remembered of one unit


class Router:
    """Prompt beginnings that each unit has seen, as keyed hashes: no text is kept."""

    def __init__(self, units: Sequence[str], *, block: int = BLOCK, known: int = MAX_KNOWN) -> None:
        self._block, self._most = block, known
        self._known: dict[str, OrderedDict[bytes, None]] = {name: OrderedDict() for name in units}
        self._key = secrets.token_bytes(16)  # nobody can make prompts that collide
        self._turn = dict.fromkeys(units, 0)
        self._picks = 0
        self.hits = 0  # requests that went to a unit that knew their beginning

    def hashes(self, prompt: Sequence[int]) -> tuple[bytes, ...]:
        """One per full block, each over the block and all before it. Empty where there is nothing to choose."""
        if len(self._known) < 2:
            return ()
        found: list[bytes] = []
        last = b""
        for start in range(0, min(len(prompt) // self._block, MAX_BLOCKS) * self._block, self._block):
            block = array("q", prompt[start : start + self._block]).tobytes()
            last = blake2b(last + block, digest_size=16, key=self._key).digest()
            found.append(last)
        return tuple(found)

    def known(self, unit: str, hashes: Sequence[bytes]) -> int:
        """Tokens of the prompt's beginning that the unit has seen."""
        seen = self._known[unit]
        count = 0
        for each in hashes:
            if each not in seen:
                break
            count += 1
        return count * self._block

    def pick(self, outstanding: Mapping[str, int], hashes: Sequence[bytes]) -> str:
        """One of the units given with their outstanding tokens; remembers the choice. Equals take turns."""
        saved = {unit: self.known(unit, hashes) for unit in outstanding}
        chosen = min(outstanding, key=lambda unit: (outstanding[unit] - saved[unit], self._turn[unit]))
        self._picks += 1
        self._turn[chosen] = self._picks
        self.hits += saved[chosen] > 0
        seen = self._known[chosen]
        for each in hashes:
            seen[each] = None
            seen.move_to_end(each)
        while len(seen) > self._most:
            seen.popitem(last=False)
        return chosen

    def forget(self, unit: str) -> None:
        """The unit has lost its cache."""
        self._known[unit].clear()
