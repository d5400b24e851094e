"""Users, policies and audit: list, create, disable, rotate, delete; why a user may do something.

The calls are those of `cometmq user`, `acl` and `auth check`, in every broker group. With
authentication they need a user of type Super. A secret key is shown once, in the answer to the
form that made it; the page is not stored by the browser.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...auth.model import Action, action_names
from ...operations.broker_groups import answers
from ...operations.errors import CliError, Exit
from ...operations.policies import policy, policy_rows
from ...proto import paths, v1, v2
from ..cluster import CALL_S, Cluster, check, problems
from ..inputs import bad, moment_ms
from ..language import said
from ..views import Form, Plan, Views, moved, quoted
from .named import searched

ACTIONS = tuple(action_names(Action.ALL))
_SECRET_BYTES = 24
_AUDIT_TOPIC, _EVERY_ENTRY = "rmq_sys_COMETMQ_AUDIT", "audit"
_ENTRY = ("time", "user", "from", "call", "target")
#: Audit entries of a page, the newest.
AUDIT_ROWS = 50
_NOTICES = {
    "enabled": said("The user's calls are accepted again."),
    "disabled": said("The user's calls are refused."),
    "deleted": said("The user is deleted."),
    "policy": said("The policy is in force."),
    "removed": said("The policy is removed."),
}


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user of all broker groups."""

    config: v1.UserConfig
    #: Whether the broker groups have different settings, or some lack the user.
    differs: bool

    @property
    def name(self) -> str:
        """The name of the user."""
        return self.config.name

    def text(self) -> str:
        """Return what a search looks at."""
        resources = (each.resource for each in self.config.policies)
        return " ".join((self.config.name, *resources))


_COLUMNS: dict[str, Callable[[UserRow], Any]] = {
    "name": lambda row: row.name,
    "type": lambda row: said("Super") if row.config.is_super else said("Normal"),
    "state": lambda row: "disabled" if row.config.disabled else "enabled",
    "policies": lambda row: len(row.config.policies),
}


def user_rows(found: Sequence[tuple[str, v1.ListUsersResponse]]) -> list[UserRow]:
    """Return the users by name, as the first broker group that has them tells."""
    known: dict[str, list[v1.UserConfig]] = {}
    for config in (config for _, answer in found for config in answer.users):
        known.setdefault(config.name, []).append(config)
    return [
        UserRow(each[0], len(each) < len(found) or any(one != each[0] for one in each))
        for _, each in sorted(known.items())
    ]


