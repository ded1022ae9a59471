"""The API as its clients use it: the `openai` client unchanged, and what it cannot send."""

import json
import logging
import socket
import threading
import time
from typing import Any

import httpx
import openai
import pytest
from tests.runtime.serve.words import FakeText, shown, written
from tests.supervise.fake import FakeUnit, until

from linkwise.runtime.serve.answer import Stops
from linkwise.runtime.serve.limits import Limits, is_local
from linkwise.runtime.serve.run import QUIET_S, Seldom
from linkwise.runtime.serve.turns import SHORT_BYTES
from linkwise.runtime.template import Unanswered
from linkwise.supervise.types import Fault

CHAT = [{"role": "user", "content": "hi there"}]
CHAT_TEXT = "user:hi there"
ABORTED = 'vllm:request_success_total{finished_reason="abort"'
DEAD = Fault((1,), "dead", "rank 1 was killed by signal 9", 0.2)


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_completions(client) -> None:
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=12, temperature=0)
    assert answer.choices[0].text == written("hello", 12)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 12, 17)
    assert answer.object == "text_completion"
    assert answer.model == "tiny"
    assert answer.id.startswith("cmpl-")


def test_several_prompts_and_token_ids(client) -> None:
    answer = client.completions.create(model="tiny", prompt=["ab", "cde"], max_tokens=4, temperature=0)
    assert [c.text for c in answer.choices] == [written("ab", 4), written("cde", 4)]
    assert answer.usage.prompt_tokens == 5
    ids = client.completions.create(model="tiny", prompt=[3, 4, 5], max_tokens=4, temperature=0)
    assert ids.choices[0].text == shown([3, 4, 5], 4)
    both = client.completions.create(model="tiny", prompt=[[3, 4, 5], [6]], max_tokens=4, temperature=0)
    assert [c.text for c in both.choices] == [shown([3, 4, 5], 4), shown([6], 4)]
    assert len(client.completions.create(model="tiny", prompt="x", temperature=0).choices[0].text) == 16


def test_chat(client) -> None:
    answer = client.chat.completions.create(model="tiny", messages=CHAT, max_completion_tokens=9, temperature=0)
    assert answer.choices[0].message.content == written(CHAT_TEXT, 9)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 9


@pytest.mark.parametrize("usage", [True, False])
def test_chat_streams(client, usage: bool) -> None:
    more = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(
        client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=7, temperature=0, stream=True, **more)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == written(CHAT_TEXT, 7)
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({c.id for c in chunks}) == 1
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == "length"
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    if usage:
        assert chunks[-1].choices == []
        assert chunks[-1].usage.total_tokens == len(CHAT_TEXT) + 7
    else:
        assert all(c.usage is None for c in chunks)


def test_completions_stream_several_prompts(client) -> None:
    stream = client.completions.create(model="tiny", prompt=["ab", "cde"], max_tokens=30, temperature=0, stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: written("ab", 30), 1: written("cde", 30)}


def test_a_stop_string_ends_the_text_and_frees_the_unit(server, client) -> None:
    full = written("stop", 60)
    stop = full[20:23]
    cut = full[: full.find(stop)]
    for stream in (False, True):
        answer = client.completions.create(
            model="tiny", prompt="stop", max_tokens=60, temperature=0, stop=["~~~~", stop], stream=stream
        )
        chunks = list(answer) if stream else [answer]
        assert "".join(c.choices[0].text for c in chunks) == cut
        assert chunks[-1].choices[0].finish_reason == "stop"
    assert until(lambda: server.supervisor.live == 0)
    assert until(lambda: all(u.load.running == 0 for u in server.units))


def test_stop_strings_across_pieces() -> None:
    for text, stops in (
        ("abcabd--", ("abd",)),
        ("aaab", ("aab", "b")),
        ("xyz", ("zz",)),
        ("", ("a",)),
        ("éé!", ("é!",)),
    ):
        whole = min((at for at in (text.find(s) for s in stops) if at >= 0), default=len(text))
        for width in (1, 2, 3, 9):
            found, out = Stops(stops), ""
            for start in range(0, len(text), width):
                out += found.push(text[start : start + width])
            out += found.finish()
            assert out == text[:whole]
            assert found.hit == (whole < len(text))


