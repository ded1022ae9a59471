"""What Linux says of another process; elsewhere nothing is known."""

from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """state: the letter of proc(5): R runs or could, S waits, D waits for a disk, T and t are stopped.

    cpu_ticks: processor time so far, in ticks of the system (10 ms as a rule).
    """

    state: str
    cpu_ticks: int

    @property
    def halted(self) -> bool:
        """Stopped by a signal or a debugger."""
        return self.state in {"T", "t"}


def stat(pid: int) -> Stat | None:
    """None where there is no such process, or the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the name before may hold anything
    if len(fields) < 13:
        return None
    return Stat(fields[0].decode("ascii", "replace"), int(fields[11]) + int(fields[12]))
