"""Who is this rank? From torchrun's or Slurm's environment; or N local processes of the same command line.

Ranks started here meet at a store that this process serves on 127.0.0.1, under the environment variables torchrun uses,
so that a worker need not know who started it. They end with this process, however it ends.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from linkwise.cluster.hostlist import expand
from linkwise.core.errors import InputError
from linkwise.dist.watch import Lost

LOCALHOST = "127.0.0.1"
MAX_RANKS = 65_536
MAX_RUN = 200  # letters of a run's name
MAX_LOCAL = 256  # processes one command starts by itself
# Ports of Slurm's steps: below 32768, where Linux begins to give ports away for outgoing connections.
FIRST_PORT, PORTS, PORTS_A_JOB = 20_000, 12_000, 97
WATCH, JOINED = "linkwise.watch", "joined"  # names in the store
_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
GRACE_S = 5.0  # for the other ranks once one has ended well, or was killed and must still be found missing
SAID_S = 1.0  # once one has ended with an error: the one that tells of it is about to, a stopped one never ends


class Start(NamedTuple):
    """One rank's place. host, port: where ranks meet. hosted: the launcher serves the store there, else rank 0 does.

    run: which run the rank is of, the same for all its ranks and for no other run; "" when nobody says.
    """

    rank: int
    world: int
    local_rank: int
    host: str
    port: int
    hosted: bool
    by: str
    run: str = ""


def from_environment(environ: Mapping[str, str]) -> Start | None:
    """The rank that torchrun, Slurm or `spawn` made of this process; None when nobody did. InputError when malformed.

    torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID. Slurm: a step of srun (a
    batch script alone is no rank): SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST,
    SLURM_JOB_ID, SLURM_STEP_ID; MASTER_PORT if given.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        agent = environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() in {"true", "1"}
        by = "linkwise" if environ.get("LINKWISE_LAUNCHED") == "1" else "torchrun"
        world, named = _number(environ, "WORLD_SIZE"), environ.get("TORCHELASTIC_RUN_ID", "")
        return _checked(
            Start(
                rank=_number(environ, "RANK"),
                world=world,
                local_rank=_number(environ, "LOCAL_RANK", 0),
                host=_word(environ, "MASTER_ADDR"),
                port=_number(environ, "MASTER_PORT"),
                hosted=agent,
                by=by,
                run=_run(by, world, f"run {named}" if named else ""),
            )
        )
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        name = "SLURM_STEP_NODELIST" if environ.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
        hosts = expand(_word(environ, name), where=name)
        # Every rank of the step must find the same port without asking anybody, and another step a different one.
        job, step = _number(environ, "SLURM_JOB_ID", 0), _number(environ, "SLURM_STEP_ID", 0)
        own = FIRST_PORT + (PORTS_A_JOB * job + step) % PORTS
        world = _number(environ, "SLURM_STEP_NUM_TASKS")
        return _checked(
            Start(
                rank=_number(environ, "SLURM_PROCID"),
                world=world,
                local_rank=_number(environ, "SLURM_LOCALID", 0),
                host=environ.get("MASTER_ADDR") or hosts[0],
                port=_number(environ, "MASTER_PORT", own),
                hosted=False,
                by="slurm",
                run=_run("slurm", world, f"job {job} step {step}"),
            )
        )
    return None


def _run(by: str, world: int, name: str) -> str:
    """One line that names a run; it is kept in the store where ranks meet."""
    return " ".join(f"{by} {name} of {world} ranks".split())[:MAX_RUN]


def _checked(start: Start) -> Start:
    if not 1 <= start.world <= MAX_RANKS or not 0 <= start.rank < start.world or not 0 < start.port < 65_536:
        raise InputError(
            f"rank {start.rank} of {start.world}, port {start.port}",
            where=f"environment of {start.by}",
            expected="0 <= rank < world, a port of 1..65535",
        )
    return start


