"""Our forward pass against transformers in float32, every family under every layout of the table, on four local ranks.

Printed: the largest absolute difference of any logit, whether all greedy tokens are equal, and how many calls of the
process groups were compared with the plan's. Wanted: 1e-4, all, and no difference.
`--markdown` prints the table of docs/oracle.md. A word picks the families or layouts that contain it.
"""

import datetime
import importlib.util
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.runtime import oracle


def main() -> int:
    missing = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"oracle: not run, {', '.join(missing)} not installed (pip install linkwise[oracle])")
        return 0
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    cases = [case for case in oracle.CASES if all(word in f"{case.family}: {case.name}" for word in words)]
    began = time.perf_counter()
    results = oracle.table(cases, timeout_s=3600.0)
    took = time.perf_counter() - began
    good = [one.equal and one.difference < oracle.TOLERANCE and not one.unplanned for one in results]
    if "--markdown" in sys.argv:
        _markdown(results)
    else:
        for one, fine in zip(results, good, strict=True):
            mark = "" if fine else "   <-- differs"
            words = (
                f"{one.difference:.1e}  {'equal' if one.equal else 'other'} tokens  {one.calls:5,} calls {_calls(one)}"
            )
            print(f"{one.family:22} {one.name:28} {words}{mark}")
    worst = max(one.difference for one in results)
    print(
        f"oracle: {sum(good)} of {len(good)} cases within {oracle.TOLERANCE:g}, with equal tokens and planned calls;"
        f" largest logit difference {worst:.1e}, {sum(one.tokens for one in results):,} tokens,"
        f" {sum(one.calls for one in results):,} calls, {took:.0f} s"
    )
    return 0 if all(good) else 1


def _markdown(results: list[oracle.Result]) -> None:
    import torch  # noqa: PLC0415 - the script says what is missing
    import transformers  # noqa: PLC0415

    today = datetime.datetime.now(tz=datetime.UTC).date()
    print(f"{today}, torch {torch.__version__}, transformers {transformers.__version__}, {os.cpu_count()} CPU cores\n")
    print("| family | layout | largest logit difference | greedy tokens | calls |\n|---|---|---|---|---|")
    for one in results:
        tokens = f"{one.tokens} {'equal' if one.equal else 'OTHER'}"
        print(f"| {one.family} | {one.name} | {one.difference:.1e} | {tokens} | {one.calls:,} {_calls(one)} |")
    print()


def _calls(one: oracle.Result) -> str:
    return one.unplanned or "as planned"


if __name__ == "__main__":
    sys.exit(main())
