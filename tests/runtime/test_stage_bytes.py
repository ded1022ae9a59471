"""What a rank allocates equals the plan's ledger to the byte, for every family and layout of the oracle's table."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tests.runtime.families import FAMILIES, saved
from tests.runtime.oracle import CASES

from linkwise.core.errors import InputError
from linkwise.core.layout import Layout
from linkwise.dist.groups import Team, axis_groups
from linkwise.engine.base import Options
from linkwise.engine.registry import get
from linkwise.model.read import load
from linkwise.plan.inventory import inventory, request_bytes
from linkwise.plan.residents import rank_classes, weights
from linkwise.runtime.arch import read_arch
from linkwise.runtime.comm import Comm
from linkwise.runtime.stage import Stage
from linkwise.runtime.weights.source import open_source

BLOCKS, BLOCK_TOKENS = 5, 4
ENGINE = get("linkwise")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for family in FAMILIES:
        found[family] = tmp_path_factory.mktemp("model")
        saved(family, found[family])
    return found


def stage(folder: Path, layout: Layout, rank: int, **more: Any) -> Stage:
    """A rank's stage with groups that nobody calls."""
    mine = [named for named in axis_groups(layout) if rank in named.members]
    teams = {named.axis: Team(named.axis, named.members, None, named.members.index(rank)) for named in mine}
    source = open_source(folder)
    arch = read_arch(source.fields, where="config.json", dtype=source.dtype)
    return Stage(arch, layout, rank, Comm(teams), source, kv_blocks=BLOCKS, block_tokens=BLOCK_TOKENS, **more)


def storages(thing: Any, seen: dict[int, int]) -> dict[int, int]:
    """Bytes of every tensor an object reaches, each storage once: by address."""
    if isinstance(thing, torch.Tensor):
        seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, list | tuple):
        for one in thing:
            storages(one, seen)
    elif type(thing).__module__.startswith("linkwise.runtime"):
        storages(list(getattr(thing, "__dict__", {}).values()), seen)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_kv_equal_the_ledger(family: str, folders: dict[str, Path]) -> None:
    model = load(str(folders[family]))
    stock = inventory(model)
    for layout in dict.fromkeys(case.layout for case in CASES if case.family == family):
        assert ENGINE.refuses(model, layout, devices_per_node=4) is None
        for who in rank_classes(stock, layout, ENGINE):
            planned = sum(int(line.bytes) for line in weights(stock, who, layout, ENGINE, ENGINE.convention, Options()))
            tokens = BLOCKS * BLOCK_TOKENS * layout.cp * layout.dcp
            kv = request_bytes(stock, who.stage, layout, "float32", tokens, block_tokens=BLOCK_TOKENS)
            for rank in who.ranks:
                made = stage(folders[family], layout, rank)
                assert made.weight_bytes == planned, f"{layout}, rank {rank}"
                if "window" not in family:  # the ledger counts a window's tokens, the cache keeps all
                    assert made.kv_bytes == kv, f"{layout}, rank {rank}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ways", [1, 2])
def test_what_is_counted_is_what_is_held(family: str, ways: int, folders: dict[str, Path]) -> None:
    """No copy is kept beside the counted weights: all tensors a stage reaches but cache, loads and rotary tables."""
    layout = Layout(tp=3 if ways == 2 and "6 heads" in family else ways)
    made = stage(folders[family], layout, layout.size - 1)
    held = storages(made, {})
    others = storages([made.cache.layers, [layer.attention.rotary for layer in made.layers]], {})
    others |= storages([layer.moe.experts.load for layer in made.layers if layer.moe], {})
    assert sum(size for at, size in held.items() if at not in others) == made.weight_bytes


def test_uneven_stages_add_up(folders: dict[str, Path]) -> None:
    """A tied model over pp 2: layers of 3 and 1, and the embedding's padded rows twice."""
    parts = [stage(folders["llama"], Layout(pp=2), rank, layers=(3, 1)).weight_bytes for rank in range(2)]
    whole = stage(folders["llama"], Layout(), 0).weight_bytes
    # 128 padded rows of 32 float32 values.
    assert sum(parts) == whole + 128 * 32 * 4


@pytest.mark.parametrize("layers", [(2, 3), (4,), (4, 0), (1, 1)])
def test_stages_that_are_not_the_model(layers: tuple[int, ...], folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="expected 2 numbers of at least 1 with the sum 4"):
        stage(folders["llama"], Layout(pp=2), 0, layers=layers)


def test_sharded_rows_with_attention_replicas_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="sequence_sharded with cp or dp_attn above 1"):
        stage(folders["mixtral"], Layout(dp_attn=2, tp=2, sequence_sharded=True), 0)


def test_a_layout_that_does_not_divide(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="expected"):
        stage(folders["llama"], Layout(tp=3), 0)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("model.layers.2.mlp.down_proj.weight", None, "tensor model.layers.2.mlp.down_proj.weight is missing"),
        ("model.norm.weight", (16,), r"tensor model.norm.weight is \[16\]; expected \[32\]"),
        ("model.layers.0.self_attn.k_proj.weight", (32, 32), r"is \[32, 32\]; expected \[16, 32\]"),
    ],
)
def test_a_checkpoint_of_another_model_names_tensor_and_rank(
    name: str, shape: tuple[int, ...] | None, says: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folders["llama"] / "model.safetensors")
    del tensors[name]
    if shape:
        tensors[name] = torch.zeros(shape)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folders["llama"] / "config.json").read_text())
    with pytest.raises(InputError, match=f"weights: .*{says}"):
        stage(tmp_path, Layout(), 0)