def test_models(client) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.created, model.owned_by) == ("tiny", 1_700_000_000, "linkwise")
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="x")


NEUTRAL: dict[str, Any] = {
    "n": 1, "best_of": 1, "echo": False, "suffix": None, "logprobs": None, "frequency_penalty": 0.0, "top_k": -1,
    "presence_penalty": 0, "logit_bias": {}, "user": "me", "top_p": 1, "seed": 5, "stop": None, "min_p": 0.0,
    "repetition_penalty": 1.0, "response_format": {"type": "text"}, "stream": False, "ignore_eos": True,
}  # fmt: skip


def test_parameters_at_the_value_that_changes_nothing(server) -> None:
    answer = server.ask("hello", 6, **NEUTRAL)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == written("hello", 6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2), ("n", True), ("best_of", 3), ("echo", True), ("suffix", "x"), ("logprobs", 0), ("logprobs", 5),
        ("frequency_penalty", 0.5), ("presence_penalty", -1), ("logit_bias", {"5": 1}), ("top_k", 40), ("min_p", 0.1),
        ("repetition_penalty", 1.1), ("response_format", {"type": "json_object"}), ("min_tokens", 2),
        ("use_beam_search", True), ("temperature", 2.1), ("temperature", -0.1), ("temperature", "hot"), ("top_p", 0),
        ("top_p", 1.5), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", -3), ("stop", ["x"] * 17), ("stop", ""),
        ("stop", 5), ("seed", "x"), ("seed", 1 << 70), ("stop_token_ids", [97]), ("guided_json", {}), ("prompt", []),
        ("prompt", [1, "a"]), ("prompt", [97]), ("prompt", [-1]), ("prompt", [[]]), ("prompt", ""), ("prompt", None),
        ("prompt", {"a": 1}), ("prompt", [True]), ("prompt", ["x"] * 65), ("prompt", [1.5]),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused_by_name(server, field: str, value: Any) -> None:
    answer = server.client.post("/v1/completions", json={"prompt": "hi", "temperature": 0, field: value})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field
    assert field in error["message"] or "prompt" in error["message"]
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("reasoning_effort", "high"),
        ("modalities", ["audio"]), ("top_logprobs", 3), ("logprobs", True), ("web_search_options", {}),
        ("functions", [{}]), ("verbosity", "low"), ("max_completion_tokens", 0), ("messages", []),
        ("messages", [{"role": "wizard", "content": "x"}]), ("messages", [{"content": "x"}]),
        ("messages", [{"role": ["user"], "content": "x"}]),
        ("messages", [{"role": "user"}]), ("messages", [{"role": "user", "content": "x", "tool_calls": [1]}]),
    ],
)  # fmt: skip
def test_what_chat_does_not_do_is_refused_by_name(server, field: str, value: Any) -> None:
    answer = server.client.post("/v1/chat/completions", json={"messages": CHAT, field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(field)


def test_requests_longer_than_the_model(server) -> None:
    answer = server.ask("x" * 4000, 97)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert server.ask("x" * 4000, 96).status_code == 200
    assert server.ask("x" * 5000, 1).status_code == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"5", b'{"prompt":' + b"[" * 5000])
def test_bodies_that_are_no_request(server, body: bytes) -> None:
    answer = server.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (rb'{"prompt": "\ud800"}', 12),
        (rb'{"prompt": "a\ud800 and more text"}', 13),
        (rb'{"prompt": "\\\ud83d\ude00\udc00 and more text"}', 26),  # a backslash, a whole pair, a half
        (rb'{"\udc00": 1}', 2),
        (rb'{"prompt": "\ud83d\ude00', -1),  # cut indeed
        (rb'{"prompt": "\ud83d', -1),
        (rb'{"prompt": "\\ud800"', -1),  # no escape
    ],
)
def test_half_a_surrogate_pair_is_told_as_such(server, body: bytes, at: int) -> None:
    answer = server.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert ("half of a surrogate pair" in message) == (at >= 0)
    assert at < 0 or f"at byte {at} " in message


