"""What a process that reads strangers' files may use, kept by the system and not by our care."""

import sys
from contextlib import suppress

MAX_MEMORY_BYTES = 6 * 2**30  # address space, what a process shares with its parent included


def limit() -> None:
    """Bound this process's memory. Where the system has no such limits nothing is bounded, and `limited` says so."""
    if sys.platform != "win32":
        import resource

        with suppress(ValueError, OSError):  # a lower limit is in force already
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))


def allow_cpu(seconds: int) -> None:
    """From now on this process may use so many more seconds of processor time; then the system ends it."""
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds, hard))


def limited() -> bool:
    """Whether this process's memory and processor time are bounded."""
    if sys.platform == "win32":
        return False
    import resource

    kinds = (resource.RLIMIT_AS, resource.RLIMIT_CPU)
    return all(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in kinds)
