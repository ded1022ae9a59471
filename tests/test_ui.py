"""The page with inputs: who may use its server, what it answers, and what the form begins with."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.small import LLAMA

import linkwise
from linkwise.core.errors import InputError
from linkwise.plan.types import NoPlan
from linkwise.report.page.data import page_data
from linkwise.report.page.types import Page
from linkwise.ui import HOST, MAX_BODY_BYTES, Inputs, Server, compute, inputs_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small")
    (path / "config.json").write_text(json.dumps(LLAMA))
    return path


@pytest.fixture(scope="module")
def plan(folder: Path) -> linkwise.Plan:
    found = linkwise.plan(
        folder, on="1x4xh100-sxm", isl=64, osl=16, rate="2/s", tpot="50ms", utilization=0.8, kv_dtype="fp8", lora="2:8"
    )
    assert isinstance(found, linkwise.Plan)
    return found


@pytest.fixture(scope="module")
def server(plan: linkwise.Plan) -> Iterator[Server]:
    with Server(plan, "/* no drawing here */") as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: Server, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {"Host": f"{HOST}:{server.server_port}"} | given)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def post(server: Server, asked: object, **headers: str) -> tuple[int, dict[str, object]]:
    code, body = ask(
        server, "POST", "/page", json.dumps(asked).encode(), Authorization=f"Bearer {server.token}", **headers
    )
    return code, json.loads(body)


def test_the_form_begins_with_what_the_plan_was_made_from(plan: linkwise.Plan) -> None:
    asked = inputs_of(plan)
    assert (asked.model, asked.on, asked.engine) == (plan.model.name, "4xh100-sxm", f"vllm@{plan.engine_version}")
    assert asked.settings["rate"] == "2/s"
    assert asked.settings["tpot"] == "0.05s"
    assert asked.settings["utilization"] == 0.8
    assert asked.settings["lora"] == "2:8"
    assert "ttft" not in asked.settings
    again = compute(plan, asked)
    assert isinstance(again, Page)
    values = {one.path: one.values[again.plan if len(one.values) > 1 else 0] for one in again.figures}
    assert values == pytest.approx(plan.figures, rel=1e-9)


@pytest.mark.parametrize("more", [{}, {"tpot": "8ms"}, {"tp": 2}])
def test_layouts_are_those_of_a_report_without_a_second_search(
    plan: linkwise.Plan, more: dict[str, int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = inputs_of(plan)
    given = {name: value for name, value in asked.settings.items() if name not in {"lora", "kv_dtype"}} | more
    found = compute(plan, Inputs(model="llama-3.1-8b", on="4xh100-sxm", engine="vllm", settings=given))
    assert isinstance(found, Page)
    beside = linkwise.plan("llama-3.1-8b", on="4xh100-sxm", engine="vllm", **given)  # type: ignore[arg-type]
    assert isinstance(beside, linkwise.Plan)
    own = page_data(beside)
    assert (found.layouts, found.layouts_left_out) == (own.layouts, own.layouts_left_out)
    if "tp" not in more:  # with a degree given, others are to be searched still
        monkeypatch.setattr("linkwise.report.page.layouts.search", None)
        assert isinstance(
            compute(plan, Inputs(model="llama-3.1-8b", on="4xh100-sxm", engine="vllm", settings=given)), Page
        )


def test_other_inputs_are_another_plan(plan: linkwise.Plan) -> None:
    asked = inputs_of(plan)
    found = compute(plan, Inputs(model="llama-3.1-8b", on="2xh200-sxm", engine="sglang", settings={"tp": 2, "isl": 50}))
    assert isinstance(found, Page)
    assert found.title == "llama-3.1-8b · 1 x tp2 · 2xh200-sxm"
    tight = Inputs(model=asked.model, on=asked.on, engine="vllm", settings={"tpot": "1us"})
    assert isinstance(compute(plan, tight), NoPlan)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "meta-llama/Llama-3.1-8B-Instruct-mine"}, "a folder here"),  # no hub is asked
        ({"on": "1x4xnothing"}, "nothing"),
        ({"engine": "none"}, "none"),
        ({"settings": {"tp": 3}}, "tp 3"),
        ({"settings": {"isl": "many"}}, "isl"),
        ({"settings": {"wrong": 1}}, "wrong"),
        ({"settings": {"workload": "/etc/passwd"}}, "names a file"),
        ({"settings": {"calibration": "x"}}, "names a file"),
    ],
)
def test_wrong_inputs_are_said(plan: linkwise.Plan, given: dict[str, object], words: str) -> None:
    asked = {"model": plan.model.name, "on": plan.cluster.name, "engine": "vllm"} | given
    with pytest.raises(InputError, match=words):
        compute(plan, Inputs(**asked))  # type: ignore[arg-type]


def test_the_page_is_for_those_with_the_token(server: Server) -> None:
    code, body = ask(server, "GET", f"/?token={server.token}")
    assert code == 200
    assert b'id="inputs"' in body
    assert b"connect-src 'self'" in body
    assert ask(server, "GET", "/")[0] == 403
    assert ask(server, "GET", "/?token=" + "x" * 43)[0] == 403
    assert ask(server, "GET", "/?token=%C3%A4%FF")[0] == 403
    assert ask(server, "GET", f"/other?token={server.token}")[0] == 404
    assert server.address.startswith("http://127.0.0.1:")


def test_another_name_or_origin_gets_nothing(server: Server) -> None:
    path = f"/?token={server.token}"
    assert ask(server, "GET", path, Host=f"evil.example:{server.server_port}")[0] == 404
    assert ask(server, "GET", path, Host=HOST)[0] == 404
    assert ask(server, "GET", path, Host=f"localhost:{server.server_port}")[0] == 200
    assert post_code(server, Origin="http://evil.example") == 404
    assert post_code(server, Authorization="Bearer no") == 403
    assert post_code(server, Authorization="") == 403


def post_code(server: Server, **headers: str) -> int:
    given = {"Authorization": f"Bearer {server.token}"} | headers
    return ask(server, "POST", "/page", b"{}", **given)[0]


def test_answers(server: Server, plan: linkwise.Plan) -> None:
    asked = {"model": plan.model.name, "on": plan.cluster.name, "engine": "vllm", "settings": {"tp": 4, "isl": 32}}
    code, found = post(server, asked, Origin=f"http://{HOST}:{server.server_port}")
    assert code == 200
    assert found["schema"] == "linkwise.page/1"
    assert "tp4" in str(found["title"])
    code, found = post(server, asked | {"settings": {"tpot": "1us"}})
    assert code == 409
    assert str(found["error"]).startswith("no layout is feasible")
    code, found = post(server, asked | {"settings": {"tp": "x"}})
    assert code == 400
    code, found = post(server, [])
    assert code == 400


def test_bodies_are_bounded_and_plans_are_computed_one_at_a_time(server: Server) -> None:
    token = f"Bearer {server.token}"
    assert ask(server, "POST", "/page", b"x" * (MAX_BODY_BYTES + 1), Authorization=token)[0] == 413
    with server.busy:
        assert post(server, {})[0] == 503
    assert post(server, {})[0] == 400


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "1e3", "٣", "", str(MAX_BODY_BYTES + 1)])
def test_a_length_that_is_none_is_refused(server: Server, size: str, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection((HOST, server.server_port), timeout=30) as plain:
        head = f"POST /page HTTP/1.1\r\nHost: {HOST}:{server.server_port}\r\nAuthorization: Bearer {server.token}\r\n"
        plain.sendall(f"{head}Content-Length: {size}\r\nConnection: close\r\n\r\n".encode())
        assert plain.recv(100).split(b"\r\n")[0].split()[1] == b"413"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["ui", "watch"])
def test_a_signal_ends_it_though_the_shell_had_interrupts_ignored(
    plan: linkwise.Plan, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    linkwise.save(plan, tmp_path / "p.json")
    (tmp_path / "ev").mkdir()
    words = {"ui": ["ui", "p.json"], "watch": ["watch", "ev", "--every", "100ms", "--for", "60s"]}[command]
    ignoring = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom linkwise.cli import main\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{ignoring}sys.exit(main(sys.argv[1:]))", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        if command == "ui":
            assert process.stdout is not None and process.stdout.readline().startswith(b"open http://127.0.0.1")
        else:
            _until(lambda: _handled(process.pid, signal.SIGTERM))  # set last
        process.send_signal(number)
        code, told = process.wait(20), process.communicate()[1]
        if command == "ui":
            assert (code, told) == (0, b"")
        else:  # an empty folder
            assert code == 2
            assert told.startswith(b"linkwise: watch: nothing was watched: ev ")
    finally:
        process.kill()
        process.communicate()


def _handled(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for a signal (proc(5): SigCgt is a bit mask)."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["SigCgt"], 16) >> (number - 1) & 1)


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)
