"""Caching by identity: for values whose hash would cost more than what is cached."""

from typing import Generic, TypeVar

T = TypeVar("T")


class ById(Generic[T]):
    """A key that is equal only to the same object. It keeps the object alive, so its identity is not used again."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and other.value is self.value


class ByValue(Generic[T]):
    """A key for a value without a hash (it holds dicts), in caches of a few entries: equal values are the same key."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and bool(other.value == self.value)
