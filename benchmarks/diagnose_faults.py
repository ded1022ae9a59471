"""Whose fault was it? Faults put into ranks of our runtime, and what `linkwise diagnose` says of their records.

Each class is tried ten times at random ranks and times, on its layouts in turn; thirty runs without a fault, another
program taking the processors in bursts, must stay without a finding. Asked: every fault named with its class and
exactly its rank or link, and nobody else blamed. Links in a row that the same calls cross are told apart by nothing:
one of them counts as named when these, and no others, are.

    python benchmarks/diagnose_faults.py [CLASS ...] [--trials 10] [--healthy 30] [--seed 0] [-v]
"""

import argparse
import importlib.util
import random
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]  # as a script it is not in a package

from benchmarks.injected.faults import KINDS, LAB, Done  # noqa: E402
from benchmarks.injected.serve import no_quota  # noqa: E402

from linkwise.measure.lab import missing  # noqa: E402


def impossible(name: str) -> str:
    """Why a class cannot be tried on this machine; empty when it can."""
    if name in LAB:
        return missing()
    return no_quota() if name == "CPU-starved rank" else ""


def first(done: Done) -> str:
    """The class that decides, or what the answer was instead."""
    decided = [one.class_ for one in done.findings.findings if one.decided]
    if done.named:
        return next(word for word in decided if word in done.asked.classes)
    return decided[0] if decided else "undecided" if done.findings.findings else "nothing"


def table(results: dict[str, list[Done]]) -> list[str]:
    """The confusion table: a row a class of fault, a column a class of finding."""
    columns = sorted({first(done) for dones in results.values() for done in dones})
    wide = max(map(len, results))
    lines = [
        f"{'fault':<{wide}}  trials  named  others blamed  time to finding s (median, worst)  "
        + "  ".join(columns)
    ]  # fmt: skip
    for name, dones in results.items():
        counts = Counter(map(first, dones))
        seconds = [done.seconds for done in dones]
        named = sum(done.named for done in dones) if any(done.asked.classes for done in dones) else None
        lines.append(
            f"{name:<{wide}}  {len(dones):>6}  {'-' if named is None else named:>5}"
            f"  {sum(bool(done.blamed) for done in dones):>13}"
            f"  {f'{statistics.median(seconds):.2f}, {max(seconds):.2f}':>33}  "
            + "  ".join(f"{counts[column] or '.':>{len(column)}}" for column in columns)
        )
    return lines


def missed(done: Done) -> bool:
    """Whether a trial's answer is not what was asked."""
    return bool(done.blamed) or (not done.named if done.asked.classes else bool(done.findings.findings))


def main(arguments: list[str]) -> int:
    words = argparse.ArgumentParser()
    words.add_argument("classes", nargs="*", metavar="CLASS", help=", ".join(KINDS))
    words.add_argument("--trials", type=int, default=10)
    words.add_argument("--healthy", type=int, default=30)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("-v", action="store_true", dest="aloud")
    asked = words.parse_args(arguments)
    unknown = set(asked.classes) - set(KINDS)
    if unknown:
        words.error(f"no class {', '.join(sorted(unknown))}; there are: {', '.join(KINDS)}")
    lacks = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if lacks:
        print(f"injected faults: not run, {lacks[0]} is not installed")
        return 0
    results: dict[str, list[Done]] = {}
    with tempfile.TemporaryDirectory(prefix="linkwise-models-") as folder:
        for name in asked.classes or KINDS:
            if why := impossible(name):
                print(f"{name}: not run, this machine lacks {why}")
                continue
            count = asked.healthy if name == "healthy" else min(asked.trials, 3 if "lab" in name else asked.trials)
            for number in range(count):
                chance = random.Random(f"{asked.seed} {name} {number}")  # noqa: S311 - which ranks, not a secret
                done = KINDS[name](Path(folder), number, chance)
                results.setdefault(name, []).append(done)
                if asked.aloud or missed(done):
                    _say(name, number, done)
    print("\n".join(table(results)) if results else "nothing was run")
    wrong = sum(missed(done) for dones in results.values() for done in dones)
    print(f"{sum(map(len, results.values()))} trials, {wrong} with another answer than asked")
    return 1 if wrong else 0


def _say(name: str, number: int, done: Done) -> None:
    where = f"ranks {done.asked.ranks}" if done.asked.ranks else " or ".join(sorted(done.asked.links))
    print(f"{'MISSED' if missed(done) else 'named'} {name} {number} ({done.name}; {where}; {done.ended[:80]})")
    for one in done.findings.findings:
        print(f"    {one.class_}{'' if one.decided else ' (undecided)'} [{one.cause}]: {one.summary}")
        print(*(f"        {line}" for line in one.evidence[:5]), sep="\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