def test_stream_options_are_for_streams(server) -> None:
    # As OpenAI's own API: 400, param stream_options.
    for more in ({}, {"stream": False}):
        answer = server.ask("hi", stream_options={"include_usage": True}, **more)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options")
    assert server.ask("hi", stream_options=None).status_code == 200
    seed = server.ask("hi", seed=1 << 63)
    assert "from -2^63 to 2^63-1" in seed.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/tiny"])
def test_head_is_get_without_the_body(server, path: str) -> None:
    got, head = server.client.get(path), server.client.head(path)
    assert (head.status_code, head.content, head.headers["content-type"]) == (200, b"", got.headers["content-type"])


def test_a_server_that_drains_says_so_and_lets_streams_end(serve) -> None:
    server = serve(FakeUnit("a", pace_s=0.01))
    client, supervisor = server.client, server.supervisor
    body = {"prompt": "slow", "max_tokens": 100, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        draining = threading.Thread(target=lambda: supervisor.drain(60.0))
        draining.start()
        assert until(lambda: supervisor.stopping)
        for path in ("/ready", "/health"):
            answer = httpx.get(server.url + path)
            assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        late = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")]
        assert written("slow", 100).endswith("".join(texts)) and len("".join(texts)) >= 98
        draining.join(10)
        assert not draining.is_alive()


def test_other_content_types_paths_and_methods(server) -> None:
    client = server.client
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert client.post("/v1/completions", content=b"{}", headers=packed).status_code == 415
    plain = {"content-type": "application/json", "content-encoding": "identity"}
    assert client.post("/v1/completions", content=b'{"prompt": "x"}', headers=plain).status_code == 200
    assert client.get("/v1/completions").headers["allow"] == "POST"
    assert set(client.post("/health").headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert client.get("/v1/completions").status_code == 405
    missing = client.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "there is no /v1/nothing"


def test_request_ids_come_back(server) -> None:
    answer = server.client.post(
        "/v1/completions", json={"prompt": "a", "temperature": 0}, headers={"x-request-id": "mine-1"}
    )
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json()["id"] == "cmpl-mine-1"
    odd = server.client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "no spaces please"})
    assert odd.status_code == 200
    assert odd.headers["x-request-id"] != "no spaces please"


@pytest.mark.parametrize(
    ("path", "sent", "status"),
    [
        ("/v1/completions", b'{"prompt": 5}', 400),
        ("/v1/completions", b"{", 400),
        ("/v1/completions", b'{"prompt": "a", "model": "other"}', 404),
        ("/v1/nothing", b"{}", 404),
        ("/health", b"", 405),
    ],
)
def test_request_ids_come_back_on_errors(server, path: str, sent: bytes, status: int) -> None:
    headers = {"x-request-id": "mine-2", "content-type": "application/json"}
    answer = server.client.post(path, content=sent, headers=headers)
    assert answer.status_code == status
    assert answer.headers["x-request-id"] == "mine-2"
    del headers["x-request-id"]
    assert server.client.post(path, content=sent, headers=headers).headers["x-request-id"]


def test_a_client_that_goes_away_with_half_a_body_is_no_error_of_ours(server, caplog) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as line:
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n"
        )
        line.sendall(head.encode() + b'{"prompt"')
        assert until(lambda: server.connections._open > len(server.connections._idle))
    assert until(lambda: server.connections._open == len(server.connections._idle))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def _longer(prompt: str, **more: Any) -> dict[str, Any]:
    """A request whose body takes its turn among the long ones."""
    return {"prompt": prompt, "max_tokens": 2, "temperature": 0, "user": "x" * SHORT_BYTES, **more}


