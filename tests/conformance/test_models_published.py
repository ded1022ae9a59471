"""Every published config of the collection: it is read, its own module names are ours, the catalogue agrees with it."""

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance import roles

from linkwise.model import catalogue
from linkwise.model.matching import compile_names, generic
from linkwise.model.read import from_config
from linkwise.model.types import Model, Tensor

pytestmark = pytest.mark.skipif(not roles.MODELS.is_dir(), reason=roles.ABSENT)


def _label(path: Path) -> str:
    return path.name.removesuffix("_config.json")


def _read(path: Path) -> Model:
    config, quant = roles.load_pair(path)
    return from_config(config, quant, name=_label(path), source=path.name)


@pytest.mark.parametrize("path", roles.config_files(), ids=_label)
def test_every_config_is_read(path: Path) -> None:
    model = _read(path)
    assert model.layers
    assert model.parameters > 0
    assert model.weight_bytes <= 4 * model.parameters
    names = [t.name for t in model.tensors]
    assert len(set(names)) == len(names)


def _listed(path: Path) -> list[str]:
    """Module names a config's quantisation lists speak of."""
    config, quant = roles.load_pair(path)
    own = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config") or {}
    inner = (quant or {}).get("quantization", {})
    lists = [own.get(k) for k in ("modules_to_not_convert", "ignore", "exclude_modules", "quantized_layers")]
    lists += [inner.get(k) for k in ("exclude_modules", "quantized_layers")]
    return list(dict.fromkeys(name for part in lists for name in part or ()))


# transformers' loader renames GLM's `indexer.weights_proj` before its config lists it.
_RENAMED = {"indexers_proj": "indexer.weights_proj"}


@pytest.mark.parametrize("path", [p for p in roles.config_files() if _listed(p)], ids=_label)
def test_modules_its_quantisation_names_are_weights_of_ours(path: Path) -> None:
    listed = _listed(path)
    model = _read(path)
    known: set[str] = set()
    for tensor in model.tensors:
        name = tensor.name
        while name:
            known.add(name)
            name = name.rpartition(".")[0]
    strangers = []
    for entry in listed:
        for theirs, ours in _RENAMED.items():
            entry = entry.replace(theirs, ours)  # noqa: PLW2901
        if any(sign in entry for sign in "*?") or entry.startswith("re:"):
            names = compile_names([entry], where="test", regex=True)
            found = any(names.match(t.name) for t in model.tensors)
        else:
            found = generic(entry) in known or any(name.endswith(f".{entry}") for name in known)
        if not found and not (entry == "lm_head" and model.tied):
            strangers.append(entry)
    assert not strangers


def _plain(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Language-model tensors with bare names, whatever a multimodal wrapper calls them."""
    result = []
    for tensor in tensors:
        if tensor.role.startswith("vision"):
            continue
        name = tensor.name.removeprefix("language_model.").replace("model.language_model.", "model.")
        result.append(msgspec.structs.replace(tensor, name=name))
    return result


def _config_of(entry: catalogue.Entry) -> Path | None:
    """The collection's config of an entry; it knows Llama 3.1 by its older ids."""
    for hub in (entry.hub, *entry.also):
        path = roles.MODELS / f"{hub.replace('/', '--')}_config.json"
        if path.exists() and (hub == entry.hub or hub.startswith("meta-llama/Meta-")):
            return path
    return None


@pytest.mark.parametrize("entry", [e for e in catalogue.entries() if _config_of(e)], ids=lambda e: e.name)
def test_the_catalogue_agrees_with_the_published_config(entry: catalogue.Entry) -> None:
    path = _config_of(entry)
    assert path is not None
    ours, theirs = from_config(entry.config, name="x", source="x"), _read(path)
    assert _plain(ours.tensors) == _plain(theirs.tensors)
    assert ours.layers == theirs.layers
    for field in (
        "hidden",
        "vocab",
        "max_len",
        "heads",
        "kv_heads",
        "head_dim",
        "tied",
        "moe",
        "mtp_layers",
        "kv_dtype",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field


def test_kimi_k2_is_deepseek_v3_with_other_numbers() -> None:
    """transformers has no kimi_k2; its architecture names DeepseekV3ForCausalLM."""
    config, _ = roles.load_pair(roles.MODELS / "moonshotai--Kimi-K2-Instruct_config.json")
    kimi = from_config(config, name="x", source="x")
    deepseek = from_config(config | {"model_type": "deepseek_v3"}, name="x", source="x")
    assert kimi.tensors == deepseek.tensors
    assert kimi.layers == deepseek.layers


def test_families_unknown_to_transformers_have_their_published_totals() -> None:
    """Totals as the hub's safetensors summaries show them: MiMo-7B-Base 7.83B, Llama-3.3-Nemotron-Super-49B 49.9B."""
    mimo = _read(roles.MODELS / "XiaomiMiMo--MiMo-7B-Base_config.json")
    nemotron = _read(roles.MODELS / "nvidia--Llama-3_3-Nemotron-Super-49B-v1_config.json")
    assert round(mimo.parameters / 1e9, 2) == 7.83
    assert round(nemotron.parameters / 1e9, 1) == 49.9


def test_mimo_is_qwen2_but_for_its_mtp_layer() -> None:
    """transformers has no mimo; built as qwen2 the model must have the same parameters by role."""
    pytest.importorskip("transformers", reason="the oracle extra is not installed")
    config, _ = roles.load_pair(roles.MODELS / "XiaomiMiMo--MiMo-7B-Base_config.json")
    assert roles.ours(from_config(config, name="x", source="x")) == roles.theirs(config | {"model_type": "qwen2"})


def _capacity_rows() -> list[dict[str, str]]:
    path = roles.DATA / "memory" / "kv_capacity.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["arith_check"] == "exact"]
    # Rows of models the catalogue names, with a plain figure and 16-bit KV.
    return [r for r in rows if catalogue.find(r["model"]) and r["arch_bytes_per_token_per_gpu"].isdigit()]


@pytest.mark.parametrize("row", _capacity_rows(), ids=lambda r: f"{r['source']} {r['model']} tp{r['tp']}")
def test_kv_bytes_of_engines_logs(row: dict[str, Any]) -> None:
    entry = catalogue.find(row["model"])
    assert entry is not None
    model = from_config(entry.config, name="x", source="x")
    dcp = int(row["dcp"] or 1)  # splits the tokens of a tensor group's cache, not its heads
    tp = int(row["tp"] or 1) // dcp
    element_bytes = 1 if row["kv_dtype"].startswith("fp8") else 2
    per_rank = sum(
        state.per_token // min(tp, state.heads) * element_bytes for layer in model.layers for state in layer.states
    )
    assert per_rank // dcp == int(row["arch_bytes_per_token_per_gpu"])
