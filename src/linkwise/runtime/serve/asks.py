"""Requests at the door: bytes of the network become an `Ask`, or an error that names the field.

A field that would change the answer in a way we do not serve is refused by name, never ignored. Fields that leave the
answer as it is (who asks, how it is billed) are taken and not used.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from linkwise.core.errors import InputError
from linkwise.runtime.serve.errors import ApiError
from linkwise.runtime.serve.limits import Limits
from linkwise.runtime.template import Unanswered
from linkwise.supervise.types import Sampling

_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class Stream(Protocol):
    """What a detokeniser does."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class Text(Protocol):
    """What the server needs of a tokenizer; see runtime/text.py."""

    stop_ids: frozenset[int]

    @property
    def vocab(self) -> int: ...

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...

    def at_least(self, text: str) -> int: ...

    def written(self, messages: list[dict[str, Any]]) -> str: ...

    def stream(self) -> Stream: ...


class Ask(NamedTuple):
    """One request. prompts: token ids, one answer each, and how each is drawn.

    stops: strings that end the text and are not part of it.
    """

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    sampling: tuple[Sampling, ...]
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


def read(
    body: bytes, *, chat: bool, text: Text, limits: Limits, longest: int, model: str = "", most: int = 0, vocab: int = 0
) -> Ask:
    """A request's body. Raises ApiError: 404 for another model's name, 503 when nothing fills in templates, else 400.

    longest: tokens of prompt and answer together. model: what is served; "" = whatever is asked for. most: prompts of
    one request, 0 = the limits'. vocab: 0 = the text's.
    """
    vocab = min(vocab or text.vocab, text.vocab)
    given = _decode(body, _Chat if chat else _Completion)
    for name, neutral in _NEUTRAL.items():
        value = getattr(given, name, None)
        if value is not None and not any(type(value) in _kinds(n) and value == n for n in neutral):
            only = " or ".join(map(str, neutral)) or "left out"
            raise ApiError(400, f"{name} is not supported here (only {only})", param=name, code="unsupported_parameter")
    known(given.model, model)
    if given.stream_options is not None and not given.stream:
        words = "stream_options is only allowed when stream is true"
        raise ApiError(400, words, param="stream_options")
    wanted, name = given.max_tokens, "max_tokens"
    if isinstance(given, _Chat) and given.max_completion_tokens is not None:
        wanted, name = given.max_completion_tokens, "max_completion_tokens"
    if wanted is not None and not 1 <= wanted <= limits.max_tokens:
        raise ApiError(400, f"{name} is {wanted}; 1 to {limits.max_tokens} are served", param=name)
    stops = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ())
    if len(stops) > limits.stops or not all(0 < len(s) <= limits.stop_characters for s in stops):
        words = f"stop takes up to {limits.stops} strings of 1 to {limits.stop_characters} characters"
        raise ApiError(400, words, param="stop")
    own: frozenset[int] = frozenset() if given.ignore_eos else text.stop_ids
    stop_ids = own | frozenset(_ids(given.stop_token_ids or [], vocab, "stop_token_ids"))
    _check_sampling(given)
    # All that costs nothing has been looked at; from here on texts become tokens.
    room = _Room(longest, wanted or 1, "messages" if chat else "prompt")
    if isinstance(given, _Chat):
        prompts: tuple[tuple[int, ...], ...] = (_messages(given, text, room),)
    else:
        prompts = _prompts(given, text, room, limits, most, vocab)
    new = [min(longest - len(prompt), limits.max_tokens) for prompt in prompts]
    if wanted is not None or not chat:  # 16 is the API's own default for completions
        new = [wanted or min(n, 16) for n in new]
    return Ask(
        chat=chat,
        prompts=prompts,
        max_tokens=tuple(new),
        sampling=tuple(_sampling(given) for _ in prompts),
        stops=stops,
        stop_ids=stop_ids,
        stream=bool(given.stream),
        usage=bool(given.stream_options and given.stream_options.include_usage),
        model=given.model,
    )


def known(asked: str, model: str) -> None:
    """Refuse another model's name; none at all is fine."""
    if asked and model and asked != model:
        words = f"the model {asked!r} is not served here; {model!r} is"
        raise ApiError(404, words, param="model", code="model_not_found")


class _Room(NamedTuple):
    """What the model takes: tokens of prompt and answer, of which `new` are the answer's at least. name: the field."""

    longest: int
    new: int
    name: str

    def check(self, tokens: int, *, least: bool = False) -> None:
        """least: the prompt has so many or more."""
        if not tokens and not least:
            raise ApiError(400, "the prompt is empty", param=self.name)
        if tokens + self.new > self.longest:
            many = f"{tokens} or more" if least else f"{tokens}"
            words = f"the model takes {self.longest} tokens: {many} of the prompt and {self.new} of the answer are more"
            raise ApiError(400, words, param=self.name, code="context_length_exceeded")


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
        at = _lone_surrogate(body)
        words = f"the escape at byte {at} is half of a surrogate pair, which is no character" if at >= 0 else str(error)
        raise ApiError(400, f"the body is not valid JSON: {words}") from None


