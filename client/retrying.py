"""How often and how long a request is tried, by one rule.

A first attempt costs nothing extra. What fails in a way that may pass (`Again`) is repeated with
tenacity's jittered exponential pauses until the total deadline. Promises: when any attempt may have
taken effect and none was confirmed, the end is `OutcomeUnknown`, never a plain failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from .errors import CometError, ConnectionFailed, OutcomeUnknown

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
# Pauses alone would allow more; a request that fails at once in a loop must end some time.
ATTEMPTS_MAX = 1_000

T = TypeVar("T")


class Again(Exception):
    """The attempt failed, another one may not. `cause` is what to raise when there is none."""

    def __init__(self, cause: CometError, *, maybe_done: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.maybe_done = maybe_done


async def until_done(once: Callable[[], Awaitable[T]], budget_s: float, message_id: str = "") -> T:
    """Call `once` until it returns, raises anything but `Again`, or the budget is used up.

    Raises OutcomeUnknown when an attempt may have been executed, else the last attempt's cause.
    """
    try:
        return await once()
    except Again as error:
        first = error
    maybe_done = first.maybe_done
    last = first
    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Again),
        stop=tenacity.stop_before_delay(budget_s) | tenacity.stop_after_attempt(ATTEMPTS_MAX),
        wait=tenacity.wait_random_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S),
        reraise=True,
    )
    try:
        async for attempt in attempts:
            with attempt:
                try:
                    return await once()
                except Again as error:
                    maybe_done = maybe_done or error.maybe_done
                    raise
    except Again as error:
        last = error
    if maybe_done:
        raise OutcomeUnknown(f"it may have been done: {last.cause}", message_id) from last.cause
    raise last.cause


def lost(target: object, code: str, details: str) -> Again:
    """A call that ended without an answer. Only a failed dial is sure not to have been executed."""
    text = f"{target}: {code}: {details}"
    return Again(ConnectionFailed(text), maybe_done="failed to connect" not in details.lower())
