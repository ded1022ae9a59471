"""Memory that this machine could give now."""

import os
from pathlib import Path


def free_bytes() -> int:
    """What this machine could give now: free and reclaimable memory, within a control group's limit."""
    found = [_available(), *_group_room()]
    return max(0, min(found))


def _available() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 * 2**30


def _group_room() -> list[int]:
    try:
        folder = Path("/sys/fs/cgroup")
        most, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = [line.split()[1] for line in (folder / "memory.stat").read_text().splitlines()
                  if line.startswith(("inactive_file ", "active_file "))]  # fmt: skip
        return [most - used + sum(map(int, cached))]
    except (OSError, ValueError, IndexError):  # no such group, or no limit
        return []
