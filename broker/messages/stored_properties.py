"""Stored properties of a sent message: names, values and order. Pure.

Names: docs/formats/store-format.md, section 2.11, and what the Apache 5 proxy stores for a gRPC
send (golden case `grpc`). Order: RocketMQ writes a Java hash map, so entries are in bucket order
(section 2.4) and, within a bucket, in insertion order: the user's, the proxy's, the broker's. With
the same order the records are byte-identical to Apache's; readers never depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ...proto import v2
from ...store.format.properties import encode_properties, java_hash

if TYPE_CHECKING:
    from .validation import Draft

#: Types whose messages have type-specific properties; message groups and delivery times are common.
_MARKED = (v2.TRANSACTION, v2.PRIORITY, v2.LITE)
_BUCKETS = 128
_GROWS_ABOVE = 96


@lru_cache(maxsize=8192)
def _spread_hash(name: str) -> int:
    value = java_hash(name) & 0xFFFFFFFF
    return value ^ value >> 16


def encode_sent(draft: Draft, topic: str, region: str, cluster: str, born_host: str) -> bytes:
    """Encode the properties of a message; PGROUP holds `topic`: gRPC has no producer group."""
    if draft.user_properties or draft.message_type in _MARKED:
        return encode_properties(sent_properties(draft, topic, region, cluster, born_host))
    before, between = frame(region, cluster, topic)
    names = f"UNIQ_KEY\x01{draft.message_id}{between}"
    if draft.delivery_ms is not None:
        names = f"TIMER_DELIVER_MS\x01{draft.delivery_ms}\x02{names}"
    if draft.message_group:
        names = f"__SHARDINGKEY\x01{draft.message_group}\x02{names}"
    if draft.tag:
        names = f"{names}TAGS\x01{draft.tag}\x02"
    if draft.trace_context:
        names = f"{names}TRACE_CONTEXT\x01{draft.trace_context}\x02"
    keys = f"KEYS\x01{draft.keys}\x02" if draft.keys else ""
    return (
        f"{before}{names}__BORNHOST\x01{born_host}\x02BORN_TIMESTAMP\x01{draft.born_ms}\x02"
        f"{keys}TRACE_ON\x01true\x02"
    ).encode()


@lru_cache(maxsize=4096)
def frame(region: str, cluster: str, topic: str) -> tuple[str, str]:
    """Return the encoded properties that are equal in all common messages of a topic: those before
    and those after `UNIQ_KEY`, in bucket order.
    """
    return (
        f"MSG_REGION\x01{region}\x02",
        f"\x02CLUSTER\x01{cluster}\x02PGROUP\x01{topic}\x02RECONSUME_TIME\x010\x02",
    )


def system_properties(
    draft: Draft, topic: str, region: str, cluster: str, born_host: str
) -> dict[str, str]:
    """Return the broker's and the proxy's properties in Apache's insertion order."""
    properties = {"UNIQ_KEY": draft.message_id}
    if draft.tag:
        properties["TAGS"] = draft.tag
    if draft.keys:
        properties["KEYS"] = draft.keys
    if draft.message_group:
        properties["__SHARDINGKEY"] = draft.message_group
    if draft.delivery_ms is not None:
        properties["TIMER_DELIVER_MS"] = str(draft.delivery_ms)
    properties.update(_type_properties(draft))
    if draft.trace_context:
        properties["TRACE_CONTEXT"] = draft.trace_context
    properties["RECONSUME_TIME"] = "0"
    properties["PGROUP"] = topic
    properties["__BORNHOST"] = born_host
    properties["BORN_TIMESTAMP"] = str(draft.born_ms)
    properties["MSG_REGION"] = region
    properties["TRACE_ON"] = "true"
    properties["CLUSTER"] = cluster
    return properties


def in_bucket_order(properties: Mapping[str, str], buckets: int = _BUCKETS) -> dict[str, str]:
    """Return the entries in the order of a Java hash map of `buckets` buckets (128 for a map that
    Apache decoded, 16 for one that it created), in insertion order within a bucket.
    """
    while len(properties) > buckets * _GROWS_ABOVE // _BUCKETS:
        buckets *= 2
    mask = buckets - 1
    return {
        name: properties[name] for name in sorted(properties, key=lambda n: _spread_hash(n) & mask)
    }


def sent_properties(
    draft: Draft, topic: str, region: str, cluster: str, born_host: str
) -> dict[str, str]:
    """Return the user's and the system's properties of a message in stored order."""
    everything = dict(draft.user_properties or {})
    everything.update(system_properties(draft, topic, region, cluster, born_host))
    return in_bucket_order(everything)


def _type_properties(draft: Draft) -> dict[str, str]:
    """Return the type-specific properties; those of other types are dropped, as in the
    reference.
    """
    if draft.message_type == v2.TRANSACTION:
        properties = {"TRAN_MSG": "true"}
        if draft.recovery_s is not None:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(draft.recovery_s)
        return properties
    if draft.message_type == v2.PRIORITY:
        return {"_SYS_MSG_PRIORITY_": str(draft.priority)}
    return {"__LITE_TOPIC": draft.lite_topic} if draft.message_type == v2.LITE else {}
