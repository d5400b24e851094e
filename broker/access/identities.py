"""Identities: who has made a call, by its signature, bearer token or client certificate.

A verified signature (header and `x-mq-date-time`, which clients sign once a second) is computed
once and looked up afterwards, until a user changes; only users of this node's own tables pass.
Failures are UNAUTHORIZED with the reference's sentences (docs/formats/grpc-api.md, sections
2.2-2.4), but an unknown user gets that of a wrong signature. Failures are not stored: their number
is unlimited.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ...auth.attempts import Attempts
from ...auth.bearer import BEARER, BearerError
from ...auth.model import User
from ...auth.secrets import SealError
from ...auth.signature import (
    AUTHORIZATION,
    DATE_TIME,
    is_signed,
    made_ms,
    parse_authorization,
    sign,
    unauthorized,
)
from ...nodes.addresses import host_of, is_loopback
from ...proto import v2
from ...proto.errors import WireError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from ...auth.bearer import Bearer, BearerVerifier
    from ...front.context import RequestContext
    from ..metadata.tables import Metadata
    from .key_source import KeySource

logger = logging.getLogger(__name__)

# Signatures of the last seconds, about 400 bytes each. When a table is full it is cleared: the next
# calls compute theirs again.
_SIGNATURES_MAX = 20_000
_RECENT_MAX = 1_024
# Verified tokens, about 250 bytes each; the oldest one is dropped, and verified again if it comes
# again.
_TOKENS_MAX = 20_000
# Longer ones are computed each time: a client must not choose the size of the tables.
_HEADERS_KEPT_MAX = 512
_DATE_TIME_SHOWN = 64

#: Also for a user that does not exist: strangers do not learn the names of users.
_WRONG_SIGNATURE = "check signature failed."
_NO_USERS = (
    "this replica knows no users yet: it starts, or has not copied its leader's records. Try again."
)
_TOO_MANY = "too many wrong signatures of this user from this address: try again in a minute."
_NO_CERTIFIED = "the client's certificate names no enabled user."
_NO_SECRET = bytes(32)


class Known(Struct):
    """A user whose secrets are decrypted, and the guard's decisions about it so far."""

    user: User
    #: The present one, and the former one while it is accepted.
    secrets: tuple[bytes, ...]
    is_super: bool
    depends_on_source: bool
    #: By need (and source address): "" if allowed, else the reason.
    decisions: dict[Any, str] = field(default_factory=dict)


