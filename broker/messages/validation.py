"""Validation of client requests: every check with its code, in the order of the protocol. Pure.

Source: docs/formats/grpc-api.md, sections 4.1-4.4 (names, message properties), 5.6, 5.8 (filters,
durations), 7.2 (polling time) and 10.2 (message types). The first failed check raises `WireError`;
there are no side effects. The native crate accepts common messages without these checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.property_names import DELIVERED_PROPERTIES, FORBIDDEN_PROPERTIES
from .wire import TIMESTAMP_MAX_MS, TIMESTAMP_MIN_MS

if TYPE_CHECKING:
    from ...front.context import RequestContext

MAX_USER_PROPERTIES = 128
MAX_PROPERTIES_BYTES = 16_384
MAX_MESSAGE_GROUP_BYTES = 63
MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 120
MAX_LITE_TOPIC_BYTES = 64
MAX_DELAY_MS = 86_400_000
MAX_RECOVERY_S = 3_600


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Type of a topic that accepts every message type.
MIXED = -1

SYSTEM_TOPICS = _names(
    """
    TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRACE_TOPIC
    RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT
    CHECKPOINT_TOPIC
    """
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
#: System topics that classic clients write and read: message traces, Apache's benchmark.
OPEN_TOPICS = _names("RMQ_SYS_TRACE_TOPIC BenchmarkTest")
#: System topics whose messages tools look up and read: those, and messages that wait.
SEARCHED_TOPICS = OPEN_TOPICS | _names(
    "RMQ_SYS_TRANS_HALF_TOPIC SCHEDULE_TOPIC_XXXX rmq_sys_wheel_timer"
)
SYSTEM_GROUPS = _names(
    """
    DEFAULT_CONSUMER DEFAULT_PRODUCER TOOLS_CONSUMER SCHEDULE_CONSUMER FILTERSRV_CONSUMER
    __MONITOR_CONSUMER CLIENT_INNER_PRODUCER SELF_TEST_P_GROUP SELF_TEST_C_GROUP
    CID_ONS-HTTP-PROXY CID_ONSAPI_PERMISSION CID_ONSAPI_OWNER CID_ONSAPI_PULL
    CID_RMQ_SYS_TRANS
    """
)
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
#: The group of tools that pull without offsets or settings; it is not created.
TOOLS_GROUP = "TOOLS_CONSUMER"
_TOPIC_TOO_LONG = f"the topic is longer than {MAX_TOPIC_LENGTH} characters"
_GROUP_TOO_LONG = f"the consumer group is longer than {MAX_GROUP_LENGTH} characters"

# Read for every message: a global name is twice as fast as a module attribute.
_NORMAL, _TRANSACTION, _GZIP = v2.NORMAL, v2.TRANSACTION, v2.GZIP

_REFUSED_PROPERTIES = FORBIDDEN_PROPERTIES - DELIVERED_PROPERTIES

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_LITE_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Draft(Struct):
    """A message that passed the checks, with its fields read once."""

    message_id: str
    body: bytes
    tag: str
    #: Joined by one space, as stored.
    keys: str
    message_group: str
    trace_context: str
    user_properties: Mapping[str, str] | None
    #: Derived from the properties, not from the client's declared type (except TRANSACTION).
    message_type: int
    delivery_ms: int | None
    born_ms: int
    born_host: str
    compressed: bool
    lite_topic: str = ""
    priority: int | None = None
    #: Seconds before the first transaction check; None: the broker's setting.
    recovery_s: int | None = None


def has_client_id(ctx: RequestContext) -> bool:
    """Return whether the request has a client id; every RPC needs one."""
    return bool(ctx.client_id) and not ctx.client_id.isspace()


def require_client_id(ctx: RequestContext) -> None:
    """Raise CLIENT_ID_REQUIRED unless the request has a client id."""
    if not has_client_id(ctx):
        raise WireError(v2.CLIENT_ID_REQUIRED, "client id cannot be empty")


def check_topic(name: str) -> None:
    """Raise ILLEGAL_TOPIC unless clients may use the name."""
    # The cache must not keep long names.
    problem = _TOPIC_TOO_LONG if len(name) > MAX_TOPIC_LENGTH else _topic_problem(name)
    if problem:
        raise WireError(v2.ILLEGAL_TOPIC, problem)


def check_classic_topic(name: str) -> None:
    """Raise ILLEGAL_TOPIC unless classic clients and tools may use the name."""
    if name not in OPEN_TOPICS:
        check_topic(name)


def check_group(name: str) -> None:
    """Raise ILLEGAL_CONSUMER_GROUP unless clients may use the name."""
    problem = _GROUP_TOO_LONG if len(name) > MAX_GROUP_LENGTH else _group_problem(name)
    if problem:
        raise WireError(v2.ILLEGAL_CONSUMER_GROUP, problem)


@lru_cache(maxsize=4096)
def _topic_problem(name: str) -> str:
    if not name or name.isspace():
        return "the topic is blank"
    if not _NAME.fullmatch(name):
        return f"topic {name!r} may hold only letters, digits and % | _ -"
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        return f"{name} is a system topic"
    return ""


@lru_cache(maxsize=4096)
def _group_problem(name: str) -> str:
    if not name or name.isspace():
        return "the consumer group is blank"
    if not _NAME.fullmatch(name):
        return f"consumer group {name!r} may hold only letters, digits and % | _ -"
    if name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX):
        return f"{name} is a system group"
    return ""


def check_messages(
    messages: Sequence[v2.Message], now_ms: int, max_body: int, max_delay_ms: int = MAX_DELAY_MS
) -> list[Draft]:
    """Check the messages of one SendMessage in the protocol's order; raise on the first fault."""
    if not messages:
        raise WireError(v2.MESSAGE_CORRUPTED, "no message to send")
    topic = messages[0].topic.name
    check_topic(topic)
    if len(messages) == 1:
        return [check_message(messages[0], now_ms, max_body, max_delay_ms)]
    for message in messages:
        if message.topic.name != topic:
            raise WireError(
                v2.MESSAGE_CORRUPTED, "the messages of one request have different topics"
            )
    return [check_message(message, now_ms, max_body, max_delay_ms) for message in messages]


