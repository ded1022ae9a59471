"""What a command line asks for, and what is refused before any rank is started."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as struct_replace

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from linkwise import api
from linkwise.cli import main
from linkwise.core.errors import InputError
from linkwise.core.layout import Layout, parse_layout
from linkwise.model.held import held
from linkwise.model.types import Model, Split, replace
from linkwise.plan.types import Plan
from linkwise.runtime.arch import FAMILIES
from linkwise.runtime.asked import KV_TOKENS, kv_blocks, parse_layers, settle
from linkwise.runtime.check import ledger_check, memory_check
from linkwise.runtime.driver import LocalUnit
from linkwise.runtime.folder import check_layers
from linkwise.runtime.weights.places import places

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128, "hidden_size": 32,
    "num_hidden_layers": 4, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # no tensors: sizes are of CONFIG
    return tmp_path


def test_layouts_are_read() -> None:
    assert parse_layout("tp=2, pp=2") == Layout(tp=2, pp=2)
    assert parse_layout("tp=2,sequence_sharded") == Layout(tp=2, sequence_sharded=True)


@pytest.mark.parametrize("text", ["", "tp", "tp=", "tp=-1", "tp=2,tp=2", "tp=0", "xp=2", "tp=٢", "tp=2,dcp=3"])
def test_layouts_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_layout(text)


def test_a_degree_beyond_all_bounds_is_told_with_its_range() -> None:
    for text in ("tp=2000000", f"tp={10**40}"):
        with pytest.raises(InputError, match="--layout.*1..65536"):
            parse_layout(text)


def test_sizes_are_settled(folder: Path) -> None:
    asked = settle(folder, layout=Layout(tp=2, cp=2), kv_tokens=100)
    assert (asked.spec.ranks, asked.spec.kv_tokens, asked.notes) == (4, 100, ())
    assert kv_blocks(asked.spec, asked.spec.layout) == 1 + 4  # 16 entries of two ranks are a block
    assert settle(folder).spec.kv_tokens == KV_TOKENS


@pytest.mark.parametrize("data", [None, b"", (9).to_bytes(8, "little") + b"{}"])
def test_weights_that_are_missing_or_cut_short_are_found_before_any_rank_starts(
    folder: Path, data: bytes | None
) -> None:
    file = folder / "model.safetensors"
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InputError) as caught:
        settle(folder)
    assert str(folder) in caught.value.where


def test_kv_is_capped_by_free_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linkwise.runtime.asked.free_bytes", lambda: 4 * 100 * 1024)
    monkeypatch.setattr("os.path.exists", lambda path: False)
    asked = settle(folder, layout=Layout(pp=2))
    # 512 B a token: 4 layers, keys and values of 2 heads of 8 in float32; 200 tokens are 12 blocks of 16.
    assert asked.spec.kv_tokens == 200 // 16 * 16
    assert "quarter" in asked.notes[0]


@pytest.mark.parametrize(
    "given",
    [
        {"layout": Layout(tp=3)},
        {"layout": Layout(pp=8)},
        {"layout": Layout(tp=2, cp=2, sequence_sharded=True)},
        {"dtype": "int8"},
        {"timeout_s": 0.1},
        {"backend": "mpi"},
        {"layout": Layout(dp_attn=300)},
    ],
)
def test_what_no_rank_could_run_is_refused(folder: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        settle(folder, **given)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["run", *words])
    return code, capsys.readouterr().err


def test_the_command_says_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = ["--weights", str(folder)]
    assert run(capsys, "--prompt", "x")[0] == 2
    assert run(capsys, *weights)[0] == 2
    code, said = run(capsys, *weights, "--prompt", "x", "--layout", "tp=3")
    assert code == 2 and "tp 3" in said
    code, said = run(capsys, "plan.json", *weights, "--prompt", "x", "--layout", "tp=2")
    assert code == 2 and "one of the two" in said


def test_a_plan_for_another_model_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "plan.json")
    assert main(["plan", "llama-3.1-8b", "--on", "1xh100-sxm", "--isl", "100", "--osl", "10", "-o", path]) == 0
    code, said = run(capsys, path, "--weights", str(folder), "--prompt", "x")
    assert code == 2 and "another model" in said


def planned(folder: Path, tmp_path: Path, **changes: Any) -> Plan:
    """A plan for the folder's config with some fields changed."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | changes))
    found = api.plan(str(other), on="1xh100-sxm", engine="linkwise", isl=100, osl=10)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"intermediate_size": 64}, "mlp.*shape"),
        ({"tie_word_embeddings": True}, "tied True"),
        ({"num_hidden_layers": 3}, "3 layers"),
        ({"num_attention_heads": 2, "head_dim": 16}, "heads 2"),
        ({"attention_bias": True}, "bias"),
        ({"vocab_size": 256}, "vocab 256"),
        ({"head_dim": 16}, "head_dim 16"),
    ],
)
def test_a_plan_for_other_sizes_is_refused_by_the_first_difference(
    folder: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=f"another model: other with .*{says}") as error:
        settle(folder, plan=planned(folder, tmp_path, **changes))
    assert "as the weights have it" in error.value.expected


