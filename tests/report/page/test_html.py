"""The file around the data: what text of others can do in it, and the drawing library in its cache."""

import gzip
import hashlib
import re
from base64 import b64decode, b64encode
from html import unescape

import msgspec
import pytest

import linkwise
from linkwise.core.errors import InputError
from linkwise.diagnose.types import Finding, Findings
from linkwise.report.page import library as drawing
from linkwise.report.page.data import page_data
from linkwise.report.page.html import html, island
from linkwise.report.page.types import Page

EVIL = "</script><script>alert(1)</script><!-- \u2028 & ' \" <img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page() -> Page:
    plan = linkwise.plan("llama-3.1-8b", on="1x2xh100-sxm", tp=2, isl=100, osl=50)
    assert isinstance(plan, linkwise.Plan)
    evil = Findings(findings=(Finding(class_="hang", summary=EVIL, evidence=(EVIL,)),))
    return msgspec.structs.replace(page_data(plan, findings=evil), title=EVIL, lead=((EVIL, EVIL),))


def test_text_of_others_stays_text(page: Page) -> None:
    text = html(page, "/* none */")
    assert text.count("<script") == 3  # the data, the library, ours
    assert text.count("</script") == 3
    assert "<img" not in text
    assert "<!--" not in text
    data = re.search(r'id="data">([A-Za-z0-9+/=]*)</script>', text)
    assert data is not None
    assert gzip.decompress(b64decode(data[1])) == msgspec.json.encode(page)
    title = re.search("<title>(.*?)</title>", text)
    assert title is not None
    assert unescape(title[1]) == EVIL


def test_the_policy_names_the_scripts_and_forbids_the_rest(page: Page) -> None:
    text = html(page, "window.one = 1;")
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(part.split(" ", 1) for part in policy[1].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == rules["form-action"] == rules["base-uri"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    for script in re.findall(r"<script>(.*?)</script>", text, re.DOTALL):
        assert f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in rules["script-src"]
    assert not re.search(r'(?:src|href)="(?!#)', text)  # nothing is fetched


def test_the_same_page_is_the_same_file(page: Page) -> None:
    assert html(page, "") == html(page, "")
    assert msgspec.json.decode(gzip.decompress(b64decode(island(page))), type=Page) == page


def test_the_library_is_kept_under_its_hash(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    asked = []

    class Fake:
        @staticmethod
        def javascript_bundle(snippet: str) -> str:
            asked.append(snippet)
            return "const a = 1;"

    monkeypatch.setattr(drawing, "import_module", lambda _: Fake)
    first = drawing.library(cache=tmp_path)
    assert drawing.library(cache=tmp_path) == first
    assert len(asked) == 1
    (kept,) = tmp_path.iterdir()
    kept.write_text("alert(1)")  # not what its name says: made anew, and the name holds what it says again
    assert drawing.library(cache=tmp_path) == first
    assert kept.read_text() == first
    assert len(asked) == 2


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert", reason="the report extra is not installed")

    class Fake:
        @staticmethod
        def javascript_bundle(snippet: str) -> str:
            return "const a = 1;"

    monkeypatch.setattr(drawing, "import_module", lambda _: Fake)
    file = tmp_path / "file"
    file.write_text("")
    assert "const a" in drawing.library(cache=file / "below")


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise drawing.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(drawing.metadata, "version", version)
    with pytest.raises(InputError, match=r"linkwise\[report\]"):
        drawing.library()
