"""Hooks around sends and deliveries: for metrics, tracing, auditing.

An interceptor has any of these methods; they are called in order, must not wait, and what they raise
is raised to the caller, because a broken hook should be seen:

    sending(message)                 the protocol's message, before it is sent; may add properties
    sent(message, result)            with its receipt or its error
    received(message)                a `Message`, before the application sees it
    handling(message)                before a push consumer's handler
    handled(message, error)          after a push consumer's handler, with what it raised or None
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Interceptor(Protocol):
    """Everything is optional; this class exists for its name."""


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether a user's function is to be awaited; also an object whose call is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def call_all(interceptors: Iterable[Interceptor], hook: str, *arguments: Any) -> None:
    """Call the hook of everyone who has it."""
    for interceptor in interceptors:
        method = getattr(interceptor, hook, None)
        if method is not None:
            method(*arguments)