def _word(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value or len(value) > 100_000:
        raise InputError(f"{name} is not set", where="environment", expected="what torchrun or srun sets")
    return value


def _number(environ: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    value = environ.get(name, "").strip()
    if not value and otherwise is not None:
        return otherwise
    # Slurm numbers the steps it makes by itself from 2^32 downwards.
    if not (value.isascii() and value.isdigit() and len(value) < (11 if name == "SLURM_STEP_ID" else 10)):
        raise InputError(f"{name} is {value[:40]!r}", where="environment", expected="a number, as torchrun sets it")
    return int(value)


def spawn(words: Sequence[str], ranks: int) -> int:
    """Run `linkwise WORDS` as `ranks` processes on this machine; returns rank 0's exit code, or a failed rank's.

    A rank that failed has said why. The others get a few seconds to end and are then killed, stopped ones too. Raises
    Lost where ranks were ended from outside and no rank has said so.
    """
    if not 1 <= ranks <= MAX_LOCAL:
        raise InputError(
            f"{ranks} ranks on this machine", where="--ranks", expected=f"1..{MAX_LOCAL}, or torchrun or srun"
        )
    store = serve(LOCALHOST, 0)
    with _children(words, ranks, store.port) as children:
        code = _wait(children)
        killed = {rank: -c for rank, child in enumerate(children) if (c := child.poll()) is not None and c < 0}
        if code == Lost.exit_code and killed and not any((child.poll() or 0) > 0 for child in children):
            raise _ended(killed, ranks, store)
        return code


def _ended(killed: Mapping[int, int], ranks: int, store: Any) -> Lost:
    """What this process knows of ranks that cannot tell it themselves. killed: signal by rank."""
    joined = {rank for rank in range(ranks) if store.check([f"{WATCH}/{JOINED}/{rank}"])}
    said = []
    for rank, number in list(killed.items())[:16]:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        said.append(f"rank {rank} was ended by {name}" + ("" if rank in joined else " before it joined"))
    more = f" and {len(killed) - 16} more" if len(killed) > 16 else ""
    return Lost("; ".join(said) + more, tuple(killed))


@contextlib.contextmanager
def _serving() -> Iterator[int]:
    """A store on 127.0.0.1, any free port, for as long as the ranks run."""
    store = serve(LOCALHOST, 0)
    yield store.port
    del store


def leash(environ: Mapping[str, str]) -> None:
    """End this rank with the process that started it, also when that is killed: for ranks that `spawn` started.

    On Linux the kernel does it, which ends stopped ranks as well; elsewhere a thread looks.
    """
    told = environ.get("LINKWISE_PARENT", "")
    if not (told.isascii() and told.isdigit() and len(told) < 10):
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_look, args=(int(told),), name="linkwise-leash", daemon=True).start()
    if os.getppid() != int(told):  # it had ended before
        os._exit(Lost.exit_code)


def _look(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(Lost.exit_code)


def serve(host: str, port: int, timeout_s: float = 30.0) -> Any:
    """A TCPStore that listens on one address only (torch's own binds every interface)."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(4096)
            return TCPStore(
                host,
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
                master_listen_fd=os.dup(listener.fileno()),
            )
    except OSError as error:
        raise InputError(
            f"cannot serve {host}:{port}: {(error.strerror or str(error)).lower()}",
            where="store",
            expected="MASTER_ADDR of this machine and a free MASTER_PORT",
        ) from None


@contextlib.contextmanager
def _children(words: Sequence[str], ranks: int, port: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    children: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        for rank in range(ranks):
            command = [sys.executable, "-m", "linkwise", *words]
            children.append(subprocess.Popen(command, env=_environment(rank, ranks, port)))  # noqa: S603 - our own words
        yield children
    finally:
        signal.signal(signal.SIGTERM, before)
        for child in children:
            if child.poll() is None:
                child.kill()  # ends a stopped process too
        for child in children:
            child.wait()


def _terminated(*_: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    usual = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    usual["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOCALHOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "LINKWISE_LAUNCHED": "1",
        "LINKWISE_PARENT": str(os.getpid()),
    }
    return {**usual, **os.environ, **own}


def _wait(children: list["subprocess.Popen[bytes]"]) -> int:
    """Until all have ended, or one has failed and the grace is over."""
    deadline = float("inf")
    while time.monotonic() < deadline:
        # All are asked before any is judged: one that never ends must not hide the others.
        first, *others = (child.poll() for child in children)
        if None not in (first, *others):
            break
        if any(code is not None and code > 0 for code in (first, *others)):
            deadline = min(deadline, time.monotonic() + SAID_S)
        elif first is not None or any(others):
            deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(0.02)
    codes = [child.poll() for child in children]
    if codes[0] is not None and codes[0] >= 0:
        return codes[0]
    return next((code for code in codes if code is not None and code > 0), 1)
