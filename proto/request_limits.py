"""Request limits: bounds on the bytes and the elements of a request, checked before it is decoded.

A decoded request takes up to fifty times the memory of its bytes, and handlers run on the event
loop. `RequestLimits.check` reads the field headers of an encoded request, without its values, and
raises WireError at the first bound that is exceeded. Requests of at most SCAN_FROM bytes need no
check. Every repeated field has a bound: the one in `_COUNTS`, else ELEMENTS_MAX. The bounds are at
or above what official clients send (docs/formats/grpc-api.md, section 4.1). Pure.
"""

from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import Struct

from . import v2
from .errors import WireError

#: Bytes of the largest request that is not checked, so that common sends pay nothing: it has at
#: most 8,192 elements, which take some milliseconds.
SCAN_FROM: Final = 16_384
#: Bytes of a request, unless `_BYTES` has another bound. The longest text in one is a filter
#: expression.
REQUEST_BYTES_MAX: Final = 256 << 10
#: Bytes of a request other than SendMessage that get an answer with a code.
DOOR_BYTES_MAX: Final = 8 << 20
#: Bytes of a SendMessage: twice the body limit, so that its refusal states the body limit. Decoding
#: more takes tens of milliseconds. Official clients send one message, of at most the body limit.
SEND_BYTES_MAX: Final = 8 << 20
#: Messages of one SendMessage. Official clients send 1, the SDK 32 by default; a thousand are
#: checked and appended within 50 ms.
MESSAGES_MAX: Final = 1_000
#: Receipt handles of one AckMessage. Official clients send 1, the SDK 32; a handle of an earlier
#: delivery takes 15 us.
ACKS_MAX: Final = 1_024
#: Elements of a repeated field.
ELEMENTS_MAX: Final = 4_096
#: User properties of a message, as in the protocol.
USER_PROPERTIES_MAX: Final = 128
#: Keys of a message: each has at least one of the 16 KiB of a message's properties.
KEYS_MAX: Final = 16_384
#: Lite topics of one SyncLiteSubscription; five times the quota of a client.
LITE_TOPICS_MAX: Final = 10_000
#: Bytes of a client's settings: thousands of topics.
SETTINGS_BYTES_MAX: Final = 256 << 10
#: Fields whose headers one check reads: handlers take about 2 us for each, so for a property.
FIELDS_MAX: Final = 20_000

#: A part of at most this size is not searched: it has fewer elements than any bound.
_DESCENT_BYTES: Final = 256
#: Bytes of a SendMessage's first messages that are not searched, so that a batch of 32 messages of
#: 1 KiB costs a tenth less. With two bytes or more for each, they have at most FIELDS_MAX fields;
#: the checks of each message refuse what is over a bound.
_UNSEARCHED_BYTES: Final = 2 * FIELDS_MAX
_VARINT_BYTES_MAX: Final = 10

_TOO_MANY_PROPERTIES: Final = v2.MESSAGE_PROPERTIES_TOO_LARGE
#: Number of elements, and the code above it, by message and field.
_COUNTS: Final[dict[str, tuple[int, int]]] = {
    "SendMessageRequest.messages": (MESSAGES_MAX, v2.PAYLOAD_TOO_LARGE),
    "Message.user_properties": (USER_PROPERTIES_MAX, _TOO_MANY_PROPERTIES),
    "SystemProperties.keys": (KEYS_MAX, _TOO_MANY_PROPERTIES),
    "AckMessageRequest.entries": (ACKS_MAX, v2.BAD_REQUEST),
    "SyncLiteSubscriptionRequest.lite_topic_set": (LITE_TOPICS_MAX, v2.PAYLOAD_TOO_LARGE),
}
#: Bytes of one field, by message and field.
_SIZES: Final = {"TelemetryCommand.settings": SETTINGS_BYTES_MAX}
#: Bytes of a request, and the code above them.
_BYTES: Final[dict[str, tuple[int, int]]] = {
    "SendMessageRequest": (SEND_BYTES_MAX, v2.MESSAGE_BODY_TOO_LARGE),
    # Receipt handles have up to 300 bytes.
    "AckMessageRequest": (2 << 20, v2.PAYLOAD_TOO_LARGE),
    "SyncLiteSubscriptionRequest": (2 << 20, v2.PAYLOAD_TOO_LARGE),
    # A thread dump has megabytes.
    "TelemetryCommand": (4 << 20, v2.PAYLOAD_TOO_LARGE),
    "LocateLogRequest": (2 << 20, v2.PAYLOAD_TOO_LARGE),
}


