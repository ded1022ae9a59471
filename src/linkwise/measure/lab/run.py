"""The door of the lab: start its keeper in namespaces of its own, pass it the job, take its answer.

Network, mount, process and (without root) user namespaces are new for each run. So nothing a lab does is seen outside,
two labs never meet, and nothing can be left over: when the keeper ends (by itself, because this process closed or lost
the pipe to it, or killed), the kernel ends all its processes and removes all its links.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import msgspec

from linkwise.core.errors import InputError, LinkwiseError
from linkwise.core.schema import Frozen
from linkwise.measure.lab.counters import LinkCount
from linkwise.measure.lab.job import BEGUN, Job, Outcome, RankEnd
from linkwise.measure.lab.topology import Wiring

LAB_SCHEMA = "linkwise.lab/1"
_TOOLS = {"unshare": "util-linux", "mount": "mount", "ip": "iproute2", "tc": "iproute2", "tee": "coreutils"}
# Exit codes of unshare and shells for a program that they could not become.
_NOT_RUN = {126: "may not be run", 127: "is not found"}
MOST_S = 86_400.0
MOST_SAID = 65_536


class LabUnavailable(InputError):
    """This machine cannot build a lab; the message says what is missing."""


class LabEnded(LinkwiseError):
    """Something ended the lab while it ran; nothing of it is left (exit code 1)."""

    exit_code = 1


class LabResult(Frozen, frozen=True, kw_only=True):
    """How a run ended. links: every directed link, in the order of the wiring; seconds: from the first rank's start to
    the last one's end."""

    schema: str = LAB_SCHEMA
    scale: float
    ranks: tuple[RankEnd, ...]
    links: tuple[LinkCount, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Every rank ended with exit code 0."""
        return all(rank.code == 0 for rank in self.ranks)


def missing() -> str:
    """What this machine lacks for a lab, in words; empty when a lab can be built."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    path = _path()
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=path) is None:
            return f"the command {tool} (package {package})"
    if closed := _closed(Path(sys.executable)):
        return f"this user may not use {closed}, which the interpreter {sys.executable} is run from"
    probe = (*_unshare(), "ip", "link", "add", "lwa", "type", "veth", "peer", "name", "lwb")
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            probe, capture_output=True, text=True, timeout=20, check=False, env=os.environ | {"PATH": path}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"namespaces: {error}"
    if done.returncode:
        how = "as root" if os.geteuid() == 0 else "in a user namespace (root needs none)"
        return f"veth pairs in new namespaces, tried {how}: {' '.join(done.stderr.split())[:200]}"
    return ""


def _closed(interpreter: Path) -> str:
    """The first file or folder on the way to the interpreter that this user may not use; empty when it may."""
    for start in dict.fromkeys((interpreter.absolute(), Path(os.path.realpath(interpreter)))):
        for folder in reversed(start.parents):
            if not os.access(folder, os.X_OK):
                return str(folder)
        if not os.access(start, os.R_OK | os.X_OK):
            return str(start)
    return ""


