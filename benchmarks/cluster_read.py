"""How fast `linkwise cluster read` and `lint` are, as a user meets them: whole process, median of seven, against the
half second asked. The file is a matrix of eight GPUs and eight NICs in the form of `nvidia-smi topo -m`.
"""

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]  # as a script it is not in a package

from benchmarks.speed import median_s  # noqa: E402

RUNS = 7
ASKED_S = 0.5
NUMBERS = range(8)


def matrix() -> str:
    """NVLink between all, each GPU's own NIC under its PCIe switch."""
    heads = [*(f"GPU{n}" for n in NUMBERS), *(f"NIC{n}" for n in NUMBERS), "CPU Affinity", "NUMA Affinity"]
    rows = []
    for a in NUMBERS:
        gpus = ["X" if a == b else "NV18" for b in NUMBERS]
        nics = ["PIX" if a == b else "SYS" for b in NUMBERS]
        first = a // 4 * 48
        rows.append([f"GPU{a}", *gpus, *nics, f"{first}-{first + 47}", str(a // 4)])
    return "\n".join("\t".join(row) for row in (["", *heads], *rows)) + "\n"


def main() -> int:
    linkwise = str(Path(sys.executable).with_name("linkwise"))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        node, cluster = Path(folder) / "topo.txt", Path(folder) / "cluster.yaml"
        node.write_text(matrix())
        read = ["read", str(node), "--nodes", "16", "--fabric", "rail", "--accelerator", "h200-sxm", "-o", str(cluster)]
        for name, words in (("read", read), ("lint", ["lint", str(cluster)])):
            seconds = median_s([linkwise, "cluster", *words], RUNS)
            missed += seconds > ASKED_S
            verdict = "met" if seconds <= ASKED_S else "MISSED"
            print(f"linkwise cluster {name}, 16 nodes of 8 GPUs {seconds:6.2f} s   asked {ASKED_S:g} s {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
