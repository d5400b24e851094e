"""Numbers seen through a key, for `bisect`: which unit of a queue is the first one that ..."""

from collections.abc import Callable


class Keyed:
    """`key(first)`, `key(first + 1)`, ... up to `end`, each computed when it is asked for."""

    __slots__ = ("_first", "_key", "_length")

    def __init__(self, first: int, end: int, key: Callable[[int], int]) -> None:
        self._first = first
        self._length = max(end - first, 0)
        self._key = key

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return self._key(self._first + index)
