"""Retries of requests until a total deadline.

A `RetryableError` is followed by another attempt after a jittered exponential pause (tenacity).
If any attempt may have taken effect and none was confirmed, the final error is `OutcomeUnknown`,
whatever the last attempt returned. Read-only requests end with the last attempt's error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from ..proto import v2
from .clock import steady_s
from .errors import CometError, ConnectionFailed, OutcomeUnknown, TlsFailed, WrongServer, refused

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
#: Limit for requests that fail immediately; the pauses alone would allow more attempts.
ATTEMPTS_MAX = 1_000
#: Least timeout of an attempt, even if the deadline is nearer.
SHORTEST_TRY_S = 0.1
#: gRPC status codes that are permanent.
_REFUSALS = {
    "UNIMPLEMENTED": v2.NOT_IMPLEMENTED,
    "UNAUTHENTICATED": v2.UNAUTHORIZED,
    "PERMISSION_DENIED": v2.FORBIDDEN,
    "INVALID_ARGUMENT": v2.BAD_REQUEST,
}
_NEVER_SENT = ("failed to connect", "dns resolution failed", "channel is closed")
_UNKNOWN_AUTHORITY = "certificate_verify_failed"
_PLAINTEXT = "wrong_version_number"
_HTTP_1 = "http1.x server"

T = TypeVar("T")


class RetryableError(Exception):
    """An attempt failed and may be repeated. `cause` is the error to raise after the last one."""

    def __init__(self, cause: CometError, *, maybe_done: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.maybe_done = maybe_done


async def until_done(
    once: Callable[[float], Awaitable[T]],
    budget_s: float,
    message_id: str = "",
    *,
    read_only: bool = False,
) -> T:
    """Call `once` with the seconds left until it returns or raises something else than
    RetryableError, or until the budget is used up.

    Raises OutcomeUnknown when an attempt may have been executed (unless `read_only`), else the
    last attempt's cause.
    """
    end_s = steady_s() + budget_s
    maybe_done = False

    async def attempt() -> T:
        nonlocal maybe_done
        try:
            return await once(max(end_s - steady_s(), SHORTEST_TRY_S))
        except RetryableError as error:
            maybe_done = maybe_done or (error.maybe_done and not read_only)
            raise
        except OutcomeUnknown:
            raise
        except CometError as error:
            if maybe_done:  # this attempt was refused, an earlier one may have been executed
                raise _outcome_unknown(error, message_id) from error
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
        raise _outcome_unknown(last.cause, message_id) from last.cause
    raise last.cause


def _outcome_unknown(cause: CometError, message_id: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the request may have taken effect: {cause}", message_id)


def wrong_server(text: str) -> WrongServer:
    """Return the exception for an answer of another server."""
    return WrongServer(f"{text} (name the client port of a broker or proxy, by default 8081)")


def call_error(target: object, code: str, details: str) -> RetryableError | CometError:
    """Return the exception for a call that ended without a response.

    Permanent gRPC codes and TLS failures are not retryable. Only a call that never connected is
    certain not to have been executed.
    """
    text, lower = f"{target}: {code}: {details}", details.lower()
    if code in _REFUSALS:
        return refused(_REFUSALS[code], text)
    if _UNKNOWN_AUTHORITY in lower:
        return TlsFailed(f"{text} (pass the server's certificate authority as tls_roots)")
    if _PLAINTEXT in lower:
        return TlsFailed(f"{text} (the port speaks plaintext: omit tls=True)")
    if _HTTP_1 in lower:
        return wrong_server(text)
    sent = not any(sign in lower for sign in _NEVER_SENT)
    return RetryableError(ConnectionFailed(text), maybe_done=sent)
