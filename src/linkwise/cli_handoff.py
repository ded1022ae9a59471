"""The command `linkwise handoff`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise.cli_base import NO, YES, keep, print_blocks, print_json
from linkwise.cli_words import Json, Links, ModelName, On, Ranks, number, whole

SETTINGS = (
    "rate",
    "osl",
    "ttft",
    "tpot",
    "kv_dtype",
    "weights",
    "utilization",
    "max_batched_tokens",
    "max_seqs",
    "calibration",
)
EngineName = Annotated[
    str, typer.Option("--engine", help="vllm, sglang, trtllm or linkwise; vllm@0.11 names a version")
]


def handoff(
    model: ModelName,
    on: On,
    prompt: Annotated[int, whole("prompt tokens of a request")],
    prefill_tp: Annotated[int, whole("tensor parallel degree of a prefill group")],
    decode_tp: Annotated[int, whole("tensor parallel degree of a decode group")],
    prefill_pp: Annotated[int, whole("pipeline stages of a prefill group")] = 1,
    decode_pp: Annotated[int, whole("pipeline stages of a decode group")] = 1,
    engine: EngineName = "vllm",
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
            screens.screen(found, found.mixed, found.verdict, found.unserved),
            screens.ranks(found) if ranks else (),
            screens.links(found) if links else (),
        )
    return YES if found.holds else NO