def audit_rows(bodies: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the audit entries, the newest first; a line of another form is shown as it is."""
    rows = []
    for body in bodies:
        text = body.decode("utf-8", "replace")
        try:
            entry = json.loads(text)
            row: dict[str, Any] = {name: str(entry[name]) for name in _ENTRY}
            row |= {"is_ok": entry["code"] == v2.OK, "message": str(entry["message"])}
        except (ValueError, KeyError, TypeError):
            row = dict.fromkeys(_ENTRY, "")
            row |= {"is_ok": False, "message": text[:512]}
        rows.append(row)
    return sorted(rows, key=lambda row: str(row["time"]), reverse=True)


class UserPages:
    """The section of users."""

    def __init__(self, cluster: Cluster, views: Views, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._views = views
        self._wall_ms = wall_ms

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/users", self.users),
            views.act("/users", self.create),
            views.show("/users/{name}", self.user),
            views.show("/users/{name}/{act:path}", self.plan),
            views.act("/users/{name}/enable", self.enable),
            views.act("/users/{name}/disable", self.disable),
            views.act("/users/{name}/rotate", self.rotate),
            views.act("/users/{name}/delete", self.delete),
            views.act("/users/{name}/policy", self.put_policy),
            views.act("/users/{name}/policy/delete", self.delete_policy),
            views.show("/audit", self.audit),
        ]

    def _list(self, name: str = "") -> tuple[list[UserRow], list[str]]:
        request = v1.ListUsersRequest(name=name)
        outcomes = self._cluster.each(paths.LIST_USERS, request, v1.ListUsersResponse)
        return user_rows(answers(outcomes)), problems(outcomes)

    def users(self, request: Request) -> Response:
        """List the users that match `q`."""
        rows, failed = self._list()
        return self._views.page(
            request,
            "users.html",
            title=said("Users"),
            **searched(request, rows, _COLUMNS, UserRow.text),
            problems=failed,
            notice=_NOTICES.get(request.query_params.get("done", ""), ""),
        )

    def user(self, request: Request) -> Response:
        """Show a user with its policies; with `action` and `resource` whether it may do that."""
        name, query = request.path_params["name"], request.query_params
        (row, *_), failed = self._list(name)
        asked = {key: query.get(key, "").strip() for key in ("action", "resource", "source")}
        decision, error = None, ""
        if asked["resource"]:
            wanted = v1.CheckAccessRequest(user=name, **asked)
            try:
                decision = self._cluster.connection.call(
                    paths.CHECK_ACCESS, wanted, v1.CheckAccessResponse, CALL_S
                )
            except CliError as refused:
                error = str(refused)
        return self._views.page(
            request,
            "user.html",
            title=name,
            row=row,
            policies=policy_rows(row.config),
            actions=ACTIONS,
            asked=asked,
            decision=decision,
            error=error,
            problems=failed,
            notice=_NOTICES.get(query.get("done", ""), ""),
        )

    def create(self, request: Request, form: Form) -> Response:
        """Create a user in every broker group, and show its secret key."""
        name = form.text("name")
        if not name:
            raise bad("Give the user a name.")
        wanted = v1.PutUserRequest(
            name=name,
            secret=form.text("secret") or secrets.token_urlsafe(_SECRET_BYTES),
            is_super=bool(form.text("is_super")),
            must_be_new=True,
        )
        return self._with_secret(request, wanted, said("User {} is created", name))

    def rotate(self, request: Request, _form: Form) -> Response:
        """Give a user another secret key, and show it."""
        name = request.path_params["name"]
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        wanted = v1.PutUserRequest(name=name, secret=secret, must_exist=True)
        return self._with_secret(request, wanted, said("User {} has a new secret key", name))

    def _with_secret(self, request: Request, wanted: v1.PutUserRequest, title: str) -> Response:
        outcomes = self._cluster.each(paths.PUT_USER, wanted, v1.UserResponse)
        answers(outcomes)  # a key that no broker group has is not shown
        return self._views.page(
            request,
            "user_secret.html",
            title=title,
            name=wanted.name,
            secret=wanted.secret,
            is_new_normal=wanted.must_be_new and not wanted.is_super,
            problems=problems(outcomes),
        )

    def plan(self, request: Request) -> Response:
        """Show what a change of a user does."""
        name, act = request.path_params["name"], request.path_params["act"]
        url = f"/users/{quoted(name)}"
        resource = request.query_params.get("resource", "")
        decision = request.query_params.get("decision", "")
        plans = {
            "disable": (
                said("Disable"),
                said("Every call that the user signs is refused at once."),
            ),
            "enable": (said("Enable"), said("Calls that the user signs are accepted again.")),
            "rotate": (
                said("Rotate the key"),
                said(
                    "The user gets a new secret key, which is shown once. The former one "
                    "is invalid at once: clients that use it are refused until they have "
                    "the new one."
                ),
            ),
            "delete": (
                said("Delete"),
                said("The user and its policies are removed. This cannot be undone."),
            ),
            "policy/delete": (
                said("Remove the policy"),
                said("The policy that would {} actions on {} is removed.", decision, resource),
            ),
        }
        if act not in plans:
            raise CliError(said("There is no page {} of a user.", act), Exit.NOT_FOUND)
        button, effect = plans[act]
        kept = {"resource": resource, "decision": decision} if act == "policy/delete" else {}
        plan = Plan(
            said("{}: user {}", button, name),
            [effect],
            f"{url}/{act}",
            button,
            url,
            fields=kept,
            typed=name if act == "delete" else "",
            is_dangerous=act != "enable",
        )
        return self._views.plan(request, plan)

    def enable(self, request: Request, _form: Form) -> Response:
        """Accept the calls of a user."""
        return self._set_enabled(request.path_params["name"], enabled=True)

    def disable(self, request: Request, _form: Form) -> Response:
        """Refuse the calls of a user."""
        return self._set_enabled(request.path_params["name"], enabled=False)

    def _set_enabled(self, name: str, *, enabled: bool) -> Response:
        wanted = v1.PutUserRequest(name=name, enabled=enabled, must_exist=True)
        check(self._cluster.each(paths.PUT_USER, wanted, v1.UserResponse))
        return moved(f"/users/{quoted(name)}", done="enabled" if enabled else "disabled")

    def delete(self, request: Request, form: Form) -> Response:
        """Delete a user with its policies."""
        name = request.path_params["name"]
        if form.text("typed") != name:
            raise bad("Type {} to confirm.", name)
        wanted = v1.DeleteUserRequest(name=name)
        check(self._cluster.each(paths.DELETE_USER, wanted, v1.UserResponse))
        return moved("/users", done="deleted")

    def put_policy(self, request: Request, form: Form) -> Response:
        """Add a policy; it replaces the one with the same resource and decision."""
        name = request.path_params["name"]
        sources = tuple(form.text("sources").replace(",", " ").split())
        actions = ",".join(form.all("actions"))
        if not actions:
            raise bad("Select at least one action.")
        wanted = policy(form.text("resource"), actions, sources, form.text("decision"))
        put = v1.PutPolicyRequest(user=name, policy=wanted)
        check(self._cluster.each(paths.PUT_POLICY, put, v1.UserResponse))
        return moved(f"/users/{quoted(name)}", done="policy")

    def delete_policy(self, request: Request, form: Form) -> Response:
        """Remove a policy."""
        name, resource = request.path_params["name"], form.text("resource")
        if not resource:
            raise bad("Give the resource of the policy.")
        allow = form.text("decision") == "allow"
        wanted = v1.DeletePolicyRequest(user=name, resource=resource, allow=allow)
        check(self._cluster.each(paths.DELETE_POLICY, wanted, v1.UserResponse))
        return moved(f"/users/{quoted(name)}", done="removed")

    def audit(self, request: Request) -> Response:
        """Show the newest audit entries: all, or those of a call, user or target."""
        query = request.query_params
        now_ms = self._wall_ms()
        wanted = query.get("q", "").strip()[:255]
        asked = v1.QueryMessagesRequest(
            topic=_AUDIT_TOPIC, key=wanted or _EVERY_ENTRY, count=AUDIT_ROWS
        )
        for name, field in (("begin", "begin_ms"), ("end", "end_ms")):
            if query.get(name):
                setattr(asked, field, moment_ms(query[name], now_ms))
        outcomes = self._cluster.each(paths.QUERY_MESSAGES, asked, v1.QueryMessagesResponse)
        found = [each for one in outcomes if one.answer for each in one.answer.messages]
        bodies = (v2.Message.FromString(one.message).body for one in found)
        return self._views.page(
            request,
            "audit.html",
            title=said("Audit"),
            rows=audit_rows(bodies)[:AUDIT_ROWS],
            rows_max=AUDIT_ROWS,
            query={name: query.get(name, "") for name in ("q", "begin", "end")},
            problems=problems(outcomes),
        )
