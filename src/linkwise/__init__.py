"""linkwise: which bytes cross which link, how often, and when it matters.

`linkwise.fit`, `linkwise.plan` and the rest are imported when they are first used, so `import linkwise` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linkwise._version import __version__

if TYPE_CHECKING:
    from linkwise.api import (
        Fit,
        NoPlan,
        Plan,
        compare,
        engines,
        explain,
        fit,
        handoff,
        hardware,
        load,
        models,
        plan,
        save,
        traffic,
    )
    from linkwise.api_calibrate import calibrate
    from linkwise.api_diagnose import diagnose
    from linkwise.api_launch import launch
    from linkwise.api_place import Placement, place
    from linkwise.api_simulate import autoscale, capacity, simulate
    from linkwise.core.errors import InputError, LinkwiseError, NotUnderstood, Refused, Undecidable

__all__ = [
    "Fit",
    "InputError",
    "LinkwiseError",
    "NoPlan",
    "NotUnderstood",
    "Placement",
    "Plan",
    "Refused",
    "Undecidable",
    "__version__",
    "autoscale",
    "calibrate",
    "capacity",
    "compare",
    "diagnose",
    "engines",
    "explain",
    "fit",
    "handoff",
    "hardware",
    "launch",
    "load",
    "models",
    "place",
    "plan",
    "save",
    "simulate",
    "traffic",
]
_HOMES = {
    "Placement": "api_place",
    "place": "api_place",
    "diagnose": "api_diagnose",
    "launch": "api_launch",
    "autoscale": "api_simulate",
    "calibrate": "api_calibrate",
    "capacity": "api_simulate",
    "simulate": "api_simulate",
}
_ERRORS = ("InputError", "LinkwiseError", "NotUnderstood", "Refused", "Undecidable")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'linkwise' has no attribute {name!r}")
    home = "core.errors" if name in _ERRORS else _HOMES.get(name, "api")
    return getattr(import_module(f"linkwise.{home}"), name)


def __dir__() -> list[str]:
    return __all__
