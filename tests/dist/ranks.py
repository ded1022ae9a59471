"""Runs a few lines of Python as N ranks over gloo on this machine, as `linkwise measure` starts its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linkwise.dist.launch import _environment, _serving

PRELUDE = """
import json, os, sys
from linkwise.core.errors import LinkwiseError
from linkwise.dist.groups import Named, axis_groups, barrier, create, join, share
from linkwise.dist.launch import from_environment
start = from_environment(os.environ)

def run(body, timeout_s=20.0):
    try:
        with join(start, backend="gloo", timeout_s=timeout_s) as session:
            body(session)
    except LinkwiseError as error:
        print("ERROR", error, flush=True)
        sys.exit(error.exit_code)
"""


@contextmanager
def started(folder: Path, code: str, ranks: int) -> Iterator[list["subprocess.Popen[str]"]]:
    """The processes, running; killed at the end if they still are."""
    script = folder / "worker.py"
    script.write_text(PRELUDE + code)
    with _serving() as port:
        processes = [
            subprocess.Popen(
                [sys.executable, str(script)],
                env=_environment(rank, ranks, port),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
                if process.stdout:
                    process.stdout.close()


def outputs(folder: Path, code: str, ranks: int) -> list[str]:
    """What each rank printed; every rank must have ended well."""
    with started(folder, code, ranks) as processes:
        said = [process.communicate(timeout=100)[0] for process in processes]
        for process, text in zip(processes, said, strict=True):
            assert process.returncode == 0, text
    return said


def last_json(text: str) -> Any:
    """The last line that the worker printed as JSON; libraries may print after it."""
    return json.loads([line for line in text.splitlines() if line.startswith(("[", "{"))][-1])
