"""The page in a real browser: drawn without a word on the console, figures as in its data, chains behind a click."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.small import LLAMA

import linkwise
from linkwise.core.units import show_bytes, show_time
from linkwise.diagnose.types import Fault as Where
from linkwise.diagnose.types import Finding, Findings
from linkwise.model.read import from_config
from linkwise.plan.explain import explain
from linkwise.report.page.data import page_data
from linkwise.report.page.html import html
from linkwise.report.page.types import Page

pytest.importorskip("vl_convert", reason="the report extra is not installed")
pytest.importorskip("websocket", reason="websocket-client is not installed: nothing drives a browser")

from tests.report.page.browser import Browser, executable

from linkwise.report.page.library import library

pytestmark = pytest.mark.skipif(not executable(), reason="no Chromium on this machine")

FAULT = Finding(
    class_="late_rank",
    summary="replica-1 rank 2 is late by its own doing",
    original_fault=Where(ranks=(2,), unit="replica-1"),
    evidence=("<b>others waited</b>",),
)


@pytest.fixture(scope="module")
def plan() -> linkwise.Plan:
    found = linkwise.plan("llama-3.3-70b", on="2x4xh100-sxm", isl=4000, osl=500, rate="3/s", ttft="1s", tpot="40ms")
    assert isinstance(found, linkwise.Plan)
    return found


@pytest.fixture(scope="module")
def page(plan: linkwise.Plan) -> Page:
    handoff = linkwise.handoff("llama-3.3-70b", "2x4xh100-sxm", prompt=8192, prefill_tp=4, decode_tp=4, rate="2/s")
    return page_data(plan, findings=Findings(findings=(FAULT,)), handoff=handoff)


@pytest.fixture(scope="module")
def file(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html(page, library()))
    return path


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(one_browser: Browser, file: Path) -> Browser:
    one_browser.errors.clear()
    one_browser.requests.clear()
    one_browser.look(1280)
    one_browser.open(file.as_uri())
    return one_browser


def choose(browser: Browser, step: str) -> None:
    browser.run(f"document.querySelector('input[name=step][value={step}]').click()")
    browser.settle()


def slide(browser: Browser, place: int) -> None:
    browser.run(f"(() => {{ const s = document.querySelector('#batch'); s.value = {place};"
                "s.dispatchEvent(new Event('input', { bubbles: true })); })()")  # fmt: skip
    browser.settle()


def text_of(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector({json.dumps(selector)}).textContent")


def marks(browser: Browser, chart: str) -> int:
    return browser.run(f"document.querySelectorAll('#{chart} svg path').length")


def shown(value: float, unit: str) -> str:
    """As core/units.py shows it, which the page must not differ from."""
    return show_bytes(value) if unit == "B" else show_time(value)


def test_it_is_one_small_file_that_fetches_nothing(browser: Browser, file: Path) -> None:
    assert file.stat().st_size < 2_000_000
    assert browser.errors == []
    assert browser.requests == [file.as_uri()]


def test_every_chart_is_drawn(browser: Browser) -> None:
    for chart in ("picture", "times", "memory", "layouts"):
        assert marks(browser, chart) > 5, chart
        assert browser.run(f"document.querySelector('#{chart}').getAttribute('role')") == "graphics-document"
        assert browser.run(f"document.querySelector('#{chart}').getAttribute('aria-label')")


@pytest.mark.parametrize("step", ["prefill", "decode", "mixed"])
def test_figures_are_those_of_the_data(browser: Browser, page: Page, step: str) -> None:
    choose(browser, step)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.settle()
    found = browser.run(
        "[...document.querySelectorAll('button[data-path]')].map((b) => [b.dataset.path, b.textContent])"
    )
    figures = {one.path: one for one in page.figures}
    checked = 0
    for path, text in found:
        one = figures[path]
        value = one.values[page.plan if len(one.values) > 1 else 0]
        if one.unit in {"B", "s"}:
            assert text == shown(value, one.unit), path
            checked += 1
    assert checked > 100
    assert {path for path, _ in found} >= set(figures)


def test_numbers_are_shown_as_on_the_command_line(browser: Browser) -> None:
    """Ties among them: 12.25 MB is 12.2 MB to Python's formatting, 12.3 to toFixed."""
    sizes = [0, 512, 999, 999.6, 1000, 1125, 1250, 12_250, 12_350, 12_250_000, 12_750_000, 9_995_000, 1.85e9, 3e15, 0.5]
    sizes += [2.5, 3.5, 1.125e6, 1.375e6, 458752, 524288.0, 7.0e11]
    assert browser.run(f"{sizes}.map(bytes)") == [show_bytes(one) for one in sizes]
    times = [0, 1e-9, 1.25e-7, 3.125e-3, 1.0625, 0.0105, 0.9996, 1.005, 12.25, 999.4e-6, 0.125, 21.45e-3, 6.12e-4]
    assert browser.run(f"{times}.map(time)") == [show_time(one) for one in times]