def run_lab(
    wiring: Wiring,
    command: tuple[str, ...],
    *,
    timeout_s: float = 600.0,
    stdout: IO[str] | IO[bytes] | int | None = None,
    stderr: IO[str] | IO[bytes] | int | None = None,
) -> LabResult:
    """Build a lab, run a command once a rank in it, and take it down.

    stdout, stderr: where the ranks' lines go, each with `[rank N] ` before it; as for subprocess.Popen, no pipes.
    Raises LabUnavailable, InputError for a command that does not exist; a rank that fails or does not end is in the
    result. KeyboardInterrupt passes through once everything is down.
    """
    if not 0 < timeout_s <= MOST_S:
        raise InputError(f"{timeout_s:g} s", where="lab timeout", expected=f"above 0, at most {MOST_S:g} s")
    if not command or shutil.which(command[0]) is None:
        raise InputError(f"{command[0] if command else ''!r}", where="lab", expected="a command that can be run")
    if lack := missing():
        raise LabUnavailable(f"missing here: {lack}", where="lab", expected="Linux, namespaces, iproute2")
    answer, reply = os.pipe()
    # What unshare has to say; the ranks' lines go where they are asked to. Closed once it is read.
    said = tempfile.TemporaryFile()  # noqa: SIM115
    errors = _descriptor(stderr)
    try:
        keeper = subprocess.Popen(  # noqa: S603 - an argument list of our own
            (*_unshare(), sys.executable, "-P", "-m", "linkwise.measure.lab.inside"),
            stdin=subprocess.PIPE, stdout=stdout, stderr=said, pass_fds=(reply, errors),
            # Ctrl-C reaches this process alone; the keeper learns of it by its leash, and lets the ranks end well.
            start_new_session=True, env=os.environ | {"PATH": _path()},
        )  # fmt: skip
    except OSError as error:
        os.close(answer)
        said.close()
        raise LabUnavailable(f"namespaces: {error}", where="lab") from None
    finally:
        os.close(reply)
        os.close(errors)
    job = Job(wiring=wiring, command=command, timeout_s=timeout_s, answer=reply, errors=errors)
    with os.fdopen(answer, "rb") as source:
        try:
            assert keeper.stdin is not None  # noqa: S101 - asked for above
            keeper.stdin.write(msgspec.json.encode(job) + b"\n")
            keeper.stdin.flush()
            text = source.read()
        except BrokenPipeError:
            text = b""
        finally:
            _let_go(keeper)
    with said:
        said.seek(0)
        words = said.read(MOST_SAID).decode(errors="replace")
    if not text.strip():
        raise _ended(keeper.returncode, text == BEGUN, words)
    outcome = msgspec.json.decode(text, type=Outcome)
    if outcome.error:
        raise LabUnavailable(f"cannot be built: {outcome.error}", where="lab")
    rates = wiring.rates
    links = tuple(
        LinkCount(src=src, dst=dst, rate_Bps=rate, bytes=count[0], packets=count[1])
        for (src, dst), rate in rates.items()
        for count in (outcome.counts[f"{src}>{dst}"],)
    )
    return LabResult(scale=wiring.scale, ranks=outcome.ranks, links=links, seconds=outcome.seconds)


def _ended(code: int, begun: bool, words: str) -> LinkwiseError:
    """Why there is no answer. code: of unshare. begun: the keeper had been told what to do. words: of unshare, or the
    interpreter's before that."""
    if not begun and code in _NOT_RUN:
        return LabUnavailable(
            f"the interpreter {sys.executable} {_NOT_RUN[code]} in the lab's namespaces",
            where="lab",
            expected="a Python, and folders to it, that this user may read and execute",
        )
    # Process 1 of a namespace can be ended from outside by SIGKILL alone; some unshare then end with 1 and a complaint.
    killed = -code if code < 0 else signal.SIGKILL if begun and code == 1 else 0
    if killed:
        name = signal.Signals(killed).name if killed in set(signal.Signals) else f"signal {killed}"
        return LabEnded(f"its keeper was ended by {name}; nothing of the lab is left", where="lab")
    last = " ".join(words.split())[-200:]
    return LabUnavailable(f"its keeper ended early, exit code {code}" + (f": {last}" if last else ""), where="lab")


def _descriptor(stderr: IO[str] | IO[bytes] | int | None) -> int:
    """A file descriptor of our own for what `subprocess.Popen` takes as stderr."""
    if stderr is None:
        return os.dup(2)
    if stderr == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_WRONLY)
    return os.dup(stderr if isinstance(stderr, int) else stderr.fileno())


def _let_go(keeper: "subprocess.Popen[bytes]") -> None:
    """Close the leash and wait until nothing of the lab is left."""
    assert keeper.stdin is not None  # noqa: S101 - a pipe
    with contextlib.suppress(BrokenPipeError):
        keeper.stdin.close()
    try:
        keeper.wait(15)
    except subprocess.TimeoutExpired:
        keeper.kill()  # unshare's child, process 1 of the lab, is killed with it
        keeper.wait()


def _unshare() -> tuple[str, ...]:
    own = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ("unshare", *own, "--net", "--mount", "--pid", "--fork", "--kill-child")


def _path() -> str:
    """Where the tools are: users other than root often lack the sbin folders."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
