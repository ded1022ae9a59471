"""Text to token ids and back: a model folder's tokenizer, its chat template and its stop tokens.

The folder is hostile until checked: reads are bounded, the chat template runs in a process with limits. What a user
writes is not: like other servers, `encode` takes the text of a special token for that token.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linkwise.core.errors import InputError
from linkwise.core.files import read_json_object, read_text
from linkwise.runtime.detokenise import Stream
from linkwise.runtime.least import Least
from linkwise.runtime.template import Template

MAX_TOKENIZER_BYTES = 128 * 2**20
MAX_SMALL_BYTES = 8 * 2**20


class Text:
    """One model's tokenizer. Made by `open_text`.

    vocab: ids it knows are below this. stop_ids: tokens that end a text. special: tokens that are never text.
    """

    def __init__(self, tokenizer: Any, template: Template | None, stop_ids: frozenset[int], where: str) -> None:
        self.where, self.stop_ids = where, stop_ids
        self._tokenizer, self._template = tokenizer, template
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(i for i, token in added.items() if token.special)
        self.vocab = max(tokenizer.get_vocab().values(), default=-1) + 1
        self._least = Least(tokenizer)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text. special: with the tokens the tokenizer puts around every text (a start token)."""
        try:
            # As a batch, since `encode` keeps all other threads waiting (it holds the interpreter's lock).
            ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        except TypeError:  # what the library says of text that has no UTF-8
            raise InputError("text with lone surrogates", where=self.where, expected="valid Unicode") from None
        return ids

    def at_least(self, text: str) -> int:
        """So many tokens the text makes at least, known without tokenising it; 0 where this tokenizer does not tell."""
        return self._least.tokens(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids without special tokens; bytes that are no UTF-8 become U+FFFD."""
        stream = self.stream()
        return "".join([*(stream.push(i) for i in ids), stream.finish()])

    @property
    def has_template(self) -> bool:
        """Whether `chat` can be asked."""
        return self._template is not None

    def stream(self) -> Stream:
        """A detokeniser of one answer."""
        return Stream(self._tokenizer, self.special)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation that the model goes on with."""
        return self.encode(self.written(messages), special=False)

    def written(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation as text, by the folder's chat template, with the start token where the model wants one.

        messages: role and content, a text or a list of {type: text, text}. Raises InputError for malformed messages, a
        folder without a template, and messages that the template refuses; template.Unanswered.
        """
        if self._template is None:
            raise InputError(
                "the model has no chat template",
                where=self.where,
                expected="chat_template in tokenizer_config.json, or chat_template.jinja",
                hint="Completions of a plain prompt work",
            )
        said = [_message(message, number) for number, message in enumerate(messages)]
        if not said:
            raise InputError("no messages", expected="at least one")
        return self._template.render(messages=said, add_generation_prompt=True)


def _message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError("no role", where=where, expected="an object with role and content")
    content = message.get("content")
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, Mapping) and p.get("type") == "text" else None for p in content]
        if not all(isinstance(part, str) for part in parts):
            raise InputError("a part that is not text", where=where, expected='{"type": "text", "text": ...}')
        content = "\n".join(part for part in parts if part is not None)
    if not isinstance(content, str):
        raise InputError("no content", where=where, expected="a text, or a list of text parts")
    return {**message, "content": content}


def open_text(folder: str | Path, say: Callable[[str], None] = lambda line: None) -> Text:
    """The tokenizer of a model folder. say: takes a line about trouble with the processes that fill in its template.

    Raises InputError for a missing or malformed tokenizer.json or config.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        raise InputError(
            "no tokenizer.json",
            where=str(folder),
            expected="a model folder with a fast tokenizer",
            hint="Give token ids instead, or save the tokenizer with transformers' save_pretrained",
        )
    text = read_text(path, max_bytes=MAX_TOKENIZER_BYTES)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("the package tokenizers is not installed", expected="pip install linkwise[run]") from None
    try:
        tokenizer = Tokenizer.from_str(text)
        # A file may ask for its own cutting or padding of every text: lengths are ours to bound.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise InputError(
            f"malformed: {error}", where=str(path), expected="a tokenizer of the tokenizers library"
        ) from None
    about = _object(folder / "tokenizer_config.json")
    return Text(tokenizer, _template(folder, about, say), _stops(folder, about, tokenizer), str(folder))


def _object(path: Path) -> dict[str, Any]:
    return read_json_object(path, max_bytes=MAX_SMALL_BYTES) if os.path.lexists(path) else {}


def _template(folder: Path, about: dict[str, Any], say: Callable[[str], None]) -> Template | None:
    path = folder / "chat_template.jinja"
    where = path if os.path.lexists(path) else folder / "tokenizer_config.json"
    text = read_text(path, max_bytes=MAX_SMALL_BYTES) if where is path else about.get("chat_template")
    if isinstance(text, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in text if isinstance(t, dict)}
        text = named.get("default")
    if text is None:
        return None
    if not isinstance(text, str):
        raise InputError("chat_template is no text", where=str(where), expected="a Jinja template")
    words = {name: _word(about.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    return Template(text, {name: word for name, word in words.items() if word is not None}, str(where), say)


def _word(value: Any) -> str | None:
    """A special token, which a config gives as text or as an object with its text."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _stops(folder: Path, about: dict[str, Any], tokenizer: Any) -> frozenset[int]:
    """Ids that end a text: those of generation_config.json, else of config.json, else the tokenizer's end token."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = _object(path).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if len(ids) > 1024 or not all(type(i) is int and i >= 0 for i in ids):
            raise InputError(
                f"eos_token_id is {value!r}"[:120], where=str(path), expected="a token id or a list of them"
            )
        return frozenset(ids)
    word = _word(about.get("eos_token"))
    token = None if word is None else tokenizer.token_to_id(word)
    return frozenset() if token is None else frozenset({token})
