"""Our parameters by role against the models transformers builds from the same configs (the reference)."""

from pathlib import Path

import pytest
from tests.conformance import roles

from linkwise.model.read import from_config

pytest.importorskip("transformers", reason="the oracle extra is not installed")
pytestmark = pytest.mark.skipif(not roles.MODELS.is_dir(), reason=roles.ABSENT)


def _label(path: Path) -> str:
    return path.name.removesuffix("_config.json")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", roles.distinct_configs(), ids=_label)
def test_parameters_by_role_equal_transformers(path: Path) -> None:
    config, quant = roles.load_pair(path)
    if not roles.known_to_transformers(config):
        pytest.skip(f"transformers does not know model_type {config['model_type']}")
    model = from_config(config, quant, name=_label(path), source=path.name)
    assert roles.ours(model) == roles.theirs(config)