def test_texts_that_cannot_fit_are_not_tokenised(serve) -> None:
    server = serve()
    # The model takes 4096 tokens, and a token is at most four characters of this text.
    for path, body in (
        ("/v1/completions", {"prompt": ["short", "x" * (4 * 4096)]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * (4 * 4096)}]}),
    ):
        answer = server.client.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert server.text.encoded == []


def test_requests_that_are_read_count_as_waiting_and_hold_up_no_short_one(serve) -> None:
    server = serve(max_waiting=3, limits=Limits(timeout_s=30.0))
    text = server.text
    text.gate.clear()
    answers: list[httpx.Response] = []

    def long() -> None:
        answers.append(httpx.post(f"{server.url}/v1/completions", json=_longer("y" * 1000), timeout=60))

    threads = [threading.Thread(target=long) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert until(lambda: len(text.encoded) == 1 and server.metric("linkwise:requests_queued{") == 2)
        assert server.ask("hi", 3).json()["choices"][0]["text"] == written("hi", 3)
        third = threading.Thread(target=long)
        third.start()
        threads.append(third)
        assert until(lambda: server.metric("linkwise:requests_queued{") == 3)
        full = server.ask("hi", 3)
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert text.encoded == ["y" * 1000, "hi"]  # one long text at a time
    finally:
        text.gate.set()
        for thread in threads:
            thread.join()
    assert [a.json()["choices"][0]["text"] for a in answers] == [written("y" * 1000, 2)] * 3
    assert server.metric("linkwise:requests_queued{") == 0


def test_a_template_that_is_not_filled_in_holds_up_no_completion(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    gate = threading.Event()

    def written_late(messages: list[dict[str, Any]]) -> str:
        gate.wait()
        raise Unanswered("the process that fills in chat templates is stopped by a signal")

    monkeypatch.setattr(server.text, "written", written_late)
    answers: list[httpx.Response] = []
    chat = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{server.url}/v1/chat/completions", json={"messages": CHAT}))
    )
    chat.start()
    try:
        assert until(lambda: server.metric("linkwise:requests_queued{") == 1)
        assert server.ask("hi", 3).json()["choices"][0]["text"] == written("hi", 3)
        assert not answers
    finally:
        gate.set()
        chat.join()
    (answer,) = answers
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")  # not the conversation's fault
    assert "stopped by a signal" in answer.json()["error"]["message"]


def test_a_request_that_is_not_read_in_time_gets_504_and_gives_its_turn_up(serve) -> None:
    server = serve(limits=Limits(timeout_s=0.3))
    server.text.gate.clear()
    try:
        for _ in range(2):
            late = server.client.post("/v1/completions", json=_longer("z" * 1000))
            assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=_longer("z" * 1000), timeout=0.1)
        assert until(lambda: server.metric("linkwise:requests_queued{") == 0)
        assert server.text.encoded == ["z" * 1000]  # those whose turn had not come never take it
    finally:
        server.text.gate.set()


def test_a_client_that_goes_away_frees_its_request(server) -> None:
    before = server.metric(ABORTED)
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={"prompt": "gone", "max_tokens": 4000, "stream": True}
    ) as stream:
        next(stream.iter_lines())
    assert until(lambda: server.supervisor.live == 0 and all(u.load.running == 0 for u in server.units))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "gone", "max_tokens": 4000}, timeout=0.2)
    assert until(lambda: server.supervisor.live == 0 and all(u.load.running == 0 for u in server.units))
    assert until(lambda: server.metric(ABORTED) == before + 2)


