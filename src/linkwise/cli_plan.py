"""The commands `linkwise fit`, `plan` and `compare`: their words and options. cli.py registers them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from linkwise import streams
from linkwise.cli_base import NO, YES, keep, print_blocks, print_json
from linkwise.cli_words import Json, Links, On, Ranks

_TODAY = "What runs today"
Why = Annotated[bool, typer.Option("--why", help="every reason of every decision", rich_help_panel="Output")]
Rejected = Annotated[bool, typer.Option("--rejected", help="every rejected layout", rich_help_panel="Output")]
Price = Annotated[
    str, typer.Option("--price", help="USD per device hour: 2.5, or h100-sxm=2.5,h200-sxm=3.4", metavar="USD")
]
PrefillOn = Annotated[
    str, typer.Option("--prefill-on", help="other devices, for prefill groups of separate pools", metavar="CLUSTER")
]
Pareto = Annotated[
    bool,
    typer.Option(
        "--pareto",
        help="layouts, policies and pools side by side; on where there is a target, a price or --prefill-on",
        rich_help_panel="Output",
    ),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="write the plan to a file", rich_help_panel="Output")
]
Replicas = Annotated[
    int | None, typer.Option(help="so many, in place of what the load takes", rich_help_panel="Layout")
]
AnyModel = Annotated[str | None, typer.Argument(help="as for fit; may be left out with what runs today")]
FromCommand = Annotated[
    str, typer.Option(help="a vllm, sglang or trtllm-serve command", metavar="COMMAND", rich_help_panel=_TODAY)
]
FromManifest = Annotated[
    str,
    typer.Option(
        help="Kubernetes or compose file, or a folder of linkwise launch; FILE:NAME names one of several",
        metavar="FILE",
        rich_help_panel=_TODAY,
    ),
]
FromRunning = Annotated[
    str, typer.Option(help="a vLLM or SGLang server, such as http://host:8000", metavar="URL", rich_help_panel=_TODAY)
]
# Left out: the engine of what runs today, or vllm where nothing is said.
OwnEngine = Annotated[
    str | None,
    typer.Option("--engine", help="vllm, sglang, trtllm or linkwise; vllm@0.11 names a version  [default: vllm, "
                 "or the engine --from-command starts]"),
]  # fmt: skip


def fit(
    model: Annotated[
        str | None, typer.Argument(help="catalogue name, folder with a config.json, or Hugging Face id")
    ] = None,
    on: On = "",
    engine: OwnEngine = None,
    from_command: FromCommand = "",
    from_manifest: FromManifest = "",
    from_running: FromRunning = "",
    *,
    settings: Any,
    ranks: Ranks = False,
    json: Json = False,
) -> int:
    """Does it fit? What is the first thing that does not?"""
    from linkwise import api

    found = api.fit(
        model, on, engine=engine, from_command=from_command, from_manifest=from_manifest, from_running=from_running,
        **settings,
    )  # fmt: skip
    keep("fit", found)
    if json:
        print_json(found)
    else:
        from linkwise.report import fit as screens

        print_blocks(screens.screen(found), screens.ranks(found) if ranks else ())
    return YES if found.fits else NO


def plan(
    model: AnyModel = None,
    on: On = "",
    engine: OwnEngine = None,
    from_command: FromCommand = "",
    from_manifest: FromManifest = "",
    from_running: FromRunning = "",
    price: Price = "",
    prefill_on: PrefillOn = "",
    replicas: Replicas = None,
    *,
    settings: Any,
    output: Output = None,
    pareto: Pareto = False,
    why: Why = False,
    ranks: Ranks = False,
    links: Links = False,
    rejected: Rejected = False,
    json: Json = False,
) -> int:
    """How is it split, what does each link carry, how long does it take, and why this way?"""
    from linkwise import api

    found = api.plan(
        model, on, engine=engine, from_command=from_command, from_manifest=from_manifest, from_running=from_running,
        price=price, prefill_on=prefill_on or None, pareto=True if pareto else None, replicas=replicas,
        **settings,
    )  # fmt: skip
    from linkwise.report import plan as screens

    if isinstance(found, api.NoPlan):
        more = (screens.pareto(found) if pareto else (), screens.rejected(found) if rejected else ())
        print_json(found) if json else print_blocks(screens.no_plan(found), *more)
        if output:
            streams.say(f"note: there is no plan to write to {output}")
        return NO
    keep("plan", found)
    if output:
        api.save(found, output)
    if json:
        print_json(found)
    else:
        print_blocks(
            screens.screen(found),
            screens.pareto(found) if pareto else (),
            screens.why(found) if why else (),
            screens.ranks(found) if ranks else (),
            screens.links(found) if links else (),
            screens.rejected(found) if rejected else (),
        )
    return YES


def compare(
    a: Annotated[str, typer.Argument(help="plan file")],
    b: Annotated[str, typer.Argument(help="another")],
    *,
    json: Json = False,
) -> int:
    """Two plans side by side: memory, bytes, time, failure boundary."""
    from linkwise import api

    found = api.compare(a, b)
    if json:
        print_json(found)
    else:
        from linkwise.report.compare import screen

        print_blocks(screen(found))
    return YES
