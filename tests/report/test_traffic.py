"""The pictures of traffic: what a person must find in them, and what a browser must be able to read."""

import io
import re
from xml.parsers import expat

import pytest
from msgspec.structs import replace

import linkwise
from linkwise.cli import main
from linkwise.cluster.presets import shorthand
from linkwise.plan.traffic import traffic
from linkwise.report.svg import svg
from linkwise.report.text import render
from linkwise.report.traffic import _others, bar, diagram, screen


def plan(model, on, **degrees):
    found = linkwise.plan(model, on=on, cp=1, **degrees)
    assert isinstance(found, linkwise.Plan), found
    return found


@pytest.fixture(scope="module")
def two_nodes():
    return traffic(plan("llama-3.1-405b", "2x8xh100-sxm", tp=8, pp=2))


def parsed(text: str) -> list[tuple[str, dict[str, str]]]:
    """Elements of an XML document, by a parser that refuses what is not well formed."""
    found: list[tuple[str, dict[str, str]]] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: found.append((name, attributes))
    parser.Parse(text, True)
    return found


def words_of(text: str) -> str:
    found: list[str] = []
    parser = expat.ParserCreate()
    parser.CharacterDataHandler = found.append
    parser.Parse(text, True)
    return "".join(found)


def test_two_nodes_fit_a_screen_with_every_rank_and_link(two_nodes) -> None:
    lines = diagram(two_nodes)
    assert max(map(len, lines)) <= 130
    assert len(lines) <= 24
    for rank in range(16):
        (line,) = (one for one in lines if f" d{rank} " in one)
        assert f"rank {rank} " in line
        assert f"island{rank // 8}" in line
        assert f"nic{rank % 8} rail{rank % 8}" in line
    # Logits and the gather of the hand-over are on the last stage only, so its links are the busiest.
    (marked,) = (line for line in lines if "busiest" in line and "◀" in line)
    assert "rank 8 " in marked
    assert "█" * 10 in marked


def test_boxes_are_closed(two_nodes) -> None:
    boxes = [line for line in diagram(two_nodes) if line[:1] in "┌│└" and line]
    ends = {line.rstrip().split(" ◀")[0][-1] for line in boxes}
    assert ends == {"┐", "│", "┘"}
    assert len({len(line.split(" ◀")[0]) for line in boxes}) == 1


def test_more_devices_are_summed_up() -> None:
    found = traffic(plan("deepseek-v3", "8x8xh200-sxm", tp=1, pp=1, dp_attn=8, ep=8))
    lines = diagram(found)
    assert len(lines) <= 16
    assert any("nodes 0-7 alike" in line for line in lines)
    staged = diagram(traffic(plan("llama-3.1-405b", "8x8xh100-sxm", tp=8, pp=8)))
    # First, middle and last stage differ; the six in the middle share a box.
    assert sum("┌" in line for line in staged) == 3
    assert any("nodes 1-6 alike" in line for line in staged)
    assert len(staged) <= 40


def test_devices_without_a_rank_are_counted() -> None:
    found = traffic(plan("llama-3.1-8b", "8xh100-sxm", tp=2, pp=1), replica=1)
    lines = diagram(found)
    assert any("(6 devices free)" in line for line in lines)
    assert sum(" d2 " in line or " d3 " in line for line in lines) == 2


def test_shared_nics_and_the_spine_have_lines_of_their_own() -> None:
    shown = "\n".join(diagram(traffic(plan("llama-3.1-8b", "2x8xl40s", tp=8, pp=2))))
    assert "nic0 leaf0" in shown
    assert "between switches" in shown
    assert "leaf1 core" in shown


def test_a_link_of_two_devices_is_marked_once() -> None:
    lines = diagram(traffic(plan("llama-3.1-70b", "8xmi300x", tp=8, pp=1)))
    assert sum("◀" in line for line in lines) == 1
    assert sum("7 peers" in line for line in lines) == 8


def test_bars() -> None:
    assert (bar(0), bar(1), bar(0.5)) == (" " * 10, "█" * 10, "█████     ")
    assert bar(1e-9).strip() == "▏"  # never invisible
    assert len(bar(0.33)) == 10


def test_the_screen_says_where_and_why(two_nodes) -> None:
    shown = render(screen(two_nodes), io.StringIO())
    assert "busiest    d8>island1 is busy" in shown
    assert re.search(r"^pp\.hidden +send_recv +8 x pp 2 ", shown, re.MULTILINE)
    assert "attn.out (tp)" in shown
    every = render(screen(two_nodes, every_link=True), io.StringIO())
    rows = every.partition("every link")[2]
    assert all(link.name in rows for link in two_nodes.links)


def test_nothing_to_draw() -> None:
    found = traffic(plan("llama-3.1-8b", "1xh100-sxm", tp=1, pp=1))
    assert diagram(found) == []
    assert "nothing crosses a link" in render(screen(found), io.StringIO())
    assert "nothing crosses a link" in words_of(svg(found))


