"""Launchers by the word a user gives."""

from linkwise.core.errors import InputError
from linkwise.launch.base import Launcher
from linkwise.launch.dynamo import Dynamo
from linkwise.launch.sglang import Sglang
from linkwise.launch.trtllm import Trtllm
from linkwise.launch.vllm import Vllm

_LAUNCHERS: dict[str, type[Launcher]] = {"vllm": Vllm, "sglang": Sglang, "trtllm": Trtllm, "dynamo": Dynamo}
NAMES = tuple(_LAUNCHERS)


def get(name: str) -> Launcher:
    """The launcher of an engine. Raises InputError for one there is none for."""
    if name == "linkwise":
        raise InputError(
            "linkwise starts its own runtime itself", where="--engine", expected="one of " + ", ".join(NAMES),
            hint="linkwise serve PLAN does it",
        )  # fmt: skip
    if name not in _LAUNCHERS:
        raise InputError(repr(name[:40]), where="--engine", expected="one of " + ", ".join(NAMES))
    return _LAUNCHERS[name]()
