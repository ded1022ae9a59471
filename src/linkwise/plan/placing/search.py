"""Better placements step by step: exchange two devices wherever the slowest groups gain. Deterministic."""

from collections.abc import Iterator

from linkwise.plan.placing.cost import Cost, Score

Rows = tuple[tuple[int, ...], ...]

# Up to here every pair of devices is tried.
ALL_PAIRS = 32


class Board:
    """A placement under change, and what each of its groups costs."""

    def __init__(self, cost: Cost, rows: Rows) -> None:
        self.cost = cost
        self.rows = [list(row) for row in rows]
        used = {device for row in rows for device in row}
        self.free = [device for device in range(cost.cluster.size) if device not in used]
        self.at = {device: (r, i) for r, row in enumerate(rows) for i, device in enumerate(row)}
        self.edges = [[[cost.edge(n, self._members(r, e)) for e in t.edges] for n, t in enumerate(cost.terms)]
                      for r in range(len(rows))]  # fmt: skip
        self.touching: list[list[tuple[int, int]]] = [[] for _ in rows[0]]
        for n, term in enumerate(cost.terms):
            for e, ranks in enumerate(term.edges):
                for rank in ranks:
                    self.touching[rank].append((n, e))
        self.slowest = [[max(edges)[0] for edges in row] for row in self.edges]
        self.seconds = sum(map(sum, self.slowest))
        self.spread = sum(weight for row in self.edges for edges in row for _, weight in edges)

    @property
    def score(self) -> Score:
        return Score(self.seconds * self.cost.share, self.spread * self.cost.share)

    def _members(self, replica: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
        row = self.rows[replica]
        return tuple([row[rank] for rank in ranks])

    def exchange(self, a: int, b: int) -> None:
        """Exchange two devices: two ranks' places, or a rank's with a free device. Undone by doing it again."""
        seats = [(self.at.pop(own, None), own, other) for own, other in ((a, b), (b, a))]
        for seat, own, other in seats:
            if seat is None:
                self.free[self.free.index(own)] = other
            else:
                self.rows[seat[0]][seat[1]] = other
                self.at[other] = seat
        changed = {(seat[0], n, e) for seat, _, _ in seats if seat for n, e in self.touching[seat[1]]}
        for replica, number, e in changed:
            new = self.cost.edge(number, self._members(replica, self.cost.terms[number].edges[e]))
            edges = self.edges[replica][number]
            self.spread += new[1] - edges[e][1]
            edges[e] = new
        for replica, number in {(replica, number) for replica, number, _ in changed}:
            worst = max(self.edges[replica][number])[0]
            self.seconds += worst - self.slowest[replica][number]
            self.slowest[replica][number] = worst

    def frozen(self) -> Rows:
        return tuple(map(tuple, self.rows))


def improve(cost: Cost, rows: Rows, tries: int, *, goal: float = 0.0, sign: int = 1) -> tuple[Rows, int]:
    """(placement after exchanges that help, exchanges looked at): at most `tries`, or until `goal` seconds.

    sign -1 looks for a worse placement.
    """
    board = Board(cost, rows)
    most = tries
    moved = True
    while moved and tries > 0 and not (sign > 0 and board.score.seconds <= goal * (1 + 1e-9)):
        moved = False
        for a, b in _moves(board):
            before = board.score
            board.exchange(a, b)
            tries -= 1
            after = board.score
            if after.beats(before) if sign > 0 else before.beats(after):
                moved = True
            else:
                board.exchange(a, b)
            if tries <= 0:
                break
    return board.frozen(), most - tries


def _moves(board: Board) -> Iterator[tuple[int, int]]:
    """Pairs of devices to exchange: all of a small cluster's; else members of the slowest groups with every device of
    the nodes the rest of their group is on."""
    cluster = board.cost.cluster
    if cluster.size <= ALL_PAIRS:
        yield from ((a, b) for a in range(cluster.size) for b in range(a) if a in board.at or b in board.at)
        return
    wide = cluster.devices_per_node
    for replica, row in enumerate(board.edges):
        for number in sorted(range(len(row)), key=lambda n: -max(row[n])[0]):
            slow = max(row[number])[0]
            for e, ranks in enumerate(board.cost.terms[number].edges):
                if row[number][e][0] < slow or not slow:
                    continue
                homes = {cluster.node_of(board.rows[replica][rank]) for rank in ranks}
                for rank in ranks:
                    for home in homes:
                        for b in range(home * wide, (home + 1) * wide):
                            if (a := board.rows[replica][rank]) != b:
                                yield a, b
