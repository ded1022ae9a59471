"""Errors as OpenAI's API writes them."""

import math
from typing import Any

from linkwise.core.printable import clipped, printable

_KINDS = {401: "invalid_request_error", 408: "timeout_error", 429: "rate_limit_error", 500: "internal_error"}


class ApiError(Exception):
    """An answer that is an error. param: the field at fault. retry_s: for Retry-After."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_s = status, param, code, retry_s
        self.message = printable(clipped(message, 2000))

    def body(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "service_unavailable_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(max(1, math.ceil(self.retry_s)))} if self.retry_s else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers
