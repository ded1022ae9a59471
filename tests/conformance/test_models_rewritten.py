"""The collection's configs as transformers writes them after reading: the same weights and states as before.

It renames fields and puts lists and changes of single layers in place of counts and patterns.
"""

import json
from pathlib import Path

import pytest
from tests.conformance import roles

from linkwise.model.read import from_config

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

# What transformers writes down is another model: it reads Step's abbreviated config as its defaults, and gives
# MiniMax-M3 another set of fields that is not read here.
_NOT_READ = ("Step-3.7", "MiniMax-M3")


@pytest.mark.skipif(not roles.MODELS.is_dir(), reason=roles.ABSENT)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", roles.distinct_configs(), ids=lambda path: path.name.removesuffix("_config.json"))
def test_a_rewritten_config_is_the_same_model(path: Path) -> None:
    config, _ = roles.load_pair(path)
    if not roles.known_to_transformers(config):
        pytest.skip(f"transformers does not know model_type {config['model_type']}")
    if any(name in path.name for name in _NOT_READ):
        pytest.skip("transformers writes another model down")
    for section in (config, config.get("text_config") or {}):
        section.pop("quantization_config", None)
        section.pop("auto_map", None)
    written = json.loads(transformers.AutoConfig.for_model(**config).to_json_string(use_diff=True))
    if "vision_config" not in config:
        written.pop("vision_config", None)  # a default tower beside an abbreviated config of the language model
    ours, again = (from_config(c, None, name="model", source="test") for c in (config, written))
    assert again.tensors == ours.tensors
    assert again.layers == ours.layers
