"""Signatures of calls, of the gRPC and of the remoting protocol: HMAC-SHA1. Pure.

The header `authorization` of a gRPC call has the algorithm MQv2-HMAC-SHA1:

    MQv2-HMAC-SHA1 Credential=<user>[/<region>/<service>], SignedHeaders=x-mq-date-time,
    Signature=<hex of HMAC-SHA1(secret, x-mq-date-time)>

The hex digits have either case. Only the exact text of `x-mq-date-time` is signed
(docs/formats/grpc-api.md, section 2.3). The sentences are the reference's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from ..proto import v2
from ..proto.errors import WireError

ALGORITHM = "MQv2-HMAC-SHA1"
AUTHORIZATION = "authorization"
DATE_TIME = "x-mq-date-time"
_COMPACT = re.compile(r"\d{8}T\d{6}Z")
#: The time zones of the world: whole hours, and those with a part of one.
_ZONES_MS = tuple(
    int(hours * 3_600_000)
    for hours in (
        *range(-12, 15),
        *(-9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75),
    )
)


def unauthorized(sentence: str) -> WireError:
    """Return the error of a call that may not be made."""
    return WireError(v2.UNAUTHORIZED, sentence)


class Credential(Struct, frozen=True):
    """The content of an `authorization` header."""

    user: str
    signature: bytes


def parse_authorization(header: str) -> Credential:
    """Parse the header. Raises WireError."""
    _, space, rest = header.partition(" ")
    if not space:
        raise unauthorized("authentication header is incorrect.")
    pairs = (part.strip().partition("=") for part in rest.split(","))
    fields = {key: value for key, _, value in pairs}
    try:
        signature = bytes.fromhex(fields["Signature"])
        user = fields["Credential"].partition("/")[0]
    except (KeyError, ValueError):
        raise unauthorized("authentication header is incorrect.") from None
    if not user:
        raise unauthorized("username cannot be null.")
    return Credential(user, signature)


def sign_command(secret: bytes, values: Iterable[str], body: bytes) -> bytes:
    """Return the signature of a remoting command: over the values of its fields, and its body."""
    return hmac.digest(secret, "".join(values).encode() + body, hashlib.sha1)


def sign(secret: bytes, date_time: str) -> bytes:
    """Return the signature of the text of `x-mq-date-time`."""
    return hmac.digest(secret, date_time.encode(), hashlib.sha1)


def is_signed(credential: Credential, secret: bytes, date_time: str) -> bool:
    """Return whether the signature was made with `secret`; compares in constant time."""
    return hmac.compare_digest(sign(secret, date_time), credential.signature)


def authorization(user: str, secret: str, date_time: str) -> str:
    """Return the header of a client."""
    digest = sign(secret.encode(), date_time).hex()
    return f"{ALGORITHM} Credential={user}, SignedHeaders={DATE_TIME}, Signature={digest}"


def signed_ms(date_time: str) -> int | None:
    """Return the time of `x-mq-date-time`, or None for a format that no client sends.

    Java, Python, Go and C# send their local time with a literal Z: it is read as UTC.
    """
    try:
        if _COMPACT.fullmatch(date_time):
            moment = datetime.strptime(date_time + "+0000", "%Y%m%dT%H%M%SZ%z")
        else:
            moment = datetime.fromisoformat(date_time)
        return None if moment.tzinfo is None else int(moment.timestamp() * 1_000)
    except (ValueError, OverflowError):
        return None


def made_ms(date_time: str, now_ms: int, *, local: bool) -> int | None:
    """Return the time in ms at which a client made a signature with this `x-mq-date-time`; None as
    for `signed_ms`.

    `local`: the compact form names no time zone. Of the zones of the world the function takes the
    one in which the time is nearest to `now_ms`.
    """
    read_ms = signed_ms(date_time)
    if read_ms is None or not local or not _COMPACT.fullmatch(date_time):
        return read_ms
    return min((read_ms - zone for zone in _ZONES_MS), key=lambda made: abs(made - now_ms))
