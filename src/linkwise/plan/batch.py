"""The tokens of one engine step: which requests, how many new tokens each, after how much cached context."""

from typing import NamedTuple

from linkwise.core.quantity import Num, ceil_div, times, total


class Part(NamedTuple):
    """Requests of a step that are alike: `requests` of them, each with `new` tokens after `context` cached ones.

    prompt: the new tokens are a prompt's, which cp splits; a decode token is on every cp rank.
    """

    requests: Num
    new: Num
    context: Num
    prompt: bool = False

    @property
    def tokens(self) -> Num:
        return times(self.requests, self.new)


class Batch(NamedTuple):
    """The batch of one step of one attention replica. kind: prefill, decode or mixed. sampled: rows with logits.

    everyone: tokens of all attention replicas, where they hold unlike loads; None = each has those of this one.
    """

    kind: str
    parts: tuple[Part, ...]
    sampled: Num
    everyone: Num | None = None

    @property
    def tokens(self) -> Num:
        return total(p.tokens for p in self.parts)

    def rank_tokens(self, cp: int) -> Num:
        """Tokens on one rank of an attention replica: each prompt is split over cp, decode tokens are not."""
        return total(times(p.requests, ceil_div(p.new, cp)) if p.prompt and cp > 1 else p.tokens for p in self.parts)


def decode_batch(requests: Num, context: Num, *, new: Num = 1) -> Batch:
    """Every request draws its next token (`new` of them with speculative decoding)."""
    return Batch("decode", (Part(requests, new, context),), times(requests, new))


def prefill_batch(tokens: Num, context: Num = 0, *, sampled: Num = 1) -> Batch:
    """One prompt chunk of `tokens` after `context` cached ones."""
    return Batch("prefill", (Part(1, tokens, context, prompt=True),), sampled)


def mixed_batch(chunk: Num, requests: Num, context: Num, *, new: Num = 1, cached: Num = 0) -> Batch:
    """A prompt chunk after `cached` tokens, next to decoding requests: tokens add up, calls do not."""
    parts = Part(1, chunk, cached, prompt=True), Part(requests, new, context)
    return Batch("mixed", parts, times(requests, new) + 1)
