"""Exceptions of the SDK, one class for each reaction that a caller may choose.

    CometError
      ConnectionFailed       no endpoint was reachable in time; the request had no effect
        TlsFailed            the certificate is not trusted, or the port speaks plaintext
        WrongServer          the address is not the client port of a broker or proxy
      OutcomeUnknown         the request may have taken effect: the response was lost, or
                             durability was not confirmed
      Closed, Forked         the client cannot be used (any more)
      RequestRefused         the server refused; `code` and `code_name` are the protocol's
        BadRequest, Unauthorized, Forbidden, NotFound, TooLarge, TooManyRequests, ServerFailed

Codes: docs/formats/grpc-api.md, section 3.2.
"""

from __future__ import annotations

from ..proto.errors import code_name


class CometError(Exception):
    """Base class of the SDK's exceptions."""


class Closed(CometError):
    """The client is closed or was not started. Use it within `async with`."""


class Forked(CometError):
    """The process forked after a client was used. gRPC does not work in the child."""


class ConnectionFailed(CometError):
    """No endpoint was reachable before the deadline. The request had no effect."""


class TlsFailed(ConnectionFailed):
    """The TLS handshake failed: the certificate is not trusted, or the port speaks plaintext."""


class WrongServer(ConnectionFailed):
    """Another server answers at the address: it is not the client port of a broker or proxy."""


class OutcomeUnknown(CometError):
    """The request may or may not have taken effect.

    Repeating a send with the same message id (`message_id=`) may store the message twice unless
    the broker removes duplicates (`messageDeduplicationEnable`).
    """

    def __init__(self, message: str, message_id: str = "") -> None:
        super().__init__(message)
        self.message_id = message_id


class RequestRefused(CometError):
    """The server refused the request with a code other than OK. The request had no effect."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code_name(code)} ({code}): {message}")
        self.code = code
        self.code_name = code_name(code)
        self.message = message


class BadRequest(RequestRefused):
    """The request is invalid. Repeating it fails again."""


class Unauthorized(RequestRefused):
    """The server does not accept the access key or the signature."""


class Forbidden(RequestRefused):
    """The caller is authenticated but lacks the permission."""


class NotFound(RequestRefused):
    """The topic, group, message or offset does not exist."""


class TooLarge(RequestRefused):
    """The body or the properties exceed the limit, or the body is empty."""


class TooManyRequests(RequestRefused):
    """The server is overloaded. Send more slowly."""


class ServerFailed(RequestRefused):
    """The server failed to execute the request."""


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
    """Return the exception for a status code of the protocol."""
    return _BY_HUNDRED.get(code // 100, ServerFailed)(code, message)
