"""`SqlError`: an invalid filter expression."""

from __future__ import annotations


class SqlError(Exception):
    """An invalid expression; `position` counts characters from 1."""

    def __init__(self, position: int, sentence: str) -> None:
        super().__init__(f"{sentence} (at position {position})")
        self.position = position
        self.sentence = sentence
