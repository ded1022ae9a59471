"""What tests of the lab need of the machine, and the marks that skip them with the reason where it is missing."""

import importlib.util

import pytest

from linkwise.measure.lab import missing

_lack = missing()
lab = pytest.mark.skipif(bool(_lack), reason=f"no lab on this machine, missing: {_lack}")
torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
