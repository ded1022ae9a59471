"""Tests of the real vLLM: `make test-vllm` builds their environment, elsewhere they say that it is not there."""

from importlib.util import find_spec

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("vllm") is None:
        skip = pytest.mark.skip(reason="vLLM is not installed here: make test-vllm")
        for item in items:
            if "tests/vllm/" in item.path.as_posix():
                item.add_marker(skip)
