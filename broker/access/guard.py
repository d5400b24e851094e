"""Guard: authenticates every call of the client port and checks the user's rights.

A verified signature (header and `x-mq-date-time`, which clients sign once a second) and a decision
are computed once and looked up afterwards, until a user or a policy changes; only users of this
node's own tables pass. Failures are UNAUTHORIZED in a normal answer, with the reference's
sentences (docs/formats/grpc-api.md, sections 2.2-2.4), but an unknown user gets that of a wrong
signature. Failures are not stored: their number is unlimited.
"""

from __future__ import annotations

import logging
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ...auth.attempts import Attempts
from ...auth.bearer import BEARER, BearerError
from ...auth.decision import decide
from ...auth.model import CLUSTER, Action, User, action_names
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
from ...front.service import Kind, taker_of
from ...nodes.addresses import host_of, is_loopback
from ...proto import paths, v2
from ...proto.errors import WireError
from .checked_session import CheckedSession
from .rights import PUBLIC, RIGHTS, SUPER, send_need

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

    from ...auth.bearer import Bearer, BearerVerifier
    from ...front.context import RequestContext
    from ...front.service import ClientRun, Method, Taken
    from ..clients.registry import ClientRegistry
    from ..metadata.tables import Metadata
    from .audit import AuditLog
    from .key_source import KeySource
    from .rights import Need, Needs

logger = logging.getLogger(__name__)

# Signatures of the last seconds, about 400 bytes each, and decisions, about 150 bytes each. When a
# table is full it is cleared: the next calls compute theirs again.
_SIGNATURES_MAX = 20_000
_DECISIONS_MAX = 100_000
_RECENT_MAX = 1_024
# Verified tokens, about 250 bytes each; the oldest one is dropped, and verified again if it comes
# again.
_TOKENS_MAX = 20_000
# Longer ones are computed each time: a client must not choose the size of the tables.
_HEADERS_KEPT_MAX = 512
_NAME_KEPT_MAX = 255
_DATE_TIME_SHOWN = 64

#: A request without needs is refused: it must not be allowed because it was not understood.
NAMES_NOTHING = "the request names no topic and no group."
_USER = "user"
#: Also for a user that does not exist: strangers do not learn the names of users.
_WRONG_SIGNATURE = "check signature failed."
_NO_USERS = (
    "this replica knows no users yet: it starts, or has not copied its leader's records. Try again."
)
_TOO_MANY = "too many wrong signatures of this user from this address: try again in a minute."
_NO_CERTIFIED = "the client's certificate names no enabled user."
_NO_SECRET = bytes(32)
_NO_POLICY = "no matched policies."
_DENIED = "the decision is deny."
_NOT_SUPER = "only users of type Super have it."
_ONE_ACTION = {int(action): action for action in Action}


class _Known(Struct):
    """A user whose secrets are decrypted, and its decisions so far."""

    user: User
    #: The present one, and the former one while it is accepted.
    secrets: tuple[bytes, ...]
    is_super: bool
    depends_on_source: bool
    #: By need (and source address): "" if allowed, else the reason.
    decisions: dict[Any, str] = field(default_factory=dict)


class Verified(tuple[tuple[str, str], ...]):
    """The metadata of a call of another protocol: the name of its user, which was checked."""

    __slots__ = ()