def test_metrics_count_requests_and_tokens(server) -> None:
    names = ("vllm:prompt_tokens_total{", "vllm:generation_tokens_total{", "vllm:time_to_first_token_seconds_count{",
             "vllm:inter_token_latency_seconds_count{", "vllm:e2e_request_latency_seconds_count{")  # fmt: skip
    length = 'vllm:request_success_total{finished_reason="length"'
    before = [server.metric(name) for name in (*names, length)]
    server.ask("12345", 11)
    after = [server.metric(name) for name in (*names, length)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [5, 11, 1, 10, 1, 1]
    text = server.client.get("/metrics").text
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert f'{name}{{engine="0",model_name="tiny"}}' in text
        assert f'{name}{{engine="1",model_name="tiny"}}' in text


def test_a_lost_unit_changes_no_stream(serve) -> None:
    units = [FakeUnit("a", pace_s=0.004), FakeUnit("b", pace_s=0.004)]
    server = serve(*units)
    texts: list[str] = []

    def read() -> None:
        with httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json={"prompt": "same", "max_tokens": 80, "temperature": 0, "stream": True},
            timeout=20,
        ) as stream:
            lines = [line[6:] for line in stream.iter_lines() if line.startswith("data: {")]
        texts.append("".join(json.loads(line)["choices"][0]["text"] for line in lines))

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    assert until(lambda: all(u.load.running for u in units))
    time.sleep(0.05)
    units[0].fail(DEAD)
    assert until(lambda: server.client.get("/ready").status_code == 200)
    for reader in readers:
        reader.join()
    assert texts == [written("same", 80)] * 6
    assert server.metric('linkwise:faults_total{kind="dead"') == 1
    assert server.metric("linkwise:retries_total{") >= 1


def test_rejected_with_503_and_retry_after(serve) -> None:
    unit = FakeUnit("a", pace_s=0.003)
    server = serve(unit, on_fault="reject", backoff_s=0.6, backoff_most_s=1.0)
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(server.ask("x", 2000)))
    asking.start()
    body = {"prompt": "y", "max_tokens": 2000, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=20) as streamed:
        lines = streamed.iter_lines()
        next(lines)
        assert until(lambda: unit.load.running == 2)
        unit.fail(DEAD)
        rest = [line for line in lines if line]
    assert json.loads(rest[-1][6:])["error"]["code"] == "group_lost"
    asking.join()
    assert answers[0].status_code == 503
    assert int(answers[0].headers["retry-after"]) >= 1
    assert "rank 1 dead" in answers[0].json()["error"]["message"]
    later = server.ask("x", 1)
    assert later.status_code == 503
    assert "retry-after" in later.headers
    health = server.client.get("/health")
    assert health.status_code == 503
    assert "rank 1 dead: rank 1 was killed by signal 9" in health.json()["reason"]
    assert server.client.get("/ready").status_code == 503
    assert until(lambda: server.client.get("/ready").status_code == 200)
    assert server.ask("x", 3).json()["choices"][0]["text"] == written("x", 3)


def test_health_fails_within_its_bound_when_nothing_comes_out(serve) -> None:
    unit = FakeUnit("a")
    server = serve(unit)
    assert server.client.get("/health").json()["status"] == "ok"
    unit.frozen = True
    time.sleep(1.1)  # a token of the last second still counts
    began = time.monotonic()
    answer = server.client.get("/health")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "a: no token within 0.5 s"
    assert time.monotonic() - began < 1.2
    unit.frozen = False
    assert server.client.get("/health").status_code == 200


