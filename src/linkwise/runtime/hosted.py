"""Ranks that torchrun or srun started: rank 0's process holds the driver as well, the others follow it."""

import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from linkwise.core.errors import InputError
from linkwise.dist.launch import Start, serve
from linkwise.dist.watch import Lost
from linkwise.runtime.built import Home
from linkwise.runtime.control import Line, UnitSpec
from linkwise.runtime.driver import LocalUnit
from linkwise.runtime.local import Elsewhere
from linkwise.runtime.worker import Patience
from linkwise.runtime.worker import serve as work

_KEY = "linkwise.driver"
SILENT_SHARE = 0.75  # of the time limit; the rest is for the launcher, which ends the other ranks


def lead(start: Start, spec: UnitSpec, say: Callable[[str], None] = lambda line: None) -> LocalUnit:
    """The unit, on rank 0: once it is started, this process is a rank as well, in a thread of its own. say: as the
    unit's."""
    store = None if start.hosted else serve(start.host, start.port, spec.timeout_s)

    def publish(host: str, port: int, token: str) -> threading.Thread:
        meeting = _store(start, spec.timeout_s)
        meeting.set(_KEY, json.dumps([host, port, token]))
        rank = threading.Thread(
            target=_rank, args=(start, host, port, token, store), name="linkwise-rank", daemon=True
        )  # fmt: skip
        rank.start()
        return rank

    return LocalUnit("run", spec, launched=lambda: Elsewhere(publish), host=start.host, say=say)


def _rank(start: Start, host: str, port: int, token: str, store: Any) -> None:
    """store: kept as long as the rank lives, since all ranks meet there."""
    work(start.rank, Line(host, port), Home(start.rank, start._replace(hosted=True)), token, lambda code: None)
    del store


def follow(start: Start, timeout_s: float, say: Callable[[str], None]) -> int:
    """Be one of the other ranks; returns the exit code. say: takes a line about rank 0, should it fall silent."""
    try:
        store = _store(start, timeout_s)
        store.wait([_KEY], timedelta(seconds=timeout_s))
        host, port, token = json.loads(store.get(_KEY).decode())
    except RuntimeError:
        raise Lost(f"rank {start.rank}: rank 0 does not say where the driver is within {timeout_s:g} s", (0,)) from None
    if not isinstance(host, str) or not isinstance(port, int) or not isinstance(token, str):
        raise InputError("an address that is none", where="store of the ranks")

    def silent(seconds: float) -> None:
        say(f"error: rank {start.rank}: rank 0, which drives the run, has said nothing for {seconds:.1f} s")
        os._exit(Lost.exit_code)

    home = Home(start.rank, start._replace(hosted=True))
    patience = Patience(timeout_s * SILENT_SHARE, silent)
    return work(start.rank, Line(host, port), home, token, os._exit, patience)


def _store(start: Start, timeout_s: float) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(
        start.host, start.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