def changed(model: Model, place: int, **fields: Any) -> Model:
    tensors = list(model.tensors)
    tensors[place] = struct_replace(tensors[place], **fields)
    return replace(model, tensors=tuple(tensors))


def test_every_field_of_tensors_and_layers_counts(folder: Path, tmp_path: Path) -> None:
    plan = planned(folder, tmp_path)
    model = plan.model
    state = model.layers[2].states[0]
    layer = struct_replace(model.layers[2], states=(struct_replace(state, window=8),))
    others = [
        changed(model, 5, split=Split.NONE, role="mlp.other"),
        changed(model, 5, units=7),
        changed(model, 5, count=2),
        changed(model, 5, bytes=1),
        changed(model, 5, scale_bytes=1),
        changed(model, 5, name="model.layers.0.other"),
        replace(model, tensors=model.tensors[:-1]),
        replace(model, layers=(*model.layers[:2], layer, *model.layers[3:])),
        replace(model, layers=(*model.layers[:3], struct_replace(model.layers[3], ffn="none"))),
        replace(model, kv_dtype="fp8_e4m3"),
    ]
    for other in others:
        with pytest.raises(InputError, match="another model"):
            settle(folder, plan=struct_replace(plan, model=other))


@pytest.mark.parametrize("dtype", ["", "float32", "bfloat16"])
def test_a_plan_in_another_dtype_is_for_the_same_model_and_its_own_model_is_checked(
    folder: Path, tmp_path: Path, dtype: str
) -> None:
    plan = planned(folder, tmp_path, torch_dtype="bfloat16")
    asked = settle(folder, plan=plan, dtype=dtype)
    assert asked.model == held(plan.model, dtype or "float32")
    assert asked.model.name == "other"


@pytest.mark.parametrize("tokens", [10_000_000_000, 100_000_000_000, 1 << 40])
def test_more_kv_than_there_is_memory_is_refused_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tokens: int
) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: False)
    monkeypatch.setattr("linkwise.runtime.asked.free_bytes", lambda: 2**40)
    began = time.monotonic()
    code, said = run(capsys, "--weights", str(folder), "--prompt", "x", "--kv-tokens", str(tokens), "--layout", "tp=2")
    assert code == 2 and time.monotonic() - began < 5
    assert "--kv-tokens" in said and "need" in said and "free" in said and said.count("\n") == 1