def test_a_click_shows_the_chain(browser: Browser, plan: linkwise.Plan) -> None:
    browser.run("document.querySelector('#key button[data-path=tpot_s]').click()")
    said = "".join(text_of(browser, "dialog[open] ol.chain").split())
    found = explain(plan, "tpot_s").chain
    for one in (*found.inputs, *found.steps):
        assert "".join(f"{one.name} = {one.formula or one}".split()) in said
    assert browser.run("document.activeElement.id") == "panel-close"
    browser.key("Escape")
    assert browser.run("document.querySelector('dialog[open]') === null")


def test_the_slider_changes_figures_and_chains(browser: Browser, page: Page) -> None:
    for place in (0, len(page.batches) - 1):
        slide(browser, place)
        # By hand: tokens x hidden 8,192 x 2 B.
        size = page.batches[place] * 8192 * 2
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        browser.settle()
        path = "decode.attn.out.S_bytes"
        assert text_of(browser, f"#times-table [data-path='{path}']") == show_bytes(size)
        browser.run(f"document.querySelector(\"#times-table [data-path='{path}']\").click()")
        assert f"{size:,} B" in text_of(browser, "dialog[open]")
        browser.run("document.querySelector('#panel-close').click()")


def test_steps_differ_and_prompts_have_no_slider(browser: Browser) -> None:
    said = {}
    for step in ("decode", "prefill", "handoff"):
        choose(browser, step)
        said[step] = text_of(browser, "#busiest")
        assert browser.run("document.querySelector('#batch').disabled") == (step != "decode")
    assert len(set(said.values())) == 3
    assert "between two requests" in said["handoff"]
    assert browser.errors == []


def test_bytes_and_time_colour_differently(browser: Browser) -> None:
    before = text_of(browser, "#heat")
    browser.run("document.querySelector('input[name=colour][value=bytes]').click()")
    browser.settle()
    assert "MB" in text_of(browser, "#heat")
    assert text_of(browser, "#heat") != before


def place_of(browser: Browser, label: str) -> list[float]:
    """Where the picture says something, in the window."""
    return browser.run(f"""(() => {{
        const one = [...document.querySelectorAll('#picture svg text')].find((text) => text.textContent === {label!r});
        one.scrollIntoView({{ block: 'center' }});
        const box = one.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    }})()""")


def test_a_device_can_be_clicked_and_hovered(browser: Browser) -> None:
    x, y = place_of(browser, "rank 1:2")
    browser.hover(x, y)
    assert "rank 1:2 on d6" in text_of(browser, "#tip")
    assert FAULT.summary in text_of(browser, "#tip")
    browser.click(x, y)
    assert text_of(browser, "#panel-title") == "rank 1:2 on d6, node 1"
    assert "d6>island1" in text_of(browser, "#panel-body")


def test_a_switch_can_be_clicked(browser: Browser) -> None:
    browser.click(*place_of(browser, "island1"))
    assert text_of(browser, "#panel-title") == "island1"
    said = text_of(browser, "#panel-body")
    assert all(f"d{device}>island1" in said and f"island1>d{device}" in said for device in range(4, 8))
    browser.run("document.querySelector('#panel-body button').click()")  # a link of it, with its chain
    assert "what each op puts on it" in text_of(browser, "#panel-body")
    assert browser.run("document.querySelectorAll('#panel-body ol.chain li').length") > 3


