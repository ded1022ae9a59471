"""Tokenizer, chat template and streaming against tokenizers and transformers; hostile folders are refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from linkwise.core.errors import InputError  # noqa: E402
from linkwise.runtime import template as templates  # noqa: E402
from linkwise.runtime.text import Text, open_text  # noqa: E402

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "thé 日本 1 2"}]


def byte_level() -> Any:
    """A tokenizer of bytes with a few merges and special tokens, one token added as plain text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the sea the sky brief system user thé 日本 日本語"] * 3, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("日記 x", special=False)])
    return tokenizer


def byte_fallback() -> Any:
    """The other family: pieces with a mark for spaces, bytes only where no piece fits."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "é", "日"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({p: i for i, p in enumerate(pieces)}, [("▁", "a")], byte_fallback=True)
    )
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def folder(path: Path, tokenizer: Any = None, template: Any = CHATML, **more: dict[str, Any]) -> Path:
    (tokenizer or byte_level()).save(str(path / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    (path / "tokenizer_config.json").write_text(
        json.dumps(about | ({} if template is None else {"chat_template": template}))
    )
    for name, value in more.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def test_encode_chat_and_decode_equal_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    other = transformers.AutoTokenizer.from_pretrained(folder(tmp_path))
    text = open_text(tmp_path)
    for words in ["the sea", "", "  a\n\n\tb", "日本語 é 😀 12", "<|im_start|>user\nhi<|im_end|>", "日記 x!"]:
        ids = text.encode(words)
        assert ids == other(words)["input_ids"]
        assert text.decode(ids) == other.decode(ids, skip_special_tokens=True)
    assert text.chat(HELLO) == other.apply_chat_template(HELLO, add_generation_prompt=True)["input_ids"]
    assert text.vocab == len(other)
    assert text.special == frozenset({0, 1, 2})


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_a_stream_gives_the_text_and_no_half_characters(tmp_path: Path, make: Any) -> None:
    tokenizer = make()
    text = open_text(folder(tmp_path, tokenizer))
    chance = random.Random(7)  # noqa: S311 - cases, no secrets
    words = "aé日😀 b a"
    for case in range(200):
        if case % 2:
            ids = tokenizer.encode("".join(chance.choices(words, k=12))).ids
            assert all("\ufffd" not in part for part in pushed(text, ids))
        else:
            ids = [chance.randrange(text.vocab) for _ in range(12)]
        expected = tokenizer.decode(ids, skip_special_tokens=True)
        if make is byte_level or "\ufffd" not in expected:
            assert "".join(pushed(text, ids)) == expected, ids


def pushed(text: Text, ids: list[int]) -> list[str]:
    stream = text.stream()
    return [*(stream.push(i) for i in ids), stream.finish()]


def test_a_character_comes_with_its_last_byte(tmp_path: Path) -> None:
    text = open_text(folder(tmp_path))
    letters = {w: i for w, i in byte_level().get_vocab().items() if len(w) == 1}
    ids = [letters[c] for c in "ðŁĺĢ"]  # F0 9F 98 80 in GPT-2's letters for bytes
    assert pushed(text, ids) == ["", "", "", "😀", ""]
    assert pushed(text, [*ids[:2], 1, *ids[2:]]) == ["", "", "", "", "😀", ""]
    assert pushed(text, ids[:3]) == ["", "", "", "\ufffd"]
    assert pushed(text, [10_000]) == ["", ""]


def test_stop_ids(tmp_path: Path) -> None:
    assert open_text(folder(tmp_path)).stop_ids == {2}
    assert open_text(folder(tmp_path, config={"eos_token_id": [5, 6]})).stop_ids == {5, 6}
    assert open_text(folder(tmp_path, generation_config={"eos_token_id": 7})).stop_ids == {7}
    refused(folder(tmp_path, generation_config={"eos_token_id": ["x"]}), "eos_token_id", "generation_config.json")


def test_templates_from_other_places(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "the"}]
    text = open_text(folder(tmp_path, template=named))
    assert text.chat(HELLO) == text.encode("the")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}sea{% generation %} sky{% endgeneration %}")
    text = open_text(tmp_path)
    assert text.chat(HELLO) == text.encode("<|im_start|>sea sky")


def test_content_in_parts(tmp_path: Path) -> None:
    text = open_text(folder(tmp_path))
    parts = [{"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": "sea"}]}]
    assert text.chat(parts) == text.chat([{"role": "user", "content": "the\nsea"}])


@pytest.mark.parametrize(
    "messages",
    [[], [{"content": "x"}], ["x"], [{"role": "user"}], [{"role": 1, "content": "x"}], [{"role": "u", "content": 3}],
     [{"role": "u", "content": [{"type": "image_url"}]}]],
)  # fmt: skip
def test_malformed_messages(tmp_path: Path, messages: Any) -> None:
    with pytest.raises(InputError):
        open_text(folder(tmp_path)).chat(messages)


def refused(path: Path, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        open_text(path)
    for word in words:
        assert word in str(caught.value)


def test_folders_that_lack_something(tmp_path: Path) -> None:
    refused(tmp_path, "no tokenizer.json", str(tmp_path))
    text = open_text(folder(tmp_path, template=None))
    assert text.encode("the sea")
    with pytest.raises(InputError, match="chat template"):
        text.chat(HELLO)


def test_malformed_files(tmp_path: Path) -> None:
    refused(folder(tmp_path, template=5), "chat_template", "tokenizer_config.json")
    refused(folder(tmp_path, template="{% for %}"), "malformed", "tokenizer_config.json")
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    refused(tmp_path, "tokenizer.json", "malformed")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{{ 'x' * 999999999 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(10 ** 9) }}",
        "{{ raise_exception('no system role') }}",
        "{{ nothing.here.at_all }}",
        "{{ 1 / 0 }}",
        "{{ ''|center(1500000000) }}",
        "{% set a = messages[0].content|center(700000000) %}{{ a|length }}",
        "{{ '%0900000000d'|format(1) }}",
        "{% for a in range(99999) %}{% set b = range(99999)|sum %}{% endfor %}",
        "{{ strftime_now('%Y' * 9999999)|replace('2', 'x' * 9999) }}",
    ],
)
def test_hostile_templates_end_in_an_error(tmp_path: Path, template: str) -> None:
    path = folder(tmp_path, template=template)
    with pytest.raises(InputError, match="chat template"):
        open_text(path).chat(HELLO)  # constants are computed when it is read


def test_what_bounds_a_template_is_the_system(tmp_path: Path) -> None:
    """A child that ends by itself or by the system costs one conversation; the next one gets another child."""
    template = (
        "{% if messages[0].content == 'more' %}{{ messages[0].content|center(700000000)|length }}"
        "{% elif messages[0].content == 'long' %}{% for a in range(99999) %}{% set b = range(99999)|sum %}{% endfor %}"
        "{% endif %}{{ messages[0].content }}"
    )
    text = open_text(folder(tmp_path, template=template))
    for content, words in (("more", "more than 512 MiB of memory"), ("long", "more than 2 s of processor time")):
        with pytest.raises(InputError, match=words):
            text.chat([{"role": "user", "content": content}])
        assert text.written([{"role": "user", "content": "the sea"}]) == "the sea"
    (process,) = text._template._idle  # type: ignore[union-attr]
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    assert text.written([{"role": "user", "content": "the sky"}]) == "the sky"


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_does_not_answer_is_replaced_within_seconds(tmp_path: Path, how: signal.Signals) -> None:
    said: list[str] = []
    text = open_text(folder(tmp_path, template="{{ messages[0].content }}"), said.append)
    (process,) = text._template._idle  # type: ignore[union-attr]
    long = "the sea " * 100_000  # more than a socket holds: it is stopped before it has read all of it
    os.kill(process._process.pid, how)
    began = time.monotonic()
    assert text.written([{"role": "user", "content": long}]) == long
    assert time.monotonic() - began < 30 * templates.HALTED_S  # half a second, and a Python's start on a busy machine
    assert process._process.poll() is not None
    if how == signal.SIGSTOP:  # one that is gone before it is asked is nothing to tell
        assert said == ["the process that fills in chat templates is stopped by a signal; another one is started"]


def test_who_sleeps_without_computing_is_no_renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "IDLE_S", 0.3)
    text = open_text(folder(tmp_path, template="{{ messages[0].content }}"))
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    start = subprocess.Popen
    monkeypatch.setattr(templates.subprocess, "Popen", lambda _, **how: start(sleeping, **how))
    text._template._idle.clear()  # type: ignore[union-attr]
    said: list[str] = []
    text._template._say = said.append  # type: ignore[union-attr]
    with pytest.raises(templates.Unanswered, match="has done nothing for"):
        text.written([{"role": "user", "content": "the sea"}])
    assert len(said) == 2
    monkeypatch.setattr(templates.subprocess, "Popen", start)
    assert text.written([{"role": "user", "content": "the sea"}]) == "the sea"


def test_a_template_is_filled_in_where_no_key_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINKWISE_API_KEY", "s3cret")
    monkeypatch.setenv("TZ", "UTC")
    text = open_text(folder(tmp_path))
    (process,) = text._template._idle  # type: ignore[union-attr]
    pid = process._process.pid
    environment = Path(f"/proc/{pid}/environ")
    if environment.exists():
        assert b"TZ=UTC" in environment.read_bytes()
        assert b"s3cret" not in environment.read_bytes()
    del text, process
    with pytest.raises(ProcessLookupError):  # it has ended with its owner
        os.kill(pid, 0)


def test_conversations_at_once(tmp_path: Path) -> None:
    text = open_text(folder(tmp_path, template="{{ messages[0].content }}"))
    texts = [f"the sea {n}" for n in range(24)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda t: text.written([{"role": "user", "content": t}]), texts)) == texts


def composed() -> Any:
    """As Qwen's: letters and their marks become one character before the tokenizer sees them."""
    tokenizer = byte_level()
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    return tokenizer