def check_total(messages: Sequence[v2.Message], max_bytes: int) -> None:
    """Raise MESSAGE_BODY_TOO_LARGE unless the bodies of a request fit into one message.

    The reference stores them as one.
    """
    size = 0
    for message in messages:
        size += len(message.body)
        if size > max_bytes:
            raise WireError(
                v2.MESSAGE_BODY_TOO_LARGE,
                f"the bodies of one request are over {max_bytes} bytes: send fewer messages",
            )


def check_message(
    message: v2.Message, now_ms: int, max_body: int, max_delay_ms: int = MAX_DELAY_MS
) -> Draft:
    """Check one message and read its fields once (a protobuf read costs more than most checks)."""
    system = message.system_properties
    body = message.body
    message_id = system.message_id
    tag = system.tag
    key_list = system.keys
    keys = " ".join(key_list) if key_list else ""
    group = system.message_group
    trace_context = system.trace_context
    born_host = system.born_host
    users: Mapping[str, str] | None = message.user_properties
    transaction = system.message_type == _TRANSACTION
    _check_in_order(message, system, body, max_body)
    born_ms = _millis(system.born_timestamp) or now_ms
    if not TIMESTAMP_MIN_MS <= born_ms <= TIMESTAMP_MAX_MS:
        # Not in the protocol's list; such a time is not a valid protobuf Timestamp.
        raise WireError(v2.BAD_REQUEST, "the born time is outside the years 1 to 9999")
    delivery_ms = None
    if system.HasField("delivery_timestamp"):
        delivery_ms = _millis(system.delivery_timestamp)
        if not TIMESTAMP_MIN_MS <= delivery_ms <= TIMESTAMP_MAX_MS:
            raise WireError(
                v2.ILLEGAL_DELIVERY_TIME, "the delivery time is outside the years 1 to 9999"
            )
        if 0 < max_delay_ms < delivery_ms - now_ms:
            raise WireError(
                v2.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is more than {max_delay_ms} ms ahead (maxDelayTimeMills)",
            )
    priority = system.HasField("priority")
    if priority and system.priority < 0:
        raise WireError(v2.BAD_REQUEST, "the priority is negative")
    lite_topic = system.lite_topic
    if group or lite_topic:
        _check_group_and_lite_topic(group, lite_topic)
    # The derived type; precedence as in docs/formats/grpc-api.md, section 10.2.
    message_type: int = _NORMAL
    if transaction:
        message_type = _TRANSACTION
    elif delivery_ms is not None:
        message_type = v2.DELAY
    elif group:
        message_type = v2.FIFO
    elif priority:
        message_type = v2.PRIORITY
    elif lite_topic:
        message_type = v2.LITE
    return Draft(
        message_id,
        body,
        tag,
        keys,
        group,
        trace_context,
        _own_properties(users) if users else None,
        message_type,
        delivery_ms,
        born_ms,
        born_host,
        system.body_encoding == _GZIP,
        lite_topic,
        system.priority if priority else None,
        _recovery_s(system) if transaction else None,
    )


