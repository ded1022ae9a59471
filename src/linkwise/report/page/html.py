"""The page as one file: text escaped, the data packed and inert, and a policy under which nothing is fetched."""

import base64
import gzip
import hashlib
from html import escape
from importlib import resources
from string import Template

import msgspec

from linkwise.report.page.types import Page

_SCRIPTS = ("page.js", "picture.js", "charts.js")


def html(page: Page, library: str, *, inputs: str = "", script: str = "", connect: str = "'none'") -> str:
    """The file's text. library: the drawing library. inputs, script, connect: what `linkwise ui` adds: a form, its own
    script, and where the page may connect to."""
    style, own = _static("page.css"), "\n".join(map(_static, _SCRIPTS)) + script
    policy = {
        "default-src": "'none'",
        "script-src": f"{_hash(library)} {_hash(own)}",
        "style-src": "'unsafe-inline'",  # Vega sets the style of single marks
        "connect-src": connect,
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return Template(_static("page.html")).substitute(
        csp="; ".join(f"{name} {value}" for name, value in policy.items()),
        title=escape(page.title),
        version=escape(page.version),
        calibration=escape(page.calibration),
        style=style,
        inputs=inputs,
        lead="".join(f"<dt>{escape(label)}</dt><dd>{escape(words)}</dd>" for label, words in page.lead),
        data=island(page),
        library=library,
        script=own,
    )


def island(page: Page) -> str:
    """The value as JSON, packed: text of others in it is no text of the file."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(page), mtime=0)).decode()


def script_of(name: str) -> str:
    """A script beside the page's own."""
    return "\n" + _static(name)


def _static(name: str) -> str:
    return resources.files("linkwise.report.page").joinpath("static", name).read_text("utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
