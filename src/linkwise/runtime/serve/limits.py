"""What one request, one client and the outside world may take."""

import hmac
import ipaddress

from linkwise.core.errors import InputError
from linkwise.core.schema import Frozen
from linkwise.runtime.serve.errors import ApiError


class Limits(Frozen, frozen=True, kw_only=True):
    """body_bytes: of a request. max_tokens: new ones of one answer. timeout_s: of a whole request; body_s: to send it.

    How many requests may wait is the supervisor's (supervise.rules).
    """

    body_bytes: int = 4 * 2**20
    max_tokens: int = 1 << 20
    timeout_s: float = 600.0
    body_s: float = 30.0
    prompts: int = 64
    stops: int = 16
    stop_characters: int = 1024

    def __post_init__(self) -> None:
        for name in ("body_bytes", "max_tokens", "timeout_s", "body_s"):
            if not 0 < getattr(self, name) <= 1 << 40:
                raise InputError(f"{name} is {getattr(self, name)!r}", where="limits", expected="more than 0")


def check_key(header: str | None, key: str) -> None:
    """Raises ApiError 401 unless the header bears the key; as slow whatever is wrong. key empty: none is asked."""
    if not key:
        return
    scheme, _, given = (header or "").partition(" ")
    if not hmac.compare_digest(given.strip().encode(errors="replace"), key.encode()) or scheme.lower() != "bearer":
        raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def is_local(host: str) -> bool:
    """Does this address reach no other machine?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
