"""Lines of the audit log for requests on the remoting port: administrative ones, denials of all,
and what tools read, if that is chosen."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from ....proto import v2
from ....proto.errors import WireError
from ....remoting.admin_codes import Admin
from ....remoting.codes import Reply, Request
from ....remoting.command import ACCESS_KEY, Command
from ....remoting.connection import RemotingError
from ...access.audit import AuditedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ....remoting.connection import Connection, Handler
    from ...access.audit import AuditLog

    Note = Callable[[int, str], None]

#: Requests that change something, and the field with the name of it ("": a list in the body).
CHANGES = {
    Admin.UPDATE_BROKER_CONFIG: "",
    Admin.UPDATE_AND_CREATE_TOPIC: "topic",
    Admin.UPDATE_AND_CREATE_TOPIC_LIST: "",
    Admin.DELETE_TOPIC_IN_BROKER: "topic",
    Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "",
    Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "",
    Admin.DELETE_SUBSCRIPTIONGROUP: "groupName",
    Admin.INVOKE_BROKER_TO_RESET_OFFSET: "group",
    Admin.CLONE_GROUP_OFFSET: "destGroup",
    Request.SET_MESSAGE_REQUEST_MODE: "",
    Request.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
    Admin.AUTH_CREATE_USER: "username",
    Admin.AUTH_UPDATE_USER: "username",
    Admin.AUTH_DELETE_USER: "username",
    Admin.AUTH_CREATE_ACL: "subject",
    Admin.AUTH_UPDATE_ACL: "subject",
    Admin.AUTH_DELETE_ACL: "subject",
}
#: What tools read, in the same form.
READS = {
    Request.QUERY_MESSAGE: "topic",
    Request.VIEW_MESSAGE_BY_ID: "offset",
    Request.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    Admin.QUERY_CONSUME_QUEUE: "topic",
    Admin.GET_BROKER_CONFIG: "",
    Admin.AUTH_GET_USER: "username",
    Admin.AUTH_LIST_USER: "filter",
    Admin.AUTH_GET_ACL: "subject",
    Admin.AUTH_LIST_ACL: "subjectFilter",
}
_NAMES = {int(code): code.name for kind in (Request, Admin) for code in kind}
#: The field with the name in a request that is denied, in this order; sends have letters.
_TARGETS = ("topic", "b", "consumerGroup", "group", "offset")


def audited(
    handlers: Mapping[int, Handler], audit: AuditLog | None, user_of: Callable[[bytes], str]
) -> dict[int, Handler]:
    """Return the table with a line for each request that changes something, also if the handler
    refuses it, and for each denial. `user_of` returns the user that a certificate names."""
    if audit is None:
        return dict(handlers)
    chosen = {**CHANGES, **READS} if audit.reads else CHANGES
    lines: dict[int, Handler] = {
        code: _with_line(handlers[code], audit, code.name, field, user_of)
        for code, field in chosen.items()
    }
    denials = {
        code: _with_denials(handlers[code], audit, code, user_of)
        for code in handlers.keys() - lines.keys()
    }
    return {**lines, **denials}


def _with_denials(
    handler: Handler, audit: AuditLog, code: int, user_of: Callable[[bytes], str]
) -> Handler:
    def handle(command: Command, peer: Connection) -> Any:
        fields = command.fields
        try:
            return handler(command, peer)
        except RemotingError as error:
            if error.code == Reply.NO_PERMISSION and audit.admits_denial(administrative=False):
                target = next((fields[name] for name in _TARGETS if fields.get(name)), "")
                user = fields.get(ACCESS_KEY, "") or user_of(peer.certificate)
                call = AuditedCall(user, peer.peer, _NAMES.get(code, str(code)), target)
                audit.note(call, error.code, error.remark)
            raise

    return handle


def _with_line(
    handler: Handler, audit: AuditLog, name: str, field: str, user_of: Callable[[bytes], str]
) -> Handler:
    def handle(command: Command, peer: Connection) -> Any:
        user = command.fields.get(ACCESS_KEY, "") or user_of(peer.certificate)
        target = command.fields.get(field, "")
        note = partial(audit.note, AuditedCall(user, peer.peer, name, target))
        try:
            answer = handler(command, peer)
        except (RemotingError, WireError) as error:
            is_denial = error.code == Reply.NO_PERMISSION
            if not is_denial or audit.admits_denial(administrative=True):
                _failed(note, error)
            raise
        if isinstance(answer, Command):
            _answered(note, answer)
        else:
            answer.add_done_callback(partial(_ended, note))
        return answer

    return handle


def _ended(note: Note, task: asyncio.Future[Command]) -> None:
    if task.cancelled():
        note(0, "the caller left; the outcome is unknown")
    elif (error := task.exception()) is not None:
        _failed(note, error)
    else:
        _answered(note, task.result())


def _answered(note: Note, answer: Command) -> None:
    if answer.code == Reply.SUCCESS:
        note(v2.OK, "OK")
    else:
        note(answer.code, answer.remark or "")


def _failed(note: Note, error: BaseException) -> None:
    if isinstance(error, RemotingError):
        note(error.code, error.remark)
    elif isinstance(error, WireError):
        note(error.code, error.message)
    else:
        note(Reply.SYSTEM_ERROR, str(error))
