"""Our parameters by role against the models transformers builds from the same configs (the reference)."""

from pathlib import Path

import pytest
from tests.conformance import roles

from linkwise.model import catalogue
from linkwise.model.read import from_config

pytest.importorskip("transformers", reason="the oracle extra is not installed")


def _label(path: Path) -> str:
    return path.name.removesuffix("_config.json")


@pytest.mark.skipif(not roles.MODELS.is_dir(), reason=roles.ABSENT)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", roles.distinct_configs(), ids=_label)
def test_parameters_by_role_equal_transformers(path: Path) -> None:
    config, quant = roles.load_pair(path)
    if not roles.known_to_transformers(config):
        pytest.skip(f"transformers does not know model_type {config['model_type']}")
    model = from_config(config, quant, name=_label(path), source=path.name)
    assert roles.ours(model) == roles.theirs(config)


def _shape_of(entry: catalogue.Entry) -> str:
    """The same string for entries that differ only in storage and length."""
    parts = {k: v for k, v in entry.config.items() if k not in ("quantization_config", "max_position_embeddings")}
    return repr(sorted(parts.items(), key=lambda item: item[0]))


_ENTRIES = list({_shape_of(e): e for e in reversed(catalogue.entries())}.values())


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("entry", _ENTRIES, ids=lambda e: e.name)
def test_the_catalogue_by_role_equals_transformers(entry: catalogue.Entry) -> None:
    if not roles.known_to_transformers(entry.config):
        pytest.skip(f"transformers does not know model_type {entry.config['model_type']}")
    model = from_config(entry.config, name=entry.name, source=entry.source)
    assert roles.ours(model) == roles.theirs(entry.config)
