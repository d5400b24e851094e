"""Hooks around sends and deliveries: for metrics, tracing, auditing.

An interceptor has any of these methods. They are called in order and must not block. Their
exceptions propagate to the caller.

    sending(message)                 before a send, with the protobuf message; may add properties,
                                     but not change the message after it returned
    sent(message, result)            after a send, with the receipt or the exception
    received(message)                before the application gets a `Message`
    handling(message)                before a push consumer's handler
    handled(message, error)          after a push consumer's handler, with its exception or None
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Interceptor(Protocol):
    """Type of an interceptor. Every hook is optional, so the protocol has no members."""


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether a user's function, or the `__call__` of a user's object, must be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def call_all(interceptors: Iterable[Interceptor], hook: str, *arguments: Any) -> None:
    """Call `hook` of every interceptor that has it."""
    for interceptor in interceptors:
        method = getattr(interceptor, hook, None)
        if method is not None:
            method(*arguments)
