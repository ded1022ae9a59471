"""KV capacity against real engine logs: every row of the shared logs with its error, and the two medians."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.conformance import kv_rows

# Sources of the memory constants in engine/facts/vllm.yaml.
FITTED_ON = ("vllm#10517", "llm-d-planner", "vllm#15815", "vllm#13061")


def main() -> int:
    if not kv_rows.LOGS.is_file():
        print(f"kv_capacity: skipped, {kv_rows.ABSENT}")
        return 0
    found = kv_rows.outcomes()
    for one in found:
        print(_line(one))
    tokens, memory = kv_rows.medians(found)
    exact = [o for o in found if o.exact]
    right = sum(o.bytes_ours == o.bytes_stated for o in exact)
    print(f"\nbytes per token: {right} of {len(exact)} exact rows reproduced")
    print(f"median error of KV tokens from logged memory: {tokens:.2%}")
    print(f"median error of KV memory end to end: {memory:.2%}")
    unseen = [o for o in found if not any(source in o.label for source in FITTED_ON)]
    _, apart = kv_rows.medians(unseen)
    print(f"  of that, logs no memory constant was fitted on: {apart:.2%}")
    return 0


def _line(one: kv_rows.Outcome) -> str:
    parts = []
    if one.bytes_stated is not None and one.bytes_ours is not None:
        parts.append(f"{one.bytes_ours:,} B/token ({'=' if one.bytes_ours == one.bytes_stated else one.bytes_stated})")
    if one.tokens_error is not None:
        parts.append(f"tokens {one.tokens_error:+.2%}")
    if one.memory_ours is not None and one.memory_logged is not None:
        error = f" {one.memory_error:+.1%}" if one.memory_error is not None else ""
        parts.append(f"KV {one.memory_ours:.2f} against {one.memory_logged:.2f} GiB{error}")
    if one.fails or one.refused:
        parts.append(
            f"log: {one.fails or 'runs'}; ours: {one.refused or 'fits' if one.refused is not None else 'open'}"
        )
    if one.note:
        parts.append(f"[{one.note}]")
    return f"{one.label}: " + "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
