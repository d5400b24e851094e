"""Catalogue of the JSON files of `config/`, with a check for each.

Used by readers that validate a file, and by `store verify`. Unknown fields are valid: readers
ignore them and writers keep them (docs/formats/store-format.md, sections 12.2 and 12.3). A field is
required if Apache always writes it. Dialect and protocol: `format/json_file.py`.

| file                                | content                             | if lost             |
| ----------------------------------- | ----------------------------------- | ------------------- |
| topics.json, topicQueueMapping.json | topics; static topics               | foreign settings    |
| subscriptionGroup.json              | consumer groups                     | foreign settings    |
| consumerOffset.json, lmqConsumer... | next offset of each group and queue | repeated deliveries |
| delayOffset.json                    | next offset of each delay level     | repeated deliveries |
| consumerFilter.json                 | SQL filters of consumers            | registered again    |
| consumerOrderInfo.json              | unacknowledged ordered pops         | repeated deliveries |
| messageRequestMode.json             | pull or pop, by topic and group     | foreign settings    |
| timermetrics, transactionMetrics    | counts of waiting messages          | counts              |
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from ..format.json_file import ConfigSyntaxError, loads

#: Yields the problems of a value at a path, as sentences.
Check = Callable[[Any, str], Iterator[str]]

_WHOLE_NUMBER: Final = re.compile(r"-?\d{1,19}", re.ASCII)
#: fastjson escapes these; raw ones are damage.
_CONTROL_BYTES: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]+")
_TOPIC_AND_GROUP: Final = re.compile(r"[^@]+@[^@]+")


class Fault(Struct, frozen=True):
    """Bytes [begin, end) of a file and what is wrong with them."""

    begin: int
    end: int
    reason: str


def number(value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield f"{at} is {value!r}, not a whole number."


def count(value: Any, at: str) -> Iterator[str]:
    yield from number(value, at)
    if isinstance(value, int) and value < 0:
        yield f"{at} is {value}, below 0."


def text(value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{at} is {value!r}, not a text."


def flag(value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{at} is {value!r}, not true or false."


def array(item: Check) -> Check:
    def check(value: Any, at: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{at} is not an array."
            return
        for index, each in enumerate(value):
            yield from item(each, f"{at}[{index}]")

    return check


def bean(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Return a check of an object with known fields, and any others. null counts as absent."""
    known = {**required, **(optional or {})}

    def check(value: Any, at: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at or 'the file'} is not an object."
            return
        for name in required:
            if value.get(name) is None:
                yield f"{at or 'the file'} has no {name}."
        for name, item in known.items():
            if value.get(name) is not None:
                yield from item(value[name], f"{at}.{name}" if at else name)

    return check


def table(item: Check, key: Check | None = None, named: str = "") -> Check:
    """Return a check of an object that maps names to values of one kind; `named`: the field that
    repeats the name."""

    def check(value: Any, at: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at} is not an object."
            return
        for name, each in value.items():
            place = f"{at}.{name}"
            if key is not None:
                yield from key(name, f"the key {place}")
            yield from item(each, place)
            if named and isinstance(each, dict) and each.get(named) not in (None, name):
                yield f"{place} has the name {each[named]!r}."

    return check


def number_key(value: Any, at: str) -> Iterator[str]:
    """Check a numeric key: bare, or quoted as strict JSON needs it."""
    if not isinstance(value, int) and not _WHOLE_NUMBER.fullmatch(value):
        yield f"{at} is not a number."


def topic_and_group(value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, str) or not _TOPIC_AND_GROUP.fullmatch(value):
        yield f"{at} is not of the form topic@group."


_VERSION: Final = bean({"counter": count, "stateVersion": number, "timestamp": number})
_VERSIONED: Final = {"dataVersion": _VERSION}
_OFFSETS: Final = table(table(count, number_key), topic_and_group)

