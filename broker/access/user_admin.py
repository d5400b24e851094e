"""`cometmq.v1.Admin`, users and policies: create, change, delete, list, check.

Promises: a change is in the replicated metadata log before it is answered; secrets are never
returned; the last enabled user of type Super cannot be deleted, disabled or made normal, because no
one could administer the cluster afterwards.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ...auth.decision import decide
from ...auth.model import (
    OVERLAP_MAX_MS,
    POLICIES_MAX,
    SOURCES_MAX,
    Action,
    Policy,
    ResourcePattern,
    User,
    check_secret,
    check_user_name,
    parse_actions,
)
from ...auth.secrets import SealError
from ...proto import v1, v2
from ...proto.errors import WireError
from ..metadata.codec import policy_message, policy_of, user_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...front.context import RequestContext
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Metadata
    from .key_source import KeySource

#: All users are in memory and in every metadata snapshot.
USERS_MAX = 10_000

T = TypeVar("T")
V = TypeVar("V")
Answer = v1.UserResponse


class UserAdmin:
    """Handlers for users and policies, and the first user of a new cluster."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        changes: MetadataChanges,
        keys: KeySource,
        first_user: tuple[str, str] | None,
        machine_ms: Callable[[], int],
    ) -> None:
        """`first_user` is the name and secret key of `initAuthenticationUser`; `machine_ms`
        returns the time, which tests do not move."""
        self._machine_ms = machine_ms
        self._metadata = metadata
        self._changes = changes
        self._keys = keys
        self._first_user = first_user

    # -- role ---------------------------------------------------------------------------------

    def lead(self) -> None:
        """Create the first user if it does not exist. Raises WireError, ValueError, OSError."""
        if self._first_user is None or self._first_user[0] in self._metadata.users:
            return
        name, secret = self._first_user
        sealed = self._keys.key.seal(name, secret, self._sealed())
        self._changes.log.write_user(User(name, sealed, is_super=True))

    def follow(self) -> None:
        """Do nothing: the leader writes."""

    # -- handlers -----------------------------------------------------------------------------

    def put(self, request: v1.PutUserRequest, ctx: RequestContext) -> asyncio.Future[Answer]:
        """Create a user, or change the given fields."""
        _checked(check_user_name, request.name)
        known = self._metadata.users.get(request.name)
        if known is None and request.must_exist:
            raise _unknown(request.name)
        if known is not None and request.must_be_new:
            if self._is_created(known, request):
                return self._write(known)
            raise WireError(v2.BAD_REQUEST, f"user {request.name} exists already")
        if known is None and len(self._metadata.users) >= USERS_MAX:
            raise WireError(v2.FORBIDDEN, f"there are {USERS_MAX} users already")
        if known is None and not request.secret:
            raise WireError(v2.BAD_REQUEST, "a new user needs a secret key")
        user = known or User(request.name, b"")
        if request.secret:
            _checked(check_secret, request.secret)
            user = self._rotated(user, request)
        if request.HasField("is_super"):
            user = replace(user, is_super=request.is_super)
        if request.HasField("enabled"):
            user = replace(user, enabled=request.enabled)
        self._check_last_super(user.name, user)
        return self._write(user, created=known is None)

    def _is_created(self, known: User, request: v1.PutUserRequest) -> bool:
        """Return whether an earlier request has created this user, so that it can be repeated for
        the broker groups that lack it."""
        try:
            secret = self._keys.key.open(known.name, known.secret)
        except SealError:
            return False
        same = hmac.compare_digest(secret, request.secret.encode())
        return same and known.enabled and known.is_super == request.is_super

    def delete(self, request: v1.DeleteUserRequest, ctx: RequestContext) -> asyncio.Future[Answer]:
        """Delete a user with its policies."""
        user = self._user(request.name)
        self._check_last_super(user.name, None)
        self._changes.check_writable()
        return self._changes.when_durable(self._changes.log.delete_user(user.name), _answer(user))

    def list_all(self, request: v1.ListUsersRequest, ctx: RequestContext) -> v1.ListUsersResponse:
        """Return all users by name, or one."""
        users = sorted(self._metadata.users.values(), key=lambda user: user.name)
        if request.name:
            users = [self._user(request.name)]
        return v1.ListUsersResponse(
            code=v2.OK,
            message="OK",
            users=[user_message(user, with_secret=False) for user in users],
        )

    def put_policy(
        self, request: v1.PutPolicyRequest, ctx: RequestContext
    ) -> asyncio.Future[Answer]:
        """Add a policy; replace the one with the same resource and decision."""
        user = self._user(request.user)
        policy = _checked(policy_of, request.policy)
        if not policy.actions:
            raise WireError(v2.BAD_REQUEST, "a policy needs at least one action")
        if len(policy.sources) > SOURCES_MAX:
            raise WireError(v2.BAD_REQUEST, f"a policy has at most {SOURCES_MAX} sources")
        kept = tuple(
            each
            for each in user.policies
            if (each.resource, each.allow) != (policy.resource, policy.allow)
        )
        if len(kept) >= POLICIES_MAX:
            raise WireError(v2.FORBIDDEN, f"user {user.name} has {POLICIES_MAX} policies already")
        return self._write(replace(user, policies=(*kept, policy)))

    def delete_policy(
        self, request: v1.DeletePolicyRequest, ctx: RequestContext
    ) -> asyncio.Future[Answer]:
        """Remove the policies for a resource."""
        user = self._user(request.user)
        resource = _checked(ResourcePattern.parse, request.resource) if request.resource else None

        def removed(policy: Policy) -> bool:
            return resource in (None, policy.resource) and not (
                request.HasField("allow") and policy.allow != request.allow
            )

        kept = tuple(policy for policy in user.policies if not removed(policy))
        if len(kept) == len(user.policies):
            where = f" for {resource}" if resource else ""
            raise WireError(v2.NOT_FOUND, f"user {user.name} has no such policy{where}")
        return self._write(replace(user, policies=kept))

    def check(self, request: v1.CheckAccessRequest, ctx: RequestContext) -> v1.CheckAccessResponse:
        """Explain a decision."""
        user = self._user(request.user)
        action = _checked(parse_actions, request.action)
        if action not in tuple(Action):
            raise WireError(v2.BAD_REQUEST, "name one action, for example Pub")
        pattern = _checked(ResourcePattern.parse, request.resource)
        if pattern.prefix:
            raise WireError(v2.BAD_REQUEST, f"{request.resource} is not one resource")
        if request.source:
            _checked(ipaddress.ip_address, request.source)
        decision = decide(user, pattern.kind, pattern.name, action, request.source)
        if not user.enabled:
            allowed, reason = False, f"user {user.name} is disabled"
        elif user.is_super:
            allowed, reason = True, f"user {user.name} is of type Super"
        elif decision.policy is None:
            allowed, reason = False, "no policy matches"
        else:
            allowed, reason = decision.allowed, f"the most specific policy: {decision.policy}"
        policy = policy_message(decision.policy) if decision.policy else None
        return v1.CheckAccessResponse(
            code=v2.OK, message="OK", allowed=allowed, reason=reason, policy=policy
        )

    # -- shared -------------------------------------------------------------------------------

    def _write(self, user: User, *, created: bool = False) -> asyncio.Future[Answer]:
        self._changes.check_writable()
        end = self._changes.log.write_user(user)
        return self._changes.when_durable(end, _answer(user, created=created))

    def _user(self, name: str) -> User:
        user = self._metadata.users.get(name)
        if user is None:
            raise _unknown(name)
        return user

    def _rotated(self, user: User, request: v1.PutUserRequest) -> User:
        """Return the user with another secret key, and the former one while both are valid."""
        overlap_ms = request.overlap_ms
        if not 0 <= overlap_ms <= OVERLAP_MAX_MS:
            raise WireError(v2.BAD_REQUEST, f"an overlap has 0 to {OVERLAP_MAX_MS} ms")
        if overlap_ms and not user.secret:
            raise WireError(v2.BAD_REQUEST, "a new user has no former secret key")
        return replace(
            user,
            secret=self._seal(request.name, request.secret),
            former=user.secret if overlap_ms else b"",
            former_until_ms=self._machine_ms() + overlap_ms if overlap_ms else 0,
        )

    def _sealed(self) -> Iterator[bytes]:
        """Return the sealed secrets of all users."""
        return (user.secret for user in self._metadata.users.values())

    def _seal(self, name: str, secret: str) -> bytes:
        try:
            return self._keys.key.seal(name, secret, self._sealed())
        except (ValueError, OSError) as error:
            raise WireError(
                v2.INTERNAL_SERVER_ERROR, f"the secret key cannot be encrypted: {error}"
            ) from error

    def _check_last_super(self, name: str, changed: User | None) -> None:
        """Raise WireError if no enabled user of type Super would remain."""
        supers = {
            user.name for user in self._metadata.users.values() if user.is_super and user.enabled
        }
        if supers == {name} and not (changed and changed.is_super and changed.enabled):
            raise WireError(
                v2.FORBIDDEN,
                f"{name} is the last enabled user of type Super: create another one first",
            )


def _answer(user: User, *, created: bool = False) -> Answer:
    message = user_message(user, with_secret=False)
    return v1.UserResponse(code=v2.OK, message="OK", user=message, created=created)


def _unknown(name: str) -> WireError:
    return WireError(v2.NOT_FOUND, f"user {name} does not exist")


def _checked(parse: Callable[[V], T], value: V) -> T:
    """Parse a field of a request. Raises WireError."""
    try:
        return parse(value)
    except ValueError as error:
        raise WireError(v2.BAD_REQUEST, str(error)) from None
