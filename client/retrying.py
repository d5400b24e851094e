"""How often and how long a request is tried, by one rule.

A first attempt costs nothing extra. What fails in a way that may pass (`RetryableError`) is repeated with
tenacity's jittered exponential pauses until the total deadline. Promises: when any attempt may have
taken effect and none was confirmed, the end is `OutcomeUnknown`, never a plain failure, whatever the
last try's answer was; only questions, which change nothing, end with their plain failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from ..proto import v2
from .clock import steady_s
from .errors import CometError, ConnectionFailed, OutcomeUnknown, refused

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
# Pauses alone would allow more; a request that fails at once in a loop must end some time.
ATTEMPTS_MAX = 1_000
SHORTEST_TRY_S = 0.1
"""What a last try gets when the deadline is nearer than that."""
_REFUSALS = {
    "UNIMPLEMENTED": v2.NOT_IMPLEMENTED,
    "UNAUTHENTICATED": v2.UNAUTHORIZED,
    "PERMISSION_DENIED": v2.FORBIDDEN,
    "INVALID_ARGUMENT": v2.BAD_REQUEST,
}
"""gRPC's own codes that no repetition changes."""
_NEVER_SENT = ("failed to connect", "dns resolution failed", "channel is closed")
_STRANGER = "certificate_verify_failed"

T = TypeVar("T")


class RetryableError(Exception):
    """The attempt failed, another one may not. `cause` is what to raise when there is none."""

    def __init__(self, cause: CometError, *, maybe_done: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.maybe_done = maybe_done


async def until_done(
    once: Callable[[float], Awaitable[T]],
    budget_s: float,
    message_id: str = "",
    *,
    harmless: bool = False,
) -> T:
    """Call `once` with the seconds that are left, until it returns, raises anything but `RetryableError`, or
    the budget is used up.

    Raises OutcomeUnknown when an attempt may have been executed (unless it was `harmless`), else the
    last attempt's cause.
    """
    end_s = steady_s() + budget_s
    maybe_done = False

    async def attempt() -> T:
        nonlocal maybe_done
        try:
            return await once(max(end_s - steady_s(), SHORTEST_TRY_S))
        except RetryableError as error:
            maybe_done = maybe_done or (error.maybe_done and not harmless)
            raise
        except OutcomeUnknown:
            raise
        except CometError as error:
            if maybe_done:  # this try was refused, and one before it may have been executed
                raise OutcomeUnknown(f"it may have been done: {error}", message_id) from error
            raise

    try:
        return await attempt()
    except RetryableError as error:
        last = error
    if (left_s := end_s - steady_s()) > 0:
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(RetryableError),
            stop=tenacity.stop_before_delay(left_s) | tenacity.stop_after_attempt(ATTEMPTS_MAX),
            wait=tenacity.wait_random_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            reraise=True,
        )
        try:
            return await attempts(attempt)
        except RetryableError as error:
            last = error
    if maybe_done:
        raise OutcomeUnknown(f"it may have been done: {last.cause}", message_id) from last.cause
    raise last.cause


def lost(target: object, code: str, details: str) -> RetryableError | CometError:
    """What to raise for a call that ended without an answer.

    Only a failed dial is sure not to have been executed; what no repetition changes is said at once.
    """
    text, lower = f"{target}: {code}: {details}", details.lower()
    if code in _REFUSALS:
        return refused(_REFUSALS[code], text)
    if _STRANGER in lower:
        return ConnectionFailed(f"{text} (give its authority as tls_roots)")
    sent = not any(sign in lower for sign in _NEVER_SENT)
    return RetryableError(ConnectionFailed(text), maybe_done=sent)
