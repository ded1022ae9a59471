"""Small topology files written for tests, in the form of `nvidia-smi topo -m`."""

from linkwise.cluster.readers import parse
from linkwise.cluster.topology import Machine


def matrix(rows: list[list[str]], nics: list[list[str]], cpus: list[str], numa: list[str]) -> str:
    """The text of a matrix: GPU words by row, then the NIC words of each GPU, CPU list and NUMA node."""
    count, cards = len(rows), len(nics[0]) if nics else 0
    heads = [f"GPU{n}" for n in range(count)] + [f"NIC{n}" for n in range(cards)]
    lines = ["\t".join(["", *heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for at, row in enumerate(rows):
        lines.append("\t".join([f"GPU{at}", *row, *(nics[at] if nics else []), cpus[at], numa[at], "", "N/A"]))
    legend = [f"  NIC{n}: mlx5_{n}" for n in range(cards)]
    return "\n".join([*lines, "", "NIC Legend:", "", *legend, ""])


def square(count: int, word: str) -> list[list[str]]:
    """Every pair alike."""
    return [["X" if a == b else word for b in range(count)] for a in range(count)]


def text(count: int = 4, word: str = "NV18", *, near: str = "PIX", far: str = "SYS") -> str:
    """GPUs all alike, a NIC each, the first half on socket 0 and the second on socket 1."""
    nics = [[near if a == b else far for b in range(count)] for a in range(count)]
    numa = [str(int(a >= count / 2)) for a in range(count)]
    return matrix(square(count, word), nics, [f"{a}-{a}" for a in range(count)], numa)


def machine(source: str, where: str = "node.txt") -> Machine:
    found = parse(source, where=where)
    assert isinstance(found, Machine)
    return found


def without_nics(words: list[list[str]], numa: str = "0") -> str:
    """A matrix of GPUs alone."""
    return matrix(words, [], [f"{a}-{a}" for a in range(len(words))], [numa] * len(words))
