"""What can go wrong, as exceptions that say what the caller may do about it.

    CometError
      ConnectionFailed       nobody could be reached in time; nothing was done
      OutcomeUnknown         it may have been done: the answer was lost, or durability was not confirmed
      Closed, Forked         the client cannot be used (any more)
      RequestRefused         the server's answer; `code` and `code_name` are the protocol's
        BadRequest, Unauthorized, Forbidden, NotFound, TooLarge, TooManyRequests, ServerFailed

Codes: gRPC API, section 3.2.
"""

from __future__ import annotations

from ..proto.errors import code_name


class CometError(Exception):
    """Everything that this client raises."""


class Closed(CometError):
    """The client was closed, or never started: use it within `async with`."""


class Forked(CometError):
    """The process forked after a client was used: its gRPC does not live on in the child."""


class ConnectionFailed(CometError):
    """Nobody could be reached before the deadline, and nothing was done."""


class OutcomeUnknown(CometError):
    """The request may or may not have taken effect.

    A send that is repeated with the same message id (`message_id=`) may store the message twice,
    unless the broker removes duplicates (`messageDeduplicationEnable`).
    """

    def __init__(self, message: str, message_id: str = "") -> None:
        super().__init__(message)
        self.message_id = message_id


class RequestRefused(CometError):
    """The server answered with a code that is not OK; nothing was done."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code_name(code)} ({code}): {message}")
        self.code = code
        self.code_name = code_name(code)
        self.message = message


class BadRequest(RequestRefused):
    """Something about the request is wrong; sent again, it fails again."""


class Unauthorized(RequestRefused):
    """The access key or the signature is not accepted."""


class Forbidden(RequestRefused):
    """Known, and not allowed."""


class NotFound(RequestRefused):
    """The topic, group, message or offset does not exist."""


class TooLarge(RequestRefused):
    """Body or properties beyond the limit, or an empty body."""


class TooManyRequests(RequestRefused):
    """The server is busy: slower."""


class ServerFailed(RequestRefused):
    """The server could not do it now."""


_BY_HUNDRED: dict[int, type[RequestRefused]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    413: TooLarge,
    428: BadRequest,
    429: TooManyRequests,
    431: TooLarge,
}


def refused(code: int, message: str) -> RequestRefused:
    """The exception of an answer's status."""
    return _BY_HUNDRED.get(code // 100, ServerFailed)(code, message)
