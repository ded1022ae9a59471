"""Requests at the door: bytes of the network become an `Ask`, or an error that names the field.

A field that would change the answer in a way we do not serve is refused by name, never ignored. Fields that leave the
answer as it is (who asks, how it is billed) are taken and not used.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from linkwise.core.errors import InputError
from linkwise.runtime.serve.errors import ApiError
from linkwise.runtime.serve.limits import Limits
from linkwise.supervise.types import Sampling


class Stream(Protocol):
    """What a detokeniser does."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class Text(Protocol):
    """What the server needs of a tokenizer; see runtime/text.py."""

    stop_ids: frozenset[int]

    @property
    def vocab(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def chat(self, messages: list[dict[str, Any]]) -> list[int]: ...

    def stream(self) -> Stream: ...


class Ask(NamedTuple):
    """One request. prompts: token ids, one answer each. stops: strings that end the text and are not part of it."""

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    sampling: Sampling
    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    stream: bool
    usage: bool
    model: str


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # pads events against eavesdroppers; the text is the same
    continuous_usage_stats: Literal[False] | None = None


class _Common(msgspec.Struct, forbid_unknown_fields=True):
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    # Served only at the value that changes nothing:
    n: Any = None
    best_of: Any = None
    logprobs: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    repetition_penalty: Any = None
    length_penalty: Any = None
    logit_bias: Any = None
    top_k: Any = None
    min_p: Any = None
    min_tokens: Any = None
    use_beam_search: Any = None
    response_format: Any = None
    echo: Any = None
    # Without influence on the text:
    user: Any = None


class _Completion(_Common):
    prompt: Any = None  # a text, token ids, or a list of either
    suffix: Any = None


class _Chat(_Common):
    messages: list[dict[str, Any]] = []
    max_completion_tokens: int | None = None
    top_logprobs: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    parallel_tool_calls: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}


def read(body: bytes, *, chat: bool, text: Text, limits: Limits, longest: int, vocab: int = 0) -> Ask:
    """A request's body. longest: tokens of prompt and answer together. vocab: 0 = the text's. Raises ApiError 400."""
    vocab = min(vocab or text.vocab, text.vocab)
    given = _decode(body, _Chat if chat else _Completion)
    for name, neutral in _NEUTRAL.items():
        value = getattr(given, name, None)
        if value is not None and not any(type(value) in _kinds(n) and value == n for n in neutral):
            only = " or ".join(map(str, neutral)) or "left out"
            raise ApiError(400, f"{name} is not supported here (only {only})", param=name, code="unsupported_parameter")
    prompts = _messages(given, text) if isinstance(given, _Chat) else _prompts(given, text, limits, vocab)
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, "the prompt is empty", param="messages" if chat else "prompt")
    wanted, name = given.max_tokens, "max_tokens"
    if isinstance(given, _Chat) and given.max_completion_tokens is not None:
        wanted, name = given.max_completion_tokens, "max_completion_tokens"
    stops = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ())
    if len(stops) > limits.stops or not all(0 < len(s) <= limits.stop_characters for s in stops):
        words = f"stop takes up to {limits.stops} strings of 1 to {limits.stop_characters} characters"
        raise ApiError(400, words, param="stop")
    own: frozenset[int] = frozenset() if given.ignore_eos else text.stop_ids
    return Ask(
        chat=chat,
        prompts=prompts,
        max_tokens=tuple(_room(len(p), wanted, name, chat, limits, longest) for p in prompts),
        sampling=_sampling(given),
        stops=stops,
        stop_ids=own | frozenset(_ids(given.stop_token_ids or [], vocab, "stop_token_ids")),
        stream=bool(given.stream),
        usage=bool(given.stream_options and given.stream_options.include_usage),
        model=given.model,
    )


def _kinds(neutral: Any) -> tuple[type, ...]:
    # 1.0 for 1 is fine, true for 1 is not.
    return (int, float) if type(neutral) is int else (type(neutral),)


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        words = str(error)
        if "unknown field" in words:
            field = words.split("`")[1]
            raise ApiError(400, f"unknown parameter {field}", param=field, code="unknown_parameter") from None
        reason, _, place = words.partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        raise ApiError(400, f"{field}: {reason}" if field else reason, param=field or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None


def _prompts(given: _Completion, text: Text, limits: Limits, vocab: int) -> tuple[tuple[int, ...], ...]:
    prompt = given.prompt
    if not isinstance(prompt, str | list) or prompt == []:
        raise ApiError(400, "prompt is a text, a list of token ids, or a list of either", param="prompt")
    many = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    if len(many) > limits.prompts:
        raise ApiError(400, f"{len(many)} prompts in one request; at most {limits.prompts}", param="prompt")
    return tuple(tuple(_encode(p, text) if isinstance(p, str) else _ids(p, vocab, "prompt")) for p in many)


def _encode(prompt: str, text: Text) -> list[int]:
    try:
        return text.encode(prompt)
    except InputError as error:
        raise ApiError(400, error.message, param="prompt") from None


def _messages(given: _Chat, text: Text) -> tuple[tuple[int, ...], ...]:
    for number, message in enumerate(given.messages):
        _check_message(message, number)
    try:
        return (tuple(text.chat(given.messages)),)
    except InputError as error:
        words = f"{error.message}; expected {error.expected}" if error.expected else error.message
        raise ApiError(400, words, param=error.where if error.where.startswith("messages") else "messages") from None


def _check_message(message: Mapping[str, Any], number: int) -> None:
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            place = f"messages[{number}].{name}"
            raise ApiError(400, f"{name} is not supported here", param=place, code="unsupported_parameter")


def _ids(ids: Any, vocab: int, name: str) -> list[int]:
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocab for i in ids):
        raise ApiError(400, f"{name}: token ids are whole numbers from 0 to {vocab - 1}", param=name)
    return ids


def _room(prompt: int, wanted: int | None, name: str, chat: bool, limits: Limits, longest: int) -> int:
    room = min(longest - prompt, limits.max_tokens)
    if wanted is not None and not 1 <= wanted <= limits.max_tokens:
        raise ApiError(400, f"{name} is {wanted}; 1 to {limits.max_tokens} are served", param=name)
    if prompt + (wanted or 1) > longest:
        words = f"the model takes {longest} tokens: {prompt} of the prompt and {wanted or 1} of the answer are more"
        raise ApiError(400, words, param="messages" if chat else "prompt", code="context_length_exceeded")
    if wanted is not None:
        return wanted
    return room if chat else min(room, 16)  # 16 is the API's own default for completions


def _sampling(given: _Common) -> Sampling:
    temperature = 1.0 if given.temperature is None else given.temperature
    top_p = 1.0 if given.top_p is None else given.top_p
    if not 0.0 <= temperature <= 2.0:
        raise ApiError(400, f"temperature is {temperature}; 0 to 2 are served", param="temperature")
    if not 0.0 < top_p <= 1.0:
        raise ApiError(400, f"top_p is {top_p}; above 0, up to 1 are served", param="top_p")
    if given.seed is not None and not -(1 << 63) <= given.seed < 1 << 63:
        raise ApiError(400, "seed is beyond 64 bits", param="seed")
    # A draw of our own when none is given, so that a retried request goes on as it began.
    seed = secrets.randbits(63) if given.seed is None else given.seed & ((1 << 63) - 1)
    return Sampling(temperature=temperature, top_p=top_p, seed=seed)
