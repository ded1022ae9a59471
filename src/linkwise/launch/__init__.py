"""How do I run it in production? A plan as commands, scripts and manifests of the engines people run.

`linkwise.launch` is this folder and also the call of that name, as `linkwise.plan` is.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """`linkwise.api_launch.launch`."""
        return import_module("linkwise.api_launch").launch(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