def test_limits(serve) -> None:
    unit = FakeUnit("a")
    server = serve(unit, limits=Limits(body_bytes=2000, max_tokens=50, timeout_s=0.4), max_waiting=2)
    assert server.ask("x" * 2100).status_code == 413
    chunked = server.client.post(
        "/v1/completions", content=(b" " * 500 for _ in range(5)), headers={"content-type": "application/json"}
    )
    assert chunked.status_code == 413
    over = server.ask("x", 51)
    assert over.status_code == 400
    assert over.json()["error"]["param"] == "max_tokens"
    unit.frozen = True
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(server.ask("x", 5))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert until(lambda: server.supervisor.waiting == 2)
    full = server.ask("x", 5)
    assert full.status_code == 429
    assert full.headers["retry-after"] == "1"
    assert full.json()["error"]["type"] == "rate_limit_error"
    assert server.metric(ABORTED) == 0
    for thread in threads:
        thread.join()
    assert [a.status_code for a in answers] == [504, 504]
    assert until(lambda: server.supervisor.live == 0)
    assert server.metric(ABORTED) == 2  # those that were admitted, and not the one with 429
    # One of two prompts is admitted beside one that waits, and cancelled when the second one is not.
    waiting = threading.Thread(target=lambda: server.ask("x", 5))
    waiting.start()
    assert until(lambda: server.supervisor.waiting == 1)
    assert server.ask(["x", "y"], 5).status_code == 429
    waiting.join()
    assert until(lambda: server.supervisor.live == 0)
    assert server.metric(ABORTED) == 4
    # More prompts than may wait at all can never be served: no reason to try again.
    many = server.ask(["x", "y", "z"], 5)
    assert many.status_code == 400
    assert many.json()["error"]["param"] == "prompt"
    assert "3 prompts in one request; at most 2" in many.json()["error"]["message"]
    assert "retry-after" not in many.headers
    unit.frozen = False
    assert until(lambda: unit.load.running == 0)
    assert server.ask("x", 5).status_code == 200


def test_the_key(serve) -> None:
    server = serve(FakeUnit("a"), key="s3cret")
    assert server.ask("x", 1).status_code == 200
    for header in (None, "Bearer wrong", "s3cret", "Basic s3cret", "Bearer", "Bearer s3cretx"):
        headers = {"authorization": header} if header else {}
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert httpx.get(f"{server.url}/health").status_code == 200
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="s3cret", max_retries=0) as client:
        assert client.completions.create(model="tiny", prompt="x", max_tokens=2, temperature=0).choices


def test_local_addresses() -> None:
    assert [is_local(h) for h in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8")] == [True] * 5
    assert [is_local(h) for h in ("0.0.0.0", "::", "192.168.0.1", "example.org", "")] == [False] * 5  # noqa: S104


def test_sampled_text_is_seeded(server) -> None:
    assert FakeText().encode("a") == [66]
    for _ in range(2):
        server.ask("seed", 1, temperature=1)
    jobs = [j for u in server.units for j in u.accepted if j.prompt == tuple(FakeText().encode("seed"))]
    assert len({j.sampling.seed for j in jobs}) == 2  # one of our own for each request
    server.ask("seed2", 1, temperature=0.5, top_p=0.9, seed=7)
    (job,) = [j for u in server.units for j in u.accepted if j.prompt == tuple(FakeText().encode("seed2"))]
    assert job.sampling == (0.5, 0.9, 7)
    assert job.trace
    assert "seed" not in job.trace
    # Equal prompts of one request are drawn apart, unless the client gives their seed.
    server.ask(["twin", "twin", "twin"], 1, temperature=1)
    server.ask(["same", "same"], 1, temperature=1, seed=-1)
    twins = [j for u in server.units for j in u.accepted if j.prompt == tuple(FakeText().encode("twin"))]
    same = [j for u in server.units for j in u.accepted if j.prompt == tuple(FakeText().encode("same"))]
    assert len({j.sampling.seed for j in twins}) == len(twins) == 3
    assert [j.sampling.seed for j in same] == [2**64 - 1] * 2


def test_a_warning_is_said_again_after_a_minute_and_errors_always() -> None:
    now = [0.0]
    seldom = Seldom(lambda: now[0])

    def said(words: str, level: int = logging.WARNING) -> bool:
        return bool(seldom.filter(logging.LogRecord("uvicorn.error", level, "", 0, words, None, None)))

    assert [said("Invalid"), said("Invalid"), said("Other")] == [True, False, True]
    assert said("Broken", logging.ERROR) and said("Broken", logging.ERROR)
    now[0] = QUIET_S
    assert [said("Invalid"), said("Invalid")] == [True, False]
