"""The drawing library as text: Vega and its interpreter (`vl-convert-python` bundles them), so a page needs no eval.

Making the bundle takes seconds and needs no network; it is kept in the user's cache, under its own hash.
"""

import hashlib
import os
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from linkwise.core.errors import InputError
from linkwise.core.files import read_bytes, write_bytes

# What a page uses of the bundle: `vegaEmbed` has the interpreter, which Vega alone has not.
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
MAX_BYTES = 4 * 2**20
_DIGITS = 32


def library(*, cache: Path | None = None) -> str:
    """The script. cache: folder to keep it in; None = the user's. Raises InputError without the package."""
    try:
        version = metadata.version("vl-convert-python")
    except metadata.PackageNotFoundError:
        raise InputError(
            "the drawing library is not installed", where="report", expected="pip install 'linkwise[report]'"
        ) from None
    folder = cache or _cache()
    kept = _kept(folder, version)
    if kept is not None:
        return kept
    convert: Any = import_module("vl_convert")
    # The bundle is a module's text, with names of its own at its top: a function keeps them to itself.
    text = f"(() => {{\n{convert.javascript_bundle(snippet=_SNIPPET)}\n}})();\n"
    if "</script" in text.lower() or len(text) > MAX_BYTES:
        raise InputError(f"the script of vl-convert-python {version} cannot stand in a page", where="report")
    _keep(folder, version, text)
    return text


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "linkwise"


def _name(version: str, text: bytes) -> str:
    asked = hashlib.sha256(f"function:{_SNIPPET}".encode()).hexdigest()[:8]
    return f"vega-{version}-{asked}-{hashlib.sha256(text).hexdigest()[:_DIGITS]}.js"


def _kept(folder: Path, version: str) -> str | None:
    """The script kept before, when it is what its name says."""
    start = _name(version, b"")[: -_DIGITS - 3]
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(start))
    except OSError:
        return None
    for name in names:
        try:
            text = read_bytes(folder / name, max_bytes=MAX_BYTES)
        except InputError:
            continue
        if _name(version, text) == name:
            return text.decode()
    return None


def _keep(folder: Path, version: str, text: str) -> None:
    """A machine without a writable cache makes it anew each time."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = text.encode()
        write_bytes(folder / _name(version, data), data, mode=0o600, regular=True)
    except (OSError, InputError):
        return
