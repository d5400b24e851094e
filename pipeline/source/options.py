"""Options of the `rocketmq` source, with Kafka's names where they exist. Validated on the driver.

Spark passes text with lower-case keys. An unknown option raises OptionError with the nearest name,
an invalid value raises OptionError with the valid values.
"""

from __future__ import annotations

import difflib
import glob
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from ...client.transport.tls import Tls
from ...store.scan.walk import OnCorrupt
from ..decode import BATCH_BYTES, BATCH_ROWS
from ..errors import OptionError
from ..schema import COLUMNS, PropertiesForm
from ..selection import TopicFilter
from ..splits import SPLIT_BYTES
from ..tls_options import TLS_OPTIONS, read_tls
from .offsets import OffsetSpec, parse_offset_spec, parse_offsets

_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
OPTIONS: Final = {
    "path": "store directories, visible to driver and executors; separated by ',', or a glob",
    "endpoints": "HOST:PORT of the cluster; several are separated by ';'",
    "namesrvAddr": "alias of endpoints",
    "accessKey": "access key, with secretKey",
    "secretKey": "secret of the access key",
    "securityToken": "token of temporary keys",
    **TLS_OPTIONS,
    "brokerName": "names of the stores of `path`, in order; default: those that they have recorded",
    "allowReplicas": "true: path may name several replicas of one log",
    "subscribe": "topics, separated by ','",
    "subscribePattern": "regular expression that a topic's whole name matches",
    "assign": 'queues: {"topic":{"broker":[0,1]}} or {"topic":[0,1]}',
    "includeSystemTopics": "include internal topics, retry topics and dead-letter topics",
    "subExpression": "tags: 'TagA || TagB'; * for all",
    "columns": "columns of the row, separated by ','; fewer columns are cheaper",
    "properties": "map, string or none: type of the column properties",
    "decompressBody": "false: return bodies as stored",
    "verifyCrc": "false: do not verify the checksums of selected bodies; true: also without bodies",
    "onCorrupt": "fail, skip or permissive: handling of damaged records",
    "startingOffsets": "earliest, latest or JSON; default: latest (stream), earliest (batch)",
    "startingTimestamp": "ms: start at the first message stored at or after this time",
    "startingOffsetsByTimestamp": "JSON with times in ms instead of offsets",
    _STRATEGY: "error (default) or latest: if a queue has no message at or after the given time",
    "endingOffsets": "latest or JSON, exclusive; batch only",
    "endingTimestamp": "ms: end before the first message stored at or after this time; batch only",
    "endingOffsetsByTimestamp": "JSON with times in ms instead of offsets; batch only",
    "maxOffsetsPerTrigger": "maximum messages of one micro-batch",
    "maxBytesPerTrigger": "maximum record bytes of one micro-batch; overrides maxOffsetsPerTrigger",
    "minOffsetsPerTrigger": "minimum messages of a micro-batch, except of the first of a query",
    "maxTriggerDelay": "for minOffsetsPerTrigger: most time between batches, 500ms, 30s, 1h (15m)",
    "minPartitions": "approximate minimum number of tasks",
    "splitBytes": "bytes of log per task",
    "batchRows": "maximum rows of one Arrow batch",
    "batchBytes": "approximate maximum bytes of one Arrow batch",
    "failOnDataLoss": "false: continue when requested messages no longer exist",
    "consumerGroup": "existing group whose offsets show the progress of a stream; with endpoints",
    "wireTimeoutMs": "how long a broker may not respond",
    "readLog": "auto, always or never: read raw ranges of the log instead of PullMessage",
    "filterPushdown": "true: the source applies filters on topic",
}
_NAMES: Final = {name.lower(): name for name in OPTIONS}
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
ReadLog = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class Access:
    """Endpoints, credentials and settings of a cluster."""

    endpoints: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    tls: Tls | None = None
    timeout_ms: int = 30_000
    read_log: ReadLog = "auto"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options."""

    paths: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    access: Access | None = None
    topics: TopicFilter = field(default_factory=TopicFilter)
    assigned: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None  # topic, broker, queues
    columns: tuple[str, ...] = COLUMNS
    properties: PropertiesForm = "map"
    decompress: bool = True
    verify_crc: bool | None = None  # None: if bodies are selected
    on_corrupt: OnCorrupt = "fail"
    starting: OffsetSpec | None = None
    ending: OffsetSpec | None = None
    max_rows: int = 0
    max_bytes: int = 0
    min_rows: int = 0
    max_delay_ms: int = 15 * 60_000
    min_partitions: int = 0
    split_bytes: int = SPLIT_BYTES
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    fail_on_loss: bool = True
    consumer_group: str = ""
    filter_pushdown: bool = False
    allow_replicas: bool = False

    def queue_filter(self, broker: str) -> TopicFilter:
        """Return the filter of topics and, with `assign`, of the queues of one broker."""
        if self.assigned is None:
            return self.topics
        queues = {
            topic: frozenset((*by_broker.get(broker, ()), *by_broker.get("", ())))
            for topic, by_broker in self.assigned.items()
        }
        return replace(self.topics, queues=queues)


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Parse and validate options. Raises OptionError."""
    given = _OptionReader(_checked(options))
    paths = _paths(given.text("path"))
    endpoints = given.text("endpoints") or given.text("namesrvAddr")
    if bool(paths) == bool(endpoints):
        raise OptionError(
            "Set either `path` (store directories) or `endpoints` (a running cluster)."
        )
    if given.text("consumerGroup") and not endpoints:
        raise OptionError("consumerGroup needs `endpoints`: store directories are read-only.")
    topics, assigned = _topics(given, bool(paths))
    return SourceOptions(
        paths=paths,
        brokers=_brokers(given.text("brokerName"), paths),
        access=_access(given, endpoints),
        topics=topics,
        assigned=assigned,
        columns=_columns(given.text("columns")),
        properties=given.one_of("properties", get_args(PropertiesForm), "map"),
        decompress=given.flag("decompressBody", True),
        verify_crc=given.flag("verifyCrc") if given.text("verifyCrc") else None,
        on_corrupt=given.one_of("onCorrupt", get_args(OnCorrupt), "fail"),
        starting=_offset_spec(given, "starting"),
        ending=_offset_spec(given, "ending"),
        max_rows=given.number("maxOffsetsPerTrigger", 0),
        max_bytes=given.number("maxBytesPerTrigger", 0),
        min_rows=given.number("minOffsetsPerTrigger", 0),
        max_delay_ms=given.duration_ms("maxTriggerDelay", 15 * 60_000),
        min_partitions=given.number("minPartitions", 0),
        split_bytes=given.number("splitBytes", SPLIT_BYTES),
        batch_rows=given.number("batchRows", BATCH_ROWS),
        batch_bytes=given.number("batchBytes", BATCH_BYTES),
        fail_on_loss=given.flag("failOnDataLoss", True),
        consumer_group=given.text("consumerGroup"),
        filter_pushdown=given.flag("filterPushdown", False),
        allow_replicas=given.flag("allowReplicas", False),
    )


