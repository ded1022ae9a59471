"""How fast the planning commands are, as a user meets them: whole process, median of five, against what was asked.

`linkwise fit` within 0.7 s; `linkwise plan` for DeepSeek-V3 on 32 GPUs, every legal layout and twelve batch sizes,
within 2 s; peak resident memory under 200 MB. Asked of two cores.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

RUNS = 5
MB = 10**6
COMMANDS = (
    ("linkwise fit", "fit llama-3.1-405b --on 8xh100-sxm", 0.7),
    ("linkwise plan, 32 GPUs", "plan deepseek-v3 --on 4x8xh200-sxm", 2.0),
)
MEMORY_MB = 200


def measure(words: list[str]) -> tuple[float, int]:
    """(wall seconds, peak resident bytes) of one process."""
    with open(os.devnull, "wb") as nowhere:
        start = time.perf_counter()
        child = os.posix_spawn(
            words[0],
            words,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)],
        )
        _, status, usage = os.wait4(child, 0)
        elapsed = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    if code not in {0, 1}:  # a negative answer is an answer
        sys.exit(f"{' '.join(words)} ended with {code}")
    # Linux counts in KiB, macOS in bytes.
    return elapsed, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def median_s(words: list[str], runs: int = RUNS) -> float:
    """Wall seconds of a command, median of so many runs behind one that compiles bytecode."""
    measure(words)
    return statistics.median(measure(words)[0] for _ in range(runs))


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for name, command, asked_s in COMMANDS:
            words = [str(Path(sys.executable).with_name("linkwise")), *command.split()]
            measure(words)  # the first run compiles bytecode
            runs = [measure(words) for _ in range(RUNS)]
            seconds = statistics.median(s for s, _ in runs)
            peak = max(p for _, p in runs) / MB
            for what, value, asked, unit in (("time", seconds, asked_s, "s"), ("peak memory", peak, MEMORY_MB, "MB")):
                verdict = "met" if value <= asked else "MISSED"
                missed += value > asked
                print(f"{name:<24} {what:<12} {value:8.2f} {unit:<3} asked {asked:g} {unit:<3} {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