_TOPIC: Final = bean(
    {"perm": count, "readQueueNums": count, "topicName": text, "writeQueueNums": count},
    {
        "attributes": table(text),
        "order": flag,
        "topicFilterType": text,
        "topicSysFlag": number,
    },
)
_RETRY_POLICY: Final = bean(
    {"type": text},
    {
        "customizedRetryPolicy": bean({}, {"next": array(count)}),
        "exponentialRetryPolicy": bean({}, {"initial": count, "max": count, "multiplier": count}),
    },
)
_GROUP: Final = bean(
    {"groupName": text, "retryMaxTimes": number, "retryQueueNums": count},
    {
        "attributes": table(text),
        "brokerId": number,
        "consumeBroadcastEnable": flag,
        "consumeEnable": flag,
        "consumeFromMinEnable": flag,
        "consumeMessageOrderly": flag,
        "consumeTimeoutMinute": number,
        "groupRetryPolicy": _RETRY_POLICY,
        "groupSysFlag": number,
        "notifyConsumerIdsChangedEnable": flag,
        "whichBrokerWhenConsumeSlowly": number,
    },
)
_FILTER: Final = bean(
    {"consumerGroup": text, "topic": text},
    {
        "bloomFilterData": bean({"bitNum": count, "bitPos": array(count)}),
        "bornTime": number,
        "clientVersion": number,
        "dead": flag,
        "deadTime": number,
        "expression": text,
        "expressionType": text,
    },
)
_ORDER: Final = bean(
    {"o": array(count)},
    {
        "a": text,
        "cm": number,
        "i": number,
        "l": number,
        "oc": table(number, number_key),
        "ot": table(number, number_key),
        "popTime": number,
    },
)
_REQUEST_MODE: Final = bean(
    {"mode": text}, {"consumerGroup": text, "popShareQueueNum": number, "topic": text}
)
_MAPPED_QUEUE: Final = bean(
    {"bname": text, "queueId": count},
    {"endOffset": number, "gen": number, "logicOffset": number, "startOffset": number},
)
_MAPPING: Final = bean(
    {"bname": text, "topic": text, "totalQueues": count},
    {
        "currIdMap": table(number, number_key),
        "dirty": flag,
        "epoch": number,
        "hostedQueues": table(array(_MAPPED_QUEUE), number_key),
        "scope": text,
    },
)
_METRIC: Final = table(bean({"count": number, "timeStamp": number}))
_CONSUMER_OFFSETS: Final = {"groupTopicMap": table(array(text)), "pullOffsetTable": _OFFSETS}

#: The check of each file, by its name in `config/`.
FILES: Final[Mapping[str, Check]] = {
    "topics.json": bean({"topicConfigTable": table(_TOPIC, named="topicName")}, _VERSIONED),
    "subscriptionGroup.json": bean(
        {"subscriptionGroupTable": table(_GROUP, named="groupName")},
        {"forbiddenTable": table(table(number)), **_VERSIONED},
    ),
    "consumerOffset.json": bean({"offsetTable": _OFFSETS}, {**_CONSUMER_OFFSETS, **_VERSIONED}),
    "lmqConsumerOffset.json": bean(
        {"offsetTable": _OFFSETS},
        {"lmqOffsetTable": table(count, topic_and_group), **_CONSUMER_OFFSETS, **_VERSIONED},
    ),
    "delayOffset.json": bean({"offsetTable": table(count, number_key)}, _VERSIONED),
    "consumerFilter.json": bean(
        {
            "filterDataByTopic": table(
                bean({"groupFilterData": table(_FILTER, named="consumerGroup"), "topic": text}),
                named="topic",
            )
        }
    ),
    "consumerOrderInfo.json": bean(
        {"table": table(table(_ORDER, number_key), topic_and_group)},
        {"orderInfoCount": count, "orderedConsumptionLevel": text},
    ),
    "messageRequestMode.json": bean({"messageRequestModeMap": table(table(_REQUEST_MODE))}),
    "topicQueueMapping.json": bean(
        {"topicQueueMappingInfoMap": table(_MAPPING, named="topic")}, _VERSIONED
    ),
    "timermetrics": bean({"timingCount": _METRIC}, _VERSIONED),
    "transactionMetrics": bean({"transactionCount": _METRIC}, _VERSIONED),
}
#: Files of one line of ASCII (`dumps(..., compact=True)`).
COMPACT: Final = frozenset({"timermetrics", "transactionMetrics"})


def check_of(name: str) -> Check | None:
    """Return the check of a file or of its backup; None for an unknown file."""
    return FILES.get(name.removesuffix(".bak"))


def problems(name: str, content: Any) -> list[str]:
    """Return what is wrong with the content of a known file, as sentences."""
    return list(FILES[name.removesuffix(".bak")](content, ""))


def examine(name: str, data: bytes) -> list[Fault]:
    """Return all faults in the bytes of a known file; an empty file is left over from a crash and
    is valid."""
    if not data.strip():
        return []
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return [Fault(error.start, error.end, "bytes that are not UTF-8.")]
    faults = [
        Fault(*match.span(), "unescaped control characters.")
        for match in _CONTROL_BYTES.finditer(data)
    ]
    try:
        content = loads(decoded)
    except ConfigSyntaxError as error:
        if not faults:
            begin = min(len(decoded[: error.position].encode()), len(data) - 1)
            faults.append(Fault(begin, len(data), f"not JSON: {error.reason}."))
        return faults
    return faults + [Fault(0, len(data), reason) for reason in problems(name, content)]


def number_table(value: Mapping[Any, Any]) -> dict[int, int]:
    """Return a map of numbers; keys may have been quoted."""
    return {int(key): int(item) for key, item in value.items()}
