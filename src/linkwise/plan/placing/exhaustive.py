"""The best placement of a small cluster, proven: every placement is looked at, or is the mirror image of one that is.

Two symmetries leave out what cannot be better. Ranks: a permutation of ranks that maps the groups of every term onto
groups of the same term. Devices: a permutation of devices that keeps the place of every set of devices. Of placements
that are images of each other only the first in lexicographic order is looked at. Branch and bound leaves out the rest.
"""

from collections.abc import Iterator
from itertools import combinations, islice

from linkwise.plan.placing.cost import KV, Cost, Members, Score

MOST_DEVICES = 8

# Images tried before two devices count as different: safe, since then both are looked at.
MOST_IMAGES = 64


class _Symmetry:
    """Which devices are alike once some are taken."""

    def __init__(self, cost: Cost) -> None:
        self.cost, self.size = cost, cost.cluster.size
        numbers = [n for n, t in enumerate(cost.terms) if t.axis != KV]
        sizes = {len(cost.terms[n].edges[0]) for n in numbers}
        self.sets = [s for k in sorted(sizes) for s in combinations(range(self.size), k)]
        self.nics = any(t.axis == KV for t in cost.terms)
        self.pairs = {
            (a, b): cost.place((min(a, b), max(a, b)))
            for a in range(self.size) for b in range(self.size) if a != b
        }  # fmt: skip
        self._orbits: dict[tuple[frozenset[int], int, int], bool] = {}

    def alike(self, a: int, b: int, taken: frozenset[int]) -> bool:
        """Whether a permutation of devices that keeps those taken where they are, and every place, maps a to b."""
        key = taken, a, b
        if key not in self._orbits:
            start = {t: t for t in taken}
            self._orbits[key] = any(map(self._keeps, islice(self._extend(start, a, b), MOST_IMAGES)))
        return self._orbits[key]

    def _extend(self, image: dict[int, int], a: int, b: int) -> Iterator[dict[int, int]]:
        """Permutations that keep the places of pairs, from a partial one and a -> b."""
        if self.nics and self._home(a) != self._home(b):
            return
        if any(self.pairs[a, x] != self.pairs[b, y] for x, y in image.items()):
            return
        image = {**image, a: b}
        if len(image) == self.size:
            yield image
            return
        following = next(d for d in range(self.size) if d not in image)
        taken = set(image.values())
        for other in range(self.size):
            if other not in taken:
                yield from self._extend(image, following, other)

    def _home(self, device: int) -> tuple[int, tuple[int, ...]]:
        # The load of NICs is no matter of pairs: where it counts, only devices behind the same NICs are alike.
        return self.cost.cluster.node_of(device), self.cost.cluster.nics_of(device)

    def _keeps(self, image: dict[int, int]) -> bool:
        return all(
            self.cost.place(members) == self.cost.place(tuple(sorted(image[d] for d in members)))
            for members in self.sets
        )


def rank_symmetries(cost: Cost, ranks: int, replicas: int) -> list[tuple[int, ...]]:
    """Permutations of all replicas' ranks under which every term's groups stay groups of that term in some replica."""
    total = ranks * replicas
    edges = {
        (n, r, frozenset(r * ranks + rank for rank in edge)): (n, len(term.edges))
        for n, term in enumerate(cost.terms) for r in range(replicas) for edge in term.edges
    }  # fmt: skip
    owned = {(n, members) for n, _, members in edges}

    def holds(image: tuple[int, ...]) -> bool:
        home: dict[int, int] = {}
        for rank, other in enumerate(image):  # a replica moves as a whole
            if home.setdefault(rank // ranks, other // ranks) != other // ranks:
                return False
        return all((n, frozenset(image[rank] for rank in members)) in owned for n, members in owned)

    return [image for image in dict.fromkeys(_images(ranks, replicas, total)) if holds(image)]


def _images(ranks: int, replicas: int, total: int) -> Iterator[tuple[int, ...]]:
    """Exchanges of two ranks, of two blocks of ranks at every stride, and of two replicas."""
    for a, b in combinations(range(total), 2):
        image = list(range(total))
        image[a], image[b] = b, a
        yield tuple(image)
    for first, last in [(r * ranks, (r + 1) * ranks) for r in range(replicas)] + [(0, total)]:
        for stride in (d for d in range(1, total) if ranks % d == 0 or d % ranks == 0):
            for count in range(2, (last - first) // stride + 1):
                for i, j in combinations(range(count), 2):
                    image = list(range(total))
                    for rank in range(first, last):
                        digit = (rank - first) // stride % count
                        if digit in {i, j}:
                            other = rank + (j - i) * stride * (1 if digit == i else -1)
                            image[rank] = other if first <= other < last else rank
                    if sorted(image) == list(range(total)):
                        yield tuple(image)


def best(cost: Cost, ranks: int, start: tuple[Members, ...], floor: float) -> tuple[tuple[Members, ...], int]:
    """The best placement, and how many whole ones were looked at. start: one to beat; floor: seconds none beats."""
    return _Search(cost, ranks, start, floor).run()


class _Search:
    def __init__(self, cost: Cost, ranks: int, start: tuple[Members, ...], floor: float) -> None:
        self.cost, self.ranks, self.replicas, self.floor = cost, ranks, len(start), floor
        self.total = ranks * len(start)
        self.found, self.score, self.looked = start, cost.score(start), 0
        self.symmetry = _Symmetry(cost)
        self.images = rank_symmetries(cost, ranks, len(start))
        # Groups that are complete once a rank has its device.
        self.closing: list[list[tuple[int, int, Members]]] = [[] for _ in range(self.total)]
        for n, term in enumerate(cost.terms):
            for r in range(self.replicas):
                for edge in term.edges:
                    members = tuple(r * ranks + rank for rank in edge)
                    self.closing[max(members)].append((r, n, members))

    def run(self) -> tuple[tuple[Members, ...], int]:
        self._place([], {}, 0.0)
        return self.found, self.looked

    def _place(self, devices: list[int], worst: dict[tuple[int, int], float], seconds: float) -> None:
        if self.score.seconds <= self.floor * (1 + 1e-9):
            return
        rank = len(devices)
        if rank == self.total:
            self.looked += 1
            rows = tuple(tuple(devices[r * self.ranks : (r + 1) * self.ranks]) for r in range(self.replicas))
            score = Score(seconds * self.cost.share, 0.0)
            if score.seconds < self.score.seconds * (1 - 1e-9):
                self.found, self.score = rows, self.cost.score(rows)
            return
        taken = frozenset(devices)
        tried: list[int] = []
        for device in range(self.cost.cluster.size):
            if device in taken or any(self.symmetry.alike(device, other, taken) for other in tried):
                continue
            tried.append(device)
            placed = [*devices, device]
            if not self._first(placed):
                continue
            slowest, more = dict(worst), seconds
            for replica, number, members in self.closing[rank]:
                one = self.cost.edge(number, tuple(sorted(placed[m] for m in members)))[0]
                before = slowest.get((replica, number), 0.0)
                if one > before:
                    slowest[replica, number] = one
                    more += one - before
            if more * self.cost.share < self.score.seconds * (1 - 1e-9):
                self._place(placed, slowest, more)

    def _first(self, placed: list[int]) -> bool:
        """Whether no permutation of ranks certainly gives a lexicographically smaller placement."""
        count = len(placed)
        for image in self.images:
            for rank in range(count):
                other = image[rank]
                if other >= count or placed[other] > placed[rank]:
                    break
                if placed[other] < placed[rank]:
                    return False
        return True