class _Field(Struct, frozen=True):
    """The bounds of a length-delimited field; 0 means none."""

    name: str
    count: int
    size: int
    code: int
    #: Bounded fields inside, by tag; empty: not searched.
    inner: "dict[int, _Field]"


class RequestLimits:
    """The bounds of one request message."""

    def __init__(self, request: Any, bytes_max: int = 0) -> None:
        """`request` is the message class; `bytes_max` replaces the bound on its bytes if larger."""
        name = request.DESCRIPTOR.name
        known, self._code = _BYTES.get(name, (REQUEST_BYTES_MAX, v2.PAYLOAD_TOO_LARGE))
        self._bytes_max = max(known, bytes_max)
        #: Bytes above which the door refuses a request with a gRPC status; None: its own limit.
        self.door_bytes_max = DOOR_BYTES_MAX if self._bytes_max < DOOR_BYTES_MAX else None
        self._fields = _bounded_fields(request.DESCRIPTOR)
        self._unsearched = _UNSEARCHED_BYTES if name == "SendMessageRequest" else 0

    def check(self, raw: bytes) -> None:
        """Raise WireError if the encoded request exceeds a bound.

        Bytes that cannot be decoded pass up to their first fault, where the decoder fails too.
        """
        if self._fields:
            _scan(raw, 0, len(raw), self._fields, FIELDS_MAX, unsearched=self._unsearched)
        if len(raw) > self._bytes_max:
            raise WireError(
                self._code, f"the request has {len(raw)} bytes; the limit is {self._bytes_max}"
            )


def _bounded_fields(message: Descriptor) -> dict[int, _Field]:
    """Return the length-delimited fields with a bound, or with one inside, by tag."""
    bounded = {}
    for field in message.fields:
        name = f"{message.name}.{field.name}"
        inner = _bounded_fields(field.message_type) if field.message_type is not None else {}
        count, size = 0, _SIZES.get(name, 0)
        code: int = v2.PAYLOAD_TOO_LARGE
        if field.is_repeated:
            count, code = _COUNTS.get(name, (ELEMENTS_MAX, code))
            if field.type not in _UNPACKED:
                size = _VARINT_BYTES_MAX * count  # all elements are in one packed value
        if count or size or inner:
            bounded[field.number << 3 | 2] = _Field(field.name, count, size, code, inner)
    return bounded


_UNPACKED: Final = frozenset(
    (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
)


def _scan(
    raw: bytes, at: int, end: int, fields: dict[int, _Field], left: int, *, unsearched: int = 0
) -> int:
    """Check the fields between two positions; return how many more may be read of `left`.

    The first parts are not searched for fields inside, up to `unsearched` bytes of them.
    """
    counts: dict[int, int] = {}
    find = fields.get
    while at < end:
        if left <= 0:
            raise WireError(
                v2.PAYLOAD_TOO_LARGE, f"the request has more than {FIELDS_MAX} fields: send less"
            )
        left -= 1
        tag = raw[at]
        at += 1
        if tag & 0x80:
            tag, at = _varint(raw, at - 1, end)
        kind = tag & 7
        if kind == 2:
            size = raw[at] if at < end else 0
            at += 1
            if size & 0x80:
                size, at = _varint(raw, at - 1, end)
            start = at
            at += size
            field = find(tag)
            if field is not None:
                if field.count:
                    counts[tag] = count = counts.get(tag, 0) + 1
                    if count > field.count:
                        raise WireError(
                            field.code,
                            f"the request has more than {field.count} elements of {field.name}",
                        )
                if field.size and size > field.size:
                    raise WireError(
                        field.code,
                        f"{field.name} has {size} bytes; the limit is {field.size}",
                    )
                if size <= unsearched:
                    unsearched -= size
                elif field.inner and size > _DESCENT_BYTES:
                    left = _scan(raw, start, min(at, end), field.inner, left)
        elif kind == 0:
            _, at = _varint(raw, at, end)
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        elif kind > 5:
            return left  # no such kind
        # Groups (3, 4) have no length: the fields inside are read like the others.
    return left


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a varint and the position behind it; `end` as position if it is cut or too long."""
    value = shift = 0
    for position in range(at, min(end, at + _VARINT_BYTES_MAX)):
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    return value, end
