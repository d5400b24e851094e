"""The one way a command fails: a sentence on stderr and an exit code (design, section 5)."""

from enum import IntEnum


class Exit(IntEnum):
    """What a finished command says to the shell."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNHEALTHY = 3
    NOT_FOUND = 4
    PROBLEMS = 5


class CliError(Exception):
    """A command cannot do what was asked; the text is a sentence for the person who asked."""

    def __init__(self, sentence: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(sentence)
        self.code = code