def _lone_surrogate(body: bytes) -> int:
    """Where the first escape of half a pair stands, -1 = nowhere; the decoder tells it as a body that is cut."""
    first: re.Match[bytes] | None = None
    for one in _ESCAPE.finditer(body):
        code = int(one[1], 16) if one[1] else 0
        second = 0xDC00 <= code < 0xE000
        if first is not None and not (second and one.start() == first.end()):
            return first.start()
        if first is None and second:
            return one.start()
        first = one if 0xD800 <= code < 0xDC00 else None
    return first.start() if first is not None and first.end() < len(body) else -1


def _prompts(
    given: _Completion, text: Text, room: _Room, limits: Limits, most: int, vocab: int
) -> tuple[tuple[int, ...], ...]:
    prompt = given.prompt
    if not isinstance(prompt, str | list) or prompt == []:
        raise ApiError(400, "prompt is a text, a list of token ids, or a list of either", param="prompt")
    many = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    if len(many) > limits.prompts:
        raise ApiError(400, f"{len(many)} prompts in one request; at most {limits.prompts}", param="prompt")
    if most and len(many) > most:
        words = f"{len(many)} prompts in one request; at most {most} requests may wait here, and each counts as one"
        raise ApiError(400, words, param="prompt")
    for one in many:  # before the first of them is tokenised
        if isinstance(one, str):
            room.check(text.at_least(one), least=True)
        elif isinstance(one, list):
            room.check(len(one))
            _ids(one, vocab, "prompt")
        else:
            raise ApiError(400, "prompt is a text, a list of token ids, or a list of either", param="prompt")
    return tuple(_encoded(p, text, room) if isinstance(p, str) else tuple(p) for p in many)


def _encoded(prompt: str, text: Text, room: _Room, *, special: bool = True) -> tuple[int, ...]:
    """A text's tokens. A text that cannot fit is refused before it costs the tokenizer any time."""
    room.check(text.at_least(prompt), least=True)
    try:
        tokens = tuple(text.encode(prompt, special=special))
    except InputError as error:
        raise ApiError(400, error.message, param=room.name) from None
    room.check(len(tokens))
    return tokens


def _messages(given: _Chat, text: Text, room: _Room) -> tuple[int, ...]:
    for number, message in enumerate(given.messages):
        _check_message(message, number)
    try:
        written = text.written(given.messages)
    except InputError as error:
        words = f"{error.message}; expected {error.expected}" if error.expected else error.message
        raise ApiError(400, words, param=error.where if error.where.startswith("messages") else "messages") from None
    except Unanswered as error:
        raise ApiError(503, error.message, retry_s=1.0) from None
    # The template writes the start token itself where the model wants one.
    return _encoded(written, text, room, special=False)


# The roles of the OpenAI API; what a template makes of one is the model's matter.
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def _check_message(message: Mapping[str, Any], number: int) -> None:
    if message.get("role") not in _ROLES:
        said = f"role {message['role']!r}"[:80] if "role" in message else "no role"
        raise ApiError(400, f"{said}; one of {', '.join(_ROLES)} is served", param=f"messages[{number}].role")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            place = f"messages[{number}].{name}"
            raise ApiError(400, f"{name} is not supported here", param=place, code="unsupported_parameter")


def _ids(ids: Any, vocab: int, name: str) -> list[int]:
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocab for i in ids):
        raise ApiError(400, f"{name}: token ids are whole numbers from 0 to {vocab - 1}", param=name)
    return ids


def _check_sampling(given: _Common) -> None:
    if given.temperature is not None and not 0.0 <= given.temperature <= 2.0:
        raise ApiError(400, f"temperature is {given.temperature}; 0 to 2 are served", param="temperature")
    if given.top_p is not None and not 0.0 < given.top_p <= 1.0:
        raise ApiError(400, f"top_p is {given.top_p}; above 0, up to 1 are served", param="top_p")
    if given.seed is not None and not -(1 << 63) <= given.seed < 1 << 63:
        raise ApiError(400, f"seed is {given.seed}; from -2^63 to 2^63-1 are served", param="seed")


def _sampling(given: _Common) -> Sampling:
    """How one prompt's answer is drawn. Without a seed each gets one of its own, kept so that a retry goes on as it
    began; a seed that is given holds for all of them."""
    return Sampling(
        temperature=1.0 if given.temperature is None else given.temperature,
        top_p=1.0 if given.top_p is None else given.top_p,
        seed=secrets.randbits(64) if given.seed is None else given.seed % (1 << 64),
    )