def test_the_fault_is_marked_where_it_is(browser: Browser) -> None:
    rank = place_of(browser, "rank 1:2")
    mark = place_of(browser, "✖")
    assert abs(mark[0] - rank[0]) < 80
    assert FAULT.summary in text_of(browser, "#faults")
    assert "<b>others waited</b>" in text_of(browser, "#faults")


def test_the_picture_works_with_keys(browser: Browser) -> None:
    browser.run("document.querySelector('#picture').focus()")
    browser.key("ArrowRight")
    assert "rank 1:0" in text_of(browser, "#say")  # the marked node comes first
    browser.key("ArrowRight")
    assert "rank 1:1" in text_of(browser, "#say")
    browser.key("Enter")
    assert text_of(browser, "#panel-title").startswith("rank 1:1")


def test_a_rejected_layout_says_why(browser: Browser, page: Page) -> None:
    browser.run("document.querySelector('#else details').open = true")
    rows = browser.run("[...document.querySelectorAll('#layouts-table tbody tr')].map((r) => r.textContent)")
    assert len(rows) == len(page.layouts)
    rejected = [one for one in page.layouts if one.verdict == "rejected"]
    assert all(any(one.reason in row for row in rows) for one in rejected)
    without = next(one for one in rejected if not one.points)
    box = browser.run("""(() => {
        const marks = [...document.querySelectorAll('#layouts svg .mark-symbol')].at(-1).querySelectorAll('path');
        marks[0].scrollIntoView({ block: 'center' });
        const b = marks[0].getBoundingClientRect();
        return [b.x + b.width / 2, b.y + b.height / 2];
    })()""")
    browser.hover(*box)
    assert without.reason in text_of(browser, "#tip")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_can_be_read(browser: Browser, width: int, dark: bool) -> None:
    browser.look(width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.errors == []
    # WCAG 2.2: 4.5 : 1 for text, of ink, soft ink and links on the page.
    for name in ("--ink", "--soft", "--accent"):
        assert contrast(colour(browser, name), colour(browser, "--page")) >= 4.5, name


def colour(browser: Browser, name: str) -> list[int]:
    text = browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('{name}').trim()")
    return [int(text[place : place + 2], 16) for place in (1, 3, 5)]


def contrast(a: list[int], b: list[int]) -> float:
    """WCAG 2.2, relative luminance."""

    def luminance(rgb: list[int]) -> float:
        parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_it_prints_light_without_controls(browser: Browser) -> None:
    browser.look(800, dark=True, media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") in {"rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"}
    assert colour(browser, "--page") == [255, 255, 255]
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_tables_are_unfolded_on_paper(browser: Browser) -> None:
    folded = "document.querySelectorAll('main details:not([open])').length"
    before = browser.run(folded)
    assert before >= 4
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(folded) == 0
    assert browser.run("document.querySelectorAll('#figures tbody tr').length") > 100
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(folded) == before
    # The browser sends both by itself when it prints.
    browser.run(f"addEventListener('beforeprint', () => {{ window.unfolded = {folded}; }})")
    browser.send("Page.printToPDF")
    assert browser.run("window.unfolded") == 0


def test_a_figure_of_the_textbook_has_its_chain_and_what_differs(browser: Browser, plan: linkwise.Plan) -> None:
    path = "decode.sent_bytes"
    found = explain(plan, path)
    assert found.beside is not None
    browser.run(f"explain({json.dumps(path)})")
    said = "".join(text_of(browser, "#textbook").split())
    assert "".join(str(found.beside.result).split()) in said
    for one in (*found.beside.inputs, *found.beside.steps):
        assert "".join(f"{one.name} = {one.formula or one}".split()) in said
    for line in found.differences:
        assert "".join(line.split()) in said


def test_times_on_an_axis_are_in_the_unit_of_its_title(browser: Browser, page: Page) -> None:
    whole = next(t for t in page.times if t.step == "decode" and t.batch == page.batches[page.plan]).token_s
    assert 1e-3 < whole < 1  # milliseconds
    words = browser.run("[...document.querySelectorAll('#times svg .role-axis text')].map((one) => one.textContent)")
    assert "ms from the step's start" in words
    ticks = [float(word.replace(",", "")) for word in words if word.replace(",", "").replace(".", "").isdigit()]
    assert len(ticks) >= 2
    assert whole * 1e3 * 0.6 < max(ticks) <= whole * 1e3


@pytest.mark.parametrize("pp", [1, 2])
def test_cards_of_a_step_add_up_to_what_they_say(one_browser: Browser, tmp_path: Path, pp: int) -> None:
    found = linkwise.plan("llama-3.1-8b", on="1x4xh100-sxm", tp=2, pp=pp, isl=500, osl=100)
    assert isinstance(found, linkwise.Plan)
    path = tmp_path / "report.html"
    path.write_text(html(page_data(found), library()))
    one_browser.look(1280)
    one_browser.open(path.as_uri())
    cards = one_browser.run(
        "Object.fromEntries([...document.querySelectorAll('#key li')].map((one) => "
        "[one.querySelector('span').textContent, one.querySelector('button').dataset.path]))"
    )
    tail = ", a stage" if pp > 1 else ""
    parts = [cards[f"{name}{tail}"] for name in ("compute", "links, exposed", "host")]
    whole = cards["a stage's turn" if pp > 1 else "decode step"]
    assert sum(found.figures[one] for one in parts) == pytest.approx(found.figures[whole], rel=1e-9)
    if pp > 1:  # a token visits both stages
        assert found.figures[cards["decode step, all stages"]] > 1.5 * found.figures[whole]


def test_a_thousand_ranks_paint_in_time(one_browser: Browser, tmp_path: Path) -> None:
    found = linkwise.plan(
        from_config(LLAMA, name="small", source="hand-made"), on="128x8xh100-sxm", tp=4, pp=2, isl=64, osl=16
    )
    assert isinstance(found, linkwise.Plan)
    assert found.replicas * found.layout.size == 1024
    path = tmp_path / "report.html"
    page = page_data(found)
    own = [load for load in page.picture.loads if load.batch == page.batches[page.plan]]
    assert all(one.chain >= 0 for load in own for one in load.carried)
    path.write_text(html(page, library()))
    assert path.stat().st_size < 2_000_000
    one_browser.errors.clear()
    one_browser.look(1280)
    one_browser.open(path.as_uri())
    paints = one_browser.run("performance.getEntriesByType('paint').map((one) => one.startTime)")
    assert paints
    assert max(paints) < 3000  # ms, as asked
    assert marks(one_browser, "ranks") >= 1024
    assert one_browser.errors == []


@pytest.mark.parametrize("osl", [1, 200])
def test_one_device_that_talks_to_nobody(one_browser: Browser, tmp_path: Path, osl: int) -> None:
    found = linkwise.plan("llama-3.1-8b", on="1xh100-sxm", isl=100, osl=osl)
    assert isinstance(found, linkwise.Plan)
    path = tmp_path / "report.html"
    path.write_text(html(page_data(found), library()))
    one_browser.errors.clear()
    one_browser.look(1280)
    one_browser.open(path.as_uri())
    assert text_of(one_browser, "#busiest") == "Nothing crosses a link."
    for step in ("prefill", "mixed", "decode"):
        choose(one_browser, step)
    assert one_browser.errors == []


def test_inputs_recompute_in_place(one_browser: Browser, plan: linkwise.Plan) -> None:
    import threading

    from linkwise.ui import Server

    with Server(plan, library()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            one_browser.errors.clear()
            one_browser.open(server.address)
            before = text_of(one_browser, "#title")
            one_browser.run("document.querySelector('[name=model]').value = 'llama-3.1-8b'")
            one_browser.run("document.querySelector('[name=tp]').value = '2'")
            one_browser.run("document.querySelector('#inputs').requestSubmit()")
            one_browser.wait("document.querySelector('#ui-says').textContent === 'computed'")
            one_browser.settle()
            assert text_of(one_browser, "#title") != before
            assert text_of(one_browser, "#title").startswith("llama-3.1-8b · ")
            assert marks(one_browser, "picture") > 5
            one_browser.run("document.querySelector('[name=tp]').value = '3'")
            one_browser.run("document.querySelector('#inputs').requestSubmit()")
            one_browser.wait("document.querySelector('#ui-says').className === 'error'")
            assert "tp 3" in text_of(one_browser, "#ui-says")
            # The browser itself notes every answer of 400 on its console.
            assert [one for one in one_browser.errors if "400" not in one] == []
        finally:
            server.shutdown()
            thread.join()