def _recovery_s(system: v2.SystemProperties) -> int | None:
    """Return whole seconds, as stored; rounded up, because a check must not come too early."""
    duration = system.orphaned_transaction_recovery_duration
    return duration.seconds + (duration.nanos > 0) or None


def check_message_type(drafts: list[Draft], topic_type: int) -> None:
    """Raise MESSAGE_PROPERTY_CONFLICT_WITH_TYPE unless the topic accepts every message."""
    if topic_type == MIXED:
        return
    for draft in drafts:
        if draft.message_type != topic_type:
            raise WireError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"the topic takes {_type_name(topic_type)} messages, "
                f"this one is {_type_name(draft.message_type)}",
            )


def _type_name(message_type: int) -> str:
    known = v2.MessageType.DESCRIPTOR.values_by_number.get(message_type)
    return known.name if known else str(message_type)


def _millis(time: v2.Timestamp | v2.Duration) -> int:
    return time.seconds * 1000 + time.nanos // 1_000_000


def _check_in_order(
    message: v2.Message, system: v2.SystemProperties, body: bytes, max_body: int
) -> None:
    """Run checks 3 to 10 of docs/formats/grpc-api.md, section 4.3, in order."""
    if not body:
        raise WireError(v2.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > max_body:
        raise WireError(v2.MESSAGE_BODY_TOO_LARGE, f"the body is over {max_body} bytes")
    size = _check_user_properties(message.user_properties)
    if _CONTROL.search(f"{system.trace_context}{system.born_host}"):
        # Not in the protocol's list, but the store separates properties by control characters.
        raise WireError(
            v2.ILLEGAL_MESSAGE_PROPERTY_KEY, "trace context or host holds a control character"
        )
    tag = system.tag
    if tag and (tag.isspace() or "|" in tag or _CONTROL.search(tag)):
        raise WireError(
            v2.ILLEGAL_MESSAGE_TAG, "the tag is blank, or holds | or a control character"
        )
    size += len(tag.encode())
    for key in system.keys:
        # A space separates the keys of a record: a key that holds one would come back as two.
        if not key or " " in key or key.isspace() or _CONTROL.search(key):
            raise WireError(
                v2.ILLEGAL_MESSAGE_KEY, "a key is blank, or holds a space or a control character"
            )
        size += len(key.encode())
    if size > MAX_PROPERTIES_BYTES:
        raise WireError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys are over {MAX_PROPERTIES_BYTES} bytes",
        )
    if not system.message_id or system.message_id.isspace():
        raise WireError(v2.ILLEGAL_MESSAGE_ID, "the message id is blank")
    if _CONTROL.search(system.message_id):
        raise WireError(v2.ILLEGAL_MESSAGE_ID, "the message id holds a control character")
    if system.message_type == v2.TRANSACTION:
        recovery = system.orphaned_transaction_recovery_duration
        if recovery.seconds > MAX_RECOVERY_S or (
            recovery.seconds == MAX_RECOVERY_S and recovery.nanos > 0
        ):
            raise WireError(v2.BAD_REQUEST, "the transaction's recovery time is over an hour")


