"""Codec of the revive topic's records: checkpoints of popped batches, and their acks. Pure.

    ck     a batch: its messages, pop time, invisible time, messages already done
    ack    one message of a batch is done
    bAck   several messages of a batch are done

Compact JSON, keys in alphabetical order, byte for byte what Apache 5.5 writes
(docs/formats/broker-semantics.md, section 1.7; golden case `grpc`). Each is stored as a timer
message for the revive topic: a checkpoint arrives there a second before the end of its invisible
time, its acks at that end, so that a reader of the queue gets the checkpoint first. A record that
is due already is stored in the revive topic directly, without the timer's properties
(docs/formats/store-format.md, section 2.12). Properties are in the order of a Java map of 16
buckets (section 2.4). Decoding an invalid record returns None, never raises.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from ...store.format.properties import java_hash
from ...store.format.record import Message
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC, rounded

#: The group whose consumer offsets mark what is settled in the revive topic.
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
TAG_CODES = frozenset(java_hash(tag) for tag in (CK_TAG, ACK_TAG, BATCH_ACK_TAG))
#: Messages of one checkpoint: the bits of a Java int.
BATCH_MAX = 32
#: A checkpoint arrives this long before its acks.
ACK_INTERVAL_MS = 1_000

_WORD = 1 << BATCH_MAX
_LONG = 1 << 63


def revive_topic(cluster: str) -> str:
    """Topic where due checkpoints and acks arrive."""
    return f"rmq_sys_REVIVE_LOG_{cluster}"


class BatchKey(NamedTuple):
    """Joins a checkpoint with its acks, without the broker's name."""

    #: The topic that was read: the retry topic for a retried message.
    topic: str
    group: str
    queue_id: int
    start: int
    pop_ms: int


class CheckpointRecord(Struct):
    """A `ck` record."""

    key: BatchKey
    invisible_ms: int
    #: Distances of the batch's messages from `key.start`; bit j belongs to the j-th.
    distances: Sequence[int]
    #: Bits of the messages done when it was written.
    acked: int = 0
    #: The delivery is not counted as an attempt.
    suspended: bool = False


class AckRecord(Struct):
    """An `ack` or a `bAck`."""

    key: BatchKey
    offsets: list[int] = field(default_factory=list)


def decode(body: bytes) -> CheckpointRecord | AckRecord | None:
    """Decode a body; None for anything else."""
    try:
        fields = json.loads(body)
        key = BatchKey(
            _text(fields["t"]),
            _text(fields["c"]),
            _number(fields["q"]),
            _number(fields["so"]),
            _number(fields["pt"]),
        )
        if "it" in fields:
            return _checkpoint(key, fields)
        listed = fields.get("aol")
        offsets = [fields["ao"]] if listed is None else listed
        return AckRecord(key, [_number(offset) for offset in offsets])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checkpoint(key: BatchKey, fields: dict[str, Any]) -> CheckpointRecord:
    listed = fields.get("d")
    count = _number(fields["n"]) if listed is None else len(listed)
    if count > BATCH_MAX:
        raise ValueError("more messages than bits")
    # Without distances the messages are consecutive.
    distances = range(count) if listed is None else [_number(d) for d in listed]
    acked = _number(fields.get("bm", 0)) % _WORD
    return CheckpointRecord(
        key, _number(fields["it"]), distances, acked, fields.get("sp", False) is True
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not a number")
    if not -_LONG <= value < _LONG:
        raise ValueError("not a Java long")
    return value


class ReviveWriter:
    """Creates the records of one broker."""

    def __init__(self, broker: str, topic: str, precision_ms: int) -> None:
        self._broker = broker
        self._quoted_broker = json.dumps(broker)
        self._topic = topic
        self._precision_ms = precision_ms
        #: Born host and store host, packed.
        self.host = b""
        #: How far the pop times are ahead of the wall time, which timers are due by.
        self.ahead_ms = 0

    def checkpoint(self, record: CheckpointRecord, revive_queue: int, now_ms: int) -> Message:
        """Return the record of a batch."""
        key = record.key
        visible_ms = key.pop_ms + record.invisible_ms
        # A Java int: the last of 32 bits is its sign.
        acked = record.acked - _WORD if record.acked >> (BATCH_MAX - 1) else record.acked
        distances = ",".join(map(str, record.distances))
        body = (
            f'{{"bm":{acked},"bn":{self._quoted_broker},"c":{json.dumps(key.group)},'
            f'"d":[{distances}],"it":{record.invisible_ms},"n":{len(record.distances)},'
            f'"pt":{key.pop_ms},"q":{key.queue_id},"reviveTime":{visible_ms},"ro":0,'
            f'"so":{key.start},"sp":{"true" if record.suspended else "false"},'
            f'"t":{json.dumps(key.topic)}}}'
        )
        unique = f"{self._unique(key, key.start)}@{self._broker}@{CK_TAG}"
        times = visible_ms - ACK_INTERVAL_MS, now_ms
        return self._message(body, CK_TAG, unique, revive_queue=revive_queue, times=times)

    def ack(
        self, key: BatchKey, offsets: Sequence[int], visible_ms: int, revive_queue: int, now_ms: int
    ) -> Message:
        """Return the ack record of one or several messages of a batch."""
        rest = (
            f'"bn":{self._quoted_broker},"c":{json.dumps(key.group)},"pt":{key.pop_ms},'
            f'"q":{key.queue_id},"so":{key.start},"t":{json.dumps(key.topic)}}}'
        )
        if len(offsets) == 1:
            body = f'{{"ao":{offsets[0]},{rest}'
            unique, tag = f"{self._unique(key, offsets[0])}@{self._broker}@{ACK_TAG}", ACK_TAG
        else:
            body = f'{{"ao":0,"aol":[{",".join(map(str, offsets))}],{rest}'
            listed = ", ".join(map(str, offsets))
            unique, tag = f"{self._unique(key, f'[{listed}]')}@{BATCH_ACK_TAG}", BATCH_ACK_TAG
        times = visible_ms, now_ms
        return self._message(body, tag, unique, revive_queue=revive_queue, times=times)

    def _unique(self, key: BatchKey, which: int | str) -> str:
        return f"{key.topic}@{key.queue_id}@{which}@{key.group}@{key.pop_ms}"

    def _message(
        self, body: str, tag: str, unique: str, *, revive_queue: int, times: tuple[int, int]
    ) -> Message:
        deliver_ms, now_ms = (time_ms - self.ahead_ms for time_ms in times)
        own = f"TIMER_DELIVER_MS\x01{deliver_ms}\x02UNIQ_KEY\x01{unique}\x02TAGS\x01{tag}\x02"
        topic, queue_id = self._topic, revive_queue
        if deliver_ms > now_ms:
            out_ms = rounded(deliver_ms, self._precision_ms)
            own = (
                f"REAL_TOPIC\x01{topic}\x02{own}"
                f"TIMER_OUT_MS\x01{out_ms}\x02REAL_QID\x01{revive_queue}\x02"
            )
            topic, queue_id = TIMER_TOPIC, TIMER_QUEUE
        return Message(
            topic, queue_id, body.encode(), own.encode(), 0, 0, now_ms, self.host, self.host
        )
