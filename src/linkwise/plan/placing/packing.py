"""Placements by construction: ranks that talk most share the smallest unit that holds them.

For each level of the cluster (islands or sockets, nodes) a candidate says how many ranks of each axis lie together
inside one unit. The rank grid is then cut from outside in, and every part takes the smallest unit with room for it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, product
from math import prod
from typing import NamedTuple

from linkwise.cluster.types import Cluster
from linkwise.core.layout import Layout

MOST_CANDIDATES = 48


class Cut(NamedTuple):
    """One cut of the rank grid: into `parts`, whose first ranks lie `stride` apart."""

    parts: int
    stride: int


def candidates(layout: Layout, cluster: Cluster, replicas: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Placements worth a look, devices of each replica in rank order."""
    units = [_unit(cluster, number) for number in range(cluster.size)]
    for cuts in dict.fromkeys(islice(_all_cuts(layout, cluster), MOST_CANDIDATES)):
        yield _lay(layout, cuts, units, replicas)
    for block in dict.fromkeys((layout.tp, layout.stage_size)):
        yield _in_blocks(layout, block, units, replicas)


def _unit(cluster: Cluster, number: int) -> tuple[int, int]:
    """The units a device is in, large to small; where no device has scale-up links, the small one is a socket."""
    node, island = cluster.node_of(number), cluster.island_of(number)
    if cluster.island_size == 1:
        return node, cluster.socket_of(number)
    return (island, node) if cluster.island_size > cluster.devices_per_node else (node, island)


def _small(cluster: Cluster) -> int:
    """Devices of a small unit."""
    sockets = cluster.detail.sockets if cluster.detail and cluster.island_size == 1 else ()
    return max(map(sockets.count, sockets)) if sockets else cluster.island_size


def _all_cuts(layout: Layout, cluster: Cluster) -> Iterator[tuple[Cut, ...]]:
    degrees = (layout.pp, layout.cp, layout.dp_attn, layout.tp)
    sizes = sorted({min(_small(cluster), layout.size), min(cluster.devices_per_node, layout.size)})
    small, large = sizes[0], sizes[-1]
    for inner in _fillings(degrees, small):
        rest = tuple(d // i for d, i in zip(degrees, inner, strict=True))
        for middle in _fillings(rest, max(1, large // prod(inner))):
            outer = tuple(r // m for r, m in zip(rest, middle, strict=True))
            # Neighbours along an axis lie inside a unit together; or those farthest apart do.
            for parts in ((outer, middle, inner), (inner, middle, outer)):
                yield _cuts(parts, inside_last=parts[-1] is inner)


def _fillings(degrees: Sequence[int], room: int) -> list[tuple[int, ...]]:
    """Divisors of the degrees whose product fits, none of which could be larger."""
    divisors = [[d for d in range(1, degree + 1) if degree % d == 0] for degree in degrees]
    fitting = [found for found in product(*divisors) if prod(found) <= room]
    return [
        one
        for one in fitting
        if not any(other != one and all(a >= b for a, b in zip(other, one, strict=True)) for other in fitting)
    ]


def _cuts(parts: tuple[tuple[int, ...], ...], *, inside_last: bool) -> tuple[Cut, ...]:
    """Cuts from the outermost unit to the innermost. parts: factors of each axis from its outer digits to its inner."""
    strides: list[list[int]] = [[0] * 4 for _ in parts]
    stride = 1
    for axis in (3, 2, 1, 0):
        for level in range(len(parts) - 1, -1, -1):
            strides[level][axis] = stride
            stride *= parts[level][axis]
    order = range(len(parts)) if inside_last else range(len(parts) - 1, -1, -1)
    return tuple(
        Cut(parts[level][axis], strides[level][axis]) for level in order for axis in range(4) if parts[level][axis] > 1
    )


def _lay(
    layout: Layout, cuts: tuple[Cut, ...], units: list[tuple[int, int]], replicas: int
) -> tuple[tuple[int, ...], ...]:
    rows = []
    for devices in _parts(list(range(len(units))), layout.size, replicas, units):
        row = [0] * layout.size
        _fill(row, 0, devices, cuts, units)
        rows.append(tuple(row))
    return tuple(rows)


def _in_blocks(layout: Layout, block: int, units: list[tuple[int, int]], replicas: int) -> tuple[tuple[int, ...], ...]:
    """As many whole blocks of ranks inside units as there can be, whichever replica they belong to."""
    count = replicas * layout.size // block
    order = [d for part in _parts(list(range(len(units))), block, count, units) for d in part]
    return tuple(tuple(order[r * layout.size : (r + 1) * layout.size]) for r in range(replicas))


def _fill(row: list[int], rank: int, devices: list[int], cuts: tuple[Cut, ...], units: list[tuple[int, int]]) -> None:
    if not cuts:
        row[rank] = devices[0]
        return
    first, *rest = cuts
    for i, part in enumerate(_parts(devices, len(devices) // first.parts, first.parts, units)):
        _fill(row, rank + i * first.stride, part, tuple(rest), units)


def _parts(devices: list[int], size: int, count: int, units: list[tuple[int, int]]) -> Iterator[list[int]]:
    """`count` parts of `size` devices, each in the smallest unit that has room, else over as few large ones as can."""
    if len({units[d] for d in devices}) == 1:  # alike: no choice to make
        yield from (devices[i * size : (i + 1) * size] for i in range(count))
        return
    small: dict[tuple[int, int], list[int]] = {}
    for number in devices:
        small.setdefault(units[number], []).append(number)
    large: dict[int, list[tuple[int, int]]] = {}
    for unit in small:
        large.setdefault(unit[0], []).append(unit)
    for _ in range(count):
        yield _take(size, small, large)


def _take(size: int, small: dict[tuple[int, int], list[int]], large: dict[int, list[tuple[int, int]]]) -> list[int]:
    room = {unit: len(free) for unit, free in small.items() if free}
    holds = [unit for unit, free in room.items() if free >= size]
    if holds:
        chosen = [min(holds, key=lambda unit: room[unit])]
    else:
        free = {home: sum(room.get(unit, 0) for unit in inside) for home, inside in large.items()}
        homes = [home for home, count in free.items() if count >= size]
        order = [min(homes, key=lambda home: free[home])] if homes else sorted(free, key=lambda home: -free[home])
        chosen = [unit for home in order for unit in sorted(large[home], key=lambda unit: -room.get(unit, 0))]
    taken: list[int] = []
    for unit in chosen:
        more = size - len(taken)
        taken += small[unit][:more]
        del small[unit][:more]
    return sorted(taken)