def _check_user_properties(properties: Mapping[str, str]) -> int:
    """Check the user's properties; return their size in bytes."""
    if len(properties) > MAX_USER_PROPERTIES:
        raise WireError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE, f"there are over {MAX_USER_PROPERTIES} properties"
        )
    if not properties:
        return 0
    for key in properties:
        if key in _REFUSED_PROPERTIES:
            raise WireError(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {key} is reserved")
        if not key:
            # The store's readers lose a property without a name.
            raise WireError(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property has an empty name")
    text = "".join(properties) + "".join(properties.values())
    if _CONTROL.search(text):
        raise WireError(
            v2.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property name or value holds a control character"
        )
    return len(text.encode())


def _own_properties(properties: Mapping[str, str]) -> Mapping[str, str] | None:
    """Drop `DELIVERED_PROPERTIES`: the broker writes them, and an application that copies the
    properties of a received message into a new one sends them back.
    """
    if DELIVERED_PROPERTIES.isdisjoint(properties):
        return properties
    return {n: v for n, v in properties.items() if n not in DELIVERED_PROPERTIES} or None


def _check_group_and_lite_topic(group: str, lite_topic: str) -> None:
    if group:
        if group.isspace() or _CONTROL.search(group):
            raise WireError(
                v2.ILLEGAL_MESSAGE_GROUP, "the message group is blank or holds a control character"
            )
        if len(group.encode()) > MAX_MESSAGE_GROUP_BYTES:
            raise WireError(
                v2.ILLEGAL_MESSAGE_GROUP,
                f"the message group is over {MAX_MESSAGE_GROUP_BYTES} bytes",
            )
    problem = lite_topic_problem(lite_topic) if lite_topic else ""
    if problem:
        raise WireError(v2.ILLEGAL_LITE_TOPIC, problem)


def lite_topic_problem(name: str) -> str:
    """Return why the name is not a valid lite topic; "" if it is."""
    if len(name) <= MAX_LITE_TOPIC_BYTES and _LITE_NAME.fullmatch(name):
        return ""
    return f"a lite topic is 1 to {MAX_LITE_TOPIC_BYTES} letters, digits, _ and -"


# Receiving (docs/formats/grpc-api.md, sections 5.6, 5.8 and 7.2).

MAX_BATCH = 32
MIN_POLLING_MS = 5_000
MAX_POLLING_MS = 20_000
MIN_INVISIBLE_MS = 10_000
MAX_INVISIBLE_MS = 12 * 3_600_000
DEFAULT_REQUEST_TIMEOUT_MS = 3_000


def polling_ms(
    asked_ms: int | None,
    remaining_ms: int | None,
    request_timeout_ms: int = 0,
    *,
    may_be_short: bool = False,
) -> int:
    """Return how long a poll is held: the requested time within 5 to 20 s, ending before the
    deadline; also less than 5 s if it `may_be_short`.

    A deadline too short for 5 s gets a shorter poll, not an error: no client depends on
    ILLEGAL_POLLING_TIME, and the official Python client requests as little as 3 s.
    """
    if asked_ms is None:
        if remaining_ms is None:
            return MAX_POLLING_MS
        asked_ms = remaining_ms - (request_timeout_ms or DEFAULT_REQUEST_TIMEOUT_MS) // 2
    least = 0 if may_be_short else MIN_POLLING_MS
    held = min(max(asked_ms, least), MAX_POLLING_MS)
    if remaining_ms is None:
        return held
    # The empty response must arrive before the deadline: a tenth of the time, 100 to 500 ms, is
    # reserved.
    margin = min(500, max(100, remaining_ms // 10))
    return max(0, min(held, remaining_ms - margin))


def duration_ms(duration: v2.Duration) -> int:
    """Return a protobuf duration in milliseconds."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def check_invisible(invisible_ms: int, low_ms: int) -> None:
    """Raise ILLEGAL_INVISIBLE_TIME unless the time is between `low_ms` and 12 h."""
    if not low_ms <= invisible_ms <= MAX_INVISIBLE_MS:
        raise WireError(
            v2.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time {invisible_ms} ms is outside {low_ms} to {MAX_INVISIBLE_MS} ms",
        )