class Identities:
    """Finds the users of the calls of one broker."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        keys: KeySource,
        wall_ms: Callable[[], int],
        clock_skew_ms: int,
        refused: Counter[str],
        local_times: bool = True,
        steady_ns: Callable[[], int] = lambda: 0,
        failures_max: int = 0,
        bearers: BearerVerifier | None = None,
    ) -> None:
        """A signature is accepted for `clock_skew_ms` before and after its time (0: always), in any
        time zone with `local_times`; `wall_ms` is not moved by tests. `refused` counts refusals by
        reason. `failures_max`: see `Attempts`. `bearers` verifies the bearer tokens of calls;
        without it none is accepted."""
        self._tables = metadata
        self._keys = keys
        self._wall_ms = wall_ms
        self._clock_skew_ms = clock_skew_ms
        self._refused = refused
        self._local_times = local_times
        #: When signatures with a date and time were made: clients sign once a second.
        self._made_ms: dict[str, int] = {}
        self._steady_ns = steady_ns
        self._attempts = Attempts(failures_max)
        self._bearers = bearers
        #: Verified tokens by the digest of their header.
        self._tokens: dict[bytes, Bearer] = {}
        #: When the first accepted token ends, also one that is not kept; 0: there is none.
        self._tokens_end_ms = 0
        self._lapses = 0
        #: Changes of the provider's keys so far.
        self.key_changes = 0
        self._users_version = -1
        #: When the first of the known former secrets is accepted no longer; 0: there is none.
        self._expires_ms = 0
        #: By identity of a call's metadata: the native door reuses them for equal headers.
        self._recent: dict[int, tuple[object, Known]] = {}
        self._known: dict[str, Known] = {}
        self._signatures: dict[tuple[str, str], Known] = {}
        #: Decisions about the known users so far.
        self.decisions = 0
        #: Signatures computed so far.
        self.computed = 0

    def user(self, name: str) -> Known:
        """Return a user; it may be disabled. Raises WireError if there is none."""
        return self._known.get(name) or self._open(name)

    def lately(self, ctx: RequestContext) -> Known | None:
        """Return the user that signed the call, if that was checked for the same metadata."""
        if self._expires_ms:
            self.refresh()
        recent = self._recent.get(id(ctx.metadata))
        if (
            recent is None
            or recent[0] is not ctx.metadata
            or self._tables.users_version != self._users_version
        ):
            return None
        return recent[1]

    def name_of(self, ctx: RequestContext) -> str:
        """Return the name of the user of a checked call, whatever changed since. Raises
        WireError."""
        recent = self._recent.get(id(ctx.metadata))
        if recent is not None and recent[0] is ctx.metadata:
            return recent[1].user.name
        return self.identify(ctx).user.name

    def identify(self, ctx: RequestContext) -> Known:
        """Return the user that signed the call. Raises WireError."""
        self.refresh()
        header = date_time = ""
        for name, value in ctx.metadata:
            if name == AUTHORIZATION:
                header = value
            elif name == DATE_TIME:
                date_time = value
        if ctx.user and not header:
            return self.certified(ctx.user)
        if header.startswith(BEARER):
            return self._by_bearer(header, ctx)
        known = self._signatures.get((header, date_time))
        if known is None:
            known = self._verify(header, date_time, host_of(ctx.peer))
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        self._recent[id(ctx.metadata)] = ctx.metadata, known
        return known

    def certified(self, name: str) -> Known:
        """Return the user that a client's certificate names. Raises WireError."""
        try:
            known = self.user(name)
            check_enabled(known)
        except WireError:
            self._refused["certificate"] += 1
            raise unauthorized(_NO_CERTIFIED) from None
        return known

    def _by_bearer(self, header: str, ctx: RequestContext) -> Known:
        """Return the user that a bearer token names. Raises WireError."""
        try:
            if self._bearers is None:
                raise unauthorized("bearer tokens are not accepted here: sign the call.")
            # Who reads a token has it: a signature would be good for minutes, a token for hours.
            if not ctx.tls and not is_loopback(host_of(ctx.peer)):
                raise unauthorized("a bearer token needs TLS.")
            bearer = self._token(self._bearers, header)
            until_ms = bearer.until_ms
            if self._wall_ms() >= until_ms:
                raise unauthorized("the bearer token has expired.")
            self._tokens_end_ms = min(self._tokens_end_ms or until_ms, until_ms)
            known = self.user(bearer.user)
            check_enabled(known)
        except BearerError as error:
            self._refused["bearer"] += 1
            raise unauthorized(f"the bearer token is not accepted: {error}.") from None
        except WireError:
            self._refused["bearer"] += 1
            raise
        return known

    def _token(self, bearers: BearerVerifier, header: str) -> Bearer:
        """Return the content of a token, which may have ended. Raises BearerError."""
        key = sha256(header.encode(errors="surrogatepass")).digest()
        bearer = self._tokens.get(key)
        if bearer is None:
            bearer = bearers.verify(header.removeprefix(BEARER))
            if len(self._tokens) >= _TOKENS_MAX:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[key] = bearer
        return bearer

    def forget_tokens(self) -> None:
        """Verify all tokens again: the provider has other keys."""
        self.key_changes += 1
        self._tokens.clear()

    def lapses(self) -> int:
        """Return a number that changes when an accepted token has ended: its streams must end."""
        now_ms = self._wall_ms()
        if self._tokens_end_ms and now_ms >= self._tokens_end_ms:
            self._lapses += 1
            tokens = self._tokens.items()
            self._tokens = {key: bearer for key, bearer in tokens if now_ms < bearer.until_ms}
            # The check of the streams, which follows, adds the ends of tokens that are not kept.
            self._tokens_end_ms = min(
                (bearer.until_ms for bearer in self._tokens.values()), default=0
            )
        return self._lapses

    def refresh(self) -> None:
        """Forget what is known if a user has changed or a former secret is accepted no longer."""
        expired = self._expires_ms and self._wall_ms() >= self._expires_ms
        if self._tables.users_version != self._users_version:
            self._attempts.clear()
            self.forget()
        elif expired:
            self.forget()

    def forget(self) -> None:
        """Drop everything that depends on users."""
        self._users_version = self._tables.users_version
        self._expires_ms = 0
        self._known.clear()
        self._signatures.clear()
        self._recent.clear()
        self.decisions = 0

    def _verify(self, header: str, date_time: str, source: str) -> Known:
        try:
            if not header:
                raise unauthorized("username cannot be null.")
            if not date_time:
                raise unauthorized("datetime is null.")
            credential = parse_authorization(header)
        except WireError:
            self._refused["signature"] += 1
            raise
        known = self.signer(
            credential.user, lambda key: is_signed(credential, key, date_time), source
        )
        if len(header) + len(date_time) <= _HEADERS_KEPT_MAX:
            if len(self._signatures) >= _SIGNATURES_MAX:
                self._signatures.clear()
            self._signatures[header, date_time] = known
        return known

    def signer(self, name: str, is_signed: Callable[[bytes], bool], source: str) -> Known:
        """Return the user who has signed a call; a failure counts for `source`. Raises
        WireError."""
        if not self._tables.users:
            raise WireError(v2.HA_NOT_AVAILABLE, _NO_USERS)
        now_ns = self._steady_ns()
        if self._attempts.are_spent(source, name, now_ns):
            self._refused["attempts"] += 1
            raise unauthorized(_TOO_MANY)
        try:
            known = self.user(name)
            self.computed += 1
            if not any(map(is_signed, known.secrets)):
                raise unauthorized(_WRONG_SIGNATURE)
        except WireError:
            self._attempts.failed(source, name, now_ns)
            self._refused["signature"] += 1
            raise
        if not known.user.enabled:
            self._refused["signature"] += 1
        check_enabled(known)
        return known

    def _open(self, name: str) -> Known:
        user = self._tables.users.get(name)
        if user is None:
            # Takes as long as a wrong signature of a user.
            sign(_NO_SECRET, _NO_SECRET.hex())
            raise unauthorized(_WRONG_SIGNATURE)
        former = user.former if self._wall_ms() < user.former_until_ms else b""
        try:
            found = (user.secret, former) if former else (user.secret,)
            secrets = tuple(self._keys.key.open(name, sealed) for sealed in found)
        except SealError as error:
            logger.error("auth.secret_unreadable user=%s error=%s", name, error)
            # The reason would tell a stranger that the user exists.
            raise unauthorized(_WRONG_SIGNATURE) from None
        by_source = any(policy.sources for policy in user.policies)
        known = self._known[name] = Known(user, secrets, user.is_super, by_source)
        if former:
            until_ms = user.former_until_ms
            self._expires_ms = min(self._expires_ms or until_ms, until_ms)
        return known

    def is_current(self, ctx: RequestContext) -> bool:
        """Return whether the time of the signature is known, and not too far away."""
        if not self._clock_skew_ms or (date_time := _signed_at(ctx)) is None:
            return True  # a certificate is not of a moment
        known_ms = self._made_ms.get(date_time)
        return known_ms is not None and abs(self._wall_ms() - known_ms) <= self._clock_skew_ms

    def check_clock(self, ctx: RequestContext) -> None:
        """Raise WireError if the signature is not of the present."""
        if self.is_current(ctx):
            return
        now_ms, date_time = self._wall_ms(), _signed_at(ctx) or ""
        at_ms = made_ms(date_time, now_ms, local=self._local_times)
        if at_ms is None or abs(now_ms - at_ms) > self._clock_skew_ms:
            self._refused["clock"] += 1
            zone = ", or its time zone." if self._local_times else ", and its time zone to UTC."
            raise unauthorized(
                f"x-mq-date-time {date_time[:_DATE_TIME_SHOWN]!r} differs from the server's clock "
                f"by more than {self._clock_skew_ms} ms: set the client's clock{zone}"
            )
        if len(self._made_ms) >= _RECENT_MAX:
            self._made_ms.clear()
        self._made_ms[date_time] = at_ms


def _signed_at(ctx: RequestContext) -> str | None:
    """Return the time of a call's signature, as its client sent it; None without a signature: a
    certificate names the user."""
    date_time, is_signed_call = "", False
    for name, value in ctx.metadata:
        if name == DATE_TIME:
            date_time = value
        elif name == AUTHORIZATION:
            is_signed_call = not value.startswith(BEARER)  # which has a time of its own
    return date_time if is_signed_call else None


def check_enabled(known: Known) -> None:
    """Raise WireError if the user, who has signed, is disabled."""
    if not known.user.enabled:
        raise unauthorized(f"User:{known.user.name} is disabled.")
