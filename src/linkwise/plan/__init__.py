"""How is it split, and what does it cost? Model, cluster and workload to a `Plan`.

`linkwise.plan` is this folder and also the call of that name: the package is callable, so neither hides the other.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """`linkwise.api.plan`."""
        return import_module("linkwise.api").plan(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
