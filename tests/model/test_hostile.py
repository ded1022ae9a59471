"""Whatever a config says, the answer is a model or one of our errors, soon."""

import copy
import time
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import LinkwiseError
from linkwise.model import catalogue
from linkwise.model.read import from_config
from linkwise.model.types import Model

CONFIGS = [entry.config for entry in catalogue.entries()]
_SCALARS: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-3, 200) | st.integers() | st.floats() | st.text(max_size=8)
)
VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a nested config."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(CONFIGS), st.data())
def test_any_field_may_hold_anything(config: dict[str, Any], data: st.DataObject) -> None:
    changed = copy.deepcopy(config)
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(list(_places(changed))))
        container[key] = data.draw(VALUES)
    start = time.perf_counter()
    try:
        model = from_config(changed, name="x", source="x")
    except LinkwiseError as error:
        assert len(str(error)) < 2000
    else:
        assert isinstance(model, Model)
        assert all(t.bytes >= 0 and t.scale_bytes >= 0 for t in model.tensors)
    assert time.perf_counter() - start < 5


@given(VALUES)
def test_any_quantisation_config_is_understood_or_refused(value: Any) -> None:
    config = CONFIGS[0] | {"quantization_config": value}
    try:
        model = from_config(config, {"quantization": value}, name="x", source="x")
    except LinkwiseError:
        return
    assert model.weight_bytes > 0
