"""Quotas of users and topics, and the token bucket that limits a rate. Pure.

A bucket starts full with one second's worth. It admits a request while it is not empty, and the
request may take more than there is: a request larger than a second's worth passes, and the next
ones wait until the debt is paid. So at most `rate * seconds + rate` plus one request pass in any
period.
"""

from __future__ import annotations

from msgspec import Struct

from .model import TOPIC, ResourcePattern, check_user_name

USER = "User"
_NS_PER_S = 1_000_000_000


class Quota(Struct, frozen=True):
    """Limits of one user or topic; 0: no limit."""

    #: `User:NAME`, `Topic:NAME`; `User:*`, `Topic:*`: of each user or topic without its own.
    subject: str
    #: Messages sent a second.
    messages: int = 0
    #: Bytes of the SendMessage requests a second.
    bytes: int = 0
    #: Clients with a Telemetry stream.
    connections: int = 0
    #: Waiting receives.
    polls: int = 0
    #: Bytes in the log: of the topic, or of the topics that the user may send to.
    stored: int = 0


#: Names of the limits.
LIMITS = tuple(name for name in Quota.__struct_fields__ if name != "subject")


def parse_subject(text: str) -> str:
    """Return the subject in its usual form. Raises ValueError."""
    kind, _, name = text.partition(":")
    if kind.lower() == USER.lower() and name:
        if name != "*":
            check_user_name(name)
        return f"{USER}:{name}"
    if kind.lower() == TOPIC.lower():
        pattern = ResourcePattern.parse(text)
        if pattern.kind == TOPIC and (not pattern.prefix or not pattern.name):
            return str(pattern)
    raise ValueError(f"subject '{text}' is invalid: use User:NAME, User:*, Topic:NAME or Topic:*")


class TokenBucket:
    """Limits a rate; the time only moves forward."""

    __slots__ = ("_level", "_now_ns", "rate")

    def __init__(self, rate: int, now_ns: int) -> None:
        """`rate` is a number a second, above 0."""
        self.rate = rate
        #: In units of a billionth, so that a nanosecond adds `rate`.
        self._level = rate * _NS_PER_S
        self._now_ns = now_ns

    def admits(self, now_ns: int) -> bool:
        """Return whether a request may take from the bucket now."""
        if now_ns > self._now_ns:
            full = self.rate * _NS_PER_S
            self._level = min(full, self._level + (now_ns - self._now_ns) * self.rate)
            self._now_ns = now_ns
        return self._level > 0

    def take(self, count: int) -> None:
        """Take what an admitted request needs."""
        self._level -= count * _NS_PER_S
