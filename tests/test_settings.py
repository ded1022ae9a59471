"""One table of settings makes the commands' options and the Python calls' arguments."""

import pytest

from linkwise import settings
from linkwise.core.errors import InputError
from linkwise.engine.base import Options
from linkwise.workload.types import Targets, Workload


def test_absent_settings_are_the_defaults() -> None:
    given = settings.check({"tp": None, "rate": None})
    assert settings.degrees(given) == {}
    assert settings.options(given) == Options()
    assert settings.workload(given) == Workload()


def test_settings_reach_their_fields() -> None:
    given = settings.check(
        {
            "tp": 4,
            "pp": 2,
            "sequence_sharded": True,
            "kv_dtype": "fp8",
            "weights": "int4",
            "utilization": 0.9,
            "max_batched_tokens": 1024,
            "block": 32,
            "mtp": 1,
            "lora": "8:32",
            "skew": 1.5,
            "exchange": "all_gather",
            "eager": True,
            "isl": 4000,
            "osl": 500,
            "rate": "90/min",
            "ttft": "1s",
            "tpot": 0.04,
            "prefix_hit": 0.5,
        }
    )
    assert settings.degrees(given) == {"tp": 4, "pp": 2, "sequence_sharded": 1}
    assert settings.options(given) == Options(
        kv_dtype="float8_e4m3",
        weight_dtype="int4",
        memory_utilization=0.9,
        max_batched_tokens=1024,
        block_tokens=32,
        mtp_tokens=1,
        lora_count=8,
        lora_rank=32,
        moe_skew=1.5,
        moe_exchange="all_gather",
        eager=True,
    )
    assert settings.workload(given) == Workload(
        isl_tokens=4000, osl_tokens=500, rate_per_s=1.5, prefix_hit=0.5, targets=Targets(ttft_s=1.0, tpot_s=0.04)
    )


def test_every_setting_is_used() -> None:
    """No option silently ignored: each one changes degrees, options or workload."""
    values: dict[str, object] = {
        "dtype": "float16",
        "kv_dtype": "fp8",
        "weights": "fp8",
        "lora": "2:8",
        "exchange": "all_gather",
        "rate": "6/s",
        "ttft": "1s",
        "tpot": "40ms",
        "utilization": 0.5,
        "burst": 2.0,
        "prefix_hit": 0.5,
        "mtp_acceptance": 0.5,
        "skew": 2.0,
        "sequence_sharded": True,
        "eager": True,
        "dense_whole": True,
        "head_over_tp": True,
    }
    plain = (settings.degrees({}), settings.options({}), settings.workload({}))
    for name in settings.Settings.__annotations__:
        if name in {"workload", "calibration"}:  # files: tests of their own, below and in tests/measure
            continue
        given = settings.check({name: values.get(name, 3)})
        assert (settings.degrees(given), settings.options(given), settings.workload(given)) != plain, name


def test_a_workload_file_gives_what_is_not_set(tmp_path: object) -> None:
    path = f"{tmp_path}/w.yaml"
    with open(path, "w") as file:
        file.write("schema: linkwise.workload/1\nisl_tokens: 900\nosl_tokens: 90\n")
    found = settings.workload(settings.check({"workload": path, "osl": 10}))
    assert (found.isl_tokens, found.osl_tokens) == (900, 10)


def test_what_a_command_sets_gives_way_to_what_is_set_here() -> None:
    base = Options(max_seqs=64, max_model_len=4096, kv_dtype="float8_e4m3")
    found = settings.options(settings.check({"max_seqs": 8, "kv_dtype": "auto"}), base)
    assert found == Options(max_seqs=8, max_model_len=4096)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tpp": 4}, "unknown setting 'tpp'.*Did you mean tpot|tp"),
        ({"tp": "4"}, "settings: field tp: expected `int`, got `str`"),
        ({"tp": 4.5}, "settings: field tp: expected `int`, got `float`"),
        ({"eager": 1}, "settings: field eager: expected `bool`, got `int`"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings.check(given)
