"""Guard: checks the user of every call of the client port (`identities.py`) and its rights.

A decision is computed once and looked up afterwards, until a user or a policy changes. Failures are
UNAUTHORIZED in a normal answer, with the reference's sentences (docs/formats/grpc-api.md, sections
2.2-2.4).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ...auth.bearer import BEARER
from ...auth.decision import decide
from ...auth.model import CLUSTER, Action, User, action_names
from ...auth.signature import (
    AUTHORIZATION,
    unauthorized,
)
from ...front.service import Kind, taker_of
from ...nodes.addresses import host_of, is_loopback
from ...proto import paths
from ...proto.errors import WireError
from .checked_session import CheckedSession
from .identities import check_enabled
from .rights import PUBLIC, RIGHTS, SUPER, send_need

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

    from ...front.context import RequestContext
    from ...front.service import ClientRun, Method, Taken
    from ..clients.registry import ClientRegistry
    from ..metadata.tables import Metadata
    from .audit import AuditLog
    from .identities import Identities, Known
    from .rights import Need, Needs

# About 150 bytes each. At the limit all are dropped: the next calls compute theirs again.
_DECISIONS_MAX = 100_000
# A client must not choose the size of the table.
_NAME_KEPT_MAX = 255

#: A request without needs is refused: it must not be allowed because it was not understood.
NAMES_NOTHING = "the request names no topic and no group."
_USER = "user"
_NO_POLICY = "no matched policies."
_DENIED = "the decision is deny."
_NOT_SUPER = "only users of type Super have it."
_ONE_ACTION = {int(action): action for action in Action}


class Verified(tuple[tuple[str, str], ...]):
    """The metadata of a call of another protocol: the name of its user, which was checked."""

    __slots__ = ()


class Guard:
    """Checks the calls of one broker."""

    def __init__(
        self,
        *,
        identities: Identities,
        metadata: Metadata,
        cluster: str,
        authorize: bool,
        refused: Counter[str],
        audit: AuditLog | None = None,
        clients: ClientRegistry | None = None,
        steady_ns: Callable[[], int] = lambda: 0,
        user_of_certificate: Callable[[bytes], str] = lambda _: "",
    ) -> None:
        """`cluster` is the name of the cluster resource; without `authorize` only the user is
        checked, except for the methods that need a user of type Super. `refused` counts refusals by
        reason. A call with the id of a client in `clients` that is another user's is refused.
        `user_of_certificate` returns the user that a certificate names."""
        self._identities = identities
        self._tables = metadata
        self._cluster = cluster
        self._authorize = authorize
        self._refused = refused
        self._audit = audit
        self._clients = clients
        self._steady_ns = steady_ns
        self._user_of_certificate = user_of_certificate
        self._sessions: dict[CheckedSession, None] = {}

    # -- the check ----------------------------------------------------------------------------

    def check(self, path: str, request: Any, ctx: RequestContext) -> None:
        """Authenticate a call and check the rights that it needs. Raises WireError."""
        # One call for each send: everything is looked up here, and computed elsewhere.
        known = self._identities.lately(ctx)
        if known is None:
            if path == paths.PUT_USER and self._creates_the_first_user(request, ctx):
                return
            known = self._identities.identify(ctx)
        # Nodes open the streams of their clients again, after a failover, with old signatures.
        if not (ctx.forwarded and path == paths.TELEMETRY):
            self._identities.check_clock(ctx)
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

    def checked_before(self, clients: Sequence[ClientRun]) -> list[tuple[Known, str]]:
        """Return the users and hosts of the first clients whose calls were checked lately, and
        whose next ones `check` would accept with the same headers, rights aside."""
        users = []
        for ctx, _ in clients:
            known = self._identities.lately(ctx)
            if (
                known is None
                or not self._identities.is_current(ctx)
                or not self._is_owner(known, ctx)
            ):
                break
            users.append((known, host_of(ctx.peer)))
        return users

    def may_send(self, users: list[tuple[Known, str]], topic: str) -> bool:
        """Return whether all these users may send to the topic."""
        need = send_need(topic)
        return not self._authorize or all(
            known.is_super or not self._reason(known, need, host) for known, host in users
        )

    def check_message(self, path: str, message: Any, ctx: RequestContext) -> None:
        """Check a message of an open stream, whose signature may be old. Raises WireError."""
        known = self._identities.identify(ctx)
        if self._clients is not None:
            self._check_owner(known, ctx)
        if not known.is_super and self._authorize:
            for need in RIGHTS[path](message):
                self._permit(known, need, ctx)

    def allows(self, user: str, needs: Needs, peer: str) -> bool:
        """Return whether a client of `user` at the address `peer` may get now what has these
        needs; False if there is no such user any more, or it is disabled."""
        self._identities.refresh()
        try:
            known = self._identities.user(user)
            check_enabled(known)
        except WireError:
            return False
        if known.is_super or not self._authorize:
            return True
        return not any(self._reason(known, need, host_of(peer)) for need in needs)

    def user_of(self, ctx: RequestContext) -> str:
        """Return the name of the user of a checked call. Raises WireError."""
        if isinstance(ctx.metadata, Verified):
            return ctx.metadata[0][1]
        return self._identities.name_of(ctx)

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
        self._identities.refresh()
        # The classic clients of a proxy have its address: by connection.
        self._check_other(self._identities.signer(name, is_signed, ctx.peer), needs, ctx)

    def check_certified(self, needs: Callable[[], Needs], ctx: RequestContext) -> None:
        """Check a call of another protocol by a client whose certificate names `ctx.user`; as
        `check_signed`."""
        self._identities.refresh()
        self._check_other(self._identities.certified(ctx.user), needs, ctx)

    def secret_of(self, name: str) -> bytes:
        """Return the secret of a user that is identified. Raises WireError."""
        return self._identities.user(name).secrets[0]

    def _check_other(self, known: Known, needs: Callable[[], Needs], ctx: RequestContext) -> None:
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

    # -- authorization ------------------------------------------------------------------------

    def _is_owner(self, known: Known, ctx: RequestContext) -> bool:
        """Return whether the client id belongs to no other user."""
        client = self._clients.get(ctx.client_id) if self._clients is not None else None
        return client is None or client.user == known.user.name

    def _check_owner(self, known: Known, ctx: RequestContext) -> None:
        """Raise WireError if the client id belongs to another user, while that client is alive."""
        clients = self._clients
        if clients is None or self._is_owner(known, ctx):
            return
        if clients.alive(ctx.client_id, self._steady_ns()):
            self._refused["client"] += 1
            raise unauthorized("the client id belongs to a client of another user.")
        clients.forget(ctx.client_id)

    def _permit(self, known: Known, need: Need, ctx: RequestContext) -> None:
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

    def _reason(self, known: Known, need: Need, host: str) -> str:
        """Return why the need is not met; empty if it is."""
        key = (need, host) if known.depends_on_source else need
        reason = known.decisions.get(key)
        if reason is None:
            reason = self._decide(known.user, need, host)
            if len(need[1]) <= _NAME_KEPT_MAX:
                self._identities.decisions += 1
                if self._identities.decisions > _DECISIONS_MAX:
                    self._identities.forget()
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
                self._identities.identify(ctx)
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