class _OptionReader:
    """Reads options by type."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def text(self, name: str) -> str:
        return self._options.get(name, "").strip()

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise OptionError(f"{name} must be true or false, not {text!r}.")
        return default if not text else text == "true"

    def number(self, name: str, default: int, least: int = 1) -> int:
        text = self.text(name)
        if not text:
            return default
        if not text.isascii() or not text.isdecimal() or not least <= int(text) < 1 << 62:
            kind = "positive whole number" if least else "whole number of at least 0"
            raise OptionError(f"{name} must be a {kind}, not {text!r}.")
        return int(text)

    def one_of(self, name: str, values: tuple[str, ...], default: str) -> Any:
        text = self.text(name).lower() or default
        if text not in values:
            valid = f"{', '.join(values[:-1])} or {values[-1]}"
            raise OptionError(f"{name} must be {valid}, not {text!r}.")
        return text

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name).lower()
        match = re.fullmatch(r"(\d+)\s*(ms|s|m|h)", text)
        if text and match is None:
            raise OptionError(f"{name} must be a time like 500ms, 30s, 15m or 1h, not {text!r}.")
        return int(match[1]) * _UNITS_MS[match[2]] if match else default


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key, value in options.items():
        name = _NAMES.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), _NAMES, 1, 0.6)
            hint = f" Did you mean {_NAMES[near[0]]}?" if near else ""
            raise OptionError(
                f"There is no option {key!r}.{hint} Options are: {', '.join(OPTIONS)}."
            )
        found[name] = value
    return found


def _paths(text: str) -> tuple[str, ...]:
    """Return absolute paths, because executors have another working directory."""
    found: list[str] = []
    for part in text.split(","):
        name = part.strip().removeprefix("file://")
        if not name:
            continue
        matches = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
        if not matches:
            raise OptionError(f"No directory matches path {name!r}.")
        found += [os.path.abspath(one) for one in matches]
    if len(set(found)) < len(found):
        raise OptionError("path names one directory twice.")
    return tuple(found)


def _brokers(text: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if names and (len(names) != len(paths) or len(set(names)) < len(names)):
        raise OptionError(f"brokerName needs a different name for each of {len(paths)} paths.")
    return names


def _access(given: _OptionReader, endpoints: str) -> Access | None:
    if not endpoints:
        return None
    if bool(given.text("accessKey")) != bool(given.text("secretKey")):
        raise OptionError("Set both accessKey and secretKey, or neither.")
    return Access(
        endpoints,
        given.text("accessKey"),
        given.text("secretKey"),
        given.text("securityToken"),
        read_tls(given.text),
        given.number("wireTimeoutMs", 30_000),
        given.one_of("readLog", get_args(ReadLog), "auto"),
    )


def _columns(text: str) -> tuple[str, ...]:
    if not text:
        return COLUMNS
    known = {name.lower(): name for name in COLUMNS}
    found = []
    for part in text.split(","):
        name = known.get(part.strip().lower())
        if name is None:
            near = difflib.get_close_matches(part.strip().lower(), known, 1, 0.5)
            hint = f" Did you mean {known[near[0]]}?" if near else ""
            raise OptionError(f"There is no column {part.strip()!r}.{hint}")
        if name not in found:
            found.append(name)
    return tuple(found)


def _topics(
    given: _OptionReader, from_path: bool
) -> tuple[TopicFilter, Mapping[str, Mapping[str, tuple[int, ...]]] | None]:
    named = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name)]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} exclude each other: name one of them.")
    system = given.flag("includeSystemTopics", from_path and not named)
    topics = frozenset(part.strip() for part in given.text("subscribe").split(",")) - {""}
    pattern = given.text("subscribePattern") or None
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"subscribePattern is not a valid regular expression: {error}."
            ) from None
    assigned = _assigned(given.text("assign"))
    if assigned is not None:
        topics = frozenset(assigned)
    chosen = TopicFilter(topics or None, pattern, system, None, _tags(given.text("subExpression")))
    return chosen, assigned


def _tags(text: str) -> frozenset[str] | None:
    if text in ("", "*"):
        return None
    tags = frozenset(part.strip() for part in text.split("||")) - {""}
    if not tags:
        raise OptionError(f"subExpression must be tags like 'TagA || TagB', not {text!r}.")
    return tags


def _assigned(text: str) -> Mapping[str, Mapping[str, tuple[int, ...]]] | None:
    if not text:
        return None
    form = 'assign must be JSON like {"topic":{"broker":[0,1]}} or {"topic":[0,1]}'
    try:
        document = json.loads(text)
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for topic, queues in document.items():
            by_broker = queues if isinstance(queues, dict) else {"": queues}
            found[topic] = {
                broker: tuple(int(number) for number in numbers)
                for broker, numbers in by_broker.items()
            }
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"{form}, not {text!r}.") from None
    if not found:
        raise OptionError(f"{form}, with at least one topic.")
    return found


def _offset_spec(given: _OptionReader, edge: Literal["starting", "ending"]) -> OffsetSpec | None:
    names = (f"{edge}Offsets", f"{edge}Timestamp", f"{edge}OffsetsByTimestamp")
    named = [name for name in names if given.text(name)]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} exclude each other: name one of them.")
    if not named:
        return None
    if named[0] == names[0]:
        return parse_offset_spec(names[0], given.text(names[0]), allow_earliest=edge == "starting")
    # As Kafka's source does, with its default.
    strategy = given.one_of(_STRATEGY, ("error", "latest"), "error")
    strict = edge == "starting" and strategy == "error"
    if named[0] == names[1]:
        return OffsetSpec("time", time_ms=given.number(names[1], 0, least=0), strict=strict)
    times = parse_offsets(names[2], given.text(names[2]), special=False)
    return OffsetSpec("times", offsets=times, strict=strict)
