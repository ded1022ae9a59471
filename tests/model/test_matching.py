"""Lists of module names, by each format's rule."""

import time

import pytest

from linkwise.core.errors import InputError
from linkwise.model.matching import compile_names


def test_plain_entries_cover_what_lies_below() -> None:
    names = compile_names(["model.layers.1.self_attn", "lm_head"], where="t")
    assert names.match("model.layers.1.self_attn")
    assert names.match("model.layers.1.self_attn.q_proj")
    assert not names.match("model.layers.11.self_attn.q_proj")
    assert not names.match("language_model.lm_head")


def test_hugging_face_entries_may_be_last_words() -> None:
    names = compile_names(["gate", "lm_head"], where="t", suffix=True)
    assert names.match("model.layers.0.block_sparse_moe.gate")
    assert names.match("language_model.lm_head")
    assert not names.match("model.layers.0.mlp.gate_proj")


def test_modelopt_entries_are_globs() -> None:
    names = compile_names(["model.layers.1.*", "*.shared_experts.*", "model.layers.*.mlp.gate"], where="t")
    assert names.match("model.layers.1.mlp.up_proj")
    assert not names.match("model.layers.10.mlp.up_proj")
    assert names.match("model.layers.7.mlp.shared_experts.up_proj")
    assert names.match("model.layers.7.mlp.gate")
    assert not names.match("model.layers.7.mlp.gate_proj")


def test_experts_are_one_place() -> None:
    names = compile_names(["model.layers.3.mlp.experts.0.up_proj"], where="t")
    assert names.match("model.layers.3.mlp.experts.*.up_proj")


def test_regular_expressions_match_from_the_start() -> None:
    names = compile_names(["re:.*mlp\\.(gate|up)_proj.*", "re:vision.*"], where="t", regex=True)
    assert names.match("model.layers.0.mlp.up_proj")
    assert not names.match("model.layers.0.mlp.experts.*.up_proj")
    assert not names.match("model.vision.blocks.0")


@pytest.mark.parametrize("pattern", ["re:(a*)*b", "re:" + "a" * 400, "re:a*b*c*d*e*", "re:(unclosed"])
def test_expressions_that_could_take_forever_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="regular expression"):
        compile_names([pattern], where="t", regex=True)


def test_globs_of_many_stars_stay_fast() -> None:
    names = compile_names(["*a" * 100], where="t")
    start = time.perf_counter()
    assert not names.match("a" * 99 + "b" * 200)
    assert time.perf_counter() - start < 1
