"""Whose fault was it? Trace (+ Plan) -> Findings with evidence (layer 4).

`linkwise.diagnose` is this folder and also the call of that name, as `linkwise.plan` is.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """`linkwise.api_diagnose.diagnose`."""
        return import_module("linkwise.api_diagnose").diagnose(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
