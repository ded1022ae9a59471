"""Commands that launch writes, given to vLLM's own parser and configuration: accepted, with the plan's degrees."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.vllm import models

import linkwise
from linkwise.api_launch import launch
from linkwise.cluster.read import load as cluster_of
from linkwise.core.layout import Layout
from linkwise.engine import registry as engines
from linkwise.engine.base import Options
from linkwise.launch import registry
from linkwise.launch.base import Asked
from linkwise.launch.build import assemble
from linkwise.launch.types import Deployment, Group, Served
from linkwise.model.read import load as model_of
from linkwise.plan.handoff_types import HandoffOptions
from linkwise.plan.search import layouts

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own

# Drawn of each kind of model; of the sparse one layouts with prefill context parallelism, which are its alone.
COMMANDS = {"dense": 20, "moe": 20, "mla": 20, "sparse": 10}
CLUSTER = "8x8xh100-sxm"
# What vLLM refuses because the platform is the CPU, whatever the command: part of the message, and what it is about.
CPU_ALONE = {
    "Model Runner V1 does not support: prefill context parallel": "prefill context parallelism is in model runner V2,"
    " which needs Triton",
}


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """vLLM's configuration of one model sets variables that would change the engines other tests start."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    made = {"dense": models.DENSE, "moe": models.MOE, "mla": models.MLA, "sparse": models.SPARSE}
    return {name: models.folder(base / name, config) for name, config in made.items()}


def deployments(folders: dict[str, Path]) -> Iterator[tuple[str, Layout, Deployment]]:
    """As many as asked, drawn from every legal layout of every model up to 64 devices, the same every time."""
    engine, cluster = engines.get("vllm"), cluster_of(CLUSTER)
    drawn = random.Random(0)  # noqa: S311 - a sample, no secret
    for name, folder in folders.items():
        model = model_of(str(folder))
        legal = [
            layout for layout in layouts(model, cluster, {})
            if layout.size <= 64 and engine.refuses(model, layout, devices_per_node=8) is None
            and (name != "sparse" or layout.cp > 1)
        ]  # fmt: skip
        written = 0
        for layout in drawn.sample(legal, len(legal)):
            group = Group(name="replica-0", role="both", layout=layout, devices=tuple(range(layout.size)))
            asked = Asked(
                model=model, weights=str(folder), called="it", cluster=cluster, engine=engine,
                options={"both": Options(max_model_len=4096)}, groups=(group,),
                hosts=tuple("127.0.0.1" for _ in range(cluster.nodes)),
            )  # fmt: skip
            launcher = registry.get("vllm")
            if launcher.refuses(asked, group) is not None:
                continue
            yield name, layout, assemble(asked, launcher, Served(isl_tokens=10, osl_tokens=10))
            written += 1
            if written == COMMANDS[name]:
                break


def configured(words: tuple[str, ...]) -> Any:
    """vLLM's configuration of a command, by its own parser."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    assert words[:2] == ("vllm", "serve")
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(list(words[2:]))
    validate_parsed_serve_args(parsed)
    parsed.model = parsed.model_tag
    arguments = AsyncEngineArgs.from_cli_args(parsed)
    return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER, headless=parsed.headless)


def test_commands_are_accepted_with_the_plans_degrees(folders: dict[str, Path]) -> None:
    accepted, alone, refused = 0, [], []
    for name, layout, made in deployments(folders):
        processes = [p for p in made.processes if p.devices]
        for process in {id(p): p for p in (processes[0], processes[-1])}.values():
            os.environ.update({k: v for k, v in process.environment.items() if k.startswith("VLLM_")})
            try:
                config = configured(process.command)
            except SystemExit as error:
                refused.append(f"{name} {layout}: the parser ends with {error.code}")
                break
            except Exception as error:  # noqa: BLE001 - whatever it raises is a refusal
                text = f"{type(error).__name__}: {error}".replace("\n", " ")[:400]
                kind = next((why for part, why in CPU_ALONE.items() if part in text), "")
                (alone if kind else refused).append(f"{name} {layout}: {kind or text}")
                break
            found = config.parallel_config
            assert found.tensor_parallel_size == layout.tp
            assert found.pipeline_parallel_size == layout.pp
            assert found.prefill_context_parallel_size == layout.cp
            assert found.decode_context_parallel_size == layout.dcp * layout.cp
            assert found.data_parallel_size == layout.dp_attn
            assert found.enable_expert_parallel == (layout.ep > 1)
            # A launch of vLLM drives as many devices as its process is given.
            assert found.local_world_size * found.data_parallel_size_local == len(process.devices)
        else:
            accepted += 1
    print(f"\naccepted: {accepted}; refused for the CPU alone: {len(alone)}; refused: {len(refused)}")
    for line in (*alone, *refused):
        print(f"  {line}")
    assert not refused
    assert accepted >= 60


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_commands_of_pools_are_accepted(folders: dict[str, Path], connector: str) -> None:
    found = linkwise.handoff(
        str(folders["dense"]), CLUSTER, prompt=1000, prefill_tp=2, decode_tp=4, rate="1/s", osl=100,
        factors=HandoffOptions(connector=connector),
    )  # fmt: skip
    made = launch(found, weights=str(folders["dense"]), hosts=("127.0.0.1",) * 8)
    for role in ("prefill", "decode"):
        process = made.serving(role)[0]  # type: ignore[arg-type]
        config = configured(process.command)
        group = next(g for g in made.groups if g.name == process.group)
        assert config.parallel_config.tensor_parallel_size == group.layout.tp
        assert config.kv_transfer_config.kv_connector == {"nixl": "NixlConnector"}.get(connector, "MooncakeConnector")
        asked = engines.get("vllm").parse(list(process.command)).options
        assert asked.max_seqs and asked.max_batched_tokens and asked.memory_utilization
        assert config.scheduler_config.max_num_seqs == asked.max_seqs
        assert config.scheduler_config.max_num_batched_tokens == asked.max_batched_tokens
        assert config.cache_config.gpu_memory_utilization == asked.memory_utilization


def test_the_pass_that_shards_the_sequence_is_there_or_refused(folders: dict[str, Path]) -> None:
    from dataclasses import fields

    from vllm.config.compilation import PassConfig

    name = engines.get("vllm").facts.gates["sequence_pass"]  # type: ignore[attr-defined]
    own = {field.name for field in fields(PassConfig)}
    assert own & {"enable_sp", "enable_sequence_parallelism"} == ({name} if name else set())


def test_flags_of_the_facts_take_what_the_parser_takes() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    flags = engines.get("vllm").facts.flags  # type: ignore[attr-defined]
    parser = make_arg_parser(FlexibleArgumentParser())
    wrong = []
    for action in parser._actions:
        plain = action.nargs == 0
        for name in action.option_strings:
            if name in flags.switches and not plain:
                wrong.append(f"{name} takes {action.nargs or 'a value'}")
            if name in flags.values and (plain or action.nargs in {"+", "*"}):
                wrong.append(f"{name} takes {'nothing' if plain else 'several'}")
            if name in flags.lists and plain:
                wrong.append(f"{name} takes nothing")
    assert not wrong
