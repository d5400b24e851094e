"""Sessions of a console with a login: the users that are logged in, and the caller as each of them.

A person logs in with a user of the cluster: name and secret key, or a bearer token. Every call of a
request is made with them, so that the brokers decide what it may do; the console keeps them in
memory, until the session ends: by logout, after `IDLE_S` without a request, after `LONGEST_S`, or
when the cluster refuses the user. Nothing is written to disk.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

from ..operations.connection import CLIENT_ID, Caller, Metadata
from ..operations.credentials import Credentials
from ..operations.errors import CliError
from ..operations.links import Links

IDLE_S, LONGEST_S = 1_800, 43_200
#: Sessions of all users, and of one user; a further login ends the oldest one.
SESSIONS_MAX, OF_ONE_MAX = 500, 20
#: A session whose user was checked before is checked again by the next request.
CHECKED_S = 5
_NS = 1_000_000_000


@dataclass(frozen=True)
class BearerToken:
    """A token of an OpenID Connect provider, in the place of a user's secret key."""

    text: str = field(repr=False)
    access_key: str = "a bearer token"

    @cached_property
    def owner(self) -> str:
        """The subject that the token names: verified where the cluster has accepted the token."""
        return f"token of {_subject(self.text)}"

    def sign(self, _date_time: str) -> Metadata:
        """Return the headers of a call."""
        return (("authorization", f"Bearer {self.text}"),)


@dataclass(slots=True)
class Session:
    """One login."""

    credentials: Credentials | BearerToken
    #: Every form of the session carries it: other sites cannot know it.
    token: str
    made_ns: int
    used_ns: int
    checked_ns: int
    #: The user may read the cluster, which the console watches with its own user.
    may_watch: bool
    #: A client id belongs to one user, so each session has its own.
    client_id: str = field(default_factory=lambda: f"cometmq-console@{secrets.token_hex(8)}")
    #: The session serves no more requests, and its streams end.
    ended: bool = False


#: The session of the request that is served; None: there is none.
CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)


class SessionCaller(Caller):
    """Makes the calls of a request as its user, and no others."""

    def __init__(self, endpoint: str, links: Links) -> None:
        super().__init__(endpoint, links, Credentials("", ""), has_token=False)

    @property
    def user(self) -> str:
        """The user of the request that is served; "" without one."""
        session = CURRENT.get()
        return owner_of(session.credentials) if session is not None else ""

    def metadata(self) -> Metadata:
        """Return the metadata of the next call. Raises CliError without a session."""
        session = CURRENT.get()
        if session is None:
            raise CliError("Log in first: this call is made without a session.")
        others = (each for each in self.fixed if each[0] != CLIENT_ID)
        signed = session.credentials.sign(self.second())
        return ((CLIENT_ID, session.client_id), *others, *signed)


class Sessions:
    """All sessions of a console."""

    def __init__(self, steady_ns: Callable[[], int]) -> None:
        self._steady_ns = steady_ns
        self._secret = secrets.token_bytes(32)
        #: By digest of the cookie, the oldest first.
        self._known: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._known)

    def open(self, credentials: Credentials | BearerToken, *, may_watch: bool) -> str:
        """Begin a session; return its cookie."""
        now_ns = self._steady_ns()
        owner = owner_of(credentials)
        own = [key for key, each in self._known.items() if owner_of(each.credentials) == owner]
        if len(own) >= OF_ONE_MAX:
            self._end(own[0])
        elif len(self._known) >= SESSIONS_MAX:
            self._end(next(iter(self._known)))
        cookie = secrets.token_urlsafe(32)
        token = hmac.digest(self._secret, cookie.encode(), hashlib.sha256).hex()
        self._known[_key(cookie)] = Session(credentials, token, now_ns, now_ns, now_ns, may_watch)
        return cookie

    def find(self, cookie: str, *, is_used: bool = True) -> Session | None:
        """Return the session of a cookie, if it has not ended; `is_used`: by a person."""
        session = self._known.get(_key(cookie))
        if session is None:
            return None
        now_ns = self._steady_ns()
        idle_ns, age_ns = now_ns - session.used_ns, now_ns - session.made_ns
        if idle_ns > IDLE_S * _NS or age_ns > LONGEST_S * _NS:
            self.close(cookie)
            return None
        if is_used:
            session.used_ns = now_ns
        return session

    def is_due(self, session: Session) -> bool:
        """Return whether the session's user must be checked now; it counts as checked then."""
        now_ns = self._steady_ns()
        if now_ns - session.checked_ns < CHECKED_S * _NS:
            return False
        session.checked_ns = now_ns
        return True

    def close(self, cookie: str) -> None:
        """End a session."""
        self._end(_key(cookie))

    def _end(self, key: bytes) -> None:
        session = self._known.pop(key, None)
        if session is not None:
            session.ended = True


def _key(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()


def owner_of(credentials: Credentials | BearerToken) -> str:
    """Return the name by which sessions and wrong logins are counted."""
    return credentials.owner if isinstance(credentials, BearerToken) else credentials.access_key


def _subject(token: str) -> str:
    """Return the issuer and the subject of a token that is not verified, or nothing."""
    claims = token.split(".")[1:2]
    try:
        found = json.loads(base64.urlsafe_b64decode(claims[0] + "==")) if claims else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return ""
    named = json.dumps([str(found.get("iss")), str(found.get("sub"))])
    return hashlib.sha256(named.encode()).hexdigest()


def has_ended() -> bool:
    """Return whether the session of the request has ended since it began."""
    session = CURRENT.get()
    return session is not None and session.ended


def may_watch() -> bool:
    """Return whether the request may see what the console watches with its own user."""
    session = CURRENT.get()
    return session is None or session.may_watch
