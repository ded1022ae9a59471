"""A process that fills in one chat template, under limits of the system: `python -m linkwise.runtime.renderer`.

The template is code out of a model folder. Jinja's sandbox keeps it from reaching anything but its messages; what it
may take is for the system to bound, since no list of harmless filters is known to be complete: address space
(RLIMIT_AS) and processor time (RLIMIT_CPU), while it is compiled, which computes constants, and while it is filled in.

Frames on the socket that is standard input: 4 bytes of length, then JSON. The first holds the template, the others
values; each is answered by {"text": ...} or {"error": ...}, with "over" where that was the last one. Beyond its
processor time the process ends by SIGXCPU.
"""

import datetime
import json
import resource
import socket
import struct
import time
from typing import Any

CPU_S = 2  # of one conversation; a template takes milliseconds
MEMORY_BYTES = 512 * 2**20  # of address space; 60 MB of it are Python and Jinja
MAX_TEXT = 2**24
LENGTH = struct.Struct(">I")


def framed(value: Any) -> bytes:
    """A value as it goes over the socket."""
    data = json.dumps(value, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


def main() -> int:
    """Serve until the other side closes."""
    line = socket.socket(fileno=0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    template: Any = None
    words: dict[str, str] = {}
    with line, line.makefile("rb") as frames:
        while True:
            head = frames.read(LENGTH.size)
            if len(head) < LENGTH.size:
                return 0
            asked = json.loads(frames.read(LENGTH.unpack(head)[0]))
            # In whole seconds of the process's life: what is used, rounded up, and the allowance.
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + CPU_S)
            try:
                if template is None:
                    words = asked["words"]
                    template = environment().from_string(asked["template"])
                    line.sendall(framed({"text": ""}))
                else:
                    line.sendall(framed({"text": _filled(template, words | asked)}))
            except MemoryError:
                # Whatever holds it is given back with the process.
                line.sendall(framed({"error": f"more than {MEMORY_BYTES >> 20} MiB of memory", "over": True}))
                return 1
            except Exception as error:  # noqa: BLE001 - whatever a template does is the template's error
                line.sendall(framed({"error": (str(error) or type(error).__name__)[:2000]}))


def _limit(which: int, soft: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _filled(template: Any, values: dict[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    for part in template.generate(**values):
        size += len(part)
        if size > MAX_TEXT:
            raise ValueError(f"more than {MAX_TEXT} characters")
        parts.append(part)
    return "".join(parts)


def environment() -> Any:
    """Jinja's sandbox with the names and options that transformers gives templates."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the model wrote, for training: here its body alone."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: object) -> None:
        raise TemplateError(str(message))

    def to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own escapes HTML, which is no part of a prompt.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