def test_an_svg_stands_alone(two_nodes) -> None:
    text = svg(two_nodes)
    elements = parsed(text)
    assert elements[0][0] == "svg"
    assert {name for name, _ in elements} <= {"svg", "g", "title", "rect", "line", "polygon", "text"}
    # No reference leads out of the file: the one address is the name of the SVG language.
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert not any(
        "href" in key or key.startswith("on") or "url(" in value for _, a in elements for key, value in a.items()
    )
    words = words_of(text)
    for rank in range(16):
        assert f"rank {rank}" in words
    assert "busiest" in words
    assert "network between nodes" in words


def test_everything_in_an_svg_lies_inside_it() -> None:
    for model, on, degrees in (
        ("llama-3.1-405b", "2x8xh100-sxm", {"tp": 8, "pp": 2}),
        ("llama-3.1-8b", "2x8xl40s", {"tp": 8, "pp": 2}),
        ("llama-3.1-8b", "4xa40-bridged", {"tp": 4, "pp": 1}),
        ("deepseek-v3", "8x8xh200-sxm", {"tp": 1, "pp": 1, "dp_attn": 64, "ep": 64}),
    ):
        elements = parsed(svg(traffic(plan(model, on, **degrees))))
        _, _, width, height = map(float, elements[0][1]["viewBox"].split())
        for name, at in elements:
            if name == "rect":
                assert 0 <= float(at["x"]) <= float(at["x"]) + float(at["width"]) <= width
                assert 0 <= float(at["y"]) <= float(at["y"]) + float(at["height"]) <= height
            if name == "text":
                assert 0 <= float(at["x"]) <= width
                assert 0 <= float(at["y"]) <= height


def test_hostile_names_stay_text(two_nodes) -> None:
    hostile = replace(two_nodes, model="</text><script>alert('x')</script>&\"\x00\x1b[31m\ufffe")
    text = svg(hostile)
    assert "script" not in {name for name, _ in parsed(text)}
    assert "</text><script>alert('x')</script>&\"[31m" in words_of(text)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("traffic") / "plan.json"
    linkwise.save(plan("llama-3.1-8b", "2x2xh100-sxm", tp=2, pp=2), path)
    return path


def test_the_command(plan_file, tmp_path, capsys) -> None:
    picture = tmp_path / "links.svg"
    assert main(["traffic", str(plan_file), "--step", "prefill", "--svg", str(picture)]) == 0
    assert "one prefill step" in capsys.readouterr().out
    assert parsed(picture.read_text())[0][0] == "svg"
    assert main(["traffic", str(plan_file), "--json", "--placement", "2-3,0,1"]) == 0
    out = capsys.readouterr().out
    assert '"schema": "linkwise.traffic/1"' in out
    assert repr(linkwise.traffic(plan_file, step="mixed")).startswith("llama-3.1-8b, pp2 x tp2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "warmup"], "prefill, decode, mixed"),
        (["--placement", "3-0"], "a range upwards"),
        (["--placement", "0,x"], "device numbers"),
        (["--placement", "0-9999999"], "not too long"),
        (["--placement", "-1,0,2,3"], "device numbers"),
        (["--algorithm", "tree"], "KIND=NAME"),
        (["--algorithm", "all_reduce=magic"], "no algorithm"),
        (["--replica", "7"], "replica 7"),
        (["--svg", "no/such/folder/x.svg"], "no/such/folder"),
    ],
)
def test_bad_words_are_one_line(plan_file, words, message, capsys) -> None:
    assert main(["traffic", str(plan_file), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("linkwise: error:")
    assert said.count("\n") == 1
    assert message in said


def test_what_is_no_plan_is_refused(tmp_path, capsys) -> None:
    for name, content in (("a.json", b"{"), ("b.json", b"[]"), ("c.json", b'{"schema": "linkwise.traffic/1"}')):
        (tmp_path / name).write_bytes(content)
        assert main(["traffic", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["traffic", str(tmp_path / "none.json")]) == 2


@pytest.mark.parametrize("on", ["2x4xh100-sxm", "2x2xl40s", "8xmi300x"])
@pytest.mark.parametrize("width", [72, 80, 100, 120])
def test_a_picture_fits_its_screen(on, width) -> None:
    """No line is wider than there is room, and every device, rank and direction is still there."""
    found = traffic(plan("llama-3.1-8b", on, tp=4, pp=2 if "x4x" in on else 1), "prefill")
    lines = diagram(found, width)
    body = [line for line in lines if line.startswith(("┌", "│", "└"))]
    assert max(map(len, body)) <= width
    for device in found.placement:
        assert any("rank " in line and f" d{device} " in line for line in body)
    assert sum("◀ busiest" in line for line in lines) == 1
    assert {len(line.partition(" ◀")[0]) for line in body} == {len(line) for line in body if line.startswith("┌")}


def test_nics_one_device_spreads_over_are_one_column() -> None:
    where = shorthand("2x8xh100-sxm")
    made = plan("llama-3.1-8b", replace(where, nics_per_node=32, nic_Bps=12.5e9), tp=16, pp=1)
    lines = diagram(traffic(made, "prefill"))
    assert any("nic0-3 rail0-3" in line and " d0 " in line for line in lines)
    assert any("nic28-31 rail28-31" in line and " d7 " in line for line in lines)


def test_others_are_counted_in_words() -> None:
    assert [_others(count) for count in (0, 1, 2)] == ["", "; 1 other as long", "; 2 others as long"]
