"""Ask a running NCCL job's RAS service how its ranks are.

Each process of a job listens on a TCP port (28028 by default, NCCL_RAS_ADDR names another) and answers for all of them.
The words of the exchange are those of NCCL's own client (src/ras/client.cc, NCCL 2.28): a line a side, `OK` for an
option, and after STATUS a text until the connection ends.
"""

import socket
import time
from contextlib import suppress

from linkwise.core.errors import InputError

PORT = 28028
PROTOCOL = 2
MAX_BYTES = 64 * 2**20
ASKED_S = 5  # what the job's processes may take to answer each other


def ask(address: str, *, timeout_s: float = 12.0) -> bytes:
    """The service's report: JSON where it can (NCCL 2.28.7), else text, which the reader of files takes as well.

    address: HOST or HOST:PORT. Raises InputError when nothing answers within the time, or something else does.
    """
    host, port = _split(address)
    deadline = time.monotonic() + timeout_s
    report = _once(host, port, address, deadline, json=True)
    return report if report is not None else _once(host, port, address, deadline, json=False) or b""


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":") if address.count(":") == 1 or "]:" in address else (address, "", "")
    if not colon:
        return address.strip("[]"), PORT
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise InputError(f"port {port[:20]!r}", where="--ras", expected="HOST or HOST:PORT, as in localhost:28028")
    return host.strip("[]"), int(port)


def _once(host: str, port: int, where: str, deadline: float, *, json: bool) -> bytes | None:
    """One exchange; None when the service does not know JSON."""
    try:
        with socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic())) as line:
            _say(line, f"CLIENT PROTOCOL {PROTOCOL}", deadline)
            said = _line(line, deadline, where)
            if not said.upper().startswith("SERVER PROTOCOL "):
                raise InputError(f"answers {said[:80]!r}", where=where, expected="the RAS service of an NCCL job")
            _say(line, f"TIMEOUT {ASKED_S}", deadline)
            _line(line, deadline, where)
            if json:
                _say(line, "SET FORMAT json", deadline)
                if _line(line, deadline, where).upper() != "OK":
                    return None
            _say(line, "VERBOSE STATUS", deadline)
            return _rest(line, deadline, where)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"no answer: {error}", where=where, expected="the RAS service of a running NCCL job",
            hint="NCCL_RAS_ENABLE=1 (the default) starts it, NCCL_RAS_ADDR says where",
        ) from None  # fmt: skip


def _say(line: socket.socket, words: str, deadline: float) -> None:
    line.settimeout(max(0.1, deadline - time.monotonic()))
    line.sendall(words.encode() + b"\n")


def _line(line: socket.socket, deadline: float, where: str) -> str:
    data = b""
    while not data.endswith(b"\n"):
        line.settimeout(max(0.1, deadline - time.monotonic()))
        part = line.recv(1024)
        data += part
        if not part or len(data) > 4096:
            raise InputError(f"ends with {data[-80:]!r}", where=where, expected="a line of the RAS service")
    return data.decode(errors="replace").strip()


def _rest(line: socket.socket, deadline: float, where: str) -> bytes:
    data = bytearray()
    with suppress(TimeoutError):  # what has come by then is a report that ends early, and is read as one
        while True:
            line.settimeout(max(0.1, deadline - time.monotonic()))
            part = line.recv(65_536)
            if not part:
                break
            data += part
            if len(data) > MAX_BYTES:
                raise InputError(f"more than {MAX_BYTES} bytes", where=where)
    return bytes(data)