def test_memory_is_counted_over_all_units_and_the_ranks_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: False)
    monkeypatch.setattr("linkwise.runtime.asked.free_bytes", lambda: 1024 * 1024)
    # 512 B a token: 1024 tokens are half of it, beside 200 kB of weights.
    assert settle(folder, kv_tokens=1024).spec.kv_tokens == 1024
    with pytest.raises(InputError, match="1,024 tokens of KV"):
        settle(folder, kv_tokens=1024, units=2)
    with pytest.raises(InputError, match="4,096 tokens of KV"):
        settle(folder, kv_tokens=4096, layout=Layout(pp=4))
    assert settle(folder, kv_tokens=4096, layout=Layout(pp=4), here=1).spec.kv_tokens == 4096
    monkeypatch.setattr("linkwise.runtime.asked.free_bytes", lambda: 1024)
    with pytest.raises(InputError, match="weights") as error:
        settle(folder)
    assert error.value.where == "memory"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--top-p", "0"), ("--top-p", "1.5"), ("--top-p", "nan"), ("--temperature", "-1"), ("--temperature", "nan"),
     ("--temperature", "inf"), ("--seed", "-1"), ("--seed", str(1 << 63)), ("--seed", str(1 << 70)),
     ("--max-tokens", "0"), ("--kv-tokens", "0"), ("--kv-tokens", str(1 << 70))],
)  # fmt: skip
def test_ranges_are_refused_under_the_options_name(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    code, said = run(capsys, "--weights", str(folder), "--prompt", "x", option, value)
    assert code == 2 and option in said


def test_uneven_stages_of_pools_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(InputError, match="stages of 1, 3 layers in groups that hand over") as error:
        settle(folder, layout=Layout(pp=2), prefill=Layout(pp=2), layers=(1, 3))
    assert error.value.where == "layers"
    assert settle(folder, layout=Layout(pp=2), layers=(1, 3)).spec.layers == (1, 3)


def plan_for(folder: Path, on: str, engine: str, **options: Any) -> Plan:
    """A plan for the folder's config, whose weights are of the sizes it gives."""
    other = folder / "other"
    other.mkdir()
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    found = api.plan(str(other), on=on, engine=engine, isl=100, osl=10, **options)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize("counts", [(2, 1), (4, 1), (4,), (5, -1), (4, 0), (1, 1, 2)])
def test_layers_of_stages_must_be_the_models(folder: Path, counts: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as error:
        settle(folder, layout=Layout(pp=2), layers=counts)
    assert error.value.where == "--layers" and error.value.expected == "2 stages (pp) of at least one layer, 4 in all"


def test_layers_are_read() -> None:
    assert parse_layers("6, 2") == (6, 2)
    for text in ("6,", "", "6;2", "-1,5", "٢,2", "1e1"):
        with pytest.raises(InputError, match="--layers"):
            parse_layers(text)


def test_the_plans_microbatches_are_run_unless_the_user_says(folder: Path) -> None:
    plan = plan_for(folder, "1x2xh100-sxm", "linkwise", pp=2, microbatches=4)
    assert settle(folder, plan=plan).spec.in_flight == 4
    assert settle(folder, plan=plan, microbatches=3).spec.in_flight == 3
    assert settle(folder, layout=Layout(pp=2), microbatches=6).spec.in_flight == 6
    assert settle(folder, layout=Layout(pp=2)).spec.in_flight == 0


def test_a_plan_has_no_uneven_stages_and_that_is_said(folder: Path) -> None:
    plan = plan_for(folder, "1x2xh100-sxm", "linkwise", pp=2)
    asked = settle(folder, plan=plan, layers=(3, 1))
    assert asked.spec.layers == (3, 1)
    assert "stages have 3, 1 layers, not the plan's 2, 2: checked as they run" in asked.notes
    assert not [note for note in settle(folder, plan=plan, layers=(2, 2)).notes if "stages" in note]


def test_another_engines_partition_is_run_as_planned(tmp_path: Path) -> None:
    """9 layers in 4 stages: vLLM gives the odd one to the last stage but one, this runtime to the first."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 9}))
    plan = plan_for(tmp_path, "1x4xh100-sxm", "vllm", pp=4)
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert settle(tmp_path, plan=plan).spec.layers == (2, 2, 3, 2)
    assert settle(tmp_path, layout=Layout(pp=4)).spec.layers == ()


def test_what_of_a_plan_is_not_run_is_said_and_checked_with(folder: Path) -> None:
    plan = plan_for(folder, "1x2xh100-sxm", "vllm", tp=2, kv_dtype="fp8")
    asked = settle(folder, plan=plan, dtype="float16")
    assert asked.options.kv_dtype == "float8_e4m3"
    said = "; ".join(asked.notes)
    assert "the plan is for vllm" in said
    assert "the plan's weights and activations are bfloat16, run in float16" in said
    assert "the plan keeps KV in float8_e4m3, this runtime in float16" in said
    # One block of 16 tokens, 4 layers, keys and values of one head of 8 on each of two ranks: a byte each, not four.
    found = memory_check(
        asked.model, plan.layout, asked.engine, weight_bytes=[0, 0], kv_bytes=[0, 0], kv_blocks=1, block_tokens=16,
        options=asked.options,
    )  # fmt: skip
    assert [one.planned_bytes for one in found if one.what == "kv"] == [16 * 4 * 2 * 8] * 2


def test_the_dtype_a_plan_chose_is_run(folder: Path) -> None:
    plan = plan_for(folder, "1xh100-sxm", "vllm", dtype="float16")
    asked = settle(folder, plan=plan)
    assert (asked.spec.dtype, asked.model.dtype) == ("float16", "float16")
    assert not [note for note in asked.notes if "activations" in note]


def test_memory_is_held_against_the_plans_own_ledger(folder: Path) -> None:
    plan = plan_for(folder, "1x2xh100-sxm", "linkwise", pp=2)
    # Two layers a stage: q and o 32 x 32, k and v 16 x 32, three of 48 x 32, two norms of 32; the table of 128 x 32 at
    # either end, and a norm at the last. In float32.
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32
    weights = [4 * (2 * layer + 128 * 32), 4 * (2 * layer + 128 * 32 + 32)]
    kv = 2 * 2 * 16 * 4 * 48  # layers, keys and values, two heads of 8, float32, 48 tokens
    found = ledger_check(plan, weight_bytes=weights, kv_bytes=[kv, kv + 4], slots=48)
    assert [(one.rank, one.what, one.equal) for one in found] == [
        (0, "weights in the plan", True), (0, "kv in the plan", True),
        (1, "weights in the plan", True), (1, "kv in the plan", False),
    ]  # fmt: skip


def test_weights_of_layers_that_the_config_lacks_are_refused(folder: Path) -> None:
    save_file({"model.layers.4.mlp.up_proj.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    with pytest.raises(InputError, match="model.layers.4.mlp.up_proj.weight") as error:
        settle(folder)
    assert error.value.expected == "layers 0 to 3, as num_hidden_layers in config.json says"
    # Heads for further tokens lie behind the last layer.
    check_layers(places(folder)[1], {"num_nextn_predict_layers": 1}, 4)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("model.layers.0.self_attn.q_proj.bias", True),  # attention_bias is false
        ("model.layers.3.mlp.down_proj.bias", True),
        ("model.layers.1.self_attn.q_norm.weight", True),
        ("model.norm.bias", True),
        ("lm_head.bias", True),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False),
        ("model.layers.0.self_attn.k_scale", False),
    ],
)
def test_a_tensor_that_the_model_does_not_use_is_refused_unless_it_is_harmless(
    folder: Path, name: str, refused: bool
) -> None:
    save_file({name: torch.zeros(2)}, folder / "model.safetensors")
    if not refused:
        assert settle(folder).notes == ()
        return
    with pytest.raises(InputError, match=f"{name}.*does not use") as error:
        settle(folder)
    assert error.value.where == str(folder / "model.safetensors")


def test_tensors_of_other_modules_are_noted(folder: Path) -> None:
    save_file({f"visual.{n}.weight": torch.zeros(2) for n in range(4)}, folder / "model.safetensors")
    assert settle(folder).notes == (
        "4 tensors of the folder are not used: visual.0.weight, visual.1.weight, visual.2.weight, ...",
    )


def test_a_family_that_is_only_planned_is_refused_by_the_list_of_those_that_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "gemma2"}))
    with pytest.raises(InputError, match="gemma2") as error:
        settle(tmp_path)
    assert error.value.expected == "one of " + ", ".join(FAMILIES)


def test_strict_map_needs_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, "--weights", str(folder), "--prompt", "x", "--strict-map")
    assert code == 2 and "--strict-map" in said


def test_an_answer_longer_than_there_is_room_for_is_refused(folder: Path) -> None:
    from linkwise.cli_run import _longest

    asked = settle(folder, kv_tokens=5)
    unit = LocalUnit("run", asked.spec)
    assert unit.max_tokens == 16  # one block
    assert _longest(unit, asked, 6, 10) == 10
    assert _longest(unit, asked, 6, None) == 10
    with pytest.raises(InputError, match="6 prompt tokens and 11 new ones") as error:
        _longest(unit, asked, 6, 11)
    assert error.value.where == "--max-tokens" and error.value.expected.startswith("at most 10")


def test_serve_is_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "--weights", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "rank 1 of 2, started by torchrun" in said and "it starts its ranks itself" in said
