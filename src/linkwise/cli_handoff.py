"""The command `linkwise handoff`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise.cli_base import NO, YES, keep, print_blocks, print_json
from linkwise.cli_words import Json, Links, Ranks, number, whole

SETTINGS = (
    "rate",
    "osl",
    "ttft",
    "tpot",
    "dtype",
    "kv_dtype",
    "weights",
    "utilization",
    "max_batched_tokens",
    "max_seqs",
    "calibration",
)
EngineName = Annotated[
    str | None, typer.Option("--engine", help="vllm (left out), sglang, trtllm or linkwise; vllm@0.11 names a version")
]


def handoff(
    model: Annotated[str, typer.Argument(help="a model as for plan; with --prefill the plan file of the decode pool")],
    on: Annotated[str | None, typer.Option("--on", help="cluster: 2x8xh200-sxm (nodes first), or a YAML file")] = None,
    prompt: Annotated[int | None, whole("prompt tokens of a request")] = None,
    prefill_tp: Annotated[int | None, whole("tensor parallel degree of a prefill group")] = None,
    decode_tp: Annotated[int | None, whole("tensor parallel degree of a decode group")] = None,
    prefill_pp: Annotated[int | None, whole("pipeline stages of a prefill group; left out: 1")] = None,
    decode_pp: Annotated[int | None, whole("pipeline stages of a decode group; left out: 1")] = None,
    engine: EngineName = None,
    prefill: Annotated[
        Path | None, typer.Option("--prefill", help="plan file of the prefill pool, in place of the words above")
    ] = None,
    connector: Annotated[str, typer.Option(help="KV connector; left out: the engine's default")] = "",
    decode_device: Annotated[int | None, whole("first device of the decode group")] = None,
    retry_share: Annotated[
        float, typer.Option(help="share of the bytes sent again", metavar="SHARE", parser=number(float))
    ] = 0.0,
    *,
    settings: Any,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write the answer to a file", rich_help_panel="Output")
    ] = None,
    ranks: Ranks = False,
    links: Links = False,
    json: Json = False,
) -> int:
    """Prefill and decode on different ranks: what the KV between takes. Exit code 1: it does not serve the rate."""
    from linkwise import api
    from linkwise.plan.handoff_types import HandoffOptions

    found = api.handoff(
        model,
        on,
        prompt=prompt,
        prefill_tp=prefill_tp,
        decode_tp=decode_tp,
        prefill_pp=prefill_pp,
        decode_pp=decode_pp,
        engine=engine,
        prefill=prefill,
        factors=HandoffOptions(connector=connector, decode_device=decode_device, retry_share=retry_share),
        **settings,
    )
    keep("handoff", found)
    if output:
        api.save(found, output)
    if json:
        print_json(found)
    else:
        from linkwise.report import handoff as screens

        print_blocks(
            screens.screen(found),
            screens.ranks(found) if ranks else (),
            screens.links(found) if links else (),
        )
    return YES if found.holds else NO
