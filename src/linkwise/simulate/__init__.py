"""What happens over time? Pools and requests to latencies, goodput and queues (DESIGN §1).

`linkwise.simulate` is this folder and also the call of that name, as `linkwise.plan` is.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """`linkwise.api_simulate.simulate`."""
        return import_module("linkwise.api_simulate").simulate(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
