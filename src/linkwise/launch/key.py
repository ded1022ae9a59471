"""The key that requests need: no file holds it, everything that runs reads it from one variable of its environment.

vLLM asks for a key below /v1, /v2, /inference and /cohere alone (docs/usage/security.md); SGLang everywhere but for
/health, /ready and /metrics (srt/utils/auth.py). So probes of health need none, and what asks for tokens does.
"""

import re
from collections.abc import Mapping

from linkwise.core.errors import InputError
from linkwise.launch.types import KEY, KEY_VARIABLE

WHERE = "--with-key"
SIGNS = "[A-Za-z0-9._~+/=-]+"  # of a bearer token (RFC 6750), which needs no quoting in JSON either
_MOST_CHARS = 4096
_SAYS = {
    "vllm": "vLLM asks for the key below /v1 and its like only: /metrics, /tokenize and others are open to whoever"
    " reaches its port",
    "sglang": "SGLang and its router take the key on their command line, where a node's users can read it",
}
NOTE = f"requests need the key in {KEY_VARIABLE}, which is in no file: set it wherever the scripts run"


def read(environ: Mapping[str, str]) -> str:
    """The key. Raises InputError where it is not set, or cannot stand in a header."""
    key = environ.get(KEY_VARIABLE, "")
    if not re.fullmatch(SIGNS, key) or len(key) > _MOST_CHARS:
        raise InputError(
            "is not set" if not key else "holds signs that no key has", where=KEY_VARIABLE,
            expected="the key that requests need: letters, digits and ._~+/=-",
        )  # fmt: skip
    return key


def headers(key: str) -> dict[str, str]:
    """What a request with this key says; "" = none is asked for."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def notes(engine: str) -> tuple[str, ...]:
    """What to know of an engine that asks for a key."""
    return (_SAYS[engine],)


def check(text: str = KEY) -> str:
    """A line of a script that ends it where the key is not set; "" where `text` needs none."""
    if KEY not in text:
        return ""
    said = f"{KEY_VARIABLE}: set it to the key that requests need (letters, digits and ._~+/=-)"
    return f"[[ \"${{{KEY_VARIABLE}:-}}\" =~ ^{SIGNS}$ ]] || {{ echo '{said}' >&2; exit 2; }}\n"
