"""Response codes of the broker's errors, and checks that all classic requests share."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from ....front.context import RequestContext
from ....proto import v2
from ....proto.errors import WireError
from ....remoting.codes import Reply
from ....remoting.connection import RemotingError
from ...messages.validation import check_classic_topic, check_group

if TYPE_CHECKING:
    from ....remoting.connection import Connection
    from ...metadata.tables import Metadata, Topic

#: Clients try another broker on SYSTEM_ERROR, SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, NO_PERMISSION and
#: TOPIC_NOT_EXIST, and report the others.
_REPLIES: dict[int, Reply] = {
    v2.ILLEGAL_TOPIC: Reply.INVALID_PARAMETER,
    v2.ILLEGAL_CONSUMER_GROUP: Reply.INVALID_PARAMETER,
    v2.BAD_REQUEST: Reply.INVALID_PARAMETER,
    v2.ILLEGAL_OFFSET: Reply.INVALID_PARAMETER,
    v2.ILLEGAL_FILTER_EXPRESSION: Reply.SUBSCRIPTION_PARSE_FAILED,
    v2.TOPIC_NOT_FOUND: Reply.TOPIC_NOT_EXIST,
    v2.CONSUMER_GROUP_NOT_FOUND: Reply.SUBSCRIPTION_GROUP_NOT_EXIST,
    v2.OFFSET_NOT_FOUND: Reply.QUERY_NOT_FOUND,
    v2.FORBIDDEN: Reply.NO_PERMISSION,
    v2.UNAUTHORIZED: Reply.NO_PERMISSION,
    v2.TOO_MANY_REQUESTS: Reply.SYSTEM_BUSY,
    v2.MESSAGE_BODY_TOO_LARGE: Reply.MESSAGE_ILLEGAL,
    v2.MESSAGE_PROPERTIES_TOO_LARGE: Reply.MESSAGE_ILLEGAL,
    v2.ILLEGAL_DELIVERY_TIME: Reply.MESSAGE_ILLEGAL,
    v2.UNSUPPORTED: Reply.MESSAGE_ILLEGAL,
    v2.HA_NOT_AVAILABLE: Reply.SERVICE_NOT_AVAILABLE,
    v2.MASTER_PERSISTENCE_TIMEOUT: Reply.FLUSH_DISK_TIMEOUT,
    v2.SLAVE_PERSISTENCE_TIMEOUT: Reply.FLUSH_SLAVE_TIMEOUT,
}
_FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def reply_code(code: int) -> Reply:
    """Return the response code for a code of the gRPC protocol."""
    return _REPLIES.get(code, Reply.SYSTEM_ERROR)


def with_codes(call: Callable[[], Any]) -> Any:
    """Call; a WireError becomes a RemotingError."""
    try:
        return call()
    except WireError as error:
        raise RemotingError(reply_code(error.code), error.message) from None


def user_of(peer: Connection) -> str:
    """Return the user that signed the present request; empty without authentication."""
    return peer.metadata[0][1] if peer.metadata else ""


def context_of(peer: Connection, client_id: str, request_bytes: int = 0) -> RequestContext:
    """Return the context of a request for the services; its user is that of the request."""
    return RequestContext(
        client_id, peer=peer.peer, metadata=peer.metadata, request_bytes=request_bytes
    )


def known_topic(metadata: Metadata, name: str, also: Container[str] = ()) -> Topic:
    """Return the topic; of the system topics, those in `also`, too. Raises WireError,
    RemotingError."""
    if name not in also:
        check_classic_topic(name)
    topic = metadata.topic(name)
    if topic is None:
        raise RemotingError(Reply.TOPIC_NOT_EXIST, no_topic(name))
    return topic


def known_group(metadata: Metadata, name: str) -> str:
    """Return the name of a group that exists. Raises WireError, RemotingError."""
    check_group(name)
    if metadata.group(name) is None:
        raise RemotingError(Reply.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {name} not exist!")
    return name


def no_topic(name: str) -> str:
    """Return the remark for an unknown topic."""
    return f"topic[{name}] not exist, apply first please!\n{_FAQ}"