def greedy() -> Any:
    """With a token that takes the spaces beside it along, and without a token for one byte."""
    tokenizer = byte_level()
    tokenizer.add_tokens([tokenizers.AddedToken("<x>", lstrip=True, rstrip=True, normalized=False)])
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"]["~~"] = state["model"]["vocab"].pop("~")
    return tokenizers.Tokenizer.from_str(json.dumps(state))


@pytest.mark.parametrize("make", [byte_level, byte_fallback, composed, greedy])
def test_a_text_has_at_least_as_many_tokens_as_it_is_said_to_have(tmp_path: Path, make: Any) -> None:
    text = open_text(folder(tmp_path, make()))
    chance = random.Random(3)  # noqa: S311 - cases, no secrets
    pieces = [
        "the sea",
        "日記 x",
        " ",
        "   ",
        "<x>",
        "<|im_end|>",
        "e\u0301",
        "\u1112\u1161\u11ab",
        "\u2126",
        "~",
        "😀",
        "\n",
        "z",
    ]
    for _ in range(300):
        words = "".join(chance.choices(pieces, k=chance.randrange(40)))
        assert text.at_least(words) <= len(text.encode(words)), words
    for piece in pieces:
        assert text.at_least(piece * 500) <= len(text.encode(piece * 500)), piece


def test_the_least_number_of_tokens_by_hand(tmp_path: Path) -> None:
    # The longest token is `<|endoftext|>`, of 13 bytes; a composed character may have been three times its bytes.
    assert open_text(folder(tmp_path)).at_least("z" * 1300) == 100
    assert open_text(folder(tmp_path)).at_least("z" * 1301) == 101
    assert open_text(folder(tmp_path)).at_least("é" * 650) == 100
    assert open_text(folder(tmp_path, composed())).at_least("z" * 3900) == 100
    # Spaces may vanish into the token beside them, and `~` has no token.
    assert open_text(folder(tmp_path, greedy())).at_least("z " * 1300 + "~" * 99) == 100
    assert open_text(folder(tmp_path, byte_fallback())).at_least("z" * 1300) == 0


def test_lone_surrogates(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="surrogates"):
        open_text(folder(tmp_path)).encode("\ud800")
