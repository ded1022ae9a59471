"""Which NVLinks do the NV# pairs of a matrix mean: links of the two GPUs, or into an NVSwitch that all share?"""

from linkwise.cluster.topology import Part, Wire

# The most links of a GPU sold without an NVSwitch board (H100, H200). Pairs that add up to more share a switch.
MOST_DIRECT_NVLINKS = 18


def bonds(counts: dict[str, int], notes: list[str]) -> tuple[list[Part], list[Wire]]:
    """Wires of the NV# pairs: between the two GPUs, or into the NVSwitch that pairs with too many links must share."""
    peers: dict[str, dict[str, int]] = {}
    for key, count in counts.items():
        a, b = key.split()
        peers.setdefault(a, {})[b] = count
        peers.setdefault(b, {})[a] = count
    switches: list[Part] = []
    wires: list[Wire] = []
    left = set(peers)
    while left:
        island = _island(min(left, key=_number), peers)
        left -= island
        ports = {gpu: max(peers[gpu].values()) for gpu in sorted(island, key=_number)}
        shared = any(sum(peers[gpu].values()) > MOST_DIRECT_NVLINKS for gpu in island)
        if shared and all(count == min(ports[a], ports[b]) for a in island for b, count in peers[a].items()):
            name = f"nvswitch{len(switches)}"
            switches.append(Part(id=name, kind="switch", index=len(switches)))
            wires += [Wire(a=gpu, b=name, kind="nvlink", count=count) for gpu, count in ports.items()]
            gpu = next(iter(ports))
            total = sum(peers[gpu].values())
            notes.append(
                f"{name} is inferred: {gpu}'s pairs add up to {total} NVLinks, more than any GPU has of its own"
            )
        else:
            wires += [
                Wire(a=a, b=b, kind="nvlink", count=peers[a][b])
                for a in ports
                for b in ports
                if b in peers[a] and _number(a) < _number(b)
            ]
    return switches, wires


def _island(start: str, peers: dict[str, dict[str, int]]) -> set[str]:
    island, edge = {start}, [start]
    while edge:
        for other in peers[edge.pop()]:
            if other not in island:
                island.add(other)
                edge.append(other)
    return island


def _number(gpu: str) -> int:
    return int(gpu[3:])
