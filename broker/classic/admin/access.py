"""Users and access rules for classic tools, through the user administration of the broker.

Source: docs/formats/remoting.md, section 16.5. A policy of RocketMQ is a list of entries for a
subject; each entry is one policy here. Policies of the type `Default` are refused: there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....auth.model import POLICIES_MAX, SOURCES_MAX, Action, action_names, parse_actions
from ....front.context import RequestContext
from ....proto import v1
from ....proto.errors import WireError
from ....remoting.admin_codes import Admin
from ....remoting.admin_headers import AclFilter, AclSubject, UserFilter, UserName
from ....remoting.bare_json import dumps
from ....remoting.codes import Reply
from ....remoting.command import Command, reply
from ....remoting.connection import RemotingError
from ....remoting.header_fields import read
from ...metadata.codec import policy_of
from ..base.bodies import items_of, json_object, malformed, name_of, value_of
from .tables import in_task

if TYPE_CHECKING:
    from ....remoting.connection import Handler
    from ...access.user_admin import UserAdmin
    from ...metadata.tables import Metadata

_DEFAULT = "Default"
#: Each has one name, and `All`.
_ACTIONS_MAX = len(Action) + 1


class ToolAccess:
    """Handlers for users and policies."""

    def __init__(self, metadata: Metadata, users: UserAdmin) -> None:
        self._metadata = metadata
        self._users = users

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        table = {
            Admin.AUTH_CREATE_USER: self.create_user,
            Admin.AUTH_UPDATE_USER: self.update_user,
            Admin.AUTH_DELETE_USER: self.delete_user,
            Admin.AUTH_GET_USER: self.get_user,
            Admin.AUTH_LIST_USER: self.list_users,
            Admin.AUTH_CREATE_ACL: self.put_acl,
            Admin.AUTH_UPDATE_ACL: self.put_acl,
            Admin.AUTH_DELETE_ACL: self.delete_acl,
            Admin.AUTH_GET_ACL: self.get_acl,
            Admin.AUTH_LIST_ACL: self.list_acls,
        }
        return {code: in_task(handler) for code, handler in table.items()}

    async def create_user(self, command: Command) -> Command:
        """Answer AUTH_CREATE_USER."""
        request = _user_request(command)
        request.must_be_new = True
        await self._users.put(request, RequestContext())
        return reply(Reply.SUCCESS)

    async def update_user(self, command: Command) -> Command:
        """Answer AUTH_UPDATE_USER."""
        request = _user_request(command)
        request.must_exist = True
        await self._users.put(request, RequestContext())
        return reply(Reply.SUCCESS)

    async def delete_user(self, command: Command) -> Command:
        """Answer AUTH_DELETE_USER."""
        name = read(UserName, command.fields).name
        await self._users.delete(v1.DeleteUserRequest(name=name), RequestContext())
        return reply(Reply.SUCCESS)

    async def get_user(self, command: Command) -> Command:
        """Answer AUTH_GET_USER: no body if the user does not exist."""
        name = read(UserName, command.fields).name
        users = [user for user in self._all() if user.name == name]
        return reply(Reply.SUCCESS, body=dumps(_user(users[0])) if users else b"")

    async def list_users(self, command: Command) -> Command:
        """Answer AUTH_LIST_USER."""
        part = read(UserFilter, command.fields).part
        users = [_user(user) for user in self._all() if part in user.name]
        return reply(Reply.SUCCESS, body=dumps(users))

    async def put_acl(self, command: Command) -> Command:
        """Answer AUTH_CREATE_ACL and AUTH_UPDATE_ACL."""
        name = _subject(read(AclSubject, command.fields).subject)
        named = [
            (entry, resource)
            for policy in items_of(json_object(command.body), "policies")
            for entry in _entries(policy)
            for resource in _resources(entry)
        ]
        if len(named) > POLICIES_MAX:  # in all, before one is made
            raise malformed(f"it has {len(named)} policies: a user has at most {POLICIES_MAX}")
        policies = [_policy(entry, resource) for entry, resource in named]
        for each in policies:  # all are valid before the first is written
            _check(each)
        for each in policies:
            request = v1.PutPolicyRequest(user=name, policy=each)
            await self._users.put_policy(request, RequestContext())
        return reply(Reply.SUCCESS)

    async def delete_acl(self, command: Command) -> Command:
        """Answer AUTH_DELETE_ACL."""
        header = read(AclSubject, command.fields)
        request = v1.DeletePolicyRequest(user=_subject(header.subject), resource=header.resource)
        await self._users.delete_policy(request, RequestContext())
        return reply(Reply.SUCCESS)

    async def get_acl(self, command: Command) -> Command:
        """Answer AUTH_GET_ACL: no body if the subject has no policies."""
        name = _subject(read(AclSubject, command.fields).subject)
        users = [user for user in self._all() if user.name == name and user.policies]
        return reply(Reply.SUCCESS, body=dumps(_acl(users[0], "")) if users else b"")

    async def list_acls(self, command: Command) -> Command:
        """Answer AUTH_LIST_ACL."""
        header = read(AclFilter, command.fields)
        users = [
            _acl(user, header.resource)
            for user in self._all()
            if header.subject in f"User:{user.name}"
            and any(header.resource in policy.resource for policy in user.policies)
        ]
        return reply(Reply.SUCCESS, body=dumps(users))

    def _all(self) -> list[v1.UserConfig]:
        return list(self._users.list_all(v1.ListUsersRequest(), RequestContext()).users)


def _user_request(command: Command) -> v1.PutUserRequest:
    """Return the request for a UserInfo. Raises RemotingError."""
    bean = json_object(command.body)
    kind, state = value_of(bean, "userType", str, ""), value_of(bean, "userStatus", str, "")
    return v1.PutUserRequest(
        name=read(UserName, command.fields).name,
        secret=value_of(bean, "password", str, ""),
        is_super=kind.lower() == "super" if kind else None,
        enabled=state.lower() == "enable" if state else None,
    )


def _user(user: v1.UserConfig) -> dict[str, str]:
    return {
        "userStatus": "disable" if user.disabled else "enable",
        "userType": "Super" if user.is_super else "Normal",
        "username": user.name,
    }


def _subject(text: str) -> str:
    """Return the user of a subject. Raises RemotingError."""
    kind, _, name = text.partition(":")
    if kind.lower() != "user" or not name:
        raise RemotingError(Reply.INVALID_PARAMETER, f"subject {text[:100]} is not User:NAME")
    return name


def _entries(policy: Any) -> list[Any]:
    """Return the entries of a PolicyInfo. Raises RemotingError."""
    if value_of(policy, "policyType", str, "Custom").lower() == _DEFAULT.lower():
        raise RemotingError(
            Reply.INVALID_PARAMETER, "there are no policies of type Default: use Custom"
        )
    return items_of(policy, "entries")


def _resources(entry: Any) -> list[str]:
    """Return the resources of an entry: one, or a list."""
    resource = entry.get("resource") if isinstance(entry, dict) else None
    if isinstance(resource, list):
        return [str(each) for each in resource]
    return [name_of(entry, "resource")]


def _policy(entry: Any, resource: str) -> v1.AclPolicy:
    """Return the policy of an entry. Raises RemotingError."""
    actions = ",".join(map(str, items_of(entry, "actions", _ACTIONS_MAX)))
    try:
        parsed = parse_actions(actions)
    except ValueError as error:
        raise RemotingError(Reply.INVALID_PARAMETER, str(error)) from None
    decision = value_of(entry, "decision", str, "").lower()
    if decision not in ("allow", "deny"):
        raise malformed("decision is not Allow or Deny")
    sources = [str(each) for each in items_of(entry, "sourceIps", SOURCES_MAX)]
    return v1.AclPolicy(
        resource=resource, actions=parsed, allow=decision == "allow", sources=sources
    )


def _check(policy: v1.AclPolicy) -> None:
    """Raise RemotingError for an invalid policy."""
    try:
        policy_of(policy)
    except (ValueError, WireError) as error:
        raise RemotingError(Reply.INVALID_PARAMETER, str(error)) from None


def _acl(user: v1.UserConfig, resource: str) -> dict[str, Any]:
    """Return the policies of a user, those for matching resources."""
    entries = [
        {
            "actions": action_names(Action(policy.actions)),
            "decision": "Allow" if policy.allow else "Deny",
            "resource": policy.resource,
            "sourceIps": list(policy.sources),
        }
        for policy in user.policies
        if resource in policy.resource
    ]
    policies = [{"entries": entries, "policyType": "Custom"}]
    return {"policies": policies, "subject": f"User:{user.name}"}
