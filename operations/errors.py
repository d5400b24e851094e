"""Errors of operations: a sentence for the operator, and the exit code of a command."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNHEALTHY = 3
    NOT_FOUND = 4
    PROBLEMS = 5


class CliError(Exception):
    """An operation failed; the text is a sentence for the operator."""

    def __init__(self, sentence: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class NotServedError(CliError):
    """The node does not have the called method: it is of an earlier version, or no broker."""


class ForbiddenError(CliError):
    """The node refuses the call to this user, or in this state."""
