"""The supervisor's parts: the book of owners, the router, the rules, the mailbox."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.core.errors import InputError, InternalError
from linkwise.supervise.mailbox import Mailbox
from linkwise.supervise.ownership import Book
from linkwise.supervise.router import Router
from linkwise.supervise.rules import Rules


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["admit", "give", "back", "end", "event"]), st.integers(0, 4)), max_size=60))
def test_whatever_happens_a_request_has_one_owner_and_ends_once(moves: list[tuple[str, int]]) -> None:
    book, attempts = Book(), []
    ended = 0
    for number, (move, which) in enumerate(moves):
        id = f"r{which}"
        live = id in book
        owner = book.owner(id) if live else None
        if move == "admit" and not live:
            book.admit(id)
        elif move == "give" and live and owner is None:
            attempts.append(book.give(id, f"u{number % 2}"))
        elif move == "back" and owner is not None:
            book.take_back(owner)
        elif move == "end" and live:
            book.end(id, "length")
            ended += 1
        book.check()
        assert sum(book.owns(a) for a in attempts) == len(book) - book.queued()
    assert book.admitted - ended == len(book)
    assert sum(book.over.values()) == ended


def test_moves_that_cannot_be_are_bugs() -> None:
    book = Book()
    with pytest.raises(InternalError):
        book.give("r", "u")
    book.admit("r")
    with pytest.raises(InternalError):
        book.admit("r")
    attempt = book.give("r", "u")
    assert attempt.retry == 0
    with pytest.raises(InternalError):
        book.give("r", "v")
    book.take_back(attempt)
    with pytest.raises(InternalError):
        book.take_back(attempt)
    again = book.give("r", "u")
    assert again.retry == 1
    assert not book.owns(attempt)
    assert again.job != attempt.job
    book.end("r", "stop")
    with pytest.raises(InternalError):
        book.end("r", "stop")
    assert not book.owns(again)


def test_a_known_beginning_decides_until_it_would_overload() -> None:
    router = Router(["a", "b"])
    prompt = list(range(64))
    hashes = router.hashes(prompt)
    assert len(hashes) == 4
    first = router.pick({"a": 0, "b": 0}, hashes)
    other = "b" if first == "a" else "a"
    # 64 tokens are saved: worth being behind by 63, not by 65.
    assert router.pick({first: 63, other: 0}, hashes) == first
    assert router.hits == 1
    assert router.known(first, router.hashes([*prompt[:40], 9, 9, 9, 9, 9, 9, 9, 9])) == 32
    assert router.pick({first: 65, other: 0}, hashes) == other
    router.forget(first)
    assert router.known(first, hashes) == 0


def test_equals_take_turns_and_memory_is_bounded() -> None:
    router = Router(["a", "b", "c"], known=8)
    load = dict.fromkeys("abc", 0)
    assert sorted(router.pick(load, ()) for _ in range(3)) == ["a", "b", "c"]
    for number in range(100):
        router.pick(load, router.hashes([number] * 64))
    assert max(len(seen) for seen in router._known.values()) <= 8
    assert Router(["a"]).hashes([1] * 64) == ()


def test_rules_are_checked_and_pauses_double() -> None:
    rules = Rules(backoff_s=1.0, backoff_most_s=5.0)
    assert [rules.backoff(n) for n in (1, 2, 3, 4, 10_000)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    with pytest.raises(InputError, match="wait_s"):
        Rules(wait_s=float("nan"))
    with pytest.raises(InputError, match="retries"):
        Rules(retries=-1)


def test_a_mailbox_outlives_a_bug_and_keeps_time() -> None:
    errors: list[Exception] = []
    mailbox, done, order = Mailbox("m", errors.append), threading.Event(), []
    mailbox.start()
    mailbox.after(0.03, done.set)
    mailbox.after(0.01, lambda: order.append("timed"))
    mailbox.post(lambda: 1 // 0)
    mailbox.post(lambda: order.append("posted"))
    assert done.wait(5)
    mailbox.close()
    mailbox.close()
    assert order == ["posted", "timed"]
    assert [type(e) for e in errors] == [ZeroDivisionError]