class Guard:
    """Checks the calls of one broker."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        keys: KeySource,
        wall_ms: Callable[[], int],
        cluster: str,
        authorize: bool,
        clock_skew_ms: int,
        local_times: bool = True,
        refused: Counter[str],
        audit: AuditLog | None = None,
        clients: ClientRegistry | None = None,
        steady_ns: Callable[[], int] = lambda: 0,
        user_of_certificate: Callable[[bytes], str] = lambda _: "",
        failures_max: int = 0,
        bearers: BearerVerifier | None = None,
    ) -> None:
        """`cluster` is the name of the cluster resource; without `authorize` only the signature is
        checked, except for the methods that need a user of type Super. A signature is accepted for
        `clock_skew_ms` before and after its time (0: always), in any time zone with `local_times`;
        `wall_ms` is not moved by tests. `refused` counts refusals by reason. A call with the id of
        a client in `clients` that is another user's is refused. `user_of_certificate` returns the
        user that a certificate names; `failures_max`: see `Attempts`. `bearers` verifies the bearer
        tokens of calls; without it none is accepted."""
        self._tables = metadata
        self._keys = keys
        self._wall_ms = wall_ms
        self._cluster = cluster
        self._authorize = authorize
        self._clock_skew_ms = clock_skew_ms
        self._local_times = local_times
        #: When signatures with a date and time were made: clients sign once a second.
        self._made_ms: dict[str, int] = {}
        self._refused = refused
        self._audit = audit
        self._clients = clients
        self._steady_ns = steady_ns
        self._user_of_certificate = user_of_certificate
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
        self._recent: dict[int, tuple[object, _Known]] = {}
        self._known: dict[str, _Known] = {}
        self._signatures: dict[tuple[str, str], _Known] = {}
        self._decisions = 0
        self._sessions: dict[CheckedSession, None] = {}
        #: Signatures computed so far.
        self.computed = 0

    # -- the check ----------------------------------------------------------------------------

    def check(self, path: str, request: Any, ctx: RequestContext) -> None:
        """Authenticate a call and check the rights that it needs. Raises WireError."""
        # One call for each send: everything is looked up here, and computed elsewhere.
        if self._expires_ms:
            self._refresh()
        known = self._lately(ctx)
        if known is None:
            if path == paths.PUT_USER and self._creates_the_first_user(request, ctx):
                return
            known = self._identify(ctx)
        # Nodes open the streams of their clients again, after a failover, with old signatures.
        if self._clock_skew_ms and not (ctx.forwarded and path == paths.TELEMETRY):
            self._check_clock(ctx)
        if self._clients is not None:
            self._check_owner(known, ctx)
        if known.is_super:
            return
        needs = RIGHTS[path](request)
        if not self._authorize and needs is not SUPER:
            return
        if not needs and path not in PUBLIC:
            raise unauthorized(NAMES_NOTHING)
        for need in needs:
            if known.depends_on_source or known.decisions.get(need) != "":
                self._permit(known, need, ctx)

    def checked_before(self, clients: Sequence[ClientRun]) -> list[tuple[_Known, str]]:
        """Return the users and hosts of the first clients whose calls were checked lately, and
        whose next ones `check` would accept with the same headers, rights aside."""
        if self._expires_ms:
            self._refresh()
        users = []
        for ctx, _ in clients:
            known = self._lately(ctx)
            if known is None or not self._is_current(ctx) or not self._is_owner(known, ctx):
                break
            users.append((known, host_of(ctx.peer)))
        return users

    def may_send(self, users: list[tuple[_Known, str]], topic: str) -> bool:
        """Return whether all these users may send to the topic."""
        need = send_need(topic)
        return not self._authorize or all(
            known.is_super or not self._reason(known, need, host) for known, host in users
        )

    def check_message(self, path: str, message: Any, ctx: RequestContext) -> None:
        """Check a message of an open stream, whose signature may be old. Raises WireError."""
        known = self._identify(ctx)
        if self._clients is not None:
            self._check_owner(known, ctx)
        if not known.is_super and self._authorize:
            for need in RIGHTS[path](message):
                self._permit(known, need, ctx)

    def allows(self, user: str, needs: Needs, peer: str) -> bool:
        """Return whether a client of `user` at the address `peer` may get now what has these
        needs; False if there is no such user any more, or it is disabled."""
        self._refresh()
        try:
            known = self._known.get(user) or self._open(user)
            _check_enabled(known)
        except WireError:
            return False
        if known.is_super or not self._authorize:
            return True
        return not any(self._reason(known, need, host_of(peer)) for need in needs)

    def user_of(self, ctx: RequestContext) -> str:
        """Return the name of the user of a checked call. Raises WireError."""
        if isinstance(ctx.metadata, Verified):
            return ctx.metadata[0][1]
        recent = self._recent.get(id(ctx.metadata))
        if recent is not None and recent[0] is ctx.metadata:
            return recent[1].user.name
        return self._identify(ctx).user.name

    def check_signed(
        self,
        name: str,
        is_signed: Callable[[bytes], bool],
        needs: Callable[[], Needs],
        ctx: RequestContext,
    ) -> None:
        """Check a call of another protocol, signed by user `name`. Raises WireError.

        `is_signed` gets the secret and returns whether the call is signed with it. `needs` reads
        the request, which may be large, and is called only for a signed one. From now on `ctx`
        belongs to the user.
        """
        self._refresh()
        # The classic clients of a proxy have its address: by connection.
        self._check_other(self._signer(name, is_signed, ctx.peer), needs, ctx)

    def check_certified(self, needs: Callable[[], Needs], ctx: RequestContext) -> None:
        """Check a call of another protocol by a client whose certificate names `ctx.user`; as
        `check_signed`."""
        self._refresh()
        self._check_other(self._certified(ctx.user), needs, ctx)

    def secret_of(self, name: str) -> bytes:
        """Return the secret of a user that is identified. Raises WireError."""
        return (self._known.get(name) or self._open(name)).secrets[0]

    def _check_other(self, known: _Known, needs: Callable[[], Needs], ctx: RequestContext) -> None:
        """Give a call of another protocol to its user, and check the rights. Raises WireError."""
        ctx.metadata = Verified(((_USER, known.user.name),))
        if known.is_super:
            return
        needed = needs()
        if not self._authorize and needed is not SUPER:
            return
        for need in needed:
            if known.depends_on_source or known.decisions.get(need) != "":
                self._permit(known, need, ctx)

    # -- authentication -----------------------------------------------------------------------

    def _lately(self, ctx: RequestContext) -> _Known | None:
        """Return the user that signed the call, if that was checked for the same metadata."""
        recent = self._recent.get(id(ctx.metadata))
        if (
            recent is None
            or recent[0] is not ctx.metadata
            or self._tables.users_version != self._users_version
        ):
            return None
        return recent[1]

    def _identify(self, ctx: RequestContext) -> _Known:
        """Return the user that signed the call. Raises WireError."""
        self._refresh()
        header = date_time = ""
        for name, value in ctx.metadata:
            if name == AUTHORIZATION:
                header = value
            elif name == DATE_TIME:
                date_time = value
        if ctx.user and not header:
            return self._certified(ctx.user)
        if header.startswith(BEARER):
            return self._by_bearer(header, ctx)
        known = self._signatures.get((header, date_time))
        if known is None:
            known = self._verify(header, date_time, host_of(ctx.peer))
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        self._recent[id(ctx.metadata)] = ctx.metadata, known
        return known

    def _certified(self, name: str) -> _Known:
        """Return the user that a client's certificate names. Raises WireError."""
        try:
            known = self._known.get(name) or self._open(name)
            _check_enabled(known)
        except WireError:
            self._refused["certificate"] += 1
            raise unauthorized(_NO_CERTIFIED) from None
        return known

    def _by_bearer(self, header: str, ctx: RequestContext) -> _Known:
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
            known = self._known.get(bearer.user) or self._open(bearer.user)
            _check_enabled(known)
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

    def _refresh(self) -> None:
        """Forget what is known if a user has changed or a former secret is accepted no longer."""
        expired = self._expires_ms and self._wall_ms() >= self._expires_ms
        if self._tables.users_version != self._users_version:
            self._attempts.clear()
            self._forget()
        elif expired:
            self._forget()

    def _forget(self) -> None:
        """Drop everything that depends on users."""
        self._users_version = self._tables.users_version
        self._expires_ms = 0
        self._known.clear()
        self._signatures.clear()
        self._recent.clear()
        self._decisions = 0

    def _verify(self, header: str, date_time: str, source: str) -> _Known:
        try:
            if not header:
                raise unauthorized("username cannot be null.")
            if not date_time:
                raise unauthorized("datetime is null.")
            credential = parse_authorization(header)
        except WireError:
            self._refused["signature"] += 1
            raise
        known = self._signer(
            credential.user, lambda key: is_signed(credential, key, date_time), source
        )
        if len(header) + len(date_time) <= _HEADERS_KEPT_MAX:
            if len(self._signatures) >= _SIGNATURES_MAX:
                self._signatures.clear()
            self._signatures[header, date_time] = known
        return known

    def _signer(self, name: str, is_signed: Callable[[bytes], bool], source: str) -> _Known:
        """Return the user who has signed a call; a failure counts for `source`. Raises
        WireError."""
        if not self._tables.users:
            raise WireError(v2.HA_NOT_AVAILABLE, _NO_USERS)
        now_ns = self._steady_ns()
        if self._attempts.are_spent(source, name, now_ns):
            self._refused["attempts"] += 1
            raise unauthorized(_TOO_MANY)
        try:
            known = self._known.get(name) or self._open(name)
            self.computed += 1
            if not any(map(is_signed, known.secrets)):
                raise unauthorized(_WRONG_SIGNATURE)
        except WireError:
            self._attempts.failed(source, name, now_ns)
            self._refused["signature"] += 1
            raise
        if not known.user.enabled:
            self._refused["signature"] += 1
        _check_enabled(known)
        return known

    def _open(self, name: str) -> _Known:
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
        known = self._known[name] = _Known(user, secrets, user.is_super, by_source)
        if former:
            until_ms = user.former_until_ms
            self._expires_ms = min(self._expires_ms or until_ms, until_ms)
        return known

    def _is_current(self, ctx: RequestContext) -> bool:
        """Return whether the time of the signature is known, and not too far away."""
        if not self._clock_skew_ms or (date_time := _signed_at(ctx)) is None:
            return True  # a certificate is not of a moment
        known_ms = self._made_ms.get(date_time)
        return known_ms is not None and abs(self._wall_ms() - known_ms) <= self._clock_skew_ms

    def _check_clock(self, ctx: RequestContext) -> None:
        """Raise WireError if the signature is not of the present."""
        if self._is_current(ctx):
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

    def _is_owner(self, known: _Known, ctx: RequestContext) -> bool:
        """Return whether the client id belongs to no other user."""
        client = self._clients.get(ctx.client_id) if self._clients is not None else None
        return client is None or client.user == known.user.name

    def _check_owner(self, known: _Known, ctx: RequestContext) -> None:
        """Raise WireError if the client id belongs to another user, while that client is alive."""
        clients = self._clients
        if clients is None or self._is_owner(known, ctx):
            return
        if clients.alive(ctx.client_id, self._steady_ns()):
            self._refused["client"] += 1
            raise unauthorized("the client id belongs to a client of another user.")
        clients.forget(ctx.client_id)

    # -- authorization ------------------------------------------------------------------------

    def _permit(self, known: _Known, need: Need, ctx: RequestContext) -> None:
        """Raise WireError if the user may not do what a call needs."""
        host = host_of(ctx.peer)
        reason = self._reason(known, need, host)
        if reason:
            self._refused["permission"] += 1
            kind, name, actions = need
            resource = f"{kind}:{name[:_NAME_KEPT_MAX] or self._cluster}"
            needed = " or ".join(action_names(Action(actions)))
            raise unauthorized(
                f"User:{known.user.name} has no permission to access {resource} from {host}, "
                f"{reason}{f' Needed: {needed}.' if needed else ''}"
            )

    def _reason(self, known: _Known, need: Need, host: str) -> str:
        """Return why the need is not met; empty if it is."""
        key = (need, host) if known.depends_on_source else need
        reason = known.decisions.get(key)
        if reason is None:
            reason = self._decide(known.user, need, host)
            if len(need[1]) <= _NAME_KEPT_MAX:
                self._decisions += 1
                if self._decisions > _DECISIONS_MAX:
                    self._forget()
                known.decisions[key] = reason
        return reason

    def _decide(self, user: User, need: Need, host: str) -> str:
        """Return why the need is not met; empty if it is."""
        kind, name, actions = need
        if kind == CLUSTER:
            name = name or self._cluster
        reason = _NO_POLICY if actions else _NOT_SUPER
        for bit, action in _ONE_ACTION.items():
            if actions & bit:
                decision = decide(user, kind, name, action, host)
                if decision.allowed:
                    return ""
                if decision.policy is not None:
                    reason = _DENIED
        return reason

    def _creates_the_first_user(self, request: Any, ctx: RequestContext) -> bool:
        """Whether the call makes the first user, which this machine may do without a signature."""
        return not self._tables.users and request.is_super and is_loopback(host_of(ctx.peer))

    # -- installation -------------------------------------------------------------------------

    def locating(
        self, locate: Callable[[str, Any, RequestContext], str | None]
    ) -> Callable[[str, Any, RequestContext], str | None]:
        """Return `locate` of the access point with the check before it.

        The access point calls it for every call before anything else, and again while it holds one.
        """
        check = self.check if self._audit is None else self.check_first

        def checked(path: str, request: Any, ctx: RequestContext) -> str | None:
            if request is not None:  # a stream: its messages are checked
                check(path, request, ctx)
            return locate(path, request, ctx)

        return checked

    def check_first(self, path: str, request: Any, ctx: RequestContext) -> None:
        """Check a call, and write the line of a denial. Raises WireError."""
        try:
            self.check(path, request, ctx)
        except WireError as error:
            if self._audit is not None:
                self._audit.refused(path, request, ctx, error)
            raise

    def still(self, user: str, needs: Needs, ctx: RequestContext) -> bool:
        """Return whether the user of an open stream may have it: as `allows`, and with a
        certificate that is still accepted."""
        if any(key == AUTHORIZATION and text.startswith(BEARER) for key, text in ctx.metadata):
            try:
                self._identify(ctx)
            except WireError:
                return False
        shown = ctx.peer_certificate if ctx.user and not ctx.forwarded else b""
        if shown and self._user_of_certificate(shown) != ctx.user:
            return False
        return self.allows(user, needs, ctx.peer)

    def recheck_streams(self) -> Iterator[None]:
        """End the streams whose users have lost the rights on what they name, one a step."""
        for session in list(self._sessions):
            session.recheck()
            yield

    def opened(self, session: CheckedSession) -> None:
        """Note a session until `closed`."""
        self._sessions[session] = None

    def closed(self, session: CheckedSession) -> None:
        """Forget a session."""
        self._sessions.pop(session, None)

    def watching(self, method: Method) -> Method:
        """Return a bidirectional method whose sessions check every message, a method of a
        `TurnHandler` that checks the calls that it takes; others unchanged."""
        take = taker_of(method)
        if take is not None:
            return replace(method, handler=_CheckedTurns(self, method.handler, take))
        if method.kind is not Kind.BIDI:
            return method
        return replace(method, handler=partial(CheckedSession, self, method))


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


def _check_enabled(known: _Known) -> None:
    """Raise WireError if the user, who has signed, is disabled."""
    if not known.user.enabled:
        raise unauthorized(f"User:{known.user.name} is disabled.")


class _CheckedTurns(Struct, frozen=True):
    """The `TurnHandler` of SendMessage; single calls are checked before they come here."""

    guard: Guard
    send: Callable[..., Any]
    take_sends: Callable[..., Taken | None]

    def __call__(self, request: Any, ctx: RequestContext) -> Any:
        return self.send(request, ctx)

    def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> Taken | None:
        """Take the calls of clients that were checked lately, to topics that all of them may send
        to; the others are checked one by one."""
        users = self.guard.checked_before(clients)
        if not users:
            return None
        may_send = partial(self.guard.may_send, users)
        return self.take_sends(requests, clients[: len(users)], may_send)
